//! The server, and the key itself.

use super::case::Case;
use crate::import::facts::VERSION_MIN;
use crate::import::obstacle::{BlockingObject, Kind};

pub(super) fn look(case: &Case<'_>, found: &mut Vec<BlockingObject>) {
    let server = &case.database.server;
    let mut add = |kind, detail: String| {
        found.push(BlockingObject::new(kind, &server.database, detail));
    };
    if server.version < VERSION_MIN {
        add(
            Kind::VersionTooOld,
            format!("it is version {}", server.version / 10_000),
        );
    }
    if !server.can_decode {
        add(
            Kind::LogicalDecodingOff,
            format!("wal_level is {}", server.wal_level),
        );
    }
    if let Some(refused) = &server.replication {
        add(Kind::ReplicationRefused, refused.clone());
    }
    if server.free_slots < 1 {
        add(Kind::ReplicationSlots, "all slots are used".to_owned());
    } else if server.free_senders < 1 {
        add(Kind::ReplicationSlots, "all walsenders are used".to_owned());
    }
    if server.prepared > 0 {
        add(Kind::PreparedTransactions, format!("{}", server.prepared));
    }
    let key = case.database.key;
    let Some(column) = case.database.column(key.table, key.column) else {
        return;
    };
    let name = case.database.column_names(key.table, &[key.column]);
    if !(column.is_integer() || column.is_text() || column.type_ == "uuid") {
        let detail = format!("it is {}", column.type_);
        found.push(BlockingObject::new(Kind::KeyType, &name, detail));
    }
    let is_unique = case.database.uniques.iter().any(|unique| {
        unique.table == key.table
            && unique.columns == [key.column]
            && !unique.partial
            && !unique.exclusion
    });
    if !is_unique {
        found.push(BlockingObject::new(Kind::KeyNotUnique, name, ""));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::decide::Decisions;
    use crate::import::facts::{Database, Server};

    fn kinds(version: u32) -> Vec<Kind> {
        let server: Server = serde_json::from_value(serde_json::json!({
            "database": "app", "role": "app", "version": version, "standby": false,
            "wal_level": "logical", "can_decode": true, "free_slots": 1, "free_senders": 1,
            "bypasses_rls": true, "prepared": 0, "large_objects": false, "wal": null,
        }))
        .unwrap();
        let case = Case {
            database: &Database::without_tables(server),
            decisions: &Decisions::new(),
            first_id: 0,
        };
        let mut found = Vec::new();
        look(&case, &mut found);
        found.into_iter().map(|one| one.kind).collect()
    }

    #[test]
    fn a_server_older_than_14_is_too_old() {
        assert_eq!(kinds(130_021), [Kind::VersionTooOld]);
        assert_eq!(kinds(140_000), []);
        assert_eq!(kinds(180_001), []);
    }
}
