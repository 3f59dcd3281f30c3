//! Tickets: plain growing numbers from sequences of PostgreSQL ("Ticket Servers: Distributed Unique Primary Keys on the
//! Cheap", Flickr 2010), for rows that have no shard yet: a user's ID, which picks the shard.
//!
//! A name (`users`) has one series of tickets on two or more hosts. Each host gives the numbers with its own residue modulo
//! the **stride**: with a stride of 16, host residue 1 gives 1, 17, 33 …, residue 2 gives 2, 18, 34 …. A stride of 2 is
//! Flickr's odd and even; a larger one leaves room for hosts. A ticket is a positive `bigint`: `n * stride + residue`.
//! Hosts are used in turn, so tickets are only roughly in order. A block fetched ahead serves most calls from memory.
//!
//! What may not break: a residue belongs to one host. It is recorded on all hosts before that host gives its first ticket,
//! stays recorded when the host is lost, and goes to another only with an explicit start above what the lost one gave.
//! [`create`] keeps to that; [`Tickets`] checks with every block that the host is the one the config means, in the series
//! it knows, and that a host's numbers grow.
//!
//! What fails: with all hosts of a name down there are no tickets. Numbers are lost with every block that is not used up;
//! there are 2^63 / stride of them. A host restored from an old backup, or a standby promoted without its last
//! transactions, would give numbers again: run [`create`] with a start above the last one before it serves.

mod host;
mod setup;
mod source;
mod status;

use std::fmt;
use std::str::FromStr;

use crate::map::HostName;
use crate::pg::{ConnectError, ConnectOptions};

pub use setup::{Create, Created, Refusal, Role, create};
pub use source::{Options, Tickets};
pub use status::{HostStatus, NameStatus, status};

/// How far apart the tickets of one host are, where nothing is said.
pub const STRIDE_DEFAULT: u32 = 16;
/// The largest stride.
pub const STRIDE_MAX: u32 = 1024;

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
        match text.starts_with(|c: char| c.is_ascii_lowercase()) && text.len() <= 40 && text.chars().all(right) {
            true => Ok(TicketName(text.to_owned())),
            false => Err(NameError { text: text.to_owned() }),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The sequence, as SQL has it.
    fn sequence(&self) -> String {
        format!("pgshard_tickets.{}", crate::pg::quote_ident(&format!("ticket_{}", self.0)))
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

/// A host that has tickets, or is to have some.
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
    /// The series is not to be created so.
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
        /// What the server or the driver says.
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
    /// The host is another than the config says, or its tickets are not of the series of the other hosts.
    #[error("host {host} is not used for {name}: {reason}")]
    Mismatch {
        /// The host.
        host: HostName,
        /// The name.
        name: TicketName,
        /// What does not fit.
        reason: String,
    },
    /// No host gave a ticket: what each said.
    #[error("no host gave a ticket of {name}: {}", .failed.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    AllFailed {
        /// The name.
        name: TicketName,
        /// Each host's failure, at least one.
        failed: Vec<Error>,
    },
    /// There are no hosts to take tickets from.
    #[error("no host is named to take tickets {name} from")]
    NoHosts {
        /// The name.
        name: TicketName,
    },
    /// More than is given at once.
    #[error("{count} tickets at once are more than {}: ask several times", super::BATCH_MAX)]
    BatchTooLarge {
        /// How many were asked for.
        count: usize,
    },
}

impl Error {
    fn sql(host: &HostName, doing: &'static str) -> impl Fn(tokio_postgres::Error) -> Error {
        move |source| Error::Sql { host: host.clone(), doing, source }
    }
}

/// The series of tickets taken apart: which number of which residue. `None` for what no host gives.
///
/// ```
/// use pgshard::idgen::tickets::decode;
/// assert_eq!(decode(33, 16), Some((2, 1)));
/// ```
pub const fn decode(ticket: i64, stride: u32) -> Option<(u64, u32)> {
    if ticket < 1 || stride == 0 {
        return None;
    }
    Some((ticket as u64 / stride as u64, (ticket as u64 % stride as u64) as u32))
}

/// The smallest ticket of a residue that is not below `start` (at least 1); `None` past 2^63.
fn first_ticket(start: i64, stride: u32, residue: u32) -> Option<i64> {
    let start = start.max(1);
    let step = (i64::from(residue) - start).rem_euclid(i64::from(stride));
    start.checked_add(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn first_of_a_residue(start in 1..1_i64 << 62, stride in 1..=STRIDE_MAX, residue in 0..STRIDE_MAX) {
            prop_assume!(residue < stride);
            let first = first_ticket(start, stride, residue).unwrap();
            prop_assert!(first >= start && first - start < i64::from(stride));
            let (n, of) = decode(first, stride).unwrap();
            prop_assert_eq!((of, n * u64::from(stride) + u64::from(of)), (residue, first as u64));
        }
    }

    #[test]
    fn odd_and_even() {
        assert_eq!(
            (first_ticket(1, 2, 1), first_ticket(1, 2, 0), first_ticket(0, 16, 0)),
            (Some(1), Some(2), Some(16))
        );
        assert_eq!(first_ticket(i64::MAX, 16, 3), None);
        assert_eq!((decode(0, 16), decode(-1, 16), decode(1, 0)), (None, None, None));
    }

    #[test]
    fn names() {
        for right in ["users", "u", "a_1", &"a".repeat(40)] {
            assert_eq!(TicketName::new(right).unwrap().as_str(), right);
        }
        for wrong in ["", "Users", "1a", "_a", "a-b", "a\"b", &"a".repeat(41)] {
            assert!(TicketName::new(wrong).is_err(), "{wrong}");
        }
    }
}
