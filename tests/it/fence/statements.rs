//! Every kind of statement on a fenced shard, in every way that it can come, fails, and writes nothing anywhere.

use bytes::Bytes;
use futures_util::{SinkExt, TryStreamExt};
use tokio_postgres::{Client, Error, Statement};

use super::setup::{EPOCH, Fence, LEFT, SCHEMA, SHARD, TARGET, code, content, detail, leads_to_signpost, shop};
use crate::support::{TestCluster, connect};

/// How a statement fails on a signpost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fails {
    /// With SH001.
    Itself,
    /// With another code of the classes 42, 0A, 3F and 55: routers look at the host's row then.
    Otherwise,
    /// Otherwise up to this version of PostgreSQL.
    OtherwiseUntil(u32),
    /// Otherwise if it was prepared, for its result has a type of the shard's schema, where the signpost has text: 0A000,
    /// "cached plan must not change result type".
    OtherwiseIfPrepared,
    /// One way or the other: whether the session still had the shard's own function, which reads a type of the shard.
    Either,
}

/// What a statement does on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Rows,
    Effect,
    CopyIn,
    CopyOut,
}

use Fails::{Either, Itself, Otherwise, OtherwiseIfPrepared, OtherwiseUntil};
use Kind::{CopyIn, CopyOut, Effect, Rows};

/// `{s}` is the shard's schema and a dot, or nothing where `search_path` finds it. All succeed on a shard that is served.
#[rustfmt::skip]
const STATEMENTS: &[(Kind, Fails, &str)] = &[
    (Rows, OtherwiseIfPrepared, "SELECT * FROM {s}users"),
    (Rows, Itself, "SELECT email FROM {s}users WHERE id = 1"),
    (Rows, Itself, "SELECT count(*) FROM {s}users"),
    (Rows, Itself, "TABLE {s}photos"),
    (Rows, Itself, "SELECT 1 WHERE NOT EXISTS (SELECT FROM {s}users WHERE id = -1)"),
    (Rows, Itself, "SELECT g, u.id FROM generate_series(1, 2) AS g LEFT JOIN {s}users u ON u.id = g"),
    (Rows, Itself, "SELECT u.id FROM {s}users u JOIN {s}photos p ON p.user_id = u.id"),
    (Rows, Itself, "SELECT id FROM {s}happy"),
    (Rows, Itself, "SELECT last_value FROM {s}tickets"),
    (Rows, Itself, "EXPLAIN (ANALYZE, COSTS OFF) SELECT * FROM {s}users"),
    (Rows, Itself, "SELECT id FROM {s}users WHERE id = 1 FOR UPDATE"),
    (Rows, Itself, "SELECT id FROM {s}users u FOR NO KEY UPDATE OF u SKIP LOCKED"),
    (Rows, Itself, "SELECT id FROM {s}users FOR SHARE NOWAIT"),
    (Rows, Itself, "SELECT id FROM {s}users FOR KEY SHARE"),
    (Rows, Otherwise, "SELECT id, email FROM {s}users GROUP BY id"),
    (Rows, Otherwise, "SELECT ctid FROM {s}users"),
    (Rows, Otherwise, "SELECT * FROM {s}users TABLESAMPLE SYSTEM (100)"),
    (Rows, Otherwise, "SELECT * FROM {s}users WHERE mood = 'happy'::{s}mood AND id IN (SELECT user_id FROM {s}photos)"),
    (Effect, Itself, "INSERT INTO {s}users (email) VALUES ('new')"),
    (Effect, Itself, "INSERT INTO {s}users DEFAULT VALUES"),
    (Effect, Itself, "INSERT INTO {s}users (id, email) OVERRIDING SYSTEM VALUE VALUES (99, 'new')"),
    (Effect, Itself, "INSERT INTO {s}users (email) SELECT 'copy of ' || email FROM {s}users"),
    (Effect, Itself, "INSERT INTO {s}users (email) SELECT 'series ' || g FROM generate_series(1, 3) AS g"),
    (Rows, Itself, "INSERT INTO {s}photos (title) VALUES ('new') RETURNING id"),
    (Effect, Itself, "INSERT INTO {s}happy (email) VALUES ('through the view')"),
    (Effect, Itself, "INSERT INTO {s}users (email) VALUES ('new') ON CONFLICT DO NOTHING"),
    (Effect, Otherwise, "INSERT INTO {s}users (email) VALUES ('new') ON CONFLICT (email) DO NOTHING"),
    (Effect, Otherwise, "INSERT INTO {s}users (email) VALUES ('new') ON CONFLICT (email) DO UPDATE SET n = users.n + 1"),
    (Effect, Otherwise, "INSERT INTO {s}users (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET n = excluded.n WHERE users.n > 0"),
    (Effect, Otherwise, "INSERT INTO {s}users (email) VALUES ('new') ON CONFLICT ON CONSTRAINT users_email DO NOTHING"),
    (Effect, Otherwise, "INSERT INTO {s}users (email) VALUES ('new') ON CONFLICT ON CONSTRAINT users_email DO UPDATE SET n = 7"),
    (Effect, Itself, "UPDATE {s}users SET n = n + 1"),
    (Effect, Itself, "UPDATE {s}users SET n = n + 1 WHERE id = 1"),
    (Rows, Itself, "UPDATE {s}users u SET n = p.n FROM public.users p WHERE p.id = u.id RETURNING u.n"),
    (Effect, Itself, "UPDATE {s}happy SET email = 'through the view' WHERE id = 1"),
    (Effect, Itself, "DELETE FROM {s}photos"),
    (Effect, Itself, "DELETE FROM {s}users WHERE id = 1"),
    (Effect, Itself, "DELETE FROM {s}photos p USING {s}users u WHERE u.id = p.user_id AND u.n > 3"),
    (Rows, Itself, "WITH gone AS (DELETE FROM {s}photos RETURNING id) SELECT count(*) FROM gone"),
    (Rows, Itself, "WITH w AS (INSERT INTO {s}photos (title) VALUES ('cte') RETURNING id) SELECT id FROM w"),
    (Effect, OtherwiseUntil(16), "MERGE INTO {s}users u USING (VALUES (1, 8), (99, 9)) AS v(id, n) ON v.id = u.id
        WHEN MATCHED THEN UPDATE SET n = v.n WHEN NOT MATCHED THEN INSERT (id, n) VALUES (v.id, v.n)"),
    (Effect, Itself, "MERGE INTO outside.totals t USING {s}users u ON t.id = u.id WHEN NOT MATCHED THEN INSERT VALUES (u.id)"),
    (Effect, Otherwise, "TRUNCATE {s}photos"),
    (Effect, Otherwise, "TRUNCATE public.photos, {s}photos"),
    (Effect, Itself, "DO $$ BEGIN INSERT INTO {s}users (email) VALUES ('do'); END $$"),
    (CopyIn, Itself, "COPY {s}users (id, email) FROM STDIN"),
    (CopyOut, Otherwise, "COPY {s}users TO STDOUT"),
    (CopyOut, Itself, "COPY (SELECT * FROM {s}users) TO STDOUT (FORMAT binary)"),
    (CopyOut, Itself, "COPY (DELETE FROM {s}photos RETURNING id) TO STDOUT"),
    (Rows, Itself, "SELECT {s}add_user('by function')"),
    (Rows, Itself, "SELECT {s}add_user(email => 'by function')"),
    (Rows, Itself, "SELECT {s}add_photo('by function')"),
    (Rows, Either, "SELECT * FROM {s}named('user 1')"),
    (Effect, Itself, "CALL {s}tidy(1)"),
    (Effect, Itself, "CALL {s}tidy(max_n => 1)"),
    (Effect, Otherwise, "CREATE TABLE {s}fresh (n integer)"),
    (Effect, Otherwise, "CREATE TABLE {s}fresh AS SELECT 1 AS n"),
    (Effect, Otherwise, "CREATE SEQUENCE {s}fresh"),
    (Effect, Otherwise, "CREATE VIEW {s}fresh AS SELECT 1 AS n"),
    (Effect, Otherwise, "CREATE INDEX ON {s}users (n)"),
    (Effect, Otherwise, "ALTER TABLE {s}users ADD COLUMN extra integer"),
    (Effect, Otherwise, "ALTER TABLE {s}users DROP COLUMN n"),
    (Effect, Otherwise, "ALTER TABLE {s}users DISABLE TRIGGER USER"),
    (Effect, Otherwise, "ALTER TABLE {s}users RENAME TO people"),
    (Effect, Otherwise, "DROP TABLE {s}photos"),
    (Effect, Otherwise, "DROP SEQUENCE {s}tickets"),
    (Effect, Otherwise, "LOCK TABLE {s}users"),
    (Effect, Otherwise, "LOCK TABLE {s}users IN SHARE MODE NOWAIT"),
    (Effect, Otherwise, "LOCK TABLE {s}users IN ROW EXCLUSIVE MODE"),
];

/// These name no table, by which they would learn of the swap: see [`what_names_no_table_is_not_told`].
#[rustfmt::skip]
const WITHOUT_TABLES: &[(Kind, Fails, &str)] = &[
    (Rows, Otherwise, "SELECT setval('{s}tickets', 1000)"),
    (Rows, Otherwise, "SELECT nextval('{s}tickets')"),
    (Rows, Itself, "SELECT {s}next_id()"),
    (Rows, Itself, "SELECT {s}is_happy('happy')"),
    (Effect, Otherwise, "CREATE OR REPLACE FUNCTION {s}next_id() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'"),
];

/// With a `search_path`, the name of a type falls through to public's, by which no row is written.
const QUALIFIED: &[(Kind, Fails, &str)] = &[
    (Rows, Otherwise, "SELECT 'happy'::{s}mood"),
    (Effect, Otherwise, "INSERT INTO {s}users (email, mood) VALUES ('enum', 'sad'::{s}mood)"),
    (Effect, Otherwise, "ALTER TYPE {s}mood RENAME VALUE 'sad' TO 'gloomy'"),
];

/// How the shard is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    BySchema,
    BySearchPath,
}

/// What the session had done with the statement, and around it, when the swap came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nothing: it comes as text, on its own.
    Text,
    /// Prepared, planned and run once.
    Prepared,
    /// The same, within a transaction that has its snapshot.
    RepeatableRead,
    /// As text, within a transaction that has its snapshot.
    Serializable,
    /// As text, in a transaction after a savepoint; twice.
    Savepoint,
    /// In a PL/pgSQL function elsewhere that has its plans, in a transaction that has its snapshot.
    Function,
}

const WAYS: [Way; 6] =
    [Way::Text, Way::Prepared, Way::RepeatableRead, Way::Serializable, Way::Savepoint, Way::Function];

struct Session {
    client: Client,
    sql: String,
    kind: Kind,
    fails: Fails,
    way: Way,
    prepared: Option<Statement>,
}

impl Session {
    /// Connects, prepares, and runs the statement once and rolls it back: it succeeds, which shows that it is one.
    async fn before(
        url: &str,
        (kind, fails, sql): (Kind, Fails, &str),
        named: Named,
        way: Way,
        number: usize,
    ) -> Session {
        let client = connect(url).await;
        client.batch_execute("SET lock_timeout = '30s'").await.unwrap();
        let sql = match named {
            Named::BySchema => sql.replace("{s}", &format!("{SCHEMA}.")),
            Named::BySearchPath => {
                client.batch_execute(&format!("SET search_path = {SCHEMA}, public")).await.unwrap();
                sql.replace("{s}", "")
            }
        };
        let mut session = Session { client, sql, kind, fails, way, prepared: None };
        match way {
            Way::Text | Way::Serializable | Way::Savepoint => {}
            Way::Prepared | Way::RepeatableRead => {
                session.prepared = Some(session.client.prepare(&session.sql).await.unwrap())
            }
            Way::Function => {
                let body = match kind {
                    Rows => format!("DECLARE r record; BEGIN FOR r IN {} LOOP END LOOP; END", session.sql),
                    _ => format!("BEGIN {}; END", session.sql),
                };
                let name = format!("outside.statement_{number}");
                let create =
                    format!("CREATE OR REPLACE FUNCTION {name}() RETURNS void LANGUAGE plpgsql AS $body${body}$body$");
                session.client.batch_execute(&create).await.unwrap();
                (session.sql, session.kind) = (format!("SELECT {name}()"), Rows);
            }
        }
        session.client.batch_execute("BEGIN").await.unwrap();
        session.run().await.unwrap_or_else(|error| panic!("{}: {error:?}", session.sql));
        session.client.batch_execute("ROLLBACK").await.unwrap();
        session
    }

    /// Begins the transaction that will be open at the swap.
    async fn begin(&self) {
        let begin = match self.way {
            Way::Text | Way::Prepared => return,
            Way::RepeatableRead | Way::Function => "BEGIN ISOLATION LEVEL REPEATABLE READ",
            Way::Serializable => "BEGIN ISOLATION LEVEL SERIALIZABLE",
            Way::Savepoint => "BEGIN",
        };
        self.client
            .batch_execute(&format!("{begin}; SELECT * FROM public.users LIMIT 1; SAVEPOINT before"))
            .await
            .unwrap();
    }

    async fn run(&self) -> Result<(), Error> {
        match (self.kind, &self.prepared) {
            (CopyIn, prepared) => {
                let sink = match prepared {
                    Some(statement) => self.client.copy_in(statement).await?,
                    None => self.client.copy_in(&self.sql).await?,
                };
                let mut sink = std::pin::pin!(sink);
                sink.send(Bytes::from_static(b"98\tcopied\n")).await?;
                sink.finish().await.map(drop)
            }
            (CopyOut, Some(statement)) => self.client.copy_out(statement).await?.try_for_each(async |_| Ok(())).await,
            (CopyOut, None) => self.client.copy_out(&self.sql).await?.try_for_each(async |_| Ok(())).await,
            (_, Some(statement)) => self.client.query(statement, &[]).await.map(drop),
            (_, None) => self.client.simple_query(&self.sql).await.map(drop),
        }
    }

    /// After the swap: fails as it should, and says so.
    async fn after(&self, version: u32, state: &str) {
        let times = if self.way == Way::Savepoint { 2 } else { 1 };
        for _ in 0..times {
            let what = format!("{:?}, {:?}", self.way, self.sql);
            let error = match self.run().await {
                Ok(()) => panic!("{what}: went through"),
                Err(error) => error,
            };
            let itself = match self.fails {
                Itself => true,
                Otherwise => false,
                OtherwiseUntil(last) => version > last,
                Either => code(&error) == "SH001",
                OtherwiseIfPrepared => !matches!(self.way, Way::Prepared | Way::RepeatableRead),
            };
            assert!(leads_to_signpost(&error) && code(&error) != "55P03", "{what}: {error:?}");
            assert_eq!(code(&error) == "SH001", itself, "{what}: {error:?}");
            if itself {
                self.assert_detail(&error, state, &what);
            }
            if self.way == Way::Savepoint {
                self.client.batch_execute("ROLLBACK TO before").await.unwrap();
            }
        }
        if !matches!(self.way, Way::Text | Way::Prepared) {
            self.client.batch_execute("ROLLBACK").await.unwrap();
        }
    }

    fn assert_detail(&self, error: &Error, state: &str, what: &str) {
        let detail = detail(error);
        assert_eq!(detail["shard"], SHARD, "{what}");
        let old_snapshot = matches!(self.way, Way::RepeatableRead | Way::Serializable | Way::Function);
        if old_snapshot {
            // It cannot see where the shard goes, nor that it went; "wait" is true all the same.
            assert_eq!(detail["state"], "fenced", "{what}");
        } else {
            let epoch = if state == "moved" { EPOCH + 1 } else { EPOCH };
            assert_eq!(
                (&detail["state"], &detail["host"], &detail["epoch"]),
                (&state.into(), &TARGET.into(), &epoch.into()),
                "{what}"
            );
        }
    }
}

async fn sessions(url: &str, statements: &[(Kind, Fails, &str)], named: Named, way: Way) -> Vec<Session> {
    let mut sessions = Vec::new();
    for (number, statement) in statements.iter().enumerate() {
        // PL/pgSQL has no COPY, and LOCK is none without a transaction.
        let is_one = match way {
            Way::Function => !matches!(statement.0, CopyIn | CopyOut),
            Way::Text | Way::Prepared => !statement.2.starts_with("LOCK"),
            _ => true,
        };
        if is_one {
            sessions.push(Session::before(url, *statement, named, way, number).await);
        }
    }
    // Only now: the statements that were rolled back above lock tables against each other's transactions.
    for session in &sessions {
        session.begin().await;
    }
    sessions
}

/// Everything that is in reach of a write that goes wrong.
async fn everything(client: &Client, shard: &str) -> Vec<(String, String)> {
    let mut all = content(client, shard).await;
    all.extend(content(client, "public").await);
    all.extend(content(client, "outside").await);
    all
}

async fn ready(version: u32) -> (TestCluster, Client, Fence) {
    let cluster = shop(version).await;
    let client = cluster.app(0).await;
    client.batch_execute("CREATE TABLE outside.totals (id bigint)").await.unwrap();
    let fence = Fence::prepare(cluster.app(0).await, SHARD).await;
    (cluster, client, fence)
}

on_each_version! {
    /// The whole table, fenced: what came before the swap in every way, and what comes after it. Swapped back each time.
    async fn nothing_passes_a_fence(version) {
        let (cluster, client, mut fence) = ready(version).await;
        let url = cluster.server(0).url();
        let served = content(&client, SCHEMA).await;
        for named in [Named::BySchema, Named::BySearchPath] {
            for way in WAYS {
                let mut sessions = sessions(&url, STATEMENTS, named, way).await;
                if matches!(way, Way::Text | Way::Prepared) {
                    sessions.extend(self::sessions(&url, WITHOUT_TABLES, named, way).await);
                    if named == Named::BySchema {
                        sessions.extend(self::sessions(&url, QUALIFIED, named, way).await);
                    }
                }
                fence.close().await;
                let before = everything(&client, LEFT).await;
                for session in &sessions {
                    session.after(version, "fenced").await;
                }
                assert_eq!(everything(&client, LEFT).await, before, "{named:?} {way:?}");
                fence.unfence().await.unwrap();
            }
        }
        // What was rolled back before the swaps took numbers from the sequences, and nothing else changed.
        let tables = |all: Vec<(String, String)>| all.into_iter().filter(|(name, _)| ["users", "photos"].contains(&name.as_str())).collect::<Vec<_>>();
        assert_eq!(tables(content(&client, SCHEMA).await), tables(served));
    }

    /// The whole table on a shard that has moved: DETAIL says where.
    async fn nothing_stays_behind_after_the_decision(version) {
        let (cluster, client, mut fence) = ready(version).await;
        let url = cluster.server(0).url();
        // Those in transactions last, whose locks would be in the way of the others.
        let mut before = sessions(&url, STATEMENTS, Named::BySearchPath, Way::Prepared).await;
        before.extend(sessions(&url, STATEMENTS, Named::BySchema, Way::RepeatableRead).await);
        fence.close().await;
        fence.decide().await.unwrap();
        let content = everything(&client, LEFT).await;
        for session in &before {
            session.after(version, "moved").await;
        }
        for (kind, fails, sql) in STATEMENTS.iter().chain(WITHOUT_TABLES).filter(|(_, _, sql)| !sql.starts_with("LOCK")) {
            let sql = sql.replace("{s}", &format!("{SCHEMA}."));
            let text = Session { client: cluster.app(0).await, sql, kind: *kind, fails: *fails, way: Way::Text, prepared: None };
            text.after(version, "moved").await;
        }
        assert_eq!(everything(&client, LEFT).await, content);
    }

    /// A role that owns nothing and has only what the shard's owner granted, table by table and column by column, is told
    /// the same.
    async fn a_role_with_grants_only_meets_the_signpost(version) {
        let (cluster, client, mut fence) = ready(version).await;
        cluster.superuser(0).await.batch_execute("CREATE ROLE clerk LOGIN").await.unwrap();
        client.batch_execute(&format!("
            GRANT USAGE ON SCHEMA {SCHEMA} TO clerk;
            GRANT SELECT (id, email, n), INSERT (email), UPDATE (n) ON {SCHEMA}.users TO clerk;
            GRANT SELECT, INSERT, UPDATE, DELETE ON {SCHEMA}.photos TO clerk;
            GRANT USAGE ON ALL SEQUENCES IN SCHEMA {SCHEMA} TO clerk")).await.unwrap();
        // The signpost was built without them; a mover builds it once more in such a case.
        client.batch_execute(&format!("DROP SCHEMA {SCHEMA}__signpost CASCADE; DELETE FROM pgshard.ledger")).await.unwrap();
        fence.build_signpost().await.unwrap();
        let url = format!("{} user=clerk", key_value(&cluster));
        let statements = [
            (Rows, Itself, "SELECT id, email FROM {s}users WHERE id = 1"),
            (Rows, Itself, "SELECT * FROM {s}photos FOR UPDATE"),
            (Effect, Itself, "INSERT INTO {s}users (email) VALUES ('by a clerk')"),
            (Effect, Itself, "UPDATE {s}users SET n = n + 1 WHERE id = 1"),
            (Effect, Itself, "DELETE FROM {s}photos WHERE id = 1"),
            (CopyIn, Itself, "COPY {s}photos (id, title) FROM STDIN"),
            (Rows, Itself, "SELECT {s}next_id()"),
            (Rows, Otherwise, "SELECT nextval('{s}tickets')"),
        ];
        for named in [Named::BySchema, Named::BySearchPath] {
            for way in [Way::Text, Way::Prepared] {
                let sessions = sessions(&url, &statements, named, way).await;
                fence.close().await;
                let before = everything(&client, LEFT).await;
                for session in &sessions {
                    session.after(version, "fenced").await;
                }
                assert_eq!(everything(&client, LEFT).await, before, "{named:?} {way:?}");
                fence.unfence().await.unwrap();
            }
        }
    }

    /// A transaction that has read a table holds ACCESS SHARE on it, so that reading it again asks nobody anything: it may go
    /// on to read the old copy, as it was at the fence. It can write nothing that follows from it to the shard.
    async fn a_transaction_may_read_on(version) {
        let (cluster, client, mut fence) = ready(version).await;
        for begin in ["BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE"] {
            let reader = cluster.app(0).await;
            let read = format!("SELECT sum(n) FROM {SCHEMA}.users");
            let prepared = reader.prepare(&read).await.unwrap();
            reader.batch_execute(begin).await.unwrap();
            let at_first: i64 = reader.query_one(&prepared, &[]).await.unwrap().get(0);
            client.batch_execute(&format!("UPDATE {SCHEMA}.users SET n = n + 1")).await.unwrap();
            let at_fence: i64 = client.query_one(&read, &[]).await.unwrap().get(0);
            // The barrier passes over readers, and over the marks that SERIALIZABLE leaves.
            fence.close().await;
            let before = everything(&client, LEFT).await;
            let expected = if begin == "BEGIN" { at_fence } else { at_first };
            match reader.query_one(&prepared, &[]).await {
                Ok(row) => assert_eq!(row.get::<_, i64>(0), expected, "{begin}"),
                Err(error) => assert!(leads_to_signpost(&error), "{begin}: {error:?}"),
            }
            let write = format!("UPDATE {SCHEMA}.users SET n = 0");
            assert_eq!(code(&reader.batch_execute(&write).await.unwrap_err()), "SH001", "{begin}");
            reader.batch_execute("ROLLBACK").await.unwrap();
            assert_eq!(code(&reader.query_one(&prepared, &[]).await.unwrap_err()), "SH001", "{begin}");
            assert_eq!(everything(&client, LEFT).await, before);
            fence.unfence().await.unwrap();
        }
    }

    /// What has no table in it takes no lock and is bound to its sequence by OID: in a transaction that began before the swap
    /// it takes one more number of the old copy, or replaces a function there, in vain. The sequences of the target start well ahead of it, and
    /// the number cannot be written to the old copy. The statement after it meets the signpost.
    async fn what_names_no_table_is_not_told(version) {
        let (cluster, client, mut fence) = ready(version).await;
        let url = cluster.server(0).url();
        let sessions = sessions(&url, WITHOUT_TABLES, Named::BySchema, Way::RepeatableRead).await;
        fence.close().await;
        let before = everything(&client, LEFT).await;
        for session in &sessions {
            session.run().await.unwrap();
            let insert = format!("INSERT INTO {SCHEMA}.users (id) VALUES (1000)");
            assert!(leads_to_signpost(&session.client.batch_execute(&insert).await.unwrap_err()));
            session.client.batch_execute("ROLLBACK").await.unwrap();
        }
        let tables = |all: &[(String, String)]| all.iter().filter(|(name, _)| !["ids", "tickets"].contains(&name.as_str())).cloned().collect::<Vec<_>>();
        assert_eq!(tables(&everything(&client, LEFT).await), tables(&before));
    }
}

/// A connection string to which more can be added.
fn key_value(cluster: &TestCluster) -> String {
    format!("host=127.0.0.1 port={} dbname=app", cluster.server(0).port())
}
