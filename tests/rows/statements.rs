//! Random statements over a schema.

use std::collections::BTreeSet;

use fastrand::Rng;

use super::schema::{Column, Fill, Schema, Table};
use super::values::{copied, literal};

/// The kinds of statements, with their frequency; `--without` takes these names.
pub(crate) const KINDS: [(&str, u32); 18] = [
    ("insert", 22),
    ("many", 6),
    ("copy", 6),
    ("upsert", 6),
    ("merge", 4),
    ("update", 20),
    ("broad", 6),
    ("same", 3),
    ("shift", 6),
    ("swap", 5),
    ("chain", 5),
    ("default", 8),
    ("delete", 9),
    ("lock", 3),
    ("truncate", 1),
    ("nextval", 5),
    ("setval", 1),
    ("read", 3),
];

/// What a session sends.
#[derive(Clone, Debug)]
pub(crate) enum Statement {
    Sql(String),
    /// COPY FROM STDIN, and its lines.
    Copy(String, String),
}

pub(crate) struct Statements<'a> {
    pub(crate) schema: &'a Schema,
    pub(crate) without: &'a BTreeSet<String>,
    pub(crate) merges: bool,
}

impl Statements<'_> {
    /// One statement, with `{shard}` in it, and the name of its kind.
    pub(crate) fn random(&self, rng: &mut Rng) -> (&'static str, Statement) {
        let kinds: Vec<_> = KINDS
            .into_iter()
            .filter(|(name, _)| !self.without.contains(*name))
            .collect();
        let total: u32 = kinds.iter().map(|(_, weight)| weight).sum();
        loop {
            let mut at = rng.u32(0..total.max(1));
            let kind = kinds.iter().find(|(_, weight)| {
                let found = at < *weight;
                at = at.wrapping_sub(if found { 0 } else { *weight });
                found
            });
            let kind = kind.map_or("read", |(name, _)| name);
            if let Some(statement) = self.of(kind, rng) {
                return (kind, statement);
            }
        }
    }

    fn of(&self, kind: &str, rng: &mut Rng) -> Option<Statement> {
        let sequence = &self.schema.sequences[rng.usize(0..self.schema.sequences.len())];
        match kind {
            "nextval" => {
                let calls = rng.u8(1..4);
                return Some(Statement::Sql(format!(
                    "SELECT nextval('{{shard}}.{sequence}') FROM generate_series(1, {calls})"
                )));
            }
            // Only forward, so that no number comes twice.
            "setval" => {
                return Some(Statement::Sql(
                    "SELECT setval('{shard}.plain', last_value + 70) FROM {shard}.plain".to_owned(),
                ));
            }
            _ => {}
        }
        if self.schema.tables.is_empty() {
            return Some(Statement::Sql(
                "SELECT count(*) FROM {shard}.txlog".to_owned(),
            ));
        }
        let table = &self.schema.tables[rng.usize(0..self.schema.tables.len())];
        let name = table.qualified();
        let some = |rng: &mut Rng, most: u32| {
            let (salt, rows) = (rng.u32(..), rng.u32(1..=most));
            format!(
                "ctid = ANY (ARRAY(SELECT ctid FROM {name} ORDER BY hashtext(ctid::text || \
                    '{salt}') LIMIT {rows}))"
            )
        };
        let sql = match kind {
            "insert" | "many" => {
                let rows = if kind == "insert" {
                    1
                } else {
                    rng.usize(2..40)
                };
                let columns = chosen(table, rng);
                if columns.is_empty() {
                    format!("INSERT INTO {name} DEFAULT VALUES")
                } else {
                    let rows: Vec<String> = (0..rows)
                        .map(|_| format!("({})", values(table, &columns, rng)))
                        .collect();
                    let overriding = ["", "", " OVERRIDING SYSTEM VALUE"][rng.usize(0..3)];
                    let key = names(table, &table.key);
                    let end = if table.arbiter && rng.bool() {
                        format!(" ON CONFLICT ({key}) DO NOTHING")
                    } else {
                        String::new()
                    };
                    format!(
                        "INSERT INTO {name} ({}){overriding} VALUES {}{end}",
                        names(table, &columns),
                        rows.join(", ")
                    )
                }
            }
            "copy" => {
                let columns = chosen(table, rng);
                if columns.is_empty() {
                    return None;
                }
                let mut lines = String::new();
                for _ in 0..rng.usize(1..60) {
                    let row: Vec<String> = columns
                        .iter()
                        .map(|at| match &table.columns[*at].fill {
                            Fill::Reference(..) => "\\N".to_owned(),
                            _ => copied(&value(table, *at, rng)),
                        })
                        .collect();
                    lines += &(row.join("\t") + "\n");
                }
                return Some(Statement::Copy(
                    format!("COPY {name} ({}) FROM STDIN", names(table, &columns)),
                    lines,
                ));
            }
            "upsert" if table.arbiter => {
                let columns = chosen(table, rng);
                if !table.key.iter().all(|at| columns.contains(at)) {
                    return None;
                }
                let key = names(table, &table.key);
                let action = match columns.iter().find(|at| !table.key.contains(at)) {
                    Some(at) if rng.bool() => {
                        let column = &table.columns[*at].name;
                        format!("DO UPDATE SET {column} = excluded.{column}")
                    }
                    _ => "DO NOTHING".to_owned(),
                };
                format!(
                    "INSERT INTO {name} ({}) VALUES ({}) ON CONFLICT ({key}) {action}",
                    names(table, &columns),
                    values(table, &columns, rng)
                )
            }
            "merge" if self.merges && !table.key.is_empty() => {
                let columns = chosen(table, rng);
                let at = table.key[0];
                let (column, kind) = (&table.columns[at].name, bare(table.columns[at].kind.sql()));
                let set = self.settings(table, rng, 1)?;
                if !columns.contains(&at) {
                    return None;
                }
                let key = literal(&value(table, at, rng));
                format!(
                    "MERGE INTO {name} m USING (SELECT {key}::{kind} AS k) s ON m.{column} = s.k
                     WHEN MATCHED AND hashtext(s.k::text) % 3 = 0 THEN DELETE
                     WHEN MATCHED THEN UPDATE SET {set}
                     WHEN NOT MATCHED THEN INSERT ({}) VALUES ({})",
                    names(table, &columns),
                    values(table, &columns, rng)
                )
            }
            "update" => format!(
                "UPDATE {name} SET {} WHERE {}",
                self.settings(table, rng, 3)?,
                some(rng, 3)
            ),
            "broad" => format!(
                "UPDATE {name} SET {} WHERE {}",
                self.settings(table, rng, 1)?,
                some(rng, 60)
            ),
            "same" => {
                let (_, column) = pick(table, rng)?;
                format!(
                    "UPDATE {name} SET {0} = {0} WHERE {1}",
                    column.name,
                    some(rng, 8)
                )
            }
            "shift" => {
                let column = &table.columns[*table.key.first()?];
                if !column.kind.is_number() || column.fill == Fill::Always {
                    return None;
                }
                let by = [1, 1, 3, -1, 20][rng.usize(0..5)];
                match rng.u8(0..4) {
                    0 => format!("UPDATE {name} SET {0} = {0} + {by}", column.name),
                    1 => format!(
                        "UPDATE {name} SET {0} = - {0} WHERE {1}",
                        column.name,
                        some(rng, 20)
                    ),
                    _ => format!(
                        "UPDATE {name} SET {0} = {0} + {by} WHERE {1}",
                        column.name,
                        some(rng, 20)
                    ),
                }
            }
            "swap" => {
                let column = &table.columns[*table.key.first()?];
                if column.fill == Fill::Always {
                    return None;
                }
                let (a, b) = (
                    column.kind.key(rng, table.values),
                    column.kind.key(rng, table.values),
                );
                let kind = bare(column.kind.sql());
                let (a, b) = (
                    format!("{}::{kind}", literal(&Some(a))),
                    format!("{}::{kind}", literal(&Some(b))),
                );
                format!(
                    "UPDATE {name} SET {0} = CASE WHEN {0} = {a} THEN {b} ELSE {a} END WHERE {0} \
                        IN ({a}, {b})",
                    column.name
                )
            }
            // The same key several times in one transaction.
            "chain" => {
                let column = &table.columns[*table.key.first()?];
                if column.fill == Fill::Always {
                    return None;
                }
                let kind = bare(column.kind.sql());
                let mut key = || {
                    format!(
                        "{}::{kind}",
                        literal(&Some(column.kind.key(rng, table.values)))
                    )
                };
                let (a, b, c) = (key(), key(), key());
                let n = &column.name;
                format!(
                    "UPDATE {name} SET {n} = {b} WHERE {n} = {a}; UPDATE {name} SET {n} = {c} \
                        WHERE {n} = {b};
                     UPDATE {name} SET {n} = {b} WHERE {n} = {a}; DELETE FROM {name} WHERE {n} = \
                     {c} AND {n} <> {a}"
                )
            }
            "default" => {
                let with = |column: &&Column| matches!(column.fill, Fill::Default | Fill::Always);
                let columns: Vec<&Column> = table.columns.iter().filter(with).collect();
                let column = columns.get(rng.usize(0..columns.len().max(1)))?;
                let rows = if rng.bool() { 2 } else { 30 };
                format!(
                    "UPDATE {name} SET {} = DEFAULT WHERE {}",
                    column.name,
                    some(rng, rows)
                )
            }
            "delete" => format!("DELETE FROM {name} WHERE {}", some(rng, 6)),
            "lock" => {
                let strength = ["UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"][rng.usize(0..4)];
                format!(
                    "SELECT count(*) FROM (SELECT FROM {name} WHERE {} FOR {strength}) AS locked",
                    some(rng, 5)
                )
            }
            // If it came often, nothing would be left to be moved.
            "truncate" if rng.u8(0..12) == 0 => match table.partitions.get(rng.usize(0..6)) {
                Some(partition) => format!("TRUNCATE {{shard}}.{partition} CASCADE"),
                None => format!("TRUNCATE {name} CASCADE"),
            },
            "read" => format!("SELECT count(*), max(md5(one_row::text)) FROM {name} AS one_row"),
            _ => return None,
        };
        Some(Statement::Sql(sql))
    }

    /// `a = 1, b = 2` for this many columns at most.
    fn settings(&self, table: &Table, rng: &mut Rng, most: usize) -> Option<String> {
        let mut set: Vec<(String, String)> = Vec::new();
        for _ in 0..rng.usize(1..=most) {
            let (at, column) = pick(table, rng)?;
            if table.key.contains(&at) && rng.u8(0..3) > 0
                || set.iter().any(|(name, _)| *name == column.name)
            {
                continue;
            }
            set.push((column.name.clone(), value_sql(table, at, rng)));
        }
        let set: Vec<String> = set
            .into_iter()
            .map(|(name, value)| format!("{name} = {value}"))
            .collect();
        (!set.is_empty()).then(|| set.join(", "))
    }
}

/// A type without its collation, as in a cast.
fn bare(sql: &str) -> &str {
    sql.split(" COLLATE").next().unwrap_or(sql)
}

fn pick<'a>(table: &'a Table, rng: &mut Rng) -> Option<(usize, &'a Column)> {
    let columns: Vec<_> = table.writable().collect();
    (!columns.is_empty()).then(|| columns[rng.usize(0..columns.len())])
}

/// The columns that an INSERT lists: keys nearly always, others mostly.
fn chosen(table: &Table, rng: &mut Rng) -> Vec<usize> {
    let wanted = |(at, column): &(usize, &Column), rng: &mut Rng| match column.fill {
        Fill::Default => rng.u8(0..6) == 0,
        _ => table.key.contains(at) || !column.nullable || rng.u8(0..5) > 0,
    };
    let columns: Vec<_> = table.writable().collect();
    columns
        .into_iter()
        .filter(|column| wanted(column, rng))
        .map(|(at, _)| at)
        .collect()
}

fn names(table: &Table, columns: &[usize]) -> String {
    columns
        .iter()
        .map(|at| table.columns[*at].name.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}

fn values(table: &Table, columns: &[usize], rng: &mut Rng) -> String {
    columns
        .iter()
        .map(|at| value_sql(table, *at, rng))
        .collect::<Vec<_>>()
        .join(", ")
}

fn value(table: &Table, at: usize, rng: &mut Rng) -> Option<String> {
    let column = &table.columns[at];
    if table.key.contains(&at) || !column.nullable {
        return Some(column.kind.key(rng, table.values));
    }
    match rng.u8(0..3) {
        // If a table may have no key, some rows are completely equal.
        0 if column.name == "\"position\"" => Some(rng.u16(..).to_string()),
        _ => column.kind.value(rng),
    }
}

fn value_sql(table: &Table, at: usize, rng: &mut Rng) -> String {
    match &table.columns[at].fill {
        Fill::Reference(other, key) if rng.u8(0..5) > 0 => {
            let salt = rng.u32(..);
            format!(
                "(SELECT {key} FROM {{shard}}.{other} ORDER BY hashtext(ctid::text || '{salt}') \
                    LIMIT 1)"
            )
        }
        Fill::Reference(..) => "NULL".to_owned(),
        _ => literal(&value(table, at, rng)),
    }
}
