//! Why a call gets no connection.

use std::sync::Arc;
use std::time::Duration;

use super::error::{Error, HostDiffers, LookUpError, PoolPhase, Queue};
use crate::map::HostName;
use crate::pg::ConnectError;
use crate::shard::ShardId;

/// Why there is no connection, from the pool or from the host.
#[derive(Debug)]
pub(super) enum PoolError {
    /// None could be opened.
    Connect(Arc<ConnectError>),
    /// None is opened for a while, because the last one could not be.
    Down {
        cause: Arc<ConnectError>,
        again_in: Duration,
    },
    /// The server is not the host of this cluster.
    Differs(HostDiffers),
    /// None was free within this time.
    TimedOut(PoolPhase, Duration),
    /// As many calls wait as may.
    TooManyWait { limit: u32 },
    /// The router is closed.
    Closed,
}

impl From<ConnectError> for PoolError {
    fn from(error: ConnectError) -> PoolError {
        PoolError::Connect(Arc::new(error))
    }
}

impl From<HostDiffers> for PoolError {
    fn from(error: HostDiffers) -> PoolError {
        PoolError::Differs(error)
    }
}

impl PoolError {
    /// The error of a call on this shard.
    pub(super) fn of_call(self, shard: ShardId, host: HostName) -> Error {
        match self {
            PoolError::Connect(source) => Error::Connect {
                shard,
                host,
                source,
            },
            PoolError::Down { cause, again_in } => Error::HostDown {
                shard,
                host,
                again_in_ms: again_in.as_millis(),
                source: cause,
            },
            PoolError::Differs(source) => Error::HostDiffers {
                shard,
                host,
                source,
            },
            PoolError::TimedOut(phase, limit) => Error::PoolTimeout {
                shard,
                host,
                phase,
                limit_ms: limit.as_millis(),
            },
            PoolError::TooManyWait { limit } => Error::TooManyWaiting {
                shard,
                host,
                queue: Queue::Connection,
                limit,
            },
            PoolError::Closed => Error::Closed,
        }
    }
}

impl From<PoolError> for LookUpError {
    fn from(error: PoolError) -> LookUpError {
        match error {
            PoolError::Connect(source) | PoolError::Down { cause: source, .. } => {
                LookUpError::Connect(source)
            }
            PoolError::Differs(source) => LookUpError::Differs(source),
            PoolError::TimedOut(_, limit) => LookUpError::TimedOut(limit),
            PoolError::TooManyWait { .. } => LookUpError::TimedOut(Duration::ZERO),
            PoolError::Closed => LookUpError::Closed,
        }
    }
}
