//! The settings under which SQL is deparsed here and executed on the other host, so that it means
//! the same.

use crate::pg::quote_ident;

/// Settings that change how a deparsed text looks or what it means, pinned as pg_dump does. The
/// time zone is pinned so that constants of type `timestamptz` look the same on every host.
pub(super) const PINNED: [(&str, &str); 9] = [
    ("DateStyle", "ISO, YMD"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("standard_conforming_strings", "on"),
    ("quote_all_identifiers", "off"),
    // Compiling a plan takes ten times as long as any of the queries.
    ("jit", "off"),
    // All rows of a cursor are fetched.
    ("cursor_tuple_fraction", "1"),
];

/// The `search_path` under which nothing is found by name but what is PostgreSQL's own.
pub(super) const CLOSED: &str = "pg_catalog, pg_temp";

/// The `search_path` under which only this schema's objects are named without a schema.
///
/// `pg_catalog` comes after the schema, so that a shard's own `lower(text)` or table `pg_class` is
/// found before the built-in one, like every other object. So it is for schemas in which no other
/// role may create any. `pg_temp` comes last, or temporary tables would hide the schema's.
pub(crate) fn search_path(schema: &str) -> String {
    format!("{}, pg_catalog, pg_temp", quote_ident(schema))
}

/// The statements that make a transaction ready to execute what was deparsed with
/// [`read`](super::read): the pinned settings, the `search_path`, and function bodies taken as they
/// are. All of them end with the transaction.
pub(crate) fn preamble(schema: &str) -> String {
    let mut sql = format!(
        "SET LOCAL search_path = {}; SET LOCAL check_function_bodies = off",
        search_path(schema)
    );
    for (name, value) in PINNED {
        sql.push_str(&format!("; SET LOCAL {name} = '{value}'"));
    }
    // A host's own defaults must not turn a plain table into something else.
    sql.push_str(
        "; SET LOCAL default_tablespace = ''; SET LOCAL default_table_access_method = heap",
    );
    sql
}

/// Ends what [`preamble`] has begun: from now on the transaction finds nothing of the schema by its
/// name alone. A table called `text` or an operator of its own must not be found by our statements.
pub(crate) const CLOSE_PATH: &str = "SET LOCAL search_path = pg_catalog, pg_temp";

/// The `search_path` under which a statement is run that does not name its operators, as
/// `IS DISTINCT FROM` does not: as [`search_path`], with the schemas behind it that have them.
pub(crate) fn path_with(schema: &str, operators: &[&str]) -> String {
    let others: String = operators
        .iter()
        .map(|schema| format!("{}, ", quote_ident(schema)))
        .collect();
    format!("{}, pg_catalog, {others}pg_temp", quote_ident(schema))
}
