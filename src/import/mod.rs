//! Bringing the tables of one database into shards: [`assess`] reads a database and judges whether
//! it can be done, [`keys`] gives each table the key, and [`separate`] puts the tables into a
//! schema of their own.
//!
//! `read` and `sample` make `facts`, `decide` determines what becomes of each table, and `judge`
//! finds the obstacles; both are pure. `statements` reads what the application sends. `change` has
//! what the commands that write have in common.
//!
//! Invariant: an assessment writes nothing. Its session is read-only, waits for a lock for a second
//! at most, and reads bounded samples of rows.

mod assessment;
mod carried;
mod change;
mod choices;
mod decide;
mod decided;
mod error;
mod estimate;
mod facts;
mod judge;
mod key;
pub mod keys;
mod names;
mod obstacle;
mod read;
mod report;
mod sample;
pub mod separate;
mod statements;

use std::path::PathBuf;

use futures_util::future::BoxFuture;
use jiff::Timestamp;

pub use assessment::{
    Assessment, IdReport, LargeKey, PathStep, TableDecision, TableReport, Verdict,
};
pub use change::{Blocker, ChangeError, ChangeEvent, ChangeRequest, Observer, Refusal, StepKind};
pub use choices::{Choices, TableName, TableNameError};
pub use error::Error;
pub use estimate::{Figure, Goal};
pub use key::{KeyName, KeyNameError};
pub use obstacle::{Level, Obstacle, ObstacleObject};
pub use statements::{StatementClass, StatementReport, StatementSource, WithoutKey};

use crate::id::Epoch;
use crate::pg::ConnectOptions;

/// What is to be assessed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The key.
    pub key: KeyName,
    /// A file with statements, or a log; otherwise `pg_stat_statements` is read.
    pub statements: Option<PathBuf>,
    /// The epoch of the IDs that shards will make.
    pub epoch: Epoch,
    /// What the cluster will be.
    pub goal: Goal,
    /// What was decided about tables.
    pub choices: Choices,
}

impl Request {
    /// An assessment for this key, with defaults for the rest.
    pub fn new(key: KeyName, epoch: Epoch) -> Request {
        Request {
            key,
            statements: None,
            epoch,
            goal: Goal::default(),
            choices: Choices::default(),
        }
    }
}

setters! { Request: statements: Option<PathBuf>, epoch: Epoch, goal: Goal, choices: Choices }

/// Reads a database and judges whether it can be brought into shards. Nothing is written.
///
/// # Errors
/// When the database cannot be reached or read, it has no such key, or the file with statements
/// cannot be read. What only a part of the report needs is no error: it is listed as unknown.
///
/// # Cancel safety
/// Only reads. Dropping the future closes the session.
pub fn assess<'a>(
    connect: &'a ConnectOptions,
    request: &'a Request,
) -> BoxFuture<'a, Result<Assessment, Error>> {
    Box::pin(async move {
        let connection = read::open(connect).await?;
        let client = connection.client();
        let added = read::Added::Shown;
        let read = decided::read(client, &request.key, &request.choices, added);
        let (mut database, decisions) = read.await?;
        // The stream comes from the primary: a standby's answer means nothing for it.
        if !database.server.standby {
            let replication = connect.replicate("pgshard import assess").await;
            database.server.replication = replication
                .err()
                .map(|error| crate::pg::cause::chain(&error));
        }
        let mut unknown = sample::take(client, &mut database, &decisions).await?;
        let first = first_id(request.epoch);
        let mut found = judge::judge(&database, &decisions, first);
        let (refused, unread) = carried::find_obstacles(client, &database, &decisions).await?;
        found.extend(refused);
        unknown.extend(unread);
        unknown.extend(report::not_analyzed(&database));
        unknown.extend(report::standby(&database));
        let statements = statements::read_and_judge(
            client,
            &database,
            &decisions,
            request.statements.as_deref(),
        )
        .await?;
        let statements = match statements {
            Ok((report, obstacles)) => {
                found.extend(obstacles);
                Some(report)
            }
            Err(why) => {
                unknown.push(why);
                None
            }
        };
        connection.finish().await;
        let obstacles = obstacle::grouped(found);
        let version = database.server.version;
        Ok(Assessment {
            verdict: verdict(&obstacles),
            database: database.server.database.clone(),
            server_version: format!("{}.{}", version / 10_000, version % 10_000),
            key: request.key.to_string(),
            tables: report::tables(&database, &decisions),
            statements,
            largest_keys: report::largest_keys(&database, &decisions),
            ids: report::ids(&database, request.epoch, first),
            figures: estimate::figures(&database, &decisions, request.goal),
            obstacles,
            unknown,
        })
    })
}

fn verdict(obstacles: &[Obstacle]) -> Verdict {
    let worst = obstacles.iter().map(|obstacle| obstacle.level).min();
    match worst {
        Some(Level::Impossible) => Verdict::Impossible,
        Some(Level::Change) => Verdict::PossibleAfterChanges,
        Some(Level::Check) | None => Verdict::Possible,
    }
}

/// The first ID that a shard would make now.
fn first_id(epoch: Epoch) -> i64 {
    let since = Timestamp::now()
        .as_millisecond()
        .saturating_sub(epoch.unix_ms());
    since.max(0).saturating_mul(1 << 23)
}
