//! Samples of rows, and what ANALYZE has recorded about them: how many rows lack a key, which keys
//! have most rows, how large IDs are, and whether foreign keys lead to rows of the same key.
//!
//! Invariant: no statement here reads a whole large table. The first rows of a table, a bounded
//! number of its pages, or one end of an index are read.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::decide::{Decision, Decisions, Why};
use super::error::Error;
use super::facts::{ColumnStatistics, Database, Sample, Table};
use super::judge;
use super::read;
use crate::pg::quote_ident;

/// How many rows of a table are followed along each foreign key.
const ROWS: u32 = 1000;

/// The largest IDs of this many tables are read in one statement.
const TABLES_PER_STATEMENT: usize = 50;

/// The most pages of a table that are sampled: 8 MiB.
const PAGES_MAX: f64 = 1024.0;

/// Statistics are old once more rows were changed than there were, and more than these.
const CHANGED_MIN: f64 = 10_000.0;

/// How many of the commonest keys of a sample are kept, if they have this share of its rows and not
/// fewer than so many.
const COMMON_MAX: usize = 20;
const COMMON_SHARE_MIN: f64 = 0.01;
const COMMON_ROWS_MIN: f64 = 10.0;

/// A sample that takes longer is left out.
const SAMPLE_TIMEOUT: &str = "SET statement_timeout = '5s'";

/// How long all samples of a sort may take. What is left out is reported.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Reads the statistics and samples that the decisions call for. Returns what could not be read,
/// one sentence each.
pub(super) async fn take(
    client: &Client,
    database: &mut Database,
    decisions: &Decisions,
) -> Result<Vec<String>, Error> {
    let mut left_out = Vec::new();
    statistics(client, database, decisions).await?;
    let until = Instant::now() + TIME_MAX;
    pages(client, database, decisions, until, &mut left_out).await;
    ranges(client, database, decisions, &mut left_out).await;
    let until = Instant::now() + TIME_MAX;
    agreements(client, database, decisions, until, &mut left_out).await;
    read::execute(client, "ending the samples", read::STATEMENT_TIMEOUT).await?;
    Ok(left_out)
}

/// The columns by which tables have or get the key.
fn key_columns(database: &Database, decisions: &Decisions) -> BTreeSet<(u32, i16)> {
    let mut columns = BTreeSet::new();
    for (table, decision) in decisions {
        match decision {
            Decision::Column(key) => {
                columns.insert((*table, key.column));
            }
            Decision::Path(path) => {
                let first = path.steps.first();
                let first = first.and_then(|at| database.foreign_keys.get(*at));
                columns.extend(
                    first
                        .into_iter()
                        .flat_map(|key| &key.columns)
                        .map(|number| (*table, *number)),
                );
            }
            _ => {}
        }
    }
    columns
}

/// What ANALYZE has recorded. A role sees it of columns that it may read.
async fn statistics(
    client: &Client,
    database: &mut Database,
    decisions: &Decisions,
) -> Result<(), Error> {
    let kinds = decisions
        .iter()
        .filter_map(|(table, decision)| match decision {
            Decision::Impossible(Why::Polymorphic { kind, .. }) => Some((*table, *kind)),
            _ => None,
        });
    let columns: Vec<(u32, i16)> = key_columns(database, decisions)
        .into_iter()
        .chain(kinds)
        .collect();
    let tables: Vec<u32> = columns.iter().map(|(table, _)| *table).collect();
    let numbers: Vec<i16> = columns.iter().map(|(_, number)| *number).collect();
    let what = "the statistics of columns";
    let failed = |source| Error::postgres(what, source);
    // ANALYZE records the statistics of all rows of a partitioned table as inherited.
    let sql = "SELECT w.t, w.c, s.null_frac, coalesce(s.most_common_vals::text::text[], '{}'),
            coalesce(s.most_common_freqs, '{}')
        FROM unnest($1::oid[], $2::int2[]) AS w (t, c)
        JOIN pg_class k ON k.oid = w.t JOIN pg_namespace n ON n.oid = k.relnamespace
        JOIN pg_attribute a ON a.attrelid = w.t AND a.attnum = w.c
        JOIN pg_stats s ON s.schemaname = n.nspname AND s.tablename = k.relname
            AND s.attname = a.attname AND s.inherited = (k.relkind = 'p')
        /* pgshard import assess */";
    let rows = client
        .query_typed(
            sql,
            &[(&tables, Type::OID_ARRAY), (&numbers, Type::INT2_ARRAY)],
        )
        .await
        .map_err(failed)?;
    for row in rows {
        let table: u32 = row.try_get(0).map_err(failed)?;
        let number: i16 = row.try_get(1).map_err(failed)?;
        let null_share: f32 = row.try_get(2).map_err(failed)?;
        let values: Vec<String> = row.try_get(3).map_err(failed)?;
        let shares: Vec<f32> = row.try_get(4).map_err(failed)?;
        let statistics = database.statistics.entry((table, number)).or_default();
        *statistics = ColumnStatistics {
            null_share: f64::from(null_share),
            common: values
                .into_iter()
                .zip(shares.into_iter().map(f64::from))
                .collect(),
            range: None,
        };
    }
    Ok(())
}

/// Samples pages of tables that ANALYZE knows nothing of, or nothing of today: their rows, and the
/// commonest keys.
async fn pages(
    client: &Client,
    database: &mut Database,
    decisions: &Decisions,
    until: Instant,
    left_out: &mut Vec<String>,
) {
    let is_stale = |table: &Table| match table.rows {
        None => true,
        Some(rows) => table.changed as f64 > rows.max(CHANGED_MIN),
    };
    let columns: Vec<(u32, i16)> = key_columns(database, decisions)
        .into_iter()
        .filter(|(table, _)| database.tables.get(table).is_some_and(is_stale))
        .collect();
    if columns.is_empty() {
        return;
    }
    if client.batch_execute(SAMPLE_TIMEOUT).await.is_err() {
        left_out.push("no pages were sampled: the server refused a limit".to_owned());
        return;
    }
    let mut unread = 0;
    for (table, column) in columns {
        let read = match Instant::now() > until {
            true => None,
            false => pages_of(client, database, table, column).await.ok(),
        };
        let Some(Some(sampled)) = read else {
            unread += 1;
            continue;
        };
        if let Some(table) = database.tables.get_mut(&table) {
            table.rows = Some(sampled.rows);
            table.heap_bytes = table.heap_bytes.max(sampled.bytes);
        }
        database.statistics.insert((table, column), sampled.column);
    }
    if unread > 0 {
        left_out.push(format!(
            "pages of {unread} tables without statistics were not sampled: the role may not read \
             them, or it would take too long"
        ));
    }
}

/// What a sample of pages has shown.
struct Sampled {
    rows: f64,
    bytes: i64,
    column: ColumnStatistics,
}

async fn pages_of(
    client: &Client,
    database: &Database,
    table: u32,
    column: i16,
) -> Result<Option<Sampled>, tokio_postgres::Error> {
    let size = format!(
        "SELECT coalesce((SELECT sum(pg_relation_size(t.relid)) FROM pg_partition_tree({table}) t
            WHERE t.isleaf), pg_relation_size({table})), current_setting('block_size')"
    );
    let sizes = read::texts(client, &size).await?;
    let Some((bytes, page)) = sizes
        .first()
        .and_then(|row| Some((number(row, 0)?, number(row, 1)?)))
    else {
        return Ok(None);
    };
    let pages = bytes as f64 / page as f64;
    let part = (PAGES_MAX / pages.max(1.0)).min(1.0);
    let sql = format!(
        "SELECT k, n, sum(n) OVER (), sum(n) FILTER (WHERE k IS NULL) OVER () FROM (
            SELECT {}::text AS k, count(*) AS n FROM {} TABLESAMPLE SYSTEM ({}) GROUP BY 1) s
        ORDER BY n DESC LIMIT {COMMON_MAX}",
        quote_ident(database.column_name(table, column)),
        qualified(database, table),
        part * 100.0
    );
    let rows = read::texts(client, &sql).await?;
    let count = |at: usize| rows.first().and_then(|row| number(row, at)).unwrap_or(0) as f64;
    let (all, nulls) = (count(2), count(3));
    let least = (all * COMMON_SHARE_MIN).max(COMMON_ROWS_MIN);
    let common = rows.iter().filter_map(|row| {
        let (value, count) = (row.first()?.clone()?, number(row, 1)? as f64);
        (count >= least).then_some((value, count / all))
    });
    Ok(Some(Sampled {
        rows: all / part,
        bytes,
        column: ColumnStatistics {
            null_share: if all > 0.0 { nulls / all } else { 0.0 },
            common: common.collect(),
            range: None,
        },
    }))
}

/// The smallest and the largest ID, from the ends of the primary key's index.
async fn ranges(
    client: &Client,
    database: &mut Database,
    decisions: &Decisions,
    left_out: &mut Vec<String>,
) {
    let primary = database.uniques.iter().filter_map(|unique| {
        let [column] = unique.columns.as_slice() else {
            return None;
        };
        let imported = decisions
            .get(&unique.table)
            .is_some_and(|decision| decision.is_imported());
        let is_id = database
            .column(unique.table, *column)
            .is_some_and(|column| column.is_integer());
        (unique.primary && imported && is_id).then_some((unique.table, *column))
    });
    let ids: Vec<(u32, i16)> = primary.collect();
    let mut unread = Vec::new();
    for batch in ids.chunks(TABLES_PER_STATEMENT) {
        if let Err(failed) = range_of(client, database, batch).await {
            tracing::debug!(error = %failed, "ranges of IDs are read one by one");
            for one in batch {
                if range_of(client, database, &[*one]).await.is_err() {
                    unread.push(database.name(one.0));
                }
            }
        }
    }
    if !unread.is_empty() {
        left_out.push(format!(
            "the IDs of {} were not read: the role may not, or the table is locked",
            unread.join(", ")
        ));
    }
}

async fn range_of(
    client: &Client,
    database: &mut Database,
    ids: &[(u32, i16)],
) -> Result<(), tokio_postgres::Error> {
    let select = |(at, (table, column)): (usize, &(u32, i16))| {
        let name = qualified(database, *table);
        let column = quote_ident(database.column_name(*table, *column));
        format!(
            "SELECT {at}, (SELECT min({column}) FROM {name}), (SELECT max({column}) FROM {name})"
        )
    };
    let selects: Vec<String> = ids.iter().enumerate().map(select).collect();
    let rows = read::texts(client, &selects.join(" UNION ALL ")).await?;
    for row in rows {
        let number = |at: usize| number(&row, at);
        let place = number(0).and_then(|at| usize::try_from(at).ok());
        let Some(id) = place.and_then(|at| ids.get(at)) else {
            continue;
        };
        if let (Some(least), Some(largest)) = (number(1), number(2)) {
            database.statistics.entry(*id).or_default().range = Some((least, largest));
        }
    }
    Ok(())
}

/// Follows some rows along each foreign key that does not give the key itself.
async fn agreements(
    client: &Client,
    database: &mut Database,
    decisions: &Decisions,
    until: Instant,
    left_out: &mut Vec<String>,
) {
    if client.batch_execute(SAMPLE_TIMEOUT).await.is_err() {
        left_out.push("foreign keys were not followed: the server refused a limit".to_owned());
        return;
    }
    let mut unread = 0;
    for at in judge::must_agree(database, decisions) {
        let Some(sql) = agreement_sql(database, decisions, at) else {
            continue;
        };
        if Instant::now() > until {
            unread += 1;
            continue;
        }
        let rows = read::texts(client, &sql).await;
        let counts = rows.ok().and_then(|rows| {
            let row = rows.into_iter().next_back()?;
            Some((number(&row, 0)?, number(&row, 1)?))
        });
        match (counts, database.foreign_keys.get_mut(at)) {
            (Some((rows, differ)), Some(key)) => key.sample = Sample { rows, differ },
            _ => unread += 1,
        }
    }
    if unread > 0 {
        left_out.push(format!(
            "{} not followed: the role may not read the rows, or it would take too long",
            match unread {
                1 => "1 foreign key was".to_owned(),
                more => format!("{more} foreign keys were"),
            }
        ));
    }
}

/// A query for how many rows were followed along a foreign key, and how many of them lead to
/// another key. A row without a key, or that refers to nothing, does not count.
fn agreement_sql(database: &Database, decisions: &Decisions, at: usize) -> Option<String> {
    let key = database.foreign_keys.get(at)?;
    let mut joins = Joins {
        database,
        decisions,
        text: String::new(),
        count: 0,
    };
    let own = joins.key_of("c", key.table)?;
    let on: Vec<String> = key
        .columns
        .iter()
        .zip(&key.target_columns)
        .map(|(own, other)| {
            format!(
                "p.{} = c.{}",
                quote_ident(database.column_name(key.target, *other)),
                quote_ident(database.column_name(key.table, *own))
            )
        })
        .collect();
    joins.text.push_str(&format!(
        " JOIN {} p ON {}",
        qualified(database, key.target),
        on.join(" AND ")
    ));
    let other = joins.key_of("p", key.target)?;
    let present: Vec<String> = key
        .columns
        .iter()
        .map(|column| {
            format!(
                "{} IS NOT NULL",
                quote_ident(database.column_name(key.table, *column))
            )
        })
        .collect();
    Some(format!(
        "SELECT count(*), count(*) FILTER (WHERE {own} <> {other})
        FROM (SELECT * FROM {} WHERE {} LIMIT {ROWS}) c{}
        WHERE {own} IS NOT NULL AND {other} IS NOT NULL",
        qualified(database, key.table),
        present.join(" AND "),
        joins.text
    ))
}

/// The joins that lead from rows to their keys.
struct Joins<'a> {
    database: &'a Database,
    decisions: &'a Decisions,
    text: String,
    count: usize,
}

impl Joins<'_> {
    /// The key of the rows that are called so in the query, as an expression.
    fn key_of(&mut self, alias: &str, table: u32) -> Option<String> {
        match self.decisions.get(&table)? {
            Decision::Key => Some(self.column(alias, table, self.database.key.column)),
            Decision::Column(key) => Some(self.column(alias, table, key.column)),
            Decision::Path(path) => {
                let mut alias = alias.to_owned();
                let mut last = table;
                for at in &path.steps {
                    let key = self.database.foreign_keys.get(*at)?;
                    self.count += 1;
                    let next = format!("j{}", self.count);
                    let on: Vec<String> = key
                        .columns
                        .iter()
                        .zip(&key.target_columns)
                        .map(|(own, other)| {
                            format!(
                                "{} = {}",
                                self.column(&next, key.target, *other),
                                self.column(&alias, key.table, *own)
                            )
                        })
                        .collect();
                    self.text.push_str(&format!(
                        " JOIN {} {next} ON {}",
                        qualified(self.database, key.target),
                        on.join(" AND ")
                    ));
                    (alias, last) = (next, key.target);
                }
                match self.decisions.get(&last)? {
                    Decision::Path(_) => None,
                    _ => self.key_of(&alias, last),
                }
            }
            _ => None,
        }
    }

    fn column(&self, alias: &str, table: u32, number: i16) -> String {
        let name = self.database.column_name(table, number);
        format!("{alias}.{}", quote_ident(name))
    }
}

fn qualified(database: &Database, table: u32) -> String {
    database
        .tables
        .get(&table)
        .map_or_else(String::new, |table| {
            format!(
                "{}.{}",
                quote_ident(&table.schema),
                quote_ident(&table.name)
            )
        })
}

/// A value of a row of texts, as a number.
fn number(texts: &[Option<String>], at: usize) -> Option<i64> {
    texts.get(at)?.as_ref()?.parse().ok()
}
