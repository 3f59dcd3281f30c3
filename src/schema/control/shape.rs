//! The tables of the control schema, compared with what its migrations create; and those attributes
//! of its functions that are neither text nor privileges.
//!
//! Invariant: a table that has lost its rows is created again only if nothing depends on them; and
//! nothing is dropped that pgshard has not created.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::damage::{Damage, Kind};
use super::script::statements;
use super::steps::steps;
use crate::pg::quote_ident;

/// What exists, as [`SHAPE`] reads it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(in crate::schema) struct Shape {
    tables: BTreeMap<String, Table>,
    functions: BTreeMap<String, Function>,
    /// The role that owns the schema.
    owner: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Table {
    owner: String,
    columns: BTreeMap<String, Column>,
    /// Its CHECK constraints.
    checks: usize,
    /// Whether it has a primary key.
    keyed: bool,
    /// Whether its rows survive a crash.
    logged: bool,
    /// Whether row security hides rows.
    secured: bool,
    /// Triggers and rules, such as `trigger t`; pgshard's tables have none.
    attached: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Column {
    kind: String,
    not_null: bool,
    default: bool,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Function {
    owner: String,
    /// `i`, `s` or `v`, as in pg_proc.provolatile.
    volatile: String,
    strict: bool,
}

/// Reads [`Shape`]. Locks: none.
pub(in crate::schema) const SHAPE: &str = "
SELECT pg_catalog.json_build_object(
    'owner', pg_catalog.pg_get_userbyid(n.nspowner),
    'tables', coalesce((SELECT pg_catalog.json_object_agg(c.relname, pg_catalog.json_build_object(
            'owner', pg_catalog.pg_get_userbyid(c.relowner), 'logged', c.relpersistence = 'p',
            'secured', c.relrowsecurity OR c.relforcerowsecurity,
            'checks', (SELECT count(*) FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid \
            AND k.contype = 'c'
                           AND k.convalidated),
            'keyed', EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND \
            i.indisprimary
                           AND i.indisvalid),
            'columns', coalesce((SELECT pg_catalog.json_object_agg(a.attname, \
            pg_catalog.json_build_object(
                    'kind', pg_catalog.format_type(a.atttypid, a.atttypmod), 'not_null', \
                    a.attnotnull,
                    'default', a.atthasdef))
                FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT \
                a.attisdropped), '{}'),
            'attached', (SELECT coalesce(pg_catalog.json_agg(what), '[]') FROM (
                SELECT 'trigger ' || t.tgname FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid
                    AND NOT t.tgisinternal
                UNION ALL SELECT 'rule ' || r.rulename FROM pg_catalog.pg_rewrite r WHERE \
                r.ev_class = c.oid)
                AS x (what))))
        FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND c.relkind = 'r'), '{}'),
    'functions', coalesce((SELECT pg_catalog.json_object_agg(proname, pg_catalog.json_build_object(
            'owner', pg_catalog.pg_get_userbyid(proowner), 'volatile', provolatile, 'strict', \
            proisstrict))
        FROM pg_catalog.pg_proc WHERE pronamespace = n.oid), '{}'))::text
FROM pg_catalog.pg_namespace n WHERE nspname = 'pgshard'";

/// Tables with rows that are written again when they are needed, or do not matter after they are
/// gone.
const REMADE: [&str; 3] = ["beacon", "known_host", "mover"];

/// The table that a bootstrap has locked while it repairs others in a session of its own: to alter
/// it, it would wait for itself.
const LOCKED: &str = "cluster";

/// What to do about lost rows.
const RESTORE: &str = "restore the host's database from a backup or a standby: what was in it is \
    lost, and nothing can create it again";

/// A table as the migrations create it.
#[derive(Clone, Debug)]
struct TableDefinition {
    version: i32,
    /// The statement that creates it, and those that alter it.
    sql: Vec<&'static str>,
    columns: BTreeMap<String, Item>,
    /// The CHECK constraints of the table and of its columns, each as `CHECK (…)`.
    checks: Vec<String>,
    /// `PRIMARY KEY (…)`, whether written for the table or a column.
    key: Option<String>,
}

/// A column as a migration writes it.
#[derive(Clone, Debug)]
struct Item {
    version: i32,
    /// Without comments: the name, the type, and the rest of the definition.
    sql: String,
    kind: String,
    not_null: bool,
    default: Option<String>,
}

/// Whether something exists that this control migration creates and no earlier one does.
pub(in crate::schema) fn is_made(version: i32, shape: &Shape) -> bool {
    let created = |sql: &str| {
        let table = sql.strip_prefix("CREATE TABLE pgshard.").map(identifier);
        let function = sql.strip_prefix("CREATE FUNCTION pgshard.").map(identifier);
        table.is_some_and(|name| shape.tables.contains_key(name))
            || function.is_some_and(|name| shape.functions.contains_key(name))
            || sql
                .strip_prefix("ALTER TABLE pgshard.")
                .is_some_and(|rest| {
                    let there = shape.tables.get(identifier(rest));
                    let added = rest
                        .split_once("ADD COLUMN ")
                        .map(|(_, added)| identifier(added));
                    there
                        .zip(added)
                        .is_some_and(|(there, column)| there.columns.contains_key(column))
                })
    };
    all().any(|(of_version, sql)| of_version == version && created(&without_comments(sql)))
}

/// Every way in which the tables, and the functions' attributes, differ from what the migrations
/// create.
pub(in crate::schema) fn damages(shape: &Shape) -> Vec<Damage> {
    let mut found = Vec::new();
    for (name, made) in tables() {
        match shape.tables.get(&name) {
            None if REMADE.contains(&name.as_str()) => {
                found.push(
                    mended(
                        made.version,
                        format!("its table {name} is gone"),
                        made.sql.join("; "),
                    )
                    .gone(),
                );
            }
            None => found.push(
                by_hand(
                    made.version,
                    format!("its table {name} is gone"),
                    RESTORE.to_owned(),
                )
                .gone(),
            ),
            Some(there) => {
                let from = found.len();
                of_table(&name, &made, there, &shape.owner, &mut found);
                if name == LOCKED {
                    found[from..].iter_mut().for_each(Damage::leave_to_owner);
                }
            }
        }
    }
    for (name, (version, sql)) in functions() {
        let Some(there) = shape.functions.get(&name) else {
            continue;
        };
        let header = sql.split("$$").next().unwrap_or_default();
        let says = |word: &str| header.split_whitespace().any(|one| one == word);
        let volatile = if says("STABLE") {
            "s"
        } else if says("IMMUTABLE") {
            "i"
        } else {
            "v"
        };
        if there.owner != shape.owner {
            let what = format!(
                "its function {name} belongs to {}, not to {}",
                there.owner, shape.owner
            );
            found.push(by_hand(
                version,
                what,
                owner_remedy("FUNCTION", &name, &shape.owner),
            ));
        }
        if there.volatile != volatile || there.strict != says("STRICT") {
            let what = format!("its function {name} was altered");
            found.push(mended(
                version,
                what,
                sql.replacen("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1),
            ));
        }
    }
    found
}

/// A table or a column of the control schema that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Which, in a sentence.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// The tables and columns that are gone, for a reader who cannot do without them.
pub(in crate::schema) fn gone(shape: &Shape) -> Vec<Gone> {
    let gone = damages(shape)
        .into_iter()
        .filter(|damage| damage.kind == Kind::Gone);
    gone.map(|damage| Gone {
        what: damage.what,
        remedy: damage
            .by_hand
            .unwrap_or_else(|| format!("as the owner: {}", damage.mend)),
    })
    .collect()
}

impl Shape {
    pub(in crate::schema) fn has_table(&self, name: &str) -> bool {
        self.tables.contains_key(name)
    }

    pub(in crate::schema) fn has_column(&self, table: &str, column: &str) -> bool {
        self.tables
            .get(table)
            .is_some_and(|table| table.columns.contains_key(column))
    }
}

fn mended(version: i32, what: String, mend: String) -> Damage {
    Damage {
        kind: Kind::Altered,
        version,
        what,
        mend,
        by_hand: None,
    }
}

fn by_hand(version: i32, what: String, remedy: String) -> Damage {
    Damage {
        kind: Kind::Altered,
        version,
        what,
        mend: String::new(),
        by_hand: Some(remedy),
    }
}

impl Damage {
    fn gone(self) -> Damage {
        Damage {
            kind: Kind::Gone,
            ..self
        }
    }

    /// Makes a repair by bootstrap one by hand.
    fn leave_to_owner(&mut self) {
        if self.by_hand.is_none() {
            self.by_hand = Some(format!("as the owner: {}", std::mem::take(&mut self.mend)));
        }
    }
}

fn owner_remedy(kind: &str, name: &str, owner: &str) -> String {
    format!(
        "as a superuser: ALTER {kind} pgshard.{name} OWNER TO {}",
        quote_ident(owner)
    )
}

fn of_table(
    name: &str,
    made: &TableDefinition,
    there: &Table,
    owner: &str,
    found: &mut Vec<Damage>,
) {
    let table = format!("pgshard.{name}");
    let version = made.version;
    if there.owner != owner {
        let what = format!(
            "its table {name} belongs to {}, not to {owner}",
            there.owner
        );
        found.push(by_hand(version, what, owner_remedy("TABLE", name, owner)));
    }
    for (column, item) in &made.columns {
        of_column(&table, column, item, there, found);
    }
    for extra in there
        .columns
        .keys()
        .filter(|column| !made.columns.contains_key(*column))
    {
        let what = format!("its table {name} has a column {extra}, which is not pgshard's");
        let remedy = format!(
            "find out who uses it, then ALTER TABLE {table} DROP COLUMN {}",
            quote_ident(extra)
        );
        found.push(by_hand(version, what, remedy));
    }
    if !there.keyed
        && let Some(key) = &made.key
    {
        let what = format!("its table {name} has lost its primary key");
        found.push(mended(
            version,
            what,
            format!("ALTER TABLE {table} ADD {key}"),
        ));
    }
    if there.checks != made.checks.len() {
        // Their names do not show for certain which of them is which.
        let drop = format!(
            "DO $do$ DECLARE r record; BEGIN FOR r IN SELECT conname FROM pg_catalog.pg_constraint
             WHERE conrelid = '{table}'::pg_catalog.regclass AND contype = 'c' LOOP
             EXECUTE pg_catalog.format('ALTER TABLE {table} DROP CONSTRAINT %I', r.conname); END \
             LOOP; END $do$"
        );
        let add: Vec<String> = made
            .checks
            .iter()
            .map(|check| format!("ADD {check}"))
            .collect();
        let what = format!(
            "its table {name} has {} CHECK constraints, not {}",
            there.checks,
            made.checks.len()
        );
        let add = if add.is_empty() {
            String::new()
        } else {
            format!("ALTER TABLE {table} {}", add.join(", "))
        };
        found.push(mended(version, what, format!("{drop}; {add}")));
    }
    if !there.logged {
        let what = format!("its table {name} is unlogged: a crash empties it");
        found.push(mended(
            version,
            what,
            format!("ALTER TABLE {table} SET LOGGED"),
        ));
    }
    if there.secured {
        let what = format!(
            "its table {name} has row security, which hides rows from routers and commands"
        );
        let off =
            format!("ALTER TABLE {table} DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY");
        found.push(mended(version, what, off));
    }
    for attached in &there.attached {
        let (kind, what) = attached.split_once(' ').unwrap_or_default();
        let remedy = format!(
            "DROP {} {} ON {table}",
            kind.to_uppercase(),
            quote_ident(what)
        );
        found.push(by_hand(
            version,
            format!("its table {name} has a {attached}, which is not pgshard's"),
            remedy,
        ));
    }
}

fn of_column(table: &str, column: &str, item: &Item, there: &Table, found: &mut Vec<Damage>) {
    let name = format!("{}.{column}", table.trim_start_matches("pgshard."));
    let alter = |what: String| format!("ALTER TABLE {table} ALTER COLUMN {column} {what}");
    let Some(is) = there.columns.get(column) else {
        let what = format!("its column {name} is gone");
        let damage = if item.not_null && item.default.is_none() {
            by_hand(item.version, what, RESTORE.to_owned())
        } else {
            mended(
                item.version,
                what,
                format!("ALTER TABLE {table} ADD COLUMN {}", item.sql),
            )
        };
        return found.push(damage.gone());
    };
    let mut mend = |what: String, mend: String| found.push(mended(item.version, what, mend));
    if is.kind != item.kind {
        let what = format!(
            "its column {name} is of the type {}, not {}",
            is.kind, item.kind
        );
        mend(
            what,
            alter(format!("TYPE {0} USING {column}::text::{0}", item.kind)),
        );
    }
    if item.not_null != is.not_null {
        let (what, how) = if item.not_null {
            ("can be null", "SET")
        } else {
            ("cannot be null", "DROP")
        };
        mend(
            format!("its column {name} {what}"),
            alter(format!("{how} NOT NULL")),
        );
    }
    match &item.default {
        Some(default) if !is.default => {
            mend(
                format!("its column {name} has lost its default"),
                alter(format!("SET DEFAULT {default}")),
            );
        }
        None if is.default => mend(
            format!("its column {name} has a default"),
            alter("DROP DEFAULT".to_owned()),
        ),
        _ => {}
    }
}

/// The functions, each with its last text and version.
fn functions() -> BTreeMap<String, (i32, &'static str)> {
    let mut functions = BTreeMap::new();
    for (version, sql) in all() {
        for words in [
            "CREATE FUNCTION pgshard.",
            "CREATE OR REPLACE FUNCTION pgshard.",
        ] {
            if let Some(rest) = sql.strip_prefix(words) {
                functions.insert(identifier(rest).to_owned(), (version, sql));
            }
        }
    }
    functions
}

/// The statements of all migrations, each with its migration's number.
fn all() -> impl Iterator<Item = (i32, &'static str)> {
    steps().flat_map(|(version, sql)| {
        statements(sql)
            .into_iter()
            .map(move |one| (version, &sql[one.at]))
    })
}

fn identifier(text: &str) -> &str {
    &text[..text
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .unwrap_or(text.len())]
}

/// The columns of each table, as the migrations create them.
#[cfg(test)]
pub(in crate::schema) fn columns() -> BTreeMap<String, BTreeSet<String>> {
    tables()
        .into_iter()
        .map(|(name, made)| (name, made.columns.into_keys().collect()))
        .collect()
}

/// The tables, from the migrations' statements in order.
fn tables() -> BTreeMap<String, TableDefinition> {
    let mut tables: BTreeMap<String, TableDefinition> = BTreeMap::new();
    for (version, sql) in all() {
        if let Some(rest) = sql.strip_prefix("CREATE TABLE pgshard.") {
            let name = identifier(rest).to_owned();
            let (columns, checks) = (BTreeMap::new(), Vec::new());
            let mut made = TableDefinition {
                version,
                sql: vec![sql],
                columns,
                checks,
                key: None,
            };
            let plain = without_comments(rest);
            let body = plain
                .split_once('(')
                .map_or("", |(_, body)| body.trim_end().trim_end_matches(')'));
            items(body).iter().for_each(|item| made.add(version, item));
            tables.insert(name, made);
        } else if let Some(rest) = sql.strip_prefix("ALTER TABLE pgshard.") {
            let Some(made) = tables.get_mut(identifier(rest)) else {
                continue;
            };
            made.sql.push(sql);
            for item in items(&without_comments(&rest[identifier(rest).len()..])) {
                made.alter(version, &item);
            }
        } else if let Some(rest) = sql.strip_prefix("DROP TABLE pgshard.") {
            tables.remove(identifier(rest));
        }
    }
    tables
}

impl TableDefinition {
    /// A line of a CREATE TABLE, or the text after ADD COLUMN.
    fn add(&mut self, version: i32, item: &str) {
        if item.starts_with("CHECK ") {
            self.checks.push(item.to_owned());
        } else if let Some(columns) = item.strip_prefix("PRIMARY KEY ") {
            for column in columns.split(['(', ')', ',']).map(str::trim) {
                if let Some(column) = self.columns.get_mut(column) {
                    column.not_null = true;
                }
            }
            self.key = Some(item.to_owned());
        } else {
            let name = identifier(item).to_owned();
            if item.contains(" PRIMARY KEY") {
                self.key = Some(format!("PRIMARY KEY ({name})"));
            }
            if let Some(at) = item.find("CHECK (") {
                self.checks.push(format!(
                    "CHECK {}",
                    in_parentheses(&item[at + "CHECK ".len()..])
                ));
            }
            self.columns.insert(name, column(version, item));
        }
    }

    fn alter(&mut self, version: i32, item: &str) {
        let column = |rest: &str| {
            rest.split_whitespace()
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        if let Some(rest) = item.strip_prefix("ADD COLUMN ") {
            self.add(version, rest);
        } else if let Some(rest) = item.strip_prefix("DROP COLUMN ") {
            self.columns.remove(&column(rest));
        } else if let Some(rest) = item.strip_prefix("ALTER COLUMN ") {
            let Some(altered) = self.columns.get_mut(&column(rest)) else {
                return;
            };
            match rest {
                _ if rest.ends_with("DROP NOT NULL") => altered.not_null = false,
                _ if rest.ends_with("SET NOT NULL") => altered.not_null = true,
                _ => {}
            }
        } else if let Some(check) = item.strip_prefix("ADD CHECK ") {
            self.checks.push(format!("CHECK {check}"));
        }
    }
}

fn column(version: i32, sql: &str) -> Item {
    let words: Vec<&str> = sql.split_whitespace().skip(1).collect();
    let ends = [
        "NOT",
        "NULL",
        "DEFAULT",
        "PRIMARY",
        "CHECK",
        "UNIQUE",
        "REFERENCES",
    ];
    let kind: Vec<&str> = words
        .iter()
        .take_while(|word| !ends.contains(word))
        .copied()
        .collect();
    let kind = match kind.join(" ").as_str() {
        "timestamptz" => "timestamp with time zone".to_owned(),
        "int" => "integer".to_owned(),
        other => other.to_owned(),
    };
    let default = sql.split_once(" DEFAULT ").map(|(_, rest)| {
        let end = [" CHECK (", " NOT NULL", " PRIMARY KEY"]
            .iter()
            .filter_map(|word| rest.find(word))
            .min();
        rest[..end.unwrap_or(rest.len())].trim().to_owned()
    });
    // Not the words of a CHECK: `CHECK (a IS NOT NULL)` does not constrain the column in that way.
    let own = match sql.find("CHECK (") {
        Some(at) => sql.replace(in_parentheses(&sql[at + "CHECK ".len()..]), ""),
        None => sql.to_owned(),
    };
    let not_null = own.contains(" NOT NULL") || own.contains(" PRIMARY KEY");
    Item {
        version,
        sql: sql.to_owned(),
        kind,
        not_null,
        default,
    }
}

fn without_comments(sql: &str) -> String {
    sql.lines()
        .map(|line| line.split("--").next().unwrap_or_default().trim())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The parts of a text between commas, except commas in parentheses.
fn items(text: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut depth = 0_i32;
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        match items.last_mut() {
            Some(item) if c != ',' || depth > 0 => item.push(c),
            _ => items.push(String::new()),
        }
    }
    items
        .iter()
        .map(|item| item.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|item| !item.is_empty())
        .collect()
}

/// `(…)` at the beginning of the text.
fn in_parentheses(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[..=at];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_migrations_are_read() {
        let tables = tables();
        let journal = &tables["move"];
        assert_eq!(
            journal.key.as_deref(),
            Some("PRIMARY KEY (move_id, shard_id)")
        );
        let column = |table: &str, name: &str| tables[table].columns[name].clone();
        assert_eq!(column("move", "timings").default.as_deref(), Some("'{}'"));
        assert_eq!(column("move", "wanted").default.as_deref(), Some("'go'"));
        assert_eq!(
            column("move", "audited_at").kind,
            "timestamp with time zone"
        );
        assert!(column("move", "shard_id").not_null && !column("move", "back_of").not_null);
        assert!(column("marker", "attempt").not_null && column("cluster", "only_row").not_null);
        // The constraints of mode, phase, back, wanted and audit.
        assert_eq!(journal.checks.len(), 5, "{:?}", journal.checks);
        assert_eq!(
            tables["shard"].checks.len(),
            5,
            "{:?}",
            tables["shard"].checks
        );
        assert!(
            !column("lent_identity", "former_index").not_null
                && column("lent_identity", "former").not_null
        );
        assert_eq!(
            tables["lent_identity"].checks[1],
            "CHECK ((former = 'i') = (former_index IS NOT NULL))"
        );
        for (name, made) in &tables {
            assert!(made.key.is_some(), "{name}");
        }
    }
    /// No text distinguishes what is gone from what was altered: names in it are chosen by users.
    #[test]
    fn what_is_gone() {
        let owner = "who is gone".to_owned();
        let beacon = Table {
            owner: "somebody".to_owned(),
            columns: BTreeMap::new(),
            checks: 0,
            keyed: true,
            logged: true,
            secured: false,
            attached: BTreeSet::new(),
        };
        let tables = BTreeMap::from([("beacon".to_owned(), beacon)]);
        let shape = Shape {
            tables,
            functions: BTreeMap::new(),
            owner,
        };
        let said = "its table beacon belongs to somebody, not to who is gone";
        assert!(damages(&shape).iter().any(|damage| damage.what == said));
        let gone: Vec<String> = gone(&shape).into_iter().map(|gone| gone.what).collect();
        assert!(
            gone.iter().any(|what| what == "its table move is gone"),
            "{gone:?}"
        );
        assert!(
            gone.iter()
                .any(|what| what.starts_with("its column beacon.")),
            "{gone:?}"
        );
        assert!(!gone.iter().any(|what| what == said), "{gone:?}");
    }
}
