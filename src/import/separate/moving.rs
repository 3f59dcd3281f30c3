//! Gives tables another schema, all in one transaction.
//!
//! Invariant: no statement of the application waits for longer than 0.2 s: for all locks together
//! it is waited for a tenth of a second, and all statements together have as much, with their waits
//! for sequences that no LOCK TABLE can have. Only for more than fifty tables it is longer.

use super::outside::Relation;
use crate::import::change::{ChangeError, Mode, Observer, Session};
use crate::pg::{do_block, quote_ident, quote_literal};

/// What the statements of a table with its indexes may take: about four times of what they do.
const TABLE_MS: usize = 2;

/// What all statements may take in any case.
const MIN_MS: usize = 100;

/// The statements that give relations another schema, with those that make the triggers' functions
/// again.
pub(super) fn sql(
    relations: &[&Relation],
    from: &str,
    to: &str,
    functions: &[String],
) -> Vec<String> {
    let schema = quote_ident(to);
    let mut sql = Vec::new();
    for relation in relations {
        sql.push(format!(
            "ALTER TABLE {} SET SCHEMA {schema}",
            relation.sql()
        ));
        // They would stay where they are.
        for statistics in relation.statistics.iter().filter(|one| one.schema == from) {
            let name = quote_ident(&statistics.name);
            let from = quote_ident(from);
            sql.push(format!(
                "ALTER STATISTICS {from}.{name} SET SCHEMA {schema}"
            ));
        }
    }
    sql.extend(functions.iter().cloned());
    sql
}

/// Does these statements in one transaction, in as many short tries as it needs.
pub(super) async fn move_at_once(
    session: &Session,
    what: &str,
    relations: &[&Relation],
    sql: &[String],
    observer: Observer<'_>,
) -> Result<(), ChangeError> {
    let calls: Vec<String> = sql
        .iter()
        .map(|sql| format!("EXECUTE {};", quote_literal(sql)))
        .collect();
    let limit_ms = (TABLE_MS * relations.len()).max(MIN_MS);
    // One statement, so that one limit holds for all.
    let statements = [
        format!("SET LOCAL statement_timeout = '{limit_ms}ms'"),
        do_block(&format!("BEGIN {} END", calls.join(" "))),
    ];
    let own = relations.iter().map(|one| one.oid);
    let sequences = relations
        .iter()
        .flat_map(|one| one.sequences.iter().copied());
    let others: Vec<u32> = own.chain(sequences).collect();
    let (tables, mode) = (roots(relations), Mode::AccessExclusive);
    // ACCESS EXCLUSIVE on all tables for as long as catalogs change.
    let short = session.short_with(what, &tables, mode, &statements, &others, observer);
    short.await
}

/// The tables that LOCK TABLE names, in the order of their names: partitions are locked with
/// theirs.
pub(super) fn roots(relations: &[&Relation]) -> Vec<(u32, String)> {
    let is_there = |root: u32| relations.iter().any(|one| one.oid == root);
    let roots = relations.iter();
    let roots = roots.filter(|one| one.oid == one.root || !is_there(one.root));
    roots.map(|one| (one.oid, one.sql())).collect()
}
