//! Every kind of statement on a fenced shard, in every way that it can be sent, fails and writes
//! nothing anywhere.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures_util::{SinkExt, TryStreamExt};
use tokio_postgres::{Client, Error, Statement};

use super::setup::{
    EPOCH, Fence, LEFT, SCHEMA, SHARD, TARGET, code, content, detail, leads_to_signpost, shop,
};
use crate::support::{TestCluster, connect};

/// How a statement fails on a signpost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fails {
    /// With SH001.
    Itself,
    /// With another code of the classes 42, 0A, 3F and 55: routers then look at the host's row.
    Otherwise,
    /// With another code, up to this version of PostgreSQL.
    OtherwiseUntil(u32),
    /// With another code if it was prepared, because its result has a type of the shard's schema
    /// where the signpost has text: 0A000, "cached plan must not change result type".
    OtherwiseIfPrepared,
    /// One way or the other, depending on whether the session still has the shard's own function,
    /// which reads a type of the shard.
    Either,
}

/// How a statement is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Rows,
    Effect,
    CopyIn,
    CopyOut,
}

/// The name of the kind in `docs/signposts.md`, how it is sent, how it fails, and the statement.
type Case = (&'static str, Kind, Fails, &'static str);

use Fails::{Either, Itself, Otherwise, OtherwiseIfPrepared, OtherwiseUntil};
use Kind::{CopyIn, CopyOut, Effect, Rows};

/// The kinds of statements as `docs/signposts.md` names them, which lists what each meets.
#[rustfmt::skip]
mod kinds {
    pub(super) const READS: &str = "`SELECT`, `TABLE`, joins, `WITH`, `FOR UPDATE` and similar, \
        `EXPLAIN ANALYZE`";
    pub(super) const TYPED: &str = "a query or a function whose result has a type of the shard's \
        own, as an enum: \
                                    `SH001` unless it was prepared before";
    pub(super) const GROUPED: &str = "`GROUP BY` the primary key, with other columns in the result";
    pub(super) const SYSTEM: &str = "`ctid` and other system columns";
    pub(super) const SAMPLE: &str = "`TABLESAMPLE`";
    pub(super) const TYPES: &str = "casts to types of the shard's own, `ALTER TYPE`";
    pub(super) const WRITES: &str = "`INSERT`, `UPDATE`, `DELETE`, with `RETURNING` or without; \
        `ON CONFLICT DO \
                                     NOTHING` without a target; `DO`; `MERGE` into another table";
    pub(super) const UPSERT: &str = "`INSERT … ON CONFLICT (columns)`";
    pub(super) const UPSERT_CONSTRAINT: &str = "`INSERT … ON CONFLICT ON CONSTRAINT`";
    pub(super) const MERGE: &str = "`MERGE` into a table of the shard";
    pub(super) const TRUNCATE: &str = "`TRUNCATE`";
    pub(super) const COPY: &str = "`COPY table FROM`, `COPY (query) TO`";
    pub(super) const COPY_TO: &str = "`COPY table TO`";
    pub(super) const CALLS: &str = "functions and procedures of the shard, `next_id()` among them";
    pub(super) const SEQUENCES: &str = "`nextval`, `setval`, `currval` by name; `ALTER SEQUENCE`";
    pub(super) const CREATES: &str = "`CREATE` in the schema, `CREATE OR REPLACE`, `ALTER … \
        RENAME`, `LOCK TABLE`";
    pub(super) const ALTERS: &str = "`ALTER TABLE`, `CREATE INDEX`, `CREATE TRIGGER`, `COMMENT ON \
        TABLE`, `REINDEX`, \
                                     `DROP TABLE`, `DROP SEQUENCE`";
}

use kinds::*;

/// `{s}` is the shard's schema and a dot, or nothing where `search_path` finds it. All of them
/// succeed on a shard that is served.
#[rustfmt::skip]
const STATEMENTS: &[Case] = &[
    (TYPED, Rows, OtherwiseIfPrepared, "SELECT * FROM {s}users"),
    (READS, Rows, Itself, "SELECT email FROM {s}users WHERE id = 1"),
    (READS, Rows, Itself, "SELECT count(*) FROM {s}users"),
    (READS, Rows, Itself, "TABLE {s}photos"),
    (READS, Rows, Itself, "SELECT 1 WHERE NOT EXISTS (SELECT FROM {s}users WHERE id = -1)"),
    (READS, Rows, Itself, "SELECT g, u.id FROM generate_series(1, 2) AS g LEFT JOIN {s}users u ON \
        u.id = g"),
    (READS, Rows, Itself, "SELECT u.id FROM {s}users u JOIN {s}photos p ON p.user_id = u.id"),
    (READS, Rows, Itself, "SELECT id FROM {s}happy"),
    (READS, Rows, Itself, "SELECT last_value FROM {s}tickets"),
    (READS, Rows, Itself, "EXPLAIN (ANALYZE, COSTS OFF) SELECT * FROM {s}users"),
    (READS, Rows, Itself, "SELECT id FROM {s}users WHERE id = 1 FOR UPDATE"),
    (READS, Rows, Itself, "SELECT id FROM {s}users u FOR NO KEY UPDATE OF u SKIP LOCKED"),
    (READS, Rows, Itself, "SELECT id FROM {s}users FOR SHARE NOWAIT"),
    (READS, Rows, Itself, "SELECT id FROM {s}users FOR KEY SHARE"),
    (GROUPED, Rows, Otherwise, "SELECT id, email FROM {s}users GROUP BY id"),
    (SYSTEM, Rows, Otherwise, "SELECT ctid FROM {s}users"),
    (SAMPLE, Rows, Otherwise, "SELECT * FROM {s}users TABLESAMPLE SYSTEM (100)"),
    (TYPES, Rows, Otherwise, "SELECT * FROM {s}users WHERE mood = 'happy'::{s}mood AND id IN \
        (SELECT user_id \
                              FROM {s}photos)"),
    (WRITES, Effect, Itself, "INSERT INTO {s}users (email) VALUES ('new')"),
    (WRITES, Effect, Itself, "INSERT INTO {s}users DEFAULT VALUES"),
    (WRITES, Effect, Itself, "INSERT INTO {s}users (id, email) OVERRIDING SYSTEM VALUE VALUES (99, \
        'new')"),
    (WRITES, Effect, Itself, "INSERT INTO {s}users (email) SELECT 'copy of ' || email FROM \
        {s}users"),
    (WRITES, Effect, Itself, "INSERT INTO {s}users (email) SELECT 'series ' || g FROM \
        generate_series(1, 3) AS g"),
    (WRITES, Rows, Itself, "INSERT INTO {s}photos (title) VALUES ('new') RETURNING id"),
    (WRITES, Effect, Itself, "INSERT INTO {s}happy (email) VALUES ('through the view')"),
    (WRITES, Effect, Itself, "INSERT INTO {s}users (email) VALUES ('new') ON CONFLICT DO NOTHING"),
    (UPSERT, Effect, Otherwise, "INSERT INTO {s}users (email) VALUES ('new') ON CONFLICT (email) \
        DO NOTHING"),
    (UPSERT, Effect, Otherwise, "INSERT INTO {s}users (email) VALUES ('new') ON CONFLICT (email) \
        DO UPDATE \
                                 SET n = users.n + 1"),
    (UPSERT, Effect, Otherwise, "INSERT INTO {s}users (id) VALUES (1) ON CONFLICT (id) DO UPDATE \
        SET n = excluded.n \
                                 WHERE users.n > 0"),
    (UPSERT_CONSTRAINT, Effect, Otherwise, "INSERT INTO {s}users (email) VALUES ('new') \
                                            ON CONFLICT ON CONSTRAINT users_email DO NOTHING"),
    (UPSERT_CONSTRAINT, Effect, Otherwise, "INSERT INTO {s}users (email) VALUES ('new') \
                                            ON CONFLICT ON CONSTRAINT users_email DO UPDATE SET n \
                                            = 7"),
    (WRITES, Effect, Itself, "UPDATE {s}users SET n = n + 1"),
    (WRITES, Effect, Itself, "UPDATE {s}users SET n = n + 1 WHERE id = 1"),
    (WRITES, Rows, Itself, "UPDATE {s}users u SET n = p.n FROM public.users p WHERE p.id = u.id \
        RETURNING u.n"),
    (WRITES, Effect, Itself, "UPDATE {s}happy SET email = 'through the view' WHERE id = 1"),
    (WRITES, Effect, Itself, "DELETE FROM {s}photos"),
    (WRITES, Effect, Itself, "DELETE FROM {s}users WHERE id = 1"),
    (WRITES, Effect, Itself, "DELETE FROM {s}photos p USING {s}users u WHERE u.id = p.user_id AND \
        u.n > 3"),
    (WRITES, Rows, Itself, "WITH gone AS (DELETE FROM {s}photos RETURNING id) SELECT count(*) FROM \
        gone"),
    (WRITES, Rows, Itself, "WITH w AS (INSERT INTO {s}photos (title) VALUES ('cte') RETURNING id) \
        SELECT id FROM w"),
    (MERGE, Effect, OtherwiseUntil(16), "MERGE INTO {s}users u USING (VALUES (1, 8), (99, 9)) AS \
        v(id, n) ON v.id = u.id
        WHEN MATCHED THEN UPDATE SET n = v.n WHEN NOT MATCHED THEN INSERT (id, n) VALUES (v.id, \
        v.n)"),
    (WRITES, Effect, Itself, "MERGE INTO outside.totals t USING {s}users u ON t.id = u.id WHEN NOT \
        MATCHED THEN INSERT \
                              VALUES (u.id)"),
    (TRUNCATE, Effect, Otherwise, "TRUNCATE {s}photos"),
    (TRUNCATE, Effect, Otherwise, "TRUNCATE public.photos, {s}photos"),
    (WRITES, Effect, Itself, "DO $$ BEGIN INSERT INTO {s}users (email) VALUES ('do'); END $$"),
    (COPY, CopyIn, Itself, "COPY {s}users (id, email) FROM STDIN"),
    (COPY_TO, CopyOut, Otherwise, "COPY {s}users TO STDOUT"),
    (COPY, CopyOut, Itself, "COPY (SELECT * FROM {s}users) TO STDOUT (FORMAT binary)"),
    (COPY, CopyOut, Itself, "COPY (DELETE FROM {s}photos RETURNING id) TO STDOUT"),
    (CALLS, Rows, Itself, "SELECT {s}add_user('by function')"),
    (CALLS, Rows, Itself, "SELECT {s}add_user(email => 'by function')"),
    (CALLS, Rows, Itself, "SELECT {s}add_photo('by function')"),
    (TYPED, Rows, Either, "SELECT * FROM {s}named('user 1')"),
    (CALLS, Effect, Itself, "CALL {s}tidy(1)"),
    (CALLS, Effect, Itself, "CALL {s}tidy(max_n => 1)"),
    (CREATES, Effect, Otherwise, "CREATE TABLE {s}fresh (n integer)"),
    (CREATES, Effect, Otherwise, "CREATE TABLE {s}fresh AS SELECT 1 AS n"),
    (CREATES, Effect, Otherwise, "CREATE SEQUENCE {s}fresh"),
    (CREATES, Effect, Otherwise, "CREATE VIEW {s}fresh AS SELECT 1 AS n"),
    (ALTERS, Effect, Otherwise, "CREATE INDEX ON {s}users (n)"),
    (ALTERS, Effect, Otherwise, "ALTER TABLE {s}users ADD COLUMN extra integer"),
    (ALTERS, Effect, Otherwise, "ALTER TABLE {s}users DROP COLUMN n"),
    (ALTERS, Effect, Otherwise, "ALTER TABLE {s}users DISABLE TRIGGER USER"),
    (CREATES, Effect, Otherwise, "ALTER TABLE {s}users RENAME TO people"),
    (ALTERS, Effect, Otherwise, "DROP TABLE {s}photos"),
    (ALTERS, Effect, Otherwise, "DROP SEQUENCE {s}tickets"),
    (SEQUENCES, Effect, Otherwise, "ALTER SEQUENCE {s}tickets RESTART"),
    (ALTERS, Effect, Otherwise, "ALTER TABLE {s}users ENABLE ROW LEVEL SECURITY"),
    (ALTERS, Effect, Otherwise, "COMMENT ON TABLE {s}users IS 'the users'"),
    (ALTERS, Effect, Otherwise, "CREATE TRIGGER t BEFORE \
                                 UPDATE ON {s}users FOR EACH ROW EXECUTE FUNCTION \
                                 suppress_redundant_updates_trigger()"),
    (ALTERS, Effect, Otherwise, "REINDEX TABLE {s}users"),
    (CREATES, Effect, Otherwise, "LOCK TABLE {s}users"),
    (CREATES, Effect, Otherwise, "LOCK TABLE {s}users IN SHARE MODE NOWAIT"),
    (CREATES, Effect, Otherwise, "LOCK TABLE {s}users IN ROW EXCLUSIVE MODE"),
];

/// These name no table, so they do not notice the swap: see [`what_names_no_table_is_not_told`].
#[rustfmt::skip]
const WITHOUT_TABLES: &[Case] = &[
    (SEQUENCES, Rows, Otherwise, "SELECT setval('{s}tickets', 1000)"),
    (SEQUENCES, Rows, Otherwise, "SELECT nextval('{s}tickets')"),
    (CALLS, Rows, Itself, "SELECT {s}next_id()"),
    (CALLS, Rows, Itself, "SELECT {s}is_happy('happy')"),
    (CREATES, Effect, Otherwise, "CREATE OR REPLACE FUNCTION {s}next_id() RETURNS bigint \
                                  LANGUAGE sql AS 'SELECT 1::bigint'"),
];

/// With a `search_path`, the name of a type resolves to public's, which writes no row.
const QUALIFIED: &[Case] = &[
    (TYPES, Rows, Otherwise, "SELECT 'happy'::{s}mood"),
    (
        TYPES,
        Effect,
        Otherwise,
        "INSERT INTO {s}users (email, mood) VALUES ('enum', 'sad'::{s}mood)",
    ),
    (
        TYPES,
        Effect,
        Otherwise,
        "ALTER TYPE {s}mood RENAME VALUE 'sad' TO 'gloomy'",
    ),
];

/// How the shard is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    BySchema,
    BySearchPath,
}

/// What the session had done with the statement, and around it, before the swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nothing: it is sent as text, by itself.
    Text,
    /// Prepared, planned and run once.
    Prepared,
    /// The same, within a transaction that has its snapshot already.
    RepeatableRead,
    /// As text, within a transaction that has its snapshot already.
    Serializable,
    /// As text, in a transaction after a savepoint; twice.
    Savepoint,
    /// In a PL/pgSQL function elsewhere with cached plans, in a transaction that has its snapshot
    /// already.
    Function,
}

const WAYS: [Way; 6] = [
    Way::Text,
    Way::Prepared,
    Way::RepeatableRead,
    Way::Serializable,
    Way::Savepoint,
    Way::Function,
];

struct Session {
    named: &'static str,
    client: Client,
    sql: String,
    kind: Kind,
    fails: Fails,
    way: Way,
    prepared: Option<Statement>,
}

impl Session {
    /// Connects, prepares, and runs the statement once and rolls it back: it must succeed, which
    /// shows that it is valid.
    async fn before(
        url: &str,
        (called, kind, fails, sql): Case,
        named: Named,
        way: Way,
        number: usize,
    ) -> Session {
        let client = connect(url).await;
        client
            .batch_execute("SET lock_timeout = '30s'")
            .await
            .unwrap();
        let sql = match named {
            Named::BySchema => sql.replace("{s}", &format!("{SCHEMA}.")),
            Named::BySearchPath => {
                client
                    .batch_execute(&format!("SET search_path = {SCHEMA}, public"))
                    .await
                    .unwrap();
                sql.replace("{s}", "")
            }
        };
        let mut session = Session {
            named: called,
            client,
            sql,
            kind,
            fails,
            way,
            prepared: None,
        };
        match way {
            Way::Text | Way::Serializable | Way::Savepoint => {}
            Way::Prepared | Way::RepeatableRead => {
                session.prepared = Some(session.client.prepare(&session.sql).await.unwrap())
            }
            Way::Function => {
                let body = match kind {
                    Rows => format!(
                        "DECLARE r record; BEGIN FOR r IN {} LOOP END LOOP; END",
                        session.sql
                    ),
                    _ => format!("BEGIN {}; END", session.sql),
                };
                let name = format!("outside.statement_{number}");
                let create = format!(
                    "CREATE OR REPLACE FUNCTION {name}() RETURNS void LANGUAGE plpgsql AS \
                        $body${body}$body$"
                );
                session.client.batch_execute(&create).await.unwrap();
                (session.sql, session.kind) = (format!("SELECT {name}()"), Rows);
            }
        }
        session.client.batch_execute("BEGIN").await.unwrap();
        session
            .run()
            .await
            .unwrap_or_else(|error| panic!("{}: {error:?}", session.sql));
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
            .batch_execute(&format!(
                "{begin}; SELECT * FROM public.users LIMIT 1; SAVEPOINT before"
            ))
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
            (CopyOut, Some(statement)) => {
                self.client
                    .copy_out(statement)
                    .await?
                    .try_for_each(async |_| Ok(()))
                    .await
            }
            (CopyOut, None) => {
                self.client
                    .copy_out(&self.sql)
                    .await?
                    .try_for_each(async |_| Ok(()))
                    .await
            }
            (_, Some(statement)) => self.client.query(statement, &[]).await.map(drop),
            (_, None) => self.client.simple_query(&self.sql).await.map(drop),
        }
    }

    /// After the swap: the statement fails as it should, with the right words. Returns the
    /// SQLSTATE.
    async fn after(&self, version: u32, state: &str) -> String {
        let mut met = String::new();
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
            assert!(
                leads_to_signpost(&error) && code(&error) != "55P03",
                "{what}: {error:?}"
            );
            assert_eq!(code(&error) == "SH001", itself, "{what}: {error:?}");
            met = code(&error).to_owned();
            if itself {
                self.assert_detail(&error, state, &what);
            }
            if self.way == Way::Savepoint {
                self.client
                    .batch_execute("ROLLBACK TO before")
                    .await
                    .unwrap();
            }
        }
        if !matches!(self.way, Way::Text | Way::Prepared) {
            self.client.batch_execute("ROLLBACK").await.unwrap();
        }
        met
    }

    fn assert_detail(&self, error: &Error, state: &str, what: &str) {
        let detail = detail(error);
        assert_eq!(detail["shard"], SHARD, "{what}");
        let old_snapshot = matches!(
            self.way,
            Way::RepeatableRead | Way::Serializable | Way::Function
        );
        if old_snapshot {
            // It cannot see where the shard goes, nor that it went; "wait" is right nevertheless.
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

/// The statements that this version knows: MERGE came with 15.
fn known(version: u32, statements: &[Case]) -> Vec<Case> {
    statements
        .iter()
        .filter(|(.., sql)| version >= 15 || !sql.starts_with("MERGE"))
        .copied()
        .collect()
}

async fn sessions(url: &str, statements: &[Case], named: Named, way: Way) -> Vec<Session> {
    let mut sessions = Vec::new();
    for (number, statement) in statements.iter().enumerate() {
        // PL/pgSQL has no COPY, and LOCK needs a transaction.
        let is_one = match way {
            Way::Function => !matches!(statement.1, CopyIn | CopyOut),
            Way::Text | Way::Prepared => !statement.3.starts_with("LOCK"),
            _ => true,
        };
        if is_one {
            sessions.push(Session::before(url, *statement, named, way, number).await);
        }
    }
    // This comes only now: the statements that were rolled back above lock tables against each
    // other's transactions.
    for session in &sessions {
        session.begin().await;
    }
    sessions
}

/// The table in a section of `docs/signposts.md`, by its first column.
fn rows_of(section: &str) -> BTreeMap<String, String> {
    let docs = include_str!("../../../docs/signposts.md");
    let (_, section) = docs
        .split_once(&format!("\n## {section}\n"))
        .expect("the docs have the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let cells = section.lines().filter_map(|line| {
        line.strip_prefix("| ")?
            .strip_suffix(" |")?
            .split_once(" | ")
    });
    cells
        .filter(|(first, _)| !["statement", "---", "what"].contains(first))
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .collect()
}

/// What each kind of statement meets on this version, by the docs:
/// `` `0A000` up to 16, `SH001` from 17 ``.
fn documented(version: u32) -> BTreeMap<String, BTreeSet<String>> {
    let code = |said: &str| {
        let (code, when) = said
            .trim()
            .strip_prefix('`')
            .and_then(|said| said.split_once('`'))
            .expect("a code");
        let bound = |word: &str| {
            when.trim()
                .strip_prefix(word)
                .map(|bound| bound.trim().parse::<u32>().unwrap())
        };
        let holds = bound("up to").is_none_or(|last| version <= last)
            && bound("from").is_none_or(|first| version >= first);
        holds.then(|| code.to_owned())
    };
    rows_of("What a statement meets")
        .into_iter()
        .map(|(kind, codes)| (kind, codes.split(", ").filter_map(code).collect()))
        .collect()
}

/// What a signpost answers without an error, as `docs/signposts.md` names it.
#[rustfmt::skip]
const ANSWERED: &[(&str, &[&str])] = &[
    ("`pg_get_serial_sequence`, and `nextval` of it", &[
        "SELECT 1 / (pg_get_serial_sequence('{s}.users', 'number') IS NULL)::int",
        "SELECT 1 / (nextval(pg_get_serial_sequence('{s}.users', 'number')) IS NULL)::int",
    ]),
    ("`pg_relation_size`, `pg_total_relation_size`", &["SELECT 1 / \
        (pg_total_relation_size('{s}.photos') = 0)::int"]),
    ("`to_regclass`, `to_regtype`, the catalogs, `information_schema`", &[
        "SELECT 1 / (to_regclass('{s}.photos') IS NOT NULL AND to_regtype('{s}.mood') IS \
            NULL)::int",
        "SELECT 1 / (count(*) = 0)::int FROM information_schema.tables WHERE table_schema = '{s}' \
         AND table_type = 'BASE TABLE'",
        "SELECT 1 / (count(*) = 0)::int FROM information_schema.sequences WHERE sequence_schema = \
            '{s}'",
    ]),
    ("a statement that needs no row: `WHERE false`, `LIMIT 0`", &[
        "SELECT * FROM {s}.photos WHERE false",
        "SELECT * FROM {s}.photos LIMIT 0",
        "UPDATE {s}.photos SET title = '' WHERE false",
        "INSERT INTO {s}.photos (title) SELECT 'x' WHERE false",
    ]),
    ("`PREPARE`, `EXPLAIN` without `ANALYZE`", &[
        "PREPARE p AS UPDATE {s}.photos SET title = ''",
        "EXPLAIN UPDATE {s}.photos SET title = ''",
    ]),
    ("`ANALYZE`, `VACUUM`", &["ANALYZE {s}.photos"]),
    ("elsewhere: `CREATE VIEW`, `CREATE TABLE (LIKE …)`, `CREATE FUNCTION`", &[
        "CREATE VIEW outside.bound AS SELECT * FROM {s}.photos",
        "CREATE TABLE outside.alike (LIKE {s}.photos)",
        "CREATE FUNCTION outside.takes(p {s}.photos) RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    ]),
    ("by the owner: `GRANT`, `REVOKE`, `COMMENT ON COLUMN`, `CREATE RULE`, `SET DEFAULT`, `SET \
        SCHEMA`, `DROP VIEW`, \
      `DROP FUNCTION`, `ALTER SCHEMA`, `DROP SCHEMA … CASCADE`", &[
        "GRANT SELECT ON {s}.photos TO PUBLIC",
        "REVOKE SELECT ON {s}.photos FROM PUBLIC",
        "COMMENT ON COLUMN {s}.photos.title IS 'x'",
        "CREATE RULE r AS ON UPDATE TO {s}.photos DO ALSO NOTHING",
        "ALTER TABLE {s}.photos ALTER COLUMN title SET DEFAULT ''",
        "ALTER TABLE {s}.photos SET SCHEMA outside",
        "DROP VIEW {s}.photos",
        "DROP FUNCTION {s}.next_id()",
        "ALTER SCHEMA {s} RENAME TO other",
        "DROP SCHEMA {s} CASCADE",
    ]),
];

/// Everything that a misguided write could reach.
async fn everything(client: &Client, shard: &str) -> Vec<(String, String)> {
    let mut all = content(client, shard).await;
    all.extend(content(client, "public").await);
    all.extend(content(client, "outside").await);
    all
}

async fn ready(version: u32) -> (TestCluster, Client, Fence) {
    let cluster = shop(version).await;
    let client = cluster.app(0).await;
    client
        .batch_execute("CREATE TABLE outside.totals (id bigint)")
        .await
        .unwrap();
    let fence = Fence::prepare(cluster.app(0).await, SHARD).await;
    (cluster, client, fence)
}

on_each_version! {
    /// All statements on a fenced shard: those prepared before the swap in every way, and those
    /// sent after it. The shard is swapped back each time. The answers are exactly those that
    /// `docs/signposts.md` lists.
    async fn nothing_passes_a_fence(version) {
        let (cluster, client, mut fence) = ready(version).await;
        let mut met: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let url = cluster.server(0).url();
        let served = content(&client, SCHEMA).await;
        for named in [Named::BySchema, Named::BySearchPath] {
            for way in WAYS {
                let mut sessions = sessions(&url, &known(version, STATEMENTS), named, way).await;
                if matches!(way, Way::Text | Way::Prepared) {
                    sessions.extend(self::sessions(&url, WITHOUT_TABLES, named, way).await);
                    if named == Named::BySchema {
                        sessions.extend(self::sessions(&url, QUALIFIED, named, way).await);
                    }
                }
                fence.close().await;
                let before = everything(&client, LEFT).await;
                for session in &sessions {
                    let code = session.after(version, "fenced").await;
                    met.entry(session.named.to_owned())
                        .or_default()
                        .insert(code);
                }
                assert_eq!(everything(&client, LEFT).await, before, "{named:?} {way:?}");
                fence.unfence().await.unwrap();
            }
        }
        let mut told = documented(version);
        told.retain(|kind, _| version >= 15 || kind != MERGE);
        assert_eq!(met, told);
        // What was rolled back before the swaps took numbers from the sequences; nothing else
        // changed.
        let tables = |all: Vec<(String, String)>| {
            all.into_iter()
                .filter(|(name, _)| ["users", "photos"].contains(&name.as_str()))
                .collect::<Vec<_>>()
        };
        assert_eq!(tables(content(&client, SCHEMA).await), tables(served));
    }

    /// All statements on a shard that has moved: DETAIL contains where.
    async fn nothing_stays_behind_after_the_decision(version) {
        let (cluster, client, mut fence) = ready(version).await;
        let url = cluster.server(0).url();
        // Those in transactions come last, because their locks would be in the way of the others.
        let mut before = sessions(
            &url,
            &known(version, STATEMENTS),
            Named::BySearchPath,
            Way::Prepared,
        )
        .await;
        before.extend(
            sessions(
                &url,
                &known(version, STATEMENTS),
                Named::BySchema,
                Way::RepeatableRead,
            )
            .await,
        );
        fence.close().await;
        fence.decide().await.unwrap();
        let content = everything(&client, LEFT).await;
        for session in &before {
            session.after(version, "moved").await;
        }
        for (named, kind, fails, sql) in known(version, STATEMENTS)
            .iter()
            .chain(WITHOUT_TABLES)
            .filter(|(.., sql)| !sql.starts_with("LOCK"))
        {
            let sql = sql.replace("{s}", &format!("{SCHEMA}."));
            let text = Session {
                named,
                client: cluster.app(0).await,
                sql,
                kind: *kind,
                fails: *fails,
                way: Way::Text,
                prepared: None,
            };
            text.after(version, "moved").await;
        }
        assert_eq!(everything(&client, LEFT).await, content);
    }

    /// A role that owns nothing and has only what the shard's owner granted, for single tables and
    /// columns, gets the same.
    async fn a_role_with_grants_only_meets_the_signpost(version) {
        let (cluster, client, mut fence) = ready(version).await;
        cluster
            .superuser(0)
            .await
            .batch_execute("CREATE ROLE clerk LOGIN")
            .await
            .unwrap();
        client
            .batch_execute(&format!(
                "
            GRANT USAGE ON SCHEMA {SCHEMA} TO clerk;
            GRANT SELECT (id, email, n), INSERT (email), UPDATE (n) ON {SCHEMA}.users TO clerk;
            GRANT SELECT, INSERT, UPDATE, DELETE ON {SCHEMA}.photos TO clerk;
            GRANT USAGE ON ALL SEQUENCES IN SCHEMA {SCHEMA} TO clerk"
            ))
            .await
            .unwrap();
        // The signpost was built without them; a mover builds it again in such a case.
        client
            .batch_execute(&format!(
                "DROP SCHEMA {SCHEMA}__signpost CASCADE; DELETE FROM \
                pgshard.ledger"
            ))
            .await
            .unwrap();
        fence.build_signpost().await.unwrap();
        let url = format!("{} user=clerk", key_value(&cluster));
        let statements = [
            (
                READS,
                Rows,
                Itself,
                "SELECT id, email FROM {s}users WHERE id = 1",
            ),
            (READS, Rows, Itself, "SELECT * FROM {s}photos FOR UPDATE"),
            (
                WRITES,
                Effect,
                Itself,
                "INSERT INTO {s}users (email) VALUES ('by a clerk')",
            ),
            (
                WRITES,
                Effect,
                Itself,
                "UPDATE {s}users SET n = n + 1 WHERE id = 1",
            ),
            (WRITES, Effect, Itself, "DELETE FROM {s}photos WHERE id = 1"),
            (
                COPY,
                CopyIn,
                Itself,
                "COPY {s}photos (id, title) FROM STDIN",
            ),
            (CALLS, Rows, Itself, "SELECT {s}next_id()"),
            (SEQUENCES, Rows, Otherwise, "SELECT nextval('{s}tickets')"),
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

    /// A transaction that has read a table holds ACCESS SHARE on it, so that reading it again needs
    /// no new lock: it may continue to read the old copy, as it was at the fence. It can write
    /// nothing that depends on that to the shard.
    async fn a_transaction_may_read_on(version) {
        let (cluster, client, mut fence) = ready(version).await;
        for begin in [
            "BEGIN",
            "BEGIN ISOLATION LEVEL REPEATABLE \
            READ",
            "BEGIN ISOLATION LEVEL \
            SERIALIZABLE",
        ] {
            let reader = cluster.app(0).await;
            let read = format!("SELECT sum(n) FROM {SCHEMA}.users");
            let prepared = reader.prepare(&read).await.unwrap();
            reader.batch_execute(begin).await.unwrap();
            let at_first: i64 = reader.query_one(&prepared, &[]).await.unwrap().get(0);
            client
                .batch_execute(&format!("UPDATE {SCHEMA}.users SET n = n + 1"))
                .await
                .unwrap();
            let at_fence: i64 = client.query_one(&read, &[]).await.unwrap().get(0);
            // The barrier ignores readers, and the predicate locks of SERIALIZABLE ones.
            fence.close().await;
            let before = everything(&client, LEFT).await;
            let expected = if begin == "BEGIN" { at_fence } else { at_first };
            match reader.query_one(&prepared, &[]).await {
                Ok(row) => assert_eq!(row.get::<_, i64>(0), expected, "{begin}"),
                Err(error) => assert!(leads_to_signpost(&error), "{begin}: {error:?}"),
            }
            let write = format!("UPDATE {SCHEMA}.users SET n = 0");
            assert_eq!(
                code(&reader.batch_execute(&write).await.unwrap_err()),
                "SH001",
                "{begin}"
            );
            reader.batch_execute("ROLLBACK").await.unwrap();
            assert_eq!(
                code(&reader.query_one(&prepared, &[]).await.unwrap_err()),
                "SH001",
                "{begin}"
            );
            assert_eq!(everything(&client, LEFT).await, before);
            fence.unfence().await.unwrap();
        }
    }

    /// What is answered without an error where the shard was: no answer has a row of the old copy,
    /// and none is written there.
    async fn what_is_answered_without_an_error(version) {
        let (_cluster, client, mut fence) = ready(version).await;
        fence.close().await;
        let before = everything(&client, LEFT).await;
        for sql in ANSWERED.iter().flat_map(|(_, statements)| *statements) {
            client.batch_execute("BEGIN").await.unwrap();
            let ran = client.simple_query(&sql.replace("{s}", SCHEMA)).await;
            assert!(ran.is_ok(), "{sql}: {ran:?}");
            client
                .batch_execute("ROLLBACK; DEALLOCATE ALL")
                .await
                .unwrap();
        }
        assert_eq!(everything(&client, LEFT).await, before);
        let told = rows_of("What is answered without an error");
        assert_eq!(
            ANSWERED
                .iter()
                .map(|(what, _)| *what)
                .collect::<BTreeSet<_>>(),
            told.keys().map(String::as_str).collect()
        );
    }

    /// A cursor that was open at the swap continues to read what it was opened for.
    async fn a_cursor_reads_on(version) {
        let (cluster, client, mut fence) = ready(version).await;
        let reader = cluster.app(0).await;
        reader
            .batch_execute(&format!(
                "BEGIN; DECLARE c CURSOR FOR SELECT id FROM {SCHEMA}.users; \
                FETCH 1 FROM c"
            ))
            .await
            .unwrap();
        fence.close().await;
        let before = everything(&client, LEFT).await;
        assert_eq!(
            reader.query("FETCH ALL FROM c", &[]).await.unwrap().len(),
            4
        );
        let write = format!("UPDATE {SCHEMA}.users SET n = 0");
        assert_eq!(
            code(&reader.batch_execute(&write).await.unwrap_err()),
            "SH001"
        );
        assert_eq!(everything(&client, LEFT).await, before);
    }

    /// A statement without a table takes no lock and is bound to its sequence by OID. In a
    /// transaction that began before the swap it takes one more number of the old copy, or replaces
    /// a function there, in vain. The target's sequences start well ahead of the old copy's, and
    /// the number cannot be written to the old copy. The next statement meets the signpost.
    async fn what_names_no_table_is_not_told(version) {
        let (cluster, client, mut fence) = ready(version).await;
        let url = cluster.server(0).url();
        let sessions = sessions(&url, WITHOUT_TABLES, Named::BySchema, Way::RepeatableRead).await;
        fence.close().await;
        let before = everything(&client, LEFT).await;
        for session in &sessions {
            session.run().await.unwrap();
            let insert = format!("INSERT INTO {SCHEMA}.users (id) VALUES (1000)");
            assert!(leads_to_signpost(
                &session.client.batch_execute(&insert).await.unwrap_err()
            ));
            session.client.batch_execute("ROLLBACK").await.unwrap();
        }
        let tables = |all: &[(String, String)]| {
            all.iter()
                .filter(|(name, _)| !["ids", "tickets"].contains(&name.as_str()))
                .cloned()
                .collect::<Vec<_>>()
        };
        assert_eq!(tables(&everything(&client, LEFT).await), tables(&before));
    }
}

/// A connection string to which parameters can be added.
fn key_value(cluster: &TestCluster) -> String {
    format!(
        "host=127.0.0.1 port={} dbname=app",
        cluster.server(0).port()
    )
}
