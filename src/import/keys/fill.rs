//! Fills the rows that were there before the triggers, by ranges of the primary key.
//!
//! Each range is a transaction, with its end in the record. A row that another transaction has
//! locked is left for the next round, and a statement that waits for a tenth of a second gives up:
//! so no writer waits for long, and in a deadlock it is the range that fails. Rows that have a key
//! are not touched; what is written goes through the table's own trigger, so it is what the row
//! that it refers to has at that moment.
//!
//! The application's triggers do not fire: they would note that each row was changed.

use std::time::{Duration, Instant};

use super::table::{KeyTable, Parent};
use crate::backoff::Backoff;
use crate::import::change::{ChangeError, ChangeEvent, Mode, Observer, Session, is_in_the_way};
use crate::pg::{quote_ident, quote_literal};

/// The fewest and most rows of a range.
const ROWS_MIN: u64 = 50;
const ROWS_MAX: u64 = 5_000;

/// A range takes about this long: a writer that wants one of its rows waits for it.
const RANGE_TIME: Duration = Duration::from_millis(80);

/// A range is found by the primary key, and what its rows refer to by a unique index, whatever the
/// planner knows of a table that was never analyzed.
const BY_INDEX: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; \
    SET LOCAL enable_mergejoin = off; ";

/// Between rounds, for rows that are locked.
const PAUSES: Backoff = Backoff {
    first: Duration::from_millis(100),
    max: Duration::from_secs(10),
    jitter: (0.5, 1.5),
};

/// How often progress is reported.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Fills all rows that can be filled, and returns how many it has filled.
pub(super) async fn fill(
    session: &Session,
    table: &KeyTable,
    parent: &Parent,
    rows_per_second: u32,
    observer: Observer<'_>,
) -> Result<u64, ChangeError> {
    let what = format!("fill {}", table.label);
    let mut filling = Filling {
        session,
        table,
        parent,
        rows_per_second,
        observer,
        what: &what,
        rows: ROWS_MIN * 4,
        filled: 0,
        reported: Instant::now(),
    };
    let mut from = table
        .record
        .as_ref()
        .and_then(|record| record.filled_to.clone());
    let begun = Instant::now();
    let mut rounds = 0;
    loop {
        filling.round(from.take()).await?;
        if !filling.is_left().await? {
            break;
        }
        if begun.elapsed() > session.wait_max() && rounds > 0 {
            let tables = [table.oid];
            let by = session.blockers(&tables, Mode::ShareRowExclusive).await?;
            return Err(ChangeError::Blocked { what, by });
        }
        tokio::time::sleep(PAUSES.pause(rounds)).await;
        rounds += 1;
    }
    let sql = format!(
        "UPDATE pgshard_import.keys SET filled = true, filled_to = NULL WHERE relation = {}",
        table.oid
    );
    session.execute(&what, &sql).await?;
    Ok(filling.filled)
}

struct Filling<'a> {
    session: &'a Session,
    table: &'a KeyTable,
    parent: &'a Parent,
    rows_per_second: u32,
    observer: Observer<'a>,
    what: &'a str,
    /// Rows of the next range.
    rows: u64,
    filled: u64,
    reported: Instant,
}

impl Filling<'_> {
    /// Goes through the table once, from a value of the primary key on.
    async fn round(&mut self, from: Option<Vec<String>>) -> Result<(), ChangeError> {
        let mut from = from;
        let mut failures = 0;
        loop {
            let begun = Instant::now();
            let end: Option<Vec<String>> = self
                .session
                .value(self.what, &self.end_sql(from.as_deref()))
                .await?;
            let sql = self.range_sql(from.as_deref(), end.as_deref());
            let done = self.session.client().simple_query(&sql).await;
            let rows = match done {
                Ok(messages) => written(&messages, end.as_ref()),
                Err(source) => {
                    let _ = self.session.client().batch_execute("ROLLBACK").await;
                    if !is_in_the_way(&source) {
                        return Err(ChangeError::postgres(self.what, source));
                    }
                    self.rows = (self.rows / 2).max(ROWS_MIN);
                    tokio::time::sleep(PAUSES.pause(failures)).await;
                    failures += 1;
                    continue;
                }
            };
            failures = 0;
            self.filled += rows;
            self.adapt(begun.elapsed());
            if self.reported.elapsed() > REPORT_EVERY || end.is_none() {
                self.reported = Instant::now();
                (self.observer)(ChangeEvent::Filled {
                    object: self.table.label.clone(),
                    rows: self.filled,
                });
            }
            let due = Duration::from_secs_f64(rows as f64 / f64::from(self.rows_per_second));
            tokio::time::sleep(due.saturating_sub(begun.elapsed())).await;
            if end.is_none() {
                return Ok(());
            }
            from = end;
        }
    }

    fn adapt(&mut self, taken: Duration) {
        let rows = if taken < RANGE_TIME / 2 {
            self.rows * 2
        } else if taken > RANGE_TIME {
            self.rows / 2
        } else {
            self.rows
        };
        // At least ten ranges a second, so that the rate is kept evenly.
        let most = ROWS_MAX.min(u64::from(self.rows_per_second) / 10);
        self.rows = rows.min(most).max(ROWS_MIN);
    }

    /// Whether rows have no key though the row that they refer to has one.
    async fn is_left(&self) -> Result<bool, ChangeError> {
        let key = quote_ident(&self.table.column);
        let sql = format!(
            "SELECT to_json(EXISTS (SELECT FROM {} c JOIN {} p ON {} WHERE c.{key} IS NULL
                AND p.{} IS NOT NULL))",
            self.table.sql,
            self.parent.sql,
            matches(self.parent, "p", "c"),
            quote_ident(&self.parent.key)
        );
        let left: Option<bool> = self.session.value(self.what, &sql).await?;
        Ok(left == Some(true))
    }

    /// The last primary key of the next range; no row if it is the last range.
    fn end_sql(&self, from: Option<&[String]>) -> String {
        let primary = &self.table.details.primary;
        let columns: Vec<String> = primary.iter().map(|column| quote_ident(column)).collect();
        let texts: Vec<String> = columns
            .iter()
            .map(|column| format!("{column}::text"))
            .collect();
        format!(
            "SELECT json_build_array({}) FROM {} c WHERE {} ORDER BY {} OFFSET {} LIMIT 1",
            texts.join(", "),
            self.table.sql,
            bound(self.table, "", ">", from),
            columns.join(", "),
            self.rows - 1,
        )
    }

    /// A transaction that fills a range. It locks rows that no other transaction has locked, and
    /// `FOR KEY SHARE` those that they refer to.
    fn range_sql(&self, from: Option<&[String]>, end: Option<&[String]>) -> String {
        let progress = match end {
            Some(end) => {
                let end: Vec<String> = end.iter().map(|text| quote_literal(text)).collect();
                format!(
                    ";\nUPDATE pgshard_import.keys SET filled_to = ARRAY[{}]::text[] \
                    WHERE relation = {}",
                    end.join(", "),
                    self.table.oid
                )
            }
            None => String::new(),
        };
        let replica = match self.table.details.other_triggers.as_slice() {
            [] => "",
            _ => "SET LOCAL session_replication_role = replica; ",
        };
        format!(
            "BEGIN; SET LOCAL lock_timeout = '100ms'; {BY_INDEX}{replica}\n{}{progress};\nCOMMIT",
            update_sql(self.table, self.parent, from, end)
        )
    }
}

fn update_sql(
    table: &KeyTable,
    parent: &Parent,
    from: Option<&[String]>,
    end: Option<&[String]>,
) -> String {
    let key = quote_ident(&table.column);
    let own: Vec<String> = parent
        .pairs
        .iter()
        .map(|(own, _)| quote_ident(own))
        .collect();
    let primary: Vec<String> = table
        .details
        .primary
        .iter()
        .map(|one| quote_ident(one))
        .collect();
    let mut taken: Vec<String> = primary
        .iter()
        .chain(&own)
        .map(|one| format!("c.{one}"))
        .collect();
    taken.sort();
    taken.dedup();
    let same: Vec<String> = primary
        .iter()
        .map(|one| format!("c.{one} = r.{one}"))
        .collect();
    let mut range = bound(table, "c.", ">", from);
    if let Some(end) = end {
        range = format!("{range} AND {}", bound(table, "c.", "<=", Some(end)));
    }
    format!(
        "WITH r AS MATERIALIZED (SELECT {} FROM {} c WHERE {range} AND c.{key} IS NULL\n    \
        FOR NO KEY UPDATE SKIP LOCKED)\nUPDATE {} c SET {key} = p.{} FROM r JOIN {} p ON {}\n    \
        WHERE {} AND {range} AND c.{key} IS NULL AND p.{} IS NOT NULL",
        taken.join(", "),
        table.sql,
        table.sql,
        quote_ident(&parent.key),
        parent.sql,
        matches(parent, "p", "r"),
        same.join(" AND "),
        quote_ident(&parent.key)
    )
}

/// The condition that a row refers to another.
fn matches(parent: &Parent, there: &str, here: &str) -> String {
    let pairs = parent.pairs.iter();
    let pairs =
        pairs.map(|(own, to)| format!("{there}.{} = {here}.{}", quote_ident(to), quote_ident(own)));
    pairs.collect::<Vec<_>>().join(" AND ")
}

/// The condition that the primary key is on one side of a value.
fn bound(table: &KeyTable, prefix: &str, side: &str, value: Option<&[String]>) -> String {
    let Some(value) = value else {
        return "true".to_owned();
    };
    let primary = &table.details.primary;
    let columns: Vec<String> = primary
        .iter()
        .map(|column| format!("{prefix}{}", quote_ident(column)))
        .collect();
    let values = primary.iter().zip(value).map(|(column, text)| {
        let type_ = table
            .details
            .column(column)
            .map_or("text", |column| column.type_name());
        format!("{}::{type_}", quote_literal(text))
    });
    let values: Vec<String> = values.collect();
    format!("({}) {side} ({})", columns.join(", "), values.join(", "))
}

/// The rows that a range has updated: the count before those of the record and of COMMIT.
fn written(messages: &[tokio_postgres::SimpleQueryMessage], end: Option<&Vec<String>>) -> u64 {
    let counts = messages.iter().filter_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::CommandComplete(rows) => Some(*rows),
        _ => None,
    });
    let counts: Vec<u64> = counts.collect();
    let after = if end.is_some() { 3 } else { 2 };
    let at = counts.len().checked_sub(after);
    at.and_then(|at| counts.get(at)).copied().unwrap_or(0)
}

/// How many rows have no key.
pub(super) fn without_key_sql(table: &KeyTable) -> Vec<String> {
    let key = quote_ident(&table.column);
    vec![format!(
        "SELECT to_json(count(*)) FROM {} WHERE {key} IS NULL",
        table.sql
    )]
}

/// Statements of a range in the midst, for a plan.
pub(super) fn example(table: &KeyTable) -> Vec<String> {
    let Some(parent) = &table.parent else {
        return Vec::new();
    };
    let some = |name: &str| vec![name.to_owned(); table.details.primary.len()];
    let sql = update_sql(table, parent, Some(&some("from")), Some(&some("to")));
    vec!["BEGIN".to_owned(), sql, "COMMIT".to_owned()]
}

/// How many rows there are, without a key, and with another than the row that they refer to.
pub(super) fn compare_sql(table: &KeyTable) -> String {
    let key = quote_ident(&table.column);
    match &table.parent {
        None => format!(
            "SELECT json_build_array(count(*), count(*) FILTER (WHERE {key} IS NULL), 0) FROM {}",
            table.sql
        ),
        Some(parent) => format!(
            "SELECT json_build_array(count(*), count(*) FILTER (WHERE c.{key} IS NULL),
                count(*) FILTER (WHERE p.{} IS NOT NULL AND c.{key} IS NOT NULL
                    AND c.{key} IS DISTINCT FROM p.{}))
            FROM {} c LEFT JOIN {} p ON {}",
            quote_ident(parent.pairs.first().map_or("", |(_, to)| to)),
            quote_ident(&parent.key),
            table.sql,
            parent.sql,
            matches(parent, "p", "c")
        ),
    }
}
