//! How unevenly rows are spread over keys, by the statistics of ANALYZE.

use std::collections::HashMap;

use super::case::Case;
use crate::import::decide::{Decision, Decisions};
use crate::import::facts::Database;
use crate::import::obstacle::{BlockingObject, Kind};

/// From this share of the bytes on a key is named.
const SHARE_MAX: f64 = 0.05;

/// With fewer rows, skew means nothing.
const ROWS_MIN: f64 = 10_000.0;

/// A key with its share of the import.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Share {
    pub(crate) key: String,
    pub(crate) rows: f64,
    pub(crate) bytes: f64,
    /// The share of the bytes of the tables with statistics.
    pub(crate) share: f64,
}

pub(super) fn look(case: &Case<'_>, found: &mut Vec<BlockingObject>) {
    let counted = key_columns(case.decisions).filter_map(|(table, _)| {
        let table = case.database.tables.get(&table)?;
        table.rows
    });
    if counted.sum::<f64>() < ROWS_MIN {
        return;
    }
    for share in shares(case.database, case.decisions) {
        if share.share >= SHARE_MAX {
            let detail = format!("about {:.0} % of the bytes", share.share * 100.0);
            found.push(BlockingObject::new(
                Kind::Skew,
                format!("key {}", share.key),
                detail,
            ));
        }
    }
}

/// The largest keys, the largest first. Only tables with the key in a column count.
pub(crate) fn shares(database: &Database, decisions: &Decisions) -> Vec<Share> {
    let mut by_key: HashMap<&str, (f64, f64)> = HashMap::new();
    let mut total = 0.0;
    for (table, column) in key_columns(decisions) {
        let Some(table) = database.tables.get(&table) else {
            continue;
        };
        let Some(statistics) = database.statistics.get(&(table.oid, column)) else {
            continue;
        };
        let (rows, bytes) = (table.rows.unwrap_or_default(), table.bytes() as f64);
        total += bytes;
        for (key, share) in &statistics.common {
            let sum = by_key.entry(key).or_default();
            sum.0 += share * rows;
            sum.1 += share * bytes;
        }
    }
    let mut shares: Vec<Share> = by_key
        .into_iter()
        .map(|(key, (rows, bytes))| Share {
            key: key.to_owned(),
            rows,
            bytes,
            share: if total > 0.0 { bytes / total } else { 0.0 },
        })
        .collect();
    shares.sort_by(|a, b| b.bytes.total_cmp(&a.bytes).then_with(|| a.key.cmp(&b.key)));
    shares.truncate(SHOWN_MAX);
    shares
}

/// How many of the largest keys are shown.
const SHOWN_MAX: usize = 10;

fn key_columns(decisions: &Decisions) -> impl Iterator<Item = (u32, i16)> {
    decisions
        .iter()
        .filter_map(|(table, decision)| match decision {
            Decision::Column(key) => Some((*table, key.column)),
            _ => None,
        })
}
