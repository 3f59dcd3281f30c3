//! The measurements: by hand and through the router in turns, so that both meet the same load from
//! others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pgshard::ShardId;
use pgshard::pg::{ConnectOptions, Connection};
use pgshard::router::{Router, Sql};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio_postgres::Statement;

/// Why something could not be measured: an error of the connection or of the router.
pub(super) type Error = Box<dyn std::error::Error + Send + Sync>;

/// The statement that is measured.
const SQL: &str = "SELECT 1";

/// How often a connection is opened.
const CONNECTS: usize = 5;

/// How long one of two ways is used before it is the other's turn.
const TURN: Duration = Duration::from_millis(100);

/// The most shards that are queried one after the other.
const FAN_OUT_MAX: usize = 1000;

/// Statements on their way on a connection of the fan-out.
const DEPTH: usize = 16;

/// How often the fan-out is repeated. The best counts, since the first finds no open connections.
const FAN_OUTS: usize = 3;

/// How long and how much.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// How long each of the two kinds of measuring takes.
    pub(super) length: Duration,
    /// Calls in flight, each on a connection of its own.
    pub(super) connections: usize,
}

/// What was measured of a host.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
pub(crate) struct HostRun {
    /// Opening a connection, at the median.
    pub(super) connect_ms: f64,
    pub(super) by_hand: Way,
    pub(super) router: Way,
    /// The router's median, divided by the median by hand.
    pub(super) latency_ratio: f64,
    /// The router's calls a second, divided by those by hand.
    pub(super) rate_ratio: f64,
}

/// One way to ask.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
pub(crate) struct Way {
    /// Of one call at a time.
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// With all connections busy.
    pub(super) per_second: f64,
}

/// One call over many shards, beside a loop.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
pub(crate) struct FanOut {
    pub(super) shards: usize,
    pub(super) by_hand_ms: f64,
    pub(super) router_ms: f64,
    pub(super) times_faster: f64,
}

/// A connection by hand, with the statement prepared.
struct Hand {
    connection: Connection,
    statement: Statement,
}

impl Hand {
    async fn open(connect: &ConnectOptions) -> Result<Hand, Error> {
        let connection = connect.connect("pgshard bench").await?;
        let statement = connection.prepare(SQL).await?;
        Ok(Hand {
            connection,
            statement,
        })
    }

    async fn run_call(&self) -> Result<(), Error> {
        self.connection.query_one(&self.statement, &[]).await?;
        Ok(())
    }
}

/// A shard through the router.
struct RoutedShard {
    router: Router,
    shard: ShardId,
}

impl RoutedShard {
    async fn ask(&self) -> Result<(), Error> {
        self.router.shard(self.shard)?.query_one(SQL, &[]).await?;
        Ok(())
    }
}

/// Measures a host by one of its shards.
///
/// # Errors
/// When a connection or a call fails.
pub(super) async fn host(
    connect: &ConnectOptions,
    router: &Router,
    shard: ShardId,
    pace: Pace,
) -> Result<HostRun, Error> {
    let mut connects = Vec::new();
    for _ in 0..CONNECTS {
        let began = Instant::now();
        drop(connect.connect("pgshard bench").await?);
        connects.push(ms(began.elapsed()));
    }
    let mut hands = Vec::new();
    for _ in 0..pace.connections {
        hands.push(Arc::new(Hand::open(connect).await?));
    }
    let routed = Arc::new(RoutedShard {
        router: router.clone(),
        shard,
    });
    // Warms up: the connections are opened, and the statement is prepared on each.
    rate(TURN, &hands, |hand| async move { hand.run_call().await }).await?;
    rate(
        TURN,
        &vec![routed.clone(); pace.connections],
        |routed| async move { routed.ask().await },
    )
    .await?;

    let (mut by_hand, mut through) = (Vec::new(), Vec::new());
    let began = Instant::now();
    while began.elapsed() < pace.length {
        for _ in 0..16 {
            by_hand.push(timed(hands[0].run_call()).await?);
            through.push(timed(routed.ask()).await?);
        }
    }
    let (mut hand_done, mut routed_done, mut turns) = (0, 0, 0_u32);
    let began = Instant::now();
    while began.elapsed() < pace.length {
        hand_done += rate(TURN, &hands, |hand| async move { hand.run_call().await }).await?;
        let all = vec![routed.clone(); pace.connections];
        routed_done += rate(TURN, &all, |routed| async move { routed.ask().await }).await?;
        turns += 1;
    }
    let seconds = TURN.as_secs_f64() * f64::from(turns);
    let by_hand = Way::of(&mut by_hand, hand_done as f64 / seconds);
    let router = Way::of(&mut through, routed_done as f64 / seconds);
    Ok(HostRun {
        connect_ms: rounded(at(&mut connects, 0.5)),
        by_hand,
        router,
        latency_ratio: rounded(router.p50_ms / by_hand.p50_ms),
        rate_ratio: rounded(router.per_second / by_hand.per_second),
    })
}

/// Queries these hosts' shards, one after the other by hand and all at the same time through the
/// router.
///
/// # Errors
/// When a connection or a call fails.
pub(super) async fn fan_out(
    hosts: &[(&ConnectOptions, &[ShardId])],
    router: &Router,
) -> Result<FanOut, Error> {
    let each = FAN_OUT_MAX.div_ceil(hosts.len().max(1));
    let mut hands = Vec::new();
    for (connect, shards) in hosts {
        hands.push((Hand::open(connect).await?, shards.len().min(each)));
    }
    let shards: Vec<ShardId> = hosts
        .iter()
        .flat_map(|(_, shards)| shards.iter().take(each).copied())
        .collect();
    let sql = Sql::new(SQL);
    let (mut by_hand, mut through) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..FAN_OUTS {
        let began = Instant::now();
        for (hand, shards) in &hands {
            for _ in 0..*shards {
                hand.run_call().await?;
            }
        }
        by_hand = by_hand.min(ms(began.elapsed()));
        let began = Instant::now();
        let mut answers = router
            .shards(shards.iter().copied())
            .depth(DEPTH)
            .query(&sql, &[]);
        while let Some((_, answer)) = answers.next().await {
            answer?;
        }
        through = through.min(ms(began.elapsed()));
    }
    let times_faster = rounded(by_hand / through);
    Ok(FanOut {
        shards: shards.len(),
        by_hand_ms: rounded(by_hand),
        router_ms: rounded(through),
        times_faster,
    })
}

/// Calls that end within that time, one after the other by each of these askers.
async fn rate<T, A, F>(length: Duration, askers: &[Arc<T>], ask: A) -> Result<u64, Error>
where
    T: Send + Sync + 'static,
    A: Fn(Arc<T>) -> F + Copy + Send + 'static,
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let done = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + length;
    let mut asking = JoinSet::new();
    for asker in askers {
        let (asker, done) = (asker.clone(), done.clone());
        asking.spawn(async move {
            while Instant::now() < until {
                ask(asker.clone()).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), Error>(())
        });
    }
    while let Some(ended) = asking.join_next().await {
        ended??;
    }
    Ok(done.load(Ordering::Relaxed))
}

async fn timed(work: impl Future<Output = Result<(), Error>>) -> Result<f64, Error> {
    let began = Instant::now();
    work.await?;
    Ok(ms(began.elapsed()))
}

impl Way {
    fn of(times_ms: &mut [f64], per_second: f64) -> Way {
        Way {
            p50_ms: rounded(at(times_ms, 0.5)),
            p99_ms: rounded(at(times_ms, 0.99)),
            per_second: per_second.round(),
        }
    }
}

/// The value that this share of all values does not exceed; 0 if there are none.
fn at(values: &mut [f64], share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let place = ((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1));
    values.get(place).copied().unwrap_or_default()
}

/// Rounded to three decimals; the measurement is less exact than that.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
