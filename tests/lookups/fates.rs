//! What happens to the processes, their connections and the shards.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::case::Case;
use super::support::World;
use super::work::{ORDER, Order};

/// A number with the processes that have it, one after the other.
pub(crate) struct Process<'a> {
    case: &'a Case,
    world: &'a World,
    number: usize,
    until_ms: u64,
    child: Child,
    /// How many there were.
    generation: usize,
    pub(crate) notes: Vec<PathBuf>,
}

/// How often each thing has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) stopped: u32,
    pub(crate) killed: u32,
    pub(crate) connections: u32,
    pub(crate) moves: u32,
    pub(crate) rollbacks: u32,
}

impl<'a> Process<'a> {
    pub(crate) fn start(
        case: &'a Case,
        world: &'a World,
        number: usize,
        until_ms: u64,
    ) -> Process<'a> {
        let notes = world.servers.directory().join(format!("{number}.0.notes"));
        Process {
            case,
            world,
            number,
            until_ms,
            child: spawn(case, world, (number, 0), until_ms, &notes),
            generation: 0,
            notes: vec![notes],
        }
    }

    /// Is stopped for longer than a claim's grace period, or killed and replaced, until the time is
    /// over.
    pub(crate) async fn suffer(&mut self, end: Instant) -> Counts {
        let mut counts = Counts::default();
        let mut rng = self.case.rng(1000 + self.number as u64);
        loop {
            let pause = Duration::from_millis(rng.u64(500..9000));
            if Instant::now() + pause >= end {
                return counts;
            }
            tokio::time::sleep(pause).await;
            match rng.u8(..2) {
                0 => {
                    self.signal(Signal::STOP);
                    let long = Duration::from_millis(rng.u64(2100..5000));
                    tokio::time::sleep(long).await;
                    self.signal(Signal::CONT);
                    counts.stopped += 1;
                }
                _ => {
                    self.child.kill().await.expect("a process can be killed");
                    self.generation += 1;
                    let name = format!("{}.{}.notes", self.number, self.generation);
                    let notes = self.world.servers.directory().join(name);
                    let who = (self.number, self.generation);
                    self.child = spawn(self.case, self.world, who, self.until_ms, &notes);
                    self.notes.push(notes);
                    counts.killed += 1;
                }
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id as i32));
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits until the process has made its last call.
    pub(crate) async fn end(&mut self) {
        let ended = tokio::time::timeout(Duration::from_secs(120), self.child.wait()).await;
        let status = ended
            .expect("a process ends when its time is over")
            .expect("it is ours");
        assert!(status.success(), "process {}: {status}", self.number);
    }
}

fn spawn(
    case: &Case,
    world: &World,
    (number, generation): (usize, usize),
    until_ms: u64,
    notes: &std::path::Path,
) -> Child {
    let order = Order {
        story: case.story,
        claims: case.claims(number),
        config: world.config.path.clone(),
        notes: notes.to_owned(),
        name: format!("{number}-{generation}"),
        seed: case.rng((number * 100 + generation) as u64).u64(..),
        keys: case.keys,
        values: case.values,
        folded: match case.fold {
            pgshard::lookups::Fold::Ascii => "emails".to_owned(),
            _ => String::new(),
        },
        until_ms,
    };
    let program = std::env::current_exe().expect("this process has a program");
    let mut command = Command::new(program);
    // What the test of this name in `tests/it` is started for.
    command.args(["lookups::rounds::process", "--exact", "--nocapture"]);
    command.env(ORDER, serde_json::to_string(&order).expect("it is JSON"));
    command.stdout(std::process::Stdio::null());
    command.kill_on_drop(true);
    command.spawn().expect("it starts")
}

/// Ends connections of the processes, wherever they are in their transactions.
pub(crate) async fn lose_connections(case: &Case, world: &World, end: Instant) -> Counts {
    let mut rng = case.rng(2000);
    let mut counts = Counts::default();
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(rng.u64(50..1500))).await;
        let client = world.servers.superuser(rng.usize(..2)).await;
        let states = ["state = 'idle in transaction'", "state = 'active'", "true"];
        let sql = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE \
             application_name = 'pgshard' AND {} ORDER BY random() LIMIT 1) AS one",
            states[rng.usize(..states.len())]
        );
        let row = client.query_one(&sql, &[]).await.expect("a host answers");
        counts.connections += u32::try_from(row.get::<_, i64>(0)).unwrap_or_default();
    }
    counts
}

/// Moves shards between the hosts, rolls moves back, and kills the command now and then.
pub(crate) async fn move_shards(case: &Case, world: &World, end: Instant) -> Counts {
    let mut rng = case.rng(3000);
    let mut counts = Counts::default();
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(rng.u64(100..1500))).await;
        let shard = rng.u16(..case.shards);
        let to = format!("db{}", 2 - world.host_of(shard));
        let mode = ["online", "online", "blocking"][rng.usize(..3)];
        let shard = shard.to_string();
        let args = ["move", &shard, "--to", &to, "--mode", mode, "--yes"];
        let mut command = world.command(&args, &[("PGSHARD_LEASE_MS", "2000")]);
        let mut child = command.spawn().expect("the command was built");
        if rng.u8(..4) == 0 {
            tokio::time::sleep(Duration::from_millis(rng.u64(100..1500))).await;
            let _ = child.start_kill();
        }
        let _ = child.wait_with_output().await;
        counts.moves += 1;
        settle(world).await;
        if mode == "online"
            && rng.bool()
            && let Some(id) = kept(world).await
        {
            let ran = world.run(&["moves", "rollback", &id, "--yes"]).await;
            counts.rollbacks += u32::from(ran.code() == 0);
        }
        world
            .run(&["moves", "complete", "--all", "--unaudited", "--yes"])
            .await;
    }
    settle(world).await;
    world
        .run(&["moves", "complete", "--all", "--unaudited", "--yes"])
        .await;
    counts
}

async fn listed(world: &World, words: &[&str]) -> Vec<serde_json::Value> {
    let ran = world.run(words).await;
    let last = ran.json().pop().unwrap_or_default();
    last["moves"].as_array().cloned().unwrap_or_default()
}

/// Brings moves that were killed to their end.
pub(crate) async fn settle(world: &World) {
    for _ in 0..20 {
        let moves = listed(world, &["moves", "list"]).await;
        let is_open = |one: &&serde_json::Value| {
            !matches!(
                one["phase"].as_str(),
                Some("kept" | "completed" | "aborted")
            )
        };
        let open: Vec<String> = moves
            .iter()
            .filter(is_open)
            .filter_map(|one| one["move"].as_str().map(str::to_owned))
            .collect();
        if open.is_empty() {
            return;
        }
        for id in open {
            world.run(&["moves", "resume", &id]).await;
        }
    }
    panic!(
        "a move does not end: {:?}",
        listed(world, &["moves", "list"]).await
    );
}

/// The move that can be rolled back. Those before it are completed.
async fn kept(world: &World) -> Option<String> {
    let moves = listed(world, &["moves", "list"]).await;
    let kept = moves.iter().find(|one| one["phase"] == "kept")?;
    Some(kept["move"].as_str()?.to_owned())
}
