//! Commands that several findings name as their remedy.

pub(super) const BOOTSTRAP: &str = "run `pgshard bootstrap`";
pub(super) const GC: &str = "run `pgshard moves gc`";
pub(super) const MOVES: &str = "see `pgshard moves list`";
pub(super) const REBUILD: &str = "run `pgshard map rebuild`";
pub(super) const RESUME: &str =
    "run `pgshard moves resume`; the next statement on the shard opens it too";

/// The command that says what can be repaired, for a shard about which hosts contradict each other.
pub(super) const REPAIR: &str = "`pgshard moves repair SHARD --plan` says what can be done";
