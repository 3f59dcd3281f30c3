//! Commands that several findings name as their remedy.

pub(in crate::schema) const BOOTSTRAP: &str = "run `pgshard bootstrap`";
pub(in crate::schema) const GC: &str = "run `pgshard moves gc`";
pub(in crate::schema) const MOVES: &str = "see `pgshard moves list`";
pub(in crate::schema) const REBUILD: &str = "run `pgshard map rebuild`";
pub(in crate::schema) const RESUME: &str =
    "run `pgshard moves resume`; the next statement on the shard opens it too";

/// The command that shows what can be repaired, for a shard about which hosts contradict each
/// other.
pub(in crate::schema) const REPAIR: &str =
    "`pgshard moves repair SHARD --plan` says what can be done";
