//! Which server each host is: every address is queried, and the answers are compared with what
//! hosts have recorded about each other.
//!
//! Invariant: a host's record changes by itself only to a later timeline of the same server.
//! Another server becomes the host only by an operator's word, given when it answers
//! ([`Identities::accepted`]) or in advance ([`Identities::awaited`]).

use std::collections::BTreeMap;

use futures_util::future::{BoxFuture, join_all};
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use super::finding::{Finding, Severity};
use crate::map::HostName;
use crate::pg::cause::chain;
use crate::pg::{
    self, ConnectError, ConnectOptions, Connection, Impostor, Record, Records, Server, state,
};

const NAME: &str = "pgshard identity";

/// What every address of every host reports about itself, and what hosts have recorded.
#[derive(Clone, Debug, Default)]
pub struct Identities {
    hosts: BTreeMap<HostName, Vec<Address>>,
    said: Vec<IdentityRecord>,
    /// Primaries with records that could not be read, and why.
    unread: BTreeMap<HostName, String>,
}

/// The answers of several hosts, together.
impl FromIterator<Identities> for Identities {
    fn from_iter<I: IntoIterator<Item = Identities>>(all: I) -> Identities {
        let mut together = Identities::default();
        for one in all {
            together.hosts.extend(one.hosts);
            together.said.extend(one.said);
            together.unread.extend(one.unread);
        }
        together
    }
}

/// The server that answers at an address, or why none does.
type Address = (String, Result<Server, String>);

/// What one host has recorded about another, or about itself.
#[derive(Clone, Debug)]
struct IdentityRecord {
    by: HostName,
    host: String,
    record: Record,
}

/// Why no server is accepted for a host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// None of its addresses leads to a primary that reports its identity.
    #[error("no address of {host} leads to a primary that says who it is")]
    NoPrimary {
        /// The host.
        host: HostName,
    },
    /// More than one server takes writes.
    #[error("{message}")]
    TwoPrimaries {
        /// Which ones.
        message: String,
    },
}

/// What could not be written on a host.
#[derive(Debug, thiserror::Error)]
#[error("what the hosts are could not be recorded on {host}")]
pub struct RecordError {
    /// The host.
    pub host: HostName,
    /// Why.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Queries every address of these hosts, all at the same time, and reads what the primaries have
/// recorded. Nothing is written.
///
/// # Cancel safety
/// Dropping the future closes the connections.
pub fn identities(
    hosts: impl IntoIterator<Item = (HostName, ConnectOptions)>,
) -> BoxFuture<'static, Identities> {
    identities_of(hosts.into_iter().collect())
}

fn identities_of(hosts: Vec<(HostName, ConnectOptions)>) -> BoxFuture<'static, Identities> {
    Box::pin(async move {
        let ask = |(name, connect): (HostName, ConnectOptions)| async move {
            let answers: Vec<Result<Connection, ConnectError>> = connect.ask_each(NAME).await;
            let (mut said, mut unread) = (Vec::new(), None);
            for connection in answers
                .iter()
                .flatten()
                .filter(|connection| connection.server().timeline().is_some())
            {
                match recorded(&name, connection).await {
                    Ok(recorded) => said.extend(recorded),
                    Err(error) => unread = Some(chain(&error)),
                }
            }
            let server = |answer: Result<Connection, ConnectError>| {
                answer.map(|it| it.server()).map_err(|error| chain(&error))
            };
            let answers = connect
                .addresses()
                .into_iter()
                .zip(answers.into_iter().map(server))
                .collect();
            (name, answers, said, unread)
        };
        let mut all = Identities::default();
        for (name, answers, said, unread) in join_all(hosts.into_iter().map(ask)).await {
            all.unread.extend(unread.map(|why| (name.clone(), why)));
            all.hosts.insert(name, answers);
            all.said.extend(said);
        }
        all
    })
}

/// What a server has recorded. One with an older control schema, or with none, or with one that is
/// not ours to read, has recorded nothing.
///
/// # Errors
/// When the connection is lost, or the rows are not what they must be.
async fn recorded(
    by: &HostName,
    client: &Client,
) -> Result<Vec<IdentityRecord>, tokio_postgres::Error> {
    let sql = "SELECT host_name, generation, system_identifier, timeline FROM pgshard.identity";
    let rows = match client.query_typed(sql, &[]).await {
        Ok(rows) => rows,
        Err(error)
            if error
                .as_db_error()
                .is_some_and(|error| !state::ends_the_connection(error)) =>
        {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    let mut said = Vec::new();
    for row in &rows {
        let (host, _): (_, i32) = (row.try_get(0)?, row.try_get(1)?);
        if let Some(record) = pg::record(row, 1) {
            said.push(IdentityRecord {
                by: by.clone(),
                host,
                record,
            });
        }
    }
    Ok(said)
}

/// A server that counts as a host from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accepted {
    /// What the hosts had recorded about the host.
    pub former: Option<Record>,
    /// What they shall record.
    pub record: Record,
}

impl Identities {
    /// What is known about a host: the last generation that others have recorded; if they differ,
    /// by most of them. Its own word counts only if no other host has recorded it: a server of
    /// another cluster is just as sure about itself.
    pub fn known(&self, host: &HostName) -> Option<Record> {
        self.elected(host, |record| !record.is_awaited())
    }

    /// Which server an operator has accepted in advance for a host; not one that has taken the
    /// host's place since.
    pub fn awaited(&self, host: &HostName) -> Option<Record> {
        let awaited = self.elected(host, Record::is_awaited)?;
        let known = self.known(host)?;
        (awaited.generation > known.generation).then_some(awaited)
    }

    /// What is recorded of a host.
    fn records(&self, host: &HostName) -> Records {
        let mut records = Records::default();
        let known = [self.known(host), self.awaited(host)];
        known
            .into_iter()
            .flatten()
            .for_each(|record| records.add(record));
        records
    }

    /// The record that counts among those of a host that are of this kind.
    fn elected(&self, host: &HostName, kind: impl Fn(&Record) -> bool) -> Option<Record> {
        let about = || {
            let of_host = |said: &&IdentityRecord| said.host == host.as_str() && kind(&said.record);
            self.said.iter().filter(of_host)
        };
        let by_others = about().any(|said| said.by != *host);
        let mut votes: BTreeMap<(u32, i64), (usize, u32)> = BTreeMap::new();
        for said in about().filter(|said| !by_others || said.by != *host) {
            let (count, timeline) = votes
                .entry((said.record.generation, said.record.system))
                .or_default();
            (*count, *timeline) = (*count + 1, said.record.timeline.max(*timeline));
        }
        let last = votes
            .into_iter()
            .max_by_key(|((generation, _), (count, _))| (*generation, *count));
        last.map(|((generation, system), (_, timeline))| Record {
            generation,
            system,
            timeline,
        })
    }

    /// The servers that take a host's writes, the latest first. Two addresses that lead to one
    /// server count once.
    fn primaries(&self, host: &HostName) -> Vec<(&str, Server)> {
        let mut primaries: Vec<(&str, Server)> = Vec::new();
        for (address, answer) in self.hosts.get(host).into_iter().flatten() {
            if let Ok(server) = answer
                && server.timeline().is_some()
                && !primaries.iter().any(|(_, other)| other.is_same(server))
            {
                primaries.push((address, *server));
            }
        }
        primaries.sort_by_key(|(_, server)| std::cmp::Reverse(server.timeline()));
        primaries
    }

    /// The record that holds from now on, given what was seen. There is one only if the host's only
    /// primary is the known server, or no server is known yet.
    pub fn now(&self, host: &HostName) -> Option<Record> {
        let [(_, server)] = self.primaries(host)[..] else {
            return None;
        };
        let identity = server.identity?;
        let seen = Record {
            generation: 1,
            system: identity.system,
            timeline: identity.timeline?,
        };
        match self.known(host) {
            None => Some(seen),
            Some(known) => match self.records(host).awaits(identity) {
                Some(next) => (!server.read_only).then_some(next),
                None => known.judge(identity).ok().map(|()| Record {
                    timeline: seen.timeline,
                    ..known
                }),
            },
        }
    }

    /// What is wrong with the servers that answer under the hosts' names, the worst first. An alarm
    /// means that no host may be written to before an operator has acted.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (host, answers) in &self.hosts {
            let mut add = |severity, code, message, remedy: &str| {
                let (host, shards, remedy) = (Some(host.clone()), Vec::new(), remedy.to_owned());
                findings.push(Finding {
                    severity,
                    code,
                    host,
                    shards,
                    message,
                    remedy,
                });
            };
            let primaries = self.primaries(host);
            if primaries.len() > 1 {
                let (message, remedy) = two_primaries(host, &primaries);
                add(Severity::Alarm, "two_primaries", message, &remedy);
            }
            for (address, answer) in answers {
                if let Err(error) = answer
                    && answers.len() > 1
                {
                    let message = format!(
                        "{address} does not answer, so that it is unknown whether it takes writes: \
                            {error}"
                    );
                    let remedy = "start it as a standby, or remove it from the url";
                    add(Severity::Notice, "address_unreachable", message, remedy);
                }
            }
            let silent = match &answers[..] {
                [(_, Err(error))] => Some(error),
                _ => self.unread.get(host),
            };
            if let Some(error) = silent {
                let message =
                    format!("it did not say what it knows of the hosts' servers: {error}");
                add(Severity::Warning, "identity_unread", message, "check again");
            }
            let records = self.records(host);
            let first = primaries.first();
            let judged = first.map(|(address, server)| (address, server.identity));
            if let Some((address, Some(identity))) = judged
                && let Err(impostor) = records.judge(identity)
            {
                let message = format!("{address}: {impostor}");
                match impostor {
                    Impostor::Former { .. } => {
                        add(Severity::Alarm, "former_primary", message, FENCE)
                    }
                    Impostor::Other { .. } => {
                        let remedy = format!(
                            "correct the url of {host}; if the host was upgraded or restored by a \
                                dump, `pgshard host accept {host}`"
                        );
                        add(Severity::Alarm, "other_server", message, &remedy);
                    }
                }
            }
        }
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        findings
    }

    /// Gives the connections of this process the known servers, so that they refuse any other.
    pub fn publish_to(&self, hosts: impl IntoIterator<Item = (HostName, ConnectOptions)>) {
        for (host, connect) in hosts {
            if let Some(awaited) = self.awaited(&host) {
                connect.learn(awaited);
            }
            if let Some(known) = self.now(&host).or_else(|| self.known(&host)) {
                connect.learn(known);
            }
        }
    }

    /// The same, but the server that answers becomes the host, by an operator's word. `None`: it is
    /// the host already.
    ///
    /// # Errors
    /// When no server answers as a primary, or more than one.
    pub fn accepted(&self, host: &HostName) -> Result<Option<Accepted>, AcceptError> {
        let primaries = self.primaries(host);
        let identity = match primaries[..] {
            [(_, server)] => server.identity,
            [] => None,
            _ => {
                return Err(AcceptError::TwoPrimaries {
                    message: two_primaries(host, &primaries).0,
                });
            }
        };
        let Some((system, timeline)) =
            identity.and_then(|identity| Some((identity.system, identity.timeline?)))
        else {
            return Err(AcceptError::NoPrimary { host: host.clone() });
        };
        let known = self.known(host);
        if self.now(host).is_some() && known.is_some() {
            return Ok(None);
        }
        let generation = known.map_or(1, |known| known.generation + 1);
        Ok(Some(Accepted {
            former: known,
            record: Record {
                generation,
                system,
                timeline,
            },
        }))
    }

    /// Records on all hosts the servers that were seen, if they do not have them yet. Hosts that
    /// did not answer get them the next time.
    ///
    /// # Errors
    /// The hosts where it could not be written; the others have it.
    ///
    /// # Cancel safety
    /// What is written stays written.
    pub async fn record(&self, hosts: &[(HostName, ConnectOptions)]) -> Vec<RecordError> {
        let now: Vec<(&HostName, Record)> = self
            .hosts
            .keys()
            .filter_map(|host| Some((host, self.now(host)?)))
            .collect();
        let on = |(by, connect): &(HostName, ConnectOptions)| {
            let has = |(host, record): &&(&HostName, Record)| {
                self.said.iter().any(|said| {
                    said.by == *by && said.host == host.as_str() && said.record == *record
                })
            };
            let lacks: Vec<_> = now.iter().filter(|one| !has(one)).copied().collect();
            let (by, connect, answered) = (by.clone(), connect.clone(), self.now(by).is_some());
            async move {
                if lacks.is_empty() || !answered {
                    return None;
                }
                write(&connect, ReplacedRecords::Nothing, &lacks)
                    .await
                    .err()
                    .map(|source| RecordError { host: by, source })
            }
        };
        join_all(hosts.iter().map(on))
            .await
            .into_iter()
            .flatten()
            .collect()
    }
}

/// Why a server cannot be accepted in advance.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AwaitError {
    /// Nothing is recorded of the host, so that no server can take its place.
    #[error("nothing is recorded of {host}")]
    Unknown {
        /// The host.
        host: HostName,
    },
    /// It could be written on no host.
    #[error("no host could record it")]
    Unrecorded {
        /// The hosts, and why not.
        #[source]
        first: RecordError,
    },
}

/// Records on all hosts that the server with this system identifier may take a host's place from
/// now on, in place of what was recorded so before. The host's own identifier takes that back.
/// Returns the record, and the hosts where it could not be written.
///
/// # Errors
/// When nothing is recorded of the host, or no host could write it.
///
/// # Cancel safety
/// What is written stays written; a second run does the rest.
pub async fn accept_in_advance(
    hosts: &[(HostName, ConnectOptions)],
    identities: &Identities,
    host: &HostName,
    system: i64,
) -> Result<(Record, Vec<RecordError>), AwaitError> {
    let known = identities
        .known(host)
        .ok_or_else(|| AwaitError::Unknown { host: host.clone() })?;
    let next = (system != known.system).then_some(Record {
        generation: known.generation + 1,
        system,
        timeline: 0,
    });
    let records: Vec<_> = next.into_iter().map(|record| (host, record)).collect();
    let on = async |(name, connect): &(HostName, ConnectOptions)| {
        let written = write(connect, ReplacedRecords::Awaited(host), &records).await;
        written.map_err(|source| RecordError {
            host: name.clone(),
            source,
        })
    };
    let written = join_all(hosts.iter().map(on)).await;
    let is_written = written.iter().any(Result::is_ok);
    let mut untold: Vec<RecordError> = written.into_iter().filter_map(Result::err).collect();
    match is_written {
        false if !untold.is_empty() => Err(AwaitError::Unrecorded {
            first: untold.remove(0),
        }),
        _ => Ok((next.unwrap_or(known), untold)),
    }
}

/// Records on all hosts which server an operator has accepted: on that server first, with the
/// record that it replaces, so that clients that know the former server accept this one.
///
/// # Errors
/// When it could not be written on the server itself: then nothing was written. Other hosts where
/// it could not be written are returned.
///
/// # Cancel safety
/// What is written stays written; a second run does the rest.
pub async fn accept(
    hosts: &[(HostName, ConnectOptions)],
    host: &HostName,
    former: Option<Record>,
    record: Record,
) -> Result<Vec<RecordError>, RecordError> {
    let failed = |host: &HostName| {
        let host = host.clone();
        |source| RecordError { host, source }
    };
    let records: Vec<_> = former
        .into_iter()
        .chain([record])
        .map(|record| (host, record))
        .collect();
    for (name, connect) in hosts.iter().filter(|(name, _)| name == host) {
        write(connect, ReplacedRecords::All(host), &records)
            .await
            .map_err(failed(name))?;
    }
    let others = hosts.iter().filter(|(name, _)| name != host);
    let written = join_all(others.map(async |(name, connect)| {
        write(connect, ReplacedRecords::Nothing, &records)
            .await
            .map_err(failed(name))
    }));
    Ok(written.await.into_iter().filter_map(Result::err).collect())
}

/// What records take the place of.
#[derive(Clone, Copy)]
enum ReplacedRecords<'a> {
    Nothing,
    /// Everything that is recorded of a host.
    All(&'a HostName),
    /// The server that is awaited for a host.
    Awaited(&'a HostName),
}

/// Writes records into one host, in one transaction. A server that is awaited for the same
/// generation as another that has come is awaited no longer.
///
/// Locks: ROW EXCLUSIVE on pgshard.identity, for a moment.
async fn write(
    connect: &ConnectOptions,
    replaced: ReplacedRecords<'_>,
    records: &[(&HostName, Record)],
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut connection = connect.connect(NAME).await?;
    let transaction = connection.transaction().await?;
    transaction
        .batch_execute("SET LOCAL lock_timeout = '2s'; SET LOCAL transaction_read_only = off")
        .await?;
    let delete = match replaced {
        ReplacedRecords::Nothing => None,
        ReplacedRecords::All(host) => {
            Some((host, "DELETE FROM pgshard.identity WHERE host_name = $1"))
        }
        ReplacedRecords::Awaited(host) => Some((
            host,
            "DELETE FROM pgshard.identity WHERE host_name = $1 AND timeline = 0",
        )),
    };
    if let Some((host, delete)) = delete {
        transaction.execute(delete, &[&host.as_str()]).await?;
    }
    for (host, record) in records {
        let sql = "INSERT INTO pgshard.identity AS i (host_name, generation, system_identifier, \
            timeline)
            VALUES ($1, $2, $3, $4)
            ON CONFLICT (host_name, generation) DO UPDATE SET timeline = EXCLUDED.timeline, \
            seen_at = now()
            WHERE i.system_identifier = EXCLUDED.system_identifier AND i.timeline < \
            EXCLUDED.timeline";
        let (generation, timeline) = (
            i32::try_from(record.generation)?,
            i64::from(record.timeline),
        );
        let gone = "DELETE FROM pgshard.identity
            WHERE host_name = $1 AND timeline = 0 AND generation <= $2 AND system_identifier <> $3";
        let server: [&(dyn ToSql + Sync); 3] = [&host.as_str(), &generation, &record.system];
        transaction.execute(gone, &server).await?;
        transaction
            .execute(
                sql,
                &[&host.as_str(), &generation, &record.system, &timeline],
            )
            .await?;
    }
    Ok(transaction.commit().await?)
}

const FENCE: &str = "stop it, and keep it from coming back (docs/high-availability.md); what was \
    written there since the other was promoted is only there";

fn two_primaries(host: &HostName, primaries: &[(&str, Server)]) -> (String, String) {
    let said = primaries.iter().map(|(address, server)| {
        let system = server.identity.map_or(0, |identity| identity.system);
        format!(
            "{address} (timeline {}, system {system})",
            server.timeline().unwrap_or_default()
        )
    });
    let said = said.collect::<Vec<_>>().join(" and ");
    let [(later, first), (_, second), ..] = primaries else {
        return (said, FENCE.to_owned());
    };
    if first.rivals(second) {
        let message =
            format!("two servers take the writes of {host}: {said}; it is unknown which is right");
        return (
            message,
            "keep the writers out, find out which is right, and stop the other: \
                docs/high-availability.md"
                .to_owned(),
        );
    }
    let older: Vec<&str> = primaries[1..].iter().map(|(address, _)| *address).collect();
    let message =
        format!("two servers take the writes of {host}: {said}; {later} was promoted later");
    (
        message,
        format!(
            "stop {}, and keep it from coming back: docs/high-availability.md; what was written \
                there since is only there",
            older.join(", ")
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::Identity;

    fn host(name: &str) -> HostName {
        HostName::new(name).unwrap()
    }

    /// System and timeline of a server; no timeline for a standby.
    type Who = (i64, Option<u32>);

    /// The recording host, the recorded host, generation, system and timeline.
    type Recorded = (&'static str, &'static str, u32, i64, u32);

    /// Hosts with these servers, started one after the other.
    fn seen(servers: &[(&str, &[Who])], said: &[Recorded]) -> Identities {
        let server = |(number, (system, timeline)): (usize, &(i64, Option<u32>))| {
            let identity = Some(Identity {
                system: *system,
                timeline: *timeline,
            });
            (
                format!("a{number}:5432"),
                Ok(Server::of_test(identity, number)),
            )
        };
        Identities {
            hosts: servers
                .iter()
                .map(|(name, servers)| {
                    (host(name), servers.iter().enumerate().map(server).collect())
                })
                .collect(),
            said: said
                .iter()
                .map(|(by, named, generation, system, timeline)| IdentityRecord {
                    by: host(by),
                    host: (*named).to_owned(),
                    record: Record {
                        generation: *generation,
                        system: *system,
                        timeline: *timeline,
                    },
                })
                .collect(),
            unread: BTreeMap::new(),
        }
    }

    #[test]
    fn who_is_not_the_host_is_found() {
        let codes = |identities: &Identities| {
            let found = identities.findings();
            assert!(found.iter().all(|one| !one.remedy.is_empty()));
            found
                .iter()
                .map(|one| format!("{} {}", one.host.as_ref().unwrap(), one.code))
                .collect::<Vec<_>>()
        };
        let both: [Recorded; 4] = [
            ("db1", "db1", 1, 7, 1),
            ("db2", "db1", 1, 7, 1),
            ("db1", "db2", 1, 5, 1),
            ("db2", "db2", 1, 5, 1),
        ];
        let later: [Recorded; 2] = [("db2", "db1", 1, 7, 2), ("db2", "db2", 1, 5, 1)];
        let db2: (&str, &[Who]) = ("db2", &[(5, Some(1))]);
        for (db1, said, expected) in [
            (&[(7, Some(1)), (7, None)][..], &both[..], vec![]),
            (&[(7, None), (7, Some(2))], &both, vec![]),
            (&[(7, Some(1))], &[], vec![]),
            (
                &[(7, Some(1)), (7, Some(2))],
                &both,
                vec!["db1 two_primaries"],
            ),
            (
                &[(7, Some(2)), (7, Some(2))],
                &both,
                vec!["db1 two_primaries"],
            ),
            (&[(7, Some(1))], &later, vec!["db1 former_primary"]),
            (&[(8, Some(1))], &both, vec!["db1 other_server"]),
        ] {
            assert_eq!(
                codes(&seen(&[("db1", db1), db2], said)),
                expected,
                "{db1:?} {said:?}"
            );
        }
        let message = seen(&[("db1", &[(7, Some(1)), (7, Some(2))])], &both)
            .findings()
            .remove(0)
            .message;
        assert_eq!(
            message,
            "two servers take the writes of db1: a1:5432 (timeline 2, system 7) and a0:5432 \
                (timeline 1, system 7); a1:5432 was promoted later"
        );
    }

    #[test]
    fn the_awaited_server_is_the_host_once_it_takes_writes() {
        let said: [Recorded; 5] = [
            ("db1", "db1", 1, 7, 1),
            ("db2", "db1", 1, 7, 3),
            ("db1", "db1", 2, 8, 0),
            ("db2", "db1", 2, 8, 0),
            ("db2", "db2", 1, 5, 1),
        ];
        let db1 = host("db1");
        for (system, expected, alarms) in [
            (7, Some((1, 7, 3)), 0),
            (8, Some((2, 8, 4)), 0),
            (9, None, 1),
        ] {
            let timeline = if system == 8 { 4 } else { 3 };
            let seen = seen(&[("db1", &[(system, Some(timeline))])], &said);
            let now = seen.now(&db1);
            let now = now.map(|record| (record.generation, record.system, record.timeline));
            assert_eq!(now, expected);
            assert_eq!(seen.findings().len(), alarms, "{system}");
            assert_eq!(seen.awaited(&db1).map(|next| next.system), Some(8));
        }
        let mut later = said.to_vec();
        later.push(("db2", "db1", 2, 8, 4));
        assert_eq!(seen(&[("db1", &[])], &later).awaited(&db1), None);
    }

    #[test]
    fn accepting_is_a_new_generation() {
        let db1 = host("db1");
        let said: [Recorded; 2] = [("db1", "db1", 1, 8, 9), ("db2", "db1", 1, 7, 3)];
        let record = |generation, system, timeline| Record {
            generation,
            system,
            timeline,
        };
        let accepted = |servers: &[Who]| seen(&[("db1", servers)], &said).accepted(&db1);
        let anew = |record| {
            Some(Accepted {
                former: Some(Record {
                    generation: 1,
                    system: 7,
                    timeline: 3,
                }),
                record,
            })
        };
        assert_eq!(accepted(&[(8, Some(1))]).unwrap(), anew(record(2, 8, 1)));
        assert_eq!(accepted(&[(7, Some(2))]).unwrap(), anew(record(2, 7, 2)));
        assert_eq!(accepted(&[(7, Some(4))]).unwrap(), None);
        assert!(matches!(
            accepted(&[(7, None)]),
            Err(AcceptError::NoPrimary { .. })
        ));
        assert!(matches!(
            accepted(&[(7, Some(4)), (7, Some(3))]),
            Err(AcceptError::TwoPrimaries { .. })
        ));
    }
}
