//! Calls that are wrong in themselves, each with a row that would be there if it had run: what the
//! error reports about it is true, and what no try can mend is not worth another one.

use std::collections::BTreeSet;

use pgshard::router::Error;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::caller::{Caller, INSERT, Told};
use super::proxy::Polls;

/// More parameters than the protocol can count.
const TOO_MANY: usize = 65_536;

/// A value that cannot be encoded, for the reason of a socket.
#[derive(Debug)]
struct Unreadable;

impl ToSql for Unreadable {
    fn to_sql(
        &self,
        _: &Type,
        _: &mut bytes::BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        Err(Box::new(std::io::Error::from(
            std::io::ErrorKind::ConnectionReset,
        )))
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// When a mistake is noticed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Noticed {
    /// Before the statement runs.
    Before,
    /// When it has run.
    After,
    /// Nothing is wrong with it.
    Never,
}

impl Caller {
    pub(crate) async fn mistake(&mut self) -> Vec<Told> {
        let (id, kind, left) = (self.id(), self.rng.u8(..13), self.polls());
        let within = self.rng.u8(..4) == 0;
        let shard = self.router.by_key(id);
        let returning = format!("{INSERT} RETURNING title");
        let two = format!("{INSERT}, (-$1, 'x') RETURNING id");
        let nul = format!("{INSERT} /* \0 */");
        let many = vec![&id as &(dyn ToSql + Sync); TOO_MANY];
        let commits = format!(
            "DO $$ BEGIN INSERT INTO {{shard}}.photos (id, title) VALUES ({id}, 'x'); COMMIT;
                RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$"
        );
        let kind = if within { kind.min(9) } else { kind };
        let call = async {
            if within {
                // As above, within a transaction with a closure that returns the error.
                return shard
                    .transaction(async |tx| match kind {
                        0 => tx
                            .query_one_as::<(i64,)>(&returning, &[&id])
                            .await
                            .map(drop),
                        1 => tx.query_one(&two, &[&id]).await.map(drop),
                        2 => tx.query_opt(&two, &[&id]).await.map(drop),
                        3 => tx.execute(&nul, &[&id]).await.map(drop),
                        4 => tx.execute(INSERT, &many).await.map(drop),
                        5 => tx.execute(INSERT, &[&Unreadable]).await.map(drop),
                        6 => tx.execute(INSERT, &[]).await.map(drop),
                        7 => tx.execute(INSERT, &[&"x"]).await.map(drop),
                        8 => tx.execute("PREPARE mine AS SELECT 1", &[]).await.map(drop),
                        _ => tx.execute(INSERT, &[&id, &id]).await.map(drop),
                    })
                    .await;
            }
            match kind {
                0 => shard
                    .query_one_as::<(i64,)>(&returning, &[&id])
                    .await
                    .map(drop),
                1 => shard.query_one(&two, &[&id]).await.map(drop),
                2 => shard.query_opt(&two, &[&id]).await.map(drop),
                3 => shard.execute(&nul, &[&id]).await.map(drop),
                4 => shard.execute(INSERT, &many).await.map(drop),
                5 => shard.execute(INSERT, &[&Unreadable]).await.map(drop),
                6 => shard.execute(INSERT, &[]).await.map(drop),
                7 => shard.execute(INSERT, &[&"x"]).await.map(drop),
                8 => shard
                    .execute("PREPARE mine AS SELECT 1", &[])
                    .await
                    .map(drop),
                9 => shard.execute(INSERT, &[&id, &id]).await.map(drop),
                10 => shard.execute(&commits, &[]).await.map(drop),
                11 => {
                    let sql = "INSERT INTO {shard}.photos (id, title) SELECT *, 'x' FROM \
                        unnest($1::bigint[]) RETURNING title";
                    // The ID names another shard than the key would.
                    let ids = [id];
                    let keys = self.router.by_ids(&ids).query_in_order(sql).await;
                    keys.map(drop).map_err(Error::from)
                }
                _ => {
                    let sql = "SELECT count(*) FROM pg_catalog.pg_prepared_statements \
                        WHERE from_sql AND name = 'mine'";
                    let (count,) = shard.query_one_as::<(i64,)>(sql, &[]).await?;
                    if count > 0 {
                        self.failures
                            .add("foreign", "what another caller has prepared is there");
                    }
                    Ok(())
                }
            }
        };
        let said = Polls {
            future: Box::pin(call),
            left,
        }
        .await;
        let noticed = match kind {
            3..=7 | 9 => Noticed::Before,
            8 | 12.. => Noticed::Never,
            _ => Noticed::After,
        };
        match &said {
            Some(Ok(())) if noticed != Noticed::Never => self
                .failures
                .add("mistake", format!("mistake {kind} was taken: row {id}")),
            Some(Err(error)) => self.judge(error, kind, noticed),
            _ => {}
        }
        let rows = match (kind, noticed) {
            (_, Noticed::Never) => return Vec::new(),
            (1 | 2, _) => BTreeSet::from([id, -id]),
            _ => BTreeSet::from([id]),
        };
        let undone = noticed == Noticed::Before || within;
        let (either, undone) = if undone {
            (BTreeSet::new(), rows)
        } else {
            (rows, BTreeSet::new())
        };
        vec![Told::new("mistake", either, undone, said.as_ref())]
    }

    /// Checks the error, if the mistake and not a fate is its reason.
    fn judge(&self, error: &Error, kind: u8, noticed: Noticed) {
        let driver = error
            .as_postgres_error()
            .filter(|source| source.as_db_error().is_none() && !source.is_closed());
        let lost = matches!(error, Error::ConnectionLost { .. } | Error::InDoubt { .. });
        let wrong = error.is_retryable() && error.may_have_run()
            || driver.is_some() && (lost || error.is_retryable())
            || noticed == Noticed::Before && driver.is_some() && error.may_have_run()
            || noticed == Noticed::Before && error.is_application() && error.may_have_run()
            || error.code().is_some_and(|code| code.code() == "08P01") && error.is_retryable();
        if wrong {
            self.failures
                .add("untrue", format!("mistake {kind}: {error:?}"));
        }
    }
}
