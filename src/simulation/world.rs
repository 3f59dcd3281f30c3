//! A cluster that is played, with real routers that follow a real store, and callers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::scripts::{ControlScript, HostScript, Row};
use super::server::Server;
use crate::map::{Changes, HostName, MapVersion, Placement, ShardEpoch, ShardMap};
use crate::pg::ConnectOptions;
use crate::router::{Error, HostOptions, Options, Router};
use crate::shard::{ShardCount, ShardId};
use crate::store::{MapStore, PostgresStore};

/// How large the cluster is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) shards: u32,
    pub(super) hosts: usize,
    pub(super) routers: usize,
    /// Of each router.
    pub(super) callers: usize,
    /// The most connections of a router to a host.
    pub(super) pool: usize,
}

/// How long a caller rests between two calls, on average.
const REST: Duration = Duration::from_millis(1600);

/// How long a shard is closed by a move.
pub(super) const PAUSE: Duration = Duration::from_millis(15);

/// A fence's deadline after its mover's last word.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);

impl Scale {
    /// Small, unless `PGSHARD_SIMULATION=full` is set.
    pub(super) fn wanted() -> Scale {
        match std::env::var("PGSHARD_SIMULATION").as_deref() {
            Ok("full") => Scale {
                shards: 8192,
                hosts: 64,
                routers: 1000,
                callers: 16,
                pool: 16,
            },
            _ => Scale {
                shards: 512,
                hosts: 8,
                routers: 40,
                callers: 16,
                pool: 16,
            },
        }
    }
}

pub(super) struct Host {
    pub(super) name: HostName,
    pub(super) server: Arc<Server>,
    pub(super) script: Arc<HostScript>,
}

pub(super) struct World {
    pub(super) scale: Scale,
    pub(super) control: Arc<Server>,
    kept: Arc<ControlScript>,
    pub(super) hosts: Vec<Host>,
    pub(super) waits: Arc<Mutex<Waits>>,
    routers: Arc<Mutex<Vec<Router>>>,
    /// The callers, and what makes routers.
    tasks: JoinSet<()>,
}

/// How long calls have waited.
#[derive(Default)]
pub(super) struct Waits {
    pub(super) calls: u64,
    pub(super) longest: Duration,
    /// Of the calls that failed.
    pub(super) longest_failed: Duration,
    /// By the name of the error.
    pub(super) errors: BTreeMap<String, u64>,
}

impl Waits {
    fn record(&mut self, took: Duration, error: Option<Error>) {
        self.calls += 1;
        let Some(error) = error else {
            self.longest = self.longest.max(took);
            return;
        };
        self.longest_failed = self.longest_failed.max(took);
        let name = format!("{error:?}");
        let name = name
            .split([' ', '(', '{'])
            .next()
            .unwrap_or_default()
            .to_owned();
        *self.errors.entry(name).or_default() += 1;
    }
}

fn epoch(number: u32) -> ShardEpoch {
    ShardEpoch::new(number).expect("an epoch is at least 1")
}

impl World {
    /// Plays the servers. There is no router yet.
    pub(super) fn new(scale: Scale) -> World {
        fastrand::seed(20_260_725);
        let shards = ShardCount::new(scale.shards).expect("a number of shards");
        let names: Vec<HostName> = (0..scale.hosts)
            .map(|at| HostName::new(&format!("db{at}")).expect("a name"))
            .collect();
        let place = |shard: ShardId| Placement {
            host: names[usize::from(shard.get()) * scale.hosts / scale.shards as usize].clone(),
            epoch: epoch(1),
        };
        let map = ShardMap::new(
            MapVersion::FIRST,
            shards,
            shards.iter().map(|shard| (shard, place(shard))),
        )
        .expect("every shard has a place");
        let host = |name: &HostName| {
            let script = Arc::new(HostScript::new(&map, name));
            Host {
                name: name.clone(),
                server: Server::start(name.as_str(), script.clone()),
                script,
            }
        };
        let hosts = names.iter().map(host).collect();
        let kept = Arc::new(ControlScript::new(map));
        let control = Server::start("control", kept.clone());
        let (waits, routers) = (Arc::default(), Arc::default());
        World {
            scale,
            control,
            kept,
            hosts,
            waits,
            routers,
            tasks: JoinSet::new(),
        }
    }

    /// All routers start, as at a deployment, and so do their callers.
    pub(super) fn start_routers(&mut self) {
        for _ in 0..self.scale.routers {
            let hosts: Vec<HostName> = self.hosts.iter().map(|host| host.name.clone()).collect();
            let (scale, waits, routers) = (self.scale, self.waits.clone(), self.routers.clone());
            self.tasks.spawn(async move {
                let shards = ShardCount::new(scale.shards).expect("a number of shards");
                let store = PostgresStore::new(connect("control"), shards);
                let maps = store.watch().await.expect("the control database is there");
                let hosts = hosts.into_iter().map(|name| {
                    let connect = connect(name.as_str());
                    HostOptions::new(name, connect, scale.pool)
                });
                let router = Router::new(Options::new(hosts.collect(), maps.current()));
                router.follow(maps);
                routers
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(router.clone());
                let mut callers = JoinSet::new();
                (0..scale.callers).for_each(|_| {
                    drop(callers.spawn(call(router.clone(), scale.shards, waits.clone())))
                });
                callers.join_all().await;
            });
        }
    }

    /// Every router is gone, with its connections.
    pub(super) async fn stop_routers(&mut self) {
        self.tasks.shutdown().await;
        self.routers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    /// All routers have been at work for a while.
    pub(super) async fn warm(scale: Scale) -> World {
        let mut world = World::new(scale);
        world.start_routers();
        tokio::time::sleep(Duration::from_secs(30)).await;
        world
    }

    /// How many routers have a map of this version or a later one.
    pub(super) fn routers_at(&self, version: MapVersion) -> usize {
        let routers = self.routers.lock().unwrap_or_else(PoisonError::into_inner);
        routers
            .iter()
            .filter(|router| router.map().version() >= version)
            .count()
    }

    pub(super) fn map(&self) -> ShardMap {
        self.kept.map()
    }

    /// Publishes these placements. Listening clients are notified.
    pub(super) fn publish(&self, changes: &Changes) -> MapVersion {
        let map = self.kept.map().merged(changes);
        let version = map.version();
        self.kept.publish(map);
        self.control.news.send_modify(|news| *news += 1);
        version
    }

    /// Closes a shard on its host, as a mover does before it decides.
    pub(super) fn fence(&self, shard: ShardId, from: usize) {
        let (now, at) = (
            Instant::now(),
            self.map().epoch(shard).map_or(1, ShardEpoch::get),
        );
        let fenced = Row::Fenced {
            epoch: at,
            since: now,
            until: now + DEADLINE,
        };
        self.hosts[from].script.rows().insert(shard.get(), fenced);
    }

    /// Moves a shard as a mover does, and publishes it.
    pub(super) async fn move_shard(&self, shard: ShardId, from: usize, to: usize) {
        let next = self.map().epoch(shard).map_or(1, ShardEpoch::get) + 1;
        let (source, target) = (&self.hosts[from], &self.hosts[to]);
        target
            .script
            .rows()
            .insert(shard.get(), Row::Incoming { epoch: next });
        self.fence(shard, from);
        tokio::time::sleep(PAUSE).await;
        source.script.rows().insert(
            shard.get(),
            Row::Moved {
                epoch: next,
                peer: target.name.to_string(),
            },
        );
        let since = Some(Instant::now());
        target
            .script
            .rows()
            .insert(shard.get(), Row::Serving { epoch: next, since });
        self.publish(&Changes::from_iter([(
            shard,
            Placement {
                host: target.name.clone(),
                epoch: epoch(next),
            },
        )]));
    }
}

fn connect(host: &str) -> ConnectOptions {
    ConnectOptions::parse(&format!("postgres://app:secret@{host}/app?sslmode=disable"))
        .expect("a URL")
}

/// One of an application's callers: it rests, calls some shard, and rests again.
async fn call(router: Router, shards: u32, waits: Arc<Mutex<Waits>>) {
    loop {
        let shard = ShardId::new(fastrand::u16(..shards as u16)).expect("a shard");
        let began = Instant::now();
        let called = router
            .shard(shard)
            .expect("it is there")
            .query_one("SELECT one FROM {shard}.t", &[])
            .await;
        waits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .record(began.elapsed(), called.err());
        tokio::time::sleep(REST.mul_f64(2.0 * fastrand::f64())).await;
    }
}
