//! Sessions that are used again, by deadpool-postgres: for programs that look at the same hosts
//! again and again, the exporter and the console. The router has slots of its own (decision 0019).
//!
//! A session is opened as any other of ours ([`ConnectOptions::connect`]: TLS, passwords, whether
//! it is the host). What went wrong is kept next to deadpool's error, which has no room for it.
//!
//! Invariant: a session is kept only if its user returned it, so nothing half-done is in it; and
//! before it is used again, it is reset. **Invariant:** none is kept of a host with several
//! addresses: each use determines the primary again.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_postgres::{
    Connect, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType,
};
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::connect::{CLOSE_PATH, Connection};
use super::connect_error::ConnectError;
use super::options::ConnectOptions;

/// The most sessions to a host. A look takes two at a time.
const SIZE: usize = 4;

/// A session that is not used for so long is closed.
const IDLE_MAX: Duration = Duration::from_secs(300);

/// How long a session that was kept may take to answer. After that it is closed, and the next one
/// is taken.
const RECYCLE_MAX: Duration = Duration::from_secs(2);

/// Undoes what a look may have set, then closes the path again.
const UNDO: &str = "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; \
    SELECT pg_catalog.pg_advisory_unlock_all(); ";

/// The sessions of a program, by host.
pub struct Sessions {
    application_name: String,
    hosts: Mutex<Vec<Host>>,
}

/// The sessions of one host.
#[derive(Clone)]
struct Host {
    connect: ConnectOptions,
    pool: Pool,
    failed: Failed,
}

/// Why sessions could not be opened: one for each error of the pool that is on its way to its
/// caller.
type Failed = Arc<Mutex<Vec<ConnectError>>>;

/// A session. It is closed when it is dropped.
pub struct Session(Kept);

enum Kept {
    Pooled(Box<Object>),
    /// Of a host with several addresses.
    Alone(Box<Connection>),
    GivenBack,
}

/// Opens sessions for a pool.
struct Opener {
    connect: ConnectOptions,
    application_name: String,
    failed: Failed,
}

impl Sessions {
    /// No session yet. `application_name` is what `pg_stat_activity` shows.
    pub fn new(application_name: impl Into<String>) -> Sessions {
        Sessions {
            application_name: application_name.into(),
            hosts: Mutex::default(),
        }
    }

    /// A session of this host: one that was given back, or a new one. At most four are open at a
    /// time; after `connect_timeout` a call that waits for one fails.
    ///
    /// # Errors
    /// As [`ConnectOptions::connect`].
    ///
    /// # Cancel safety
    /// A session that is being opened is closed.
    pub async fn get(&self, connect: &ConnectOptions) -> Result<Session, ConnectError> {
        if connect.addresses().len() > 1 {
            let alone = connect.connect(&self.application_name).await?;
            return Ok(Session(Kept::Alone(Box::new(alone))));
        }
        let host = self.host(connect);
        host.pool
            .retain(|_, metrics| metrics.last_used() < IDLE_MAX);
        match host.pool.get().await {
            Ok(object) => Ok(Session(Kept::Pooled(Box::new(object)))),
            Err(error) => Err(host.reason(&error)),
        }
    }

    /// The sessions of this host; new ones where its config has changed.
    fn host(&self, connect: &ConnectOptions) -> Host {
        let mut hosts = lock(&self.hosts);
        if let Some(host) = hosts.iter().find(|host| host.connect.reaches_as(connect)) {
            return host.clone();
        }
        let failed = Failed::default();
        let opener = Opener {
            connect: connect.clone(),
            application_name: self.application_name.clone(),
            failed: failed.clone(),
        };
        let recycling_method = RecyclingMethod::Custom(format!("{UNDO}{CLOSE_PATH}"));
        let config = ManagerConfig { recycling_method };
        let manager = Manager::from_connect(tokio_postgres::Config::new(), opener, config);
        let pool = Pool::builder(manager)
            .max_size(SIZE)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(connect.connect_timeout()))
            .recycle_timeout(Some(RECYCLE_MAX))
            .build()
            .expect("a pool with limits of time has a runtime");
        let host = Host {
            connect: connect.clone(),
            pool,
            failed,
        };
        // Those of a host with a changed config, or that was removed, end by themselves: no call
        // uses them, and a program has few.
        hosts.retain(|known| known.pool.status().size > 0);
        hosts.push(host.clone());
        host
    }
}

impl Host {
    fn reason(&self, error: &PoolError) -> ConnectError {
        let late = || ConnectError::TimedOut {
            to: self.connect.to_string(),
            timeout_ms: self.connect.connect_timeout().as_millis(),
        };
        match error {
            PoolError::Backend(_) => lock(&self.failed).pop().unwrap_or_else(late),
            PoolError::Timeout(TimeoutType::Wait | TimeoutType::Create | TimeoutType::Recycle)
            | PoolError::Closed
            | PoolError::NoRuntimeSpecified
            | PoolError::PostCreateHook(_) => late(),
        }
    }
}

impl Connect for Opener {
    fn connect(
        &self,
        _: &tokio_postgres::Config,
    ) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        Box::pin(async move {
            // Another server may have become the host without this program's knowledge.
            let connect = self.connect.clone().forgetful();
            match connect.connect(&self.application_name).await {
                Ok(connection) => Ok(connection.into_parts()),
                Err(error) => {
                    let mut failed = lock(&self.failed);
                    // Those of calls that were given up in the meantime.
                    let beyond = failed.len().saturating_sub(SIZE - 1);
                    failed.drain(..beyond);
                    failed.push(error);
                    Err(placeholder())
                }
            }
        })
    }
}

/// The driver's errors cannot be constructed outside of it; this one is about a text that was never
/// given.
fn placeholder() -> tokio_postgres::Error {
    let parsed = "host".parse::<tokio_postgres::Config>();
    parsed.expect_err("a connection string has a value for each name")
}

impl Session {
    /// Keeps the session for the next caller: every query is answered, and no transaction is open.
    pub fn give_back(mut self) {
        drop(std::mem::replace(&mut self.0, Kept::GivenBack));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Without this the pool would keep it.
        if let Kept::Pooled(object) = std::mem::replace(&mut self.0, Kept::GivenBack) {
            drop(Object::take(*object));
        }
    }
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        match &self.0 {
            Kept::Pooled(object) => object,
            Kept::Alone(connection) => connection,
            Kept::GivenBack => unreachable!("giving it back takes it"),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is half-done under these locks when a panic unwinds.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The errors of two calls that fail at the same time are both reported in full.
    #[tokio::test]
    async fn a_host_that_cannot_be_reached_is_reported_as_without_a_pool() {
        let url = "postgres://app@127.0.0.1:1/app?connect_timeout=2";
        let connect = ConnectOptions::parse(url).unwrap();
        let sessions = Sessions::new("test");
        let (one, two) = tokio::join!(sessions.get(&connect), sessions.get(&connect));
        for failed in [one.err(), two.err(), sessions.get(&connect).await.err()] {
            let alone = connect.connect("test").await.err().unwrap();
            assert_eq!(failed.unwrap().to_string(), alone.to_string());
            assert!(matches!(alone, ConnectError::Unreachable { .. }));
        }
        assert!(lock(&sessions.host(&connect).failed).is_empty());
    }

    #[test]
    fn the_placeholder_is_an_error() {
        assert!(super::placeholder().as_db_error().is_none());
    }
}
