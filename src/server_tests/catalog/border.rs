//! Whatever outside a shard is bound to its objects is not stopped by a fence, so it must be found
//! and named.

use crate::SchemaPrefix;
use crate::mover::definition::border::{Crossing, CrossingKind, Error, crossings};
use crate::mover::definition::ddl::{Target, create};
use crate::schema::catalog::{Namespace, search_path};
use tokio_postgres::Client;

use super::{RICH, digest, facts, roles, run};
use crate::server_tests::servers::Servers;

async fn found(client: &Client, schema: impl Into<Namespace>) -> Vec<Crossing> {
    crossings(client, &schema.into(), &SchemaPrefix::default())
        .await
        .unwrap_or_else(|error| panic!("{error}: {error:?}"))
}

/// The shard of all these tests.
const SHARD: &str = "CREATE SCHEMA shard_0007; CREATE SEQUENCE shard_0007.s; CREATE TYPE \
    shard_0007.mood AS ENUM ('x');
    CREATE TABLE shard_0007.t (id int PRIMARY KEY, a int);
    CREATE FUNCTION shard_0007.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
    CREATE FUNCTION shard_0007.g() RETURNS int LANGUAGE sql AS 'SELECT 1'";

/// What is done outside, the kind of crossing that it makes, the outside object and the inside
/// object.
const CROSSING: &[(&str, CrossingKind, &str, &str)] = &[
    (
        "CREATE FUNCTION public.bound() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) \
            FROM shard_0007.t; \
         END",
        CrossingKind::Function,
        "function public.bound()",
        "table shard_0007.t",
    ),
    (
        "CREATE VIEW public.v AS SELECT * FROM \
        shard_0007.t",
        CrossingKind::View,
        "view public.v",
        "table shard_0007.t",
    ),
    (
        "CREATE TEMPORARY VIEW temporary AS SELECT * FROM shard_0007.t",
        CrossingKind::View,
        "view pg_temp",
        "table shard_0007.t",
    ),
    (
        "CREATE MATERIALIZED VIEW public.v AS SELECT * FROM shard_0007.t",
        CrossingKind::View,
        "materialized view public.v",
        "table shard_0007.t",
    ),
    (
        "CREATE TABLE public.u (id int); CREATE RULE r AS ON INSERT TO public.u DO ALSO INSERT \
            INTO shard_0007.t \
         VALUES (NEW.id)",
        CrossingKind::View,
        "rule r on public.u",
        "table shard_0007.t",
    ),
    (
        "CREATE TABLE public.u (id int, a int) PARTITION BY RANGE (id);
         CREATE TABLE shard_0007.part PARTITION OF public.u FOR VALUES FROM (1) TO (9)",
        CrossingKind::Inheritance,
        "table public.u",
        "table shard_0007.part",
    ),
    (
        "CREATE TABLE public.u () INHERITS (shard_0007.t)",
        CrossingKind::Inheritance,
        "table public.u",
        "table shard_0007.t",
    ),
    (
        "CREATE TABLE public.u (id int PRIMARY KEY); \
         ALTER TABLE shard_0007.t ADD FOREIGN KEY (a) REFERENCES public.u ON DELETE CASCADE",
        CrossingKind::ForeignKey,
        "public.u",
        "table constraint t_a_fkey on shard_0007.t",
    ),
    (
        "CREATE TABLE public.u (id int REFERENCES shard_0007.t)",
        CrossingKind::ForeignKey,
        "table constraint u_id_fkey on public.u",
        "table shard_0007.t",
    ),
    (
        "CREATE TABLE public.u (id int DEFAULT nextval('shard_0007.s'))",
        CrossingKind::Default,
        "default value for public.u.id",
        "sequence shard_0007.s",
    ),
    (
        "CREATE TABLE public.u (id int DEFAULT shard_0007.g())",
        CrossingKind::Default,
        "default value for public.u.id",
        "function shard_0007.g()",
    ),
    (
        "CREATE TABLE public.u (id int); CREATE TRIGGER x AFTER \
         INSERT ON public.u FOR EACH ROW EXECUTE FUNCTION shard_0007.f()",
        CrossingKind::Trigger,
        "trigger x on public.u",
        "function shard_0007.f()",
    ),
    (
        "CREATE TABLE public.u (m \
        shard_0007.mood[])",
        CrossingKind::Type,
        "table public.u",
        "type shard_0007.mood",
    ),
    (
        "CREATE TABLE public.u (id int); ALTER SEQUENCE shard_0007.s OWNED BY NONE;
         ALTER TABLE public.u ADD x int DEFAULT 1;
         CREATE SEQUENCE public.global; ALTER TABLE shard_0007.t ALTER a SET DEFAULT \
         nextval('public.global')",
        CrossingKind::Default,
        "sequence public.global",
        "default value for shard_0007.t.a",
    ),
    (
        "CREATE SCHEMA shard_0008; CREATE TABLE shard_0008.t (id int); CREATE VIEW shard_0007.v AS \
            SELECT * \
         FROM shard_0008.t",
        CrossingKind::OtherShard,
        "table shard_0008.t",
        "view shard_0007.v",
    ),
    (
        "CREATE SCHEMA shard_0008__left_e3; CREATE FUNCTION shard_0008__left_e3.f() RETURNS int
         LANGUAGE sql AS 'SELECT 1';
         ALTER TABLE shard_0007.t ALTER a SET DEFAULT shard_0008__left_e3.f()",
        CrossingKind::OtherShard,
        "function shard_0008__left_e3.f()",
        "default value for shard_0007.t.a",
    ),
];

on_each_version! {
    /// Each crossing is named with both ends and a remedy, both while the schema has its name and
    /// while it has another.
    async fn every_crossing_is_found(version) {
        let cluster = Servers::start(version, 1);
        let (mut app, postgres) = (cluster.app(0).await, cluster.superuser(0).await);
        run(&postgres, "GRANT CREATE ON SCHEMA public TO app").await;
        for (sql, kind, outside, inside) in CROSSING {
            run(&app, SHARD).await;
            assert_eq!(found(&app, "shard_0007").await, []);
            let oid: u32 = app
                .query_one("SELECT 'shard_0007'::regnamespace::oid", &[])
                .await
                .unwrap()
                .get(0);
            let digested = digest(&mut app, oid).await;
            run(&app, sql).await;
            assert!(!digested.is_same(&app).await.unwrap(), "{sql}");
            let crossings = found(&app, "shard_0007").await;
            assert_eq!(crossings.len(), 1, "{sql}\n{crossings:#?}");
            let crossing = &crossings[0];
            assert_eq!(crossing.kind, *kind, "{sql}\n{crossing:?}");
            assert!(
                crossing.outside.contains(outside) && crossing.inside.contains(inside),
                "{sql}\n{crossing:?}"
            );
            run(
                &app,
                "ALTER SCHEMA shard_0007 RENAME TO shard_0007__left_e3",
            )
            .await;
            assert_eq!(found(&app, oid).await.len(), 1, "{sql}");
            run(
                &app,
                "SET client_min_messages = warning; DROP SCHEMA shard_0007__left_e3 CASCADE;
                DROP TABLE IF EXISTS public.u CASCADE;
                DROP FUNCTION IF EXISTS public.bound(); DROP SCHEMA IF EXISTS shard_0008 CASCADE;
                DROP SCHEMA IF EXISTS shard_0008__left_e3 CASCADE;
                DROP SEQUENCE IF EXISTS public.global",
            )
            .await;
        }
    }

    /// The rich schema is closed: objects of shared schemas, partitions of its own and publications
    /// are no crossings.
    async fn what_is_no_crossing(version) {
        let cluster = Servers::start(version, 1);
        roles(&cluster).await;
        run(
            &cluster.superuser(0).await,
            "GRANT CREATE ON SCHEMA public TO app",
        )
        .await;
        let app = cluster.app(0).await;
        run(&app, RICH).await;
        run(
            &app,
            "CREATE EXTENSION citext SCHEMA public; CREATE TABLE public.shared (id int);
            CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
            CREATE TABLE shard_0007.more (id public.citext PRIMARY KEY); CREATE VIEW \
            shard_0007.reading AS SELECT *
            FROM public.shared;
            CREATE TRIGGER t AFTER INSERT ON shard_0007.more FOR EACH ROW EXECUTE FUNCTION \
            public.f();
            CREATE TABLE shard_0007.parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
            CREATE TABLE shard_0007.part PARTITION OF shard_0007.parted FOR VALUES FROM (1) TO (9);
            CREATE TABLE shard_0007.refers (id int REFERENCES shard_0007.parted);
            CREATE INDEX ON shard_0007.parted (id); CREATE POLICY p ON shard_0007.more;
            ALTER DEFAULT PRIVILEGES IN SCHEMA shard_0007 GRANT SELECT ON TABLES TO PUBLIC;
            CREATE PUBLICATION p FOR TABLE shard_0007.more",
        )
        .await;
        assert_eq!(found(&app, "shard_0007").await, []);
        assert_eq!(found(&app, "shard_0007").await, []);
        let nowhere = crossings(&app, &"shard_0008".into(), &SchemaPrefix::default()).await;
        assert!(matches!(nowhere, Err(Error::NoSchema { .. })));
    }

    /// A subscription writes by OID, whatever the schema of the table is called by now.
    async fn a_subscription_is_found(version) {
        let cluster = Servers::start(version, 1);
        let (mut app, postgres) = (cluster.app(0).await, cluster.superuser(0).await);
        run(&app, SHARD).await;
        run(&app, "CREATE PUBLICATION p FOR TABLE shard_0007.t").await;
        let oid: u32 = app
            .query_one("SELECT 'shard_0007'::regnamespace::oid", &[])
            .await
            .unwrap()
            .get(0);
        let (digested, port) = (digest(&mut app, oid).await, cluster.server(0).port());
        run(
            &postgres,
            &format!(
                "CREATE SUBSCRIPTION sub CONNECTION 'host=127.0.0.1 port={port} dbname=app \
                    user=postgres'
            PUBLICATION p WITH (create_slot = false, enabled = false, slot_name = 'none_yet')"
            ),
        )
        .await;
        assert!(!digested.is_same(&app).await.unwrap());
        let crossings = found(&app, "shard_0007").await;
        assert_eq!(crossings.len(), 1, "{crossings:#?}");
        assert_eq!(
            (crossings[0].kind, crossings[0].outside.as_str()),
            (CrossingKind::Subscription, "subscription sub")
        );
        assert_eq!(crossings[0].inside, "table shard_0007.t");
        run(
            &postgres,
            "ALTER SUBSCRIPTION sub SET (slot_name = NONE); DROP SUBSCRIPTION \
            sub",
        )
        .await;
    }

    /// A name that an old signpost captures is noticed before anything is opened (here because the
    /// signpost is in a `search_path`).
    async fn a_captured_default_is_found(version) {
        let cluster = Servers::start(version, 2);
        let (mut source, mut target) = (cluster.app(0).await, cluster.app(1).await);
        run(
            &source,
            &format!(
                "{SHARD}; ALTER TABLE shard_0007.t ALTER a SET DEFAULT \
            shard_0007.g()"
            ),
        )
        .await;
        run(
            &target,
            "CREATE SCHEMA shard_0007; CREATE FUNCTION shard_0007.g() RETURNS int \
            LANGUAGE sql AS 'SELECT 2'",
        )
        .await;
        let facts = facts(&mut source, "shard_0007").await;
        let goal = Target {
            schema: "shard_0007__incoming",
            final_schema: "shard_0007",
            version: facts.version,
            closed: &[],
        };
        let creation = create(&facts, &goal).unwrap();
        let transaction = target.transaction().await.unwrap();
        run(
            transaction.client(),
            &format!(
                "SET LOCAL search_path = shard_0007, {}",
                search_path("shard_0007__incoming")
            ),
        )
        .await;
        for statement in &creation.before_data {
            run(transaction.client(), &statement.sql).await;
        }
        let incoming = Namespace::from("shard_0007__incoming");
        let crossings = crossings(&transaction, &incoming, &SchemaPrefix::default())
            .await
            .unwrap();
        assert_eq!(crossings[0].kind, CrossingKind::OtherShard);
        assert_eq!(crossings[0].outside, "function shard_0007.g()");
    }
}
