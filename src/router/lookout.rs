//! Who takes a host's writes at its other addresses: a standby that was promoted is seen there even where the former
//! primary lives on, frozen or as it was, and says nothing of it.
//!
//! Invariant: a host with one address costs nothing; of the others each is asked once in [`Lookout::EVERY`], by a
//! connection that is kept, and nobody's call waits for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;

use crate::map::HostName;
use crate::pg::{ConnectOptions, Connection, Seen, Server};

/// Looks at the other addresses of one host, from its first connection on, for as long as the router lives.
pub(super) struct Lookout {
    host: HostName,
    connect: ConnectOptions,
    application_name: String,
    /// Whether there are others.
    several: bool,
    looking: AtomicBool,
    /// Whether it was told that another server takes writes.
    warned: AtomicBool,
}

impl Lookout {
    /// From one look to the next.
    const EVERY: Duration = Duration::from_secs(3);
    /// How long an answer may take, the connection included.
    const ANSWER_MAX: Duration = Duration::from_secs(2);

    pub(super) fn new(host: HostName, connect: ConnectOptions, application_name: String) -> Lookout {
        let several = connect.is_for_primary() && connect.addresses().len() > 1;
        let (looking, warned) = (AtomicBool::new(false), AtomicBool::new(false));
        Lookout { host, connect, application_name, several, looking, warned }
    }

    /// Begins, if that was not done yet.
    pub(super) fn start(self: &Arc<Self>) {
        if !self.several || self.looking.swap(true, Ordering::Relaxed) {
            return;
        }
        let looking = Looking(Arc::downgrade(self));
        let mut kept: Vec<Option<Connection>> = self.connect.addresses().iter().map(|_| None).collect();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Self::EVERY).await;
                let Some(lookout) = looking.0.upgrade() else { return };
                lookout.look(&mut kept).await;
            }
        });
    }

    async fn look(&self, kept: &mut [Option<Connection>]) {
        let first = self.connect.first();
        let ask = async |(index, kept)| {
            let kept: &mut Option<Connection> = kept;
            if index == first {
                *kept = None;
                return (index, None);
            }
            let answer = tokio::time::timeout(Self::ANSWER_MAX, self.ask(index, kept)).await;
            if answer.is_err() {
                *kept = None;
            }
            (index, answer.ok().flatten())
        };
        let answers: Vec<(usize, Option<Server>)> = join_all(kept.iter_mut().enumerate().map(ask)).await;
        let mut strange = false;
        for (index, server) in answers {
            let Some(server) = server else { continue };
            let (host, address) = (&self.host, self.connect.address(index));
            match self.connect.learn_of(index, server) {
                Seen::Nothing => {}
                Seen::Later => {
                    tracing::warn!(%host, address, "was promoted: connections to the former primary are closed");
                }
                Seen::Impostor(why) => {
                    strange = true;
                    if !self.warned.load(Ordering::Relaxed) {
                        tracing::warn!(%host, address, %why, "another server takes writes");
                    }
                }
                Seen::Rival => {
                    strange = true;
                    if !self.warned.load(Ordering::Relaxed) {
                        tracing::error!(%host, address, "another server takes writes too, and nothing tells which is \
                            right");
                    }
                }
            }
        }
        self.warned.store(strange, Ordering::Relaxed);
    }

    async fn ask(&self, index: usize, kept: &mut Option<Connection>) -> Option<Server> {
        if let Some(connection) = kept {
            if let Ok(server) = connection.ask().await {
                return Some(server);
            }
            *kept = None;
        }
        let connection = Box::pin(self.connect.reach(index, &self.application_name, None)).await.ok()?;
        Some(kept.insert(connection).server())
    }
}

/// Ends with its task: a router outlives the runtime that it began in.
struct Looking(Weak<Lookout>);

impl Drop for Looking {
    fn drop(&mut self) {
        if let Some(lookout) = self.0.upgrade() {
            lookout.looking.store(false, Ordering::Relaxed);
        }
    }
}
