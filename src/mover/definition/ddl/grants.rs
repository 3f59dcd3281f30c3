//! Privileges by which a role has its code run by others: TRIGGER, and REFERENCES, on a table. A
//! trigger runs as the role that writes to the table. So does, before PostgreSQL 18, a deferred
//! trigger of a table with a foreign key that cascades.
//!
//! A mover writes to a schema that it builds and to an old copy, as the role that owns them. No
//! other role has these privileges there: the schema gets them when it is opened, after the last
//! thing that the mover writes.

use std::collections::{BTreeMap, BTreeSet};

use crate::mover::definition::ddl::order::Node;
use crate::mover::definition::ddl::stage::Stage;
use crate::pg::quote_ident;
use crate::schema::catalog::{Address, Facts, Grant, Grantee};

/// The privileges, as SQL lists them.
const ATTACHING: [&str; 2] = ["REFERENCES", "TRIGGER"];

/// Whether this lets others than the owner have their code run by a writer.
pub(super) fn attaches_code(grant: &Grant) -> bool {
    let attaching = grant.on.class == "pg_class" && ATTACHING.contains(&grant.privilege.as_str());
    attaching && !grant.revoked && grant.grantee != Grantee::Owner
}

/// `GRANT TRIGGER ON TABLE a, b TO x`, for all of them: tables with the same grant are in one
/// statement, since the shard is closed while they run.
pub(super) fn at_open(facts: &Facts, schema: &str) -> Option<Node> {
    let mut tables: BTreeMap<(String, String, &str), Vec<String>> = BTreeMap::new();
    for grant in facts.grants.iter().filter(|grant| attaches_code(grant)) {
        let Some(relation) = facts.relation(grant.on.oid) else {
            continue;
        };
        let columns = relation
            .column(grant.column)
            .map(|column| format!(" ({})", quote_ident(&column.name)));
        let option = if grant.grantable {
            " WITH GRANT OPTION"
        } else {
            ""
        };
        let key = (
            format!("{}{}", grant.privilege, columns.unwrap_or_default()),
            role(&grant.grantee),
            option,
        );
        tables.entry(key).or_default().push(format!(
            "{}.{}",
            quote_ident(schema),
            quote_ident(&relation.name)
        ));
    }
    let grant = |((privilege, role, option), tables): (&(String, String, &str), &Vec<String>)| {
        format!(
            "GRANT {privilege} ON TABLE {} TO {role}{option}",
            tables.join(", ")
        )
    };
    let sql: Vec<String> = tables.iter().map(grant).collect();
    (!sql.is_empty()).then(|| Node {
        address: Address::new("grant", facts.oid),
        stage: Stage::Grant,
        rank: 0,
        what: "privileges".to_owned(),
        sql,
        table: None,
        may_wait: false,
    })
}

/// Removes them from the facts of an old copy. Returns the statement that takes them away there; it
/// is empty where there are none.
pub(crate) fn take_away(facts: &mut Facts, schema: &str) -> String {
    let (taken, left): (Vec<Grant>, Vec<Grant>) = std::mem::take(&mut facts.grants)
        .into_iter()
        .partition(attaches_code);
    facts.grants = left;
    let name = |grant: &Grant| {
        format!(
            "{}.{}",
            quote_ident(schema),
            quote_ident(facts.relation_name(grant.on.oid))
        )
    };
    let tables: BTreeSet<String> = taken.iter().map(name).collect();
    let roles: BTreeSet<String> = taken.iter().map(|grant| role(&grant.grantee)).collect();
    if taken.is_empty() {
        return String::new();
    }
    let list = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(", ");
    // With a table's go those of its columns.
    format!(
        "REVOKE {} ON TABLE {} FROM {};\n",
        ATTACHING.join(", "),
        list(tables),
        list(roles)
    )
}

/// A role as a GRANT names it.
pub(super) fn role(grantee: &Grantee) -> String {
    match grantee {
        Grantee::Owner => "CURRENT_USER".to_owned(),
        Grantee::Public => "PUBLIC".to_owned(),
        Grantee::Role { name } => quote_ident(name),
    }
}
