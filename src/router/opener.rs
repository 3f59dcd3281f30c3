//! Opens connections to a host, and checks those that were idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::cancel_limits::CancelLimits;
use super::circuit::Circuit;
use super::error::HostDiffers;
use super::options::Recycle;
use super::peers::Peers;
use super::pool_error::PoolError;
use super::session::{OpenedConnection, Session, Statements};
use crate::pg::{ConnectError, ConnectOptions, Connection, Lookout};
use crate::shard::{KeyKind, Layout, ShardCount, unsharded_key};

/// How a pool's connections are opened.
#[derive(Clone)]
pub(super) struct Opener {
    pub(super) connect: ConnectOptions,
    pub(super) application_name: String,
    pub(super) create_max: Duration,
    pub(super) recycle_max: Duration,
    pub(super) statements: Statements,
    pub(super) key: KeyKind,
    pub(super) layout: Layout,
    pub(super) legacy_below: i64,
    pub(super) shards: ShardCount,
    /// Whether a connection to the host was opened once, and its server found to belong to this
    /// cluster.
    pub(super) admitted: Arc<AtomicBool>,
    pub(super) circuit: Arc<Circuit>,
    pub(super) lookout: Arc<Lookout>,
    pub(super) peers: Arc<Peers>,
    pub(super) ends: Arc<CancelLimits>,
    pub(super) recycle: Recycle,
}

impl Opener {
    /// Opens a connection, to be used until `ends_at`.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub(super) async fn open(&self, ends_at: Option<Instant>) -> Result<Session, PoolError> {
        // Taken before the connection is opened: a server that is retired during that time may be
        // the one that it leads to.
        let generation = self.circuit.generation();
        let opening = async {
            let connection = self
                .connect
                .connect_for_application(&self.application_name)
                .await?;
            self.admit(&connection).await?;
            Ok::<_, PoolError>(connection)
        };
        let connection = match tokio::time::timeout(self.create_max, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(self.circuit.timed_out().into()),
        }?;
        self.lookout.start();
        Ok(Session::new(OpenedConnection {
            connection,
            statements: self.statements.clone(),
            generation,
            circuit: self.circuit.clone(),
            recycle: self.recycle,
            recycle_max: self.recycle_max,
            ends: self.ends.clone(),
            ends_at,
        }))
    }

    /// Whether an idle session can be used. Cleans it first, if that was not done when it came
    /// back.
    ///
    /// # Cancel safety
    /// A session that was being cleaned when the future was dropped must not be used again.
    pub(super) async fn checks(&self, session: &Session) -> bool {
        if session.is_worn() {
            return false;
        }
        if session.is_dirty() && !Box::pin(session.clean()).await {
            self.circuit.doubt();
            return false;
        }
        true
    }

    /// On the first connection to a host, checks that the host maps keys to shards, and keeps its
    /// shards, as this router does, and then takes in what it has recorded of the other hosts and
    /// itself. A host that has recorded nothing belongs to no cluster. It passes here: every
    /// statement on a shard fails there by itself. An unsharded host must have recorded that it is
    /// one, since a statement may find its tables wherever they are.
    async fn admit(&self, connection: &Connection) -> Result<(), PoolError> {
        if self.admitted.load(Ordering::Relaxed) {
            return Ok(());
        }
        let recorded = connection
            .query_typed(
                "SELECT shards, key_kind, legacy_below FROM pgshard.cluster",
                &[],
            )
            .await;
        // A row that cannot be read answers nothing, so a connection that gives one is not used.
        let strange = |source| ConnectError::Refused {
            to: self.connect.to_string(),
            source,
        };
        let row = match (recorded.as_deref(), &self.layout) {
            (Ok([row]), _) => row,
            (_, Layout::Sharded) => return Ok(()),
            (Ok(_), Layout::Unsharded(_)) => {
                return Err(HostDiffers::Layout {
                    recorded: "nothing",
                    config: "unsharded",
                }
                .into());
            }
            (Err(_), Layout::Unsharded(_)) => {
                recorded.map_err(strange)?;
                return Ok(());
            }
        };
        let (shards, key, legacy_below): (i32, String, i64) = (
            row.try_get(0).map_err(strange)?,
            row.try_get(1).map_err(strange)?,
            row.try_get(2).map_err(strange)?,
        );
        self.matches(shards, &key, legacy_below)?;
        if let Layout::Unsharded(schema) = &self.layout {
            let whole = "SELECT schema_name FROM pgshard.whole";
            let whole = connection.query_typed(whole, &[]).await.map_err(strange)?;
            let there: Option<String> = whole.first().and_then(|row| row.try_get(0).ok());
            if there.as_deref() != Some(schema.as_str()) {
                return Err(HostDiffers::Schema {
                    recorded: there,
                    config: schema.clone(),
                }
                .into());
            }
        }
        self.peers.read_records(connection).await;
        self.connect.is_host(connection)?;
        self.admitted.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether what the host recorded of the cluster is what the router was made for.
    fn matches(&self, shards: i32, key: &str, legacy_below: i64) -> Result<(), HostDiffers> {
        if shards != i32::from(self.shards.get()) {
            return Err(HostDiffers::Shards {
                recorded: shards,
                config: self.shards,
            });
        }
        let (there, config) = (unsharded_key(key), self.layout.whole());
        if there.is_some() != config.is_some() {
            let name = |is_unsharded| if is_unsharded { "unsharded" } else { "sharded" };
            return Err(HostDiffers::Layout {
                recorded: name(there.is_some()),
                config: name(config.is_some()),
            });
        }
        let key = there.unwrap_or(key);
        if key != self.key.as_str() {
            return Err(HostDiffers::Key {
                recorded: key.to_owned(),
                config: self.key,
            });
        }
        if legacy_below != self.legacy_below {
            return Err(HostDiffers::LegacyBelow {
                recorded: legacy_below,
                config: self.legacy_below,
            });
        }
        Ok(())
    }
}
