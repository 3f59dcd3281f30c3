//! How long an import takes and what it needs, roughly. Pure. Each figure comes with what it
//! assumes.

use schemars::JsonSchema;
use serde::Serialize;

use super::decide::{Decision, Decisions};
use super::facts::Database;

/// What the new cluster will be, as far as the figures depend on it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Goal {
    /// The number of shards.
    pub shards: u16,
    /// The number of hosts.
    pub hosts: u16,
    /// The sessions that open shards on a host at the same time.
    pub sessions: u16,
}

impl Default for Goal {
    fn default() -> Goal {
        Goal {
            shards: 4096,
            hosts: 2,
            sessions: 8,
        }
    }
}

setters! { Goal: shards: u16, hosts: u16, sessions: u16 }

/// A figure, with how it was computed.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Figure {
    /// What it is: `copy`, `pause`, `all_shards_open`, `disk`, `files`, `wal_kept`.
    pub name: &'static str,
    /// What it is, for people.
    pub title: &'static str,
    /// The value; none if what it depends on is unknown.
    pub value: Option<f64>,
    /// `seconds`, `bytes` or `files`.
    pub unit: &'static str,
    /// How it was computed, and what that assumes.
    pub assumes: String,
}

/// Bytes that a copy takes over in a second. `pg_restore -j 8` reaches 50 to 100 MiB/s on servers
/// with local SSDs; an import is to reach 0.6 of it.
const COPY_BYTES_PER_S: f64 = 40.0 * 1024.0 * 1024.0;

/// Seconds to add a foreign key, NOT VALID, when a shard is opened: 40.9 ms for 49 of them.
const FOREIGN_KEY_S: f64 = 0.0008;

/// Seconds to open a shard without foreign keys: two schemas are renamed.
const RENAME_S: f64 = 0.000_24;

/// Seconds to close the old schema and to drain the stream, when it is within 100 ms.
const FENCE_S: f64 = 0.3;

/// Bytes of an empty index, and of an empty TOAST index: one page.
const PAGE: f64 = 8192.0;

/// The figures.
pub(crate) fn figures(database: &Database, decisions: &Decisions, goal: Goal) -> Vec<Figure> {
    let on_shards: Vec<_> = database
        .tables
        .values()
        .filter(|table| decisions.get(&table.oid).is_some_and(Decision::is_imported))
        .collect();
    let bytes: f64 = on_shards.iter().map(|table| table.bytes() as f64).sum();
    let is_on_shard = |table: u32| decisions.get(&table).is_some_and(Decision::is_imported);
    let keys = database.foreign_keys.iter();
    let keys = keys
        .filter(|key| !key.by_name && is_on_shard(key.table) && is_on_shard(key.target))
        .count() as f64;
    let shards = f64::from(goal.shards);
    let sum = |count: &dyn Fn(&super::facts::Table) -> i64| -> f64 {
        on_shards.iter().map(|table| count(table) as f64).sum()
    };
    let indexes = sum(&|table| table.indexes);
    let toasts = sum(&|table| i64::from(table.toasted));
    let copy = bytes / COPY_BYTES_PER_S;
    let open = RENAME_S + keys * FOREIGN_KEY_S;
    let per_host = (shards / f64::from(goal.hosts)).ceil();
    let all = FENCE_S + per_host * open / f64::from(goal.sessions);
    // An empty heap has no page. One with a row has at least one, and most shards have some rows.
    let least = shards * (indexes + toasts + on_shards.len() as f64) * PAGE;
    let files = shards * (on_shards.len() as f64 * 1.0 + indexes + 2.0 * toasts);
    let wal = database
        .server
        .wal
        .map(|rate| rate.bytes / rate.seconds.max(1.0));
    vec![
        Figure {
            name: "copy",
            title: "time of the copy",
            value: Some(copy),
            unit: "seconds",
            assumes: "bytes of the imported tables and indexes ÷ 40 MiB/s, which is 0.6 of what \
                pg_restore -j 8 reaches on local SSDs"
                .to_owned(),
        },
        Figure {
            name: "pause",
            title: "pause of a caller at the switch",
            value: Some(FENCE_S + open),
            unit: "seconds",
            assumes: format!(
                "0.3 s to close the old tables and to drain the stream + {keys} foreign keys × 0.8 \
                 ms"
            ),
        },
        Figure {
            name: "all_shards_open",
            title: "until all shards are open",
            value: Some(all),
            unit: "seconds",
            assumes: format!(
                "0.3 s + {keys} foreign keys × 0.8 ms × {per_host} shards ÷ {} sessions; \
                 busy shards come first",
                goal.sessions
            ),
        },
        Figure {
            name: "disk",
            title: "disk on all new hosts",
            value: Some(bytes + least),
            unit: "bytes",
            assumes: format!(
                "the bytes of today + a page of 8 KiB for each of {} tables, {indexes} indexes and \
                 {toasts} TOAST indexes in {shards} shards",
                on_shards.len()
            ),
        },
        Figure {
            name: "files",
            title: "files on all new hosts",
            value: Some(files),
            unit: "files",
            assumes: "one for each table, index and TOAST table with its index, in each shard"
                .to_owned(),
        },
        Figure {
            name: "wal_kept",
            title: "WAL that the old server keeps",
            value: wal.map(|rate| rate * copy),
            unit: "bytes",
            assumes: match wal {
                Some(_) => "what pg_stat_wal counts a second since its reset × the time of the \
                    copy; --max-wal will bound it"
                    .to_owned(),
                None => "pg_stat_wal was reset within the last hour".to_owned(),
            },
        },
    ]
}
