//! The statements that read and replace the map, each with a limit to its time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Notify;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, ToSql, Type};
use uuid::Uuid;

use crate::map::{HostName, MapVersion, Placement, ShardMap, parse_ranges};
use crate::pg::{ConnectOptions, Connection};
use crate::shard::ShardCount;
use crate::store::StoreError;

/// A map that was published, and how it came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The map.
    pub map: ShardMap,
    /// When, by the database's clock.
    pub published_at: Timestamp,
    /// The database role.
    pub role: String,
    /// Machine and process.
    pub publisher: String,
    /// The reason of [`PostgresStore::with_reason`](super::PostgresStore::with_reason); may be
    /// empty.
    pub reason: String,
}

/// The tables and the function.
const TABLES: &str = include_str!("../../../migrations/store/0001_map.sql");

/// The `pgshard_map.format` that these statements are written for.
const FORMAT: i32 = 1;

/// How long one statement may take. They touch one row, or read as many as requested.
const LIMIT: Duration = Duration::from_secs(10);

/// How long the query may take that finds what blocks a statement.
const HOLDERS_LIMIT: Duration = Duration::from_secs(3);

/// Who holds a lock for which a statement about the map waits.
const HOLDERS: &str = "SELECT DISTINCT pg_catalog.format('backend %s (%s, %s, %s)', b.pid, \
    b.usename,
        coalesce(nullif(b.application_name, ''), 'without a name'), coalesce(b.state, 'state \
        unknown'))
    FROM pg_catalog.pg_stat_activity w
    CROSS JOIN LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(w.pid)) AS held(pid)
    JOIN pg_catalog.pg_stat_activity b ON b.pid = held.pid
    WHERE w.wait_event_type = 'Lock' AND w.datname = pg_catalog.current_database()
        AND (w.query LIKE '%pgshard_map.%' OR w.query LIKE '%(1885827944, 1001)%')";

/// Only one install runs at a time. The lock's key is the bytes "pgsh" and a number of its own.
const LOCK: &str =
    "SET LOCAL lock_timeout = '10s'; SELECT pg_catalog.pg_advisory_xact_lock(1885827944, 1001)";

/// A connection to the control database.
pub(super) struct Session {
    connection: Connection,
    connect: ConnectOptions,
    /// `user@address/database`, for messages.
    to: String,
}

/// A map as it is kept.
pub(super) struct Kept {
    pub(super) map: ShardMap,
    /// Which publication it is of.
    pub(super) publication: Uuid,
}

/// A parameter with its type, so that a statement takes one round trip.
type Typed<'a> = (&'a (dyn ToSql + Sync), Type);

impl Session {
    /// Connects; with `heard`, for LISTEN.
    pub(super) async fn open(
        connect: &ConnectOptions,
        heard: Option<Arc<Notify>>,
    ) -> Result<Session, StoreError> {
        let opened = match heard {
            Some(heard) => connect.connect_listening(APPLICATION_NAME, heard).await,
            None => connect.connect(APPLICATION_NAME).await,
        };
        let connection = opened.map_err(|source| StoreError::Connect {
            source: Box::new(source),
        })?;
        Ok(Session {
            connection,
            connect: connect.clone(),
            to: connect.to_string(),
        })
    }

    /// Whether the connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// Subscribes to notifications from now on.
    pub(super) async fn listen(&self) -> Result<(), StoreError> {
        self.within(
            "listen for new maps",
            self.connection.batch_execute("LISTEN pgshard_map"),
        )
        .await
    }

    /// The map, unless it is of the publication seen; `None` then, or when there is none.
    pub(super) async fn fetch(
        &self,
        shards: ShardCount,
        seen: Option<Uuid>,
    ) -> Result<Option<Kept>, StoreError> {
        let sql = "SELECT m.version, m.shards, m.placement::text, m.publication, f.version
            FROM pgshard_map.map m, pgshard_map.format f WHERE m.publication IS DISTINCT FROM $1";
        let rows = self
            .rows("read the map", sql, &[(&seen, Type::UUID)])
            .await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let format: i32 = self.column(row, 4)?;
        if format != FORMAT {
            return Err(self.damaged(format!(
                "tables of format {format}, this pgshard knows {FORMAT}"
            )));
        }
        Ok(Some(Kept {
            map: self.map_of(shards, row)?,
            publication: self.column(row, 3)?,
        }))
    }

    /// The map.
    pub(super) async fn map(&self, shards: ShardCount) -> Result<ShardMap, StoreError> {
        Ok(self
            .fetch(shards, None)
            .await?
            .ok_or_else(|| self.empty())?
            .map)
    }

    /// The newest maps, newest first, each with its publication.
    pub(super) async fn history(
        &self,
        shards: ShardCount,
        count: i64,
    ) -> Result<Vec<Publication>, StoreError> {
        let sql = "SELECT version, shards, placement::text, published_at, role, publisher, reason
            FROM pgshard_map.history ORDER BY version DESC LIMIT $1";
        let rows = self
            .rows("read the map's history", sql, &[(&count, Type::INT8)])
            .await?;
        let publication = |row: &Row| {
            Ok(Publication {
                map: self.map_of(shards, row)?,
                published_at: self.column(row, 3)?,
                role: self.column(row, 4)?,
                publisher: self.column(row, 5)?,
                reason: self.column(row, 6)?,
            })
        };
        rows.iter().map(publication).collect()
    }

    /// The newest map of the history that can be read.
    pub(super) async fn last_readable(
        &self,
        shards: ShardCount,
    ) -> Result<Option<ShardMap>, StoreError> {
        let sql = "SELECT version, shards, placement::text FROM pgshard_map.history ORDER BY \
            version DESC";
        let rows = self.rows("read the map's history", sql, &[]).await?;
        Ok(rows.iter().find_map(|row| self.map_of(shards, row).ok()))
    }

    /// The version of what is kept, whether it is a map or not; `None` where nothing is.
    pub(super) async fn kept_version(&self) -> Result<Option<MapVersion>, StoreError> {
        let sql = "SELECT f.version, m.version FROM pgshard_map.format f LEFT JOIN pgshard_map.map \
            m ON true";
        let rows = self.rows("read the map's version", sql, &[]).await?;
        let Some(row) = rows.first() else {
            return Err(self.damaged("tables without a format"));
        };
        let format: i32 = self.column(row, 0)?;
        if format != FORMAT {
            return Err(self.damaged(format!(
                "tables of format {format}, this pgshard knows {FORMAT}"
            )));
        }
        Ok(self
            .column::<Option<i64>>(row, 1)?
            .map(|version| MapVersion::new(version.unsigned_abs())))
    }

    /// The map that had this version.
    pub(super) async fn version(
        &self,
        shards: ShardCount,
        version: MapVersion,
    ) -> Result<Option<ShardMap>, StoreError> {
        let sql =
            "SELECT version, shards, placement::text FROM pgshard_map.history WHERE version = $1";
        let rows = self
            .rows(
                "read the map's history",
                sql,
                &[(&as_i64(version), Type::INT8)],
            )
            .await?;
        rows.first().map(|row| self.map_of(shards, row)).transpose()
    }

    /// Replaces the map of a version, or, without one, makes the first. Returns whether it was
    /// done, and the version found.
    pub(super) async fn publish(
        &self,
        expected: Option<MapVersion>,
        map: &ShardMap,
        reason: &str,
    ) -> Result<(bool, Option<MapVersion>), StoreError> {
        let placement: BTreeMap<&str, String> = map
            .hosts()
            .iter()
            .map(|host| (host.as_str(), map.ranges(host)))
            .collect();
        let placement = serde_json::to_string(&placement).expect("texts by texts are JSON");
        let (expected, version, shards) = (
            expected.map(as_i64),
            as_i64(map.version()),
            i32::from(map.shards().get()),
        );
        let publisher = publisher();
        let sql =
            "SELECT published, was FROM pgshard_map.publish($1, $2, $3, $4::text::jsonb, $5, $6)";
        let parameters: [Typed<'_>; 6] = [
            (&expected, Type::INT8),
            (&version, Type::INT8),
            (&shards, Type::INT4),
            (&placement, Type::TEXT),
            (&publisher, Type::TEXT),
            (&reason, Type::TEXT),
        ];
        let rows = self.rows("publish the map", sql, &parameters).await?;
        let row = rows
            .first()
            .ok_or_else(|| self.damaged("a function publish that gives no row"))?;
        let found = self.column::<Option<i64>>(row, 1)?;
        Ok((
            self.column(row, 0)?,
            found.map(|found| MapVersion::new(found.unsigned_abs())),
        ))
    }

    /// Makes the tables where there are none, and the first map where there is none. Returns
    /// whether it made the map.
    pub(super) async fn install(
        &mut self,
        map: &ShardMap,
        reason: &str,
    ) -> Result<bool, StoreError> {
        self.within("begin", self.connection.batch_execute("BEGIN"))
            .await?;
        self.within(
            "get the lock on the map's tables",
            self.connection.batch_execute(LOCK),
        )
        .await?;
        let sql = "SELECT pg_catalog.to_regnamespace('pgshard_map') IS NOT NULL";
        let there = self.rows("look for the map's tables", sql, &[]).await?;
        if !there.first().map_or(Ok(false), |row| self.column(row, 0))? {
            self.within(
                "make the map's tables",
                self.connection.batch_execute(TABLES),
            )
            .await?;
        }
        let (made, _) = self.publish(None, map, reason).await?;
        self.within("commit", self.connection.batch_execute("COMMIT"))
            .await?;
        Ok(made)
    }

    /// The error when there is no map.
    pub(super) fn empty(&self) -> StoreError {
        StoreError::NoMap {
            to: self.to.clone(),
        }
    }

    fn damaged(&self, what: impl Into<String>) -> StoreError {
        StoreError::Damaged {
            to: self.to.clone(),
            what: what.into(),
        }
    }

    fn column<'r, T: FromSql<'r>>(&self, row: &'r Row, column: usize) -> Result<T, StoreError> {
        row.try_get(column).map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            self.damaged(
                cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}")),
            )
        })
    }

    /// The map of a row with its version, its shards and its placement as the first columns.
    fn map_of(&self, wanted: ShardCount, row: &Row) -> Result<ShardMap, StoreError> {
        let (version, shards): (i64, i32) = (self.column(row, 0)?, self.column(row, 1)?);
        let placement: &str = self.column(row, 2)?;
        if shards != i32::from(wanted.get()) {
            return Err(StoreError::OtherShards {
                to: self.to.clone(),
                kept: shards,
                config: wanted,
            });
        }
        let lists: BTreeMap<String, String> =
            serde_json::from_str(placement).map_err(|error| self.damaged(error.to_string()))?;
        let mut placements = Vec::with_capacity(usize::from(wanted.get()));
        for (host, list) in lists {
            let host = HostName::new(&host).map_err(|error| self.damaged(error.to_string()))?;
            let items =
                parse_ranges(&list, wanted).map_err(|errors| self.damaged(joined(&errors)))?;
            for item in items {
                if placements.len() > usize::from(wanted.get()) {
                    return Err(self.damaged("more than one place for some shard".to_owned()));
                }
                placements.extend(item.shards().map(|s| {
                    (
                        s,
                        Placement {
                            host: host.clone(),
                            epoch: item.epoch,
                        },
                    )
                }));
            }
        }
        let version = MapVersion::new(version.unsigned_abs());
        ShardMap::new(version, wanted, placements).map_err(|errors| self.damaged(joined(&errors)))
    }

    async fn rows(
        &self,
        doing: &'static str,
        sql: &str,
        parameters: &[Typed<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let parameters: Vec<Typed<'_>> = parameters.to_vec();
        self.within(doing, async {
            self.connection.query_typed(sql, &parameters).await
        })
        .await
    }

    async fn within<T>(
        &self,
        doing: &'static str,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(LIMIT, work).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(source)) if source.code().is_some_and(is_missing) => {
                Err(StoreError::NotInstalled {
                    to: self.to.clone(),
                })
            }
            Ok(Err(source)) => Err(StoreError::Sql {
                doing,
                to: self.to.clone(),
                source,
            }),
            Err(_) => {
                let holders = tokio::time::timeout(HOLDERS_LIMIT, self.holders())
                    .await
                    .ok()
                    .flatten();
                let (to, holders) = (self.to.clone(), holders.unwrap_or_default());
                Err(StoreError::TimedOut {
                    doing,
                    to,
                    limit: LIMIT,
                    holders,
                })
            }
        }
    }

    /// The sessions that one of ours waits for, read over another connection. `None` if the server
    /// does not show them.
    async fn holders(&self) -> Option<Vec<String>> {
        let connection = self.connect.connect(APPLICATION_NAME).await.ok()?;
        let rows = connection.query_typed(HOLDERS, &[]).await.ok()?;
        rows.iter().map(|row| row.try_get(0).ok()).collect()
    }
}

/// What `pg_stat_activity` shows.
const APPLICATION_NAME: &str = "pgshard map";

fn is_missing(code: &SqlState) -> bool {
    [SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME].contains(code)
}

/// Versions count publications, so that they fit by far.
fn as_i64(version: MapVersion) -> i64 {
    i64::try_from(version.get()).unwrap_or(i64::MAX)
}

fn joined(errors: &[impl ToString]) -> String {
    errors
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

/// Machine and process, for people.
fn publisher() -> String {
    let machine = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    format!("{machine} pid {}", std::process::id())
}
