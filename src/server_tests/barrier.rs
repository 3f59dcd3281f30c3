//! The cheap query behind a fence, compared with the whole one.

use super::pair::{Pair, one};
use crate::ShardId;
use crate::mover::preflight::facts::{locks, may_be_locked};

const SHARD: &str = "
    CREATE SCHEMA shard_0007;
    CREATE TYPE shard_0007.place AS (street text, town text);
    CREATE TYPE shard_0007.mood AS ENUM ('glad', 'sad');
    CREATE TABLE shard_0007.users (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, \
    n serial);
    CREATE TABLE shard_0007.views (id bigint, day int) PARTITION BY RANGE (day);
    CREATE TABLE shard_0007.views_1 PARTITION OF shard_0007.views FOR VALUES FROM (0) TO (9);
    CREATE VIEW shard_0007.named AS SELECT id, name FROM shard_0007.users;
    CREATE MATERIALIZED VIEW shard_0007.counted AS SELECT count(*) FROM shard_0007.users;
    CREATE SEQUENCE shard_0007.tickets;
    CREATE FUNCTION shard_0007.f() RETURNS int LANGUAGE sql AS 'SELECT 1'";

/// What a transaction may have done when a shard is fenced.
const STATEMENTS: [&str; 30] = [
    "INSERT INTO {s}.users (name) VALUES ('Ann')",
    "INSERT INTO {s}.named (id) OVERRIDING SYSTEM VALUE VALUES (70)",
    "UPDATE {s}.users SET name = 'Bob' WHERE false",
    "DELETE FROM {s}.views",
    "INSERT INTO {s}.views VALUES (1, 1)",
    "INSERT INTO {s}.views_1 VALUES (1, 1)",
    "SELECT FROM {s}.users FOR KEY SHARE",
    "SELECT nextval('{s}.tickets')",
    "SELECT setval('{s}.users_n_seq', 9)",
    "LOCK TABLE {s}.users IN SHARE MODE",
    "TRUNCATE {s}.views_1",
    "REFRESH MATERIALIZED VIEW {s}.counted",
    "ALTER TABLE {s}.users ADD extra int",
    "ALTER TABLE {s}.views DETACH PARTITION {s}.views_1",
    "CREATE INDEX ON {s}.users (name)",
    "REINDEX TABLE {s}.users",
    "CLUSTER {s}.users USING users_pkey",
    "ANALYZE {s}.users",
    "ALTER TYPE {s}.place ADD ATTRIBUTE zip text",
    "DROP TYPE {s}.place",
    "CREATE TYPE {s}.size AS (w int, h int)",
    "ALTER VIEW {s}.named RENAME TO renamed",
    "ALTER SEQUENCE {s}.tickets RESTART 5",
    "CREATE TABLE {s}.fresh (n int)",
    "CREATE TABLE public.fresh (n int); ALTER TABLE public.fresh SET SCHEMA {s}",
    "CREATE TRIGGER t BEFORE UPDATE ON {s}.users FOR EACH ROW EXECUTE FUNCTION \
        suppress_redundant_updates_trigger()",
    "DROP TABLE {s}.users CASCADE",
    "CREATE FUNCTION {s}.g() RETURNS int LANGUAGE sql AS 'SELECT 2'",
    "COMMENT ON TABLE {s}.users IS 'c'",
    "GRANT SELECT ON {s}.users TO public",
];

on_each_version! {
    /// The cheap query sees every session that makes the barrier wait. The session that runs it is
    /// none of them.
    async fn the_cheap_question_misses_nobody(version) {
        let pair = Pair::start([version, version]).await;
        let client = pair.app(0).await;
        client.batch_execute(SHARD).await.unwrap();
        let source = pair.session(0, ShardId::new(7).unwrap()).await;
        let schema = one::<u32>(&client, "SELECT 'shard_0007'::regnamespace::oid").await;
        let mut waits = 0;
        for statement in STATEMENTS {
            let sql = statement.replace("{s}", "shard_0007");
            client
                .batch_execute(&format!("BEGIN; {sql}"))
                .await
                .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            let whole = locks(&source, schema).await.unwrap();
            waits += usize::from(!whole.is_empty());
            assert!(
                whole.is_empty() || may_be_locked(&source, schema).await.unwrap(),
                "{sql}: {whole:?}"
            );
            client.batch_execute("ROLLBACK").await.unwrap();
            assert!(
                !may_be_locked(&source, schema).await.unwrap(),
                "{sql}: nobody is left"
            );
        }
        assert!(waits > 20, "{waits}");
        client
            .batch_execute("BEGIN; SELECT FROM shard_0007.users")
            .await
            .unwrap();
        assert!(
            !may_be_locked(&source, schema).await.unwrap(),
            "readers are passed over"
        );
    }
}
