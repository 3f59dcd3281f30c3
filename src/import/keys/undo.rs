//! Takes back what was done, by the record: the children first, each table in steps that can be
//! done again.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::record::{self, Record};
use super::steps;
use super::triggers;
use crate::import::change::{ChangeError, ChangeEvent, Mode, Observer, Session, StepKind};
use crate::pg::quote_ident;

/// A table as it is called now.
#[derive(Clone, Debug, Deserialize)]
struct Named {
    oid: u32,
    schema: String,
    name: String,
}

impl Named {
    fn sql(&self) -> String {
        format!("{}.{}", quote_ident(&self.schema), quote_ident(&self.name))
    }
}

/// Takes back what was done to these tables and to those that have their key from them; to all if
/// there are none. Returns their names.
pub(super) async fn undo(
    session: &Session,
    only: &BTreeSet<u32>,
    observer: Observer<'_>,
) -> Result<Vec<String>, ChangeError> {
    let mut records = record::read(session).await?;
    let mut chosen = only.clone();
    if chosen.is_empty() {
        chosen.extend(records.iter().map(|record| record.relation));
    }
    loop {
        let before = chosen.len();
        let behind = records
            .iter()
            .filter(|record| record.parent.is_some_and(|parent| chosen.contains(&parent)));
        let behind: Vec<u32> = behind.map(|record| record.relation).collect();
        chosen.extend(behind);
        if chosen.len() == before {
            break;
        }
    }
    let named = names(session).await?;
    let mut undone = Vec::new();
    while let Some(at) = records.iter().position(|record| {
        let is_parent = records
            .iter()
            .any(|other| other.parent == Some(record.relation));
        chosen.contains(&record.relation) && !is_parent
    }) {
        let record = records.remove(at);
        let siblings = records.iter().any(|other| other.parent == record.parent);
        one(session, &record, siblings, &named, observer).await?;
        if let Some(table) = named.get(&record.relation) {
            undone.push(table.name.clone());
        }
    }
    record::drop_if_empty(session).await?;
    Ok(undone)
}

async fn names(session: &Session) -> Result<BTreeMap<u32, Named>, ChangeError> {
    let sql = "SELECT json_build_object('oid', c.oid::int8, 'schema', n.nspname, 'name', c.relname)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p')";
    let named: Vec<Named> = session.values("find the tables", sql).await?;
    Ok(named.into_iter().map(|one| (one.oid, one)).collect())
}

/// Takes back what is left of tables that the application has dropped: triggers on their parents.
pub(super) async fn tidy(session: &Session, observer: Observer<'_>) -> Result<(), ChangeError> {
    let mut records = record::read(session).await?;
    let named = names(session).await?;
    while let Some(at) = records
        .iter()
        .position(|record| !named.contains_key(&record.relation))
    {
        let record = records.remove(at);
        let siblings = records.iter().any(|other| other.parent == record.parent);
        one(session, &record, siblings, &named, observer).await?;
    }
    Ok(())
}

async fn one(
    session: &Session,
    record: &Record,
    siblings: bool,
    named: &BTreeMap<u32, Named>,
    observer: Observer<'_>,
) -> Result<(), ChangeError> {
    let forget = format!(
        "DELETE FROM pgshard_import.keys WHERE relation = {}",
        record.relation
    );
    // ACCESS EXCLUSIVE on the table and its parent, for as long as catalogs change.
    let mut locks = Vec::new();
    let mut statements = Vec::new();
    match record.parent.map(|oid| (oid, named.get(&oid))) {
        Some((_, Some(parent))) => {
            let sql = parent.sql();
            statements.extend(triggers::drop_of_parent(record.relation, parent.oid, &sql));
            if !siblings {
                statements.extend(triggers::drop_lock(parent.oid, &sql));
            }
            locks.push((parent.oid, sql));
        }
        Some((oid, None)) => {
            statements.extend(triggers::drop_functions_of_parent(record.relation, oid));
        }
        None => {}
    }
    let Some(table) = named.get(&record.relation) else {
        statements.push(triggers::drop_fill(record.relation));
        statements.push(forget);
        let what = "take back what is left of a table";
        if locks.is_empty() {
            let sql = format!("BEGIN; {}; COMMIT", statements.join("; "));
            return session.execute(what, &sql).await;
        }
        let short = session.short(what, &locks, Mode::AccessExclusive, &statements, observer);
        return short.await;
    };
    let what = format!("take back the key of {}", table.name);
    observer(ChangeEvent::Step {
        object: table.name.clone(),
        step: StepKind::Undo,
    });
    let alone = [(table.oid, table.sql())];
    if let Some(was) = &record.identity_was {
        // ACCESS EXCLUSIVE for as long as a catalog changes.
        let statements = [
            identity(session, table, was, record.identity_index_was.as_deref()).await?,
            format!(
                "UPDATE pgshard_import.keys SET identity_was = NULL, identity_index_was = NULL
                WHERE relation = {}",
                table.oid
            ),
        ];
        let short = session.short(&what, &alone, Mode::AccessExclusive, &statements, observer);
        short.await?;
    }
    if record.builds_index {
        let index = format!("pgshard_key_{}", table.oid);
        let sql = steps::drop_index(&quote_ident(&table.schema), &index);
        session.long(&what, &sql, observer).await?;
    }
    locks.extend(alone);
    statements.extend(triggers::drop_of_table(table.oid, &table.sql()));
    let alter = |change: String| format!("ALTER TABLE {} {change}", table.sql());
    let column = quote_ident(&record.key_column);
    if record.adds_column {
        // Our constraint goes with its column.
        statements.push(alter(format!("DROP COLUMN {column}")));
    } else if record.sets_not_null {
        statements.push(alter(
            "DROP CONSTRAINT IF EXISTS pgshard_key_not_null".to_owned(),
        ));
        statements.push(alter(format!("ALTER COLUMN {column} DROP NOT NULL")));
    }
    statements.push(forget);
    let short = session.short(&what, &locks, Mode::AccessExclusive, &statements, observer);
    short.await
}

/// The statement that gives a table its former replica identity.
async fn identity(
    session: &Session,
    table: &Named,
    was: &str,
    index: Option<&str>,
) -> Result<String, ChangeError> {
    let identity = match (was, index) {
        ("n", _) => "NOTHING".to_owned(),
        ("f", _) => "FULL".to_owned(),
        ("i", Some(index)) => {
            let sql = format!(
                "SELECT to_json(x.relname) FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
                WHERE i.indrelid = {}",
                table.oid
            );
            let there: Vec<String> = session.values("find the former index", &sql).await?;
            if there.iter().any(|name| name == index) {
                format!("USING INDEX {}", quote_ident(index))
            } else {
                "DEFAULT".to_owned()
            }
        }
        _ => "DEFAULT".to_owned(),
    };
    Ok(format!(
        "ALTER TABLE {} REPLICA IDENTITY {identity}",
        table.sql()
    ))
}
