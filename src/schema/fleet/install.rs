//! Installs the control schema on a host, and brings it up to date.
//!
//! Invariant: a step is run once, whole, and only on a host that the comparison with the config has
//! nothing against.

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::map::{HostName, ShardEpoch};
use crate::schema::control::Cluster;
use crate::schema::control::damage::damages;
use crate::schema::control::lock;
use crate::schema::control::rights::{self, Roles};
use crate::schema::control::shape;
use crate::schema::control::steps::{STEPS, checksum};
use crate::schema::survey::facts::FactsError;
use crate::schema::survey::refusal::{Refusal, pending};
use crate::schema::survey::{host_facts, installed, shape as read_shape};
use crate::shard::WholeSchema;

/// How long an installation waits for another one.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// Why the control schema was not installed. Nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The host is not as it should be: every reason.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Refused(Vec<Refusal>),
    /// The host cannot be read.
    #[error("the host cannot be read")]
    Facts(#[source] FactsError),
    /// Another installation has held the lock for ten seconds.
    #[error("another process has been installing the control schema for ten seconds")]
    Busy,
    /// Another session has held a lock on a table of the control schema for five seconds.
    #[error(
        "cannot {doing}, while another session holds a lock on its tables, as pg_dump does until \
         it ends"
    )]
    Locked {
        /// What was being done.
        doing: &'static str,
        /// The server's message.
        #[source]
        source: tokio_postgres::Error,
    },
    /// A statement failed.
    #[error("cannot {doing}")]
    Sql {
        /// What was being done.
        doing: &'static str,
        /// The error of the server or the driver.
        #[source]
        source: tokio_postgres::Error,
    },
}

/// Installs the control schema on a host, or brings it up to date, and creates again what is
/// missing or altered. Returns the versions of which it ran something. If two do so at the same
/// time, they wait for each other, and the second finds nothing to do.
///
/// # Errors
/// When the host recorded another cluster or another name than the config has, when rights are
/// missing, and when a statement fails. Nothing was written then.
///
/// # Cancel safety
/// All or nothing: it is one transaction.
pub async fn install(
    client: &mut Client,
    cluster: &Cluster,
    host: &HostName,
) -> Result<Vec<i32>, ControlError> {
    install_for(client, cluster, host, &Roles::default()).await
}

/// Records that an unsharded host serves all shards since this epoch. Does nothing where it does.
///
/// Locks: the one row of pgshard.whole.
pub(in crate::schema) async fn serve_all(
    client: &Client,
    schema: &WholeSchema,
    epoch: ShardEpoch,
) -> Result<(), tokio_postgres::Error> {
    let epoch = epoch.as_i32();
    let sql = "INSERT INTO pgshard.whole (schema_name, state, epoch) VALUES ($1, 'serving', $2)
        ON CONFLICT DO NOTHING";
    client
        .execute(sql, &[&schema.as_str(), &epoch])
        .await
        .map(drop)
}

/// As [`install`], and lets these roles look up shards, as well as those that may use a shard of
/// the host. In one transaction: what was PUBLIC's once is a router's at every moment.
pub(in crate::schema) async fn install_for(
    client: &mut Client,
    cluster: &Cluster,
    host: &HostName,
    others: &Roles,
) -> Result<Vec<i32>, ControlError> {
    let sql = |doing| {
        move |source: tokio_postgres::Error| match source.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE) => ControlError::Locked { doing, source },
            _ => ControlError::Sql { doing, source },
        }
    };
    let transaction = client
        .transaction()
        .await
        .map_err(sql("begin a transaction"))?;
    let locked = lock::control(transaction.client(), Instant::now() + LOCK_PATIENCE).await;
    if !locked.map_err(sql("get the lock on the control schema"))? {
        return Err(ControlError::Busy);
    }
    let facts = host_facts(transaction.client())
        .await
        .map_err(ControlError::Facts)?;
    let mut versions = pending(&facts, cluster, host).map_err(ControlError::Refused)?;
    if let Some(schema) = cluster.whole(host) {
        let there = "SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1";
        let there = transaction.query(there, &[&schema.as_str()]).await;
        if there
            .map_err(sql("look for the schema of all shards"))?
            .is_empty()
        {
            let schema = schema.to_string();
            return Err(ControlError::Refused(vec![Refusal::NoSchema { schema }]));
        }
    }
    // What is created now belongs to the owner of the rest, whichever role creates it. Steps and
    // repairs alter tables that routers and movers use: they must not queue behind it for long.
    let as_owner =
        "SELECT pg_catalog.set_config('role', pg_catalog.pg_get_userbyid(nspowner), true)
        FROM pg_catalog.pg_namespace WHERE nspname = 'pgshard'";
    transaction
        .query(as_owner, &[])
        .await
        .map_err(sql("become the owner of the control schema"))?;
    let patience = transaction
        .batch_execute("SET LOCAL lock_timeout = '5s'")
        .await;
    patience.map_err(sql("bound the wait for locks"))?;
    for step in STEPS.iter().filter(|step| versions.contains(&step.version)) {
        transaction
            .batch_execute(step.sql)
            .await
            .map_err(sql("run a control migration"))?;
        let record =
            "INSERT INTO pgshard.control_migration (version, name, checksum) VALUES ($1, $2, $3)";
        let recorded = transaction
            .execute(record, &[&step.version, &step.name, &checksum(step.sql)])
            .await;
        recorded.map_err(sql("record a control migration"))?;
    }
    let installed = installed(transaction.client())
        .await
        .map_err(ControlError::Facts)?;
    let shape = read_shape(transaction.client())
        .await
        .map_err(ControlError::Facts)?;
    let damages = damages(&installed)
        .into_iter()
        .chain(shape::damages(&shape));
    for damage in damages.filter(|damage| damage.by_hand.is_none()) {
        transaction
            .batch_execute(&damage.mend)
            .await
            .map_err(sql("make good what is missing"))?;
        versions.push(damage.version);
    }
    versions.sort_unstable();
    versions.dedup();
    let admitted = rights::admit_all(transaction.client(), others).await;
    admitted.map_err(sql("let the roles of routers and monitors ask"))?;
    if facts.control.is_none() {
        let record =
            "INSERT INTO pgshard.cluster (shards, epoch_ms, schema_prefix, host_name, key_kind,
                legacy_below)
            VALUES ($1, $2, $3, $4, $5, $6)";
        let (shards, epoch_ms) = (i32::from(cluster.shards.get()), cluster.epoch.unix_ms());
        let key = cluster.layout(host.as_str()).recorded_key(cluster.key);
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 6] = [
            &shards,
            &epoch_ms,
            &cluster.schema_prefix.as_str(),
            &host.as_str(),
            &key,
            &cluster.legacy_below,
        ];
        transaction
            .execute(record, &values)
            .await
            .map_err(sql("record the cluster"))?;
    }
    transaction.commit().await.map_err(sql("commit"))?;
    Ok(versions)
}
