//! What cannot be carried is refused by name, all reasons at once.

use crate::mover::Refusal;
use crate::mover::definition::ddl::{Target, create};
use crate::mover::preflight::target::missing_at_target;

use super::{facts, run, version};
use crate::server_tests::servers::Servers;

const TARGET: Target<'_> = Target {
    schema: "shard_0007__incoming",
    final_schema: "shard_0007",
    version: 180000,
    closed: &[],
};

/// What is done as the owner, and the refusal for it: the object, and a part of the reason.
const REFUSED: &[(&str, &str, &str)] = &[
    (
        "CREATE TABLE t (id int); ALTER TABLE t FORCE ROW LEVEL \
        SECURITY",
        "table t",
        "row level security",
    ),
    (
        "CREATE TABLE t (id int, a int); CREATE STATISTICS public.s ON id, a FROM t",
        "statistics object public.s",
        "is a statistics object, which",
    ),
    (
        "CREATE EXTENSION citext SCHEMA \
        shard_0007",
        "extension citext",
        "is an extension, which is not carried",
    ),
    (
        "CREATE EXTENSION citext SCHEMA shard_0007",
        "type citext",
        "extension member",
    ),
    (
        "CREATE OPERATOR ### (LEFTARG = int, RIGHTARG = int, FUNCTION = int4pl, COMMUTATOR = @@@)",
        "operator @@@(integer,integer)",
        "is a declared operator, which",
    ),
    (
        "CREATE TYPE public.a AS (x int); CREATE FUNCTION f(public.a) RETURNS int LANGUAGE sql AS \
            'SELECT 1';
         CREATE CAST (public.a AS int) WITH FUNCTION f(public.a)",
        "cast from public.a to integer",
        "is a cast, which is not carried",
    ),
    (
        "CREATE TYPE e AS ENUM ('a'); CREATE TABLE t (c e) PARTITION BY HASH (c)",
        "partitioned table t",
        "by the hash of an enum",
    ),
    (
        "CREATE TYPE e AS ENUM ('a'); CREATE TABLE t (i int, c e[]) PARTITION BY HASH (i, c)",
        "partitioned table t",
        "by the hash of an enum",
    ),
    (
        "CREATE TABLE public.t (id int); CREATE TABLE u () INHERITS \
        (public.t)",
        "table u",
        "inherits a table of another",
    ),
    (
        "CREATE TABLE t (id int); CREATE TABLE public.u () INHERITS \
        (t)",
        "table t",
        "or is inherited by one",
    ),
    (
        "CREATE TABLE t (id int); REVOKE INSERT ON t FROM app",
        "table t",
        "does not give its owner INSERT, which a move needs",
    ),
    (
        "REVOKE CREATE ON SCHEMA shard_0007 FROM app",
        "schema",
        "does not give its owner CREATE",
    ),
    (
        // A view that is read while another is filled runs while the shard's name belongs to
        // another schema.
        "CREATE TABLE s (id int);
         CREATE FUNCTION f() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM shard_0007.s';
         CREATE VIEW v AS SELECT f() AS n; CREATE MATERIALIZED VIEW t AS SELECT n FROM v",
        "view v",
        "its text names shard_0007",
    ),
    (
        "CREATE TABLE t (c regclass[])",
        "column t.c",
        "OIDs of this host",
    ),
    (
        "CREATE DOMAIN d AS regtype; CREATE TABLE t (c d)",
        "type d",
        "OIDs of this host",
    ),
    (
        "CREATE TYPE d AS (a int, b regrole[]); CREATE TABLE t (c d)",
        "type d",
        "OIDs of this host",
    ),
    (
        "CREATE TABLE public.u (id int PRIMARY KEY); CREATE TABLE t (id int REFERENCES public.u)",
        "constraint t_id_fkey on t",
        "outside",
    ),
    (
        "CREATE TABLE s (id int); CREATE FUNCTION f(int) RETURNS boolean
         LANGUAGE sql AS 'SELECT count(*) > 0 FROM shard_0007.s';
         CREATE TABLE t (id int CHECK (f(id)))",
        "constraint t_id_check on t",
        "its text names shard_0007",
    ),
    (
        // The name is in what the function calls, and in a setting.
        "CREATE FUNCTION g() RETURNS int LANGUAGE sql IMMUTABLE SET search_path = shard_0007 AS \
            'SELECT 1';
         CREATE FUNCTION f(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT g()';
         CREATE TABLE t (id int, a int GENERATED ALWAYS AS (f(id)) STORED)",
        "table t",
        "runs function g()",
    ),
    (
        "CREATE FUNCTION f(int) RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT \
            length('\"shard_0007\".x') $$;
         CREATE TABLE t (id int); CREATE INDEX i ON t (id) WHERE f(id) > 0",
        "index i",
        "its text names shard_0007",
    ),
    (
        "CREATE FUNCTION f(int) RETURNS boolean LANGUAGE sql AS 'SELECT \
            to_regclass(''shard_0007.x'') IS NULL';
         CREATE DOMAIN d AS int CHECK (f(VALUE))",
        "type d",
        "its text names shard_0007",
    ),
];

/// What would have other values, or none, at the target.
const REFUSED_OF_VALUES: &[(&str, &str, &str)] = &[
    (
        "CREATE TABLE t (id int, o oid GENERATED ALWAYS AS (tableoid) STORED)",
        "column t.o",
        "is computed from tableoid, which is an OID of this host",
    ),
    (
        "CREATE DOMAIN d AS int; CREATE TABLE t (v d); INSERT INTO t VALUES (-5);
         ALTER DOMAIN d ADD CONSTRAINT pos CHECK (VALUE > 0) NOT VALID",
        "constraint pos on d",
        "is a domain's and not valid",
    ),
    (
        "CREATE FUNCTION h(int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT $1 > 0';
         CREATE FUNCTION ok(int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN h($1); \
         END';
         CREATE TABLE t (id int CHECK (ok(id)))",
        "constraint t_id_check on t",
        "runs function ok(integer) while rows are copied, which finds h(integer) by the \
            search_path",
    ),
    (
        "CREATE FUNCTION h(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1';
         CREATE FUNCTION g(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT \"h\" ($1)';
         CREATE TABLE t (id int, v int GENERATED ALWAYS AS (g(id)) STORED)",
        "table t",
        "runs function g(integer)",
    ),
    (
        "CREATE FUNCTION h(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1';
         CREATE FUNCTION g(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT h($1)';
         CREATE FUNCTION f(int) RETURNS int LANGUAGE sql IMMUTABLE RETURN g($1);
         CREATE TABLE t (id int CHECK (f(id) > 0))",
        "constraint t_id_check on t",
        "runs function g(integer)",
    ),
];

/// What only a superuser can create.
const REFUSED_OF_SUPERUSER: &[(&str, &str, &str)] = &[
    (
        "ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA shard_0007 GRANT SELECT ON TABLES TO \
            PUBLIC",
        "schema",
        "has default privileges for what postgres makes",
    ),
    ("CREATE TABLE t (id int)", "table t", "belongs to postgres, but pgshard connects as app"),
    (
        "CREATE FUNCTION f() RETURNS float8 LANGUAGE internal AS 'dpi'; ALTER FUNCTION f() OWNER \
            TO app",
        "function f()",
        "written in internal",
    ),
    (
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql LEAKPROOF AS 'SELECT 1'; ALTER FUNCTION f() \
            OWNER TO app",
        "function f()",
        "LEAKPROOF",
    ),
    ("CREATE TYPE a; ALTER TYPE a OWNER TO app", "type a", "base type"),
    (
        "CREATE EXTENSION postgres_fdw; CREATE SERVER s FOREIGN DATA WRAPPER postgres_fdw;
         CREATE FOREIGN TABLE t (id int) SERVER s;
         ALTER FOREIGN TABLE t OWNER TO app",
        "foreign table t",
        "is not carried",
    ),
    (
        "CREATE ROLE reader; CREATE ROLE lender; GRANT USAGE, CREATE ON SCHEMA shard_0007 TO lender;
         CREATE TABLE t (id int);
         ALTER TABLE t OWNER TO app; GRANT SELECT ON t TO lender WITH GRANT OPTION; SET ROLE lender;
         GRANT SELECT ON t TO reader; RESET ROLE",
        "table t",
        "has a SELECT that was granted by lender, not",
    ),
];

fn assert_refused(refusals: &[Refusal], object: &str, reason: &str, sql: &str) {
    let found = refusals
        .iter()
        .any(|refusal| refusal.object.contains(object) && refusal.reason.contains(reason));
    assert!(found, "{sql}\n{refusals:#?}");
    assert!(refusals.iter().all(|refusal| !refusal.remedy.is_empty()));
}

on_each_version! {
    /// Each by itself, with the object, the reason and a remedy.
    async fn what_cannot_be_carried_is_refused(version) {
        let cluster = Servers::start(version, 1);
        let (mut app, postgres) = (cluster.app(0).await, cluster.superuser(0).await);
        run(&postgres, "GRANT CREATE ON SCHEMA public TO app").await;
        let own = REFUSED.iter().chain(REFUSED_OF_VALUES);
        let cases = own
            .map(|case| (&app, case))
            .chain(REFUSED_OF_SUPERUSER.iter().map(|case| (&postgres, case)));
        let cases: Vec<_> = cases
            .map(|(client, case)| (std::ptr::eq(client, &app), case))
            .collect();
        for (as_app, (sql, object, reason)) in cases {
            run(&app, "CREATE SCHEMA shard_0007").await;
            let client = if as_app { &app } else { &postgres };
            run(
                client,
                &format!("SET search_path = shard_0007; {sql}; RESET search_path"),
            )
            .await;
            let facts = facts(&mut app, "shard_0007").await;
            assert_refused(&create(&facts, &TARGET).unwrap_err(), object, reason, sql);
            run(
                &postgres,
                "DROP SCHEMA shard_0007 CASCADE; DROP TABLE IF EXISTS public.u",
            )
            .await;
        }
    }

    /// Two functions that are bound to each other's types, for example, cannot be created in any
    /// order.
    async fn a_circle_is_refused(version) {
        let cluster = Servers::start(version, 1);
        let mut app = cluster.app(0).await;
        run(
            &app,
            "CREATE SCHEMA shard_0007; SET search_path = shard_0007; CREATE DOMAIN d AS int;
            CREATE FUNCTION f(d) RETURNS boolean LANGUAGE sql AS 'SELECT true'; ALTER DOMAIN d ADD \
            CHECK (f(VALUE))",
        )
        .await;
        let facts = facts(&mut app, "shard_0007").await;
        let refusals = create(&facts, &TARGET).unwrap_err();
        assert_refused(
            &refusals,
            "type d, function f(d)",
            "need each other",
            "circle",
        );
    }

    /// An index that CONCURRENTLY failed to build cannot be carried.
    async fn an_invalid_index_is_refused(version) {
        let cluster = Servers::start(version, 1);
        let mut app = cluster.app(0).await;
        run(
            &app,
            "CREATE SCHEMA shard_0007; CREATE TABLE shard_0007.t (id int); INSERT INTO \
                shard_0007.t VALUES (1), (1)",
        )
        .await;
        app.batch_execute(
            "CREATE UNIQUE INDEX CONCURRENTLY i ON shard_0007.t \
            (id)",
        )
        .await
        .unwrap_err();
        let facts = facts(&mut app, "shard_0007").await;
        assert_refused(
            &create(&facts, &TARGET).unwrap_err(),
            "index i",
            "is not valid",
            "invalid",
        );
    }

    /// What is lost without harm is mentioned.
    async fn harmless_losses_are_noted(version) {
        let cluster = Servers::start(version, 1);
        let mut app = cluster.app(0).await;
        run(
            &app,
            "CREATE SCHEMA shard_0007; CREATE TABLE shard_0007.t (id int); \
             CREATE PUBLICATION p FOR TABLE shard_0007.t",
        )
        .await;
        let facts = facts(&mut app, "shard_0007").await;
        let notes = create(&facts, &TARGET).unwrap().notes;
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(
            notes.iter().any(|note| note.contains("publication")),
            "{notes:?}"
        );
    }

    /// What the schema uses from outside must be at the target, and nothing may be added there.
    async fn what_the_target_lacks(version) {
        let cluster = Servers::start(version, 2);
        let mut source = cluster.app(0).await;
        run(
            &cluster.superuser(0).await,
            "GRANT CREATE ON SCHEMA public TO app; CREATE ROLE \
            reader",
        )
        .await;
        run(
            &source,
            "CREATE EXTENSION citext SCHEMA public; CREATE FUNCTION public.f(citext) RETURNS int
            LANGUAGE sql IMMUTABLE AS 'SELECT 1';
            CREATE TABLE public.shared (id int); CREATE COLLATION public.mine FROM \"C\";
            CREATE TYPE public.colour AS ENUM ('red'); CREATE SCHEMA shard_0007; SET search_path = \
            shard_0007, public;
            CREATE TYPE \"Own type\" AS ENUM ('x');
            CREATE TABLE t (a citext, b int DEFAULT f('x'), c colour[], d text COLLATE mine, \
            e \"Own type\"[],
                EXCLUDE (a WITH =));
            CREATE VIEW v AS SELECT * FROM shared; GRANT SELECT ON t TO reader",
        )
        .await;
        let facts = facts(&mut source, "shard_0007").await;
        assert!(missing_at_target(&source, &facts).await.unwrap().is_empty());
        let target = cluster.app(1).await;
        let missing = missing_at_target(&target, &facts).await.unwrap();
        for what in [
            "type public.citext",
            "function public.f(public.citext)",
            "type public.colour",
            "collation public.mine",
            "table public.shared",
            "role reader",
        ] {
            assert!(
                missing.iter().any(|refusal| refusal.reason.contains(what)),
                "{what}: {missing:#?}"
            );
        }
        assert!(
            missing
                .iter()
                .any(|refusal| refusal.remedy.contains("CREATE EXTENSION citext")),
            "{missing:#?}"
        );
        assert!(
            missing
                .iter()
                .all(|refusal| !refusal.reason.contains("Own type")),
            "{missing:#?}"
        );
        run(
            &source,
            "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC",
        )
        .await;
        let added = missing_at_target(&source, &facts).await.unwrap();
        assert_refused(
            &added,
            "the connecting role",
            "default privileges",
            "default privileges",
        );
    }
}

/// What only newer versions know is refused for older targets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_older_target_does_not_know() {
    let cluster = Servers::start(18, 1);
    let mut app = cluster.app(0).await;
    run(&cluster.superuser(0).await, "CREATE ROLE reader").await;
    run(
        &app,
        "CREATE SCHEMA shard_0007; SET search_path = shard_0007;
         CREATE TABLE t (id int PRIMARY KEY, a int GENERATED ALWAYS AS (id + 1), b int CHECK (b > \
         0) NOT ENFORCED,
             c int);
         CREATE UNIQUE INDEX i ON t (c) NULLS NOT DISTINCT; ALTER TABLE t ADD CONSTRAINT n NOT \
         NULL c NOT VALID;
         CREATE FUNCTION f() RETURNS int LANGUAGE sql RETURN 1; GRANT MAINTAIN ON t TO reader;
         CREATE VIEW v WITH (security_invoker = true) AS SELECT 1 AS x",
    )
    .await;
    assert!(version(&app).await >= 180000);
    let facts = facts(&mut app, "shard_0007").await;
    let thirteen = create(
        &facts,
        &Target {
            version: 130000,
            closed: &[],
            ..TARGET
        },
    )
    .unwrap_err();
    for (object, reason) in [
        ("column t.a", "virtual"),
        ("constraint t_b_check on t", "NOT ENFORCED"),
        ("index i", "NULLS NOT DISTINCT"),
        ("column t.c", "NOT NULL that is not valid"),
        ("function f()", "SQL standard form"),
        ("table t", "MAINTAIN"),
        ("view v", "security_invoker"),
    ] {
        assert_refused(&thirteen, object, reason, reason);
    }
    let eighteen = create(&facts, &TARGET).unwrap_err();
    assert_eq!(eighteen.len(), 1, "{eighteen:#?}");
}
