//! How a slot is confirmed: by its stream, or by a session between two runs.
//!
//! PostgreSQL counts a client that reports a flushed position on a stream as a standby, if
//! `synchronous_standby_names` names it, and `*` matches every name. Commits would then wait for
//! the mover and for no standby: a primary without its standbys would acknowledge what no other
//! server has. So there the stream only reports what is written, and the slot is advanced while it
//! is not being read.
//!
//! Invariant: a slot is confirmed up to no position that is not durable for all shards that need
//! it.

use std::time::{Duration, Instant};

use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::mover::stream::slot::{advance, may_count_streams};

/// How long a run with a stream that does not confirm the slot lasts at most. During that time the
/// server keeps the WAL, and what VACUUM would remove from its catalogs.
const ADVANCE_EVERY: Duration = Duration::from_secs(60);

/// How much WAL is read, at most, before such a run ends.
const ADVANCE_BYTES: u64 = 256 << 20;

/// How long the source may take to report which standbys its commits wait for.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Who confirms the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConfirmedBy {
    /// The stream reports durable positions as flushed.
    Stream,
    /// A session, before each run. The stream reports durable positions as written.
    Session,
}

/// A run's slot, and how it is confirmed.
pub(super) struct Confirmation {
    source: Session,
    pub(super) by: ConfirmedBy,
    /// Where the run begins.
    pub(super) from: u64,
    began: Instant,
}

impl Confirmation {
    /// Decides how the slot is confirmed in the run that begins at `from`, where it has confirmed
    /// `confirmed`. The slot is not being read now, and everything below `from` is durable.
    ///
    /// Locks: as [`advance`].
    pub(super) async fn begin(
        source: Session,
        slot: &str,
        confirmed: u64,
        from: u64,
    ) -> Result<Confirmation, Error> {
        let by = if may_count_streams(&source).await? {
            ConfirmedBy::Session
        } else {
            ConfirmedBy::Stream
        };
        if by == ConfirmedBy::Session && from > confirmed {
            advance(&source, slot, from).await?;
        }
        Ok(Confirmation {
            source,
            by,
            from,
            began: Instant::now(),
        })
    }

    /// Whether a new run must begin, since the present one has come to this position: the slot is
    /// to be advanced, or the stream would count as a standby from now on.
    pub(super) async fn is_over(&self, position: u64) -> Result<bool, Error> {
        match self.by {
            // A source that is too slow to report it is queried again: the applier has other things
            // to do.
            ConfirmedBy::Stream => {
                tokio::time::timeout(ANSWER_WITHIN, may_count_streams(&self.source))
                    .await
                    .unwrap_or(Ok(false))
            }
            ConfirmedBy::Session => {
                let read = position.saturating_sub(self.from);
                Ok(read >= ADVANCE_BYTES || read > 0 && self.began.elapsed() >= ADVANCE_EVERY)
            }
        }
    }
}
