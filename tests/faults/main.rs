//! Every fault at every place of an online move, and what is done about it; fifty moves back and
//! forth; five hundred shards in one move. Prints a line for each combination that fails, and a
//! table of all. Arguments choose: `kill source target reset sleep`, `resume abort`, `15-18 18-15`,
//! `to-and-fro`, `wave`, a failpoint's name in quotes; without arguments, everything runs.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "what the tests share is more than this needs"
)]

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

/// The arguments.
struct Words(Vec<String>);

impl Words {
    /// Whether this word was given, or no word of its kind.
    fn chosen(&self, word: &str, kind: &[&str]) -> bool {
        let of_kind = |word: &String| kind.contains(&word.as_str());
        self.0.iter().any(|asked| asked == word) || !self.0.iter().any(of_kind)
    }
}

/// The seconds after which a combination gets a line although nothing failed.
const SLOW: f64 = 20.0;

fn panicked(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default()
}

/// One fault at all places, in several worlds at the same time, since a combination mostly waits.
/// Returns how many combinations failed, and how many there were.
async fn row(
    versions: [u32; 2],
    fault: Fault,
    verb: Verb,
    places: &[&'static str],
) -> (usize, usize) {
    // A crash, or a reset, affects all movers of a world.
    let (worlds, beside) = if matches!(fault, Fault::Kill | Fault::Sleep) {
        (2, 4)
    } else {
        (6, 1)
    };
    let mut parts: Vec<Vec<&'static str>> = vec![Vec::new(); worlds.min(places.len())];
    for (at, place) in places.iter().enumerate() {
        parts[at % worlds].push(place);
    }
    let all = stream::iter(parts).map(|places| part(versions, fault, verb, places, beside));
    let failed: usize = all
        .buffer_unordered(worlds)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .sum();
    (failed, places.len())
}

/// One fault at some places in one world, this many at a time. Returns how many combinations
/// failed.
async fn part(
    versions: [u32; 2],
    fault: Fault,
    verb: Verb,
    places: Vec<&'static str>,
    beside: usize,
) -> usize {
    let shards = (2 * places.len() as u16).next_multiple_of(4);
    let world = World::with_a_keyless_table(&versions, shards).await;
    let crashes = matches!(fault, Fault::Source | Fault::Target);
    let writers = if crashes {
        Writers::start(&world, 2).await
    } else {
        Writers::start_all(&world, 2).await
    };
    let failed: usize = stream::iter(places.iter().enumerate())
        .map(|(at, place)| {
            let (world, first) = (&world, 2 * at as u16);
            async move {
                // One shard for every second place: the last shard of a move has no other to wait
                // for.
                let pair = [first, first + 1];
                let shards = if at % 2 == 0 { &pair[..] } else { &pair[..1] };
                let begun = Instant::now();
                let outcome = AssertUnwindSafe(combine(world, shards, place, fault, verb))
                    .catch_unwind()
                    .await;
                let seconds = begun.elapsed().as_secs_f64();
                if let Err(panic) = outcome {
                    println!(
                        "FAILED {versions:?} {fault:?} {verb:?} at {place:?} after {seconds:.0} s: \
                            {}",
                        panicked(panic)
                    );
                    return 1;
                }
                if seconds > SLOW {
                    println!(
                        "       {versions:?} {fault:?} {verb:?} at {place:?} took \
                        {seconds:.0} s"
                    );
                }
                0
            }
        })
        .buffer_unordered(beside)
        .collect::<Vec<usize>>()
        .await
        .into_iter()
        .sum();
    let notes = writers.stop().await;
    let audit = async {
        let notes = if fault == Fault::Kill {
            notes.flawless()
        } else {
            notes.tolerably()
        };
        world.audit_rows(notes).await;
    };
    if let Err(panic) = AssertUnwindSafe(audit).catch_unwind().await {
        println!(
            "FAILED {versions:?} {fault:?} {verb:?}: the audit of the rows: {}",
            panicked(panic)
        );
        return failed + 1;
    }
    failed
}

#[tokio::main(flavor = "multi_thread", worker_threads = 4)]
async fn main() {
    let words = Words(std::env::args().skip(1).collect());
    let all: Vec<&str> = FAULTS
        .map(|f| f.0)
        .into_iter()
        .chain(["to-and-fro", "wave"])
        .collect();
    let (mut failures, mut combinations) = (0, 0);
    let every = places();
    let places: Vec<&str> = every
        .iter()
        .copied()
        .filter(|place| words.chosen(place, &every))
        .collect();
    for (pair, versions) in PAIRS {
        if !words.chosen(pair, &PAIRS.map(|pair| pair.0)) {
            continue;
        }
        for (name, fault) in FAULTS {
            for (verb_name, verb) in VERBS {
                if words.chosen(name, &all) && words.chosen(verb_name, &VERBS.map(|verb| verb.0)) {
                    let begun = Instant::now();
                    let (failed, tried) = row(versions, fault, verb, &places).await;
                    println!(
                        "{pair:>6} {name:>7} {verb_name:>7}  {tried:>3} places, {failed:>2} \
                            failures, {:>4} s",
                        begun.elapsed().as_secs()
                    );
                    (failures, combinations) = (failures + failed, combinations + tried);
                }
            }
        }
        if words.chosen("to-and-fro", &all) {
            let pauses = ping_pong(&versions, 50).await;
            let at = |part: usize| pauses[(pauses.len() * part / 100).min(pauses.len() - 1)];
            println!(
                "{pair:>6} fifty moves to and fro: pauses p50 {:.0} ms, p99 {:.0} ms",
                at(50),
                at(99)
            );
        }
        if words.chosen("wave", &all) {
            println!(
                "{pair:>6} five hundred shards: {:?}",
                wave(&versions, 500).await
            );
        }
    }
    println!("{combinations} combinations, {failures} failures");
    std::process::exit(i32::from(failures > 0));
}
