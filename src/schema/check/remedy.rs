//! What to do, where several findings say the same.

pub(super) const MEND: &str = "run `pgshard bootstrap`, which restores it";
pub(super) const BOOTSTRAP: &str = "run `pgshard bootstrap`";
pub(super) const REBUILD: &str = "run `pgshard map rebuild`";
/// The command that says what can be repaired, for a shard about which hosts contradict each other.
pub(in crate::schema) const REPAIR: &str = "`pgshard moves repair SHARD --plan` says what can be done";
pub(super) const MOVES: &str = "see `pgshard moves list`";
