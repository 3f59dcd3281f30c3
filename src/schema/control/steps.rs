//! The migrations of the control schema: their texts, and what is recorded of them.
//!
//! Invariant: the text of a step never changes once it was released; a change is the next number.
//! Until the first release, a change goes into the step that it belongs to.
//!
//! The steps up to [`VERSION`] are cut by subject, and each object is created once. `damage` and
//! `shape` derive the expected objects from these texts.

use sha2::{Digest, Sha256};

/// One step of the control schema.
pub(in crate::schema) struct Step {
    pub(in crate::schema) version: i32,
    pub(in crate::schema) name: &'static str,
    pub(in crate::schema) sql: &'static str,
}

pub(in crate::schema) const STEPS: [Step; 8] = [
    Step {
        version: 1,
        name: "shards",
        sql: include_str!("../../../migrations/control/0001_shards.sql"),
    },
    Step {
        version: 2,
        name: "moves",
        sql: include_str!("../../../migrations/control/0002_moves.sql"),
    },
    Step {
        version: 3,
        name: "signposts",
        sql: include_str!("../../../migrations/control/0003_signposts.sql"),
    },
    Step {
        version: 4,
        name: "ownership",
        sql: include_str!("../../../migrations/control/0004_ownership.sql"),
    },
    Step {
        version: 5,
        name: "migrations",
        sql: include_str!("../../../migrations/control/0005_migrations.sql"),
    },
    Step {
        version: 6,
        name: "repair",
        sql: include_str!("../../../migrations/control/0006_repair.sql"),
    },
    Step {
        version: 7,
        name: "hosts",
        sql: include_str!("../../../migrations/control/0007_hosts.sql"),
    },
    Step {
        version: 8,
        name: "rights",
        sql: include_str!("../../../migrations/control/0008_rights.sql"),
    },
];

/// The migrations of the control schema: version and text.
pub(in crate::schema) fn steps() -> impl Iterator<Item = (i32, &'static str)> {
    STEPS.iter().map(|step| (step.version, step.sql))
}

/// The statement that records a control migration which was run.
pub(in crate::schema) fn record_of(version: i32) -> String {
    let step = STEPS
        .iter()
        .find(|step| step.version == version)
        .expect("the version is one of ours");
    format!(
        "INSERT INTO pgshard.control_migration (version, name, checksum) VALUES ({version}, '{}', \
            '{}')",
        step.name,
        checksum(step.sql)
    )
}

/// The version of the control schema that this pgshard works with.
pub const VERSION: i32 = STEPS[STEPS.len() - 1].version;

/// SHA-256 of a migration's text, in hexadecimal. Line ends count as `\n`, so that a checkout on
/// another system is no change.
pub(in crate::schema) fn checksum(text: &str) -> String {
    let hash = Sha256::digest(text.replace("\r\n", "\n").as_bytes());
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_count_up_from_one() {
        assert!(
            STEPS
                .iter()
                .enumerate()
                .all(|(at, step)| step.version == at as i32 + 1)
        );
    }
}
