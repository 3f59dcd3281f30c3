//! Runs the protocol: the statements that [`next`] returns, until the value is claimed or belongs
//! to another key.

use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::IsolationLevel;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::answer::{Place, fitting, kinds, problem};
use super::claims::{Entry, Next, Seen, next};
use super::parameter::Parameter;
use super::statements;
use crate::router::{Error, LookupProblem, Router, Shard, Sql, Transaction};
use crate::shard::ShardId;
use crate::values::{Definition, Hash, Values};

/// How long the claims of a call may take in all.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(3);

/// How long the holder of a claim has to use it before another claimer makes it unusable.
const GRACE: Duration = Duration::from_secs(2);

/// The pauses between two looks at the row, in milliseconds.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 10..=50;

/// A value that is to be claimed for a key.
#[derive(Debug)]
pub(super) struct ClaimRequest<'a> {
    pub(super) definition: &'a Definition,
    pub(super) values: Values,
    pub(super) hash: Hash,
}

/// The right to write a value into a row, once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    claim: Uuid,
    /// When it was made, in microseconds since 1970, by the clock of the value's host.
    made_us: i64,
}

/// What CLAIM and TAKE return: definition and types, and of the entry its key, its claim, when that
/// was made and how old it is, and whether it is the caller's.
type Answer = (
    String,
    Vec<String>,
    Option<String>,
    Option<Uuid>,
    Option<i64>,
    Option<i64>,
    Option<bool>,
);

/// What a call to the value's shard gave.
struct Standing {
    entry: Entry<String, Uuid>,
    made_us: i64,
    age: Duration,
    won: bool,
}

impl<'a> ClaimRequest<'a> {
    pub(super) fn new(
        definition: &'a Definition,
        values: Values,
    ) -> Result<ClaimRequest<'a>, Error> {
        if values.0.len() != definition.columns.len() {
            let other = LookupProblem::OtherTypes {
                recorded: format!("{} columns", definition.columns.len()),
                given: format!("{} values", values.0.len()),
            };
            return Err(problem(definition, other));
        }
        let hash = Hash::of(&values, definition.fold);
        Ok(ClaimRequest {
            definition,
            values,
            hash,
        })
    }

    /// The number of the shard that has the value's entry.
    pub(super) fn shard_id(&self, router: &Router) -> ShardId {
        self.hash.shard(self.definition, router.shards_total())
    }

    /// The shard that has the value's entry.
    fn shard<'r>(&self, router: &'r Router) -> Result<Shard<'r>, Error> {
        router.shard(self.shard_id(router))
    }

    /// Another call has the value for now.
    pub(super) fn busy(&self, router: &Router, met: Option<&Entry<String, Uuid>>) -> Error {
        let shard = match met.map(|entry| key_shard(router, &entry.key)) {
            Some(Some(shard)) => shard,
            _ => self.shard_id(router),
        };
        Error::Busy {
            lookup: self.definition.name.clone(),
            key: met.map(|entry| entry.key.clone()),
            shard,
        }
    }

    /// Claims the value for a key.
    pub(super) async fn claim(
        &self,
        router: &Router,
        key: &str,
        deadline: Instant,
    ) -> Result<Claim, Error> {
        let mut seen = Seen::Nothing;
        // When the claim in the way was made, by the clock of this process.
        let mut made = Instant::now();
        let mut won = None;
        let mut looked = false;
        let mut met = None;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.busy(router, met.as_ref()));
            }
            let mut stands = |standing: Option<Standing>| match standing {
                // It was changed while the statement ran.
                None => Seen::Nothing,
                Some(standing) if standing.won => {
                    won = Some(Claim {
                        claim: standing.entry.claim,
                        made_us: standing.made_us,
                    });
                    Seen::Won(standing.entry.claim)
                }
                Some(standing) => {
                    made = Instant::now()
                        .checked_sub(standing.age)
                        .unwrap_or_else(Instant::now);
                    looked = false;
                    met = Some(standing.entry.clone());
                    Seen::Met(standing.entry)
                }
            };
            seen = match next(key.to_owned(), seen) {
                Next::Claim => stands(self.insert(router, key, left).await?),
                Next::Look(entry) => {
                    if std::mem::replace(&mut looked, true) {
                        let pause = Duration::from_millis(fastrand::u64(PAUSE_MS));
                        tokio::time::sleep(pause.min(left)).await;
                    }
                    let (has_row, is_spent) = self.read_holder(router, &entry, left).await?;
                    Seen::Looked {
                        entry,
                        has_row,
                        is_over: is_spent || made.elapsed() > GRACE,
                    }
                }
                Next::Kill(entry) => {
                    let has_row = self.kill(router, &entry, left).await?;
                    Seen::Killed { entry, has_row }
                }
                Next::Take(entry) => stands(self.take(router, key, entry.claim, left).await?),
                Next::Taken(key) => {
                    return Err(Error::Taken {
                        lookup: self.definition.name.clone(),
                        key,
                    });
                }
                Next::Use(_) => {
                    return won.ok_or_else(|| self.busy(router, met.as_ref()));
                }
            };
        }
    }

    /// Makes the entry lead to a key that has a row with the value.
    pub(super) async fn enter(&self, router: &Router, key: &str) -> Result<(), Error> {
        match self.insert(router, key, WAIT_MAX).await? {
            Some(standing) if standing.entry.key == key => Ok(()),
            _ => {
                let deadline = Instant::now() + WAIT_MAX;
                self.claim(router, key, deadline).await.map(drop)
            }
        }
    }

    async fn insert(
        &self,
        router: &Router,
        key: &str,
        left: Duration,
    ) -> Result<Option<Standing>, Error> {
        let shard = self.shard(router)?.for_claims().within(left);
        let (definition, hash, kinds) = self.parameters();
        let params: [&(dyn ToSql + Sync); 5] =
            [&self.definition.name, &definition, &hash, &key, &kinds];
        let new = shard.query_opt_as(&statements::claim_new(), &params).await;
        match new {
            Ok(Some((claim, made_us))) => {
                let entry = Entry {
                    key: key.to_owned(),
                    claim,
                };
                return Ok(Some(Standing {
                    entry,
                    made_us,
                    age: Duration::ZERO,
                    won: true,
                }));
            }
            // In REPEATABLE READ: it has run into a newer entry.
            Err(error) if error.code() != Some(&SqlState::T_R_SERIALIZATION_FAILURE) => {
                return Err(self.place(router, shard.id()).or_not_installed(error));
            }
            Ok(None) | Err(_) => {}
        }
        let row = shard.query_opt_as(&statements::claim(), &params).await;
        self.standing(router, shard.id(), row)
    }

    /// A take that fails returns the entry as it is by now, or nothing if that was not seen.
    async fn take(
        &self,
        router: &Router,
        key: &str,
        claim: Uuid,
        left: Duration,
    ) -> Result<Option<Standing>, Error> {
        let shard = self.shard(router)?.for_claims().within(left);
        let (definition, hash, kinds) = self.parameters();
        let params: [&(dyn ToSql + Sync); 6] = [
            &self.definition.name,
            &definition,
            &hash,
            &key,
            &kinds,
            &claim,
        ];
        let row = shard.query_opt_as(&statements::take(), &params).await;
        let standing = self.standing(router, shard.id(), row)?;
        // The statement's snapshot may be older than what it ran into: it may still show the claim
        // that is not there any more.
        Ok(standing.filter(|standing| standing.won || standing.entry.claim != claim))
    }

    fn parameters(&self) -> (String, &[u8], Vec<&'static str>) {
        (
            self.definition.to_text(),
            self.hash.as_bytes(),
            kinds(&self.values),
        )
    }

    fn standing(
        &self,
        router: &Router,
        shard: ShardId,
        row: Result<Option<Answer>, Error>,
    ) -> Result<Option<Standing>, Error> {
        let place = self.place(router, shard);
        let row = match row {
            Ok(row) => row,
            // A statement in REPEATABLE READ has run into a newer entry.
            Err(error) if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => {
                return Ok(None);
            }
            Err(error) => return Err(place.or_not_installed(error)),
        };
        let Some((recorded, kinds, key, claim, made_us, age_ms, won)) = row else {
            return Err(place.not_installed());
        };
        place.checked(recorded)?;
        fitting(self.definition, &kinds, &self.values)?;
        let (Some(key), Some(claim)) = (key, claim) else {
            return Ok(None);
        };
        Ok(Some(Standing {
            entry: Entry { key, claim },
            made_us: made_us.unwrap_or_default(),
            age: Duration::from_millis(age_ms.and_then(|ms| u64::try_from(ms).ok()).unwrap_or(0)),
            won: won == Some(true),
        }))
    }

    /// Whether the entry's key has the row, and whether its claim is spent.
    async fn read_holder(
        &self,
        router: &Router,
        entry: &Entry<String, Uuid>,
        left: Duration,
    ) -> Result<(bool, bool), Error> {
        let shard = self.of_key(router, &entry.key)?.within(left);
        let hash = self.hash.as_bytes();
        let row = self.row(&entry.key);
        let mut params = row.parameters();
        params.extend([&hash as &(dyn ToSql + Sync), &entry.claim]);
        let sql = Sql::reading(&statements::look(self.definition));
        let looked = shard.query_one_as(&sql, &params).await;
        looked.map_err(|error| self.place(router, shard.id()).or_not_installed(error))
    }

    /// Whether a key of this shard has a row with the value.
    pub(super) async fn has_row(
        &self,
        router: &Router,
        shard: ShardId,
        key: &str,
    ) -> Result<bool, Error> {
        let row = self.row(key);
        let sql = Sql::reading(&statements::look_again(self.definition));
        let looked = router
            .shard(shard)?
            .query_one_as(&sql, &row.parameters())
            .await;
        looked.map(|(has_row,)| has_row)
    }

    /// Makes the entry's claim unusable, and then looks whether its key has the row. READ
    /// COMMITTED, so that the second statement sees what the first has waited for.
    async fn kill(
        &self,
        router: &Router,
        entry: &Entry<String, Uuid>,
        left: Duration,
    ) -> Result<bool, Error> {
        let shard = self.of_key(router, &entry.key)?.within(left);
        let (hash, row) = (self.hash.as_bytes(), self.row(&entry.key));
        let (row, before) = (&row, &statements::before_kill());
        let look = &statements::look_again(self.definition);
        let killed = shard
            .build_transaction()
            .isolation_level(IsolationLevel::ReadCommitted)
            .run(async |tx: Transaction| -> Result<bool, Error> {
                tx.query_one(before, &[]).await?;
                let name = &self.definition.name;
                tx.execute(statements::VOID, &[name, &hash, &entry.claim, &entry.key])
                    .await?;
                let (has_row,) = tx.query_one_as(look, &row.parameters()).await?;
                Ok(has_row)
            })
            .await;
        killed.map_err(|error| match error.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::T_R_DEADLOCK_DETECTED) => {
                self.busy(router, Some(entry))
            }
            _ => self.place(router, shard.id()).or_not_installed(error),
        })
    }

    /// The shard of an entry's key.
    fn of_key<'r>(&self, router: &'r Router, key: &str) -> Result<Shard<'r>, Error> {
        let shard = key_shard(router, key).ok_or_else(|| {
            let key = key.to_owned();
            problem(self.definition, LookupProblem::Key { key })
        })?;
        Ok(router.shard(shard)?.for_claims())
    }

    fn place<'p>(&'p self, router: &'p Router, shard: ShardId) -> Place<'p> {
        Place {
            definition: self.definition,
            router,
            shard,
        }
    }

    fn row<'k>(&self, key: &'k str) -> RowParameters<'k> {
        let fold = self.definition.fold;
        let values = self.values.0.iter();
        RowParameters {
            key,
            values: values.map(|value| Parameter::new(value, fold)).collect(),
        }
    }

    pub(super) fn use_parameters<'p>(&'p self, key: &'p str, claim: Claim) -> UseParameters<'p> {
        UseParameters {
            name: &self.definition.name,
            definition: self.definition.to_text(),
            hash: self.hash.as_bytes(),
            key,
            claim,
        }
    }

    /// Uses the claim in the transaction that writes the row. False if it is spent or too old: then
    /// the transaction must not write the row.
    pub(super) async fn use_in(
        &self,
        router: &Router,
        tx: &Transaction,
        key: &str,
        claim: Claim,
    ) -> Result<bool, Error> {
        let use_parameters = self.use_parameters(key, claim);
        let params = use_parameters.as_parameters();
        let used: Result<Option<(String, bool)>, Error> =
            tx.query_opt_as(&statements::use_claim(), &params).await;
        let place = self.place(router, tx.shard());
        let (recorded, used) = match used {
            Ok(Some(row)) => row,
            Ok(None) => return Err(place.not_installed()),
            // In REPEATABLE READ: it was made unusable a moment ago.
            Err(error) if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => {
                return Ok(false);
            }
            Err(error) => return Err(place.or_not_installed(error)),
        };
        place.checked(recorded)?;
        Ok(used)
    }
}

/// The parameters of [`statements::use_claim`].
pub(super) struct UseParameters<'a> {
    name: &'a str,
    definition: String,
    hash: &'a [u8],
    key: &'a str,
    claim: Claim,
}

impl UseParameters<'_> {
    pub(super) fn as_parameters(&self) -> [&(dyn ToSql + Sync); 6] {
        [
            &self.name,
            &self.definition,
            &self.hash,
            &self.claim.claim,
            &self.key,
            &self.claim.made_us,
        ]
    }
}

/// The shard of a key that is written as text.
fn key_shard(router: &Router, key: &str) -> Option<ShardId> {
    let shards = router.shards_total();
    router.key_kind().shard_of_text(key, shards).ok()
}

/// The parameters by which a row is found.
struct RowParameters<'k> {
    key: &'k str,
    values: Vec<Parameter>,
}

impl RowParameters<'_> {
    fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        let mut params: Vec<&(dyn ToSql + Sync)> = vec![&self.key];
        params.extend(self.values.iter().map(|value| value as &(dyn ToSql + Sync)));
        params
    }
}
