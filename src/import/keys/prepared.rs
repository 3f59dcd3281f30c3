//! What the steps are found from: facts, decisions, details and the record.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Client;

use super::record;
use super::refuse::{self, Silence};
use super::table::{self, Details, KeyTable};
use crate::import::change::{ChangeError, ChangeRequest, Session};
use crate::import::choices;
use crate::import::decide::Decisions;
use crate::import::decided;
use crate::import::error::Error;
use crate::import::facts::Database;
use crate::import::read::{self, Added};
use crate::pg::ConnectOptions;

/// A database, and its tables that are to get the key.
pub(super) struct Prepared {
    pub(super) database: Database,
    pub(super) decisions: Decisions,
    pub(super) details: BTreeMap<u32, Details>,
    /// The tables, the parents first.
    pub(super) tables: Vec<KeyTable>,
    /// Those that were named.
    pub(super) named: BTreeSet<u32>,
}

/// Reads everything, in a session that only reads and in the one that has the lock.
pub(super) async fn prepare(
    connect: &ConnectOptions,
    session: &Session,
    request: &ChangeRequest,
) -> Result<Prepared, ChangeError> {
    let connection = read::open(connect).await?;
    let client = connection.client();
    let read = decided::read(client, &request.key, &request.choices, Added::Hidden);
    let (database, decisions) = read.await?;
    let imported = decisions
        .iter()
        .filter(|(_, decision)| decision.is_imported());
    let oids: BTreeSet<u32> = imported.map(|(oid, _)| *oid).collect();
    let details = details(client, &oids).await?;
    connection.finish().await;
    let records = record::read(session).await?;
    let records = records.into_iter().map(|record| (record.relation, record));
    let mut only = BTreeSet::new();
    for name in &request.tables {
        let table = choices::find(&database, name)?;
        if !oids.contains(&table.oid) {
            let table = name.to_string();
            return Err(Error::NotImported { table }.into());
        }
        only.insert(table.oid);
    }
    let mut names = BTreeMap::new();
    for (name, column) in &request.columns {
        names.insert(choices::find(&database, name)?.oid, column.clone());
    }
    let records = records.collect();
    let tables = table::tables(&database, &decisions, &details, &records, &names, &only);
    Ok(Prepared {
        database,
        decisions,
        details,
        tables,
        named: only,
    })
}

impl Prepared {
    /// Refuses what cannot be done, before anything is changed.
    pub(super) async fn refuse(&self, session: &Session) -> Result<(), ChangeError> {
        let silence = silence(session).await?;
        let (database, decisions) = (&self.database, &self.decisions);
        let refusals = refuse::refusals(database, decisions, &self.details, &self.tables, silence);
        if refusals.is_empty() {
            Ok(())
        } else {
            Err(ChangeError::Refused { refusals })
        }
    }
}

/// Whether the application's triggers can be kept from firing.
async fn silence(session: &Session) -> Result<Silence, ChangeError> {
    let sql = "BEGIN; SET LOCAL session_replication_role = replica; ROLLBACK";
    let Err(source) = session.client().batch_execute(sql).await else {
        return Ok(Silence::Allowed);
    };
    session.execute("end a try", "ROLLBACK").await?;
    if source.code() == Some(&tokio_postgres::error::SqlState::INSUFFICIENT_PRIVILEGE) {
        return Ok(Silence::Refused);
    }
    Err(ChangeError::postgres("prepare to fill rows", source))
}

/// Reads the details of tables.
pub(super) async fn details(
    client: &Client,
    tables: &BTreeSet<u32>,
) -> Result<BTreeMap<u32, Details>, Error> {
    let oids: Vec<String> = tables.iter().map(u32::to_string).collect();
    let list = format!("{{{}}}", oids.join(","));
    let sql = include_str!("../sql/keys.sql").replace("{oids}", &list);
    let details: Vec<Details> = read::facts(client, "the columns of tables", &sql).await?;
    Ok(details.into_iter().map(|one| (one.oid, one)).collect())
}
