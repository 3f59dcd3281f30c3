//! A shard to fence, and [`Fence`]: the functions of the fence with types.

use std::time::{Duration, Instant};

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error};
use uuid::Uuid;

use crate::support::{TestCluster, control};

/// The shard that most tests fence, and its names.
pub(super) const SHARD: i32 = 7;
pub(super) const SCHEMA: &str = "shard_0007";
pub(super) const LEFT: &str = "shard_0007__left_e3";
/// The epoch that shards have here; where they move to it is one more.
pub(super) const EPOCH: i32 = 3;
/// Where shards move to.
pub(super) const TARGET: &str = "db2";

/// A server with the control schema and nothing else.
pub(super) async fn host(version: u32) -> TestCluster {
    let cluster = TestCluster::start(version, 1);
    let client = cluster.app(0).await;
    client
        .batch_execute(&format!("BEGIN; {}; COMMIT", control()))
        .await
        .unwrap();
    cluster
}

/// A server with the shop: shard 7, a schema `public` with things of the same names, and a schema
/// `outside`.
pub(super) async fn shop(version: u32) -> TestCluster {
    let cluster = host(version).await;
    let client = cluster.app(0).await;
    client.batch_execute("CREATE SCHEMA outside").await.unwrap();
    for schema in ["public", SCHEMA] {
        client.batch_execute(&shop_sql(schema)).await.unwrap();
    }
    serve(&client, SHARD).await;
    cluster
}

/// A small application's schema, with everything in it that resolves by name.
fn shop_sql(schema: &str) -> String {
    let sql = "
        CREATE SCHEMA IF NOT EXISTS {s};
        CREATE TYPE {s}.mood AS ENUM ('happy', 'sad');
        CREATE SEQUENCE {s}.tickets;
        CREATE SEQUENCE {s}.ids;
        CREATE FUNCTION {s}.next_id() RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('{s}.ids') \
        $$;
        CREATE TABLE {s}.users (
            id bigint PRIMARY KEY DEFAULT {s}.next_id(),
            number bigint GENERATED ALWAYS AS IDENTITY,
            email text CONSTRAINT users_email UNIQUE,
            mood {s}.mood DEFAULT 'happy',
            n integer NOT NULL DEFAULT 0);
        CREATE TABLE {s}.photos (
            id bigint PRIMARY KEY DEFAULT {s}.next_id(),
            user_id bigint REFERENCES {s}.users ON DELETE CASCADE,
            title text);
        CREATE VIEW {s}.happy AS SELECT id, email FROM {s}.users WHERE mood = 'happy';
        CREATE FUNCTION {s}.add_user(email text) RETURNS bigint LANGUAGE plpgsql AS $$
            DECLARE made bigint;
            BEGIN INSERT INTO {s}.users (email) VALUES (email) RETURNING id INTO made; RETURN \
            made; END $$;
        CREATE FUNCTION {s}.add_photo(title text) RETURNS void LANGUAGE sql AS
            $$ INSERT INTO {s}.photos (title) VALUES (title) $$;
        CREATE FUNCTION {s}.named(wanted text) RETURNS SETOF {s}.users LANGUAGE sql STABLE AS
            $$ SELECT * FROM {s}.users WHERE email = wanted $$;
        CREATE FUNCTION {s}.is_happy(m {s}.mood) RETURNS boolean LANGUAGE sql AS $$ SELECT m = \
        'happy' $$;
        CREATE PROCEDURE {s}.tidy(max_n integer) LANGUAGE plpgsql AS
            $$ BEGIN DELETE FROM {s}.users WHERE n > max_n; END $$;
        INSERT INTO {s}.users (email, n) SELECT 'user ' || i, i FROM generate_series(1, 5) AS i;
        INSERT INTO {s}.photos (user_id, title) SELECT id, 'photo of ' || email FROM {s}.users;";
    // What a literal without a type would resolve to instead.
    let decoy = "CREATE FUNCTION public.is_happy(m text) RETURNS boolean LANGUAGE sql AS $$ SELECT \
        true $$;";
    sql.replace("{s}", schema) + if schema == "public" { decoy } else { "" }
}

/// Records that the host serves a shard with an existing schema.
pub(super) async fn serve(client: &Client, shard: i32) {
    let row = "INSERT INTO pgshard.shard (shard_id, schema_name, state, epoch) VALUES ($1, $2, \
        'serving', $3)";
    client
        .execute(row, &[&shard, &schema(shard), &EPOCH])
        .await
        .unwrap();
}

/// A shard with one table of one row: enough if only the owner matters.
pub(super) async fn small_shard(client: &Client, shard: i32) {
    let s = schema(shard);
    client
        .batch_execute(&format!(
            "CREATE SCHEMA {s}; CREATE TABLE {s}.t (n integer); INSERT INTO {s}.t VALUES (1)"
        ))
        .await
        .unwrap();
    serve(client, shard).await;
}

pub(super) fn schema(shard: i32) -> String {
    format!("shard_{shard:04}")
}

/// The SQLSTATE of a refusal.
#[track_caller]
pub(super) fn code(error: &Error) -> &str {
    error
        .code()
        .unwrap_or_else(|| panic!("not an error of the server's: {error:?}"))
        .code()
}

/// The DETAIL of SH001.
#[track_caller]
pub(super) fn detail(error: &Error) -> serde_json::Value {
    assert_eq!(code(error), "SH001", "{error:?}");
    serde_json::from_str(
        error
            .as_db_error()
            .and_then(|error| error.detail())
            .expect("SH001 has a DETAIL"),
    )
    .unwrap()
}

/// Checks that a compare-and-swap found the row in another state.
#[track_caller]
pub(super) fn refused<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert_eq!(code(&result.expect_err("must be refused")), "SH002");
}

/// Whether a name leads to a signpost, or to something similar that makes routers look: classes 42,
/// 0A, 3F and 55.
pub(super) fn leads_to_signpost(error: &Error) -> bool {
    let code = code(error);
    code == "SH001" || ["42", "0A", "3F", "55"].contains(&&code[..2])
}

/// The whole content of a schema's tables and sequences, as a value to compare.
pub(super) async fn content(client: &Client, schema: &str) -> Vec<(String, String)> {
    let relations = "SELECT quote_ident(c.relname), c.relkind = 'S' FROM pg_class c
        WHERE c.relnamespace = to_regnamespace($1) AND c.relkind IN ('r', 'S') ORDER BY 1";
    let mut all = Vec::new();
    for row in client.query(relations, &[&schema]).await.unwrap() {
        let (name, sequence): (String, bool) = (row.get(0), row.get(1));
        let what = if sequence {
            "last_value || ' ' || is_called"
        } else {
            "t::text"
        };
        let digest = format!(
            "SELECT count(*) || ' ' || coalesce(sum(hashtextextended({what}, 0)), 0) FROM \
                {schema}.{name} t"
        );
        all.push((name, client.query_one(&digest, &[]).await.unwrap().get(0)));
    }
    assert!(!all.is_empty(), "{schema} is there and has tables");
    all
}

/// Who is in the way of the barrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blocker {
    /// None for a prepared transaction.
    pub(super) pid: Option<i32>,
    pub(super) mode: String,
    pub(super) relation: String,
}

/// One move's access to the fence of a shard, like a mover's.
pub(super) struct Fence {
    pub(super) client: Client,
    pub(super) shard: i32,
    pub(super) move_id: Uuid,
    pub(super) lease: Uuid,
    pub(super) token: Uuid,
    /// The attempt of the last swap; 0 before the first.
    pub(super) attempt: i32,
    /// The OID of the old copy's schema, since the first swap.
    pub(super) left: u32,
}

impl Fence {
    /// Claims the shard for a new move and builds the signpost.
    pub(super) async fn prepare(client: Client, shard: i32) -> Fence {
        let fence = Fence::claim(client, shard).await;
        fence.build_signpost().await.unwrap();
        fence
    }

    /// Claims the shard for a new move.
    pub(super) async fn claim(client: Client, shard: i32) -> Fence {
        let fence = Fence {
            client,
            shard,
            move_id: Uuid::new_v4(),
            lease: Uuid::new_v4(),
            token: Uuid::new_v4(),
            attempt: 0,
            left: 0,
        };
        let row = "INSERT INTO pgshard.move (move_id, shard_id, source, target, mode, phase, \
            epoch, lease, lease_until,
            holder)
            VALUES ($1, $2, 'db1', $3, 'blocking', 'prepared', $4, $5, now() + interval '1 \
            minute', 'a test')";
        fence
            .client
            .execute(
                row,
                &[&fence.move_id, &shard, &TARGET, &EPOCH, &fence.lease],
            )
            .await
            .unwrap();
        fence
    }

    /// The same access over another connection.
    pub(super) fn beside(&self, client: Client) -> Fence {
        Fence { client, ..*self }
    }

    pub(super) async fn build_signpost(&self) -> Result<i32, Error> {
        let row = self
            .client
            .query_one(
                "SELECT pgshard.build_signpost($1, $2)",
                &[&self.shard, &self.move_id],
            )
            .await?;
        Ok(row.get(0))
    }

    /// The swap alone.
    pub(super) async fn swap(&mut self) -> Result<(), Error> {
        self.swap_for(Duration::from_secs(60)).await
    }

    /// Only the swap, with a deadline this far in the future.
    pub(super) async fn swap_for(&mut self, deadline: Duration) -> Result<(), Error> {
        let sql = "SELECT * FROM pgshard.fence($1, $2, $3, $4, $5)";
        let deadline_ms = i32::try_from(deadline.as_millis()).unwrap();
        let row = self
            .client
            .query_one(
                sql,
                &[
                    &self.shard,
                    &self.move_id,
                    &self.lease,
                    &self.token,
                    &deadline_ms,
                ],
            )
            .await?;
        (self.attempt, self.left) = (row.get(0), row.get(1));
        Ok(())
    }

    /// One look of the barrier.
    pub(super) async fn barrier(&self) -> Vec<Blocker> {
        let rows = self
            .client
            .query(
                "SELECT pid, mode, relation FROM pgshard.barrier($1)",
                &[&self.left],
            )
            .await
            .unwrap();
        rows.iter()
            .map(|row| Blocker {
                pid: row.get(0),
                mode: row.get(1),
                relation: row.get(2),
            })
            .collect()
    }

    /// Looks until no session is in the way.
    pub(super) async fn barrier_until_empty(&self) {
        let started = Instant::now();
        loop {
            let blockers = self.barrier().await;
            if blockers.is_empty() {
                return;
            }
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "still in the way after a minute: {blockers:?}"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Swap, barrier and marker.
    pub(super) async fn close(&mut self) {
        self.swap().await.unwrap();
        self.barrier_until_empty().await;
        self.mark().await.unwrap();
    }

    pub(super) async fn mark(&self) -> Result<(), Error> {
        self.call(
            "SELECT pgshard.mark($1, $2, $3, $4)",
            &[&self.shard, &self.move_id, &self.attempt, &self.lease],
        )
        .await
    }

    pub(super) async fn unfence(&self) -> Result<(), Error> {
        self.call(
            "SELECT pgshard.unfence($1, $2, $3, $4)",
            &[&self.shard, &self.move_id, &self.attempt, &self.lease],
        )
        .await
    }

    pub(super) async fn decide(&self) -> Result<(), Error> {
        self.call(
            "SELECT pgshard.decide($1, $2, $3, $4)",
            &[&self.shard, &self.move_id, &self.attempt, &self.lease],
        )
        .await
    }

    /// Whether the lease is still ours; moves the deadline.
    pub(super) async fn heartbeat(&self, deadline: Duration) -> Result<bool, Error> {
        let deadline_ms = i32::try_from(deadline.as_millis()).unwrap();
        let sql = "SELECT pgshard.heartbeat($1, $2, $3, 60000, $4)";
        Ok(self
            .client
            .query_one(
                sql,
                &[&self.shard, &self.move_id, &self.lease, &deadline_ms],
            )
            .await?
            .get(0))
    }

    async fn call(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<(), Error> {
        self.client.execute(sql, parameters).await.map(drop)
    }
}

/// Ends a fence as any session may, and returns what that did.
pub(super) async fn expire(client: &Client, shard: i32) -> Result<bool, Error> {
    Ok(client
        .query_one("SELECT pgshard.expire_fence($1)", &[&shard])
        .await?
        .get(0))
}

/// `state epoch` of a shard, and whether its schema and its signpost are where that state requires.
pub(super) async fn state(client: &Client, shard: i32) -> String {
    let row = client
        .query_one(
            "SELECT state, epoch FROM pgshard.shard WHERE shard_id = $1",
            &[&shard],
        )
        .await
        .unwrap();
    let (state, epoch): (String, i32) = (row.get(0), row.get(1));
    let s = schema(shard);
    let schemas =
        "SELECT n.nspname::text FROM pg_namespace n WHERE starts_with(n.nspname, $1) ORDER BY 1";
    let schemas: Vec<String> = client
        .query(schemas, &[&s])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    let other = if state == "serving" {
        format!("{s}__signpost")
    } else {
        format!("{s}__left_e{EPOCH}")
    };
    assert!(
        schemas.contains(&s) && (schemas.len() == 1 || schemas.contains(&other)),
        "{state}, but {schemas:?}"
    );
    format!("{state} {epoch}")
}
