//! The triggers that keep a table's key that of the row it refers to.
//!
//! Three functions. `fill` reads the key of the row that a new or changed row refers to, and keeps
//! that row with `FOR KEY SHARE`, as the check of a foreign key does. `lock` runs before the key of
//! a row changes, and locks that row `FOR UPDATE`: it waits for the transactions that have read the
//! former key, and those that come now wait for it. `follow` then gives the new key to the rows
//! that refer to it, which their own triggers pass on.
//!
//! Invariant: under READ COMMITTED no row ends with another key than the row that it refers to.
//! `FOR KEY SHARE` alone would not do: an UPDATE of a column without a unique index does not
//! conflict with it, and a reader could keep the former version. A stronger lock for readers,
//! `FOR SHARE`, would, but then two transactions that each add a row and count it in its parent
//! would wait for each other. A transaction that is REPEATABLE READ does not see rows that others
//! have added since it began, so it may not change a key: `lock` refuses it. It may add rows: if
//! the key has changed since, its `FOR KEY SHARE` fails with a serialization failure.
//!
//! The functions run with the rights of the role that made them, and can be called by no other
//! trigger. `fill` and `lock` see no schema but `pg_catalog`. `follow` keeps the caller's
//! `search_path`, in which the application's triggers on the rows that it changes find what they
//! name, as for ON UPDATE CASCADE; so it names everything with its schema.

use super::table::{KeyTable, Parent};
use crate::import::change::record::SCHEMA;
use crate::pg::{quote_ident, quote_literal};

/// The triggers' names sort behind those of the application, so that they see what its own triggers
/// have made of a row. `lock` comes after `fill`, which may change the key.
pub(super) const FILL_INSERT: &str = "zz_pgshard_fill_insert";
pub(super) const FILL_UPDATE: &str = "zz_pgshard_fill_update";
pub(super) const LOCK: &str = "zz_pgshard_lock";

/// The trigger on the parent that passes a changed key on to a table.
pub(super) fn follow(table: u32) -> String {
    format!("zz_pgshard_follow_{table}")
}

/// The same for a parent's row that comes after the rows that refer to it.
pub(super) fn follow_insert(table: u32) -> String {
    format!("zz_pgshard_follow_insert_{table}")
}

/// Whether all triggers are there and always fire.
pub(super) fn are_there(table: &KeyTable, parent: &Parent, of_parent: &[String]) -> bool {
    let has = |all: &[String], name: &str| all.iter().any(|one| one == name);
    let own = &table.details.triggers;
    has(own, FILL_INSERT)
        && has(own, FILL_UPDATE)
        && has(of_parent, LOCK)
        && has(of_parent, &follow(table.oid))
        && (!parent.comes_later || has(of_parent, &follow_insert(table.oid)))
}

/// The functions' names, quoted, in their schema.
fn fill_function(table: u32) -> String {
    format!("{SCHEMA}.{}", fill_name(table))
}

/// The name of the function that fills a table's rows.
pub(super) fn fill_name(table: u32) -> String {
    format!("fill_{table}")
}

fn lock_function(parent: u32) -> String {
    format!("{SCHEMA}.lock_{parent}")
}

fn follow_function(parent: u32, table: u32) -> String {
    format!("{SCHEMA}.follow_{parent}_{table}")
}

/// Makes the functions; they name tables by their schemas, so they are made again when tables get
/// another.
pub(super) fn functions(table: &KeyTable, parent: &Parent) -> Vec<String> {
    let key = quote_ident(&table.column);
    let of_parent = quote_ident(&parent.key);
    let refers: Vec<String> = parent
        .pairs
        .iter()
        .map(|(own, to)| format!("p.{} = NEW.{}", quote_ident(to), quote_ident(own)))
        .collect();
    let fill = format!(
        "BEGIN SELECT p.{of_parent} INTO NEW.{key} FROM {} p WHERE {} FOR KEY SHARE; \
        RETURN NEW; END",
        parent.sql,
        refers.join(" AND ")
    );
    let same: Vec<String> = parent
        .primary
        .iter()
        .map(|column| format!("p.{0} = OLD.{0}", quote_ident(column)))
        .collect();
    let lock = format!(
        "BEGIN IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN \
        RAISE EXCEPTION USING ERRCODE = 'feature_not_supported', MESSAGE = {}, DETAIL = {}, \
        HINT = {}; END IF; PERFORM 1 FROM {} p WHERE {} FOR UPDATE; RETURN NEW; END",
        quote_literal(&format!(
            "the key of a row of {} changes in a transaction that is not READ COMMITTED",
            parent.label
        )),
        quote_literal("Rows that refer to it and were added since would keep the former key."),
        quote_literal("Change it in a transaction that is READ COMMITTED."),
        parent.sql,
        same.join(" AND ")
    );
    let refer: Vec<String> = parent
        .pairs
        .iter()
        .map(|(own, to)| {
            let (own, to) = (quote_ident(own), quote_ident(to));
            format!("c.{own} OPERATOR(pg_catalog.=) NEW.{to}")
        })
        .collect();
    // The application may drop the table; one that it renames is an error, not left behind. IS
    // DISTINCT FROM would look for its operator in the caller's schemas.
    let follow = format!(
        "BEGIN IF EXISTS (SELECT FROM pg_catalog.pg_class \
        WHERE oid OPERATOR(pg_catalog.=) {}::pg_catalog.oid) THEN \
        UPDATE {} c SET {key} = NEW.{of_parent} WHERE {} \
        AND (c.{key} OPERATOR(pg_catalog.<>) NEW.{of_parent}) IS NOT FALSE; \
        END IF; RETURN NULL; END",
        table.oid,
        table.sql,
        refer.join(" AND ")
    );
    let own = "SET search_path = pg_catalog, pg_temp ";
    [
        (fill_function(table.oid), own, fill),
        (lock_function(parent.oid), own, lock),
        (follow_function(parent.oid, table.oid), "", follow),
    ]
    .into_iter()
    .flat_map(|(name, settings, body)| function(&name, settings, &body))
    .collect()
}

/// A trigger function that runs with our rights, which only we can use.
fn function(name: &str, settings: &str, body: &str) -> [String; 2] {
    [
        format!(
            "CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql \
            SECURITY DEFINER {settings}AS {}",
            quote_literal(body)
        ),
        format!("REVOKE ALL ON FUNCTION {name}() FROM PUBLIC"),
    ]
}

/// Makes the functions and triggers, in place of any that are there.
pub(super) fn create(table: &KeyTable, parent: &Parent) -> Vec<String> {
    let mut sql = functions(table, parent);
    let key = quote_ident(&table.column);
    let own = parent.pairs.iter().map(|(own, _)| quote_ident(own));
    let own: Vec<String> = own.chain([key]).map(|column| differs(&column)).collect();
    let to = parent.pairs.iter().map(|(_, to)| quote_ident(to));
    let to = to.chain([quote_ident(&parent.key)]);
    let to: Vec<String> = to.map(|column| differs(&column)).collect();
    let fill = fill_function(table.oid);
    let follow_it = follow_function(parent.oid, table.oid);
    let mut triggers = vec![
        (
            &table.sql,
            FILL_INSERT.to_owned(),
            "BEFORE INSERT",
            String::new(),
            fill.clone(),
        ),
        (
            &table.sql,
            FILL_UPDATE.to_owned(),
            "BEFORE UPDATE",
            when(&own),
            fill,
        ),
        (
            &parent.sql,
            follow(table.oid),
            "AFTER UPDATE",
            when(&to),
            follow_it.clone(),
        ),
    ];
    if parent.comes_later {
        let name = follow_insert(table.oid);
        triggers.push((&parent.sql, name, "AFTER INSERT", String::new(), follow_it));
    }
    // Another table may refer to the same parent by other columns: `lock` is for any of its keys.
    let changes = when(&[differs(&quote_ident(&parent.key))]);
    let lock = lock_function(parent.oid);
    triggers.push((&parent.sql, LOCK.to_owned(), "BEFORE UPDATE", changes, lock));
    for (on, name, event, when, function) in triggers {
        sql.push(format!(
            "CREATE OR REPLACE TRIGGER {name} {event} ON {on} FOR EACH ROW {when}\
            EXECUTE FUNCTION {function}()"
        ));
        // A session that replicates would fire no other trigger.
        sql.push(format!("ALTER TABLE {on} ENABLE ALWAYS TRIGGER {name}"));
    }
    sql
}

fn differs(column: &str) -> String {
    format!("OLD.{column} IS DISTINCT FROM NEW.{column}")
}

fn when(conditions: &[String]) -> String {
    format!("WHEN ({}) ", conditions.join(" OR "))
}

/// Drops what [`create`] has made on a table.
pub(super) fn drop_of_table(table: u32, sql: &str) -> Vec<String> {
    vec![
        format!("DROP TRIGGER IF EXISTS {FILL_INSERT} ON {sql}"),
        format!("DROP TRIGGER IF EXISTS {FILL_UPDATE} ON {sql}"),
        drop_fill(table),
    ]
}

/// Drops the function of a table that is gone, and its triggers with it.
pub(super) fn drop_fill(table: u32) -> String {
    format!("DROP FUNCTION IF EXISTS {}()", fill_function(table))
}

/// Drops the functions of a parent that is gone, and its triggers with it.
pub(super) fn drop_functions_of_parent(table: u32, parent: u32) -> Vec<String> {
    vec![
        format!(
            "DROP FUNCTION IF EXISTS {}()",
            follow_function(parent, table)
        ),
        format!("DROP FUNCTION IF EXISTS {}()", lock_function(parent)),
    ]
}

/// Drops what [`create`] has made on the parent for a table.
pub(super) fn drop_of_parent(table: u32, parent: u32, sql: &str) -> Vec<String> {
    vec![
        format!("DROP TRIGGER IF EXISTS {} ON {sql}", follow(table)),
        format!("DROP TRIGGER IF EXISTS {} ON {sql}", follow_insert(table)),
        format!(
            "DROP FUNCTION IF EXISTS {}()",
            follow_function(parent, table)
        ),
    ]
}

/// Drops the parent's lock, for the last table that refers to it.
pub(super) fn drop_lock(parent: u32, sql: &str) -> Vec<String> {
    vec![
        format!("DROP TRIGGER IF EXISTS {LOCK} ON {sql}"),
        format!("DROP FUNCTION IF EXISTS {}()", lock_function(parent)),
    ]
}
