//! What moves cost, each compared with a baseline in the same run:
//!
//! * `large`: a shard of 1 GB in five tables, moved while it is open, compared with
//!   `pg_dump | pg_restore` and `pgcopydb clone` of the same schema (a tool that is not there is
//!   left out, and named); the time, and how long the machine's processors worked, which is what
//!   counts where each has as many cores as it can use. The audit, which runs while the target
//!   serves, is reported separately.
//! * `pause`: 200 moves while an application writes 2000 times a second through a router: how long
//!   a shard was closed, by phase, next to the same round trips and flushes by hand; the longest
//!   wait of a writer; what writers of other shards of the source noticed; whether every write is
//!   there.
//! * `many`: a shard with 500 tables and 2000 partitions: its plan compared with
//!   `pg_dump --schema-only`, its pause with that of a shard with one table.
//! * `wave`: 500 small shards in one move, which share a slot, compared with a move for each (a
//!   sample, because of its time).
//!
//! `cargo bench --bench moves -- [large] [pause] [many] [wave] [--size MB] [--runs N] [--moves N]
//! [--rate N] [--rows N] [--jobs N] [--shards N] [--sample N] [--major N] [--throwaway] [--phases]`
//!
//! Servers run as in production, with every commit forced to disk, unless `--throwaway` turns that
//! off. Writers, mover and both servers share this machine.

mod bed;
mod busy;
mod floor;
mod large;
mod many;
mod numbers;
mod pause;
mod wave;
mod writers;

use pgshard::dev::{Binaries, Durability};

/// The arguments of the command line.
pub(crate) struct Arguments {
    parts: Vec<String>,
    /// Of the large shard, in MB.
    pub(crate) size: u32,
    pub(crate) runs: u32,
    pub(crate) moves: u32,
    /// Writes a second.
    pub(crate) rate: u32,
    /// In each table of the shards that are moved under writers.
    pub(crate) rows: u32,
    /// Shards at a time; `None`: as many as the command does.
    pub(crate) jobs: Option<usize>,
    /// Of the wave.
    pub(crate) shards: u32,
    /// How many of them are moved one by one.
    pub(crate) sample: u32,
    pub(crate) binaries: Binaries,
    pub(crate) durability: Durability,
    /// Whether to print what each phase of each move took.
    pub(crate) phases: bool,
}

impl Arguments {
    fn read() -> Arguments {
        let mut read = Arguments {
            parts: Vec::new(),
            size: 1024,
            runs: 3,
            moves: 200,
            rate: 2000,
            rows: 2000,
            jobs: None,
            shards: 500,
            sample: 20,
            binaries: Binaries::of_major(15)
                .or_else(|_| Binaries::first())
                .expect("there is a PostgreSQL here"),
            durability: Durability::Durable,
            phases: false,
        };
        let mut list = std::env::args().skip(1);
        while let Some(name) = list.next() {
            let mut number = || -> u32 {
                let value = list.next().unwrap_or_default();
                value
                    .parse()
                    .unwrap_or_else(|_| panic!("{name} takes a number, not {value:?}"))
            };
            match name.as_str() {
                "large" | "pause" | "many" | "wave" => read.parts.push(name),
                "--size" => read.size = number(),
                "--runs" => read.runs = number().max(1),
                "--moves" => read.moves = number(),
                "--rate" => read.rate = number().max(1),
                "--rows" => read.rows = number(),
                "--jobs" => read.jobs = Some(number() as usize),
                "--shards" => read.shards = number().clamp(1, 4096),
                "--sample" => read.sample = number().max(1),
                "--major" => {
                    read.binaries = Binaries::of_major(number()).expect("that PostgreSQL is here")
                }
                "--throwaway" => read.durability = Durability::Throwaway,
                "--phases" => read.phases = true,
                // `cargo bench` passes this to every bench.
                "--bench" => {}
                other => panic!("unknown argument {other}"),
            }
        }
        read
    }

    fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }
}

fn main() {
    let arguments = Arguments::read();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!(
        "PostgreSQL {}, {:?}, {cores} cores, load {}",
        arguments.binaries.version(),
        arguments.durability,
        load.split(' ').next().unwrap_or("unknown")
    );
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if arguments.wants("large") {
        runtime.block_on(large::run(&arguments));
    }
    if arguments.wants("pause") {
        runtime.block_on(pause::run(&arguments));
    }
    if arguments.wants("many") {
        runtime.block_on(many::run(&arguments));
    }
    if arguments.wants("wave") {
        runtime.block_on(wave::run(&arguments));
    }
}
