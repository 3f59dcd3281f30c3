//! One round: callers at work, what happens to their servers, and whether their results are true.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use pgshard::Router;
use pgshard::pg::ConnectOptions;
use pgshard::router::{Options, PrepareMode, Recycle};
use tokio::task::JoinSet;

use super::by_hand::schema;
use super::caller::{Caller, LIMIT, SHARDS, Told};
use super::case::{Case, Failure, Failures};
use super::fates::{self, Place};
use super::limits::Hiccups;
use super::pooler::Pooler;

/// The outcome of a round.
pub(crate) struct Outcome {
    pub(crate) failure: Option<Failure>,
    pub(crate) story: Vec<String>,
    /// How many rows were reported as there, as not there, and as unknown.
    pub(crate) counts: [usize; 3],
    pub(crate) seconds: f64,
}

/// What the callers of a round share in addition to their router.
pub(crate) struct World {
    pub(crate) place: Place,
    pub(crate) options: Options,
    /// Whether every server answers all the time, so that whatever takes long is the library's
    /// fault.
    pub(crate) calm: bool,
    pub(crate) hiccups: Hiccups,
}

impl World {
    /// The callers' backends at a host that fulfil this condition.
    pub(crate) async fn backends(&self, host: usize, which: &str) -> i64 {
        let callers = "application_name LIKE 'library%'";
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE {callers} AND ({which})");
        self.place
            .app(host)
            .await
            .query_one(&sql, &[])
            .await
            .expect("a host answers")
            .get(0)
    }
}

/// Connections in addition to the pool's: two for look-ups, one that tries the host, one that looks
/// for a later primary, and those that are just ending.
const BESIDE: i64 = 2 + 1 + 1 + 2;

/// How many times in a row a connection too many must be seen before it counts: a connection needs
/// a moment to end.
const LOOKS: u32 = 20;

pub(crate) async fn round(case: &Case) -> Outcome {
    let begun = Instant::now();
    let mut rng = Rng::with_seed(case.seed);
    let allowed = |kind: &str| !case.without.contains(kind);
    // One round in four goes through poolers, and one in three of the others has a standby.
    let pooled = rng.u8(..4) == 0 && allowed("pooler");
    // In one round of three every server answers all the time.
    let calm = rng.u8(..3) == 0 || !fates::EXCUSES.iter().any(|fate| allowed(fate));
    let standby =
        (!calm && !pooled && rng.u8(..3) == 0 && allowed("failover")).then(|| rng.usize(..2));
    let place = Place::start(case.version, SHARDS as u16, standby).await;
    let mut options = place.shards.options();
    let poolers = on_the_way(&place, &mut options, pooled).await;
    vary(&mut options, &mut rng, pooled);
    let most = options.hosts[0].pool_size as i64 + BESIDE;
    let mut story = vec![format!(
        "{}pools of {}, {:?} in all, {:?}, {:?}{}{}",
        if calm { "calm, " } else { "" },
        options.hosts[0].pool_size,
        options.max_connections,
        options.hosts[0].prepare,
        options.recycle,
        if pooled { ", through PgBouncer" } else { "" },
        if standby.is_some() {
            ", with a standby"
        } else {
            ""
        },
    )];
    let router = Router::new(options.clone());
    let world = Arc::new(World {
        place,
        options,
        calm,
        hiccups: Hiccups::default(),
    });
    let failures = Arc::new(Failures::default());
    let done = AtomicBool::new(false);
    let mut callers = JoinSet::new();
    for number in 0..case.callers {
        let rng = Rng::with_seed(case.seed * 1000 + number);
        let next = number as i64 * 1_000_000;
        let (router, failures, case, world) = (
            router.clone(),
            failures.clone(),
            case.clone(),
            world.clone(),
        );
        callers.spawn(
            Caller {
                case,
                router,
                rng,
                next,
                failures,
                world,
            }
            .play(),
        );
    }
    let calling = async {
        let mut told = Vec::new();
        while let Some(ended) = callers.join_next().await {
            match ended {
                Ok(of_caller) => told.extend(of_caller),
                Err(error) => failures.add("panic", error.to_string()),
            }
        }
        done.store(true, Ordering::Relaxed);
        told
    };
    let watching = async {
        let mut too_many = [0; 2];
        // A pooler limits its connections itself.
        while calm && !pooled && !done.load(Ordering::Relaxed) {
            for (host, too_many) in too_many.iter_mut().enumerate() {
                let count = world.backends(host, "application_name = 'library'").await;
                *too_many = if count > most { *too_many + 1 } else { 0 };
                if *too_many == LOOKS {
                    failures.add(
                        "connections",
                        format!("{count} at db{}, {most} at most", host + 1),
                    );
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let mut fate = case.clone();
    if calm {
        fate.without.extend(fates::EXCUSES.map(str::to_owned));
    }
    let befalls = fates::play(&fate, &world.place, &done, rng);
    let befalls = async { tokio::join!(calling, befalls, watching) };
    let (told, befell, ()) = tokio::select! {
        ended = befalls => ended,
        () = world.hiccups.watch() => unreachable!("it watches until the others have ended"),
    };
    story.extend(befell);
    let counts = judge(&world, &told, &failures).await;
    drop((router, poolers));
    nothing_left(
        &world,
        "true",
        "connections of a router that is gone",
        &failures,
    )
    .await;
    Outcome {
        failure: failures.first(),
        story,
        counts,
        seconds: begun.elapsed().as_secs_f64(),
    }
}

/// Builds the way to the hosts: proxies, and a pooler behind each if wanted.
async fn on_the_way(place: &Place, options: &mut Options, pooled: bool) -> Vec<Pooler> {
    let mut poolers = Vec::new();
    for (host, options) in options.hosts.iter_mut().enumerate() {
        if pooled {
            let lines = "default_pool_size = 5\nserver_login_retry = 1";
            let pooler = Pooler::with(&place.shards.cluster, host, lines).await;
            place.proxies[host].lead_to(pooler.port());
            poolers.push(pooler);
        }
        let url = format!(
            "postgres://app@127.0.0.1:{}/app?sslmode=disable",
            place.proxies[host].port
        );
        options.connect = ConnectOptions::parse(&url).expect("a URL");
    }
    poolers
}

/// Random pools and ways of sending.
fn vary(options: &mut Options, rng: &mut Rng, pooled: bool) {
    let size = [1, 2, 3, 4, 12][rng.usize(..5)];
    let prepare = if rng.bool() && !pooled {
        PrepareMode::Named
    } else {
        PrepareMode::Unnamed
    };
    for host in &mut options.hosts {
        (host.pool_size, host.prepare) = (size, prepare);
    }
    if rng.bool() {
        options.max_connections = Some(size + rng.usize(1..3));
    }
    options.recycle = if rng.bool() {
        Recycle::Fast
    } else {
        Recycle::Clean
    };
    options.statement_timeout = Some(LIMIT);
    options.wait_max = Duration::from_secs(2);
    options.application_name = "library".to_owned();
}

/// Waits until there are no such backends.
async fn nothing_left(world: &World, which: &str, what: &str, failures: &Failures) {
    for host in 0..2 {
        let mut left = 0;
        for _ in 0..600 {
            left = world.backends(host, which).await;
            if left == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if left > 0 {
            failures.add("left", format!("{left} {what} at db{}", host + 1));
        }
    }
}

/// Compares the rows with the callers' results.
async fn judge(world: &World, told: &[Told], failures: &Failures) -> [usize; 3] {
    nothing_left(
        world,
        "state <> 'idle'",
        "statements or transactions",
        failures,
    )
    .await;
    let locks = "pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')";
    nothing_left(world, locks, "sessions with a lock", failures).await;
    let mut there = BTreeSet::new();
    for host in 0..2 {
        let client = world.place.app(host).await;
        let sql = "SELECT shard_id FROM pgshard.shard WHERE state = 'serving'";
        for row in client.query(sql, &[]).await.expect("a host answers") {
            let number = row.get::<_, i32>(0);
            let sql = format!("SELECT id FROM {}.photos", schema(number as u16));
            for row in client.query(&sql, &[]).await.expect("a shard is there") {
                let id: i64 = row.get(0);
                if !there.insert(id) {
                    failures.add("twice", format!("row {id} is there twice"));
                }
            }
        }
    }
    let mut counts = [0; 3];
    for told in told {
        let found = |ids: &BTreeSet<i64>| ids.intersection(&there).count();
        if found(&told.done) != told.done.len() {
            failures.add("lost", format!("acknowledged, and not there: {told:?}"));
        }
        if found(&told.undone) > 0 {
            failures.add("ghost", format!("there, and said not to be: {told:?}"));
        }
        if !told.either.is_empty() && ![0, told.either.len()].contains(&found(&told.either)) {
            failures.add("half", format!("half of it is there: {told:?}"));
        }
        for (count, ids) in counts
            .iter_mut()
            .zip([&told.done, &told.undone, &told.either])
        {
            *count += ids.len();
        }
    }
    counts
}
