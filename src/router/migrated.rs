//! Whether a migration has run in every shard, for applications that start while it runs.
//!
//! Invariant: "everywhere" means that a host has confirmed it for each of the N shards. A shard
//! that no host serves counts as not migrated.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use tokio_postgres::Row as SqlRow;
use tokio_postgres::error::SqlState;

use super::Router;
use super::endpoint::Endpoint;
use super::error::LookUpError;
use super::sql::Sql;
use crate::backoff::Backoff;
use crate::map::{HostName, print_shards};
use crate::shard::{ShardCount, ShardId};

const ASK: &str = "SELECT has, lacks, on_host, checksums FROM pgshard.migrated($1)";

/// How long a host's answer may take, the connection included.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The pauses between two questions.
const PAUSES: Backoff = Backoff {
    first: Duration::from_millis(100),
    max: Duration::from_secs(2),
    jitter: Backoff::NO_JITTER,
};

/// The progress of a migration on the hosts. Its text (`Display`) lists what is missing.
#[derive(Debug)]
pub struct Migrated {
    /// Its name: that of its file, without `.sql`.
    pub name: String,
    /// N.
    pub shards: ShardCount,
    /// The shards that have it.
    pub having: BTreeSet<ShardId>,
    /// The shards that lack it.
    pub lacking: BTreeSet<ShardId>,
    /// The hosts that have it, if it is a migration that runs once in each host's database.
    pub hosts: BTreeSet<HostName>,
    /// The hosts that answered.
    pub asked: BTreeSet<HostName>,
    /// The hosts that did not answer, and why.
    pub silent: BTreeMap<HostName, LookUpError>,
    /// The host that has all shards in one schema, if there is one: no migration is run there.
    pub unsharded: Option<HostName>,
    /// SHA-256 of the texts that have run, in hexadecimal: more than one where the file was changed
    /// in between.
    pub checksums: BTreeSet<String>,
}

impl Migrated {
    /// Whether it has run in every shard of the cluster, or, if it is one that runs once per host,
    /// on every host.
    pub fn is_everywhere(&self) -> bool {
        let on_hosts = !self.hosts.is_empty() && self.silent.is_empty() && self.hosts == self.asked;
        on_hosts || self.having.len() == self.shards.get() as usize
    }

    /// The shards that no host serves.
    pub fn unserved(&self) -> impl Iterator<Item = ShardId> {
        self.shards
            .iter()
            .filter(|shard| !self.having.contains(shard) && !self.lacking.contains(shard))
    }
}

impl fmt::Display for Migrated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, having, shards) = (&self.name, self.having.len(), self.shards);
        if let Some(host) = &self.unsharded {
            return write!(
                f,
                "{name} runs nowhere: host {host} is unsharded, and its tables are changed by the \
                    application's own means"
            );
        }
        if self.hosts.is_empty() {
            write!(f, "{name} has run in {having} of {shards} shards")?;
            if !self.lacking.is_empty() {
                write!(
                    f,
                    "; shards that lack it: {}",
                    print_shards(self.lacking.iter().copied())
                )?;
            }
            let unserved: Vec<ShardId> = self.unserved().collect();
            if !unserved.is_empty() {
                write!(
                    f,
                    "; shards that no host says it serves: {}",
                    print_shards(unserved)
                )?;
            }
        } else {
            let all = self.asked.len() + self.silent.len();
            write!(f, "{name} has run on {} of {all} hosts", self.hosts.len())?;
            let lacking: Vec<&str> = self
                .asked
                .difference(&self.hosts)
                .map(HostName::as_str)
                .collect();
            if !lacking.is_empty() {
                write!(f, "; hosts that lack it: {}", lacking.join(", "))?;
            }
        }
        for (host, error) in &self.silent {
            write!(f, "; {host}: {error}")?;
        }
        Ok(())
    }
}

/// A migration has not run everywhere within the time that was given.
#[derive(Debug, thiserror::Error)]
#[error("after {} s {how_far}", waited.as_secs())]
pub struct NotMigrated {
    /// How long the call waited.
    pub waited: Duration,
    /// How far it was at last.
    pub how_far: Box<Migrated>,
}

impl Router {
    /// Reads the progress of a migration from every host. `name` is the name of its file, with or
    /// without `.sql`. Any role that may use a shard on each host may call this.
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn migrated(&self, name: &str) -> Migrated {
        let name = name.strip_suffix(".sql").unwrap_or(name);
        let hosts: Vec<_> = self.inner().hosts.load().values().cloned().collect();
        let answers = join_all(hosts.iter().map(|host| async {
            let answer = tokio::time::timeout(ANSWER_MAX, read_progress(host, name)).await;
            (
                host.name.clone(),
                answer.unwrap_or(Err(LookUpError::TimedOut(ANSWER_MAX))),
            )
        }));
        let mut how_far = Migrated {
            name: name.to_owned(),
            shards: self.shards_total(),
            having: BTreeSet::new(),
            lacking: BTreeSet::new(),
            hosts: BTreeSet::new(),
            asked: BTreeSet::new(),
            silent: BTreeMap::new(),
            unsharded: self.unsharded_host(),
            checksums: BTreeSet::new(),
        };
        for (host, answer) in answers.await {
            match answer {
                Ok(answer) => how_far.add(host, answer),
                Err(error) => drop(how_far.silent.insert(host, error)),
            }
        }
        // A move may have opened the shard elsewhere between two answers. Which answer is the later
        // one is not known, so the shard counts as lacking it.
        how_far
            .having
            .retain(|shard| !how_far.lacking.contains(shard));
        how_far
    }

    /// Waits until a migration has run in every shard of the cluster, or on every host if it runs
    /// once per host. For an application that is started before `pgshard migrate up` has ended.
    /// `name` is the name of its file, with or without `.sql`.
    ///
    /// ```no_run
    /// # async fn example(router: pgshard::Router) -> Result<(), Box<dyn std::error::Error>> {
    /// router.wait_for_migration("0007_captions", std::time::Duration::from_secs(600)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`NotMigrated`] when the time is over first, and immediately where all shards are on an
    /// unsharded host. It contains the progress of the
    /// migration, the shards that no host serves, and the hosts that did not answer.
    ///
    /// # Cancel safety
    /// Only reads; may be dropped and called again.
    pub async fn wait_for_migration(
        &self,
        name: &str,
        within: Duration,
    ) -> Result<(), NotMigrated> {
        let begun = Instant::now();
        let Ok(how_far) = self
            .watch_migration(name, within, |_| Ok::<_, Infallible>(()))
            .await;
        if how_far.is_everywhere() {
            return Ok(());
        }
        Err(NotMigrated {
            waited: begun.elapsed(),
            how_far: Box::new(how_far),
        })
    }

    /// Reads the progress of a migration until it has run everywhere or the time is over, and
    /// returns the last progress read. `seen` gets each progress, the last too; its error ends the
    /// waiting. The hosts are queried at least once.
    ///
    /// # Errors
    /// That of `seen`.
    ///
    /// # Cancel safety
    /// Only reads; may be dropped and called again.
    pub async fn watch_migration<E>(
        &self,
        name: &str,
        within: Duration,
        mut seen: impl FnMut(&Migrated) -> Result<(), E>,
    ) -> Result<Migrated, E> {
        let begun = Instant::now();
        let mut pause = PAUSES.first;
        loop {
            let how_far = self.migrated(name).await;
            seen(&how_far)?;
            let left = within.saturating_sub(begun.elapsed());
            // An unsharded host will never run it.
            let is_hopeless = how_far.unsharded.is_some();
            if how_far.is_everywhere() || left.is_zero() || is_hopeless {
                return Ok(how_far);
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = PAUSES.after(pause);
        }
    }
}

struct Answer {
    having: Vec<ShardId>,
    lacking: Vec<ShardId>,
    on_host: bool,
    checksums: Vec<String>,
}

impl Migrated {
    fn add(&mut self, host: HostName, answer: Answer) {
        self.having.extend(answer.having);
        self.lacking.extend(answer.lacking);
        self.checksums.extend(answer.checksums);
        if answer.on_host {
            self.hosts.insert(host.clone());
        }
        self.asked.insert(host);
    }
}

async fn read_progress(host: &Endpoint, name: &str) -> Result<Answer, LookUpError> {
    let old = [SqlState::UNDEFINED_FUNCTION, SqlState::INVALID_SCHEMA_NAME];
    let rows = match host.query_control(&Sql::new(ASK), &[&name]).await {
        Err(LookUpError::Statement(error))
            if error.code().is_some_and(|code| old.contains(code)) =>
        {
            return Err(LookUpError::ControlOld);
        }
        rows => rows?,
    };
    let row = rows.first();
    row.ok_or_else(|| LookUpError::Answer("no row".to_owned()))
        .and_then(read)
}

fn read(row: &SqlRow) -> Result<Answer, LookUpError> {
    let shards = |at: usize| -> Result<Vec<ShardId>, LookUpError> {
        let numbers: Vec<i32> = row.try_get(at).map_err(LookUpError::Statement)?;
        let shard = |number: i32| {
            let shard = u16::try_from(number).ok().and_then(ShardId::new);
            shard.ok_or_else(|| LookUpError::Answer(format!("shard {number}")))
        };
        numbers.into_iter().map(shard).collect()
    };
    Ok(Answer {
        having: shards(0)?,
        lacking: shards(1)?,
        on_host: row.try_get(2).map_err(LookUpError::Statement)?,
        checksums: row.try_get(3).map_err(LookUpError::Statement)?,
    })
}
