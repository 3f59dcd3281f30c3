//! What the control schema records about a migration of a shard.

use serde::Deserialize;

/// A migration that a shard has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct RecordedMigration {
    /// Its file's name without `.sql`; pgshard's own start with `pgshard:`.
    pub name: String,
    /// SHA-256 of its text, in hexadecimal.
    pub checksum: String,
}
