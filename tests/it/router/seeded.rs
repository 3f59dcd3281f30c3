//! Random programs: calls, transactions with savepoints, futures that are dropped at any await,
//! while backends are killed. What each caller got back is compared with what exists in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use pgshard::Router;
use pgshard::router::{Error, Transaction};
use tokio::task::JoinSet;

use super::INSERT;
use super::by_hand::Shards;
use super::proxy::Polls;
use super::ways::Ways;

const CALLERS: u64 = 6;
const STEPS: u64 = 60;

/// What a caller knows from its results about rows that belong together.
#[derive(Debug)]
struct Told {
    /// Rows that all exist.
    done: BTreeSet<i64>,
    /// Rows that never existed.
    undone: BTreeSet<i64>,
    /// Rows that all exist, or none of them.
    either: BTreeSet<i64>,
}

/// What the statements of a transaction's last run reported.
#[derive(Default)]
struct Noted {
    inserted: BTreeSet<i64>,
    undone: BTreeSet<i64>,
}

impl Noted {
    /// What the result of its transaction means for them; `None` if the caller has not waited.
    fn told(&self, result: Option<&Result<(), Error>>) -> Told {
        let (inserted, mut undone) = (self.inserted.clone(), self.undone.clone());
        let none = BTreeSet::new();
        match result {
            Some(Ok(())) => Told {
                done: inserted,
                undone,
                either: none,
            },
            Some(Err(error)) if !error.may_have_run() => {
                undone.extend(inserted);
                Told {
                    done: none.clone(),
                    undone,
                    either: none,
                }
            }
            // What a savepoint has undone does not exist in any case.
            Some(Err(_)) | None => Told {
                done: none,
                undone,
                either: inserted,
            },
        }
    }
}

struct Caller {
    router: Router,
    rng: Rng,
    next: i64,
}

impl Caller {
    fn id(&mut self) -> i64 {
        self.next += 1;
        self.next
    }

    async fn step(&mut self) -> Told {
        let left = if self.rng.u8(..4) == 0 {
            self.rng.u32(..12)
        } else {
            u32::MAX
        };
        match self.rng.u8(..4) {
            0 => {
                let id = self.id();
                let noted = Noted {
                    inserted: BTreeSet::from([id]),
                    undone: BTreeSet::new(),
                };
                let call = async {
                    self.router
                        .by_key(0)
                        .execute(INSERT, &[&id, &"single"])
                        .await
                        .map(drop)
                };
                let result = Polls {
                    future: Box::pin(call),
                    left,
                }
                .await;
                noted.told(result.as_ref())
            }
            1 => {
                // What it leaves is gone for the next caller.
                let call = self.router.by_key(0).query_one(
                    "SELECT coalesce(current_setting('app.who', true), ''), set_config('app.who', \
                        'me', false)",
                    &[],
                );
                if let Some(Ok(row)) = (Polls {
                    future: Box::pin(call),
                    left,
                })
                .await
                {
                    assert_eq!(row.get::<_, &str>(0), "");
                }
                Noted::default().told(None)
            }
            _ => {
                let plan: Vec<(u8, i64, i64)> = (0..self.rng.u8(1..4))
                    .map(|_| (self.rng.u8(..6), self.id(), self.id()))
                    .collect();
                let noted = Mutex::new(Noted::default());
                let (plan, notes) = (&plan, &noted);
                let call = self.router.by_key(0).transaction(async |tx| {
                    *notes.lock().unwrap() = Noted::default();
                    for part in plan {
                        run(&tx, *part, notes).await?;
                    }
                    Ok::<(), Error>(())
                });
                let result = Polls {
                    future: Box::pin(call),
                    left,
                }
                .await;
                noted.into_inner().unwrap().told(result.as_ref())
            }
        }
    }
}

/// One part of a transaction.
async fn run(
    tx: &Transaction,
    (kind, first, second): (u8, i64, i64),
    notes: &Mutex<Noted>,
) -> Result<(), Error> {
    let insert = async |id: i64| {
        tx.execute(INSERT, &[&id, &"of a transaction"]).await?;
        notes.lock().unwrap().inserted.insert(id);
        Ok::<(), Error>(())
    };
    let undo = |id: i64| {
        let mut notes = notes.lock().unwrap();
        notes.inserted.remove(&id);
        notes.undone.insert(id);
    };
    match kind {
        0 | 1 => insert(first).await,
        // A savepoint that succeeds, and one that fails.
        2 => tx.savepoint(insert(first)).await,
        3 => {
            let result: Result<(), Error> = tx
                .savepoint(async {
                    insert(first).await?;
                    tx.execute("SELECT 1/0", &[]).await.map(drop)
                })
                .await;
            assert!(result.is_err());
            undo(first);
            insert(second).await
        }
        // One is given up between two statements, and the caller does not care.
        4 => {
            let half = async {
                insert(first).await?;
                tokio::task::yield_now().await;
                insert(second).await
            };
            let _ = Polls {
                future: Box::pin(tx.savepoint(half)),
                left: (first % 7) as u32,
            }
            .await;
            Ok(())
        }
        // Two side by side, of which one fails.
        _ => {
            let fails = tx.savepoint(async {
                insert(first).await?;
                tx.execute("SELECT 1/0", &[]).await.map(drop)
            });
            let (failed, _) = tokio::join!(fails, tx.savepoint(insert(second)));
            assert!(failed.is_err());
            undo(first);
            Ok(())
        }
    }
}

/// Kills random backends of the application, until it is stopped. On a slow machine it does so less
/// often: something must be acknowledged between two, if the callers get anything done.
async fn kill(shards: &Shards, stop: &AtomicBool, acknowledged: &AtomicUsize, mut rng: Rng) {
    let killer = shards.cluster.superuser(0).await;
    while !stop.load(Ordering::Relaxed) {
        let before = acknowledged.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(rng.u64(5..60))).await;
        for _ in 0..100 {
            if acknowledged.load(Ordering::Relaxed) > before || stop.load(Ordering::Relaxed) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE application_name = 'seeded' AND pid <> pg_backend_pid() ORDER BY random() LIMIT \
            1";
        killer.query(sql, &[]).await.unwrap();
    }
}

on_each_version! {
    /// Every row that was acknowledged exists, none that was reported as absent does, and of a
    /// transaction all or nothing.
    async fn what_was_told_is_so(version) {
        let shards = Shards::start(version, 4).await;
        let seed: u64 = std::env::var("PGSHARD_SEED").map_or(7, |seed| seed.parse().unwrap());
        for (round, way) in (0..).zip(
            Ways::with(&shards, |options| {
                options.hosts[0].pool_size = 2;
                options.application_name = "seeded".to_owned();
            })
            .await,
        ) {
            let (stop, mut callers) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
            let acknowledged = Arc::new(AtomicUsize::new(0));
            for number in 0..CALLERS {
                let rng = Rng::with_seed(seed * 1000 + round * 100 + number);
                let first = (round * CALLERS + number) as i64 * 1_000_000;
                let mut caller = Caller {
                    router: way.router.clone(),
                    rng,
                    next: first,
                };
                let acknowledged = acknowledged.clone();
                callers.spawn(async move {
                    let mut told = Vec::new();
                    for _ in 0..STEPS {
                        let step = caller.step().await;
                        acknowledged.fetch_add(step.done.len(), Ordering::Relaxed);
                        told.push(step);
                    }
                    told
                });
            }
            let calling = async {
                let told: Vec<Told> = callers.join_all().await.into_iter().flatten().collect();
                stop.store(true, Ordering::Relaxed);
                told
            };
            let (told, ()) = tokio::join!(
                calling,
                kill(&shards, &stop, &acknowledged, Rng::with_seed(seed))
            );
            // What was given up has ended.
            let sql = "SELECT coalesce(string_agg(format('%s for %s: %s', state, now() - \
                state_change, query), E'\\n'),
                '')
                FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle'
                AND pid <> pg_backend_pid()";
            let mut left = String::from("?");
            for _ in 0..6000 {
                left = shards.db[0].query_one(sql, &[]).await.unwrap().get(0);
                if left.is_empty() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(
                left, "",
                "seed {seed}, {}: nothing is left at the server",
                way.name
            );
            let rows = shards.db[0]
                .query(
                    "SELECT id, title FROM \
                shard_0000.photos",
                    &[],
                )
                .await
                .unwrap();
            let there: BTreeMap<i64, String> =
                rows.iter().map(|row| (row.get(0), row.get(1))).collect();
            let mut counts = [0_usize; 3];
            for told in &told {
                let found =
                    |ids: &BTreeSet<i64>| ids.iter().filter(|id| there.contains_key(id)).count();
                assert_eq!(
                    found(&told.done),
                    told.done.len(),
                    "seed {seed}, {}: acknowledged, and not there: {told:?}",
                    way.name
                );
                assert_eq!(
                    found(&told.undone),
                    0,
                    "seed {seed}, {}: there, and said not to be: \
                    {told:?}",
                    way.name
                );
                let either = found(&told.either);
                assert!(
                    either == 0 || either == told.either.len(),
                    "seed {seed}, {}: half of it is there: {told:?}",
                    way.name
                );
                for (count, ids) in counts
                    .iter_mut()
                    .zip([&told.done, &told.undone, &told.either])
                {
                    *count += ids.len();
                }
            }
            eprintln!(
                "{}: rows acknowledged, undone, in doubt: {counts:?}",
                way.name
            );
            assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
        }
    }
}
