//! A schema's definition: read from the catalogs of one server, created on another, and compared.

use std::process::Command;

use crate::SchemaPrefix;
use crate::mover::definition::border::crossings;
use crate::mover::definition::ddl::{Creation, Target, create};
use crate::mover::definition::digest::CatalogDigest;
use crate::mover::definition::sequences::{SequenceValue, sequence_values, set_sequence_values};
use crate::schema::catalog::fingerprint::{differences, fingerprint};
use crate::schema::catalog::{Error, Facts, Namespace, preamble, read, stamp};
use tokio_postgres::{Client, IsolationLevel};

use super::servers::Servers;
use crate::dev::Binaries;

mod border;
mod drift;
mod not_null;
mod refusals;

const RICH: &str = include_str!("rich.sql");

/// The facts of a schema, read in a transaction of their own.
async fn facts(client: &mut Client, schema: impl Into<Namespace>) -> Facts {
    let transaction = client.transaction().await.unwrap();
    let facts = read(&transaction, &schema.into())
        .await
        .unwrap_or_else(|error| panic!("{error}: {error:?}"));
    transaction.commit().await.unwrap();
    facts
}

/// The catalog digest of a schema, taken in a transaction of its own.
async fn digest(client: &mut Client, schema: u32) -> CatalogDigest {
    let transaction = client
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead)
        .start()
        .await
        .unwrap();
    let digest = CatalogDigest::take(&transaction, schema).await.unwrap();
    transaction.commit().await.unwrap();
    digest
}

async fn version(client: &Client) -> u32 {
    let row = client
        .query_one("SELECT current_setting('server_version_num')::int", &[])
        .await
        .unwrap();
    row.get::<_, i32>(0) as u32
}

/// Runs SQL; a failure names the statement.
async fn run(client: &Client, sql: &str) {
    if let Err(error) = client.batch_execute(sql).await {
        let detail = error.as_db_error().map(|error| format!("{error:?}"));
        panic!("{error}: {sql}\n{detail:?}");
    }
}

/// Roles that the rich schema grants to.
async fn roles(cluster: &Servers) {
    run(
        &cluster.superuser(0).await,
        "CREATE ROLE reader; CREATE ROLE writer",
    )
    .await;
}

/// Creates the schema as a move does: under another name, in a transaction with the preamble.
async fn make(client: &mut Client, creation: &Creation, schema: &str) {
    for statements in [&creation.before_data, &creation.after_data] {
        let transaction = client.transaction().await.unwrap();
        transaction.batch_execute(&preamble(schema)).await.unwrap();
        for statement in statements {
            let (before, after) = statement.path.clone().unwrap_or_default();
            let sql = format!("{before}; {}; {after}", statement.sql);
            if let Err(error) = transaction.batch_execute(&sql).await {
                panic!(
                    "{}: {}\n{:?}",
                    statement.what,
                    statement.sql,
                    error.as_db_error()
                );
            }
        }
        transaction.commit().await.unwrap();
    }
}

/// pg_dump's output for the schema, without comments and settings, the statements sorted.
fn dumped(url: &str) -> Vec<String> {
    let program = Binaries::of_major(18).unwrap().program("pg_dump");
    let dump = Command::new(program)
        .args(["--schema-only", "--schema=shard_0007", "--dbname", url])
        .output()
        .unwrap();
    assert!(
        dump.status.success(),
        "{}",
        String::from_utf8_lossy(&dump.stderr)
    );
    let text = String::from_utf8(dump.stdout).unwrap();
    let said = |line: &&str| {
        !["--", "SET ", "\\", "SELECT pg_catalog.set_config"]
            .iter()
            .any(|no| line.starts_with(no))
    };
    let text = text
        .lines()
        .filter(said)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("\n");
    let mut statements: Vec<String> = text.split(";\n").map(str::to_owned).collect();
    statements.sort();
    statements
}

/// Carries the rich schema from one server to the other, past an old signpost of the same name, and
/// compares.
async fn carry(source: &Servers, target: &Servers) {
    roles(source).await;
    if !std::ptr::eq(source, target) {
        roles(target).await;
    }
    let (mut from, mut to) = (source.app(0).await, target.app(target.count() - 1).await);
    if std::ptr::eq(source, target) {
        run(
            &target.superuser(1).await,
            "CREATE ROLE reader; CREATE ROLE writer",
        )
        .await;
    }
    run(&from, RICH).await;
    let before = facts(&mut from, "shard_0007").await;
    let dumped_before = dumped(&source.server(0).url());

    // Everything in it has a name that the shard has too: a look-up by name would find it.
    run(
        &to,
        "CREATE SCHEMA shard_0007;
         CREATE TYPE shard_0007.mood AS ENUM ('wrong');
         CREATE SEQUENCE shard_0007.id_sequence;
         CREATE FUNCTION shard_0007.next_id() RETURNS bigint LANGUAGE sql AS 'SELECT -1::bigint';
         CREATE FUNCTION shard_0007.lower(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT \
         NULL::text';
         CREATE FUNCTION shard_0007.shout(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT \
         NULL::text';
         CREATE VIEW shard_0007.users AS SELECT 1 AS id",
    )
    .await;
    let goal = Target {
        schema: "shard_0007__incoming",
        final_schema: "shard_0007",
        version: version(&to).await,
        closed: &[],
    };
    let creation = create(&before, &goal).unwrap_or_else(|refusals| panic!("{refusals:#?}"));
    assert_eq!(creation.notes, Vec::<String>::new());
    make(&mut to, &creation, "shard_0007__incoming").await;
    let incoming = Namespace::from("shard_0007__incoming");
    assert_eq!(
        crossings(&to, &incoming, &SchemaPrefix::default())
            .await
            .unwrap(),
        []
    );

    let made = facts(&mut to, "shard_0007__incoming").await;
    assert_eq!(report(&before, &made), "");
    run(
        &to,
        "ALTER SCHEMA shard_0007 RENAME TO shard_0007__signpost_e2",
    )
    .await;
    run(
        &to,
        "ALTER SCHEMA shard_0007__incoming RENAME TO shard_0007",
    )
    .await;
    let after = facts(&mut to, made.oid).await;
    assert_eq!(report(&before, &after), "");
    assert_eq!(fingerprint(&before), fingerprint(&after));
    assert!(differences(&before, &after).is_empty());

    // A second round trip gives the same, so the first was not equal only in its deparsed text.
    let again = create(&after, &goal).unwrap_or_else(|refusals| panic!("{refusals:#?}"));
    if version(&from).await == version(&to).await {
        assert_eq!(creation, again);
    }

    // PostgreSQL's own tool finds no difference either.
    if version(&from).await == version(&to).await {
        let dumped_after = dumped(&target.server(target.count() - 1).url());
        let only = |these: &[String], those: &[String]| {
            these
                .iter()
                .filter(|one| !those.contains(one))
                .cloned()
                .collect::<Vec<_>>()
        };
        let (lost, new) = (
            only(&dumped_before, &dumped_after),
            only(&dumped_after, &dumped_before),
        );
        assert_eq!((lost, new), (Vec::new(), Vec::new()));
        assert_eq!(dumped_before.len(), dumped_after.len());
    }

    // It works: defaults from functions, identities, serials and sequences; generated columns;
    // checks; keys.
    run(
        &to,
        "ALTER SCHEMA shard_0007__signpost_e2 RENAME TO elsewhere; DROP SCHEMA elsewhere CASCADE",
    )
    .await;
    let insert = "INSERT INTO shard_0007.users (name) VALUES ('Ann')
        RETURNING id, number, other, serial, name_upper, name_lower, added, state::text";
    let row = to.query_one(insert, &[]).await.unwrap();
    assert_eq!(
        (
            row.get::<_, i64>(0),
            row.get::<_, i32>(1),
            row.get::<_, i16>(2)
        ),
        (1000, 10, 1)
    );
    assert_eq!(
        (
            row.get::<_, i64>(3),
            row.get::<_, &str>(4),
            row.get::<_, &str>(5)
        ),
        (1, "ANN!", "ann")
    );
    assert_eq!((row.get::<_, i32>(6), row.get::<_, &str>(7)), (100, "sad"));
    let row = to
        .query_one(
            "SELECT l, pl, shard_0007.bound_count('sad') FROM shard_0007.grown",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(
        (
            row.get::<_, &str>(0),
            row.get::<_, &str>(1),
            row.get::<_, i64>(2)
        ),
        ("mine: ann", "ann", 1)
    );
    let rows = to
        .query_one("SELECT count(*) FROM shard_0007.rows_of()", &[])
        .await
        .unwrap();
    assert_eq!(rows.get::<_, i64>(0), 1);
    let refused = to
        .execute(
            "INSERT INTO shard_0007.users (name, price) VALUES ('Bob', -1)",
            &[],
        )
        .await
        .unwrap_err();
    assert_eq!(
        refused.code().map(|code| code.code().to_owned()).as_deref(),
        Some("23514")
    );
    run(
        &to,
        "BEGIN; INSERT INTO shard_0007.\"Order's (1)\" (\"User Id\", id) VALUES (5000, \
            gen_random_uuid());
              UPDATE shard_0007.users SET id = 5000; COMMIT",
    )
    .await;
}

fn report(left: &Facts, right: &Facts) -> String {
    differences(left, right)
        .iter()
        .map(|difference| format!("{difference}\n"))
        .collect()
}

/// What changes a definition, and how the difference names it.
const CHANGES: &[(&str, &str)] = &[
    // While its row type is in use, nothing else may change a table.
    (
        "ALTER TABLE \"Order's (1)\" DROP COLUMN whole",
        "table Order's (1): column whole: users vs nothing",
    ),
    (
        "ALTER TABLE users ALTER COLUMN price TYPE numeric(12, 2)",
        "table users: column price: numeric(10,2) vs numeric(12,2)",
    ),
    (
        "ALTER TABLE users RENAME COLUMN added TO more",
        "table users: columns: ",
    ),
    (
        "ALTER TABLE users ALTER COLUMN nick SET NOT NULL",
        "table users: column nick: character varying(10)",
    ),
    (
        "ALTER TABLE users ALTER COLUMN nick SET STORAGE MAIN",
        "table users: column nick: storage: nothing vs m",
    ),
    (
        "ALTER TABLE users SET (fillfactor = 81)",
        "table users: storage parameters: ",
    ),
    (
        "ALTER TABLE users ADD late int",
        "table users: column late: nothing vs integer",
    ),
    (
        "ALTER TABLE users REPLICA IDENTITY FULL",
        "table users: replica identity: nothing vs full",
    ),
    (
        "ALTER TABLE users DISABLE TRIGGER always",
        "trigger always on users: enabled: A vs D",
    ),
    (
        "ALTER TABLE users ENABLE ROW LEVEL SECURITY",
        "table users: row security: nothing vs is there",
    ),
    (
        "ALTER TABLE users FORCE ROW LEVEL SECURITY",
        "table users: forced row security: nothing vs is there",
    ),
    (
        "ALTER POLICY every ON marked USING (true)",
        "policy every on marked: permissive for * to PUBLIC vs ",
    ),
    (
        "ALTER STATISTICS \"Both \"\"s\"\"\" SET STATISTICS 78",
        "statistics Both \"s\": target: 77 vs 78",
    ),
    ("ALTER TYPE mood ADD VALUE 'new'", "type mood: "),
    (
        "ALTER SEQUENCE id_sequence CACHE 7",
        "sequence id_sequence: ",
    ),
    (
        "ALTER TABLE users VALIDATE CONSTRAINT unchecked",
        "constraint unchecked on users: ",
    ),
    (
        "CREATE OR REPLACE VIEW united AS SELECT id FROM marked UNION ALL SELECT id FROM users",
        "view united: query: ",
    ),
    (
        "CREATE OR REPLACE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'",
        "function touch(): ",
    ),
    (
        "COMMENT ON TABLE users IS 'others'",
        "table users: comment: people vs others",
    ),
    (
        "REVOKE SELECT ON users FROM reader",
        "table users: SELECT granted reader: is there vs nothing",
    ),
    (
        "GRANT SELECT (nick) ON users TO reader",
        "table users: column nick: SELECT granted reader: nothing vs is there",
    ),
    (
        "REVOKE USAGE ON SCHEMA shard_0007 FROM reader",
        "schema: USAGE granted reader: is there vs nothing",
    ),
    (
        "DROP INDEX users_gin",
        "index users_gin: on users USING gin (tags) vs nothing",
    ),
    (
        "CREATE STATISTICS s ON id, name FROM users",
        "statistics s: nothing vs CREATE STATISTICS s ",
    ),
    (
        "ALTER TABLE events DETACH PARTITION events_2020",
        "table events_2020: partition: of events FOR VALUES",
    ),
    (
        "ALTER TABLE events ATTACH PARTITION events_2020 FOR VALUES FROM ('2020-02-01') TO \
            ('2021-01-01')",
        "table events_2020: partition: nothing vs of events FOR VALUES FROM ('2020-02-01')",
    ),
    (
        "CREATE TABLE more PARTITION OF events_of_events DEFAULT",
        "table more: partition: nothing vs of events_of_events DEFAULT",
    ),
    (
        "CREATE INDEX i ON events_rest_0 (mood); CREATE INDEX j ON ONLY events_rest (mood)",
        "index j: not valid: nothing vs is there",
    ),
    (
        "ALTER INDEX j ATTACH PARTITION i",
        "index i: attached to: nothing vs index j",
    ),
    (
        "ALTER TABLE events_rest_1 DISABLE TRIGGER on_events",
        "trigger on_events on events_rest_1: enabled: O vs D",
    ),
    (
        "CREATE RULE r AS ON INSERT TO marked DO NOTHING",
        "rule r on marked: nothing vs CREATE RULE r AS",
    ),
    (
        "ALTER TABLE marked ENABLE RULE never",
        "rule never on marked: enabled: D vs O",
    ),
    (
        "ALTER TEXT SEARCH DICTIONARY \"Own words\" (StopWords = 'danish')",
        "text search dictionary Own words: (TEMPLATE = pg_catalog.snowball, language = 'english', \
            stopwords =",
    ),
    (
        "ALTER TEXT SEARCH CONFIGURATION \"Own search\" DROP MAPPING FOR email",
        "text search configuration Own search: mappings: ",
    ),
    (
        "ALTER COLLATION bytes RENAME TO octets",
        "collation octets: nothing vs (PROVIDER = libc",
    ),
    (
        "ALTER DEFAULT PRIVILEGES IN SCHEMA shard_0007 GRANT UPDATE ON TABLES TO reader",
        "schema: UPDATE on TABLES by default to reader: nothing vs is there",
    ),
    (
        "ALTER OPERATOR <<~ (mood, mood) SET (RESTRICT = NONE)",
        "operator <<~(mood, mood): (FUNCTION = sadder, ",
    ),
    (
        "DROP OPERATOR === (int, int)",
        "operator ===(integer, integer): (FUNCTION = pg_catalog.int4eq",
    ),
    (
        "DROP CAST (users AS mood)",
        "cast (users AS mood): WITH FUNCTION mood_of(users) vs nothing",
    ),
    (
        "CREATE CAST (users AS text) WITH INOUT AS IMPLICIT",
        "cast (users AS text): nothing vs WITH INOUT AS IMPLICIT",
    ),
    (
        "ALTER CONVERSION mine RENAME TO ours",
        "conversion mine: FOR 'LATIN1' TO 'UTF8' FROM iso8859_1_to_utf8 vs ",
    ),
    (
        "ALTER TABLE strangers NO INHERIT ancestors",
        "table strangers: inherits: ancestors vs nothing",
    ),
    ("ALTER TABLE typed NOT OF", "table typed: of type: "),
    (
        "ALTER TABLE fleeting SET LOGGED",
        "table fleeting: unlogged: is there vs nothing",
    ),
    (
        "ALTER SEQUENCE fleeting_numbers SET LOGGED",
        "sequence fleeting_numbers: ",
    ),
    (
        "CREATE POLICY p ON users",
        "policy p on users: nothing vs permissive for * to PUBLIC",
    ),
];

on_each_version! {
    /// Everything in the rich schema is carried, and completely.
    async fn a_schema_is_carried(version) {
        let cluster = Servers::start(version, 2);
        carry(&cluster, &cluster).await;
    }

    /// The name is not in the fingerprint; everything that a statement can change is, and the
    /// difference names it.
    async fn the_fingerprint_sees_changes(version) {
        let cluster = Servers::start(version, 1);
        roles(&cluster).await;
        let mut client = cluster.app(0).await;
        run(&client, RICH).await;
        let before = facts(&mut client, "shard_0007").await;
        // Moves that are kept have recorded such ones. If the definition is the same as ever, and
        // its fingerprint is not, `fingerprint::VERSION` has to be another, too.
        let digits: String = fingerprint(&before).record().chars().take(16).collect();
        if [15, 18].contains(&version) {
            assert_eq!(digits, "4e6a625f17443035");
        }
        run(
            &client,
            "ALTER SCHEMA shard_0007 RENAME TO shard_0007__left_e3",
        )
        .await;
        let renamed = facts(&mut client, before.oid).await;
        assert_eq!(report(&before, &renamed), "");
        assert_eq!(fingerprint(&before), fingerprint(&renamed));
        run(
            &client,
            "ALTER SCHEMA shard_0007__left_e3 RENAME TO shard_0007",
        )
        .await;
        run(
            &client,
            "INSERT INTO shard_0007.users (name) VALUES ('Ann')",
        )
        .await;
        run(&client, "SET search_path = shard_0007, public").await;
        for &(change, expected) in CHANGES {
            let (stamped, before) = (
                stamp(&client, renamed.oid).await.unwrap(),
                facts(&mut client, "shard_0007").await,
            );
            assert_eq!(stamped, stamp(&client, renamed.oid).await.unwrap());
            let digested = digest(&mut client, renamed.oid).await;
            assert!(digested.is_same(&client).await.unwrap());
            run(&client, change).await;
            assert_ne!(
                stamped,
                stamp(&client, renamed.oid).await.unwrap(),
                "{change}"
            );
            assert!(!digested.is_same(&client).await.unwrap(), "{change}");
            let after = facts(&mut client, "shard_0007").await;
            let seen = report(&before, &after);
            assert!(seen.contains(expected), "{change}: {seen}");
            assert_ne!(fingerprint(&before), fingerprint(&after), "{change}");
        }
        // A publication is not part of it: the move creates one itself.
        let before = facts(&mut client, "shard_0007").await;
        let stamped = stamp(&client, renamed.oid).await.unwrap();
        run(&client, "CREATE PUBLICATION p FOR TABLE users").await;
        let digested = digest(&mut client, renamed.oid).await;
        for harmless in [
            "VACUUM shard_0007.users",
            "ANALYZE",
            "ALTER SCHEMA shard_0007 RENAME TO r",
            "ALTER SCHEMA r RENAME TO shard_0007",
        ] {
            run(&client, harmless).await;
        }
        assert_eq!(stamped, stamp(&client, renamed.oid).await.unwrap());
        assert!(digested.is_same(&client).await.unwrap());
        let after = facts(&mut client, "shard_0007").await;
        assert_eq!(report(&before, &after), "");
        // But the digest sees what a publication leaves out.
        let restricted = match version {
            ..15 => "ALTER PUBLICATION p SET TABLE users, strangers",
            _ => "ALTER PUBLICATION p SET TABLE users WHERE (id > 1)",
        };
        for change in [
            "ALTER PUBLICATION p SET (publish = 'insert')",
            restricted,
            "ALTER PUBLICATION p DROP TABLE users",
            "ALTER PUBLICATION p RENAME TO q",
            "DROP PUBLICATION q",
        ] {
            let digested = digest(&mut client, renamed.oid).await;
            run(&client, change).await;
            assert!(!digested.is_same(&client).await.unwrap(), "{change}");
        }
    }

    /// A change of a neighbour with objects that were created in between is not taken for a change
    /// of this schema.
    async fn neighbours_do_not_count(version) {
        let cluster = Servers::start(version, 1);
        let mut client = cluster.app(0).await;
        run(&client, "CREATE SCHEMA a; CREATE SCHEMA b").await;
        for table in 0..20 {
            for schema in ["a", "b"] {
                let sql = format!(
                    "CREATE TABLE {schema}.t{table} (id bigserial PRIMARY KEY, v text CHECK (v <> \
                        ''));
                     CREATE FUNCTION {schema}.f{table}() RETURNS int LANGUAGE sql AS 'SELECT 1'"
                );
                run(&client, &sql).await;
            }
        }
        let schema = facts(&mut client, "a").await.oid;
        let digested = digest(&mut client, schema).await;
        run(
            &client,
            "ALTER TABLE b.t7 ADD w int DEFAULT 1; DROP TABLE b.t8; CREATE INDEX ON b.t9 (v);
             COMMENT ON TABLE b.t10 IS 'c';
             CREATE OR REPLACE FUNCTION b.f3() RETURNS int LANGUAGE sql AS 'SELECT 2'; CREATE \
             TABLE b.new (id int)",
        )
        .await;
        assert!(digested.is_same(&client).await.unwrap());
        for own in [
            "ALTER FUNCTION a.f3() \
            STABLE",
            "DROP TABLE a.t8",
            "COMMENT ON COLUMN a.t9.v IS 'c'",
        ] {
            let digested = digest(&mut client, schema).await;
            run(&client, own).await;
            assert!(!digested.is_same(&client).await.unwrap(), "{own}");
        }
    }

    /// Values are carried whatever they are, under the name that the schema has at the time.
    async fn sequence_values_are_carried(version) {
        let cluster = Servers::start(version, 1);
        let client = cluster.app(0).await;
        run(
            &client,
            "CREATE SCHEMA s; CREATE SEQUENCE s.unused START 5; CREATE SEQUENCE s.\"it's\" CACHE 10;
            CREATE TABLE s.t (id int GENERATED ALWAYS AS IDENTITY, n serial);
             INSERT INTO s.t VALUES (DEFAULT), (DEFAULT);
            SELECT nextval('s.\"it''s\"'); CREATE SCHEMA r; CREATE SCHEMA empty;
             SELECT setval('s.t_n_seq', 9, false)",
        )
        .await;
        let oid: u32 = client
            .query_one("SELECT 's'::regnamespace::oid", &[])
            .await
            .unwrap()
            .get(0);
        run(&client, "ALTER SCHEMA s RENAME TO s__left_e1").await;
        let values = sequence_values(&client, &oid.into()).await.unwrap();
        let value = |name: &str, last_value, is_called| SequenceValue {
            name: name.to_owned(),
            last_value,
            is_called,
        };
        assert_eq!(
            values,
            [
                value("it's", 10, true),
                value("t_id_seq", 2, true),
                value("t_n_seq", 9, false),
                value("unused", 5, false)
            ]
        );
        run(
            &client,
            "CREATE SEQUENCE r.unused; \
             CREATE SEQUENCE r.\"it's\"; CREATE SEQUENCE r.t_id_seq; CREATE SEQUENCE r.t_n_seq",
        )
        .await;
        set_sequence_values(&client, "r", &values).await.unwrap();
        assert_eq!(sequence_values(&client, &"r".into()).await.unwrap(), values);
        assert_eq!(sequence_values(&client, &"empty".into()).await.unwrap(), []);
        set_sequence_values(&client, "empty", &[]).await.unwrap();
    }

    /// Outside a transaction settings do not last, and what is read would mean something else at
    /// the target.
    async fn reading_wants_a_transaction_and_leaves_no_trace(version) {
        let cluster = Servers::start(version, 1);
        let mut client = cluster.app(0).await;
        run(&client, "CREATE SCHEMA s; CREATE TABLE s.t (id int)").await;
        assert!(matches!(
            read(&client, &"s".into()).await,
            Err(Error::NoTransaction { .. })
        ));
        assert!(matches!(
            read(&client, &"nowhere".into()).await,
            Err(Error::NoSchema { .. })
        ));
        assert!(matches!(
            read(&client, &1u32.into()).await,
            Err(Error::NoSchema { .. })
        ));
        run(
            &client,
            "SET search_path = public, s; SET DateStyle = 'German'",
        )
        .await;
        let transaction = client.transaction().await.unwrap();
        read(&transaction, &"s".into()).await.unwrap();
        let row = transaction
            .query_one(
                "SELECT current_setting('search_path'), current_setting('DateStyle')",
                &[],
            )
            .await
            .unwrap();
        assert_eq!(
            (row.get::<_, &str>(0), row.get::<_, &str>(1)),
            ("public, s", "German, DMY")
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_a_newer_version() {
    carry(&Servers::start(15, 1), &Servers::start(18, 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_an_older_version() {
    carry(&Servers::start(18, 1), &Servers::start(15, 1)).await;
}
