//! Who may do what: the owner everything, a router only look and end what is over, every other role
//! nothing.

use std::time::Duration;

use tokio_postgres::Client;

use super::setup::{
    EPOCH, Fence, SCHEMA, SHARD, code, expire, host, leads_to_signpost, schema, serve, shop,
    small_shard, state,
};
use crate::support::{TestCluster, connect, control};

async fn as_role(cluster: &TestCluster, role: &str) -> Client {
    connect(&format!(
        "host=127.0.0.1 port={} dbname=app user='{role}'",
        cluster.server(0).port()
    ))
    .await
}

/// Gives a role a router's rights, as bootstrap does for those that may use a shard.
async fn grant(owner: &Client, role: &str) {
    for part in pgshard::schema::rights(
        pgshard::schema::Purpose::Router,
        role,
        pgshard::schema::Service::Plain,
    ) {
        for statement in part
            .statements
            .iter()
            .filter(|one| one.starts_with("GRANT"))
        {
            owner.batch_execute(statement).await.unwrap();
        }
    }
}

on_each_version! {
    /// A role that may connect, and nothing else, gets at nothing. A router's role takes no step of
    /// a move and reads no secret; it may look, and end a fence whose deadline has passed.
    async fn a_stranger_and_a_router(version) {
        let cluster = host(version).await;
        cluster
            .superuser(0)
            .await
            .batch_execute(
                "CREATE ROLE stranger LOGIN; CREATE ROLE web \
            LOGIN",
            )
            .await
            .unwrap();
        let client = cluster.app(0).await;
        small_shard(&client, SHARD).await;
        grant(&client, "web").await;
        let mut fence = Fence::prepare(cluster.app(0).await, SHARD).await;
        let stranger = as_role(&cluster, "stranger").await;
        let u = "'00000000-0000-0000-0000-000000000000'";
        for sql in [
            "SELECT * FROM pgshard.cluster".to_owned(),
            "SELECT lease FROM pgshard.shard".to_owned(),
            "SELECT * FROM pgshard.identity".to_owned(),
            "SELECT pgshard.look(7)".to_owned(),
            "SELECT pgshard.expire_fence(7)".to_owned(),
            format!("SELECT pgshard.finish_open(7, {u})"),
            "SELECT pgshard.migrated('0001_tables')".to_owned(),
            "SELECT pgshard.commit_durably()".to_owned(),
            "SELECT pgshard.signpost_raise(7)".to_owned(),
            "SELECT * FROM pgshard.signpost_rows(7) AS t (n integer)".to_owned(),
            "DO 'BEGIN LOCK TABLE pgshard.cluster IN ACCESS SHARE MODE; END'".to_owned(),
        ] {
            assert_eq!(
                code(&stranger.batch_execute(&sql).await.unwrap_err()),
                "42501",
                "{sql}"
            );
        }
        let web = as_role(&cluster, "web").await;
        assert_eq!(
            code(
                &web.batch_execute("SELECT lease FROM pgshard.shard")
                    .await
                    .unwrap_err()
            ),
            "42501"
        );
        let lock = "DO 'BEGIN LOCK TABLE pgshard.cluster IN ROW SHARE MODE; END'";
        assert_eq!(code(&web.batch_execute(lock).await.unwrap_err()), "42501");
        for call in [
            format!("pgshard.build_signpost(7, {u})"),
            format!("pgshard.fence(7, {u}, {u}, {u}, 1)"),
            "pgshard.barrier(1)".to_owned(),
            format!("pgshard.mark(7, {u}, 1, {u})"),
            format!("pgshard.heartbeat(7, {u}, {u}, 1, 1)"),
            format!("pgshard.unfence(7, {u}, 1)"),
            format!("pgshard.unfence(7, {u}, 1, {u})"),
            format!("pgshard.decide(7, {u}, 1, {u})"),
            format!("pgshard.open(7, {u}, 1, {u})"),
            "pgshard.open_incoming(null)".to_owned(),
        ] {
            assert_eq!(
                code(
                    &web.batch_execute(&format!("SELECT {call}"))
                        .await
                        .unwrap_err()
                ),
                "42501",
                "{call}"
            );
        }
        for table in ["move", "incoming", "ledger", "marker", "known_host"] {
            let error = web
                .batch_execute(&format!("SELECT * FROM pgshard.{table}"))
                .await
                .unwrap_err();
            assert_eq!(code(&error), "42501", "{table}");
        }
        for table in [
            "cluster",
            "shard",
            "move",
            "incoming",
            "ledger",
            "marker",
            "shard_migration",
            "control_migration",
        ] {
            let error = web
                .batch_execute(&format!("DELETE FROM pgshard.{table}"))
                .await
                .unwrap_err();
            assert_eq!(code(&error), "42501", "{table}");
        }
        let functions = "SELECT DISTINCT p.proname::text FROM pg_proc p WHERE p.pronamespace = \
            'pgshard'::regnamespace
            AND has_function_privilege('web', p.oid, 'EXECUTE') ORDER BY 1";
        let functions: Vec<String> = client
            .query(functions, &[])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect();
        assert_eq!(
            functions,
            [
                "expire_fence",
                "finish_open",
                "look",
                "migrated",
                "signpost_raise",
                "signpost_rows",
                "signpost_write"
            ]
        );

        fence.swap().await.unwrap();
        let looked = "SELECT state, epoch, peer, open_token IS NULL FROM pgshard.look(7)";
        let row = web.query_one(looked, &[]).await.unwrap();
        assert_eq!(
            (row.get(0), row.get(1), row.get(2), row.get(3)),
            ("fenced", EPOCH, "db2", true)
        );
        assert!(!expire(&web, SHARD).await.unwrap());
        fence.heartbeat(Duration::ZERO).await.unwrap();
        assert!(expire(&web, SHARD).await.unwrap());
        assert_eq!(state(&client, SHARD).await, "serving 3");
        assert_eq!(
            code(
                &web.batch_execute("SELECT * FROM shard_0007.t")
                    .await
                    .unwrap_err()
            ),
            "42501"
        );
    }

    /// Nothing that a caller can set misleads the functions that run as their owner.
    async fn a_hostile_search_path(version) {
        let cluster = host(version).await;
        let superuser = cluster.superuser(0).await;
        superuser
            .batch_execute(
                "CREATE ROLE stranger LOGIN; CREATE SCHEMA evil AUTHORIZATION \
            stranger",
            )
            .await
            .unwrap();
        let client = cluster.app(0).await;
        small_shard(&client, SHARD).await;
        grant(&client, "stranger").await;
        let mut fence = Fence::prepare(cluster.app(0).await, SHARD).await;
        let stranger = as_role(&cluster, "stranger").await;
        stranger
            .batch_execute(
                "
            CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$
            SELECT '2200-01-01'::timestamptz $$;
            CREATE FUNCTION evil.late(timestamptz, timestamptz) RETURNS boolean LANGUAGE sql AS $$ \
            SELECT true $$;
            CREATE OPERATOR evil.<= (FUNCTION = evil.late, LEFTARG = timestamptz, RIGHTARG = \
            timestamptz);
            CREATE FUNCTION evil.format(text, VARIADIC text[]) RETURNS text LANGUAGE sql AS $$
            SELECT 'DROP SCHEMA pgshard CASCADE' $$;
            CREATE TEMP TABLE pg_namespace (oid oid, nspname name);
            CREATE TEMP TABLE shard AS SELECT * FROM pgshard.cluster;
            SET search_path = evil, pg_temp, pg_catalog;
            SET plpgsql.extra_errors = 'all'; SET plpgsql.extra_warnings = 'all'",
            )
            .await
            .unwrap();
        fence.swap().await.unwrap();
        assert!(!expire(&stranger, SHARD).await.unwrap());
        let deadline: f64 = stranger
            .query_one(
                "SELECT deadline_in_ms FROM \
            pgshard.look(7)",
                &[],
            )
            .await
            .unwrap()
            .get(0);
        assert!(deadline > 0.0);
        fence.heartbeat(Duration::ZERO).await.unwrap();
        assert!(expire(&stranger, SHARD).await.unwrap());
        assert_eq!(state(&client, SHARD).await, "serving 3");
    }

    /// Hosts with default privileges that revoke EXECUTE from PUBLIC, or grant CREATE on schemas,
    /// work like others.
    async fn hosts_with_default_privileges_work(version) {
        let cluster = TestCluster::start(version, 1);
        cluster
            .superuser(0)
            .await
            .batch_execute(
                "CREATE ROLE clerk LOGIN; CREATE ROLE maker \
            LOGIN",
            )
            .await
            .unwrap();
        let client = cluster.app(0).await;
        client
            .batch_execute(
                "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
            ALTER DEFAULT PRIVILEGES GRANT USAGE, CREATE ON SCHEMAS TO maker WITH GRANT OPTION",
            )
            .await
            .unwrap();
        client
            .batch_execute(&format!("BEGIN; {}; COMMIT", control()))
            .await
            .unwrap();
        small_shard(&client, SHARD).await;
        client
            .batch_execute(&format!(
                "
            CREATE FUNCTION {SCHEMA}.f() RETURNS integer LANGUAGE sql AS 'SELECT 1';
            GRANT EXECUTE ON FUNCTION {SCHEMA}.f() TO clerk;
            GRANT USAGE ON SCHEMA {SCHEMA} TO clerk; GRANT SELECT, UPDATE ON {SCHEMA}.t TO clerk"
            ))
            .await
            .unwrap();
        grant(&client, "clerk").await;
        let mut fence = Fence::prepare(cluster.app(0).await, SHARD).await;
        fence.swap_for(Duration::ZERO).await.unwrap();
        let clerk = as_role(&cluster, "clerk").await;
        for sql in [
            "SELECT * FROM shard_0007.t",
            "UPDATE shard_0007.t SET n = \
            2",
            "SELECT shard_0007.f()",
        ] {
            assert_eq!(
                code(&clerk.batch_execute(sql).await.unwrap_err()),
                "SH001",
                "{sql}"
            );
        }
        let maker = as_role(&cluster, "maker").await;
        assert_eq!(
            code(
                &maker
                    .batch_execute(
                        "CREATE TABLE shard_0007.fresh \
            ()"
                    )
                    .await
                    .unwrap_err()
            ),
            "42501"
        );
        assert!(expire(&clerk, SHARD).await.unwrap());
        assert_eq!(
            clerk
                .query_one("SELECT shard_0007.f()", &[])
                .await
                .unwrap()
                .get::<_, i32>(0),
            1
        );
    }

    /// The shard belongs to another role, and the move runs as a third, with a name that needs
    /// quotes. A mover that cannot be sure that another session can end its fence does not fence.
    async fn shards_of_other_owners_are_fenced(version) {
        let cluster = host(version).await;
        let superuser = cluster.superuser(0).await;
        superuser
            .batch_execute(
                "CREATE ROLE \"the Owner\" LOGIN; CREATE ROLE \"a \"\"Mover\" LOGIN IN ROLE app;
            GRANT CREATE ON DATABASE app TO \"the Owner\"",
            )
            .await
            .unwrap();
        let owner = as_role(&cluster, "the Owner").await;
        let s = schema(SHARD);
        owner
            .batch_execute(&format!(
                "CREATE SCHEMA {s}; CREATE TABLE {s}.t (n \
            integer)"
            ))
            .await
            .unwrap();
        let client = cluster.app(0).await;
        serve(&client, SHARD).await;
        grant(&client, "the Owner").await;
        let mut fence = Fence::claim(as_role(&cluster, "a \"Mover").await, SHARD).await;
        assert_eq!(code(&fence.build_signpost().await.unwrap_err()), "SH002");
        superuser
            .batch_execute("GRANT \"the Owner\" TO app")
            .await
            .unwrap();
        fence.build_signpost().await.unwrap();
        fence.swap_for(Duration::ZERO).await.unwrap();
        // The owner, who was granted nothing, meets the signpost like every other role.
        for sql in [
            "SELECT * FROM shard_0007.t",
            "INSERT INTO shard_0007.t VALUES \
            (1)",
            "DELETE FROM shard_0007.t",
        ] {
            assert_eq!(
                code(&owner.batch_execute(sql).await.unwrap_err()),
                "SH001",
                "{sql}"
            );
        }
        assert!(leads_to_signpost(
            &owner
                .batch_execute(
                    "CREATE TABLE shard_0007.fresh \
            ()"
                )
                .await
                .unwrap_err()
        ));
        assert!(expire(&owner, SHARD).await.unwrap());
        owner
            .batch_execute("INSERT INTO shard_0007.t VALUES (1)")
            .await
            .unwrap();
        assert_eq!(state(&client, SHARD).await, "serving 3");

        // Even if a superuser builds it, the owner of the control schema can rename the signpost.
        client
            .batch_execute(&format!(
                "UPDATE pgshard.move SET phase = 'aborted'; DELETE FROM pgshard.ledger; \
                 DROP SCHEMA {s}__signpost CASCADE"
            ))
            .await
            .unwrap();
        let mut fence = Fence::prepare(superuser, SHARD).await;
        fence.swap_for(Duration::ZERO).await.unwrap();
        assert_eq!(
            code(
                &owner
                    .batch_execute("SELECT * FROM shard_0007.t")
                    .await
                    .unwrap_err()
            ),
            "SH001"
        );
        assert!(
            expire(&as_role(&cluster, "the Owner").await, SHARD)
                .await
                .unwrap()
        );
        assert_eq!(state(&client, SHARD).await, "serving 3");
    }

    /// Grants to roles with all kinds of names, with and without grant option, and to PUBLIC, lead
    /// to the signpost.
    async fn grants_are_copied(version) {
        let cluster = shop(version).await;
        let roles = [
            "Mixed Case",
            "o'Hara",
            "quo\"ted",
            "select",
            "größe",
            "PUBLIC ",
        ];
        let superuser = cluster.superuser(0).await;
        let client = cluster.app(0).await;
        for role in roles {
            let role = pgshard::pg::quote_ident(role);
            superuser
                .batch_execute(&format!("CREATE ROLE {role} LOGIN"))
                .await
                .unwrap();
            client
                .batch_execute(&format!(
                    "GRANT USAGE ON SCHEMA {SCHEMA} TO {role} WITH GRANT OPTION;
                GRANT SELECT ON {SCHEMA}.users TO {role} WITH GRANT OPTION;
                GRANT UPDATE (n) ON {SCHEMA}.users TO {role}"
                ))
                .await
                .unwrap();
        }
        superuser
            .batch_execute("CREATE ROLE nobody LOGIN")
            .await
            .unwrap();
        client
            .batch_execute(&format!(
                "GRANT USAGE ON SCHEMA {SCHEMA} TO PUBLIC; GRANT SELECT ON {SCHEMA}.photos TO \
                    PUBLIC"
            ))
            .await
            .unwrap();
        let mut fence = Fence::prepare(cluster.app(0).await, SHARD).await;
        fence.close().await;
        for role in roles {
            let client = as_role(&cluster, &role.replace('\'', "\\'")).await;
            for sql in [
                "SELECT id FROM shard_0007.users",
                "UPDATE shard_0007.users SET n = 1",
                "SELECT id FROM shard_0007.photos",
            ] {
                assert_eq!(
                    code(&client.batch_execute(sql).await.unwrap_err()),
                    "SH001",
                    "{role}: {sql}"
                );
            }
        }
        let nobody = as_role(&cluster, "nobody").await;
        assert_eq!(
            code(
                &nobody
                    .batch_execute("SELECT id FROM shard_0007.photos")
                    .await
                    .unwrap_err()
            ),
            "SH001"
        );
        assert_eq!(
            code(
                &nobody
                    .batch_execute("SELECT id FROM shard_0007.users")
                    .await
                    .unwrap_err()
            ),
            "42501"
        );
    }
}
