//! A role with every right on a shard's tables tries to have its code run by a mover: TRIGGER and
//! REFERENCES attach code that runs as the role that writes. The mover writes to what it builds at
//! a target, and to an old copy that is fed or taken back.

use std::time::Duration;

use tokio_postgres::Client;

use crate::support::{World, go_on, lines, never_stopped, stopped};

/// The roles, on every host: `tenant` has a schema with a trap, and `guest` has nothing.
const ROLES: &str = "
    CREATE ROLE tenant; CREATE ROLE guest;
    CREATE SCHEMA tenant AUTHORIZATION tenant;
    SET ROLE tenant;
    CREATE TABLE tenant.caught (who text);
    GRANT USAGE ON SCHEMA tenant TO PUBLIC;
    GRANT ALL ON tenant.caught TO PUBLIC;
    CREATE FUNCTION tenant.trap() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO tenant.caught SELECT current_user WHERE current_user <> 'tenant';
            RETURN coalesce(NEW, OLD);
        END $$;
    RESET ROLE";

/// What the shard's owner has granted: as most applications do, and every other way.
const GRANTS: &str = "
    GRANT USAGE ON SCHEMA shard_0000 TO tenant, guest;
    GRANT ALL ON ALL TABLES IN SCHEMA shard_0000 TO tenant WITH GRANT OPTION;
    GRANT TRIGGER ON shard_0000.photos TO PUBLIC;
    GRANT SELECT, TRIGGER ON shard_0000.photos TO guest;
    GRANT REFERENCES (id), SELECT (name) ON shard_0000.users TO guest";

/// All rights on the shard's relations and columns.
const RIGHTS: &str = "
    SELECT c.relname || ' ' || acl::text FROM pg_class c, unnest(c.relacl) AS acl
    WHERE c.relnamespace = 'shard_0000'::regnamespace
    UNION ALL
    SELECT c.relname || ' ' || a.attname || ' ' || acl::text FROM pg_class c, pg_attribute a, \
    unnest(a.attacl) AS acl
    WHERE c.relnamespace = 'shard_0000'::regnamespace AND a.attrelid = c.oid ORDER BY 1";

async fn world(version: u32) -> World {
    let world = World::new(&[version, version], 4).await;
    for host in [0, 1] {
        world
            .servers
            .superuser(host)
            .await
            .batch_execute(ROLES)
            .await
            .unwrap();
    }
    let owner = world.servers.app(0).await;
    let rows = "INSERT INTO shard_0000.users (name) SELECT 'user ' || n FROM generate_series(1, \
        20) n;
        INSERT INTO shard_0000.photos (user_id, title) SELECT id, 'photo' FROM shard_0000.users \
        WHERE name LIKE '% 1_'";
    owner.batch_execute(rows).await.unwrap();
    owner.batch_execute(GRANTS).await.unwrap();
    // The traps do work: deleting a row runs what is attached to a row that refers to it.
    let answers = lay(&world.servers.superuser(0).await, "shard_0000").await;
    assert!(answers.iter().all(|answer| answer == "done"), "{answers:?}");
    owner
        .batch_execute("INSERT INTO shard_0000.users (name) VALUES ('trapped')")
        .await
        .unwrap();
    owner
        .batch_execute("DELETE FROM shard_0000.users WHERE name = 'trapped'")
        .await
        .unwrap();
    assert!(!caught(&world).await.is_empty());
    for host in [0, 1] {
        let clear = "TRUNCATE tenant.caught; DROP TABLE IF EXISTS tenant.spy_shard_0000";
        world
            .servers
            .superuser(host)
            .await
            .batch_execute(clear)
            .await
            .unwrap();
    }
    for table in ["users", "photos"] {
        owner
            .batch_execute(&format!("DROP TRIGGER trap ON shard_0000.{table}"))
            .await
            .unwrap();
    }
    world
}

/// Sets all traps in a schema, as the tenant; returns the server's answer to each.
async fn lay(superuser: &Client, schema: &str) -> Vec<String> {
    let trap = |table: &str| {
        format!(
            "CREATE TRIGGER trap BEFORE INSERT OR UPDATE OR DELETE ON {schema}.{table}
             FOR EACH STATEMENT EXECUTE FUNCTION tenant.trap()"
        )
    };
    // Before PostgreSQL 18 a deferred trigger runs as the role that commits, although the cascade
    // is the tenant's.
    let spy = format!(
        "CREATE TABLE tenant.spy_{schema} (id bigint REFERENCES {schema}.users ON DELETE CASCADE);
         CREATE CONSTRAINT TRIGGER trap AFTER DELETE ON tenant.spy_{schema} DEFERRABLE INITIALLY \
         DEFERRED
         FOR EACH ROW EXECUTE FUNCTION tenant.trap();
         INSERT INTO tenant.spy_{schema} SELECT id FROM {schema}.users WHERE name NOT LIKE '% 1_'"
    );
    let mut answers = Vec::new();
    for sql in [trap("users"), trap("photos"), spy] {
        // A lock of the mover's would be waited for, and the mover waits for this.
        let laid = superuser
            .batch_execute(&format!(
                "SET ROLE tenant; SET LOCAL lock_timeout = '5s'; {sql}"
            ))
            .await;
        superuser.batch_execute("RESET ROLE").await.unwrap();
        answers.push(laid.map_or_else(|error| error.to_string(), |()| "done".to_owned()));
    }
    answers
}

/// As whom the traps have been run, on both hosts.
async fn caught(world: &World) -> String {
    let mut caught = String::new();
    for host in [0, 1] {
        caught += &lines(
            &world.servers.superuser(host).await,
            "SELECT DISTINCT who FROM tenant.caught",
        )
        .await;
    }
    caught
}

/// Runs a command to a failpoint, sets the traps there in a schema of a host, and lets it continue
/// to its end.
async fn attacked(world: &World, args: &[&str], at: &str, (host, schema): (usize, &str)) {
    let child = world
        .command(args, &[("PGSHARD_FAILPOINT", &format!("{at}=stop"))])
        .spawn()
        .unwrap();
    let pid = stopped(&child).await;
    let answers = lay(&world.servers.superuser(host).await, schema).await;
    go_on(pid);
    let ran = never_stopped(child).await;
    assert_eq!(caught(world).await, "", "{args:?}, {at}");
    ran.ended(0);
    assert!(
        answers.iter().all(|answer| answer != "done"),
        "{args:?}, {at}: {answers:?}"
    );
}

/// Feeds the old copies until a query of a host gives something else than before the feed, which
/// must be this. Nothing is caught.
async fn fed(world: &World, db: &Client, sql: &str, (before, until): (&str, &str)) {
    let mut feeding = world.command(&["moves", "feed"], &[]).spawn().unwrap();
    // Whatever is seen first; a feed that runs a trap has nothing more to show.
    let seen = loop {
        let seen = lines(db, sql).await;
        if seen != before {
            break seen;
        }
        assert!(feeding.try_wait().unwrap().is_none(), "the feed goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    feeding.kill().await.unwrap();
    assert_eq!((caught(world).await.as_str(), seen.as_str()), ("", until));
}

on_each_version! {
    /// In what a move builds, at any time before it is opened. The rights come with it, all of
    /// them.
    async fn in_what_a_move_builds(version) {
        let world = world(version).await;
        let rights = lines(&world.servers.app(0).await, RIGHTS).await;
        assert!(
            rights.contains("tenant=") && rights.contains("photos =") && rights.contains("guest=x"),
            "{rights}"
        );
        let (there, back) = (["move", "0", "--to", "db2"], ["move", "0", "--to", "db1"]);
        let incoming = "shard_0000__incoming";
        for (to, args, mode, at) in [
            (1, there, "online", "after target schema"),
            (0, back, "online", "after keys"),
            (1, there, "online", "after catch-up"),
            (0, back, "blocking", "after prepare"),
            (1, there, "blocking", "after ready"),
        ] {
            let args: Vec<&str> = args.into_iter().chain(["--mode", mode, "--yes"]).collect();
            attacked(&world, &args, at, (to, incoming)).await;
            assert_eq!(
                lines(&world.servers.app(to).await, RIGHTS).await,
                rights,
                "{mode}, {at}"
            );
            let id = lines(
                &world.servers.app(1 - to).await,
                "SELECT move_id::text FROM pgshard.move
                WHERE phase = 'kept'",
            )
            .await;
            world
                .run(&["moves", "complete", id.trim(), "--yes"])
                .await
                .ended(0);
        }
        // There the application is as it was: the tenant keeps its rights.
        let answers = lay(&world.servers.superuser(1).await, "shard_0000").await;
        assert!(answers.iter().all(|answer| answer == "done"), "{answers:?}");
    }

    /// In an old copy that is fed, and then taken back. The rights are those of before, all of
    /// them.
    async fn in_an_old_copy(version) {
        let world = world(version).await;
        let rights = lines(&world.servers.app(0).await, RIGHTS).await;
        let id = world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0)
            .id();
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        let answers = lay(&world.servers.superuser(0).await, "shard_0000__left_e1").await;
        db2.batch_execute(
            "INSERT INTO shard_0000.users (name) VALUES ('fed');
            DELETE FROM shard_0000.users WHERE name = 'user 2'",
        )
        .await
        .unwrap();
        let names = "SELECT name FROM shard_0000__left_e1.users WHERE name IN ('fed', 'user 2')";
        fed(&world, &db1, names, ("user 2\n", "fed\n")).await;
        assert!(answers.iter().all(|answer| answer != "done"), "{answers:?}");
        db2.batch_execute(
            "INSERT INTO shard_0000.users (name) VALUES ('back');
            DELETE FROM shard_0000.users WHERE name = 'user 3'",
        )
        .await
        .unwrap();
        let rollback = ["moves", "rollback", &id, "--yes"];
        attacked(
            &world,
            &rollback,
            "after adopt",
            (0, "shard_0000__incoming"),
        )
        .await;
        assert_eq!(lines(&db1, RIGHTS).await, rights);
        world.audit_places().await;
    }

    /// A trap that is set in the old copy just before it is closed to that, and committed just
    /// after it was looked at: nothing is written there any more, and the move cannot be taken
    /// back.
    async fn in_an_old_copy_at_the_last_moment(version) {
        let world = world(version).await;
        let args = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
        let child = world
            .command(&args, &[("PGSHARD_FAILPOINT", "before publish=stop")])
            .spawn()
            .unwrap();
        let pid = stopped(&child).await;
        let (tenant, looks) = (
            world.servers.superuser(0).await,
            world.servers.superuser(0).await,
        );
        tenant
            .batch_execute(
                "SET ROLE tenant; BEGIN; CREATE TRIGGER trap BEFORE INSERT ON \
            shard_0000__left_e1.users
            FOR EACH STATEMENT EXECUTE FUNCTION tenant.trap()",
            )
            .await
            .unwrap();
        go_on(pid);
        let ended = tokio::spawn(never_stopped(child));
        let waits = "SELECT 'waits' FROM pg_locks WHERE NOT granted AND locktype = 'relation' \
            LIMIT 1";
        while lines(&looks, waits).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tenant.batch_execute("COMMIT").await.unwrap();
        let id = ended.await.unwrap().ended(0).id();
        world
            .servers
            .app(1)
            .await
            .batch_execute(
                "INSERT INTO shard_0000.users (name) VALUES \
            ('fed')",
            )
            .await
            .unwrap();
        let lost = "SELECT lost FROM pgshard.back WHERE lost IS NOT NULL
            UNION ALL SELECT name FROM shard_0000__left_e1.users WHERE name = 'fed'";
        fed(&world, &looks, lost, ("", "its old copy was altered\n")).await;
        let refused = world.run(&["moves", "rollback", &id, "--yes"]).await;
        assert!(
            refused.ended(4).stderr.contains("its old copy was altered"),
            "{}",
            refused.stderr
        );
        assert_eq!(world.state(1, 0).await, "serving");
    }

    /// What the shard's definition uses from outside of it, and the target does not have: a
    /// stranger has made something of that name there, which a copy of rows would run.
    async fn by_the_name_of_what_is_missing(version) {
        let world = world(version).await;
        world
            .servers
            .superuser(0)
            .await
            .batch_execute(
                "
            CREATE FUNCTION public.clean(text) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT \
            true';
            CREATE DOMAIN public.word AS text CHECK (public.clean(VALUE));
            ALTER FUNCTION public.clean(text) OWNER TO app; ALTER DOMAIN public.word OWNER TO \
            app",
            )
            .await
            .unwrap();
        world
            .servers
            .app(0)
            .await
            .batch_execute(
                "
            ALTER TABLE shard_0000.users ADD CHECK (public.clean(name)), ADD COLUMN word \
            public.word DEFAULT 'x'",
            )
            .await
            .unwrap();
        let there = world.servers.superuser(1).await;
        there
            .batch_execute(
                "
            GRANT USAGE, CREATE ON SCHEMA public TO tenant; SET ROLE tenant;
            CREATE FUNCTION public.clean(text) RETURNS boolean LANGUAGE plpgsql AS $$
                BEGIN INSERT INTO tenant.caught VALUES (current_user); RETURN true; END $$;
            CREATE DOMAIN public.word AS text CHECK (public.clean(VALUE));
            RESET ROLE",
            )
            .await
            .unwrap();
        for mode in ["online", "blocking"] {
            let refused = world
                .run(&["move", "0", "--to", "db2", "--mode", mode, "--yes"])
                .await;
            assert_eq!(caught(&world).await, "", "{}", refused.stderr);
            let said = refused.ended(4).stderr.replace('\n', " ");
            for what in ["function public.clean(pg_catalog.text)", "type public.word"] {
                let whose = format!(
                    "uses {what}, which belongs to tenant at the target and to app \
                    at db1"
                );
                assert!(said.contains(&whose), "{said}");
            }
        }
        // The same role's on both hosts, or an administrator's.
        there
            .batch_execute(
                "
            ALTER DOMAIN public.word OWNER TO app; ALTER FUNCTION public.clean(text) OWNER TO \
            postgres;
            CREATE OR REPLACE FUNCTION public.clean(text) RETURNS boolean LANGUAGE sql IMMUTABLE \
            AS 'SELECT true'",
            )
            .await
            .unwrap();
        world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0);
    }
}
