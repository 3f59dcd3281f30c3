//! Generators with clocks and a store that the test controls.

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex as StdMutex;

use proptest::prelude::*;

use super::super::clock::testing::FakeClock;
use super::*;

const NOW: u64 = 1_800_000_000_000;

/// By number: the holder, the ceiling, the end.
type Rows = BTreeMap<u16, (Uuid, u64, Duration)>;

/// The rules of the table of leases, with a clock of its own.
#[derive(Clone, Debug)]
struct Memory {
    clock: Arc<FakeClock>,
    rows: Arc<StdMutex<Rows>>,
    numbers: u16,
    down: Arc<StdMutex<bool>>,
}

impl Memory {
    fn new(numbers: u16) -> Memory {
        let clock = FakeClock::new(NOW, Duration::ZERO);
        Memory {
            clock,
            rows: Arc::default(),
            numbers,
            down: Arc::default(),
        }
    }

    fn up(&self) -> Result<(), lease::Error> {
        if *self.down.lock().unwrap() {
            Err(lease::Error::NotInstalled)
        } else {
            Ok(())
        }
    }
}

impl LeaseStore for Memory {
    async fn acquire(&self, token: Uuid, term: Term) -> Result<Grant, lease::Error> {
        self.up()?;
        let mut rows = self.rows.lock().unwrap();
        let now = Clock::monotonic(&self.clock);
        let free = (0..self.numbers)
            .filter(|number| rows.get(number).is_none_or(|(_, _, until)| *until < now));
        let mine = rows
            .iter()
            .find(|(_, row)| row.0 == token)
            .map(|(number, _)| *number);
        let worker =
            mine.or(free.min_by_key(|number| rows.get(number).map(|(_, ceiling, _)| *ceiling)));
        let worker = worker.ok_or(lease::Error::NoneFree {
            space: "memory".to_owned(),
        })?;
        let floor_ms = rows.get(&worker).map_or(0, |(_, ceiling, _)| ceiling + 1);
        let ceiling_ms = floor_ms.max(term.now_ms) + term.length.as_millis() as u64;
        rows.insert(worker, (token, ceiling_ms, now + term.keep));
        Ok(Grant {
            worker,
            token,
            floor_ms,
            ceiling_ms,
        })
    }

    async fn renew(&self, grant: Grant, term: Term) -> Result<Option<Grant>, lease::Error> {
        self.up()?;
        let mut rows = self.rows.lock().unwrap();
        let now = Clock::monotonic(&self.clock);
        let Some(row) = rows
            .get_mut(&grant.worker)
            .filter(|(token, ..)| *token == grant.token)
        else {
            return Ok(None);
        };
        row.1 = row.1.max(term.now_ms + term.length.as_millis() as u64);
        row.2 = now + term.keep;
        Ok(Some(Grant {
            ceiling_ms: row.1,
            ..grant
        }))
    }

    async fn release(&self, grant: Grant, last_ms: u64) -> Result<(), lease::Error> {
        self.up()?;
        let mut rows = self.rows.lock().unwrap();
        let now = Clock::monotonic(&self.clock);
        if let Some(row) = rows
            .get_mut(&grant.worker)
            .filter(|(token, ..)| *token == grant.token)
        {
            *row = (
                Uuid::new_v4(),
                row.1.min(last_ms),
                now.saturating_sub(Duration::from_nanos(1)),
            );
        }
        Ok(())
    }
}

fn options() -> Options {
    Options {
        epoch: Epoch::from_unix_ms(TWITTER_EPOCH_MS).unwrap(),
        lease: Duration::from_secs(10),
        margin: Duration::from_secs(1),
        wait_max: Duration::from_secs(1),
    }
}

async fn generator(store: &Memory, clock: &Arc<FakeClock>) -> Snowflake<Memory> {
    Snowflake::acquire(store.clone(), options(), Arc::new(clock.clone()))
        .await
        .unwrap()
}

fn none_free(error: Error) {
    assert!(
        matches!(&error, Error::NoLease(error) if matches!(**error, lease::Error::NoneFree { .. })),
        "{error}"
    );
}

fn fields(id: i64) -> Fields {
    Fields::decode(id).unwrap()
}

proptest! {
    #[test]
    fn there_and_back(ms in 0..=MS_MAX, worker in 0_u16..1024, seq in 0_u16..4096) {
        let all = Fields { ms, worker, seq };
        prop_assert_eq!(fields(all.encode().unwrap()), all);
    }

    #[test]
    fn every_number_that_is_not_negative(id in 0..=i64::MAX, other in 0..=i64::MAX) {
        prop_assert_eq!(fields(id).encode(), Some(id));
        prop_assert_eq!(fields(id).cmp(&fields(other)), id.cmp(&other));
    }

    /// Two generators over one number, with processes that stop, clocks that step, and a store that
    /// goes away: whatever happens, no ID comes twice, and the IDs of each grow.
    #[test]
    fn no_id_comes_twice(
        steps in proptest::collection::vec((0_usize..2, 0_u8..7, 1_u64..15_000), 1..120),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let store = Memory::new(1);
            let clocks = [
                FakeClock::new(NOW, Duration::ZERO),
                FakeClock::new(NOW - 3000, Duration::ZERO),
            ];
            let mut generators: [Option<Snowflake<Memory>>; 2] = [None, None];
            let (mut seen, mut last) = (HashSet::new(), [0; 2]);
            for (who, what, amount) in steps {
                let clock = &clocks[who];
                if generators[who].is_none() {
                    let clock = Arc::new(clock.clone());
                    let made = Snowflake::acquire(store.clone(), options(), clock).await;
                    (generators[who], last[who]) = (made.ok(), 0);
                }
                match what {
                    // Everybody's time passes; or only one process's, as if the other were stopped.
                    0 | 1 => {
                        let span = Duration::from_millis(amount);
                        clock.pass(span);
                        store.clock.pass(span);
                        if what == 0 {
                            clocks[1 - who].pass(span);
                        }
                    }
                    2 => clock.step(-(amount as i64)),
                    3 => clock.step(amount as i64),
                    4 => *store.down.lock().unwrap() = amount % 2 == 0,
                    5 => generators[who] = None,
                    _ => {}
                }
                if let Some(generator) = &generators[who] {
                    for _ in 0..3 {
                        let Ok(id) = generator.next().await else { break };
                        assert!(seen.insert(id), "{:?} comes twice", fields(id));
                        assert!(id > last[who] || fields(id).worker != fields(last[who]).worker);
                        last[who] = id;
                    }
                }
            }
        });
    }
}

#[test]
fn fields_that_do_not_fit() {
    let all = Fields {
        ms: MS_MAX,
        worker: 1023,
        seq: 4095,
    };
    assert_eq!(all.encode(), Some(i64::MAX));
    for wrong in [
        Fields {
            ms: MS_MAX + 1,
            ..all
        },
        Fields {
            worker: 1024,
            ..all
        },
        Fields { seq: 4096, ..all },
    ] {
        assert_eq!(wrong.encode(), None);
    }
    assert_eq!(Fields::decode(-1), None);
}

#[tokio::test]
async fn a_millisecond_has_4096_and_then_the_next_begins() {
    let store = Memory::new(1024);
    let clock = FakeClock::new(NOW, Duration::from_micros(300));
    let ids = generator(&store, &clock)
        .await
        .next_many(10_000)
        .await
        .unwrap();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    let mut per_ms: BTreeMap<u64, usize> = BTreeMap::new();
    for id in ids {
        *per_ms.entry(fields(id).ms).or_default() += 1;
    }
    assert!(
        per_ms.values().all(|count| *count <= 4096) && per_ms.len() >= 3,
        "{per_ms:?}"
    );
}

#[tokio::test]
async fn a_clock_that_steps_back_is_waited_for_or_refused() {
    let store = Memory::new(1024);
    let clock = FakeClock::new(NOW, Duration::ZERO);
    let generator = generator(&store, &clock).await;
    let before = generator.next().await.unwrap();
    clock.step(-900);
    assert_eq!(generator.try_next(), Err(Later::Behind { by_ms: 900 }));
    let after = generator.next().await.unwrap();
    assert!(after > before);
    clock.step(-5000);
    assert!(matches!(
        generator.next().await,
        Err(Error::ClockBehind {
            by_ms: 5000,
            limit_ms: 1000
        })
    ));
    clock.step(5000);
    assert!(generator.next().await.unwrap() > after);
    // Far forward is past the lease's ceiling: the lease is renewed for the new time first.
    clock.step(3_600_000);
    assert_eq!(generator.try_next(), Err(Later::Lease));
    assert!(generator.next().await.unwrap() > after);
}

#[tokio::test]
async fn the_lease_ends_by_the_monotonic_clock_with_a_margin() {
    let store = Memory::new(1);
    let clock = FakeClock::new(NOW, Duration::ZERO);
    let generator = generator(&store, &clock).await;
    clock.pass(Duration::from_millis(8_999));
    assert!(generator.try_next().is_ok());
    // The wall clock is set back by as much as passed: it cannot make the lease longer.
    clock.pass(Duration::from_millis(1));
    clock.step(-1);
    assert_eq!(generator.try_next(), Err(Later::Lease));
    *store.down.lock().unwrap() = true;
    let error = generator.next().await.unwrap_err();
    assert!(
        matches!(&error, Error::NoLease(error) if matches!(**error, lease::Error::NotInstalled)),
        "{error}"
    );
    *store.down.lock().unwrap() = false;
    assert!(generator.next().await.is_ok());
}

/// A process is stopped between the check of its lease and its ID, for an hour; during that time
/// its number goes to another. Both continue, and their IDs are distinct.
#[tokio::test]
async fn a_paused_process_is_fenced() {
    let store = Memory::new(1);
    let clock = FakeClock::new(NOW, Duration::ZERO);
    let paused = generator(&store, &clock).await;
    let ceiling = paused.inner.held.load_full().unwrap().grant.ceiling_ms;
    // The latest ID that it may ever have made, if it was stopped after its last look at the clock.
    let latest = Fields {
        ms: ceiling - TWITTER_EPOCH_MS as u64,
        worker: 0,
        seq: 4095,
    }
    .encode()
    .unwrap();
    store.clock.pass(Duration::from_secs(3600));

    // The next holder's clock is behind, and shows that hardly any time has passed.
    let behind = FakeClock::new(NOW + 9_500, Duration::ZERO);
    let next = generator(&store, &behind).await;
    assert_eq!(next.worker(), Some(0));
    assert_eq!(next.try_next(), Err(Later::Behind { by_ms: 501 }));
    let first = next.next().await.unwrap();
    assert!(first > latest, "{:?}", fields(first));

    // The stopped one wakes: its clocks have gone on, or, suspended, have not.
    let asleep = paused.try_next().unwrap();
    assert!(asleep <= latest);
    clock.pass(Duration::from_secs(3600));
    assert_eq!(paused.try_next(), Err(Later::Lease));
    none_free(paused.next().await.unwrap_err());
}

#[tokio::test]
async fn a_lost_number_is_replaced_by_another() {
    let store = Memory::new(2);
    let clock = FakeClock::new(NOW, Duration::ZERO);
    let first = generator(&store, &clock).await;
    let before = first.next().await.unwrap();
    // Another process takes it over.
    store.rows.lock().unwrap().get_mut(&0).unwrap().0 = Uuid::new_v4();
    first.renew().await.unwrap();
    assert_eq!(first.worker(), Some(1));
    assert!(first.next().await.unwrap() > before);
}

#[tokio::test]
async fn outside_the_layout() {
    let store = Memory::new(1024);
    for unix_ms in [
        TWITTER_EPOCH_MS as u64 - 1,
        TWITTER_EPOCH_MS as u64 + MS_MAX + 1,
    ] {
        let clock = FakeClock::new(unix_ms, Duration::ZERO);
        assert!(matches!(
            generator(&store, &clock).await.next().await,
            Err(Error::OutOfRange { .. })
        ));
    }
    let clock = FakeClock::new(TWITTER_EPOCH_MS as u64 + MS_MAX, Duration::ZERO);
    assert!(generator(&store, &clock).await.next().await.unwrap() > 0);
}

#[tokio::test]
async fn all_numbers_are_held() {
    let store = Memory::new(3);
    let clock = FakeClock::new(NOW, Duration::ZERO);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(generator(&store, &clock).await);
    }
    let numbers: HashSet<_> = held
        .iter()
        .map(|generator| generator.worker().unwrap())
        .collect();
    assert_eq!(numbers.len(), 3);
    none_free(
        Snowflake::acquire(store, options(), Arc::new(clock))
            .await
            .unwrap_err(),
    );
}

/// After fork() two processes have the number in their memory. It is the parent's: the child leases
/// one of its own, and gives only that one back.
#[tokio::test]
async fn a_forked_process_has_another_number() {
    let store = Memory::new(1024);
    let clock = FakeClock::new(NOW, Duration::ZERO);
    let parent = generator(&store, &clock).await;
    let (before, held) = (
        parent.next().await.unwrap(),
        parent.inner.held.load_full().unwrap(),
    );
    let child = parent;
    child.inner.held.store(Some(Arc::new(HeldGrant {
        grant: held.grant,
        until: held.until,
        process: Process::parent(),
    })));
    lock_of(&child).process = Process::parent();
    assert_eq!(child.try_next(), Err(Later::Lease));
    let after = child.next().await.unwrap();
    assert_ne!(fields(before).worker, fields(after).worker);
    let token = |worker| store.rows.lock().unwrap()[&worker].0;
    assert_eq!(token(0), held.grant.token, "the parent's is as it was");
    let childs = token(1);
    child.release().await.unwrap();
    assert!(token(0) == held.grant.token && token(1) != childs);
}

fn lock_of(generator: &Snowflake<Memory>) -> std::sync::MutexGuard<'_, Renewing> {
    generator.inner.renewing.lock().unwrap()
}
