//! One round: servers, a schema, a workload, moves, and the verdict.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;
use futures_util::FutureExt;
use tokio::task::JoinSet;

use super::definition::Definitions;
use super::fates::Director;
use super::overseer;
use super::reader;
use super::schema::Schema;
use super::state::{Case, Counts, Failure, Shared};
use super::statements::{Statement, Statements};
use super::support::World;
use super::work::{Habit, session};

const SHARDS: u16 = 4;

/// The outcome of a round.
pub(crate) struct Outcome {
    pub(crate) failure: Option<Failure>,
    pub(crate) story: Vec<String>,
    pub(crate) counts: Counts,
    pub(crate) seconds: f64,
    pub(crate) tables: usize,
}

pub(crate) async fn round(case: &Case) -> Outcome {
    let mut rng = Rng::with_seed(case.seed.wrapping_mul(13));
    let crashes = rng.bool() && case.has("restart");
    let mut without = case.without.clone();
    if crashes {
        // Otherwise the old copy would be emptied before it is compared.
        without.insert("unlogged".to_owned());
    }
    let schema = Schema::generate(case.seed, case.tables.as_deref(), &without);
    let tables = schema.tables.len();
    let sql = schema.sql();
    let migrations = [("0001_tables.sql", sql.as_str())];
    let world = AssertUnwindSafe(World::with_tables(&case.versions, SHARDS, &migrations))
        .catch_unwind()
        .await;
    let world = match world {
        Ok(world) => world,
        Err(panic) => {
            let failure = Some(Failure {
                kind: "schema",
                text: panicked(panic),
            });
            return Outcome {
                failure,
                story: Vec::new(),
                counts: Counts::default(),
                seconds: 0.0,
                tables,
            };
        }
    };
    let crowded = rng.u8(0..4) > 0 && case.has("long");
    let shared = Arc::new(Shared::new(
        world,
        case.clone(),
        schema,
        usize::from(SHARDS),
        crashes,
    ));
    fill(&shared, &mut rng).await;
    let defined = Definitions::of(&shared).await;
    let sessions = case.sessions.unwrap_or_else(|| rng.usize(3..9));
    shared.tell(format!(
        "{tables} tables, {sessions} sessions, crashes {crashes}, crowded {crowded}"
    ));
    let mut running = JoinSet::new();
    for number in 0..sessions {
        running.spawn(session(shared.clone(), number, Habit::Short));
    }
    if crowded {
        for number in 100..if rng.bool() { 102 } else { 104 } {
            running.spawn(session(shared.clone(), number, Habit::Long));
        }
        running.spawn(session(shared.clone(), 110, Habit::Janitor));
    }
    running.spawn(overseer::watch(shared.clone()));
    if case.has("router") {
        running.spawn(reader::read(shared.clone()));
    }
    let patience = Duration::from_secs(240 + 60 * case.moves as u64);
    let direct = AssertUnwindSafe(Director::new(shared.clone(), crowded).run()).catch_unwind();
    match tokio::time::timeout(patience, direct).await {
        Err(_) => shared.fail("stuck", "the round has not come to its end"),
        Ok(Err(panic)) => {
            shared.fail("panic", panicked(panic));
        }
        Ok(Ok(())) => {}
    }
    shared.stop.store(true, Ordering::SeqCst);
    let all = async {
        while let Some(ended) = running.join_next().await {
            if let Err(error) = ended {
                shared.fail("panic", error.to_string());
            }
        }
    };
    if tokio::time::timeout(Duration::from_secs(30), all)
        .await
        .is_err()
    {
        running.abort_all();
    }
    if shared.failed().is_none() {
        defined.compare(&Definitions::of(&shared).await, &shared);
    }
    let seconds = shared.begun.elapsed().as_secs_f64();
    shared.tell(format!("errors: {}", shared.errors_told()));
    let (failure, story) = (shared.failed(), shared.story());
    if failure.is_some() && std::env::var_os("PGSHARD_ROWS_STAY").is_some() {
        println!("the servers stay until this process is ended");
        std::future::pending::<()>().await;
    }
    let counts = Counts::default();
    for (count, from) in counts.all().into_iter().zip(shared.counts.all()) {
        count.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    Outcome {
        failure,
        story,
        counts,
        seconds,
        tables,
    }
}

fn panicked(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default()
}

/// Rows before the first move.
async fn fill(shared: &Shared, rng: &mut Rng) {
    let all: BTreeSet<String> = super::statements::KINDS
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let without: BTreeSet<String> = all
        .into_iter()
        .filter(|name| name != "many" && name != "insert")
        .collect();
    let make = Statements {
        schema: &shared.schema,
        without: &without,
        merges: false,
    };
    let rows: u32 = shared.schema.tables.iter().map(|table| table.rows).sum();
    for shard in 0..SHARDS {
        let client = shared
            .reach(*shared.gates[usize::from(shard)].host.read().await)
            .await;
        let name = Shared::schema_name(shard);
        for _ in 0..(rows / 12).clamp(10, 150) {
            if let (_, Statement::Sql(sql)) = make.random(rng) {
                let _ = client.batch_execute(&sql.replace("{shard}", &name)).await;
            }
        }
    }
}
