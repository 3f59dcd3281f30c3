//! A random program of calls, and their results for each row.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastrand::Rng;
use pgshard::id::Id;
use pgshard::router::{Error, Transaction};
use pgshard::{Router, ShardId, columns};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::case::{Case, Failures};
use super::proxy::Polls;
use super::round::World;

pub(crate) const SHARDS: i64 = 8;

/// The limit of a call if its step has none of its own.
pub(crate) const LIMIT: Duration = Duration::from_secs(4);

/// How much longer than a call's limit a slow machine may need.
const REST: Duration = Duration::from_secs(30);

pub(crate) const STEPS: [&str; 17] = [
    "insert",
    "echo",
    "transaction",
    "savepoints",
    "lapse",
    "clone",
    "raw",
    "panic",
    "many",
    "ids",
    "fanout",
    "state",
    "runtime",
    "abandon",
    "stuck",
    "budget",
    "mistake",
];

pub(crate) const INSERT: &str = "INSERT INTO {shard}.photos (id, title) VALUES ($1, 'x')";

/// What a caller knows from its results about rows that belong together.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) step: &'static str,
    /// Rows that are all there.
    pub(crate) done: BTreeSet<i64>,
    /// Rows that were never there.
    pub(crate) undone: BTreeSet<i64>,
    /// Rows that are all there, or none of them.
    pub(crate) either: BTreeSet<i64>,
}

impl Told {
    /// `None`: the caller did not wait for the answer.
    pub(crate) fn new<T>(
        step: &'static str,
        inserted: BTreeSet<i64>,
        undone: BTreeSet<i64>,
        said: Option<&Result<T, Error>>,
    ) -> Told {
        let mut told = Told {
            step,
            undone,
            ..Told::default()
        };
        match said {
            Some(Ok(_)) => told.done = inserted,
            Some(Err(error)) if !error.may_have_run() => told.undone.extend(inserted),
            Some(Err(_)) | None => told.either = inserted,
        }
        told
    }
}

pub(crate) struct Caller {
    pub(crate) case: Case,
    pub(crate) router: Router,
    pub(crate) rng: Rng,
    pub(crate) next: i64,
    pub(crate) failures: Arc<Failures>,
    pub(crate) world: Arc<World>,
}

/// What a transaction has done, by its last run.
#[derive(Clone, Default)]
struct Noted {
    inserted: BTreeSet<i64>,
    undone: BTreeSet<i64>,
    /// Whether some of it was given up halfway, so that it can only be rolled back.
    given_up: bool,
}

type Notes = Mutex<Noted>;

impl Caller {
    /// Runs all steps, one after the other.
    pub(crate) async fn play(mut self) -> Vec<Told> {
        let steps = self.case.of_these(&STEPS);
        let mut told = Vec::new();
        for _ in 0..self.case.steps {
            let step = steps[self.rng.usize(..steps.len())];
            let began = Instant::now();
            told.extend(self.step(step).await);
            if began.elapsed() > LIMIT + REST {
                self.failures
                    .add("late", format!("{step} took {:?}", began.elapsed()));
            }
        }
        told
    }

    pub(crate) fn id(&mut self) -> i64 {
        self.next += 1;
        self.next
    }

    /// The number of polls after which a call is dropped: mostly never.
    pub(crate) fn polls(&mut self) -> u32 {
        if !self.case.without.contains("drop") && self.rng.u8(..5) == 0 {
            self.rng.u32(..14)
        } else {
            u32::MAX
        }
    }

    async fn step(&mut self, step: &'static str) -> Vec<Told> {
        match step {
            "insert" => self.insert().await,
            "echo" => self.echo().await,
            "many" => self.many().await,
            "ids" => self.ids().await,
            "fanout" => self.fanout().await,
            "raw" => self.raw().await,
            "panic" => self.panic().await,
            "state" => self.state().await,
            "runtime" => self.runtime().await,
            "abandon" => self.abandon().await,
            "stuck" => self.stuck().await,
            "budget" => self.budget().await,
            "mistake" => self.mistake().await,
            step => self.transaction(step).await,
        }
    }

    /// An ID that names a shard.
    fn id_of_shard(&mut self) -> i64 {
        let shard = ShardId::new(self.rng.u16(..SHARDS as u16)).expect("there are few shards");
        Id::new(self.id() as u64, shard, 0)
            .expect("there are few IDs")
            .encode()
    }

    async fn insert(&mut self) -> Vec<Told> {
        let (by_id, left) = (self.rng.bool(), self.polls());
        let id = if by_id { self.id_of_shard() } else { self.id() };
        let limit = if self.rng.bool() {
            LIMIT
        } else {
            Duration::from_millis(self.rng.u64(1..400))
        };
        let call = async {
            let shard = if by_id {
                self.router.by_id(id)?
            } else {
                self.router.by_key(id)
            };
            shard.within(limit).execute(INSERT, &[&id]).await
        };
        let said = Polls {
            future: Box::pin(call),
            left,
        }
        .await;
        vec![Told::new(
            "insert",
            BTreeSet::from([id]),
            BTreeSet::new(),
            said.as_ref(),
        )]
    }

    /// Each caller gets the answer to its own query.
    async fn echo(&mut self) -> Vec<Told> {
        let (id, left) = (self.id(), self.polls());
        let sql = "SELECT $1::bigint, coalesce(current_setting('app.who', true), '')";
        let call = async {
            self.router
                .by_key(id)
                .query_one_as::<(i64, String)>(sql, &[&id])
                .await
        };
        if let Some(Ok(said)) = (Polls {
            future: Box::pin(call),
            left,
        })
        .await
            && said != (id, String::new())
        {
            self.failures
                .add("foreign", format!("asked {id}, and was told {said:?}"));
        }
        Vec::new()
    }

    /// What a call leaves in its session must not reach another call.
    async fn state(&mut self) -> Vec<Told> {
        let (id, left) = (self.id(), self.polls());
        let sql =
            "SELECT set_config('app.who', $1::bigint::text, false), pg_advisory_lock($1::bigint)";
        let call = async { self.router.by_key(id).query(sql, &[&id]).await.map(drop) };
        let _ = Polls {
            future: Box::pin(call),
            left,
        }
        .await;
        Vec::new()
    }

    async fn many(&mut self) -> Vec<Told> {
        let ids: Vec<i64> = (0..self.rng.usize(1..20)).map(|_| self.id()).collect();
        let left = self.polls();
        let insert = "INSERT INTO {shard}.photos (id, title) SELECT *, 'x' FROM \
            unnest($1::bigint[]) RETURNING id";
        let depth = self.rng.usize(1..9);
        let call = async {
            let many = self
                .router
                .insert_many(&ids, |id| *id)
                .expect("keys are integers")
                .depth(depth);
            many.query(insert, |ids| columns![ids.iter().map(|id| **id)])
                .await
        };
        let said = Polls {
            future: Box::pin(call),
            left,
        }
        .await;
        let of_places = |places: &[usize]| {
            places
                .iter()
                .map(|place| ids[*place])
                .collect::<BTreeSet<i64>>()
        };
        let done = |places: &[usize]| Told {
            step: "many",
            done: of_places(places),
            ..Told::default()
        };
        match said {
            Some(Ok(done_by)) => done_by.iter().map(|shard| done(&shard.places)).collect(),
            Some(Err(partial)) => {
                let failed = partial.failed.iter().map(|failed| {
                    let rows = of_places(&failed.wanted);
                    let mut told = Told {
                        step: "many",
                        ..Told::default()
                    };
                    if failed.error.may_have_run() {
                        told.either = rows
                    } else {
                        told.undone = rows
                    }
                    told
                });
                partial
                    .done
                    .iter()
                    .map(|shard| done(&shard.places))
                    .chain(failed)
                    .collect()
            }
            // For each shard, all rows or none.
            None => (0..SHARDS)
                .map(|shard| {
                    ids.iter()
                        .copied()
                        .filter(|id| id % SHARDS == shard)
                        .collect()
                })
                .map(|either| Told {
                    step: "many",
                    either,
                    ..Told::default()
                })
                .collect(),
        }
    }

    /// Rows from a statement for each of many keys or IDs: each shard answers separately.
    async fn ids(&mut self) -> Vec<Told> {
        let (by_id, left) = (self.rng.bool(), self.polls());
        let many = self.rng.i64(1..40);
        let ids: Vec<i64> = (0..many)
            .map(|key| if by_id { self.id_of_shard() } else { key })
            .collect();
        let sql = "SELECT unnest($1::bigint[]), '{shard}'";
        let call = async {
            if by_id {
                self.router.by_ids(&ids).query(sql).await.ok()
            } else {
                self.router
                    .by_keys(&ids)
                    .expect("keys are integers")
                    .query(sql)
                    .await
                    .ok()
            }
        };
        if let Some(Some(rows)) = (Polls {
            future: Box::pin(call),
            left,
        })
        .await
        {
            let shard_of = |id: i64| {
                if by_id {
                    Id::decode(id).shard().get()
                } else {
                    (id % SHARDS) as u16
                }
            };
            let wrong = |(shard, row): &(ShardId, Row)| shard_of(row.get(0)) != shard.get();
            if rows.len() != ids.len() || rows.iter().any(wrong) {
                self.failures.add(
                    "foreign",
                    format!("{} rows of {} keys", rows.len(), ids.len()),
                );
            }
        }
        Vec::new()
    }

    /// A loop over all shards, with a call for each result.
    async fn fanout(&mut self) -> Vec<Told> {
        let (id, left, depth) = (self.id(), self.polls(), self.rng.usize(1..9));
        let params: [&(dyn ToSql + Sync); 1] = [&id];
        let seen = Mutex::new(BTreeSet::new());
        let call = async {
            let mut results = self
                .router
                .all_shards()
                .depth(depth)
                .query("SELECT $1::bigint", &params);
            while let Some((shard, rows)) = results.next().await {
                if !seen.lock().unwrap().insert(shard) {
                    self.failures
                        .add("foreign", format!("shard {shard} answered twice"));
                }
                if rows.is_ok_and(|rows| rows[0].get::<_, i64>(0) != id) {
                    self.failures.add(
                        "foreign",
                        format!("shard {shard} gave somebody else's answer"),
                    );
                }
                let _ = self
                    .router
                    .shard(shard)?
                    .query("SELECT count(*) FROM {shard}.photos", &[])
                    .await;
            }
            Ok::<(), Error>(())
        };
        if let Some(Ok(())) = (Polls {
            future: Box::pin(call),
            left,
        })
        .await
        {
            let seen = seen.lock().unwrap().len();
            if seen != SHARDS as usize {
                self.failures
                    .add("foreign", format!("{seen} of {SHARDS} shards answered"));
            }
        }
        Vec::new()
    }

    /// A client of its own, which is dropped within a transaction.
    async fn raw(&mut self) -> Vec<Told> {
        let (id, left) = (self.id(), self.polls());
        let call = async {
            let Ok(client) = self.router.by_key(id).client().await else {
                return;
            };
            let table = format!("{}.photos", client.schema());
            let _ = client
                .batch_execute(&format!("BEGIN; INSERT INTO {table} VALUES ({id}, 'x')"))
                .await;
        };
        Polls {
            future: Box::pin(call),
            left,
        }
        .await;
        vec![Told {
            step: "raw",
            undone: BTreeSet::from([id]),
            ..Told::default()
        }]
    }

    /// A transaction with a closure that panics.
    async fn panic(&mut self) -> Vec<Told> {
        let (id, router) = (self.id(), self.router.clone());
        let task = tokio::spawn(async move {
            let call = router.by_key(id).transaction(async |tx| {
                tx.execute(INSERT, &[&id]).await?;
                // `panic!` would print its message each time.
                std::panic::resume_unwind(Box::new("a caller's own panic"));
                #[allow(unreachable_code, reason = "it says what the closure gives")]
                Ok::<(), Error>(())
            });
            call.await
        });
        let _ = task.await;
        vec![Told {
            step: "panic",
            undone: BTreeSet::from([id]),
            ..Told::default()
        }]
    }

    /// A call within a runtime that ends halfway, with all connections that were opened there.
    async fn runtime(&mut self) -> Vec<Told> {
        let (id, router) = (self.id(), self.router.clone());
        let long = Duration::from_millis(self.rng.u64(0..40));
        let within = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build();
            let runtime = runtime.expect("a runtime can be made");
            let call = async { router.by_key(id).execute(INSERT, &[&id]).await };
            let said = runtime.block_on(async { tokio::time::timeout(long, call).await.ok() });
            runtime.shutdown_background();
            said
        });
        let said = within.await.expect("the call does not panic");
        vec![Told::new(
            "runtime",
            BTreeSet::from([id]),
            BTreeSet::new(),
            said.as_ref(),
        )]
    }

    async fn transaction(&mut self, step: &'static str) -> Vec<Told> {
        let key = self.id();
        let rest: Vec<(u8, i64, i64)> = (0..self.rng.u8(1..4))
            .map(|_| (self.rng.u8(..5), self.id(), self.id()))
            .collect();
        let left = self.polls();
        let notes = Notes::default();
        let (notes, kept) = (&notes, &Mutex::new(None));
        let call = self.router.by_key(key).transaction(async |tx| {
            *notes.lock().unwrap() = Default::default();
            insert(&tx, key, notes).await?;
            for part in &rest {
                match step {
                    "savepoints" => savepoint(&tx, *part, notes).await?,
                    "lapse" => lapse(&tx, *part, notes).await?,
                    _ => insert(&tx, part.1, notes).await?,
                }
            }
            if step == "clone" {
                *kept.lock().unwrap() = Some(tx.clone());
            }
            Ok::<(), Error>(())
        });
        let said = Polls {
            future: Box::pin(call),
            left,
        }
        .await;
        let kept = kept.lock().unwrap().take();
        if let Some(outlives) = kept
            && said.is_some()
            && outlives.execute(INSERT, &[&self.id()]).await.is_ok()
        {
            self.failures
                .add("ghost", "a clone of a transaction outlives it");
        }
        let Noted {
            inserted,
            undone,
            given_up,
        } = notes.lock().unwrap().clone();
        if given_up && matches!(said, Some(Ok(()))) {
            self.failures.add(
                "half",
                format!("{step}: committed, though a part was given up: {inserted:?}"),
            );
        }
        vec![Told::new(step, inserted, undone, said.as_ref())]
    }
}

async fn insert(tx: &Transaction, id: i64, notes: &Notes) -> Result<(), Error> {
    tx.execute(INSERT, &[&id]).await?;
    notes.lock().unwrap().inserted.insert(id);
    Ok(())
}

/// A statement is given up, and the closure continues as if nothing had happened, with a statement
/// that was never sent before.
async fn lapse(
    tx: &Transaction,
    (kind, first, second): (u8, i64, i64),
    notes: &Notes,
) -> Result<(), Error> {
    insert(tx, first, notes).await?;
    let slow = tx.execute("SELECT pg_sleep(0.02)", &[]);
    let given_up = Polls {
        future: Box::pin(slow),
        left: 1,
    }
    .await
    .is_none();
    notes.lock().unwrap().given_up |= given_up;
    let fresh = format!("{INSERT} /* {second} */");
    let inserted = tx.execute(&fresh, &[&second]).await;
    match kind {
        0 => return Ok(()),
        1 => drop(inserted?),
        2 => tx.execute("SELECT 1/0", &[]).await.map(drop)?,
        _ => return Err(inserted.err().unwrap_or(Error::Closed)),
    }
    notes.lock().unwrap().inserted.insert(second);
    Ok(())
}

/// Savepoints that succeed, fail and are caught, are given up halfway, or exist side by side.
async fn savepoint(
    tx: &Transaction,
    (kind, first, second): (u8, i64, i64),
    notes: &Notes,
) -> Result<(), Error> {
    let fails = async {
        insert(tx, first, notes).await?;
        tx.execute("SELECT 1/0", &[]).await.map(drop)
    };
    let undo = || {
        let mut notes = notes.lock().unwrap();
        notes.inserted.remove(&first);
        notes.undone.insert(first);
    };
    match kind {
        0 => tx.savepoint(insert(tx, first, notes)).await,
        1 => {
            let _: Result<(), Error> = tx.savepoint(fails).await;
            undo();
            insert(tx, second, notes).await
        }
        2 => {
            let half = async {
                insert(tx, first, notes).await?;
                tokio::task::yield_now().await;
                insert(tx, second, notes).await
            };
            let left = (first % 7) as u32;
            let given_up = Polls {
                future: Box::pin(tx.savepoint(half)),
                left,
            }
            .await
            .is_none();
            // A savepoint that was never begun has done nothing.
            notes.lock().unwrap().given_up |= given_up && left > 0;
            Ok(())
        }
        // The server refuses to write within it, as a standby would.
        3 => {
            let refused = async {
                insert(tx, first, notes).await?;
                tx.execute("SET LOCAL transaction_read_only = on", &[])
                    .await?;
                tx.execute("DELETE FROM {shard}.photos WHERE id = -1", &[])
                    .await
                    .map(drop)
            };
            let _: Result<(), Error> = tx.savepoint(refused).await;
            undo();
            insert(tx, second, notes).await
        }
        _ => {
            let _ = tokio::join!(tx.savepoint(fails), tx.savepoint(insert(tx, second, notes)));
            undo();
            Ok(())
        }
    }
}
