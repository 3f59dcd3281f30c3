//! Where a call goes: a shard, and what its handle has set for its calls.

use std::time::Duration;

use super::Router;
use super::error::Error;
use super::pool_slots::Lane;
use super::reach::Reach;
use super::routing::Place;
use super::sql::Sql;
use crate::shard::{KeyKind, ShardId};

/// What a [`Shard`](super::Shard) is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'r> {
    pub(super) router: &'r Router,
    pub(super) shard: ShardId,
    /// The kind of the key that the handle was made from.
    pub(super) key: KeyKind,
    /// How long a call may take.
    pub(super) limit: Option<Duration>,
    /// Which connections its calls use.
    pub(super) lane: Lane,
    /// Which rows its calls are for.
    pub(super) reach: Reach,
}

impl Target<'_> {
    /// Checks that the handle was made from a key of the cluster's kind.
    pub(super) fn checked(self) -> Result<(), Error> {
        let cluster = self.router.key_kind();
        if self.key == cluster {
            Ok(())
        } else {
            Err(Error::WrongKey {
                given: self.key,
                cluster,
            })
        }
    }

    /// The name of the shard's schema, not quoted.
    pub(super) fn schema(self) -> String {
        let inner = self.router.inner();
        match inner.place(self.shard) {
            Ok(place) => place
                .host
                .naming(&inner.prefix)
                .schema(self.shard)
                .into_owned(),
            Err(_) => inner.prefix.schema(self.shard),
        }
    }

    /// Where the next try of a call goes.
    pub(super) fn place(self) -> Result<Place, Error> {
        self.router.inner().place_for(self.shard, self.reach)
    }

    /// Refuses a statement that does not fit its reach.
    pub(super) fn takes(self, sql: &Sql) -> Result<(), Error> {
        match self.reach.fits(sql) {
            true => Ok(()),
            false => self
                .reach
                .takes(sql, (self.shard, &self.place()?.host.name)),
        }
    }

    /// The error of a call that was given up at its limit.
    pub(super) fn timed_out(self, limit: Duration, may_have_run: bool) -> Error {
        let place = match self.router.inner().place(self.shard) {
            Ok(place) => place,
            Err(error) => return error,
        };
        // The calls that follow must know whether the statement was slow or the host is gone.
        place.host.circuit.doubt();
        Error::TimedOut {
            shard: self.shard,
            host: place.host.name.clone(),
            limit_ms: limit.as_millis(),
            may_have_run,
        }
    }
}
