//! Finds the parts of the control schema that differ from what its migrations have made.
//!
//! The text of the migrations defines what there should be: the body of each function, who may call
//! it, what PUBLIC may read. No name in it means two functions, and a later migration overrides an
//! earlier one.
//!
//! Invariant: nothing that has rows in it is created again.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::rights::{FUNCTIONS, TABLES};
use super::script::statements;
use super::steps::{checksum, steps};
use crate::pg::quote_ident;

/// The control migration that revokes the schema from PUBLIC.
const RIGHTS: i32 = 8;

/// What is installed, as [`INSTALLED`] gives it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(in crate::schema) struct InstalledObjects {
    functions: BTreeMap<String, Function>,
    /// Tables that PUBLIC may read or write.
    open: BTreeSet<String>,
    /// Indexes that are valid.
    indexes: BTreeSet<String>,
    /// Whether PUBLIC may use the schema.
    usable: bool,
    /// Whether PUBLIC may use the schema of a shard: then what routers need is granted to PUBLIC,
    /// too.
    everybody: bool,
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
    /// Whether PUBLIC may call it.
    public: bool,
}

/// Reads [`InstalledObjects`]. Locks: none.
pub(in crate::schema) const INSTALLED: &str = "
SELECT pg_catalog.json_build_object(
    'functions', coalesce((SELECT pg_catalog.json_object_agg(proname, pg_catalog.json_build_object(
            'body', pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(prosrc, 'UTF8')), \
            'hex'),
            'definer', prosecdef,
            'guarded', coalesce(proconfig = ARRAY['search_path=pg_catalog, pg_temp'], false),
            'public', EXISTS (SELECT FROM pg_catalog.aclexplode(coalesce(proacl, \
            pg_catalog.acldefault('f', proowner)))
                              WHERE grantee = 0 AND privilege_type = 'EXECUTE')))
        FROM pg_catalog.pg_proc WHERE pronamespace = n.oid), '{}'),
    'open', coalesce((SELECT pg_catalog.json_agg(relname) FROM pg_catalog.pg_class
        WHERE relnamespace = n.oid AND EXISTS (SELECT FROM pg_catalog.aclexplode(relacl) WHERE \
        grantee = 0)), '[]'),
    'indexes', coalesce((SELECT pg_catalog.json_agg(c.relname) FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid WHERE c.relnamespace = n.oid AND \
        i.indisvalid), '[]'),
    'usable', EXISTS (SELECT FROM pg_catalog.aclexplode(nspacl) WHERE grantee = 0),
    'everybody', EXISTS (SELECT FROM pg_catalog.pg_namespace o, pg_catalog.aclexplode(o.nspacl) AS a
                         WHERE a.grantee = 0 AND a.privilege_type = 'USAGE'
                             AND o.nspname IN (SELECT s.schema_name FROM pgshard.shard s
                                 UNION ALL SELECT w.schema_name FROM pgshard.whole w))
    )::text
FROM pg_catalog.pg_namespace n WHERE nspname = 'pgshard'";

/// Something that is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::schema) struct Damage {
    /// What became of it.
    pub(in crate::schema) kind: Kind,
    /// The migration that made it.
    pub(in crate::schema) version: i32,
    /// The damage, in one sentence.
    pub(in crate::schema) what: String,
    /// The statements that repair it.
    pub(in crate::schema) mend: String,
    /// What to do where no statement of ours makes it good.
    pub(in crate::schema) by_hand: Option<String>,
}

/// What became of something that a migration made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::schema) enum Kind {
    /// It does not exist.
    Gone,
    /// It is there, and not as it was made.
    Altered,
}

/// A function as the migrations make it.
struct ExpectedFunction {
    version: i32,
    sql: &'static str,
    body: &'static str,
    /// Whether PUBLIC may call it, if a migration contains that.
    public: Option<bool>,
}

/// Everything of the control schema that is missing or altered.
pub(in crate::schema) fn damages(installed: &InstalledObjects) -> Vec<Damage> {
    let mut found: Vec<Damage> = functions()
        .iter()
        .filter_map(|(name, one)| of_function(installed, name, one))
        .collect();
    for (version, sql) in all() {
        let made = name_after(sql, "CREATE UNIQUE INDEX ")
            .filter(|name| !installed.indexes.contains(*name));
        if let Some(name) = made {
            let (what, mend) = (format!("its index {name} is gone"), sql.to_owned());
            found.push(Damage {
                kind: Kind::Gone,
                version,
                what,
                mend,
                by_hand: None,
            });
        }
    }
    found.extend(exposed(installed));
    found
}

/// What lies open to PUBLIC. What routers need is given to it where shards are.
fn exposed(installed: &InstalledObjects) -> Vec<Damage> {
    let for_routers = |name: &str| installed.everybody && TABLES.contains(&name);
    let mut found = Vec::new();
    for name in installed.open.iter().filter(|name| !for_routers(name)) {
        let mend = format!("REVOKE ALL ON pgshard.{} FROM PUBLIC", quote_ident(name));
        let what = format!("its table {name} is open to everybody");
        found.push(Damage {
            kind: Kind::Altered,
            version: RIGHTS,
            what,
            mend,
            by_hand: None,
        });
    }
    if installed.usable && !installed.everybody {
        let mend = "REVOKE ALL ON SCHEMA pgshard FROM PUBLIC".to_owned();
        let what = "everybody may use the schema".to_owned();
        found.push(Damage {
            kind: Kind::Altered,
            version: RIGHTS,
            what,
            mend,
            by_hand: None,
        });
    }
    found
}

fn of_function(
    installed: &InstalledObjects,
    name: &str,
    expected: &ExpectedFunction,
) -> Option<Damage> {
    let body = checksum(expected.body);
    let definer = header(expected.sql).contains("SECURITY DEFINER");
    let guarded = header(expected.sql).contains("SET search_path = pg_catalog, pg_temp");
    let for_routers = FUNCTIONS.iter().any(|(one, _)| *one == name);
    let there = installed.functions.get(name);
    let kind = if there.is_none() {
        Kind::Gone
    } else {
        Kind::Altered
    };
    let what = match there {
        None => format!("its function {name} is gone"),
        Some(there)
            if there.body != body || there.definer != definer || there.guarded != guarded =>
        {
            format!("its function {name} was altered")
        }
        Some(there) if expected.public == Some(true) && !there.public => {
            format!("not everybody may call its function {name}, as a signpost's readers must")
        }
        Some(there)
            if expected.public == Some(false)
                && there.public
                && !(for_routers && installed.everybody) =>
        {
            let whom = if for_routers {
                "for the roles of routers"
            } else {
                "for its owner"
            };
            format!("every role may call its function {name}, which is {whom} only")
        }
        Some(_) => return None,
    };
    let create = expected
        .sql
        .replacen("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1);
    let rights = match expected.public {
        Some(true) => format!("GRANT EXECUTE ON FUNCTION pgshard.{name} TO PUBLIC"),
        Some(false) => format!("REVOKE ALL ON FUNCTION pgshard.{name} FROM PUBLIC"),
        None => String::new(),
    };
    Some(Damage {
        kind,
        version: expected.version,
        what,
        mend: format!("{create}; {rights}"),
        by_hand: None,
    })
}

/// The statements of all migrations, each with its migration's version.
fn all() -> impl Iterator<Item = (i32, &'static str)> {
    steps().flat_map(|(version, sql)| {
        statements(sql)
            .into_iter()
            .map(move |one| (version, &sql[one.at]))
    })
}

fn functions() -> BTreeMap<&'static str, ExpectedFunction> {
    let mut functions: BTreeMap<&str, ExpectedFunction> = BTreeMap::new();
    for (version, sql) in all() {
        let created = name_after(sql, "CREATE FUNCTION pgshard.");
        if let Some(name) =
            created.or_else(|| name_after(sql, "CREATE OR REPLACE FUNCTION pgshard."))
        {
            let public = functions.get(name).and_then(|earlier| earlier.public);
            functions.insert(
                name,
                ExpectedFunction {
                    version,
                    sql,
                    body: body(sql),
                    public,
                },
            );
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
    &text[..text
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .unwrap_or(text.len())]
}

/// The part of a statement before a function's body.
fn header(sql: &str) -> &str {
    sql.split("$$").next().unwrap_or_default()
}

fn body(sql: &'static str) -> &'static str {
    sql.split("$$").nth(1).unwrap_or_default()
}
