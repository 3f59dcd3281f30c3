//! Random schemas, transactions and fates of movers, round after round, with PostgreSQL as the
//! judge. See `script/test-rows --help`.
//!
//! How a failed round is reported:
//!
//! | outcome | meaning |
//! | --- | --- |
//! | `rows`, `late` | source and target differ: when the shard opened, or later, by a write past the fence |
//! | `definition` | the shard's definition changed, or its two copies differ in it |
//! | `sequences` | a sequence went back, ran far ahead, or lost values |
//! | `log` | an acknowledged transaction is missing, or one that was rolled back is there |
//! | `application` | a statement failed without a reason of its own, while its shard was served |
//! | `differs` | the mover's own comparison failed (exit code 6) |
//! | `move`, `stuck`, `unserved` | a move failed or does not end without an obstacle; or no host serves a shard |
//! | `feed` | without writers, an old copy does not catch up with its shard |
//! | `left`, `places` | after `complete` and `gc` something of a move is left, or hosts and map contradict |
//! | `two serve`, `panic` | two hosts serve a shard; a process panicked |
//! | `schema` | the generated schema is refused: a mistake of the generator |
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "what the tests share is more than this needs"
)]

mod alter;
mod compare;
mod definition;
mod fates;
mod overseer;
mod reader;
mod round;
mod schema;
mod state;
mod statements;
mod values;
mod words;
mod work;

#[macro_use]
#[path = "../it/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use round::{Outcome, round};
use state::Case;
use words::Words;

const HELP: &str =
    "script/test-rows [--seed S] [--minutes M] [--rounds N] [--versions 15-18] [--moves N] \
        [--sessions N]
    [--tables 0,3] [--without KIND,…] [--log FILE] [--shrink MINUTES] [--keep-going] [--schema]

Each seed is one round: a schema, a workload, some moves and what becomes of them. Rounds go on \
from seed to seed, and
from one pair of versions to the next where none is named, until the minutes are over. A round \
that fails prints the
command that does it again, and is shrunk: fewer tables, sessions, kinds of statements and fates. \
--schema, as the last
word, prints the round's tables.";

struct Asked {
    case: Case,
    versions: Option<[u32; 2]>,
    minutes: Option<f64>,
    rounds: Option<usize>,
    log: Option<String>,
    shrink: f64,
    keep_going: bool,
}

fn asked() -> Result<Asked, String> {
    let seed = words::seed();
    let case = Case {
        seed,
        versions: [15, 15],
        moves: 6,
        sessions: None,
        tables: None,
        without: BTreeSet::new(),
    };
    let mut asked = Asked {
        case,
        versions: None,
        minutes: None,
        rounds: None,
        log: None,
        shrink: 0.0,
        keep_going: false,
    };
    let mut words = Words::of_process();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--schema" => {
                let case = &asked.case;
                println!(
                    "{}",
                    schema::Schema::generate(case.seed, case.tables.as_deref(), &case.without)
                        .sql()
                );
                std::process::exit(0);
            }
            "--keep-going" => asked.keep_going = true,
            "--seed" => asked.case.seed = words.value(&word)?,
            "--minutes" => asked.minutes = Some(words.value(&word)?),
            "--rounds" => asked.rounds = Some(words.value(&word)?),
            "--moves" => asked.case.moves = words.value(&word)?,
            "--sessions" => asked.case.sessions = Some(words.value(&word)?),
            "--shrink" => asked.shrink = words.value(&word)?,
            "--log" => asked.log = Some(words.value(&word)?),
            "--without" => asked.case.without.extend(words.values::<String>(&word)?),
            "--tables" => asked.case.tables = Some(words.values(&word)?),
            "--versions" => {
                let value: String = words.value(&word)?;
                let pair: Vec<u32> = value
                    .split('-')
                    .filter_map(|version| version.parse().ok())
                    .collect();
                asked.versions = Some(
                    pair.try_into()
                        .map_err(|_| format!("--versions {value}: not like 15-18"))?,
                );
            }
            _ => return Err(format!("{word} is not known")),
        }
    }
    Ok(asked)
}

/// Each pair once, if none is requested.
const PAIRS: [[u32; 2]; 4] = [[15, 18], [18, 18], [18, 15], [15, 15]];

/// Plays a case, prints its result, and logs it.
async fn play(case: &Case, log: Option<&str>, quiet: bool) -> Outcome {
    let outcome = round(case).await;
    let counts = &outcome.counts;
    let number = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let verdict = outcome
        .failure
        .as_ref()
        .map_or("ok".to_owned(), |failure| failure.kind.to_owned());
    let line = format!(
        "{}\t{}-{}\t{:.2}\t{}\t{}\t{}\t{}\t{}\t{}\t{verdict}",
        case.seed,
        case.versions[0],
        case.versions[1],
        outcome.seconds / 60.0,
        number(&counts.transactions),
        number(&counts.moves),
        number(&counts.compared),
        number(&counts.kills),
        number(&counts.restarts),
        outcome.tables,
    );
    if !quiet {
        println!(
            "seed {:>9}  {}-{}  {:>5.1} s  {:>6} transactions ({} errors, {} refused)  {} moves, \
                {} compared  {} \
             tables  {verdict}",
            case.seed,
            case.versions[0],
            case.versions[1],
            outcome.seconds,
            number(&counts.transactions),
            number(&counts.errors),
            number(&counts.refused),
            number(&counts.moves),
            number(&counts.compared),
            outcome.tables
        );
    }
    if let Some(path) = log {
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path);
        let _ = file.and_then(|mut file| writeln!(file, "{line}"));
    }
    outcome
}

/// Whether the case fails in the same way in one of some tries.
async fn fails(case: &Case, kind: &str, tries: usize) -> bool {
    for _ in 0..tries {
        if play(case, None, true)
            .await
            .failure
            .is_some_and(|failure| failure.kind == kind)
        {
            return true;
        }
    }
    false
}

/// Leaves out what the failure does not need, for this long.
async fn shrink(case: &Case, kind: &str, until: Instant) -> Case {
    let mut least = case.clone();
    let tables = schema::Schema::generate(case.seed, None, &case.without)
        .tables
        .len();
    let mut left: Vec<usize> = case.tables.clone().unwrap_or_else(|| (0..tables).collect());
    let mut part = left.len().div_ceil(2);
    while part > 0 && left.len() > 1 && Instant::now() < until {
        let mut changed = false;
        for chunk in left.clone().chunks(part) {
            let rest: Vec<usize> = left
                .iter()
                .copied()
                .filter(|table| !chunk.contains(table))
                .collect();
            let next = Case {
                tables: Some(rest.clone()),
                ..least.clone()
            };
            if !rest.is_empty() && Instant::now() < until && fails(&next, kind, 3).await {
                println!("  still with tables {rest:?}");
                (least, left, changed) = (next, rest, true);
            }
        }
        part = if changed {
            part.min(left.len())
        } else {
            part / 2
        };
    }
    let others = [
        "feed",
        "router",
        "prepared",
        "long",
        "blocking",
        "group",
        "rollback",
        "vacuum",
        "full",
        "reindex",
        "concurrently",
    ];
    let kinds = others
        .into_iter()
        .chain(schema::FEATURES)
        .chain(fates::FATES.map(|f| f.0))
        .chain(alter::ALTERATIONS.map(|a| a.0))
        .chain(statements::KINDS.map(|k| k.0));
    for kind_left_out in kinds {
        let mut next = least.clone();
        next.without.insert(kind_left_out.to_owned());
        if Instant::now() < until && fails(&next, kind, 2).await {
            println!("  still without {kind_left_out}");
            least = next;
        }
    }
    for sessions in [1, 2, 3] {
        let next = Case {
            sessions: Some(sessions),
            ..least.clone()
        };
        if Instant::now() < until && fails(&next, kind, 3).await {
            println!("  still with {sessions} sessions");
            least = next;
            break;
        }
    }
    least
}

#[tokio::main(flavor = "multi_thread", worker_threads = 4)]
async fn main() {
    let asked = asked().unwrap_or_else(|error| {
        println!("{error}\n{HELP}");
        std::process::exit(2);
    });
    let begun = Instant::now();
    let over = |rounds: usize| {
        asked
            .minutes
            .is_some_and(|minutes| begun.elapsed() > Duration::from_secs_f64(minutes * 60.0))
            || asked.rounds.is_some_and(|wanted| rounds >= wanted)
            || asked.minutes.is_none() && asked.rounds.is_none() && rounds >= 1
    };
    let (mut case, mut rounds, mut failures) = (asked.case.clone(), 0, 0);
    while !over(rounds) {
        case.versions = asked.versions.unwrap_or(PAIRS[rounds % PAIRS.len()]);
        let outcome = play(&case, asked.log.as_deref(), false).await;
        rounds += 1;
        if let Some(failure) = outcome.failure {
            failures += 1;
            for line in outcome.story.iter().rev().take(40).rev() {
                println!("  | {line}");
            }
            println!(
                "FAILED ({}): {}\n  again: script/test-rows {}",
                failure.kind,
                failure.text,
                case.words()
            );
            if asked.shrink > 0.0 {
                let least = shrink(
                    &case,
                    failure.kind,
                    Instant::now() + Duration::from_secs_f64(asked.shrink * 60.0),
                )
                .await;
                println!("  least: script/test-rows {}", least.words());
            }
            if !asked.keep_going {
                break;
            }
        }
        case.seed += 1;
    }
    println!(
        "{rounds} rounds, {failures} failures, {:.1} minutes",
        begun.elapsed().as_secs_f64() / 60.0
    );
    std::process::exit(i32::from(failures > 0));
}
