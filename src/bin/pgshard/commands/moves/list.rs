//! Which moves there are, and how far each of their shards is.

use std::collections::BTreeMap;
use std::path::Path;

use pgshard::ShardId;
use pgshard::map::{HostName, print_shards};
use pgshard::mover::{Entry, Error, MoveId, Observer, Options, Phase, StreamProgress, WayBack};
use serde::Serialize;

use super::super::relocate::mover;
use super::{failure, the_move, unheard};
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output, size};

/// Every move that is neither completed nor aborted.
pub(crate) async fn list(config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let mover = mover(&config, Options::default(), Observer::silent());
    let (entries, silent) = mover.list(None).await;
    let ways_back = mover.ways_back(entries.iter()).await;
    let moves = grouped(&entries);
    let listed = |entries| Listed::of(entries, &ways_back);
    if output.format() == Format::Json {
        output.object(ListReport { moves: moves.iter().map(listed).collect() })?;
    } else {
        let columns = [
            ("move", Align::Left),
            ("shards", Align::Left),
            ("from", Align::Left),
            ("to", Align::Left),
            ("phase", Align::Left),
            ("next", Align::Left),
            ("since", Align::Left),
            ("back", Align::Left),
            ("WAL kept", Align::Right),
        ];
        let rows = moves.iter().map(listed).map(|m| {
            let kept = m.back_wal_kept.map_or_else(|| "-".to_owned(), size);
            [m.r#move, m.shards, m.source, m.target, m.phase, m.next, m.since, m.back, kept]
        });
        output.table(&columns, rows)?;
        if moves.is_empty() && silent.is_empty() {
            output.note("no move is open, none waits for `complete`");
        }
    }
    Ok(unheard(&silent, output))
}

/// One move, shard by shard.
pub(crate) async fn show(id: Option<&str>, config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let mover = mover(&config, Options::default(), Observer::silent());
    let id = the_move(&mover, id, |_| true).await?;
    let (entries, silent) = mover.list(Some(id)).await;
    if entries.is_empty() && silent.is_empty() {
        return Err(failure(Error::NoSuchMove { id }));
    }
    if output.format() == Format::Json {
        output.object(ShowReport { r#move: id.to_string(), shards: entries.iter().map(ShownShard::of).collect() })?;
        return Ok(unheard(&silent, output));
    }
    let columns = [
        ("shard", Align::Right),
        ("from", Align::Left),
        ("to", Align::Left),
        ("phase", Align::Left),
        ("attempt", Align::Right),
        ("rows", Align::Right),
        ("pause", Align::Right),
        ("back", Align::Left),
        ("holder", Align::Left),
        ("last error", Align::Left),
    ];
    let rows = entries.iter().map(|entry| {
        let pause = entry.timings.get("pause_ms").and_then(serde_json::Value::as_f64);
        let held = if entry.lease_left.is_zero() { "-".to_owned() } else { entry.holder.clone() };
        [
            entry.shard.to_string(),
            entry.source.to_string(),
            entry.target.to_string(),
            entry.phase.to_string(),
            entry.attempt.to_string(),
            entry.rows.map_or_else(|| "-".to_owned(), |rows| rows.to_string()),
            pause.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1} ms")),
            back(entry.way_back.as_ref()),
            held,
            entry.last_error.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    });
    output.table(&columns, rows)?;
    Ok(unheard(&silent, output))
}

/// The entries of each move.
fn grouped(entries: &[Entry]) -> Vec<Vec<&Entry>> {
    let mut moves: BTreeMap<MoveId, Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        moves.entry(entry.id).or_default().push(entry);
    }
    moves.into_values().collect()
}

#[derive(Serialize)]
struct ListReport {
    moves: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    r#move: String,
    shards: String,
    source: String,
    target: String,
    phase: String,
    next: String,
    /// When the first shard was claimed.
    since: String,
    /// Whether a rollback is possible.
    back: String,
    /// WAL that the targets keep for it, in bytes; null where there is no slot.
    back_wal_kept: Option<u64>,
}

/// The way back in a word: what it is of the worst shard is told.
fn back(way: Option<&WayBack>) -> String {
    match way {
        None => "-".to_owned(),
        Some(WayBack { lost: Some(why), .. }) => format!("lost: {why}"),
        Some(WayBack { taken_by: Some(by), .. }) => format!("taken by {by}"),
        Some(WayBack { fed: true, .. }) => "open".to_owned(),
        Some(_) => "prepared".to_owned(),
    }
}

impl Listed {
    fn of(entries: &Vec<&Entry>, ways_back: &[StreamProgress]) -> Listed {
        // What comes next is decided by the shard that is least far.
        let least = entries.iter().map(|entry| entry.phase).min().unwrap_or(Phase::Aborted);
        let hosts = |host: fn(&Entry) -> &HostName| {
            let mut names: Vec<&str> = entries.iter().map(|entry| host(entry).as_str()).collect();
            names.sort_unstable();
            names.dedup();
            names.join(",")
        };
        let lost = |entry: &&&Entry| entry.way_back.as_ref().is_some_and(|back| back.lost.is_some());
        let of_this = |of: &&StreamProgress| {
            let is = |entry: &&Entry| {
                entry.target == of.source && entry.way_back.as_ref().is_some_and(|w| w.stream == of.slot)
            };
            entries.iter().any(is)
        };
        let slots: Vec<u64> = ways_back.iter().filter(of_this).map(|of| of.kept).collect();
        let back_wal_kept = (!slots.is_empty()).then(|| slots.iter().sum());
        let worst = entries.iter().find(lost).or(entries.first());
        Listed {
            r#move: entries.first().map(|entry| entry.id.to_string()).unwrap_or_default(),
            shards: print_shards(entries.iter().map(|entry| entry.shard)),
            source: hosts(|entry| &entry.source),
            target: hosts(|entry| &entry.target),
            phase: least.to_string(),
            next: least.next().to_owned(),
            since: entries.iter().map(|entry| entry.created_at).min().map(|at| at.to_string()).unwrap_or_default(),
            back: back(worst.and_then(|entry| entry.way_back.as_ref())),
            back_wal_kept,
        }
    }
}

#[derive(Serialize)]
struct ShowReport<'a> {
    r#move: String,
    shards: Vec<ShownShard<'a>>,
}

#[derive(Serialize)]
struct ShownShard<'a> {
    shard: ShardId,
    source: &'a str,
    target: &'a str,
    phase: &'static str,
    next: &'static str,
    attempt: i32,
    rows: Option<i64>,
    bytes: Option<i64>,
    timings: &'a serde_json::Value,
    holder: Option<&'a str>,
    last_error: Option<&'a str>,
    back: String,
    back_of: Option<String>,
    created_at: String,
    updated_at: String,
}

impl ShownShard<'_> {
    fn of(entry: &Entry) -> ShownShard<'_> {
        ShownShard {
            shard: entry.shard,
            source: entry.source.as_str(),
            target: entry.target.as_str(),
            phase: entry.phase.as_str(),
            next: entry.phase.next(),
            attempt: entry.attempt,
            rows: entry.rows,
            bytes: entry.bytes,
            timings: &entry.timings,
            holder: (!entry.lease_left.is_zero()).then_some(entry.holder.as_str()),
            last_error: entry.last_error.as_deref(),
            back: back(entry.way_back.as_ref()),
            back_of: entry.back_of.map(|id| id.to_string()),
            created_at: entry.created_at.to_string(),
            updated_at: entry.updated_at.to_string(),
        }
    }
}
