//! A process that is forked has its parent's sources in its memory. Neither may give out an ID of
//! the other.
//!
//! A program of its own, with one thread: a forked process may do next to nothing if its parent had
//! several threads.

use std::collections::HashSet;
use std::io::Write;
use std::time::{Duration, Instant};

use fork::Fork;
use pgshard::idgen::Later;
use pgshard::idgen::flake::{Flake, FlakeId, Options, Worker};

/// More than a source makes in a millisecond.
const COUNT: usize = 200_000;

fn make(flake: &Flake) -> Vec<FlakeId> {
    let (mut made, until) = (
        Vec::with_capacity(COUNT),
        Instant::now() + Duration::from_secs(60),
    );
    while made.len() < COUNT {
        match flake.try_next() {
            Ok(id) => made.push(id),
            Err(later) => assert!(
                later != Later::Forked && Instant::now() < until,
                "{later:?}"
            ),
        }
    }
    made
}

fn main() {
    let drawn = Flake::new(&Options::default());
    let given = Flake::new(&Options::default().worker(Worker::Given(7)));
    let parents = drawn.worker();
    drawn
        .try_next()
        .expect("a source that is not forked makes flakes");
    given
        .try_next()
        .expect("a source that is not forked makes flakes");
    let mut file = tempfile::NamedTempFile::new().expect("a file can be made");
    match fork::fork().expect("a process can be forked") {
        Fork::Child => {
            assert_eq!(
                given.try_next(),
                Err(Later::Forked),
                "the number was given to the parent"
            );
            let made = make(&drawn);
            assert!(drawn.worker() != parents, "the number is the parent's");
            let text: String = made.iter().map(|id| format!("{id}\n")).collect();
            file.write_all(text.as_bytes())
                .expect("the file can be written");
            // The file belongs to the parent, which removes it.
            std::process::exit(0);
        }
        Fork::Parent(child) => {
            let mut made = make(&drawn);
            let ended = fork::waitpid(child).expect("the child is ours to wait for");
            assert_eq!(ended, 0, "the child failed");
            let text = std::fs::read_to_string(file.path()).expect("the file can be read");
            made.extend(
                text.lines()
                    .map(|id| id.parse::<FlakeId>().expect("a flake")),
            );
            assert_eq!(made.len(), 2 * COUNT);
            assert_eq!(
                made.iter().collect::<HashSet<_>>().len(),
                made.len(),
                "an ID came twice"
            );
            given.try_next().expect("the parent keeps its number");
            println!(
                "{} flakes of a process and its child, none twice",
                made.len()
            );
        }
    }
}
