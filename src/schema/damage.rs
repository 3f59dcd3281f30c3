//! Finds the parts of the control schema that differ from what its migrations have made.
//!
//! The text of the migrations says what there should be: the body of each function, who may call it, what everybody may
//! read. There, no name stands for two functions, and a later migration overrides an earlier one.
//!
//! Invariant: nothing that has rows in it is created again.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::control::{checksum, steps};
use super::script::statements;

/// What is installed, as [`INSTALLED`] gives it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct Installed {
    functions: BTreeMap<String, Function>,
    /// Tables that others than their owner may read.
    readable: BTreeSet<String>,
    /// Indexes that are valid.
    indexes: BTreeSet<String>,
    /// Whether others than its owner may use the schema.
    usable: bool,
}

/// A function, with everything that affects what it does.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Function {
    /// SHA-256 of the body.
    body: String,
    /// Whether it runs with its owner's rights.
    definer: bool,
    /// Whether it has the search path that all of them have.
    guarded: bool,
    /// Whether anybody may call it.
    public: bool,
    /// Whether others than its owner may call it: whoever takes rights from PUBLIC gives them to the routers' role.
    others: bool,
}

/// Reads [`Installed`]. Locks: none.
pub(super) const INSTALLED: &str = "
SELECT pg_catalog.json_build_object(
    'functions', coalesce((SELECT pg_catalog.json_object_agg(proname, pg_catalog.json_build_object(
            'body', pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(prosrc, 'UTF8')), 'hex'),
            'definer', prosecdef,
            'guarded', coalesce(proconfig = ARRAY['search_path=pg_catalog, pg_temp'], false),
            'public', EXISTS (SELECT FROM pg_catalog.aclexplode(coalesce(proacl, pg_catalog.acldefault('f', proowner)))
                              WHERE grantee = 0 AND privilege_type = 'EXECUTE'),
            'others', EXISTS (SELECT FROM pg_catalog.aclexplode(coalesce(proacl, pg_catalog.acldefault('f', proowner)))
                              WHERE grantee <> proowner AND privilege_type = 'EXECUTE')))
        FROM pg_catalog.pg_proc WHERE pronamespace = n.oid), '{}'),
    'readable', coalesce((SELECT pg_catalog.json_agg(relname) FROM pg_catalog.pg_class
        WHERE relnamespace = n.oid AND EXISTS (SELECT FROM pg_catalog.aclexplode(relacl)
                                               WHERE grantee <> relowner AND privilege_type = 'SELECT')), '[]'),
    'indexes', coalesce((SELECT pg_catalog.json_agg(c.relname) FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid WHERE c.relnamespace = n.oid AND i.indisvalid), '[]'),
    'usable', EXISTS (SELECT FROM pg_catalog.aclexplode(nspacl) WHERE grantee <> nspowner AND privilege_type = 'USAGE')
    )::text
FROM pg_catalog.pg_namespace n WHERE nspname = 'pgshard'";

/// Something that is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    /// The migration that made it.
    pub(super) version: i32,
    /// The damage, in one sentence.
    pub(super) what: String,
    /// The statements that repair it.
    pub(super) mend: String,
    /// What to do where no statement of ours makes it good.
    pub(super) by_hand: Option<String>,
}

/// A function as the migrations make it.
struct Expected {
    version: i32,
    sql: &'static str,
    body: &'static str,
    /// Whether everybody may call it, if a migration says so.
    public: Option<bool>,
}

/// Everything of the control schema that is missing or altered.
pub(super) fn damages(installed: &Installed) -> Vec<Damage> {
    let mut found: Vec<Damage> =
        functions().iter().filter_map(|(name, one)| of_function(installed, name, one)).collect();
    for (version, sql) in all() {
        let made = name_after(sql, "CREATE UNIQUE INDEX ").filter(|name| !installed.indexes.contains(*name));
        if let Some(name) = made {
            let (what, mend) = (format!("its index {name} is gone"), sql.to_owned());
            found.push(Damage { version, what, mend, by_hand: None });
        }
        let read = name_after(sql, "GRANT SELECT ON pgshard.").filter(|name| !installed.readable.contains(*name));
        if let Some(name) = read {
            let what = format!("nobody but its owner may read its table {name}, as routers must");
            found.push(Damage { version, what, mend: sql.to_owned(), by_hand: None });
        }
        if sql.starts_with("GRANT USAGE ON SCHEMA") && !installed.usable {
            let what = "nobody but its owner may use the schema, as routers must".to_owned();
            found.push(Damage { version, what, mend: sql.to_owned(), by_hand: None });
        }
    }
    found
}

fn of_function(installed: &Installed, name: &str, expected: &Expected) -> Option<Damage> {
    let body = checksum(expected.body);
    let definer = header(expected.sql).contains("SECURITY DEFINER");
    let guarded = header(expected.sql).contains("SET search_path = pg_catalog, pg_temp");
    let what = match installed.functions.get(name) {
        None => format!("its function {name} is gone"),
        Some(there) if there.body != body || there.definer != definer || there.guarded != guarded => {
            format!("its function {name} was altered")
        }
        Some(there) if expected.public == Some(true) && !there.others => {
            format!("nobody but its owner may call its function {name}, as routers must")
        }
        Some(there) if expected.public == Some(false) && there.public => {
            format!("anybody may call its function {name}, which is for its owner only")
        }
        Some(_) => return None,
    };
    let create = expected.sql.replacen("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1);
    let rights = match expected.public {
        Some(true) => format!("GRANT EXECUTE ON FUNCTION pgshard.{name} TO PUBLIC"),
        Some(false) => format!("REVOKE ALL ON FUNCTION pgshard.{name} FROM PUBLIC"),
        None => String::new(),
    };
    Some(Damage { version: expected.version, what, mend: format!("{create}; {rights}"), by_hand: None })
}

/// The statements of all migrations, each with its migration's version.
fn all() -> impl Iterator<Item = (i32, &'static str)> {
    steps().flat_map(|(version, sql)| statements(sql).into_iter().map(move |one| (version, &sql[one.at])))
}

fn functions() -> BTreeMap<&'static str, Expected> {
    let mut functions: BTreeMap<&str, Expected> = BTreeMap::new();
    for (version, sql) in all() {
        let created = name_after(sql, "CREATE FUNCTION pgshard.");
        if let Some(name) = created.or_else(|| name_after(sql, "CREATE OR REPLACE FUNCTION pgshard.")) {
            let public = functions.get(name).and_then(|earlier| earlier.public);
            functions.insert(name, Expected { version, sql, body: body(sql), public });
        }
        let public = match sql {
            _ if sql.starts_with("GRANT EXECUTE ON FUNCTION") => true,
            _ if sql.starts_with("REVOKE ALL ON FUNCTION") => false,
            _ => continue,
        };
        for rest in sql.split("pgshard.").skip(1) {
            if let Some(function) = functions.get_mut(identifier(rest)) {
                function.public = Some(public);
            }
        }
    }
    functions
}

fn name_after<'a>(sql: &'a str, words: &str) -> Option<&'a str> {
    sql.strip_prefix(words).map(identifier)
}

fn identifier(text: &str) -> &str {
    &text[..text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len())]
}

/// The part of a statement before a function's body.
fn header(sql: &str) -> &str {
    sql.split("$$").next().unwrap_or_default()
}

fn body(sql: &'static str) -> &'static str {
    sql.split("$$").nth(1).unwrap_or_default()
}
