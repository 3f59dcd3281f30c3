//! Flake: 64 bits of Unix milliseconds, 48 bits of worker, 16 bits of sequence: 128 in all.
//!
//! Sortable by time, ordered within a source, 65,536 per millisecond (65 million per second), no
//! database. Written as 32 hexadecimal digits, which sort as the numbers do; fits PostgreSQL's
//! `uuid` (but has no version field).
//!
//! What fails: two workers with one number repeat. The default is 48 random bits with the multicast
//! bit set, as RFC 4122 §4.5 has it, so that it is never a network card's address, and cloned
//! machines, which have cloned addresses, differ. Of 1,000,000 workers, two are the same with a
//! probability of 0.004 (2^47 numbers). With a number of your own, a source that starts again while
//! the clock stepped back repeats, unless it is given the last millisecond of the one before
//! ([`Options::floor_ms`], from [`Flake::last_ms`]); with a random one it does not matter. A
//! process that was forked draws another number; with one of your own it makes no flakes.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;

use super::process::Process;
use super::ticks::{Patience, Ticks};
use super::{Clock, Error, IdSource, Later, SystemClock, WAIT_MAX, check_batch, random};

/// Bits of worker.
pub const WORKER_BITS: u32 = 48;
/// Bits of sequence.
pub const SEQ_BITS: u32 = 16;
/// The multicast bit of a 48-bit address: the lowest of its first byte.
const MULTICAST: u64 = 1 << 40;

/// One flake. Its order is that of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlakeId(u128);

impl FlakeId {
    /// A flake from its fields; `None` when the worker has more than 48 bits.
    pub const fn new(unix_ms: u64, worker: u64, seq: u16) -> Option<FlakeId> {
        if worker >> WORKER_BITS != 0 {
            return None;
        }
        Some(FlakeId(
            (unix_ms as u128) << 64 | (worker as u128) << SEQ_BITS | seq as u128,
        ))
    }

    /// A flake from its bits: every number is one.
    pub const fn from_bits(bits: u128) -> FlakeId {
        FlakeId(bits)
    }

    /// Its bits.
    pub const fn bits(self) -> u128 {
        self.0
    }

    /// Milliseconds since 1970.
    pub const fn unix_ms(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// The worker, 48 bits.
    pub const fn worker(self) -> u64 {
        (self.0 as u64) >> SEQ_BITS
    }

    /// The sequence number within worker and millisecond.
    pub const fn seq(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Display for FlakeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A text that is no flake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a flake is 32 hexadecimal digits")]
pub struct ParseError;

impl FromStr for FlakeId {
    type Err = ParseError;

    /// 32 hexadecimal digits, with the hyphens of a UUID or without.
    fn from_str(text: &str) -> Result<FlakeId, ParseError> {
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        if digits.len() != 32 || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(ParseError);
        }
        u128::from_str_radix(&digits, 16)
            .map(FlakeId)
            .map_err(|_| ParseError)
    }
}

/// The number of the worker that makes flakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker {
    /// 48 random bits with the multicast bit set, new for each source and each process.
    Random,
    /// A number that no other source has; the upper 16 bits are cut off.
    Given(u64),
}

/// How a source works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The worker's number.
    pub worker: Worker,
    /// No flake of an earlier Unix millisecond is made: for a given worker, the [`Flake::last_ms`]
    /// that the source before it left, plus one. 0 for none.
    pub floor_ms: u64,
    /// How long to wait for a clock that stepped back.
    pub wait_max: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            worker: Worker::Random,
            floor_ms: 0,
            wait_max: WAIT_MAX,
        }
    }
}

setters!(Options: worker: Worker, floor_ms: u64, wait_max: Duration);

/// A source of flakes.
#[derive(Debug)]
pub struct Flake {
    clock: Arc<dyn Clock>,
    chosen: Worker,
    maker: ArcSwap<Maker>,
    /// Held by the thread that draws the number of a forked process, so that only one does.
    drawing: Mutex<()>,
    wait_max: Duration,
    // 48 bits are left for the milliseconds, which is enough until the year 10889.
    ticks: Ticks<SEQ_BITS>,
}

const MS_END: u64 = 1 << (64 - SEQ_BITS);

/// A worker's number, and the process that it is for.
#[derive(Debug)]
struct Maker {
    process: Process,
    worker: u64,
}

impl Maker {
    fn new(worker: Worker) -> Maker {
        let cut = (1 << WORKER_BITS) - 1;
        let worker = match worker {
            Worker::Random => random::of_the_system() & cut | MULTICAST,
            Worker::Given(number) => number & cut,
        };
        Maker {
            process: Process::current(),
            worker,
        }
    }
}

impl Flake {
    /// A source with the machine's clock.
    pub fn new(options: &Options) -> Flake {
        Flake::with_clock(options, SystemClock::shared())
    }

    /// A source with another clock.
    pub fn with_clock(options: &Options, clock: Arc<dyn Clock>) -> Flake {
        let ticks = Ticks::from(options.floor_ms.min(MS_END - 1));
        let maker = ArcSwap::from_pointee(Maker::new(options.worker));
        Flake {
            clock,
            chosen: options.worker,
            maker,
            drawing: Mutex::new(()),
            wait_max: options.wait_max,
            ticks,
        }
    }

    /// The worker's number.
    pub fn worker(&self) -> u64 {
        self.maker.load().worker
    }

    /// This process's number.
    fn own_worker(&self) -> Result<u64, Later> {
        let maker = self.maker.load();
        if maker.process.is_current() {
            return Ok(maker.worker);
        }
        if self.chosen != Worker::Random {
            return Err(Later::Forked);
        }
        let _one_at_a_time = self.drawing.lock().unwrap_or_else(PoisonError::into_inner);
        let maker = self.maker.load();
        if maker.process.is_current() {
            return Ok(maker.worker);
        }
        let maker = Maker::new(Worker::Random);
        let worker = maker.worker;
        self.maker.store(Arc::new(maker));
        Ok(worker)
    }

    /// The last Unix millisecond that is in a flake of this source, to be kept for
    /// [`Options::floor_ms`].
    pub fn last_ms(&self) -> u64 {
        self.ticks.last_ms()
    }

    /// The next one, without waiting.
    ///
    /// # Errors
    /// What keeps it: this millisecond is used up, the clock is behind, or a number of your own is
    /// another process's.
    pub fn try_next(&self) -> Result<FlakeId, Later> {
        let mut one = None;
        self.take(1, |id| one = Some(id))?;
        Ok(one.expect("at least one is taken"))
    }

    fn take(&self, want: u64, mut put: impl FnMut(FlakeId)) -> Result<(), Later> {
        let now = || match self.clock.unix_ms() {
            unix_ms if unix_ms < MS_END => Ok(unix_ms),
            unix_ms => Err(Later::OutOfRange { unix_ms }),
        };
        let worker = self.own_worker()?;
        let taken = self.ticks.take(now, want)?;
        for seq in taken.seq..taken.seq + taken.count {
            put(FlakeId::new(taken.ms, worker, seq as u16).expect("the worker was cut to 48 bits"));
        }
        Ok(())
    }
}

impl IdSource for Flake {
    type Id = FlakeId;
    type Error = Error;

    async fn next(&self) -> Result<FlakeId, Error> {
        if let Ok(id) = self.try_next() {
            return Ok(id);
        }
        Ok(self.next_many(1).await?[0])
    }

    async fn next_many(&self, count: usize) -> Result<Vec<FlakeId>, Error> {
        check_batch(count)?;
        let mut ids = Vec::with_capacity(count);
        let mut patience = Patience::new(&*self.clock, self.wait_max);
        while ids.len() < count {
            match self.take((count - ids.len()) as u64, |id| ids.push(id)) {
                Ok(()) => patience.rewarded(),
                Err(Later::Behind { by_ms }) => patience.wait(by_ms).await?,
                Err(Later::OutOfRange { unix_ms }) => {
                    return Err(Error::OutOfRange {
                        unix_ms,
                        first_ms: 0,
                        last_ms: MS_END as i64 - 1,
                    });
                }
                Err(Later::Forked) => return Err(Error::Forked),
                Err(Later::NextMillisecond | Later::Lease) => patience.wait(0).await?,
            }
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::testing::FakeClock;
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_800_000_000_000;

    proptest! {
        #[test]
        fn there_and_back(ms: u64, worker in 0..1_u64 << 48, seq: u16) {
            let id = FlakeId::new(ms, worker, seq).unwrap();
            prop_assert_eq!((id.unix_ms(), id.worker(), id.seq()), (ms, worker, seq));
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            prop_assert_eq!(FlakeId::from_bits(id.bits()), id);
        }

        #[test]
        fn text_sorts_as_numbers(a: u128, b: u128) {
            let (a, b) = (FlakeId::from_bits(a), FlakeId::from_bits(b));
            prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
        }
    }

    #[test]
    fn what_is_no_flake() {
        assert_eq!(FlakeId::new(0, 1 << 48, 0), None);
        for text in ["", "7", &"g".repeat(32), &"0".repeat(33)] {
            assert_eq!(text.parse::<FlakeId>(), Err(ParseError));
        }
        assert!(
            "00000000-0000-0001-8000-000000000007"
                .parse::<FlakeId>()
                .is_ok()
        );
    }

    #[test]
    fn a_random_worker_is_no_network_card() {
        for _ in 0..100 {
            assert_ne!(Flake::new(&Options::default()).worker() & MULTICAST, 0);
        }
    }

    #[tokio::test]
    async fn a_millisecond_has_65536_and_then_the_next_begins() {
        let clock = FakeClock::new(NOW, Duration::from_micros(300));
        let flake = Flake::with_clock(
            &Options {
                worker: Worker::Given(7),
                ..Options::default()
            },
            Arc::new(clock),
        );
        let ids = flake.next_many(70_000).await.unwrap();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!((ids[65_535].unix_ms(), ids[65_535].seq()), (NOW, u16::MAX));
        assert!(ids[65_536].unix_ms() > NOW && ids[65_536].seq() == 0);
    }

    #[tokio::test]
    async fn a_clock_that_steps_back_is_waited_for_or_refused() {
        let clock = FakeClock::new(NOW, Duration::ZERO);
        let flake = Flake::with_clock(&Options::default(), Arc::new(clock.clone()));
        let before = flake.next().await.unwrap();
        clock.step(-900);
        assert_eq!(flake.try_next(), Err(Later::Behind { by_ms: 900 }));
        assert!(flake.next().await.unwrap() > before);
        clock.step(-1500);
        assert!(matches!(
            flake.next().await,
            Err(Error::ClockBehind {
                by_ms: 1500,
                limit_ms: 1000
            })
        ));
        clock.step(3_600_000);
        assert!(flake.next().await.unwrap() > before);
    }

    #[tokio::test]
    async fn a_kept_time_is_a_floor() {
        let clock = FakeClock::new(NOW, Duration::from_micros(100));
        let options = Options {
            worker: Worker::Given(7),
            ..Options::default()
        };
        let first = Flake::with_clock(&options, Arc::new(clock.clone()));
        let last = first.next_many(100).await.unwrap()[99];
        clock.step(-500);
        let options = Options {
            floor_ms: first.last_ms() + 1,
            ..options
        };
        let second = Flake::with_clock(&options, Arc::new(clock));
        assert!(second.next().await.unwrap() > last);
    }

    /// Sources that are made at the same moment, in threads that are numbered alike, draw different
    /// numbers.
    #[test]
    fn random_workers_differ() {
        let drawn = |_| {
            std::thread::spawn(|| {
                (0..2000)
                    .map(|_| Flake::new(&Options::default()).worker())
                    .collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = (0..4).map(drawn).collect();
        let all: Vec<u64> = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect();
        assert_eq!(
            all.iter().collect::<std::collections::HashSet<_>>().len(),
            all.len()
        );
    }

    #[tokio::test]
    async fn a_forked_process_has_another_worker_or_none() {
        let flake = Flake::new(&Options::default());
        let parents = flake.worker();
        assert_eq!(flake.next().await.unwrap().worker(), parents);
        flake.maker.store(Arc::new(Maker {
            process: Process::parent(),
            worker: parents,
        }));
        let childs = flake.next().await.unwrap().worker();
        assert!(childs != parents && childs & MULTICAST != 0);
        assert_eq!(flake.next_many(10).await.unwrap()[9].worker(), childs);

        let given = Flake::new(&Options {
            worker: Worker::Given(7),
            ..Options::default()
        });
        given.maker.store(Arc::new(Maker {
            process: Process::parent(),
            worker: 7,
        }));
        assert_eq!(given.try_next(), Err(Later::Forked));
        assert!(matches!(given.next().await, Err(Error::Forked)));
    }

    /// A clock that has stopped is an error, not an endless wait.
    #[tokio::test]
    async fn a_clock_that_stands_still() {
        let options = Options {
            wait_max: Duration::ZERO,
            ..Options::default()
        };
        let clock = FakeClock::new(NOW, Duration::ZERO);
        let flake = Flake::with_clock(&options, Arc::new(clock.clone()));
        flake.next_many(65_536).await.unwrap();
        let waits = tokio::spawn(async move { flake.next().await });
        tokio::task::yield_now().await;
        // Time passes, and the wall clock is set back by as much.
        clock.pass(Duration::from_millis(10));
        clock.step(-10);
        assert!(matches!(
            waits.await.unwrap(),
            Err(Error::ClockBehind { .. })
        ));
    }
}
