//! Checks whether a server at another address of a host takes writes. This finds a standby that was
//! promoted while the former primary still runs, frozen or unaware of it.
//!
//! Invariant: a host with one address costs nothing. Each other address is checked once in
//! [`Lookout::EVERY`], on a connection that is kept, and no call waits for the result.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;

use super::connect::SearchPath;
use super::identity::AddressAnswer;
use super::{ConnectOptions, Connection, Server};
use crate::map::HostName;

/// Watches the other addresses of one host, from its first connection until its user is dropped.
pub(crate) struct Lookout {
    host: HostName,
    connect: ConnectOptions,
    application_name: String,
    /// Whether the host has other addresses to look at.
    several: bool,
    looking: AtomicBool,
    /// Whether the log has already reported that another server takes writes.
    warned: AtomicBool,
}

impl std::fmt::Debug for Lookout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookout")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl Lookout {
    /// The time between two looks.
    const EVERY: Duration = Duration::from_secs(3);
    /// How long an answer may take, the connection included.
    const ANSWER_MAX: Duration = Duration::from_secs(2);

    pub(crate) fn new(
        host: HostName,
        connect: ConnectOptions,
        application_name: String,
    ) -> Lookout {
        let several = connect.is_for_primary() && connect.addresses().len() > 1;
        let (looking, warned) = (AtomicBool::new(false), AtomicBool::new(false));
        Lookout {
            host,
            connect,
            application_name,
            several,
            looking,
            warned,
        }
    }

    /// Starts looking, unless that was done already.
    pub(crate) fn start(self: &Arc<Self>) {
        if !self.several || self.looking.swap(true, Ordering::Relaxed) {
            return;
        }
        let looking = Looking(Arc::downgrade(self));
        let mut kept: Vec<Option<Connection>> =
            self.connect.addresses().iter().map(|_| None).collect();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Self::EVERY).await;
                let Some(lookout) = looking.0.upgrade() else {
                    return;
                };
                lookout.check_addresses(&mut kept).await;
            }
        });
    }

    async fn check_addresses(&self, kept: &mut [Option<Connection>]) {
        let first = self.connect.first();
        let ask = async |(index, kept)| {
            let kept: &mut Option<Connection> = kept;
            if index == first {
                *kept = None;
                return (index, None);
            }
            let answer =
                tokio::time::timeout(Self::ANSWER_MAX, self.read_server(index, kept)).await;
            if answer.is_err() {
                *kept = None;
            }
            (index, answer.ok().flatten())
        };
        let answers: Vec<(usize, Option<Server>)> =
            join_all(kept.iter_mut().enumerate().map(ask)).await;
        let mut strange = false;
        for (index, server) in answers {
            let Some(server) = server else { continue };
            let (host, address) = (&self.host, self.connect.address(index));
            match self.connect.learn_of(index, server) {
                AddressAnswer::Nothing => {}
                AddressAnswer::Later => {
                    tracing::warn!(%host, address, "was promoted: connections to the former \
                        primary are closed");
                }
                AddressAnswer::Impostor(why) => {
                    strange = true;
                    if !self.warned.load(Ordering::Relaxed) {
                        tracing::warn!(%host, address, %why, "another server takes writes");
                    }
                }
                AddressAnswer::Rival => {
                    strange = true;
                    if !self.warned.load(Ordering::Relaxed) {
                        tracing::error!(%host, address, "another server takes writes too, and \
                            nothing tells which is right");
                    }
                }
            }
        }
        self.warned.store(strange, Ordering::Relaxed);
    }

    async fn read_server(&self, index: usize, kept: &mut Option<Connection>) -> Option<Server> {
        if let Some(connection) = kept {
            if let Ok(server) = connection.read_server().await {
                return Some(server);
            }
            *kept = None;
        }
        let asked = self
            .connect
            .reach(index, &self.application_name, SearchPath::OfTheRole);
        let connection = Box::pin(asked).await.ok()?;
        Some(kept.insert(connection).server())
    }
}

/// Records the end of the watch when the task ends: its owner can outlive the runtime that the task
/// ran in.
struct Looking(Weak<Lookout>);

impl Drop for Looking {
    fn drop(&mut self) {
        if let Some(lookout) = self.0.upgrade() {
            lookout.looking.store(false, Ordering::Relaxed);
        }
    }
}
