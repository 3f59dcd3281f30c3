//! Which server answers under a host's name, and whether it is still the host.
//!
//! After a fail-over the former primary may come back as it was: it takes writes that the promoted
//! server never gets. A promotion raises the timeline, which distinguishes the two. The system
//! identifier distinguishes a server of another cluster. What is known of a host, its [`Record`],
//! only grows: by generation, which an operator raises by accepting a server, then by timeline.
//!
//! Invariant: once a process has seen a host at a timeline, no connection of an older one is used
//! there. New ones are refused, and open ones are closed, whatever they are in the middle of.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::state::ends_the_connection;
use tokio::task::AbortHandle;
use tokio_postgres::{Client, Row};

/// Which server it is, by its own answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The system identifier, which a server has in common with its standbys, and with any other
    /// copy of its files.
    pub system: i64,
    /// The timeline that it writes. `None` for a standby.
    pub timeline: Option<u32>,
}

/// A server's answer to the query which one it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Server {
    /// `None` where it does not report one: some services have taken the functions away.
    pub identity: Option<Identity>,
    /// Whether transactions are read only there, as on a standby.
    pub read_only: bool,
    /// When it was started, in seconds since 1970: the same for two addresses that lead to one
    /// server.
    started: f64,
}

/// What is known of a host: how often an operator has accepted a server for it, and which server it
/// is; or which server an operator has accepted in advance, as the next one ([`Self::is_awaited`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// 1 when the host was bootstrapped, one more each time that an operator accepted another
    /// server. 0: seen, not recorded.
    pub generation: u32,
    /// The system identifier.
    pub system: i64,
    /// The highest timeline that was seen; 0 for a server that is awaited.
    pub timeline: u32,
}

/// What is recorded of one host: which server it is, and which one may take its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Records {
    record: Option<Record>,
    awaited: Option<Record>,
}

/// What an answer at one of a host's addresses means for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressAnswer {
    /// Nothing new: a standby, or the host.
    Nothing,
    /// The host is there now.
    Later,
    /// Another server that takes writes.
    Impostor(Impostor),
    /// Another server that takes writes, and nothing shows which is the host.
    Rival,
}

/// Why a server is not the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impostor {
    /// It was the host; another server was promoted in its place.
    #[error(
        "it is a former primary: it writes timeline {timeline}, and the host was seen at timeline \
            {newest}. Nothing is written there: fence it (docs/high-availability.md); if it is \
            what was restored on purpose, `pgshard host accept` says so"
    )]
    Former {
        /// Its timeline.
        timeline: u32,
        /// The host's.
        newest: u32,
    },
    /// It is of another system.
    #[error(
        "it is another server: its system identifier is {system}, the host's is {known}. Nothing \
            is written there: correct the url; if the host was upgraded or restored by a dump, \
            `pgshard host accept` says so"
    )]
    Other {
        /// Its system identifier.
        system: i64,
        /// The host's.
        known: i64,
    },
}

/// A server's answer on one connection.
pub(super) struct ServerAnswer {
    pub(super) server: Server,
    /// The process that serves the connection; 0 where it is not reported.
    pub(super) process: i32,
}

/// This is one round trip, and no function in it needs a privilege. The timeline is that of the
/// log: `pg_control_checkpoint()` shows the former one until a promoted server has made a
/// checkpoint.
pub(super) const WHO: &str = "SELECT pg_catalog.current_setting('transaction_read_only'), \
    CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN \
    pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) END, \
    (SELECT system_identifier FROM pg_catalog.pg_control_system()), \
    pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time()), \
    pg_catalog.pg_backend_pid()";

/// The same without the time of the start: two addresses that lead to one server then differ
/// by their identities only.
const WHO_UNSTARTED: &str = "SELECT pg_catalog.current_setting('transaction_read_only'), \
    CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN \
    pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) END, \
    (SELECT system_identifier FROM pg_catalog.pg_control_system()), \
    0::pg_catalog.float8, pg_catalog.pg_backend_pid()";

/// Reads at least whether it takes writes, on a server that refuses [`WHO`].
const WHETHER_IT_WRITES: &str = "SELECT pg_catalog.current_setting('transaction_read_only')";

/// What the server has recorded of its own host, the last generation first.
const OWN_RECORDS: &str = "SELECT i.generation, i.system_identifier, i.timeline FROM \
    pgshard.identity i \
    JOIN pgshard.cluster c ON c.host_name = i.host_name ORDER BY i.generation DESC";

/// Reads which server it is.
///
/// # Errors
/// When the connection is lost, or the server does not even report whether it takes writes.
pub(super) async fn read_identity(client: &Client) -> Result<ServerAnswer, tokio_postgres::Error> {
    for who in [WHO, WHO_UNSTARTED] {
        match client.query_typed(who, &[]).await {
            Ok(rows) => return Ok(parse_answer(rows.first())),
            Err(error)
                if error
                    .as_db_error()
                    .is_some_and(|error| !ends_the_connection(error)) => {}
            Err(error) => return Err(error),
        }
    }
    let rows = client.query_typed(WHETHER_IT_WRITES, &[]).await?;
    Ok(ServerAnswer {
        server: Server {
            identity: None,
            read_only: rows.first().is_some_and(is_read_only),
            started: 0.0,
        },
        process: 0,
    })
}

/// The answer to [`WHO`].
fn parse_answer(row: Option<&Row>) -> ServerAnswer {
    let file: Option<&str> = row.and_then(|row| row.try_get(1).ok().flatten());
    let system = row.and_then(|row| row.try_get(2).ok());
    let identity = system.map(|system| Identity {
        system,
        timeline: file.and_then(timeline),
    });
    ServerAnswer {
        server: Server {
            identity,
            read_only: row.is_some_and(is_read_only),
            started: row.and_then(|row| row.try_get(3).ok()).unwrap_or_default(),
        },
        process: row.and_then(|row| row.try_get(4).ok()).unwrap_or_default(),
    }
}

fn is_read_only(row: &Row) -> bool {
    row.try_get(0).is_ok_and(|setting: &str| setting == "on")
}

/// The first eight digits of a log file's name.
pub(super) fn timeline(file: &str) -> Option<u32> {
    u32::from_str_radix(file.get(..8)?, 16).ok()
}

/// What the server has recorded of its own host, if it belongs to a cluster. This is read when the
/// server is not the one that was known.
pub(super) async fn own_records(client: &Client) -> Vec<Record> {
    let rows = client
        .query_typed(OWN_RECORDS, &[])
        .await
        .unwrap_or_default();
    rows.iter().filter_map(|row| record(row, 0)).collect()
}

/// The record in three columns of a row.
pub(crate) fn record(row: &Row, first: usize) -> Option<Record> {
    let generation: i32 = row.try_get(first).ok()?;
    let timeline: i64 = row.try_get(first + 2).ok()?;
    let system = row.try_get(first + 1).ok()?;
    Some(Record {
        generation: u32::try_from(generation).ok()?,
        system,
        timeline: u32::try_from(timeline).ok()?,
    })
}

impl Server {
    /// The timeline that it writes. `None` for a standby, and where it is not reported.
    pub fn timeline(&self) -> Option<u32> {
        self.identity?.timeline
    }

    /// Whether two answers are one server's.
    pub fn is_same(&self, other: &Server) -> bool {
        self.started == other.started && self.identity == other.identity
    }

    /// Whether both take writes, and neither is known to be the later.
    pub fn rivals(&self, other: &Server) -> bool {
        let (Some(one), Some(two)) = (self.identity, other.identity) else {
            return false;
        };
        let primaries = one.timeline.is_some() && two.timeline.is_some();
        primaries
            && !self.is_same(other)
            && (one.timeline == two.timeline || one.system != two.system)
    }
}

#[cfg(test)]
impl Server {
    /// A server that was started at this time.
    pub(crate) fn of_test(identity: Option<Identity>, number: usize) -> Server {
        Server {
            identity,
            read_only: false,
            started: number as f64,
        }
    }
}

impl Records {
    /// Takes in a record. Of two servers that are awaited, the one that was heard of last counts.
    pub(crate) fn add(&mut self, record: Record) {
        if record.is_awaited() {
            self.awaited = Some(record);
        } else {
            self.record = Some(self.record.map_or(record, |known| known.with(record)));
        }
    }

    /// Both, the awaited server first: a caller that takes them in one by one knows it when the
    /// other comes.
    pub(crate) fn each(self) -> impl Iterator<Item = Record> {
        self.awaited.into_iter().chain(self.record)
    }

    /// The record under which the server of this identity takes the host's place, if it is the one
    /// that is awaited.
    pub(crate) fn awaits(&self, identity: Identity) -> Option<Record> {
        let awaited = self.awaited?;
        let is_next =
            |known: Record| known.generation < awaited.generation && known.system != awaited.system;
        (awaited.system == identity.system && self.record.is_none_or(is_next)).then(|| Record {
            timeline: identity.timeline.unwrap_or(0),
            ..awaited
        })
    }

    /// Whether the server of this identity is the host, or may take its place.
    ///
    /// # Errors
    /// Why it is not.
    pub(crate) fn judge(&self, identity: Identity) -> Result<(), Impostor> {
        match self.record {
            Some(known) if self.awaits(identity).is_none() => known.judge(identity),
            _ => Ok(()),
        }
    }
}

impl Record {
    /// Whether this is a server that has not been seen yet, and that an operator has accepted in
    /// advance.
    pub fn is_awaited(&self) -> bool {
        self.generation > 0 && self.timeline == 0
    }

    /// Whether the server of this identity is the host.
    ///
    /// # Errors
    /// Why it is not.
    pub fn judge(&self, identity: Identity) -> Result<(), Impostor> {
        if identity.system != self.system {
            return Err(Impostor::Other {
                system: identity.system,
                known: self.system,
            });
        }
        match identity.timeline {
            Some(timeline) if timeline < self.timeline => Err(Impostor::Former {
                timeline,
                newest: self.timeline,
            }),
            _ => Ok(()),
        }
    }

    /// What is known with both. If `other` contradicts this record, and no operator has decided it,
    /// `other` is left out.
    #[must_use]
    pub fn with(self, other: Record) -> Record {
        let (former, latter) = if other.generation < self.generation {
            (other, self)
        } else {
            (self, other)
        };
        if former.system == latter.system
            && (former.generation == latter.generation || former.generation == 0)
        {
            return Record {
                timeline: former.timeline.max(latter.timeline),
                ..latter
            };
        }
        if former.generation == latter.generation {
            self
        } else {
            latter
        }
    }

    /// The last of these records, which are one server's, if by them it took the place of this one.
    fn replaced_by(&self, records: &[Record]) -> Option<Record> {
        let last = *records.iter().find(|record| !record.is_awaited())?;
        (last.generation > self.generation && self.is_among(records)).then_some(last)
    }

    /// Whether by these records, which are one server's, it was this one, or took its place.
    fn is_among(&self, records: &[Record]) -> bool {
        records.iter().any(|record| {
            record.system == self.system
                && !record.is_awaited()
                && [0, record.generation].contains(&self.generation)
        })
    }
}

/// What a process knows of one host, and its open connections there. All clones of one
/// [`ConnectOptions`](super::ConnectOptions) share it.
#[derive(Default)]
pub(super) struct SharedKnowledge(Mutex<HostKnowledge>);

#[derive(Default)]
struct HostKnowledge {
    records: Records,
    /// Whether all addresses were queried once.
    settled: bool,
    /// The primary that answered on the newest connection, if it reported which one it is.
    host: Server,
    open: Vec<(Identity, AbortHandle)>,
}

impl HostKnowledge {
    /// Takes in a record, and closes what is not the host by it.
    fn learn(&mut self, record: Record) {
        self.records.add(record);
        self.close_others();
    }

    /// Takes in which server is the host.
    fn see(&mut self, record: Record) {
        let known = self.records.record;
        self.records.record = Some(known.map_or(record, |known| known.with(record)));
        self.close_others();
    }

    fn close_others(&mut self) {
        let records = self.records;
        self.open.retain(|(identity, driver)| {
            let is_host = records.judge(*identity).is_ok();
            if !is_host {
                driver.abort();
            }
            is_host && !driver.is_finished()
        });
    }
}

impl SharedKnowledge {
    fn state(&self) -> MutexGuard<'_, HostKnowledge> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record(&self) -> Option<Record> {
        self.state().records.record
    }

    /// Whether the server of this identity is the host, by what is known now.
    pub(super) fn judge(&self, identity: Identity) -> Result<(), Impostor> {
        self.state().records.judge(identity)
    }

    pub(super) fn is_settled(&self) -> bool {
        self.state().settled
    }

    pub(super) fn settle(&self) {
        self.state().settled = true;
    }

    pub(super) fn learn(&self, record: Record) {
        self.state().learn(record);
    }

    /// Takes in a server's answer about itself, if it is of the known system, or awaited.
    pub(super) fn learn_of(&self, server: Server) -> AddressAnswer {
        let Some((identity, timeline)) = server
            .identity
            .and_then(|identity| Some((identity, identity.timeline?)))
        else {
            return AddressAnswer::Nothing;
        };
        let mut state = self.state();
        let Some(known) = state.records.record else {
            return AddressAnswer::Nothing;
        };
        if let Some(next) = state.records.awaits(identity) {
            // It takes no writes before it takes the host's place.
            if server.read_only {
                return AddressAnswer::Nothing;
            }
            state.see(next);
            return AddressAnswer::Later;
        }
        match known.judge(identity) {
            Err(impostor) => AddressAnswer::Impostor(impostor),
            Ok(()) if timeline > known.timeline => {
                state.see(Record { timeline, ..known });
                AddressAnswer::Later
            }
            Ok(()) if server.rivals(&state.host) => AddressAnswer::Rival,
            Ok(()) => AddressAnswer::Nothing,
        }
    }

    /// Takes a connection as one to the host, until a later server is known; or returns why it
    /// leads elsewhere. A server that does not report which one it is is taken.
    pub(super) fn admit(&self, server: Server, driver: AbortHandle) -> Result<(), Impostor> {
        let Some(identity) = server.identity else {
            return Ok(());
        };
        let mut state = self.state();
        state.records.judge(identity)?;
        match state.records.awaits(identity) {
            Some(next) if identity.timeline.is_some() && !server.read_only => state.see(next),
            // A standby of the server that is awaited, or one that takes no writes yet.
            Some(_) => {}
            None => {
                let generation = state.records.record.map_or(0, |known| known.generation);
                state.see(Record {
                    generation,
                    system: identity.system,
                    timeline: identity.timeline.unwrap_or(0),
                });
            }
        }
        state.open.push((identity, driver));
        if identity.timeline.is_some() {
            state.host = server;
        }
        Ok(())
    }

    /// Takes in what a server has recorded, if by that an operator has accepted it in place of the
    /// known one, or awaits another in its place.
    pub(super) fn accept(&self, records: &[Record]) -> bool {
        let mut state = self.state();
        let Some(known) = state.records.record else {
            return false;
        };
        let awaited = records.iter().find(|record| record.is_awaited());
        let new = known
            .replaced_by(records)
            .or_else(|| awaited.copied().filter(|_| known.is_among(records)));
        if let Some(record) = new {
            state.learn(record);
        }
        new.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Vectors {
        timelines: Vec<LogFile>,
        judge: Vec<Judge>,
        joined: Vec<Joined>,
        replaced_by: Vec<Replaced>,
        awaited: Vec<Awaited>,
    }

    #[derive(serde::Deserialize)]
    struct LogFile {
        file: String,
        timeline: Option<u32>,
    }

    /// Generation, system and timeline.
    #[derive(Clone, Copy, serde::Deserialize)]
    struct Recorded(u32, i64, u32);

    #[derive(serde::Deserialize)]
    struct Judge {
        known: Recorded,
        identity: (i64, Option<u32>),
        refused: Option<String>,
    }

    #[derive(serde::Deserialize)]
    struct Joined {
        one: Recorded,
        other: Recorded,
        both: Recorded,
    }

    #[derive(serde::Deserialize)]
    struct Replaced {
        known: Recorded,
        records: Vec<Recorded>,
        by: Option<Recorded>,
    }

    #[derive(serde::Deserialize)]
    struct Awaited {
        records: Vec<Recorded>,
        identity: (i64, Option<u32>),
        refused: Option<String>,
    }

    impl From<Recorded> for Record {
        fn from(Recorded(generation, system, timeline): Recorded) -> Record {
            Record {
                generation,
                system,
                timeline,
            }
        }
    }

    /// The vectors that every client of a cluster must meet; the Python package does too.
    #[test]
    fn identities_match_the_vectors() {
        let vectors: Vectors =
            serde_json::from_str(include_str!("../../tests/vectors/identity.json")).unwrap();
        for case in &vectors.timelines {
            assert_eq!(timeline(&case.file), case.timeline, "{}", case.file);
        }
        for Judge {
            known,
            identity: (system, timeline),
            refused,
        } in vectors.judge
        {
            let said = Record::from(known)
                .judge(Identity { system, timeline })
                .map_err(|why| why.to_string());
            let as_said = match (&said, &refused) {
                (Err(said), Some(refused)) => said.starts_with(refused.as_str()),
                (said, refused) => said.is_ok() && refused.is_none(),
            };
            assert!(as_said, "{system} {timeline:?}: {said:?}, not {refused:?}");
        }
        for Joined { one, other, both } in vectors.joined {
            assert_eq!(Record::from(one).with(other.into()), both.into());
        }
        for Replaced { known, records, by } in vectors.replaced_by {
            let records: Vec<Record> = records.into_iter().map(Record::from).collect();
            assert_eq!(
                Record::from(known).replaced_by(&records),
                by.map(Record::from)
            );
        }
        for Awaited {
            records: recorded,
            identity: (system, timeline),
            refused,
        } in vectors.awaited
        {
            let mut records = Records::default();
            recorded
                .iter()
                .for_each(|record| records.add(Record::from(*record)));
            let said = records.judge(Identity { system, timeline });
            let said = said.map_err(|why| why.to_string());
            let as_said = match (&said, &refused) {
                (Err(said), Some(refused)) => said.starts_with(refused.as_str()),
                (said, refused) => said.is_ok() && refused.is_none(),
            };
            assert!(as_said, "{system} {timeline:?}: {said:?}, not {refused:?}");
        }
    }

    #[tokio::test]
    async fn the_awaited_server_takes_the_hosts_place_once_it_takes_writes() {
        let known = SharedKnowledge::default();
        let task = || tokio::spawn(std::future::pending::<()>()).abort_handle();
        let server = |system, read_only| Server {
            identity: Some(Identity {
                system,
                timeline: Some(1),
            }),
            read_only,
            started: 10.0,
        };
        let record = |generation, system, timeline| Record {
            generation,
            system,
            timeline,
        };
        let (blue, green) = (server(7, false), server(8, false));
        known.learn(record(1, 7, 1));
        let before = task();
        known.admit(blue, before.clone()).unwrap();
        // A server that does not descend from the host awaits nothing in its name.
        assert!(!known.accept(&[record(2, 8, 0), record(1, 9, 1)]));
        assert!(known.admit(green, task()).is_err());
        assert!(known.accept(&[record(2, 8, 0), record(1, 7, 1)]));
        known.admit(server(8, true), task()).unwrap();
        known.admit(blue, task()).unwrap();
        assert!(known.admit(server(9, false), task()).is_err());
        known.admit(green, task()).unwrap();
        assert_eq!(known.record(), Some(record(2, 8, 1)));
        let former = known.admit(blue, task());
        let (system, known) = (7, 8);
        assert_eq!(former, Err(Impostor::Other { system, known }));
        tokio::task::yield_now().await;
        assert!(before.is_finished());
    }

    #[tokio::test]
    async fn a_later_timeline_closes_what_is_open() {
        let known = SharedKnowledge::default();
        let task = || tokio::spawn(std::future::pending::<()>());
        let (first, standby, second) = (task(), task(), task());
        let server = |system, timeline, started| Server {
            identity: Some(Identity { system, timeline }),
            read_only: timeline.is_none(),
            started,
        };
        let (a, b) = (server(7, Some(1), 10.0), server(7, Some(2), 20.0));
        assert_eq!(
            known.learn_of(b),
            AddressAnswer::Nothing,
            "nothing is known of the host"
        );
        known.admit(a, first.abort_handle()).unwrap();
        known
            .admit(server(7, None, 20.0), standby.abort_handle())
            .unwrap();
        let other = Impostor::Other {
            system: 8,
            known: 7,
        };
        assert_eq!(known.learn_of(a), AddressAnswer::Nothing);
        assert_eq!(
            known.learn_of(server(8, Some(5), 30.0)),
            AddressAnswer::Impostor(other)
        );
        assert_eq!(
            known.learn_of(server(7, Some(1), 30.0)),
            AddressAnswer::Rival
        );
        assert_eq!(known.learn_of(b), AddressAnswer::Later);
        assert!(first.await.unwrap_err().is_cancelled());
        known.admit(b, second.abort_handle()).unwrap();
        let former = Impostor::Former {
            timeline: 1,
            newest: 2,
        };
        assert_eq!(known.admit(a, standby.abort_handle()), Err(former));
        assert_eq!(known.learn_of(a), AddressAnswer::Impostor(former));
        assert!(!standby.is_finished() && !second.is_finished());
    }
}
