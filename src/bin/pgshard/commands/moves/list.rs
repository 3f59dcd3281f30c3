//! Which moves there are, and how far each of their shards is.

use std::collections::BTreeMap;
use std::path::Path;

use pgshard::ShardId;
use pgshard::map::{HostName, print_shards};
use pgshard::mover::{
    DesiredState, Entry, Error, Heard, MoveId, Observer, Options, Phase, ReverseReplication,
    StreamProgress,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::relocate::mover;
use super::audit::{self, ShownAudit};
use super::{Fits, failure, find, unheard};
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output, size};

/// Which moves are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Those that are neither completed nor aborted.
    Open,
    /// All that the journals have.
    All,
}

/// The moves that the hosts know.
pub(crate) async fn list(
    which: Which,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let mover = mover(&config, Options::default(), Observer::silent());
    let Heard {
        found: entries,
        unknown: silent,
        ..
    } = match which {
        Which::Open => mover.list(None).await,
        Which::All => mover.list_all().await,
    };
    let reverse_streams = mover.reverse_streams(entries.iter()).await;
    let moves = ListReport::of(&entries, &reverse_streams);
    if output.format() == Format::Json {
        output.object(moves);
    } else {
        let none = moves.moves.is_empty();
        let columns = [
            ("move", Align::Left),
            ("shards", Align::Left),
            ("from", Align::Left),
            ("to", Align::Left),
            ("phase", Align::Left),
            ("at work", Align::Left),
            ("next", Align::Left),
            ("since", Align::Left),
            ("audit", Align::Left),
            ("back", Align::Left),
            ("WAL kept", Align::Right),
        ];
        let rows = moves.moves.into_iter().map(|m| {
            let kept = m.back_wal_kept.map_or_else(|| "-".to_owned(), size);
            let at_work = if m.at_work.is_empty() {
                "nobody".to_owned()
            } else {
                m.at_work.join("; ")
            };
            let phase = if m.desired == "go" {
                m.phase
            } else {
                format!("{}, {}", m.phase, stands(m.desired))
            };
            [
                m.r#move, m.shards, m.source, m.target, phase, at_work, m.next, m.since, m.audit,
                m.back, kept,
            ]
        });
        output.table(&columns, rows);
        if none && silent.is_empty() {
            output.note(match which {
                Which::Open => "no move is open, none waits for `complete`",
                Which::All => "nothing was ever moved",
            });
        }
    }
    Ok(unheard(&silent, output))
}

/// One move, shard by shard.
pub(crate) async fn show(
    id: Option<&str>,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let mover = mover(&config, Options::default(), Observer::silent());
    let id = find(&mover, id, Fits::Any).await?;
    let Heard {
        found: entries,
        unknown: silent,
        ..
    } = mover.list(Some(id)).await;
    if entries.is_empty() && silent.is_empty() {
        return Err(failure(Error::NoSuchMove { id }));
    }
    if output.format() == Format::Json {
        output.object(ShowReport::about(id, &entries));
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
        ("audit", Align::Left),
        ("back", Align::Left),
        ("at work", Align::Left),
        ("last error", Align::Left),
    ];
    let rows = entries.iter().map(|entry| {
        let pause = entry
            .timings
            .get("pause_ms")
            .and_then(serde_json::Value::as_f64);
        let at_work = entry
            .worker
            .as_ref()
            .map_or_else(|| "nobody".to_owned(), ToString::to_string);
        let phase = match entry.desired {
            desired if desired == DesiredState::Go || entry.phase.is_ended() => {
                entry.phase.to_string()
            }
            desired => format!("{}, {}", entry.phase, stands(desired.as_str())),
        };
        [
            entry.shard.to_string(),
            entry.source.to_string(),
            entry.target.to_string(),
            phase,
            entry.attempt.to_string(),
            entry
                .rows
                .map_or_else(|| "-".to_owned(), |rows| rows.to_string()),
            pause.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1} ms")),
            audit::word(&entry.audit).to_owned(),
            back(entry.reverse.as_ref()),
            at_work,
            entry.last_error.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    });
    output.table(&columns, rows);
    for entry in entries
        .iter()
        .filter(|entry| !entry.audit.to_string().is_empty())
    {
        output.warning(format_args!(
            "shard {}: {}: {}",
            entry.shard,
            audit::word(&entry.audit),
            entry.audit
        ));
    }
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

#[derive(JsonSchema, Serialize)]
pub(crate) struct ListReport {
    pub(in super::super) moves: Vec<Listed>,
}

impl ListReport {
    /// The moves of these entries, by their IDs.
    pub(in super::super) fn of(
        entries: &[Entry],
        reverse_streams: &[StreamProgress],
    ) -> ListReport {
        ListReport {
            moves: grouped(entries)
                .iter()
                .map(|one| Listed::of(one, reverse_streams))
                .collect(),
        }
    }
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Listed {
    pub(in super::super) r#move: String,
    pub(in super::super) shards: String,
    pub(in super::super) source: String,
    pub(in super::super) target: String,
    pub(in super::super) phase: String,
    /// Who works on it, since when, and what it was asked for.
    pub(in super::super) at_work: Vec<String>,
    /// `go`, `hold` or `pause`.
    pub(in super::super) desired: &'static str,
    pub(in super::super) next: String,
    /// When the first shard was claimed.
    pub(in super::super) since: String,
    /// What became of its audit.
    pub(in super::super) audit: String,
    /// Whether a rollback is possible.
    pub(in super::super) back: String,
    /// WAL that the targets keep for it, in bytes; null where there is no slot.
    pub(in super::super) back_wal_kept: Option<u64>,
}

/// How a move that is told to wait is described.
fn stands(desired: &str) -> &'static str {
    if desired == "pause" {
        "paused"
    } else {
        "held before its fences"
    }
}

/// What an operator can do with a move.
fn next(at_work: &[String], desired: DesiredState, least: Phase) -> &'static str {
    match desired {
        _ if least.is_ended() || at_work.is_empty() => least.next(),
        DesiredState::Go => "watch, stop or abort",
        DesiredState::Hold | DesiredState::Pause => "continue, stop or abort",
    }
}

/// The state of a shard's reverse replication in a word.
pub(in super::super) fn back(way: Option<&ReverseReplication>) -> String {
    match way {
        None => "-".to_owned(),
        Some(ReverseReplication {
            lost: Some(why), ..
        }) => format!("lost: {why}"),
        Some(ReverseReplication {
            taken_by: Some(by), ..
        }) => format!("taken by {by}"),
        Some(ReverseReplication { fed: true, .. }) => "open".to_owned(),
        Some(_) => "prepared".to_owned(),
    }
}

impl Listed {
    fn of(entries: &Vec<&Entry>, reverse_streams: &[StreamProgress]) -> Listed {
        // What comes next is decided by the shard that has come the least far.
        let least = entries
            .iter()
            .map(|entry| entry.phase)
            .min()
            .unwrap_or(Phase::Aborted);
        let hosts = |host: fn(&Entry) -> &HostName| {
            let mut names: Vec<&str> = entries.iter().map(|entry| host(entry).as_str()).collect();
            names.sort_unstable();
            names.dedup();
            names.join(",")
        };
        let lost = |entry: &&&Entry| {
            entry
                .reverse
                .as_ref()
                .is_some_and(|back| back.lost.is_some())
        };
        let of_this = |stream: &&StreamProgress| {
            let is = |entry: &&Entry| {
                entry.target == stream.source
                    && entry
                        .reverse
                        .as_ref()
                        .is_some_and(|w| w.stream == stream.slot)
            };
            entries.iter().any(is)
        };
        let slots: Vec<u64> = reverse_streams
            .iter()
            .filter(of_this)
            .map(|stream| stream.kept)
            .collect();
        let back_wal_kept = (!slots.is_empty()).then(|| slots.iter().sum());
        let worst = entries.iter().find(lost).or(entries.first());
        let mut at_work: Vec<String> = entries
            .iter()
            .filter_map(|entry| entry.worker.as_ref().map(ToString::to_string))
            .collect();
        at_work.sort_unstable();
        at_work.dedup();
        let open = entries.iter().filter(|entry| !entry.phase.is_ended());
        let desired = open
            .map(|entry| entry.desired)
            .max_by_key(|desired| desired.as_str().len())
            .unwrap_or_default();
        Listed {
            r#move: entries
                .first()
                .map(|entry| entry.id.to_string())
                .unwrap_or_default(),
            shards: print_shards(entries.iter().map(|entry| entry.shard)),
            source: hosts(|entry| &entry.source),
            target: hosts(|entry| &entry.target),
            phase: least.to_string(),
            next: next(&at_work, desired, least).to_owned(),
            at_work,
            desired: desired.as_str(),
            since: entries
                .iter()
                .map(|entry| entry.created_at)
                .min()
                .map(|at| at.to_string())
                .unwrap_or_default(),
            audit: audit::worst(entries.iter().map(|entry| &entry.audit)).to_owned(),
            back: back(worst.and_then(|entry| entry.reverse.as_ref())),
            back_wal_kept,
        }
    }
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct ShowReport<'a> {
    r#move: String,
    shards: Vec<ShownShard<'a>>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct ShownShard<'a> {
    #[schemars(with = "u16")]
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
    /// Since when, and what it was asked for.
    since: Option<String>,
    asked: Option<&'static str>,
    asked_by: Option<&'a str>,
    desired: &'static str,
    last_error: Option<&'a str>,
    audit: ShownAudit,
    back: String,
    back_of: Option<String>,
    created_at: String,
    updated_at: String,
}

impl ShowReport<'_> {
    /// The move with these entries.
    pub(in super::super) fn about<'a>(
        id: MoveId,
        entries: impl IntoIterator<Item = &'a Entry>,
    ) -> ShowReport<'a> {
        ShowReport {
            r#move: id.to_string(),
            shards: entries.into_iter().map(ShownShard::of).collect(),
        }
    }
}

impl ShownShard<'_> {
    fn of(entry: &Entry) -> ShownShard<'_> {
        let worker = entry.worker.as_ref();
        let stop_request = worker.and_then(|worker| worker.stop_request.as_ref());
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
            holder: worker.map(|worker| worker.holder.as_str()),
            since: worker
                .and_then(|worker| worker.since)
                .map(|since| since.to_string()),
            asked: stop_request.map(|stop_request| stop_request.asked.as_str()),
            asked_by: stop_request.map(|stop_request| stop_request.by.as_str()),
            desired: entry.desired.as_str(),
            last_error: entry.last_error.as_deref(),
            audit: ShownAudit::of(&entry.audit),
            back: back(entry.reverse.as_ref()),
            back_of: entry.back_of.map(|id| id.to_string()),
            created_at: entry.created_at.to_string(),
            updated_at: entry.updated_at.to_string(),
        }
    }
}
