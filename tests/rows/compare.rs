//! Comparisons: an old copy with its successor, sequences, and a shard's log with the clients'
//! results.

use std::collections::{BTreeMap, BTreeSet};

use pgshard::pg::{quote_ident, quote_literal};
use tokio_postgres::{Client, Error};

use super::state::Told;

/// The tables of a schema.
async fn tables(client: &Client, schema: &str) -> Result<BTreeSet<String>, Error> {
    let sql = "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relkind = 'r'";
    Ok(client
        .query(sql, &[&schema])
        .await?
        .iter()
        .map(|row| row.get(0))
        .collect())
}

/// For each table, its number of rows and two hashes of them.
async fn digests(
    client: &Client,
    schema: &str,
    tables: &BTreeSet<String>,
) -> Result<BTreeMap<String, String>, Error> {
    let mut all = BTreeMap::new();
    let tables: Vec<&String> = tables.iter().collect();
    for some in tables.chunks(30) {
        let select = |table: &&String| {
            format!(
                "SELECT {}, concat_ws(' ', count(*), sum(hashtextextended(one_row::text, \
                    0)::numeric),
                    sum(hashtextextended(one_row::text, 7)::numeric)) FROM {}.{} AS one_row",
                quote_literal(table),
                quote_ident(schema),
                quote_ident(table)
            )
        };
        let sql = some
            .iter()
            .map(select)
            .collect::<Vec<_>>()
            .join(" UNION ALL ");
        all.extend(
            client
                .query(&sql, &[])
                .await?
                .iter()
                .map(|row| (row.get(0), row.get(1))),
        );
    }
    Ok(all)
}

async fn rows(client: &Client, schema: &str, table: &str) -> Result<BTreeMap<String, i64>, Error> {
    let sql = format!(
        "SELECT left(one_row::text, 300) || CASE WHEN length(one_row::text) > 300 THEN '… ' || \
            md5(one_row::text)
         ELSE '' END, count(*)
         FROM {}.{} AS one_row GROUP BY one_row::text",
        quote_ident(schema),
        quote_ident(table)
    );
    Ok(client
        .query(&sql, &[])
        .await?
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect())
}

/// A schema, and the client that reads it.
#[derive(Clone, Copy)]
pub(crate) struct Side<'a> {
    pub(crate) client: &'a Client,
    pub(crate) schema: &'a str,
}

/// The differences between two schemas' rows, in words; empty if there are none.
pub(crate) async fn rows_differ(old: Side<'_>, new: Side<'_>) -> Result<Vec<String>, Error> {
    for side in [old, new] {
        side.client
            .batch_execute(
                "SET timezone = 'UTC'; SET datestyle = 'ISO, YMD'; SET lc_monetary = 'C'; SET \
                    extra_float_digits = 1",
            )
            .await?;
    }
    let (at_old, at_new) = (
        tables(old.client, old.schema).await?,
        tables(new.client, new.schema).await?,
    );
    let mut differences: Vec<String> = at_old
        .symmetric_difference(&at_new)
        .map(|table| format!("table {table} is on one side only"))
        .collect();
    let both: BTreeSet<String> = at_old.intersection(&at_new).cloned().collect();
    let (of_old, of_new) = (
        digests(old.client, old.schema, &both).await?,
        digests(new.client, new.schema, &both).await?,
    );
    for table in &both {
        if of_old.get(table) == of_new.get(table) {
            continue;
        }
        let (here, there) = (
            rows(old.client, old.schema, table).await?,
            rows(new.client, new.schema, table).await?,
        );
        let mut only = |what: &str, here: &BTreeMap<String, i64>, there: &BTreeMap<String, i64>| {
            let missing: Vec<_> = here
                .iter()
                .filter(|(row, count)| there.get(*row) != Some(count))
                .collect();
            for (row, count) in missing.iter().take(6) {
                differences.push(format!("table {table}, {what}: {row} ({count} times)"));
            }
            if missing.len() > 6 {
                differences.push(format!("table {table}, {what}: {} more", missing.len() - 6));
            }
        };
        only("old copy only", &here, &there);
        only("new copy only", &there, &here);
        if differences.is_empty() {
            differences.push(format!(
                "table {table}: {:?} and {:?}",
                of_old.get(table),
                of_new.get(table)
            ));
        }
    }
    Ok(differences)
}

/// One sequence.
#[derive(Clone, Debug)]
struct Sequence {
    last: i128,
    called: bool,
    increment: i128,
    min: i128,
    max: i128,
    cycles: bool,
}

impl Sequence {
    /// How many numbers it is past the first of its bounds; the next number is one further.
    fn next(&self) -> i128 {
        if self.called {
            self.last + self.increment
        } else {
            self.last
        }
    }

    /// How many it can still hand out.
    fn left(&self) -> i128 {
        let bound = if self.increment > 0 {
            self.max - self.next()
        } else {
            self.next() - self.min
        };
        if bound < 0 {
            0
        } else {
            bound / self.increment.abs() + 1
        }
    }
}

async fn sequences(side: Side<'_>) -> Result<BTreeMap<String, Sequence>, Error> {
    let sql = "SELECT c.relname::text, s.seqincrement, s.seqmin, s.seqmax, s.seqcycle
        FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = \
        c.relnamespace
        WHERE n.nspname = $1";
    let mut all = BTreeMap::new();
    for row in side.client.query(sql, &[&side.schema]).await? {
        let name: String = row.get(0);
        let sql = format!(
            "SELECT last_value, is_called FROM {}.{}",
            quote_ident(side.schema),
            quote_ident(&name)
        );
        let value = side.client.query_one(&sql, &[]).await?;
        let wide = |at: usize| i128::from(row.get::<_, i64>(at));
        let sequence = Sequence {
            last: i128::from(value.get::<_, i64>(0)),
            called: value.get(1),
            increment: wide(1),
            min: wide(2),
            max: wide(3),
            cycles: row.get(4),
        };
        all.insert(name, sequence);
    }
    Ok(all)
}

/// How far ahead a sequence may be at its new host.
const AHEAD: i128 = 20_000;

/// What is wrong with the sequences of a new copy. An ID clock's two count together.
pub(crate) async fn sequences_differ(old: Side<'_>, new: Side<'_>) -> Result<Vec<String>, Error> {
    let (old, new) = (sequences(old).await?, sequences(new).await?);
    let mut wrong = Vec::new();
    let clock = |sequences: &BTreeMap<String, Sequence>| {
        ["id_ticket", "id_offset"]
            .iter()
            .filter_map(|name| sequences.get(*name))
            .map(|s| s.last)
            .sum::<i128>()
    };
    if clock(&new) < clock(&old) {
        wrong.push(format!(
            "the ID clock went back from {} to {}",
            clock(&old),
            clock(&new)
        ));
    }
    for (name, was) in old.iter().filter(|(name, _)| !name.starts_with("id_")) {
        let Some(is) = new.get(name) else {
            wrong.push(format!("sequence {name} is missing"));
            continue;
        };
        let ahead = (is.next() - was.next()) / was.increment;
        let told = format!("sequence {name}: {was:?} at the old copy, {is:?} at the new");
        if was.cycles {
            let ring = (was.max - was.min) / was.increment.abs() + 1;
            if ahead.rem_euclid(ring) > AHEAD.min(ring) {
                wrong.push(told);
            }
            continue;
        }
        if ahead < 0 && was.left() > 0 || ahead > AHEAD {
            wrong.push(format!("{told}: {ahead} ahead"));
        } else if was.left() > 0 && is.left() == 0 || was.left() > 100 && is.left() < was.left() / 3
        {
            wrong.push(format!("{told}: {} left of {}", is.left(), was.left()));
        }
    }
    Ok(wrong)
}

/// The differences between a shard's log and the results that clients had before it is read.
pub(crate) async fn log_differs(at: Side<'_>, told: &Told) -> Result<Vec<String>, Error> {
    let sql = format!("SELECT n FROM {}.txlog", quote_ident(at.schema));
    let there: BTreeSet<i64> = at
        .client
        .query(&sql, &[])
        .await?
        .iter()
        .map(|row| row.get(0))
        .collect();
    let lost: Vec<_> = told.acknowledged.difference(&there).take(10).collect();
    let risen: Vec<_> = told.rolled_back.intersection(&there).take(10).collect();
    let mut wrong = Vec::new();
    if !lost.is_empty() {
        wrong.push(format!("acknowledged transactions are gone: {lost:?}"));
    }
    if !risen.is_empty() {
        wrong.push(format!(
            "transactions that were rolled back are there: {risen:?}"
        ));
    }
    Ok(wrong)
}
