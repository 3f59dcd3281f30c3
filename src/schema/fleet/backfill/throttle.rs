//! How fast the work on a host goes: the size of the ranges, the lag of standbys, the rate.

use std::num::NonZeroU64;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::pg::Connection;
use crate::pg::state::is_not_provided;
use crate::schema::fleet::report::NO_PANIC;

/// How long an observed lag of the standbys counts.
const LOOK: Duration = Duration::from_millis(500);

/// The number of keys in the first range, and in the largest.
const KEYS_FIRST: i64 = 100;
const KEYS_MAX: i64 = 1_000_000;

/// How many keys a range has: as many as fit in the time that a range should take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size(i64);

impl Size {
    pub(super) fn first() -> Size {
        Size(KEYS_FIRST)
    }

    pub(super) fn keys(self) -> i64 {
        self.0
    }

    /// The size after a range that took `took`. It at most doubles, because the next rows may not
    /// be cached, or less dense.
    pub(super) fn after(self, took: Duration, wanted: Duration) -> Size {
        let ratio = wanted.as_secs_f64() / took.as_secs_f64().max(0.000_1);
        Size(((self.0 as f64 * ratio.clamp(0.25, 2.0)) as i64).clamp(1, KEYS_MAX))
    }

    /// The size after a range that took too long. `None`: it had one key.
    pub(super) fn smaller(self) -> Option<Size> {
        (self.0 > 1).then(|| Size(self.0 / 4).max_one())
    }

    fn max_one(self) -> Size {
        Size(self.0.max(1))
    }
}

/// What holds a host's workers back.
pub(super) struct Throttle {
    lag_max: u64,
    rate: Option<NonZeroU64>,
    /// When the next range may begin, by the rate.
    next: Mutex<Instant>,
    seen: Mutex<Option<(Instant, Lag)>>,
}

/// The state of a host's standbys, and of other receivers of its WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lag {
    /// How far the slowest is behind, in bytes.
    pub(super) bytes: u64,
    /// Whether the role is not allowed to see some of them.
    pub(super) is_hidden: bool,
}

/// What keeps a range from beginning.
pub(super) enum ThrottleReason {
    /// The rate, for this long.
    Rate(Duration),
    /// A receiver of the host's WAL is this many bytes behind.
    Lag(u64),
}

impl Throttle {
    pub(super) fn new(lag_max: u64, rate: Option<NonZeroU64>) -> Throttle {
        Throttle {
            lag_max,
            rate,
            next: Mutex::new(Instant::now()),
            seen: Mutex::default(),
        }
    }

    /// What holds the next range back, if anything does; and whether standbys are hidden from the
    /// role.
    ///
    /// Locks: none.
    ///
    /// # Errors
    /// When the connection is lost.
    pub(super) async fn reason_to_wait(
        &self,
        client: &Connection,
    ) -> Result<(Option<ThrottleReason>, bool), tokio_postgres::Error> {
        let now = Instant::now();
        let next = *self.next.lock().expect(NO_PANIC);
        if next > now {
            return Ok((Some(ThrottleReason::Rate(next - now)), false));
        }
        let seen = *self.seen.lock().expect(NO_PANIC);
        let lag = match seen {
            Some((at, lag)) if now.duration_since(at) < LOOK => lag,
            _ => {
                let lag = read_lag(client).await?;
                *self.seen.lock().expect(NO_PANIC) = Some((Instant::now(), lag));
                lag
            }
        };
        Ok((
            (lag.bytes > self.lag_max).then_some(ThrottleReason::Lag(lag.bytes)),
            lag.is_hidden,
        ))
    }

    /// Counts the rows of a range.
    pub(super) fn ran(&self, rows: u64) {
        let Some(rate) = self.rate else { return };
        let mut next = self.next.lock().expect(NO_PANIC);
        *next =
            (*next).max(Instant::now()) + Duration::from_secs_f64(rows as f64 / rate.get() as f64);
    }
}

async fn read_lag(client: &Connection) -> Result<Lag, tokio_postgres::Error> {
    // A role that may not see other sessions gets their rows without the state. A backup has no
    // position.
    let sql = "SELECT coalesce(max(pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), \
        replay_lsn)), 0)::int8,
            coalesce(pg_catalog.bool_or(state IS NULL), false)
        FROM pg_catalog.pg_stat_replication";
    let row = match client.query_typed(sql, &[]).await {
        // What is not provided is as hidden as the state of other roles' sessions.
        Err(error) if is_not_provided(&error) => {
            return Ok(Lag {
                bytes: 0,
                is_hidden: true,
            });
        }
        row => row?,
    };
    let Some(row) = row.first() else {
        return Ok(Lag {
            bytes: 0,
            is_hidden: false,
        });
    };
    Ok(Lag {
        bytes: u64::try_from(row.try_get::<_, i64>(0)?).unwrap_or(0),
        is_hidden: row.try_get(1)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_take_the_time_that_they_should() {
        let wanted = Duration::from_millis(200);
        // The time of a tenth of a millisecond for each key.
        let mut size = Size::first();
        for _ in 0..8 {
            size = size.after(Duration::from_micros(100) * size.keys() as u32, wanted);
        }
        assert!((1500..=2500).contains(&size.keys()), "{size:?}");
        assert_eq!(Size(100).after(Duration::ZERO, wanted), Size(200));
        assert_eq!(Size(100).after(Duration::from_secs(60), wanted), Size(25));
        assert_eq!(Size(2).after(Duration::from_secs(60), wanted), Size(1));
        assert_eq!(
            (Size(100).smaller(), Size(2).smaller(), Size(1).smaller()),
            (Some(Size(25)), Some(Size(1)), None)
        );
    }

    #[test]
    fn the_rate_holds_for_all_workers_of_a_host() {
        let throttle = Throttle::new(0, NonZeroU64::new(100));
        throttle.ran(50);
        throttle.ran(50);
        let left = throttle.next.lock().unwrap().duration_since(Instant::now());
        assert!(
            left > Duration::from_millis(800) && left <= Duration::from_secs(1),
            "{left:?}"
        );
    }
}
