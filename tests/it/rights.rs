//! Which roles may query where shards are, and that the rights that `pgshard rights` prints suffice
//! for every command and every router. No role here is a superuser.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pgshard::Router;
use pgshard::config::Config;
use serde_json::Value;
use tokio_postgres::Client;

use crate::support::{Ran, TABLES, TestCluster, World, connect, lines};

/// The last control migration taken back, as an older cluster has it: what routers use is PUBLIC's.
pub(crate) const BEFORE: &str = "
    GRANT USAGE ON SCHEMA pgshard TO PUBLIC;
    GRANT SELECT ON pgshard.cluster, pgshard.shard, pgshard.identity TO PUBLIC;
    GRANT EXECUTE ON FUNCTION pgshard.look, pgshard.expire_fence, pgshard.finish_open, \
    pgshard.migrated,
        pgshard.commit_durably TO PUBLIC;
    DELETE FROM pgshard.control_migration WHERE version = 8";

/// What `pgshard` gives to the roles of routers, taken from these.
fn taken(roles: &str) -> String {
    format!(
        "REVOKE ALL ON SCHEMA pgshard FROM {roles}; REVOKE ALL ON pgshard.cluster, \
            pgshard.identity FROM {roles};
        REVOKE ALL ON FUNCTION pgshard.look, pgshard.expire_fence, pgshard.finish_open, \
        pgshard.migrated FROM {roles}"
    )
}

/// The control schema as an earlier version left it, with the present rows. What routers use is
/// PUBLIC's.
pub(crate) fn older(version: u32) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/control");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    let texts: Vec<_> = files
        .iter()
        .take(version as usize)
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect();
    let identity = match version {
        ..7 => "",
        _ => "GRANT SELECT ON pgshard.identity TO PUBLIC;",
    };
    format!(
        "BEGIN;
        CREATE SCHEMA kept;
        DO $$ DECLARE t name; BEGIN
            FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'pgshard' LOOP
                EXECUTE format('CREATE TABLE kept.%I AS TABLE pgshard.%I', t, t);
            END LOOP;
        END $$;
        DELETE FROM kept.control_migration WHERE version > {version};
        DROP SCHEMA pgshard CASCADE;
        {}
        GRANT USAGE ON SCHEMA pgshard TO PUBLIC;
        GRANT SELECT ON pgshard.cluster, pgshard.shard TO PUBLIC;
        {identity}
        RESET ALL;
        DO $$ DECLARE t name; columns text; BEGIN
            FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'pgshard' LOOP
                SELECT string_agg(quote_ident(a.attname), ', ') INTO columns
                    FROM pg_attribute a JOIN pg_attribute k USING (attname)
                    WHERE a.attrelid = ('pgshard.' || quote_ident(t))::regclass AND a.attnum > 0
                        AND NOT a.attisdropped AND a.attgenerated = ''
                        AND k.attrelid = ('kept.' || quote_ident(t))::regclass;
                EXECUTE format('DELETE FROM pgshard.%I', t);
                EXECUTE format('INSERT INTO pgshard.%I (%s) OVERRIDING SYSTEM VALUE SELECT %2$s \
                FROM kept.%1$I',
                    t, columns);
            END LOOP;
        END $$;
        DROP SCHEMA kept CASCADE;
        COMMIT",
        texts.join("\n")
    )
}

pub(crate) async fn on_all(world: &World, sql: &str) {
    for host in 0..world.servers.servers().len() {
        world
            .servers
            .superuser(host)
            .await
            .batch_execute(sql)
            .await
            .unwrap();
    }
}

async fn as_role(world: &World, host: usize, role: &str) -> Client {
    connect(
        &world
            .servers
            .server(host)
            .url()
            .replace("//app@", &format!("//{role}@")),
    )
    .await
}

/// A router that connects as this role.
async fn router(world: &World, role: &str) -> Router {
    let text = std::fs::read_to_string(&world.config.path).unwrap();
    let text = ["//app@", "//keeper@"].iter().fold(text, |text, owner| {
        text.replace(owner, &format!("//{role}@"))
    });
    pgshard::connect(world.write(&format!("{role}.toml"), &text))
        .await
        .unwrap()
}

/// Runs `migrate up` with one more file.
async fn migrate(world: &World, name: &str, sql: &str) -> Ran {
    world.write(&format!("migrations/{name}"), sql);
    world.run(&["migrate", "up"]).await
}

/// What `check` finds, without what is no fault.
async fn findings(world: &World) -> Vec<Value> {
    let found = world.run(&["check"]).await.last()["findings"]
        .as_array()
        .unwrap()
        .clone();
    found
        .into_iter()
        .filter(|one| one["severity"] != "notice")
        .collect()
}

/// What PUBLIC may do with the control schema, the functions of signposts left out.
const OF_PUBLIC: &str = "
    SELECT what FROM (
        SELECT 'schema' AS what, nspacl AS acl FROM pg_namespace WHERE nspname = 'pgshard'
        UNION ALL SELECT relname, relacl FROM pg_class WHERE relnamespace = 'pgshard'::regnamespace
        UNION ALL SELECT proname, coalesce(proacl, acldefault('f', proowner)) FROM pg_proc
            WHERE pronamespace = 'pgshard'::regnamespace AND proname NOT LIKE 'signpost%') AS \
            all_of_it
    WHERE EXISTS (SELECT FROM aclexplode(acl) WHERE grantee = 0)";

/// What a router reads of a host.
const ASK: &str = "
    SELECT c.shards, l.state, (SELECT count(*) FROM pgshard.identity), pgshard.expire_fence(1)
    FROM pgshard.cluster c, pgshard.look(1) l";

/// What it reads of a host of an older version, which may have recorded no identities.
const ASK_OLDER: &str = "
    SELECT c.shards, l.state, pgshard.expire_fence(1) FROM pgshard.cluster c, pgshard.look(1) l";

/// Runs this query on a host again and again.
async fn ask(client: Client, sql: &'static str, stop: Arc<AtomicBool>, asked: Arc<AtomicU64>) {
    while !stop.load(Ordering::Relaxed) {
        client.query_one(sql, &[]).await.unwrap();
        asked.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Writes and reads by a router, again and again.
async fn write(router: Router, stop: Arc<AtomicBool>, written: Arc<AtomicU64>) {
    let insert = "INSERT INTO {shard}.users (name) VALUES ('w') RETURNING id";
    for key in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let id: i64 = router
            .by_key(key)
            .query_one(insert, &[])
            .await
            .unwrap()
            .get(0);
        let read = "SELECT name FROM {shard}.users WHERE id = $1";
        router
            .by_id(id)
            .unwrap()
            .query_one(read, &[&id])
            .await
            .unwrap();
        written.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn grows(counts: &[&AtomicU64]) {
    for count in counts {
        let from = count.load(Ordering::Relaxed);
        while count.load(Ordering::Relaxed) < from + 5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Two hosts with databases that are owned by a superuser and closed to PUBLIC, and a config of the
/// role keeper, which is not there yet.
pub(crate) async fn plain(version: u32) -> World {
    let servers = TestCluster::start(version, 2);
    servers.write_config_with_migrations(4, &[("0001_tables.sql", TABLES)]);
    let text = std::fs::read_to_string(servers.directory().join("pgshard.toml")).unwrap();
    let path = servers.write(
        "pgshard.toml",
        &text
            .replace("//app@", "//keeper@")
            .replace("/app\"", "/plain\""),
    );
    for host in [0, 1] {
        let superuser = servers.superuser(host).await;
        superuser
            .batch_execute("CREATE DATABASE plain")
            .await
            .unwrap();
        superuser
            .batch_execute("REVOKE ALL ON DATABASE plain FROM PUBLIC")
            .await
            .unwrap();
    }
    World {
        servers,
        config: Config::load(path).unwrap(),
    }
}

/// Runs what `pgshard rights` prints on both hosts: the first part as a superuser, the second as
/// keeper.
pub(crate) async fn granted(world: &World, purpose: &str, role: &str) {
    let parts = world
        .run(&["rights", "--for", purpose, "--role", role])
        .await
        .ended(0)
        .last()["parts"]
        .clone();
    for host in [0, 1] {
        let url = world.servers.server(host).superuser_url();
        let (database, _) = url.rsplit_once('/').unwrap();
        for (part, by) in parts.as_array().unwrap().iter().zip(["postgres", "keeper"]) {
            let client = connect(&format!(
                "{}/plain",
                database.replace("//postgres@", &format!("//{by}@"))
            ))
            .await;
            for statement in part["statements"].as_array().unwrap() {
                let statement = statement.as_str().unwrap();
                client
                    .batch_execute(statement)
                    .await
                    .unwrap_or_else(|error| panic!("{statement}: {error:?}"));
            }
        }
    }
}

/// What an operator runs, in a cluster that is made by the first.
const COMMANDS: &[&[&str]] = &[
    &["bootstrap"],
    &["check", "--ddl", "--movable"],
    &["check", "--rows"],
    &["migrate", "status"],
    &["migrate", "up"],
    &["map", "show"],
    &["map", "rebuild", "--yes"],
    &["sql", "SELECT count(*) FROM {shard}.users"],
    &["tickets", "create", "users", "--hosts", "db1,db2"],
    &["tickets", "next", "users"],
    &["tickets", "status"],
    &["workers", "install", "--host", "db1", "--first"],
    &["workers", "status", "--host", "db1"],
    &["host", "list"],
    &["rebalance", "--plan", "--by", "bytes"],
    &["moves", "list"],
];

const WEB: &str = "GRANT USAGE ON SCHEMA {shard} TO web, team; GRANT SELECT, INSERT ON \
    {shard}.users TO web, team;
    GRANT USAGE ON ALL SEQUENCES IN SCHEMA {shard} TO web, team";

on_each_version! {
    /// `bootstrap` upgrades a cluster of the commit before, under routers of roles that were
    /// granted the shards, that are members of such a role, that may read everything, and on a host
    /// that has no shard yet. No call fails.
    async fn a_cluster_that_serves_comes_along(version) {
        let world = World::with_spare(&[version, version, version], 4).await;
        on_all(
            &world,
            "CREATE ROLE web LOGIN; CREATE ROLE team; CREATE ROLE mate LOGIN IN ROLE \
            team;
            CREATE ROLE analyst LOGIN IN ROLE pg_read_all_data; CREATE ROLE stranger LOGIN",
        )
        .await;
        migrate(&world, "0002_web.sql", WEB).await.ended(0);
        world
            .run(&["host", "add", "db3", &world.servers.server(2).url()])
            .await
            .ended(0);
        for host in 0..3 {
            let app = world.servers.app(host).await;
            app.batch_execute(&taken("web, team, pg_read_all_data"))
                .await
                .unwrap();
            app.batch_execute(BEFORE).await.unwrap();
            assert_eq!(lines(&app, OF_PUBLIC).await.lines().count(), 9);
        }

        let (stop, asked, written) = (
            Arc::new(AtomicBool::new(false)),
            Arc::default(),
            Arc::default(),
        );
        let mut at_work = tokio::task::JoinSet::new();
        for role in ["web", "mate", "analyst"] {
            for host in 0..3 {
                at_work.spawn(ask(
                    as_role(&world, host, role).await,
                    ASK,
                    Arc::clone(&stop),
                    Arc::clone(&asked),
                ));
            }
        }
        for role in ["web", "mate"] {
            at_work.spawn(write(
                router(&world, role).await,
                Arc::clone(&stop),
                Arc::clone(&written),
            ));
        }
        grows(&[&asked, &written]).await;
        world.run(&["bootstrap"]).await.ended(0);
        grows(&[&asked, &written]).await;
        stop.store(true, Ordering::Relaxed);
        while let Some(ended) = at_work.join_next().await {
            ended.expect("no call fails");
        }

        for host in 0..3 {
            let stranger = as_role(&world, host, "stranger").await;
            for sql in [
                "SELECT * FROM pgshard.shard",
                "SELECT pgshard.look(1)",
                "SELECT pgshard.expire_fence(1)",
            ] {
                let error = stranger.batch_execute(sql).await.unwrap_err();
                assert_eq!(error.code().unwrap().code(), "42501", "{sql}");
            }
            assert_eq!(lines(&world.servers.app(host).await, OF_PUBLIC).await, "");
        }
        assert_eq!(findings(&world).await, [Value::Null; 0]);
        assert!(
            world
                .run(&["bootstrap"])
                .await
                .ended(0)
                .stderr
                .contains("nothing to do")
        );
    }

    /// It also upgrades a cluster of an older version, without the records of other hosts and with
    /// them: its routers write and query all the while, no call fails, and what moves then is
    /// moved.
    async fn older_clusters_come_along(version) {
        for from in [6, 7] {
            let world = World::new(&[version, version], 4).await;
            on_all(&world, "CREATE ROLE web LOGIN; CREATE ROLE team").await;
            migrate(&world, "0002_web.sql", WEB).await.ended(0);
            for host in [0, 1] {
                let app = world.servers.app(host).await;
                app.batch_execute(&older(from)).await.unwrap();
                let now = lines(
                    &app,
                    "SELECT max(version)::text FROM \
                    pgshard.control_migration",
                )
                .await;
                assert_eq!(now, format!("{from}\n"));
            }
            let (stop, asked, written) = (
                Arc::new(AtomicBool::new(false)),
                Arc::default(),
                Arc::default(),
            );
            let mut at_work = tokio::task::JoinSet::new();
            for host in [0, 1] {
                at_work.spawn(ask(
                    as_role(&world, host, "web").await,
                    ASK_OLDER,
                    Arc::clone(&stop),
                    Arc::clone(&asked),
                ));
            }
            for role in ["web", "app"] {
                at_work.spawn(write(
                    router(&world, role).await,
                    Arc::clone(&stop),
                    Arc::clone(&written),
                ));
            }
            grows(&[&asked, &written]).await;
            let told = world.run(&["check"]).await;
            assert!(told.stdout.contains("control_old"), "{}", told.stdout);
            world.run(&["bootstrap"]).await.ended(0);
            grows(&[&asked, &written]).await;
            world
                .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
                .await
                .ended(0);
            world
                .run(&["move", "1", "--to", "db2", "--yes"])
                .await
                .ended(0);
            grows(&[&asked, &written]).await;
            stop.store(true, Ordering::Relaxed);
            while let Some(ended) = at_work.join_next().await {
                ended.expect("no call fails");
            }
            assert_eq!(findings(&world).await, [Value::Null; 0], "from {from}");
        }
    }

    /// Rights come with what lets a role use a shard: a migration, a move, and a bootstrap that
    /// restores what was revoked. Where shards are granted to PUBLIC, so are queries about them.
    async fn rights_come_with_shards(version) {
        let world = World::new(&[version, version], 4).await;
        on_all(
            &world,
            "CREATE ROLE web LOGIN; CREATE ROLE team; CREATE ROLE other LOGIN",
        )
        .await;
        migrate(&world, "0002_web.sql", WEB).await.ended(0);
        for host in [0, 1] {
            as_role(&world, host, "web")
                .await
                .batch_execute("SELECT pgshard.look(0)")
                .await
                .unwrap();
        }

        world
            .servers
            .app(0)
            .await
            .batch_execute(&taken("web"))
            .await
            .unwrap();
        let found = findings(&world).await;
        assert_eq!(
            (found.len(), &found[0]["code"], &found[0]["host"]),
            (1, &"rights_missing".into(), &"db1".into())
        );
        let remedy = found[0]["remedy"].as_str().unwrap();
        assert!(
            remedy.contains("`pgshard rights --for router --role web`"),
            "{remedy}"
        );
        world.run(&["bootstrap"]).await.ended(0);
        assert_eq!(findings(&world).await, [Value::Null; 0]);

        // A move, to a host that does not know the role: the router follows what hosts report, its
        // map is older.
        let router = router(&world, "web").await;
        let read = "SELECT count(*) FROM {shard}.users";
        router.by_key(1).query_one(read, &[]).await.unwrap();
        world
            .servers
            .app(1)
            .await
            .batch_execute(&taken("web, team"))
            .await
            .unwrap();
        world
            .run(&["move", "1", "--to", "db2", "--yes"])
            .await
            .ended(0);
        router.by_key(1).query_one(read, &[]).await.unwrap();
        assert_eq!(findings(&world).await, [Value::Null; 0]);

        let everybody = "GRANT USAGE ON SCHEMA {shard} TO PUBLIC; GRANT SELECT ON {shard}.users TO \
            PUBLIC";
        migrate(&world, "0003_everybody.sql", everybody)
            .await
            .ended(0);
        as_role(&world, 0, "other")
            .await
            .batch_execute("SELECT pgshard.look(0)")
            .await
            .unwrap();
        assert_eq!(findings(&world).await, [Value::Null; 0]);
        assert!(
            world
                .run(&["bootstrap"])
                .await
                .ended(0)
                .stderr
                .contains("nothing to do")
        );
    }

    /// Roles that have what `pgshard rights` prints, and nothing else, in a database that PUBLIC
    /// may not even connect to: the operator's runs every command, an application's writes by a
    /// router, and a reader's reads.
    async fn every_command_with_exactly_these_rights(version) {
        let world = plain(version).await;
        granted(&world, "mover", "keeper").await;
        // What a role has may be granted again.
        granted(&world, "mover", "keeper").await;
        for args in COMMANDS {
            let ran = world.run(args).await;
            assert_eq!(ran.code(), 0, "{args:?}: {} {}", ran.stdout, ran.stderr);
        }
        let moved = world
            .run(&["move", "1", "--to", "db2", "--yes", "--mode", "online"])
            .await
            .ended(0)
            .id();
        world
            .run(&["moves", "rollback", &moved, "--yes"])
            .await
            .ended(0);
        let moved = world
            .run(&["move", "0", "--to", "db2", "--yes"])
            .await
            .ended(0)
            .id();
        world
            .run(&["moves", "complete", &moved, "--yes"])
            .await
            .ended(0);
        world.run(&["moves", "gc"]).await.ended(0);
        world.run(&["check"]).await.ended(0);

        for (purpose, role) in [
            ("router", "web \"2\""),
            ("reader", "report"),
            ("reader", "we$rights$b"),
        ] {
            granted(&world, purpose, role).await;
        }
        let web = router(&world, "web%20%222%22").await;
        let insert = "INSERT INTO {shard}.users (name) VALUES ('w') RETURNING id";
        let id: i64 = web.by_key(1).query_one(insert, &[]).await.unwrap().get(0);
        web.wait_for_migration("0001_tables", Duration::from_secs(1))
            .await
            .unwrap();
        let report = router(&world, "report").await;
        let read = "SELECT name FROM {shard}.users WHERE id = $1";
        report
            .by_id(id)
            .unwrap()
            .query_one(read, &[&id])
            .await
            .unwrap();
        let refused = report.by_key(1).query(insert, &[]).await.unwrap_err();
        assert!(format!("{refused:?}").contains("42501"), "{refused:?}");

        // They follow a shard, and open one with a dead mover.
        world
            .run(&["move", "1", "--to", "db2", "--yes"])
            .await
            .ended(0);
        report
            .by_id(id)
            .unwrap()
            .query_one(read, &[&id])
            .await
            .unwrap();
        world
            .run_until(&["move", "2", "--to", "db1", "--yes"], "after decide=kill")
            .await;
        web.by_key(2).query_one(insert, &[]).await.unwrap();
        assert!(
            world
                .run(&["migrate", "status"])
                .await
                .ended(0)
                .stderr
                .is_empty()
        );
    }

    /// A mover that moves shards while they are open needs one right more, and `check` reports
    /// that: without it they are closed.
    async fn an_owner_that_is_no_mover(version) {
        let world = plain(version).await;
        granted(&world, "owner", "keeper").await;
        world.run(&["bootstrap"]).await.ended(0);
        let found = world.run(&["check"]).await.ended(0).last()["findings"].clone();
        let [one, other] = &found.as_array().unwrap()[..] else {
            panic!("{found:#}")
        };
        assert_eq!(
            (&one["code"], &other["code"]),
            (&"rights_missing".into(), &"rights_missing".into()),
            "{found:#}"
        );
        assert!(
            one["remedy"].as_str().unwrap().contains(
                "rights --for mover --role \
            keeper"
            ),
            "{one}"
        );
        world
            .run(&["move", "0", "--to", "db2", "--yes"])
            .await
            .ended(0);
        granted(&world, "mover", "keeper").await;
        world
            .run(&["move", "1", "--to", "db2", "--yes", "--mode", "online"])
            .await
            .ended(0);
    }

    /// A role that may connect holds every advisory lock of ours that it can name. Nothing of the
    /// operator's waits.
    async fn locks_of_a_stranger(version) {
        let world = World::new(&[version, version], 4).await;
        on_all(&world, "CREATE ROLE stranger LOGIN").await;
        let mut strangers = Vec::new();
        for host in [0, 1] {
            let stranger = as_role(&world, host, "stranger").await;
            stranger
                .batch_execute(
                    "SELECT pg_advisory_lock(1885827944, n) FROM generate_series(1, \
                3) n;
                SELECT pg_advisory_lock(1835624306, n) FROM generate_series(0, 3) \
                n",
                )
                .await
                .unwrap();
            strangers.push(stranger);
        }
        let found = findings(&world).await;
        assert_eq!(found.len(), 4, "{found:#?}");
        assert!(
            found.iter().all(|one| one["code"] == "foreign_lock"),
            "{found:#?}"
        );
        migrate(
            &world,
            "0002_title.sql",
            "ALTER TABLE {shard}.users ADD COLUMN title \
            text",
        )
        .await
        .ended(0);
        world
            .servers
            .app(0)
            .await
            .batch_execute("DROP FUNCTION pgshard.migrated")
            .await
            .unwrap();
        world.run(&["bootstrap"]).await.ended(0);
        world
            .run(&["move", "0", "--to", "db2", "--yes"])
            .await
            .ended(0);
        world
            .run(&["move", "1", "--to", "db2", "--yes", "--mode", "online"])
            .await
            .ended(0);
        // They had them all the time.
        let held = "SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND pid = \
            pg_backend_pid()";
        assert_eq!(lines(&strangers[0], held).await, "7\n");
    }
    /// Why the lock of an ID clock may have a name that is public: with locks of any name, a role
    /// that may connect takes the places of all.
    async fn all_locks_of_a_stranger(version) {
        let world = World::new(&[version, version], 4).await;
        on_all(&world, "CREATE ROLE stranger LOGIN").await;
        let (stranger, app) = (
            as_role(&world, 0, "stranger").await,
            world.servers.app(0).await,
        );
        let all = "SELECT pg_advisory_lock(n) FROM generate_series(1, 10000000) n";
        let full = stranger.batch_execute(all).await.unwrap_err();
        assert_eq!(full.code().unwrap().code(), "53200", "{full:?}");
        let refused = app
            .batch_execute(
                "INSERT INTO shard_0000.users (name) VALUES \
            ('x')",
            )
            .await
            .unwrap_err();
        assert_eq!(refused.code().unwrap().code(), "53200", "{refused:?}");
        drop(stranger);
        let insert = "INSERT INTO shard_0000.users (name) VALUES ('x')";
        while app.batch_execute(insert).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
