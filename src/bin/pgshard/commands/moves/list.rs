//! Which moves there are, and how far each of their shards is.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use pgshard::ShardId;
use pgshard::map::{HostName, print_shards};
use pgshard::mover::{
    DesiredState, Entry, Error, MoveId, Observer, Options, PartialAnswer, Phase,
    ReverseReplication, StreamProgress,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::audit::{self, ShownAudit};
use super::{Fits, READING, failure, find, unread};
use crate::context;
use crate::context::mover;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output, Rank, Width, age, cut, cut_list, size};

/// Which moves are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Those that are neither completed nor aborted.
    Open,
    /// All that the journals have.
    All,
}

/// The columns of a list of moves. The first eight fit 80 columns with usual names.
const COLUMNS: [(&str, Align, Rank); 11] = [
    ("move", Align::Left, Rank::Stays),
    ("shards", Align::Left, Rank::Stays),
    ("from", Align::Left, Rank::Stays),
    ("to", Align::Left, Rank::Stays),
    ("phase", Align::Left, Rank::Stays),
    ("age", Align::Right, Rank::Goes(1)),
    ("next", Align::Left, Rank::Goes(0)),
    ("at work", Align::Left, Rank::Goes(2)),
    ("back", Align::Left, Rank::Goes(3)),
    ("audit", Align::Left, Rank::Goes(4)),
    ("WAL kept", Align::Right, Rank::Goes(5)),
];

/// The most characters of a list of shards, and of who is at work, in a table that is not `--wide`.
const CELL_MAX: usize = 20;

/// How many digits of an ID are shown at least.
const DIGITS_MIN: usize = 8;

/// The moves that the hosts know.
pub(crate) async fn list(
    which: Which,
    width: Width,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let mover = mover(&config, Options::default(), Observer::silent());
    let PartialAnswer {
        found: entries,
        unknown: silent,
        ..
    } = match which {
        Which::Open => output.waiting(READING, mover.list(None)).await,
        Which::All => output.waiting(READING, mover.list_all()).await,
    };
    let streams = mover.reverse_streams(entries.iter());
    let reverse_streams = output.waiting(READING, streams).await;
    let moves = ListReport::of(&entries, &reverse_streams);
    if output.format() == Format::Json {
        output.object(moves);
    } else {
        let none = moves.moves.is_empty();
        let ids: Vec<&str> = moves.moves.iter().map(|one| one.r#move.as_str()).collect();
        let digits = digits(&ids);
        let rows = moves.moves.iter().map(|one| match width {
            Width::Whole => one.whole(),
            Width::Fitted => one.brief(digits, Timestamp::now()),
        });
        let columns = COLUMNS.map(|column| match column {
            // A time for programs, and for people how long ago that was.
            ("age", align, rank) if width == Width::Whole => ("since", align, rank),
            column => column,
        });
        output.fitted_table(&columns, rows, width);
        if none && silent.is_empty() {
            output.note(match which {
                Which::Open => "no move is open, none waits for `complete`",
                Which::All => "nothing was ever moved",
            });
        }
    }
    Ok(unread(&silent, output))
}

/// One move, shard by shard.
pub(crate) async fn show(
    id: Option<&str>,
    width: Width,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let mover = mover(&config, Options::default(), Observer::silent());
    let id = output.waiting(READING, find(&mover, id, Fits::Any)).await?;
    let PartialAnswer {
        found: entries,
        unknown: silent,
        ..
    } = output.waiting(READING, mover.list(Some(id))).await;
    if entries.is_empty() && silent.is_empty() {
        return Err(failure(Error::NoSuchMove { id }));
    }
    if output.format() == Format::Json {
        output.object(ShowReport::about(id, &entries));
        return Ok(unread(&silent, output));
    }
    let columns = [
        ("shard", Align::Right, Rank::Stays),
        ("from", Align::Left, Rank::Stays),
        ("to", Align::Left, Rank::Stays),
        ("phase", Align::Left, Rank::Stays),
        ("attempt", Align::Right, Rank::Goes(4)),
        ("copied", Align::Right, Rank::Goes(3)),
        ("pause", Align::Right, Rank::Goes(2)),
        ("audit", Align::Left, Rank::Goes(1)),
        ("back", Align::Left, Rank::Goes(5)),
        ("at work", Align::Left, Rank::Goes(6)),
        ("last error", Align::Left, Rank::Goes(7)),
    ];
    let rows = entries.iter().map(|entry| {
        let pause = entry
            .timings
            .get("pause_ms")
            .and_then(serde_json::Value::as_f64);
        let at_work = entry
            .worker
            .as_ref()
            .map_or_else(|| "-".to_owned(), ToString::to_string);
        let phase = match entry.desired {
            desired if desired == DesiredState::Run || entry.phase.is_ended() => {
                entry.phase.to_string()
            }
            desired => format!("{}, {}", entry.phase, stands(desired.as_str())),
        };
        vec![
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
    let left_out = output.fitted_table(&columns, rows, width);
    if left_out.contains(&"last error") {
        for entry in &entries {
            if let Some(error) = &entry.last_error {
                output.note(format_args!("shard {}: last error: {error}", entry.shard));
            }
        }
    }
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
    Ok(unread(&silent, output))
}

/// How many characters of these IDs distinguish them. Moves that began within a minute have the
/// first eight in common.
fn digits(ids: &[&str]) -> usize {
    let common = |(one, other): (&&str, &&str)| {
        let same = one.chars().zip(other.chars());
        same.take_while(|(a, b)| a == b).count() + 1
    };
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let most = sorted.iter().zip(sorted.iter().skip(1)).map(common).max();
    most.unwrap_or(0).max(DIGITS_MIN)
}

impl MoveListing {
    /// Its row in a table that fits a terminal.
    fn brief(&self, digits: usize, now: Timestamp) -> Vec<String> {
        let mut row = self.whole();
        row[0] = self.r#move.chars().take(digits).collect();
        row[1] = cut_list(&self.shards, CELL_MAX);
        if self.desired != "go" {
            let waits = if self.desired == "pause" {
                "paused"
            } else {
                "held"
            };
            row[4] = format!("{}, {waits}", self.phase);
        }
        row[5] = self.since.parse::<Timestamp>().map_or_else(
            |_| "-".to_owned(),
            |since| age(now.duration_since(since).unsigned_abs()),
        );
        row[7] = cut(&row[7], CELL_MAX);
        // Why a rollback is lost, or what has taken it, is in `moves show`.
        row[8] = self
            .back
            .split([':', ' '])
            .next()
            .unwrap_or_default()
            .to_owned();
        row
    }

    /// Its row with all that is known.
    fn whole(&self) -> Vec<String> {
        let at_work = if self.at_work.is_empty() {
            "-".to_owned()
        } else {
            self.at_work.join("; ")
        };
        let phase = if self.desired == "go" {
            self.phase.clone()
        } else {
            format!("{}, {}", self.phase, stands(self.desired))
        };
        vec![
            self.r#move.clone(),
            self.shards.clone(),
            self.source.clone(),
            self.target.clone(),
            phase,
            self.since.clone(),
            self.next.clone(),
            at_work,
            self.back.clone(),
            self.audit.clone(),
            self.back_wal_kept.map_or_else(|| "-".to_owned(), size),
        ]
    }
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
    pub(in super::super) moves: Vec<MoveListing>,
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
                .map(|one| MoveListing::of(one, reverse_streams))
                .collect(),
        }
    }
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct MoveListing {
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

/// How a move is described that an operator has held or paused.
fn stands(desired: &str) -> &'static str {
    if desired == "pause" {
        "paused"
    } else {
        "held before its fences"
    }
}

/// What comes next for shards of this phase, of which a rollback can take one back, or not.
pub(in super::super) fn what_next(phase: Phase, can_be_taken_back: bool) -> &'static str {
    match (phase, can_be_taken_back) {
        (Phase::Kept, false) => "complete",
        (phase, _) => phase.next(),
    }
}

/// Whether a rollback can take the shard back, once it is kept.
pub(in super::super) fn can_be_taken_back(entry: &Entry) -> bool {
    let reverse = entry.reverse.as_ref();
    reverse.is_some_and(ReverseReplication::is_open)
}

/// What an operator can do with a move.
fn next(
    at_work: &[String],
    desired: DesiredState,
    least: Phase,
    can_be_taken_back: bool,
) -> &'static str {
    match desired {
        _ if least.is_ended() || at_work.is_empty() => what_next(least, can_be_taken_back),
        DesiredState::Run => "watch, stop or abort",
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

impl MoveListing {
    fn of(entries: &Vec<&Entry>, reverse_streams: &[StreamProgress]) -> MoveListing {
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
        MoveListing {
            r#move: entries
                .first()
                .map(|entry| entry.id.to_string())
                .unwrap_or_default(),
            shards: print_shards(entries.iter().map(|entry| entry.shard)),
            source: hosts(|entry| &entry.source),
            target: hosts(|entry| &entry.target),
            phase: least.to_string(),
            next: next(
                &at_work,
                desired,
                least,
                entries.iter().any(|entry| can_be_taken_back(entry)),
            )
            .to_owned(),
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
    /// Rows that were copied; what came by the stream is not counted.
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
            next: what_next(entry.phase, can_be_taken_back(entry)),
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
            back_of: entry.rollback_of.map(|id| id.to_string()),
            created_at: entry.created_at.to_string(),
            updated_at: entry.updated_at.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::fitted;

    fn listed(id: &str, desired: &'static str) -> MoveListing {
        MoveListing {
            r#move: id.to_owned(),
            shards: "0-511, 600, 602, 604, 1000-1023".to_owned(),
            source: "db1".to_owned(),
            target: "db2".to_owned(),
            phase: "ready".to_owned(),
            at_work: vec!["operator-7.example.org:12345 since 2026-11-27T18:00:00Z".to_owned()],
            desired,
            next: "continue, stop or abort".to_owned(),
            since: "2026-11-27T18:00:00.123456Z".to_owned(),
            audit: "not audited".to_owned(),
            back: "lost: its slot kept more WAL than it may".to_owned(),
            back_wal_kept: Some(5 << 30),
        }
    }

    /// The whole is far wider than any terminal; what is shown fits, and still has the move.
    #[test]
    fn a_list_fits_terminals() {
        let ids = [
            "019e2c0a-7b3f-7000-8000-000000000001",
            "019e2c0a-7c00-7000-8000-000000000002",
        ];
        let all = [listed(ids[0], "go"), listed(ids[1], "hold")];
        let now = "2026-11-27T20:00:00Z".parse().unwrap();
        let digits = digits(&ids);
        assert_eq!(digits, 11);
        for columns in [80, 100, 160] {
            let rows: Vec<_> = all.iter().map(|one| one.brief(digits, now)).collect();
            let (table, _) = fitted(&COLUMNS, &rows, Some(columns));
            let width = table.lines().map(|line| line.chars().count()).max();
            assert!(width <= Some(columns), "{columns}: {table}");
            assert!(
                table.contains("019e2c0a-7b ") && table.contains("ready, held"),
                "{table}"
            );
            assert!(columns == 80 || table.contains("1 h"), "{table}");
        }
        let whole = all[0].whole().join(" ");
        assert!(
            whole.contains(ids[0]) && whole.contains("lost: its slot"),
            "{whole}"
        );
    }

    #[test]
    fn ids_are_as_long_as_they_must_be() {
        assert_eq!(digits(&[]), 8);
        assert_eq!(digits(&["019e2c0a-7b3f", "019e2c0a-7b3f"]), 8);
        assert_eq!(digits(&["019e2c0a-7b3f", "029e2c0a-7b3f"]), 8);
        assert_eq!(digits(&["019e2c0a-7b3f", "019e2c0a-7b3e", "5"]), 13);
    }
}
