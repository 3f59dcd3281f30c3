//! The migrations of the control schema: their texts, and what is recorded of them.
//!
//! Invariant: the text of a step never changes once it was released; a change is the next number.
//!
//! The steps are not merged into one although none was released: `damage` and `shape` derive the
//! expected objects from these texts, the mover's model reads single files, and tests install each
//! earlier version and upgrade it. A merged step has to be compared with the sum of these, object
//! by object, on every supported version of PostgreSQL.

use sha2::{Digest, Sha256};

/// One step of the control schema.
pub(in crate::schema) struct Step {
    pub(in crate::schema) version: i32,
    pub(in crate::schema) name: &'static str,
    pub(in crate::schema) sql: &'static str,
}

pub(in crate::schema) const STEPS: [Step; 10] = [
    Step {
        version: 1,
        name: "control",
        sql: include_str!("../../../migrations/control/0001_control.sql"),
    },
    Step {
        version: 2,
        name: "open_past_autovacuum",
        sql: include_str!("../../../migrations/control/0002_open_past_autovacuum.sql"),
    },
    Step {
        version: 3,
        name: "mover",
        sql: include_str!("../../../migrations/control/0003_mover.sql"),
    },
    Step {
        version: 4,
        name: "audit",
        sql: include_str!("../../../migrations/control/0004_audit.sql"),
    },
    Step {
        version: 5,
        name: "identity",
        sql: include_str!("../../../migrations/control/0005_identity.sql"),
    },
    Step {
        version: 6,
        name: "known",
        sql: include_str!("../../../migrations/control/0006_known.sql"),
    },
    Step {
        version: 7,
        name: "repair",
        sql: include_str!("../../../migrations/control/0007_repair.sql"),
    },
    Step {
        version: 8,
        name: "lent_identity",
        sql: include_str!("../../../migrations/control/0008_lent_identity.sql"),
    },
    Step {
        version: 9,
        name: "rights",
        sql: include_str!("../../../migrations/control/0009_rights.sql"),
    },
    Step {
        version: 10,
        name: "redirect",
        sql: include_str!("../../../migrations/control/0010_redirect.sql"),
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
