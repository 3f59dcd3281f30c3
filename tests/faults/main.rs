//! Every fault at every place of an online move, and what is done about it; fifty moves to and fro; five hundred shards at
//! once. Prints a line a combination that fails, and a table of all. Words choose: `kill source target reset sleep`,
//! `resume abort`, `15-18 18-15`, `to-and-fro`, `wave`; without words, all.
#![allow(dead_code, unused_imports, unused_macros, reason = "what the tests share is more than this needs")]

#[macro_use]
#[path = "../it/support/mod.rs"]
mod support;

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use futures_util::{FutureExt, StreamExt, stream};

use support::faults::{Fault, Verb, combine, places};
use support::soak::{ping_pong, wave};
use support::{World, Writers};

const FAULTS: [(&str, Fault); 5] = [
    ("kill", Fault::Kill),
    ("source", Fault::Source),
    ("target", Fault::Target),
    ("reset", Fault::Reset),
    ("sleep", Fault::Sleep),
];
const VERBS: [(&str, Verb); 2] = [("resume", Verb::Resume), ("abort", Verb::Abort)];
const PAIRS: [(&str, [u32; 2]); 2] = [("15-18", [15, 18]), ("18-15", [18, 15])];

/// What was asked for.
struct Words(Vec<String>);

impl Words {
    /// Whether one of these was, or none of their kind.
    fn chosen(&self, word: &str, kind: &[&str]) -> bool {
        let of_kind = |word: &String| kind.contains(&word.as_str());
        self.0.iter().any(|asked| asked == word) || !self.0.iter().any(of_kind)
    }
}

fn panicked(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// One fault at all places in one world. Gives how many combinations failed, of how many.
async fn row(versions: [u32; 2], fault: Fault, verb: Verb) -> (usize, usize) {
    let places = places();
    let shards = (2 * places.len() as u16).next_multiple_of(4);
    let world = World::new(&versions, shards).await;
    let crashes = matches!(fault, Fault::Source | Fault::Target);
    let writers = if crashes { Writers::start(&world, 3).await } else { Writers::start_all(&world, 3).await };
    // A crash, or a reset, concerns all movers.
    let beside = if matches!(fault, Fault::Kill | Fault::Sleep) { 3 } else { 1 };
    let outcomes: Vec<bool> = stream::iter(places.iter().enumerate())
        .map(|(at, place)| {
            let (world, first) = (&world, 2 * at as u16);
            async move {
                // One shard of every second place: the last one of a move has nobody to wait for.
                let pair = [first, first + 1];
                let shards = if at % 2 == 0 { &pair[..] } else { &pair[..1] };
                let outcome = AssertUnwindSafe(combine(world, shards, place, fault, verb)).catch_unwind().await;
                if let Err(panic) = &outcome {
                    println!("FAILED {versions:?} {fault:?} {verb:?} at {place:?}: see above");
                    let _ = panic;
                }
                outcome.is_err()
            }
        })
        .buffer_unordered(beside)
        .collect()
        .await;
    let failed = outcomes.iter().filter(|failed| **failed).count();
    let notes = writers.stop().await;
    let audit = async {
        let notes = if fault == Fault::Kill { notes.flawless() } else { notes.tolerably() };
        world.audit_rows(notes).await;
    };
    let audited = AssertUnwindSafe(audit).catch_unwind().await.is_ok();
    if !audited {
        println!("FAILED {versions:?} {fault:?} {verb:?}: the audit of the rows");
    }
    (failed + usize::from(!audited), outcomes.len())
}

#[tokio::main]
async fn main() {
    let words = Words(std::env::args().skip(1).collect());
    let all: Vec<&str> = FAULTS.map(|f| f.0).into_iter().chain(["to-and-fro", "wave"]).collect();
    let (mut failures, mut combinations) = (0, 0);
    for (pair, versions) in PAIRS {
        if !words.chosen(pair, &PAIRS.map(|pair| pair.0)) {
            continue;
        }
        for (name, fault) in FAULTS {
            for (verb_name, verb) in VERBS {
                if words.chosen(name, &all) && words.chosen(verb_name, &VERBS.map(|verb| verb.0)) {
                    let begun = Instant::now();
                    let (failed, of) = row(versions, fault, verb).await;
                    println!(
                        "{pair:>6} {name:>7} {verb_name:>7}  {of:>3} places, {failed:>2} failures, {:>4} s",
                        begun.elapsed().as_secs()
                    );
                    (failures, combinations) = (failures + failed, combinations + of);
                }
            }
        }
        if words.chosen("to-and-fro", &all) {
            let pauses = ping_pong(&versions, 50).await;
            let at = |part: usize| pauses[(pauses.len() * part / 100).min(pauses.len() - 1)];
            println!("{pair:>6} fifty moves to and fro: pauses p50 {:.0} ms, p99 {:.0} ms", at(50), at(99));
        }
        if words.chosen("wave", &all) {
            println!("{pair:>6} five hundred shards: {:?}", wave(&versions, 500).await);
        }
    }
    println!("{combinations} combinations, {failures} failures");
    std::process::exit(i32::from(failures > 0));
}
