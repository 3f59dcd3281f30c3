//! Statements that alter a shard while it moves, or while no mover looks: random scripts. Most of
//! them end with the definition that they began with, because that is what a mover cannot see from
//! the definition.

use std::time::Duration;

use fastrand::Rng;
use tokio_postgres::Client;

use super::schema::{Column, Fill, Schema, Table};
use super::state::Shared;
use super::statements::{Statement, Statements};
use super::values::{Kind, literal};
use super::work::words;

/// What a script does, with its frequency; `--without` takes these names.
pub(crate) const ALTERATIONS: [(&str, u32); 23] = [
    ("retype", 4),
    ("readd", 4),
    ("columns-exchanged", 2),
    ("tables-exchanged", 2),
    ("renamed", 2),
    ("recreated", 3),
    ("cloned", 2),
    ("attribute", 2),
    ("enum", 2),
    ("domain", 1),
    ("not-null", 2),
    ("added", 3),
    ("set-unlogged", 2),
    ("identity-lent", 2),
    ("key", 2),
    ("triggers", 2),
    ("rewritten", 2),
    ("elsewhere", 1),
    ("schema", 1),
    ("storage", 1),
    ("partition", 3),
    ("extra", 2),
    ("sequence", 1),
];

/// How the steps of a script are committed.
#[derive(Clone, Copy, Debug)]
enum Committed {
    Each,
    Together,
    Savepoints,
    Prepared,
}

/// Runs one script on a shard, or its beginning.
pub(crate) async fn alter(shared: &Shared, rng: &mut Rng, shard: u16) {
    let gate = &shared.gates[usize::from(shard)];
    let host = gate.host.read().await;
    let client = shared.reach(*host).await;
    let schema = Shared::schema_name(shard);
    let Some((name, mut steps)) = script(shared, rng, &client, &schema).await else {
        return;
    };
    if rng.u8(0..5) == 0 {
        steps.truncate(rng.usize(1..=steps.len()));
    }
    let committed = match rng.u8(0..6) {
        0..3 => Committed::Each,
        3 => Committed::Together,
        4 => Committed::Savepoints,
        _ if shared.case.has("prepared") => Committed::Prepared,
        _ => Committed::Together,
    };
    let nap = Duration::from_millis(if rng.bool() { 0 } else { rng.u64(0..800) });
    shared.tell(format!("{schema} is altered: {name}, {committed:?}"));
    gate.altered
        .store(true, std::sync::atomic::Ordering::SeqCst);
    if let Err(error) = run(shared, &client, &steps, committed, nap).await {
        shared.tell(format!("  it ended: {}", words(&error)));
        // A table that is made during a move needs no replica identity.
        if name == "extra" && error.code().is_some_and(|code| code.code() == "55000") {
            shared.fail("application", format!("a new table: {}", words(&error)));
        }
        let _ = client.batch_execute("ROLLBACK").await;
    }
    if name == "schema" {
        // A shard that stays away can be neither moved nor checked.
        let back = format!("ALTER SCHEMA \"{schema}_meanwhile\" RENAME TO {schema}");
        while client
            .batch_execute(&back)
            .await
            .is_err_and(|error| error.code().is_some_and(|code| code.code() == "55P03"))
        {}
    }
}

/// Runs the steps. A session in their way ends them.
async fn run(
    shared: &Shared,
    client: &Client,
    steps: &[String],
    committed: Committed,
    nap: Duration,
) -> Result<(), tokio_postgres::Error> {
    client.batch_execute("SET lock_timeout = '2s'").await?;
    if !matches!(committed, Committed::Each) {
        client.batch_execute("BEGIN").await?;
    }
    for (at, step) in steps.iter().enumerate() {
        if let Committed::Savepoints = committed {
            client.batch_execute(&format!("SAVEPOINT s{at}")).await?;
        }
        shared.tell(format!("  {}", step.chars().take(200).collect::<String>()));
        client.batch_execute(step).await?;
        tokio::time::sleep(nap).await;
    }
    match committed {
        Committed::Each => Ok(()),
        Committed::Together | Committed::Savepoints => client.batch_execute("COMMIT").await,
        Committed::Prepared => {
            client
                .batch_execute("PREPARE TRANSACTION 'alteration'")
                .await?;
            tokio::time::sleep(nap).await;
            // It may not stay, whatever happens.
            for _ in 0..2000 {
                match client.batch_execute("COMMIT PREPARED 'alteration'").await {
                    Err(error) if error.code().is_none_or(|code| code.code() != "42704") => {}
                    _ => break,
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        }
    }
}

/// A script's kind and steps; none if the schema has nothing for it.
async fn script(
    shared: &Shared,
    rng: &mut Rng,
    client: &Client,
    schema: &str,
) -> Option<(&'static str, Vec<String>)> {
    let possible: Vec<_> = ALTERATIONS
        .into_iter()
        .filter(|(name, _)| shared.case.has(name))
        .collect();
    for _ in 0..30 {
        let mut at = rng.u32(0..possible.iter().map(|one| one.1).sum::<u32>().max(1));
        let found = possible.iter().find(|(_, weight)| {
            let found = at < *weight;
            at = at.wrapping_sub(if found { 0 } else { *weight });
            found
        });
        let (name, _) = *found?;
        let steps = match name {
            "partition" => reattached(rng, client, schema).await,
            "extra" => Some(vec![
                format!(
                    "CREATE TABLE {schema}.extra (a integer); INSERT INTO {schema}.extra VALUES (1)"
                ),
                format!("UPDATE {schema}.extra SET a = a + 1"),
                format!("DROP TABLE {schema}.extra"),
            ]),
            _ => {
                let tables = &shared.schema.tables;
                let table = tables.get(rng.usize(0..tables.len().max(1)))?;
                let other = &tables[rng.usize(0..tables.len())];
                Script {
                    shared,
                    table,
                    other,
                    rng,
                }
                .steps(name)
            }
        };
        if let Some(steps) = steps {
            return Some((
                name,
                steps
                    .into_iter()
                    .map(|step| step.replace("{shard}", schema))
                    .collect(),
            ));
        }
    }
    None
}

struct Script<'a> {
    shared: &'a Shared,
    table: &'a Table,
    other: &'a Table,
    rng: &'a mut Rng,
}

impl Script<'_> {
    fn steps(mut self, name: &str) -> Option<Vec<String>> {
        self.of_columns(name)
            .or_else(|| self.of_tables(name))
            .or_else(|| self.of_others(name))
    }

    /// Columns get other values, names or places.
    fn of_columns(&mut self, name: &str) -> Option<Vec<String>> {
        let (q, write) = (self.table.qualified(), self.write());
        let alter = |what: &str| format!("ALTER TABLE {q} {what}");
        let steps = match name {
            "retype" => {
                let column = self.column()?.clone();
                let (of, using) = (column.kind.sql(), self.another(&column));
                vec![
                    alter(&format!("ALTER {} TYPE {of} USING {using}", column.name)),
                    write,
                ]
            }
            // The last column gets its place back, any other one comes last.
            "readd" => {
                let last = self.table.columns.last()?.clone();
                let column = if self.rng.bool() {
                    last
                } else {
                    self.column()?.clone()
                };
                let of = column.kind.sql();
                let default = if self.rng.bool() {
                    let value = column.kind.value(self.rng);
                    format!(" DEFAULT {}", literal(&value))
                } else {
                    String::new()
                };
                let add = alter(&format!("ADD {} {of}{default}", column.name));
                vec![
                    alter(&format!("DROP {}", column.name)),
                    write,
                    add,
                    self.write(),
                ]
            }
            "columns-exchanged" => {
                let (a, b) = (self.column()?.name.clone(), self.column()?.name.clone());
                let rename = |from: &str, to: &str| alter(&format!("RENAME {from} TO {to}"));
                vec![
                    rename(&a, "meanwhile"),
                    rename(&b, &a),
                    write,
                    rename("meanwhile", &b),
                ]
            }
            "not-null" => {
                let column = self.column()?.clone();
                let value = column.kind.key(self.rng, self.table.values);
                vec![
                    format!(
                        "UPDATE {q} SET {0} = {1} WHERE {0} IS NULL",
                        column.name,
                        literal(&Some(value))
                    ),
                    alter(&format!("ALTER {} SET NOT NULL", column.name)),
                    write,
                    alter(&format!("ALTER {} DROP NOT NULL", column.name)),
                    self.write(),
                ]
            }
            "added" => {
                let of = [
                    "integer DEFAULT 7",
                    "float8 DEFAULT random()",
                    "bigserial",
                    "text",
                    "timestamptz NOT NULL DEFAULT clock_timestamp()",
                    "bigint GENERATED ALWAYS AS IDENTITY",
                ][self.rng.usize(0..6)];
                let add = alter(&format!("ADD later {of}"));
                let update =
                    format!("UPDATE {q} SET later = DEFAULT WHERE hashtext(ctid::text) % 3 = 0");
                let rest = match self.rng.u8(0..3) {
                    0 => format!("VACUUM FULL {q}"),
                    1 => alter("ALTER later DROP DEFAULT"),
                    _ => self.write(),
                };
                vec![add, update, write, rest, alter("DROP later"), self.write()]
            }
            "storage" => {
                let column = self.column()?.name.clone();
                let what = [
                    "SET STATISTICS 77",
                    "SET STATISTICS -1",
                    "SET (n_distinct = 5)",
                ][self.rng.usize(0..3)];
                vec![alter(&format!("ALTER {column} {what}")), write]
            }
            _ => return None,
        };
        Some(steps)
    }

    /// Tables are renamed, created again, rewritten, or elsewhere for a while.
    fn of_tables(&mut self, name: &str) -> Option<Vec<String>> {
        let (q, write) = (self.table.qualified(), self.write());
        let named = &self.table.name;
        let alter = |what: &str| format!("ALTER TABLE {q} {what}");
        let steps = match name {
            "tables-exchanged" if self.other.name != *named => {
                let rename =
                    |from: &str, to: &str| format!("ALTER TABLE {{shard}}.{from} RENAME TO {to}");
                let other = &self.other.name;
                let there = [
                    rename(named, "meanwhile"),
                    rename(other, named),
                    rename("meanwhile", other),
                ];
                let back = if self.rng.bool() {
                    there.to_vec()
                } else {
                    Vec::new()
                };
                [there.to_vec(), vec![write], back].concat()
            }
            "renamed" => vec![
                alter("RENAME TO meanwhile"),
                write.replace(&q, "{shard}.meanwhile"),
                format!("ALTER TABLE {{shard}}.meanwhile RENAME TO {named}"),
            ],
            "recreated" => {
                let create = self.table.create_again();
                vec![
                    format!("DROP TABLE {q} CASCADE"),
                    create,
                    write,
                    self.write(),
                ]
            }
            "cloned" => vec![
                format!("CREATE TABLE {{shard}}.meanwhile (LIKE {q} INCLUDING ALL)"),
                write.replace(&q, "{shard}.meanwhile"),
                alter("RENAME TO former"),
                format!("ALTER TABLE {{shard}}.meanwhile RENAME TO {named}"),
                self.write(),
                "DROP TABLE {shard}.former CASCADE".to_owned(),
            ],
            "elsewhere" => vec![
                alter("SET SCHEMA public"),
                write.replace(&q, &format!("public.{named}")),
                format!("ALTER TABLE public.{named} SET SCHEMA {{shard}}"),
                self.write(),
            ],
            "schema" => vec![
                "ALTER SCHEMA {shard} RENAME TO \"{shard}_meanwhile\"".to_owned(),
                write.replace("{shard}.", "{shard}_meanwhile."),
                "ALTER SCHEMA \"{shard}_meanwhile\" RENAME TO {shard}".to_owned(),
                self.write(),
            ],
            "rewritten" => {
                let all = ["VACUUM FULL", "REINDEX TABLE", "ANALYZE", "TRUNCATE"];
                vec![
                    format!("{} {q}", all[self.rng.usize(0..4)]),
                    write,
                    format!("VACUUM FULL {q}"),
                ]
            }
            "set-unlogged" => vec![
                alter("SET UNLOGGED"),
                write,
                alter("SET LOGGED"),
                self.write(),
            ],
            _ => return None,
        };
        Some(steps)
    }

    /// Types, keys, replica identities, triggers, sequences.
    fn of_others(&mut self, name: &str) -> Option<Vec<String>> {
        let (q, write) = (self.table.qualified(), self.write());
        let alter = |what: &str| format!("ALTER TABLE {q} {what}");
        let steps = match name {
            "attribute" => {
                let again = "ALTER TYPE {shard}.address ADD ATTRIBUTE \"Größe\" numeric(6,2)";
                vec![
                    "ALTER TYPE {shard}.address DROP ATTRIBUTE \"Größe\"".to_owned(),
                    write,
                    again.to_owned(),
                ]
            }
            "enum" if self.rng.bool() => {
                let value = format!("v{}", self.rng.u16(..));
                vec![
                    format!("ALTER TYPE {{shard}}.mood ADD VALUE '{value}' BEFORE 'ok'"),
                    write,
                ]
            }
            "enum" => {
                let rename = |from: &str, to: &str| {
                    format!("ALTER TYPE {{shard}}.mood RENAME VALUE '{from}' TO '{to}'")
                };
                let there = vec![
                    rename("sad", "meanwhile"),
                    rename("ok", "sad"),
                    rename("meanwhile", "ok"),
                    write,
                ];
                if self.rng.bool() {
                    [there.clone(), there].concat()
                } else {
                    there
                }
            }
            "domain" => vec![
                "ALTER DOMAIN {shard}.positive DROP CONSTRAINT positive_check".to_owned(),
                write,
                "ALTER DOMAIN {shard}.positive ADD CONSTRAINT positive_check CHECK (VALUE > 0)"
                    .to_owned(),
            ],
            "identity-lent" => {
                let one = ["NOTHING", "FULL", "DEFAULT"][self.rng.usize(0..3)];
                vec![
                    alter(&format!("REPLICA IDENTITY {one}")),
                    write,
                    alter("REPLICA IDENTITY DEFAULT"),
                    self.write(),
                ]
            }
            "key" if !self.table.key.is_empty() => {
                let columns: Vec<_> = self
                    .table
                    .key
                    .iter()
                    .map(|at| self.table.columns[*at].name.as_str())
                    .collect();
                let columns = columns.join(", ");
                let drop = "DO $$ BEGIN EXECUTE (SELECT format('ALTER TABLE %s DROP CONSTRAINT %I \
                    CASCADE',
                    conrelid::regclass, conname) FROM pg_constraint WHERE contype = 'p' AND \
                    conrelid = ";
                let at = super::values::literal(&Some(q.clone()));
                vec![
                    format!("{drop}{at}::regclass); END $$"),
                    write,
                    alter(&format!("ADD PRIMARY KEY ({columns})")),
                    self.write(),
                ]
            }
            "triggers" => vec![
                alter("DISABLE TRIGGER USER"),
                write,
                alter("ENABLE TRIGGER USER"),
                self.write(),
            ],
            "sequence" => vec![
                "ALTER SEQUENCE {shard}.plain INCREMENT 3".to_owned(),
                "SELECT nextval('{shard}.plain')".to_owned(),
                "ALTER SEQUENCE {shard}.plain INCREMENT 7".to_owned(),
            ],
            _ => return None,
        };
        Some(steps)
    }

    /// A column that is not of the key, and that statements give a value.
    fn column(&mut self) -> Option<&Column> {
        let columns: Vec<_> = self
            .table
            .writable()
            .filter(|(at, _)| !self.table.key.contains(at))
            .collect();
        (!columns.is_empty()).then(|| columns[self.rng.usize(0..columns.len())].1)
    }

    /// An expression that makes other values of a column's.
    fn another(&mut self, column: &Column) -> String {
        let value = literal(&column.kind.value(self.rng));
        let (name, of) = (
            &column.name,
            column
                .kind
                .sql()
                .split(" COLLATE")
                .next()
                .unwrap_or_default()
                .to_owned(),
        );
        match column.kind {
            Kind::Text | Kind::TextC | Kind::Varchar if self.rng.bool() => {
                format!("({name} || 'x')::{of}")
            }
            _ if column.kind.is_number() && self.rng.bool() => format!("({name} / 2)::{of}"),
            _ if matches!(column.fill, Fill::Reference(..)) => format!("{name}::{of}"),
            _ => format!(
                "CASE WHEN hashtext({name}::text) % 2 = 0 THEN {value}::{of} ELSE {name} END"
            ),
        }
    }

    /// Some random statements on the table.
    fn write(&mut self) -> String {
        let schema = Schema::of_one(self.table, &self.shared.schema);
        let make = Statements {
            schema: &schema,
            without: &self.shared.case.without,
            merges: false,
        };
        let mut all = Vec::new();
        for _ in 0..self.rng.usize(1..4) {
            if let (_, Statement::Sql(sql)) = make.random(self.rng) {
                all.push(sql);
            }
        }
        // It must not end the script: a value may be too large, or there twice.
        let each = all.iter().map(|sql| {
            let text = literal(&Some(sql.clone()));
            format!(
                "BEGIN EXECUTE {text}; EXCEPTION WHEN integrity_constraint_violation OR \
                data_exception THEN END;"
            )
        });
        format!(
            "DO $do$ BEGIN {} END $do$",
            each.collect::<Vec<_>>().join(" ")
        )
    }
}

/// Detaches a partition, writes to what is then a table of its own, and attaches it again.
async fn reattached(rng: &mut Rng, client: &Client, schema: &str) -> Option<Vec<String>> {
    let partitions = "SELECT i.inhrelid::regclass::text, i.inhparent::regclass::text, \
            pg_get_expr(c.relpartbound, c.oid)
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = \
        c.relnamespace
        WHERE c.relispartition AND c.relkind = 'r' AND n.nspname = $1 ORDER BY 1";
    let partitions = client
        .query(partitions, &[&schema])
        .await
        .unwrap_or_default();
    let row = partitions.get(rng.usize(0..partitions.len().max(1)))?;
    let (leaf, parent, bound): (String, String, String) = (row.get(0), row.get(1), row.get(2));
    Some(vec![
        format!("ALTER TABLE {parent} DETACH PARTITION {leaf}"),
        format!("DELETE FROM {leaf} WHERE ctid = (SELECT min(ctid) FROM {leaf})"),
        format!("ALTER TABLE {parent} ATTACH PARTITION {leaf} {bound}"),
    ])
}
