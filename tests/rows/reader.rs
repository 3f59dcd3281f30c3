//! An application behind the router that only reads: with statements that its connections keep, and
//! by checking that what was acknowledged to a client is done.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use fastrand::Rng;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::state::Shared;

/// A value of a shard's own type.
#[derive(Debug)]
struct Mood(&'static str);

impl ToSql for Mood {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

fn is_missing(code: &str) -> bool {
    ["42", "3F", "22P02"]
        .iter()
        .any(|class| code.starts_with(class))
}

pub(crate) async fn read(shared: Arc<Shared>) {
    let router = shared.world.router().await;
    let mut rng = Rng::with_seed(shared.case.seed.wrapping_add(5));
    while !shared.is_over() {
        let shard = rng.usize(0..shared.gates.len());
        let known = {
            let told = shared.gates[shard].told.lock().unwrap();
            let at = rng.usize(0..told.acknowledged.len().max(1));
            told.acknowledged.iter().nth(at).copied()
        };
        let known = known.filter(|_| rng.bool());
        let handle = router.by_key(shard as i64);
        let answer = match known {
            Some(number) => {
                handle
                    .query("SELECT n FROM {shard}.txlog WHERE n = $1", &[&number])
                    .await
            }
            None => {
                handle
                    .query(
                        "SELECT m::text FROM {shard}.moods WHERE m = $1",
                        &[&Mood("ok")],
                    )
                    .await
            }
        };
        let altered = shared.gates[shard].altered.load(Ordering::SeqCst);
        match answer {
            Ok(rows) if rows.len() == 1 => {}
            // The shard's name may be another one, or the value's.
            Ok(_) if altered && known.is_none() => {}
            Err(error) if altered && error.code().is_some_and(|code| is_missing(code.code())) => {}
            Ok(rows) => shared.fail(
                "router",
                format!(
                    "shard {shard}, {known:?}: {} rows in place of one",
                    rows.len()
                ),
            ),
            // It may wait for a server, or a mover, for as long as it is allowed to.
            Err(error) if shared.crashes || error.is_retryable() => {
                shared.erred(
                    "router",
                    if error.is_retryable() {
                        "retryable"
                    } else {
                        "gone"
                    },
                );
            }
            Err(error) => {
                let mut text = format!("shard {shard}: {error}");
                let mut cause = std::error::Error::source(&error);
                while let Some(inner) = cause {
                    text += &format!(": {inner}");
                    cause = inner.source();
                }
                shared.fail("router", text);
            }
        }
        shared.counts.statements.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(rng.u64(5..60))).await;
    }
}
