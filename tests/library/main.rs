//! Random programs of calls over servers that fail, round after round. See
//! `script/test-library --help`.
//!
//! How a failed round is reported:
//!
//! | outcome | meaning |
//! | --- | --- |
//! | `lost`, `twice` | an acknowledged row is missing, or is there twice |
//! | `ghost` | a row is there although its call reported that it did not run |
//! | `half` | of rows that belong together only some are there |
//! | `foreign` | a caller got another caller's answer or session state |
//! | `late` | a call took far longer than its limit |
//! | `goes on` | a dropped statement still runs on its server ten seconds later |
//! | `neighbour` | in a call over many shards a slow shard failed another one |
//! | `connections` | a host had more connections than its pool for a second |
//! | `left` | without callers, a statement, transaction, lock or connection is left on a server |
//! | `untrue` | the error of a mistake reports that another try is safe, that a connection was lost, or that what was not sent may have run |
//! | `mistake` | a call with a mistake succeeded |
//! | `panic` | a call panicked |
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "what the tests share is more than this needs"
)]

#[path = "../it/router/by_hand.rs"]
mod by_hand;
mod caller;
mod case;
mod fates;
mod limits;
mod mistakes;
#[path = "../it/router/pooler.rs"]
mod pooler;
mod round;
#[path = "../rows/words.rs"]
mod words;

#[macro_use]
#[path = "../it/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use case::Case;
use round::{Outcome, round};
use support::proxy;
use words::Words;

const HELP: &str = "script/test-library [--seed S] [--minutes M] [--version 15|18] [--callers N] \
    [--steps N]
    [--without KIND,…] [--shrink MINUTES]

Each seed is one round: callers with a program each, and what befalls their servers meanwhile. \
Rounds go on from seed to
seed until the minutes are over. A round that fails prints its story and the command that does it \
again; with --shrink
it is tried with fewer callers, steps and kinds.";

struct Asked {
    case: Case,
    version: Option<u32>,
    minutes: f64,
    shrink: f64,
}

fn asked() -> Result<Asked, String> {
    let case = Case {
        seed: words::seed(),
        version: 15,
        callers: 6,
        steps: 40,
        without: BTreeSet::new(),
    };
    let mut asked = Asked {
        case,
        version: None,
        minutes: 0.0,
        shrink: 0.0,
    };
    let mut words = Words::of_process();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seed" => asked.case.seed = words.value(&word)?,
            "--minutes" => asked.minutes = words.value(&word)?,
            "--version" => asked.version = Some(words.value(&word)?),
            "--callers" => asked.case.callers = words.value(&word)?,
            "--steps" => asked.case.steps = words.value(&word)?,
            "--shrink" => asked.shrink = words.value(&word)?,
            "--without" => asked.case.without.extend(words.values::<String>(&word)?),
            _ => return Err(format!("{word} is not known")),
        }
    }
    Ok(asked)
}

async fn play(case: &Case) -> Outcome {
    let outcome = round(case).await;
    let verdict = outcome
        .failure
        .as_ref()
        .map_or("ok", |failure| failure.kind);
    let [done, undone, either] = outcome.counts;
    println!(
        "seed {:>9}  {}  {:>5.1} s  {done} rows there, {undone} not, {either} in doubt  {} fates  \
            {verdict}",
        case.seed,
        case.version,
        outcome.seconds,
        outcome.story.len() - 1
    );
    outcome
}

/// Leaves out what the failure does not need, for this long.
async fn shrink(case: &Case, kind: &str, until: Instant) -> Case {
    let mut least = case.clone();
    let smaller = |least: &Case| {
        let kinds = caller::STEPS
            .iter()
            .chain(&fates::FATES)
            .chain(&["drop", "pooler"]);
        let without = kinds
            .filter(|kind| !least.without.contains(**kind))
            .map(|kind| {
                let mut next = least.clone();
                next.without.insert((*kind).to_owned());
                next
            });
        let fewer = Case {
            callers: least.callers.div_ceil(2),
            ..least.clone()
        };
        let shorter = Case {
            steps: least.steps.div_ceil(2),
            ..least.clone()
        };
        [fewer, shorter]
            .into_iter()
            .chain(without)
            .collect::<Vec<Case>>()
    };
    let mut changed = true;
    while changed {
        changed = false;
        for next in smaller(&least) {
            let has_steps = !next.of_these(&caller::STEPS).is_empty();
            if next.words() == least.words() || !has_steps || Instant::now() >= until {
                continue;
            }
            // It may fail only by chance.
            for _ in 0..3 {
                if play(&next)
                    .await
                    .failure
                    .is_some_and(|failure| failure.kind == kind)
                {
                    println!("  still with {}", next.words());
                    (least, changed) = (next, true);
                    break;
                }
            }
            if changed {
                break;
            }
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
    let (mut case, mut rounds) = (asked.case.clone(), 0);
    loop {
        case.version = asked.version.unwrap_or([15, 18][rounds % 2]);
        let outcome = play(&case).await;
        rounds += 1;
        if let Some(failure) = outcome.failure {
            outcome.story.iter().for_each(|line| println!("  | {line}"));
            println!(
                "FAILED ({}): {}\n  again: script/test-library {}",
                failure.kind,
                failure.text,
                case.words()
            );
            if asked.shrink > 0.0 {
                let until = Instant::now() + Duration::from_secs_f64(asked.shrink * 60.0);
                println!(
                    "  least: script/test-library {}",
                    shrink(&case, failure.kind, until).await.words()
                );
            }
            std::process::exit(1);
        }
        if begun.elapsed() >= Duration::from_secs_f64(asked.minutes * 60.0) {
            println!(
                "{rounds} rounds, no failure, {:.1} minutes",
                begun.elapsed().as_secs_f64() / 60.0
            );
            return;
        }
        case.seed += 1;
    }
}
