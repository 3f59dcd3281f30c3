//! Where a call goes: a shard, and what its handle has set for its calls.

use std::time::Duration;

use super::Router;
use super::error::Error;
use super::pool_slots::Lane;
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
        self.router.prefix().schema(self.shard)
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
