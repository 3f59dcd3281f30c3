//! The hosts that a mover works on, and their sessions: opened, given back, and used again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::map::HostName;
use crate::pg::{ConnectOptions, HostState, Lookout};
use crate::schema::Cluster;

use crate::mover::control::session::{SETTINGS, Session};
use crate::mover::control::spare::{Keeper, Spares};
use crate::mover::protocol::error::Error;

/// The hosts of the cluster, by name. While a mover works, a standby that is promoted in the place
/// of a host is noticed within seconds, and connections to the former primary are closed.
#[derive(Clone, Debug)]
pub struct Hosts {
    reached: Arc<BTreeMap<HostName, Reached>>,
    spares: Arc<Spares>,
    /// What every host must have recorded of the cluster.
    cluster: Option<Arc<Cluster>>,
}

#[derive(Debug)]
struct Reached {
    connect: ConnectOptions,
    lookout: Arc<Lookout>,
    turns: Arc<Semaphore>,
}

/// How many shards' old copies are dropped at a time on a host. Each takes an ACCESS EXCLUSIVE lock
/// for every table and index of its shard, and the server's room for locks is limited.
const TURNS: u32 = 4;

/// How many of a host's turns to drop an old copy are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turns {
    /// Shared with others.
    One,
    /// Alone.
    All,
}

impl Hosts {
    /// The hosts of a config.
    pub fn new(hosts: impl IntoIterator<Item = (HostName, ConnectOptions)>) -> Hosts {
        let reached = |(name, connect): (HostName, ConnectOptions)| {
            let lookout = Arc::new(Lookout::new(
                name.clone(),
                connect.clone(),
                "pgshard mover".to_owned(),
            ));
            let turns = Arc::new(Semaphore::new(TURNS as usize));
            let reached = Reached {
                connect,
                lookout,
                turns,
            };
            (name, reached)
        };
        let reached = Arc::new(hosts.into_iter().map(reached).collect());
        Hosts {
            reached,
            spares: Arc::default(),
            cluster: None,
        }
    }

    /// The same, as hosts of this cluster: one that has recorded another is not used.
    pub(crate) fn of_cluster(self, cluster: Cluster) -> Hosts {
        Hosts {
            cluster: Some(Arc::new(cluster)),
            ..self
        }
    }

    /// Refuses to move shards while one of the hosts has all of them in one schema.
    pub(crate) fn are_sharded(&self) -> Result<(), Error> {
        match self
            .cluster
            .as_ref()
            .and_then(|cluster| cluster.unsharded.as_ref())
        {
            None => Ok(()),
            Some(whole) => Err(Error::Unsharded {
                host: whole.host.clone(),
                schema: whole.schema.to_string(),
            }),
        }
    }

    /// Their names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &HostName> {
        self.reached.keys()
    }

    /// How a host is reached.
    pub(crate) fn options(&self, host: &HostName) -> Result<&ConnectOptions, Error> {
        Ok(&self.reached(host)?.connect)
    }

    fn reached(&self, host: &HostName) -> Result<&Reached, Error> {
        self.reached
            .get(host)
            .ok_or_else(|| Error::UnknownHost { host: host.clone() })
    }

    /// Waits for the turn to drop an old copy on both hosts. It ends when the permits are dropped.
    pub(crate) async fn turns(
        &self,
        mut hosts: [&HostName; 2],
        turns: Turns,
    ) -> Result<[SemaphorePermit<'_>; 2], Error> {
        let count = match turns {
            Turns::One => 1,
            Turns::All => TURNS,
        };
        // In one order, so that none waits for another that waits for it.
        hosts.sort_unstable();
        let turn = async |host: &HostName| {
            let closed = |_| Error::UnknownHost { host: host.clone() };
            self.reached(host)?
                .turns
                .acquire_many(count)
                .await
                .map_err(closed)
        };
        Ok([turn(hosts[0]).await?, turn(hosts[1]).await?])
    }

    /// A session of this host: one that was [given back](Hosts::give_back), or a new one.
    pub(crate) async fn open(&self, host: &HostName) -> Result<Session, Error> {
        if let Some(mut spare) = self.spares.take(host)
            && let Ok(Ok(reads_tokens)) =
                tokio::time::timeout(SPARE_ANSWERS_WITHIN, spare.check(self.cluster.as_deref()))
                    .await
        {
            spare.reads_tokens = reads_tokens;
            spare.uses += 1;
            return Ok(spare);
        }
        // Whatever was wrong with it may be wrong with the others. A new one shows whether the host
        // is well.
        self.open_new(host).await
    }

    /// A new session, for a caller that has seen that something is wrong: which server answers is
    /// determined again. Idle sessions are closed.
    pub(crate) fn open_new<'a>(
        &'a self,
        host: &'a HostName,
    ) -> BoxFuture<'a, Result<Session, Error>> {
        Box::pin(async move {
            self.spares.forget(host);
            let Reached {
                connect, lookout, ..
            } = self.reached(host)?;
            let until = Instant::now() + FULL_FOR;
            let client = loop {
                match connect.connect("pgshard mover").await {
                    Ok(client) => break client,
                    Err(source)
                        if source.host_state() == HostState::OutOfConnections
                            && Instant::now() < until =>
                    {
                        tokio::time::sleep(FULL_PAUSE).await;
                    }
                    Err(source) => {
                        let host = host.clone();
                        return Err(Error::Connect { host, source });
                    }
                }
            };
            lookout.start();
            let (opened, uses) = (Instant::now(), 1);
            let mut session = Session {
                host: host.clone(),
                shard: None,
                reads_tokens: true,
                opened,
                uses,
                client,
            };
            session.batch("the mover's settings", SETTINGS).await?;
            session.reads_tokens = session.check(self.cluster.as_deref()).await?;
            Ok(session)
        })
    }

    /// Until the guard is dropped, sessions that are given back are kept for the next caller that
    /// opens one.
    pub(crate) fn keep_sessions(&self) -> Keeper<'_> {
        self.spares.keep()
    }

    /// Gives a session back that has done its work. One that is in a transaction, or does not
    /// answer soon, is closed instead.
    ///
    /// # Cancel safety
    /// If dropped, the session is closed.
    pub(crate) async fn give_back(&self, mut session: Session) {
        if !self.spares.wants(&session) {
            return;
        }
        if let Ok(true) = tokio::time::timeout(SPARE_ANSWERS_WITHIN, session.undo()).await {
            session.shard = None;
            self.spares.put(session);
        }
    }
}

/// How long a session is tried for while the host refuses it because too many are open. A session
/// that was closed counts until its server process has ended.
const FULL_FOR: Duration = Duration::from_secs(2);

/// The pause between two tries.
const FULL_PAUSE: Duration = Duration::from_millis(50);

/// How long a session is given to answer before it waits, and after: four round trips, and a host
/// may be far away.
const SPARE_ANSWERS_WITHIN: Duration = Duration::from_secs(3);
