//! Faults at the places of an online move: some of the combinations, half of them in each turn.
//! `script/test-faults` runs all.

use futures_util::StreamExt;
use futures_util::stream;

use crate::support::faults::{Fault, Verb, combine, places};
use crate::support::soak::{ping_pong, wave};
use crate::support::{World, Writers, in_turn, other, share};

/// One world, a move for each place, several at the same time, since each of them mostly waits.
async fn at_places(version: u32, places: Vec<&'static str>, verb: Verb) {
    // In pairs, on either host.
    let shards = (2 * places.len() as u16).next_multiple_of(4);
    let world = World::with_a_keyless_table(&[version, other(version)], shards).await;
    let writers = Writers::start_all(&world, 3).await;
    stream::iter(places.into_iter().enumerate())
        .for_each_concurrent(6, |(at, place)| {
            let (world, first) = (&world, 2 * at as u16);
            async move {
                let begun = std::time::Instant::now();
                // For every second place, both shards of a pair: the last shard of a move has no
                // other to wait for.
                let pair = [first, first + 1];
                let shards = if at % 2 == 0 { &pair[..] } else { &pair[..1] };
                combine(world, shards, place, Fault::Kill, verb).await;
                eprintln!("{place}, {verb:?}: {} ms", begun.elapsed().as_millis());
            }
        })
        .await;
    let notes = writers.stop().await;
    world.audit(notes.flawless()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_half_of_the_places_and_resumed() {
    at_places(15, in_turn(share(15, places())), Verb::Resume).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_the_other_half_and_aborted() {
    at_places(18, in_turn(share(18, places())), Verb::Abort).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashed_broken_and_taken_over() {
    let world = World::new(&[15, 18], 8).await;
    let writers = Writers::start(&world, 3).await;
    combine(
        &world,
        &[0, 1],
        "before applied",
        Fault::Source,
        Verb::Resume,
    )
    .await;
    combine(&world, &[2], "after ready", Fault::Target, Verb::Resume).await;
    combine(&world, &[4, 5], "after a chunk", Fault::Reset, Verb::Resume).await;
    combine(&world, &[6], "after swap", Fault::Sleep, Verb::Resume).await;
    combine(&world, &[7], "after drain", Fault::Sleep, Verb::Abort).await;
    let notes = writers.stop().await;
    world.audit(notes.tolerably()).await;
}

/// `script/test-faults` runs fifty moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_and_fro() {
    let pauses = ping_pong(&[15, 18], 6).await;
    assert_eq!(pauses.len(), 12);
    eprintln!("pauses of {pauses:.0?} ms");
}

/// `script/test-faults` runs five hundred.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_shards_through_one_slot() {
    let wave = wave(&[18, 15], 16).await;
    eprintln!("{:?}, {wave:?}", wave.took);
    assert_eq!(wave.slots, 1);
    assert!(wave.backends <= 24, "{wave:?}");
}
