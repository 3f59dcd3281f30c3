//! Tickets: plain growing numbers from sequences of PostgreSQL ("Ticket Servers: Distributed Unique
//! Primary Keys on the Cheap", Flickr 2010), for rows that have no shard yet: a user's ID, which
//! picks the shard.
//!
//! A name (`users`) has one series of tickets on two or more hosts. Each host counts on its own and
//! gives runs of numbers that are its own ([`Layout`]): with a stride of 16 and runs of 8,192, the
//! host of residue 1 gives 8,192 to 16,383, then jumps over the runs of the other fifteen. A stride
//! of 2 and runs of 1 are Flickr's odd and even. Runs are there because of `user_id % N`: with a
//! stride of 16 and runs of 1, two hosts would give IDs for one shard in eight when N is 4,096.
//! Hosts are used in turn, so tickets are only roughly in order. A block fetched ahead serves most
//! calls from memory.
//!
//! Invariant: a residue belongs to one host. It is recorded on all hosts before that host gives its
//! first ticket, stays recorded when the host is lost, and goes to another only with an explicit
//! start above what the lost one gave. [`create`] keeps to that; [`Tickets`] checks with every
//! block that the host is the one the config means, in the series it knows, and that a host's
//! numbers grow.
//!
//! A series may have a maximum, for columns that are narrower than `bigint`: each host's sequence
//! ends there, and no host gives a ticket above it.
//!
//! What fails: with all hosts of a name down there are no tickets. Numbers are lost with every
//! block that is not used up; a host has 2^63 / stride of them. A host restored from an old backup,
//! or a standby promoted without its last transactions, would give numbers again: run [`create`]
//! with a start above the last one before it serves.

mod host;
mod rest;
mod setup;
mod source;
mod status;

use std::fmt;
use std::str::FromStr;

use crate::map::HostName;
use crate::pg::cause::chain;
use crate::pg::{ConnectError, ConnectOptions};

pub use setup::{Create, Created, Refusal, Role, create};
pub use source::{Options, Tickets};
pub use status::{HostStatus, NameStatus, Used, status};

/// How many residues there are by default.
pub const STRIDE_DEFAULT: u32 = 16;
/// The largest stride.
pub const STRIDE_MAX: u32 = 1024;

/// How many numbers in a row are one host's by default: the largest N.
pub const RUN_DEFAULT: u32 = 8192;
/// The longest run.
pub const RUN_MAX: u32 = 1 << 20;

/// The name of a series: `users`. Lower-case letters, digits and `_`, a letter first, at most 40.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketName(String);

/// A text that is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no name for tickets: a lower-case letter, then up to 39 of a-z, 0-9 and _")]
pub struct NameError {
    text: String,
}

impl TicketName {
    /// A name.
    ///
    /// # Errors
    /// When it has other characters, or too many.
    pub fn new(text: &str) -> Result<TicketName, NameError> {
        let right = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        match text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.len() <= 40
            && text.chars().all(right)
        {
            true => Ok(TicketName(text.to_owned())),
            false => Err(NameError {
                text: text.to_owned(),
            }),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The sequence, as SQL has it.
    fn sequence(&self) -> String {
        format!(
            "pgshard_tickets.{}",
            crate::pg::quote_ident(&format!("ticket_{}", self.0))
        )
    }
}

impl fmt::Display for TicketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TicketName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<TicketName, NameError> {
        TicketName::new(text)
    }
}

/// A host that has tickets, or will have some.
#[derive(Clone, Debug)]
pub struct TicketHost {
    /// Its name in the config.
    pub name: HostName,
    /// How to connect.
    pub connect: ConnectOptions,
}

/// Why there are no tickets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The series cannot be created like this.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Refused(Vec<Refusal>),
    /// A host cannot be reached.
    #[error("host {host} is out of reach")]
    Connect {
        /// The host.
        host: HostName,
        /// Why.
        #[source]
        source: ConnectError,
    },
    /// A statement failed.
    #[error("host {host}: cannot {doing}")]
    Sql {
        /// The host.
        host: HostName,
        /// What was being done.
        doing: &'static str,
        /// The error of the server or the driver.
        #[source]
        source: tokio_postgres::Error,
    },
    /// A host took too long.
    #[error("host {host} gave no ticket within {limit_ms} ms")]
    TimedOut {
        /// The host.
        host: HostName,
        /// The limit.
        limit_ms: u128,
    },
    /// The host has no such series.
    #[error("host {host} has no tickets {name}: `pgshard tickets create {name} --hosts {host}`")]
    NotThere {
        /// The host.
        host: HostName,
        /// The name.
        name: TicketName,
    },
    /// The host is not the one in the config, or its tickets do not belong to the series of the
    /// other hosts.
    #[error("host {host} is not used for {name}: {reason}")]
    Mismatch {
        /// The host.
        host: HostName,
        /// The name.
        name: TicketName,
        /// What does not fit.
        reason: String,
    },
    /// No host gave a ticket: the error of each.
    #[error("no host gave a ticket of {name}: {}", all(.failed))]
    AllFailed {
        /// The name.
        name: TicketName,
        /// Each host's failure, at least one.
        failed: Vec<Error>,
    },
    /// The series has a maximum, and these hosts have given all their tickets up to it.
    #[error(
        "tickets {name} are used up on {}: `pgshard tickets create {name} --max N` raises their \
            maximum, where the column holds larger numbers",
        join(.hosts)
    )]
    UsedUp {
        /// The name.
        name: TicketName,
        /// The hosts that have none left.
        hosts: Vec<HostName>,
        /// The server's message, which contains the maximum.
        #[source]
        source: tokio_postgres::Error,
    },
    /// The runtime ended while a ticket was on its way.
    #[error("no ticket of {name} was taken: the runtime of the task that asked has ended")]
    Ended {
        /// The name.
        name: TicketName,
    },
    /// There are no hosts to take tickets from.
    #[error("no host is named to take tickets {name} from")]
    NoHosts {
        /// The name.
        name: TicketName,
    },
    /// The call requested more tickets than are given at once.
    #[error(
        "{count} tickets at once are more than {}: ask several times",
        super::BATCH_MAX
    )]
    BatchTooLarge {
        /// How many were requested.
        count: usize,
    },
}

/// The errors of all hosts. Several errors have no single source that a report could follow.
fn all(failed: &[Error]) -> String {
    failed
        .iter()
        .map(|error| chain(error))
        .collect::<Vec<_>>()
        .join("; ")
}

fn join(hosts: &[HostName]) -> String {
    hosts
        .iter()
        .map(HostName::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

impl Error {
    fn sql(host: &HostName, doing: &'static str) -> impl Fn(tokio_postgres::Error) -> Error {
        move |source| Error::Sql {
            host: host.clone(),
            doing,
            source,
        }
    }
}

/// Which numbers belong to which host:
/// `ticket = (count / run * stride + residue) * run + count % run`, where `count` is what the
/// residue's host counts. It is the same for all hosts of a name, and never changes.
///
/// ```
/// use pgshard::idgen::tickets::Layout;
/// let layout = Layout::default();
/// assert_eq!(layout.ticket(1, 5), Some(8197));
/// let fields = layout.decode(8197).unwrap();
/// assert_eq!((fields.residue, fields.count), (1, 5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// How many residues there are, and so how many hosts there can ever be: `1..=STRIDE_MAX`.
    pub stride: u32,
    /// How many numbers in a row are one host's: `1..=RUN_MAX`. At least N, so that each host's IDs
    /// reach all shards.
    pub run: u32,
}

impl Default for Layout {
    fn default() -> Layout {
        Layout {
            stride: STRIDE_DEFAULT,
            run: RUN_DEFAULT,
        }
    }
}

/// What a ticket is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fields {
    /// The residue of the host that gave it.
    pub residue: u32,
    /// How many the host had given before.
    pub count: u64,
}

impl Layout {
    /// What a ticket is made of; `None` for what no host gives.
    pub const fn decode(self, ticket: i64) -> Option<Fields> {
        if ticket < 1 || self.stride == 0 || self.run == 0 {
            return None;
        }
        let (stride, run, ticket) = (self.stride as u64, self.run as u64, ticket as u64);
        let residue = (ticket / run % stride) as u32;
        Some(Fields {
            residue,
            count: ticket / run / stride * run + ticket % run,
        })
    }

    /// The ticket of a count; `None` past 2^63.
    pub fn ticket(self, residue: u32, count: u64) -> Option<i64> {
        let (stride, run) = (i128::from(self.stride), i128::from(self.run));
        let count = i128::from(count);
        i64::try_from((count / run * stride + i128::from(residue)) * run + count % run).ok()
    }

    /// The largest count of a residue with a ticket of at most `max`; `None` if it has no such
    /// ticket.
    pub fn last_count(self, residue: u32, max: i64) -> Option<u64> {
        let max = u64::try_from(max).ok()?;
        let run = u64::from(self.run);
        let period = run * u64::from(self.stride);
        let before = (max / period) * run;
        let count = match (max % period).checked_sub(u64::from(residue) * run) {
            Some(within) => before + within.min(run - 1),
            None => before.checked_sub(1)?,
        };
        self.ticket(residue, count)
            .filter(|ticket| *ticket >= 1)
            .map(|_| count)
    }

    /// The smallest count of a residue with a ticket of at least `start` and at least 1; `None`
    /// past 2^63.
    fn first_count(self, residue: u32, start: i64) -> Option<i64> {
        let (run, start) = (u64::from(self.run), start.max(1).cast_unsigned());
        let period = run * u64::from(self.stride);
        let (before, within) = (start / period * run, start % period);
        // `within` lies before the residue's run, inside it, or after it.
        let count = before + within.saturating_sub(u64::from(residue) * run).min(run);
        self.ticket(residue, count)
            .and_then(|_| i64::try_from(count).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn there_and_back(ticket in 1..=i64::MAX, stride in 1..=STRIDE_MAX, run in 1..=RUN_MAX) {
            let layout = Layout { stride, run };
            let Fields { residue, count } = layout.decode(ticket).unwrap();
            prop_assert!(residue < stride);
            prop_assert_eq!(layout.ticket(residue, count), Some(ticket));
        }

        #[test]
        fn the_last_count_is_within_any_maximum(
            max in 1..=i64::MAX,
            stride in 1..=STRIDE_MAX,
            residue in 0..STRIDE_MAX,
            run in 1..=RUN_MAX
        ) {
            prop_assume!(residue < stride);
            let layout = Layout { stride, run };
            if let Some(last) = layout.last_count(residue, max) {
                prop_assert!(layout.ticket(residue, last).unwrap() <= max);
                prop_assert!(layout.ticket(residue, last + 1).is_none_or(|next| next > max));
            }
        }

        #[test]
        fn first_of_a_residue(
            start in 1..1_i64 << 62,
            stride in 1..=STRIDE_MAX,
            residue in 0..STRIDE_MAX,
            run in 1..=RUN_MAX
        ) {
            prop_assume!(residue < stride);
            let layout = Layout { stride, run };
            let first = layout.first_count(residue, start).unwrap().cast_unsigned();
            prop_assert!(layout.ticket(residue, first).unwrap() >= start);
            prop_assert!(first == 0 || layout.ticket(residue, first - 1).unwrap() < start);
        }
    }

    /// The last count below a maximum, compared with all tickets of small layouts.
    #[test]
    fn the_last_count_is_the_last_ticket_that_a_maximum_allows() {
        for (stride, run) in [(1, 1), (2, 1), (1, 5), (3, 4), (16, 8)] {
            let layout = Layout { stride, run };
            for residue in 0..stride {
                for max in 0..300 {
                    let last = (0..300)
                        .take_while(|count| layout.ticket(residue, *count).unwrap() <= max)
                        .last()
                        .filter(|count| layout.ticket(residue, *count).unwrap() >= 1);
                    let found = layout.last_count(residue, max);
                    assert_eq!(found, last, "{layout:?}, residue {residue}, {max}");
                }
            }
        }
        assert_eq!(Layout::default().last_count(3, -1), None);
    }

    #[test]
    fn odd_and_even() {
        let layout = Layout { stride: 2, run: 1 };
        let first = |residue: u32| {
            let begin = layout.first_count(residue, 1).unwrap().cast_unsigned();
            (begin..begin + 3)
                .map(|count| layout.ticket(residue, count).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!((first(1), first(0)), (vec![1, 3, 5], vec![2, 4, 6]));
        assert_eq!(Layout::default().first_count(3, i64::MAX), None);
        assert_eq!(
            (
                layout.decode(0),
                layout.decode(-1),
                Layout { stride: 0, run: 1 }.decode(1)
            ),
            (None, None, None)
        );
    }

    /// What runs are for: the users of a single host are on all shards, whatever N is.
    #[test]
    fn one_residue_reaches_every_shard() {
        for shards in [1, 2000, 4096, 8191, 8192_i64] {
            let shards_reached = |layout: Layout| {
                let tickets = (0..8192).map(|count| layout.ticket(3, count).unwrap() % shards);
                tickets.collect::<std::collections::BTreeSet<_>>().len() as i64
            };
            assert_eq!(shards_reached(Layout::default()), shards);
            if shards == 4096 {
                assert_eq!(shards_reached(Layout { stride: 16, run: 1 }), 4096 / 16);
            }
        }
    }

    #[test]
    fn names_of_tickets_are_checked() {
        for right in ["users", "u", "a_1", &"a".repeat(40)] {
            assert_eq!(TicketName::new(right).unwrap().as_str(), right);
        }
        for wrong in ["", "Users", "1a", "_a", "a-b", "a\"b", &"a".repeat(41)] {
            assert!(TicketName::new(wrong).is_err(), "{wrong}");
        }
    }
}
