//! A server that is played: its answers are scripted, its costs and its load are counted.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::{AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::sync::{Mutex as Turn, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::wire::{self, Answer, Message, Refusal, Reply, Shape};
use crate::pg::simulated::{self, Stream};

/// The way there and back, without what the server does.
pub(super) const ROUND_TRIP: Duration = Duration::from_millis(1);

/// What a new connection costs the server: a process, SCRAM, the first look into the catalogs.
const OPEN_COST: Duration = Duration::from_millis(4);
/// What a statement costs it, and one that is only prepared.
const RUN_COST: Duration = Duration::from_micros(200);
const PREPARE_COST: Duration = Duration::from_micros(100);
/// The processors of a server.
const CORES: usize = 16;

/// How a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Up,
    /// The machine is there, and nothing listens.
    Refuses,
    /// Nothing comes back, not even a refusal.
    Silent,
}

/// A server's answers.
pub(super) trait Script: Send + Sync + 'static {
    /// Reads a statement.
    fn parse(&self, sql: &str) -> Result<(Statement, Shape), Refusal>;
    /// Runs it.
    fn run(&self, statement: Statement, parameters: &[Option<Vec<u8>>]) -> Answer;
}

/// What a statement is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Statement {
    /// The statements with which a connection begins, by their number.
    Begin(u8),
    /// An application's, on a shard.
    Shard(u16),
    Look,
    Expire,
    Fetch,
}

/// Counts by second since the start.
#[derive(Default)]
pub(super) struct PerSecond(Vec<u32>);

impl PerSecond {
    fn add(&mut self, second: usize) {
        self.0.resize(self.0.len().max(second + 1), 0);
        self.0[second] += 1;
    }

    /// The most in one second from `since` on.
    pub(super) fn peak(&self, since: usize) -> u32 {
        self.0
            .get(since..)
            .and_then(|counts| counts.iter().copied().max())
            .unwrap_or(0)
    }

    pub(super) fn sum(&self, since: usize) -> u32 {
        self.0.get(since..).map_or(0, |counts| counts.iter().sum())
    }
}

/// What was requested of a server.
#[derive(Default)]
pub(super) struct Meter {
    /// Connections that were requested, also of a server that is away.
    pub(super) connects: PerSecond,
    pub(super) look_ups: PerSecond,
    pub(super) fetches: PerSecond,
    pub(super) mends: PerSecond,
    pub(super) statements: PerSecond,
    pub(super) open: usize,
    /// Since the peaks were taken last.
    pub(super) open_peak: usize,
    pub(super) opening: usize,
    pub(super) opening_peak: usize,
    /// Requests on their way.
    at_work: usize,
    pub(super) at_work_peak: usize,
    /// The longest that a request waited for a processor.
    pub(super) queue_peak: Duration,
}

pub(super) struct Server {
    script: Arc<dyn Script>,
    pub(super) condition: watch::Sender<Condition>,
    /// Connections of an earlier life end.
    life: watch::Sender<u64>,
    began: Instant,
    meter: Mutex<Meter>,
    /// When each processor is free.
    cores: Mutex<Vec<Instant>>,
    /// Wakes the sessions that listen.
    pub(super) news: watch::Sender<u64>,
}

impl Server {
    /// Plays a server under this name, in this thread.
    pub(super) fn start(name: &str, script: Arc<dyn Script>) -> Arc<Server> {
        let began = Instant::now();
        let server = Arc::new(Server {
            script,
            condition: watch::Sender::new(Condition::Up),
            life: watch::Sender::new(0),
            began,
            meter: Mutex::default(),
            cores: Mutex::new(vec![began; CORES]),
            news: watch::Sender::new(0),
        });
        let listening = server.clone();
        simulated::listen(name, move || listening.clone().accept().boxed());
        server
    }

    pub(super) fn meter(&self) -> MutexGuard<'_, Meter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Peaks count from now on. Returns the second.
    pub(super) fn begin_peaks(&self) -> usize {
        let mut meter = self.meter();
        (meter.open_peak, meter.opening_peak, meter.at_work_peak) =
            (meter.open, meter.opening, meter.at_work);
        meter.queue_peak = Duration::ZERO;
        self.second()
    }

    /// The server is gone, with every connection.
    pub(super) fn become_away(&self, condition: Condition) {
        self.condition.send_replace(condition);
        if condition == Condition::Refuses {
            self.life.send_modify(|life| *life += 1);
        }
    }

    /// It was started again.
    pub(super) fn come_back(&self) {
        self.life.send_modify(|life| *life += 1);
        self.condition.send_replace(Condition::Up);
    }

    fn second(&self) -> usize {
        self.began.elapsed().as_secs() as usize
    }

    async fn accept(self: Arc<Self>) -> io::Result<Stream> {
        let second = self.second();
        self.meter().connects.add(second);
        tokio::time::sleep(ROUND_TRIP).await;
        let condition = *self.condition.borrow();
        match condition {
            Condition::Up => {}
            Condition::Refuses => return Err(io::ErrorKind::ConnectionRefused.into()),
            Condition::Silent => std::future::pending().await,
        }
        let (near, far) = tokio::io::duplex(64 * 1024);
        let mut life = self.life.subscribe();
        life.mark_unchanged();
        tokio::spawn(async move {
            let counted = Open::new(&self);
            tokio::select! {
                _ = serve(far, &self, counted) => {}
                _ = life.changed() => {}
            }
        });
        Ok(near)
    }

    /// Returns when a request that comes now, and costs so much, was answered. Nothing while the
    /// server is silent.
    async fn work(&self, cost: Duration) {
        let arrives = Instant::now() + ROUND_TRIP / 2;
        let _counted = AtWork::new(self);
        let done = {
            let mut cores = self.cores.lock().unwrap_or_else(PoisonError::into_inner);
            let free = cores.iter_mut().min().expect("a server has processors");
            let begins = arrives.max(*free);
            *free = begins + cost;
            let mut meter = self.meter();
            meter.queue_peak = meter.queue_peak.max(begins - arrives);
            *free
        };
        tokio::time::sleep_until(done + ROUND_TRIP / 2).await;
        let mut condition = self.condition.subscribe();
        let _ = condition
            .wait_for(|condition| *condition != Condition::Silent)
            .await;
    }

    fn count(&self, statement: Statement) {
        let second = self.second();
        let mut meter = self.meter();
        match statement {
            Statement::Shard(_) => meter.statements.add(second),
            Statement::Look => meter.look_ups.add(second),
            Statement::Expire => meter.mends.add(second),
            Statement::Fetch => meter.fetches.add(second),
            Statement::Begin(_) => {}
        }
    }
}

/// A request that is counted.
struct AtWork<'s>(&'s Server);

impl AtWork<'_> {
    fn new(server: &Server) -> AtWork<'_> {
        let mut meter = server.meter();
        meter.at_work += 1;
        meter.at_work_peak = meter.at_work_peak.max(meter.at_work);
        AtWork(server)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.meter().at_work -= 1;
    }
}

/// A connection that is counted.
struct Open {
    server: Arc<Server>,
    opening: bool,
}

impl Open {
    fn new(server: &Arc<Server>) -> Open {
        let mut meter = server.meter();
        meter.open += 1;
        meter.opening += 1;
        meter.open_peak = meter.open_peak.max(meter.open);
        meter.opening_peak = meter.opening_peak.max(meter.opening);
        drop(meter);
        Open {
            server: server.clone(),
            opening: true,
        }
    }

    fn is_open(&mut self) {
        if std::mem::take(&mut self.opening) {
            self.server.meter().opening -= 1;
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.is_open();
        self.server.meter().open -= 1;
    }
}

/// Speaks with one client until it goes.
async fn serve(stream: Stream, server: &Arc<Server>, mut counted: Open) -> io::Result<()> {
    let (from, to) = tokio::io::split(stream);
    let mut from = BufReader::with_capacity(256, from);
    if !wire::startup(&mut from).await? {
        return Ok(());
    }
    server.work(OPEN_COST).await;
    let to: To = Arc::new(Turn::new(to));
    let mut reply = Reply::default();
    reply.greeting();
    to.lock().await.write_all(&reply.0).await?;
    let mut session = Session {
        server,
        prepared: HashMap::new(),
        to,
        telling: None,
    };
    while let Some(asked) = request(&mut from).await? {
        session.answer(asked, &mut counted).await?;
    }
    Ok(())
}

type To = Arc<Turn<WriteHalf<Stream>>>;

/// Notifies a listening client of each new map.
async fn tell(to: To, mut news: watch::Receiver<u64>) {
    let mut reply = Reply::default();
    reply.notification();
    while news.changed().await.is_ok() && to.lock().await.write_all(&reply.0).await.is_ok() {}
}

/// The messages up to the one that requests an answer; `None` when the client goes.
async fn request(from: &mut BufReader<ReadHalf<Stream>>) -> io::Result<Option<Vec<Message>>> {
    let mut messages = Vec::new();
    loop {
        let message = wire::message(from).await?;
        let ends = matches!(message, Message::Query(_) | Message::Sync);
        if matches!(message, Message::Terminate) {
            return Ok(None);
        }
        messages.push(message);
        if ends {
            return Ok(Some(messages));
        }
    }
}

struct Session<'s> {
    server: &'s Arc<Server>,
    prepared: HashMap<String, (Statement, Shape)>,
    to: To,
    /// Ends with the session.
    telling: Option<JoinSet<()>>,
}

impl Session<'_> {
    async fn answer(&mut self, asked: Vec<Message>, counted: &mut Open) -> io::Result<()> {
        let runs = asked
            .iter()
            .any(|message| matches!(message, Message::Execute | Message::Query(_)));
        self.server
            .work(if runs { RUN_COST } else { PREPARE_COST })
            .await;
        let mut reply = Reply::default();
        let mut bound = None;
        let mut described = String::new();
        for message in asked {
            let goes_on = match message {
                Message::Query(sql) => {
                    if sql.starts_with("LISTEN") {
                        let told = tell(self.to.clone(), self.server.news.subscribe());
                        self.telling.get_or_insert_default().spawn(told);
                    }
                    reply.answer(Answer::Done)
                }
                Message::Parse { name, sql } => match self.server.script.parse(&sql) {
                    Ok(parsed) => {
                        reply.parsed();
                        described.clone_from(&name);
                        self.prepared.insert(name, parsed);
                        true
                    }
                    Err(refusal) => reply.answer(Answer::Refused(refusal)),
                },
                Message::Bind {
                    statement,
                    parameters,
                } => {
                    reply.bound();
                    bound = self
                        .prepared
                        .get(&statement)
                        .map(|(statement, _)| (*statement, parameters));
                    true
                }
                Message::Describe => {
                    reply.described(self.prepared[&described].1);
                    true
                }
                Message::Execute => {
                    let (statement, parameters) = bound.take().expect("what is executed was bound");
                    self.server.count(statement);
                    // With this answer the client has its connection.
                    counted.is_open();
                    reply.answer(self.server.script.run(statement, &parameters))
                }
                Message::Close { name } => {
                    self.prepared.remove(&name);
                    reply.closed();
                    true
                }
                Message::Sync | Message::Terminate => true,
            };
            if !goes_on {
                break;
            }
        }
        reply.ready();
        self.to.lock().await.write_all(&reply.0).await
    }
}
