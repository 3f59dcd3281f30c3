//! What managed services do differently from a plain server, on look-alikes of them: rights that
//! come from a membership, functions that are taken away, `wal_level` as it is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::dev::StopMode;
use pgshard::mover::{Mode, Options};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::console::client::Console;
use crate::rights::on_all;
use crate::support::{Ran, World, is_long, share, until as until_true};

/// Functions for slots that a member of `rds_replication` may call, and no attribute is required:
/// the service's own run under other names, as a role that has REPLICATION.
const LIKE_RDS: &str = "
    CREATE ROLE rds_replication;
    CREATE ROLE rdsadmin LOGIN SUPERUSER;
    ALTER ROLE app NOREPLICATION;
    CREATE FUNCTION pg_catalog.rds_guard() RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        IF NOT pg_has_role(session_user, 'rds_replication', 'USAGE') THEN
            RAISE insufficient_privilege
                USING MESSAGE = 'permission denied to use replication slots';
        END IF;
    END $$;
    DO $do$
    DECLARE
        f record;
    BEGIN
        FOR f IN SELECT oid, proname, pronargs, pg_get_function_arguments(oid) AS takes,
                pg_get_function_result(oid) AS gives
            FROM pg_proc WHERE proname IN ('pg_create_logical_replication_slot',
                'pg_drop_replication_slot', 'pg_replication_slot_advance')
        LOOP
            EXECUTE format('ALTER FUNCTION %s RENAME TO %I', f.oid::regprocedure,
                'rds_' || f.proname);
            EXECUTE format('CREATE FUNCTION pg_catalog.%I(%s) RETURNS %s
                LANGUAGE sql SECURITY DEFINER
                AS $f$ SELECT rds_guard(); SELECT * FROM pg_catalog.%I(%s) $f$',
                f.proname, f.takes, f.gives, 'rds_' || f.proname,
                (SELECT string_agg('$' || n, ', ') FROM generate_series(1, f.pronargs) n));
        END LOOP;
    END $do$;
    ALTER ROLE rdsadmin NOSUPERUSER REPLICATION";

/// Leads to a server. Connections in replication mode are those of the service's own role.
async fn rds_proxy(target: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut far = TcpStream::connect(("127.0.0.1", target)).await?;
                let first = startup(&mut near).await?;
                let text: Vec<u8> = match is_replication(&first) {
                    true => {
                        let at = first
                            .windows(9)
                            .position(|part| part == b"user\0app\0")
                            .unwrap();
                        [&first[..at], b"user\0rdsadmin\0", &first[at + 9..]].concat()
                    }
                    false => first,
                };
                far.write_u32(text.len() as u32 + 4).await?;
                far.write_all(&text).await?;
                copy_bidirectional(&mut near, &mut far).await.map(drop)
            });
        }
    });
    port
}

/// The first message of a client, after its request for TLS, which the server does not have.
async fn startup(near: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    loop {
        let length = near.read_u32().await? as usize;
        let mut first = vec![0; length - 4];
        near.read_exact(&mut first).await?;
        match first == 80_877_103_u32.to_be_bytes() {
            true => near.write_all(b"N").await?,
            false => return Ok(first),
        }
    }
}

fn is_replication(startup: &[u8]) -> bool {
    String::from_utf8_lossy(startup).contains("replication\0")
}

/// Leads to a server, and counts the connections that are open at the same time, at the most. Those
/// in replication mode are not counted: they have a limit of their own.
async fn counting_proxy(target: u16) -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (open, most) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let counted = most.clone();
    tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let (open, most) = (open.clone(), most.clone());
            tokio::spawn(async move {
                let mut far = TcpStream::connect(("127.0.0.1", target)).await?;
                let first = startup(&mut near).await?;
                far.write_u32(first.len() as u32 + 4).await?;
                far.write_all(&first).await?;
                let counts = u64::from(!is_replication(&first));
                most.fetch_max(
                    open.fetch_add(counts, Ordering::SeqCst) + counts,
                    Ordering::SeqCst,
                );
                let ((mut near_in, mut near_out), (mut far_in, mut far_out)) =
                    (near.into_split(), far.into_split());
                let back = tokio::spawn(async move {
                    let _ = tokio::io::copy(&mut far_in, &mut near_out).await;
                });
                let asked = tokio::io::copy(&mut near_in, &mut far_out).await;
                open.fetch_sub(counts, Ordering::SeqCst);
                drop(far_out);
                let _ = back.await;
                asked.map(drop)
            });
        }
    });
    (port, counted)
}

/// The number that follows these words.
fn number_after(text: &str, words: &str) -> u64 {
    let (_, rest) = text
        .split_once(words)
        .unwrap_or_else(|| panic!("{words}: {text}"));
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
    digits.unwrap_or_default().parse().unwrap()
}

/// A cluster of servers like RDS.
async fn like_rds(version: u32) -> World {
    let world = World::new(&[version, version], 4).await;
    on_all(&world, LIKE_RDS).await;
    let mut config = std::fs::read_to_string(&world.config.path).unwrap();
    for server in world.servers.servers() {
        let port = rds_proxy(server.port()).await;
        config = config.replace(&format!(":{}/", server.port()), &format!(":{port}/"));
    }
    world.write("pgshard.toml", &config);
    world
}

fn codes(ran: &Ran) -> BTreeSet<String> {
    let findings = ran.last()["findings"].clone();
    let findings = findings.as_array().unwrap();
    findings
        .iter()
        .map(|one| one["code"].as_str().unwrap().to_owned())
        .collect()
}

on_each_version! {
    /// On RDS no role has REPLICATION. The plan refuses an online move while the role is no member
    /// of `rds_replication`, and names what to run; with what `pgshard rights` prints for RDS the
    /// shard moves while it is open, and comes back.
    async fn a_member_of_rds_replication_moves_open_shards(version) {
        let world = like_rds(version).await;
        let online = ["move", "1", "--to", "db2", "--mode", "online"];
        let refused = world.run(&[&online[..], &["--plan"]].concat()).await;
        refused.ended(4);
        assert!(
            refused
                .stderr
                .contains("permission denied to use replication slots"),
            "{}",
            refused.stderr
        );
        assert!(
            refused.stderr.contains("pgshard rights --for mover"),
            "{}",
            refused.stderr
        );
        assert!(codes(&world.run(&["check"]).await).contains("rights_missing"));
        let rights = [
            "rights",
            "--for",
            "mover",
            "--role",
            "app",
            "--by",
            "administrator",
            "--service",
        ];
        let script = world.text(&[&rights[..], &["rds"]].concat()).await;
        script.ended(0);
        assert!(
            !script.stdout.contains("ALTER ROLE app REPLICATION"),
            "{}",
            script.stdout
        );
        on_all(&world, &script.stdout).await;
        assert!(!codes(&world.run(&["check"]).await).contains("rights_missing"));
        world
            .run(&[&online[..], &["--plan"]].concat())
            .await
            .ended(0);
        let slots = "SELECT count(*) FROM pg_replication_slots";
        let left: i64 = world
            .servers
            .app(0)
            .await
            .query_one(slots, &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(left, 0);
        let moved = world
            .run(&[&online[..], &["--yes"]].concat())
            .await
            .ended(0)
            .id();
        world
            .run(&["moves", "rollback", &moved, "--yes"])
            .await
            .ended(0);
        assert_eq!(world.state(0, 1).await, "serving");
    }

    /// A function that a service has taken away costs what needs it, and nothing else: for each
    /// function, every command works or names the function before it has changed anything. A move
    /// never fails once its plan was printed.
    async fn a_missing_function_is_named_by_the_plan(version) {
        let world = World::new(&[version, version], 4).await;
        let console = Console::start(&world, &["--floor-s", "1"]);
        let functions = match is_long() {
            true => called(&world).await,
            false => share(version, LACKING.iter().map(|name| (*name).to_owned())),
        };
        for function in functions {
            let (revoke, grant) = (
                revoked("REVOKE", "FROM", &function),
                revoked("GRANT", "TO", &function),
            );
            on_all(&world, &revoke).await;
            works_without(&world, &console, &function).await;
            on_all(&world, &grant).await;
            end_what_was_not_audited(&world).await;
        }
        assert_eq!(world.run(&["check"]).await.code(), 0);
    }

    /// Whatever function a service has taken away, reads from standbys give their rows: from the
    /// primary, where the router cannot know how far the standby is.
    async fn reads_from_standbys_work_without_any_function(version) {
        let world = World::with_standby(version, 4, 0).await;
        let config = std::fs::read_to_string(&world.config.path).unwrap();
        world.write(
            "pgshard.toml",
            &config.replace("[hosts.db1]", "[hosts.db1]\nreads = \"replica\""),
        );
        let superuser = world.servers.superuser(0).await;
        let functions = called(&world).await;
        assert!(functions.len() > 20, "{functions:?}");
        let mut by_standby = 0;
        for function in &functions {
            superuser
                .batch_execute(&revoked("REVOKE", "FROM", function))
                .await
                .unwrap();
            world.servers.caught_up(2, 0).await;
            let router = world.router().await;
            let count = "SELECT count(*) FROM {shard}.users";
            for at in 0..2 {
                let read = router.by_key(0).reads().query_one(count, &[]).await;
                let read = read.unwrap_or_else(|error| panic!("{function}: {error}"));
                assert_eq!(read.get::<_, i64>(0), 0, "{function}");
                // The first read is the first to query the standbys.
                tokio::time::sleep(Duration::from_millis(300 * (1 - at))).await;
            }
            let row = router
                .by_key(0)
                .reads()
                .query_one("SELECT current_setting('transaction_read_only')", &[])
                .await;
            by_standby += i32::from(row.unwrap().get::<_, &str>(0) == "on");
            superuser
                .batch_execute(&revoked("GRANT", "TO", function))
                .await
                .unwrap();
        }
        assert!(by_standby > 0, "no standby was ever read");
    }

    /// While the role's password changes every few seconds, and a program prints the present one,
    /// every command, the console and each new connection of a router get in, and moves continue.
    async fn a_token_that_changes_keeps_nobody_out(version) {
        let world = World::new(&[version, version], 4).await;
        let config = std::fs::read_to_string(&world.config.path).unwrap();
        let command = "password_command = [\"sh\", \"-c\", \"cat token\"]";
        let config = ["db1", "db2"].iter().fold(config, |config, host| {
            config.replace(
                &format!("[hosts.{host}]"),
                &format!("[hosts.{host}]\n{command}"),
            )
        });
        let path = world.write("pgshard.toml", &config);
        let token = world.write("token", "token0");
        on_all(&world, "ALTER ROLE app PASSWORD 'token0'").await;
        for server in world.servers.servers() {
            let file = server.data_directory().join("pg_hba.conf");
            let rules = std::fs::read_to_string(&file).unwrap();
            std::fs::write(
                &file,
                format!("host all app 127.0.0.1/32 scram-sha-256\n{rules}"),
            )
            .unwrap();
        }
        on_all(&world, "SELECT pg_reload_conf()").await;
        let (stop, mut stopped) = tokio::sync::watch::channel(false);
        let superusers = [
            world.servers.superuser(0).await,
            world.servers.superuser(1).await,
        ];
        let changing = tokio::spawn(async move {
            let mut number = 0;
            while !*stopped.borrow() {
                number += 1;
                let next = token.with_extension("next");
                std::fs::write(&next, format!("token{number}")).unwrap();
                std::fs::rename(&next, &token).unwrap();
                for superuser in &superusers {
                    let alter = format!("ALTER ROLE app PASSWORD 'token{number}'");
                    superuser.batch_execute(&alter).await.unwrap();
                }
                let pause = tokio::time::sleep(Duration::from_secs(4));
                tokio::select! { _ = pause => {}, _ = stopped.changed() => {} }
            }
            number
        });
        let (over, written) = (
            Arc::new(AtomicBool::new(false)),
            Arc::<AtomicU64>::default(),
        );
        let (until, count, config) = (over.clone(), written.clone(), path.clone());
        let writing = tokio::spawn(async move {
            while !until.load(Ordering::Relaxed) {
                // Its connections are new ones.
                let router = pgshard::connect(&config).await.unwrap();
                let insert = "INSERT INTO {shard}.users (name) VALUES ('t')";
                router.by_key(1).execute(insert, &[]).await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        let console = Console::start(&world, &["--floor-s", "1"]);
        let online = ["move", "1", "--to", "db2", "--mode", "online", "--yes"];
        for _ in 0..2 {
            let moved = world.run(&online).await.ended(0).id();
            assert!(
                console
                    .get("/metrics")
                    .body
                    .contains("pgshard_host_up{host=\"db1\"} 1")
            );
            world
                .run(&["moves", "rollback", &moved, "--yes"])
                .await
                .ended(0);
            world.run(&["host", "list"]).await.ended(0);
        }
        over.store(true, Ordering::Relaxed);
        writing.await.unwrap();
        stop.send_replace(true);
        assert!(changing.await.unwrap() > 1);
        let sql = "SELECT count(*) FROM shard_0001.users";
        let there: i64 = world
            .servers
            .superuser(0)
            .await
            .query_one(sql, &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(there as u64, written.load(Ordering::Relaxed));
    }

    /// A server that logical replication has filled lacks the values of sequences. `check` finds
    /// the shards that make no ID, and its remedy sets them right.
    async fn sequences_that_were_never_called_are_found(version) {
        let world = World::new(&[version, version], 4).await;
        let db1 = world.servers.app(0).await;
        let insert = "INSERT INTO shard_0001.users (name) VALUES ('a') RETURNING id";
        let before: i64 = db1.query_one(insert, &[]).await.unwrap().get(0);
        let restart = "ALTER SEQUENCE shard_0001.id_ticket RESTART; \
            ALTER SEQUENCE shard_0001.id_offset RESTART";
        world
            .servers
            .superuser(0)
            .await
            .batch_execute(restart)
            .await
            .unwrap();
        let refused = db1.query_one(insert, &[]).await.unwrap_err();
        let refused = refused.as_db_error().unwrap();
        assert!(
            refused.message().ends_with("were never called"),
            "{refused}"
        );
        assert!(
            refused.hint().unwrap().contains("`pgshard check`"),
            "{refused}"
        );
        let found = world.run(&["check"]).await.last()["findings"].clone();
        let found = found.as_array().unwrap();
        let unset = found.iter().find(|one| one["code"] == "ids_unset").unwrap();
        assert_eq!(unset["shard"], 1, "{unset}");
        let (_, remedy) = unset["remedy"].as_str().unwrap().split_once(": ").unwrap();
        db1.batch_execute(remedy).await.unwrap();
        let after: i64 = db1.query_one(insert, &[]).await.unwrap().get(0);
        assert!(after > before, "{after} {before}");
        world.run(&["check"]).await.ended(0);
    }

    /// A move that takes more connections than a host has left is refused by its plan, with the
    /// numbers.
    async fn a_plan_counts_the_connections_that_are_left(version) {
        let world = World::new(&[version, version], 4).await;
        let superuser = world.servers.superuser(0).await;
        let online = ["move", "1", "--to", "db2", "--mode", "online"];
        let mut takes = 0;
        for limit in [
            "ROLE app CONNECTION LIMIT 4",
            "DATABASE app CONNECTION LIMIT 4",
        ] {
            superuser
                .batch_execute(&format!("ALTER {limit}"))
                .await
                .unwrap();
            let refused = world.run(&[&online[..], &["--plan"]].concat()).await;
            refused.ended(4);
            assert!(refused.stderr.contains("allows 4"), "{}", refused.stderr);
            takes = number_after(&refused.stderr, "the move takes ");
            superuser
                .batch_execute(&format!("ALTER {}", limit.replace('4', "-1")))
                .await
                .unwrap();
        }
        // What the plan takes for enough is enough.
        let limit = format!("ALTER ROLE app CONNECTION LIMIT {takes}");
        superuser.batch_execute(&limit).await.unwrap();
        world
            .run(&[&online[..], &["--yes"]].concat())
            .await
            .ended(0);
    }

    /// No move has more sessions open at the same time, on either host, than its plan counts.
    async fn a_move_opens_no_more_sessions_than_its_plan_counts(version) {
        let mut world = World::new(&[version, version], 8).await;
        let mut config = std::fs::read_to_string(&world.config.path).unwrap();
        let mut counted = Vec::new();
        for server in world.servers.servers() {
            let (port, most) = counting_proxy(server.port()).await;
            config = config.replace(&format!(":{}/", server.port()), &format!(":{port}/"));
            counted.push(most);
        }
        world.config = Config::load(world.write("pgshard.toml", &config)).unwrap();
        let superuser = world.servers.superuser(0).await;
        let cases = [
            ("0", Mode::Online, 1),
            ("1", Mode::Blocking, 1),
            ("2,3", Mode::Online, 2),
        ];
        for (shards, mode, jobs) in cases {
            let mover = world.mover_with(Options::default().jobs(jobs).copy_jobs(1));
            let request = world.request(shards, "db2").mode(Some(mode));
            superuser
                .batch_execute("ALTER ROLE app CONNECTION LIMIT 2")
                .await
                .unwrap();
            let refused = mover.plan(&request).await.unwrap_err().to_string();
            let takes = number_after(&refused, "the move takes ");
            superuser
                .batch_execute("ALTER ROLE app CONNECTION LIMIT -1")
                .await
                .unwrap();
            let plan = mover.plan(&request).await.unwrap();
            counted
                .iter()
                .for_each(|most| most.store(0, Ordering::SeqCst));
            let report = mover.run(&plan).await;
            assert!(report.failed.is_empty(), "{report:?}");
            let most: Vec<u64> = counted
                .iter()
                .map(|most| most.load(Ordering::SeqCst))
                .collect();
            assert!(
                most.iter().all(|most| (1..=takes).contains(most)),
                "{shards} {mode:?}: {most:?}, not {takes}"
            );
        }
    }

    /// A mover waits a moment for a session where all are taken: others may just have ended.
    async fn a_mover_waits_while_sessions_end(version) {
        let world = World::new(&[version, version], 4).await;
        let superuser = world.servers.superuser(0).await;
        let others = [world.servers.app(0).await, world.servers.app(0).await];
        superuser
            .batch_execute("ALTER ROLE app CONNECTION LIMIT 2")
            .await
            .unwrap();
        let mover = world.mover();
        let listing = tokio::spawn(async move { mover.list(None).await });
        let log = world.servers.server(0).log();
        while !std::fs::read_to_string(&log)
            .unwrap()
            .contains("too many connections for role")
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(others);
        let listed = listing.await.unwrap();
        assert!(listed.unknown.is_empty(), "{listed:?}");
    }

    /// A table may be rewritten while its shard moves and is written to: by VACUUM FULL, and from
    /// PostgreSQL 19 on by REPACK (CONCURRENTLY), which decodes the WAL as a move does.
    async fn a_table_is_rewritten_while_its_shard_moves(version) {
        let world = World::new(&[version, version], 4).await;
        let (db1, router) = (world.servers.app(0).await, world.router().await);
        let rows =
            "INSERT INTO shard_0001.users (name) SELECT 'u' || n FROM generate_series(1, 2000) n";
        db1.batch_execute(rows).await.unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let until = over.clone();
        let writing = tokio::spawn(async move {
            let mut written = 0;
            while !until.load(Ordering::Relaxed) {
                let insert = "INSERT INTO {shard}.users (name) VALUES ('t')";
                router.by_key(1).execute(insert, &[]).await.unwrap();
                written += 1;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            written
        });
        let args = [
            "move", "1", "--to", "db2", "--mode", "online", "--yes", "--hold",
        ];
        let moving = world.command(&args, &[]).spawn().unwrap();
        until_true(
            &db1,
            "SELECT bool_or(phase = 'ready') FROM pgshard.move WHERE shard_id = 1",
        )
        .await;
        let rewrite = match version >= 19 {
            true => "REPACK (CONCURRENTLY) shard_0001.users",
            false => "VACUUM FULL shard_0001.users",
        };
        db1.batch_execute(rewrite).await.unwrap();
        world.run(&["moves", "continue"]).await.ended(0);
        Ran::of(moving).await.ended(0);
        over.store(true, Ordering::Relaxed);
        let written: i64 = writing.await.unwrap();
        let db2 = world.servers.app(1).await;
        let count = "SELECT count(*) FROM shard_0001.users";
        let there: i64 = db2.query_one(count, &[]).await.unwrap().get(0);
        assert_eq!(there, 2000 + written);
    }

    /// PostgreSQL 19 raises the level of its WAL when the first slot is created, so that its
    /// default is enough for an online move. Before, the plan refuses it.
    async fn an_online_move_needs_wal_level_logical_before_19(version) {
        let world = World::new(&[version, version], 4).await;
        for host in [0, 1] {
            let set = "ALTER SYSTEM SET wal_level = 'replica'";
            world
                .servers
                .superuser(host)
                .await
                .batch_execute(set)
                .await
                .unwrap();
            tokio::task::block_in_place(|| world.servers.server(host).restart(StopMode::Fast))
                .unwrap();
        }
        let moved = world
            .run(&["move", "1", "--to", "db2", "--mode", "online", "--yes"])
            .await;
        match version >= 19 {
            true => {
                let id = moved.ended(0).id();
                world
                    .run(&["moves", "rollback", &id, "--yes"])
                    .await
                    .ended(0);
            }
            false => assert!(
                moved.ended(4).stderr.contains("wal_level replica"),
                "{}",
                moved.stderr
            ),
        }
    }

    /// What PostgreSQL 19 has new works through a router, and while a shard moves: a row that is
    /// there is given back by ON CONFLICT DO SELECT, and a session of a standby waits by WAIT FOR
    /// for what its application has written. Before 19 the server refuses both.
    async fn statements_of_postgresql_19_work(version) {
        let world = World::with_standby(version, 4, 0).await;
        let router = world.router().await;
        let upsert = "INSERT INTO {shard}.users (id, name) VALUES ($1, 'a') \
            ON CONFLICT (id) DO SELECT RETURNING name";
        let shard = ShardId::new(0).unwrap();
        let first = router
            .shard(shard)
            .unwrap()
            .query_one(upsert, &[&7_i64])
            .await;
        let written = "SELECT pg_current_wal_insert_lsn()::text";
        let written: String = world
            .servers
            .app(0)
            .await
            .query_one(written, &[])
            .await
            .unwrap()
            .get(0);
        let wait = format!("WAIT FOR LSN '{written}' WITH (TIMEOUT '60s')");
        let standby = world.servers.app(2).await;
        let waited = standby.simple_query(&wait).await;
        if version < 19 {
            assert!(first.is_err() && waited.is_err(), "{first:?} {waited:?}");
            return;
        }
        assert_eq!(first.unwrap().get::<_, &str>(0), "a");
        waited.unwrap();
        let seen = "SELECT name FROM shard_0000.users WHERE id = 7";
        assert_eq!(
            standby
                .query_one(seen, &[])
                .await
                .unwrap()
                .get::<_, &str>(0),
            "a"
        );
        let update = "UPDATE {shard}.users SET name = 'b' WHERE id = $1";
        router
            .shard(shard)
            .unwrap()
            .execute(update, &[&7_i64])
            .await
            .unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let (until, writer) = (over.clone(), router.clone());
        let writing = tokio::spawn(async move {
            while !until.load(Ordering::Relaxed) {
                let row = writer
                    .shard(shard)
                    .unwrap()
                    .query_one(upsert, &[&7_i64])
                    .await
                    .unwrap();
                assert_eq!(row.get::<_, &str>(0), "b");
            }
        });
        let online = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
        world.run(&online).await.ended(0);
        over.store(true, Ordering::Relaxed);
        writing.await.unwrap();
    }

    /// If blocking was not requested, the plan gives the reason for it.
    async fn a_plan_states_why_it_is_blocking(version) {
        let world = World::new(&[version, version], 4).await;
        let set = "ALTER SYSTEM SET wal_level = 'minimal'; ALTER SYSTEM SET max_wal_senders = 0";
        for statement in set.split("; ") {
            world
                .servers
                .superuser(0)
                .await
                .batch_execute(statement)
                .await
                .unwrap();
        }
        tokio::task::block_in_place(|| world.servers.server(0).restart(StopMode::Fast)).unwrap();
        let mover = world.mover();
        let request = world.request("1", "db2").mode(None);
        let plan = mover.plan(&request).await.unwrap();
        assert_eq!(plan.mode, pgshard::mover::Mode::Blocking);
        assert!(
            plan.warnings
                .iter()
                .any(|one| one.contains("db1 has wal_level minimal")),
            "{:?}",
            plan.warnings
        );
        let asked = mover.plan(&world.request("1", "db2")).await.unwrap();
        assert!(
            !asked.warnings.iter().any(|one| one.contains("wal_level")),
            "{:?}",
            asked.warnings
        );
    }
}

/// What some service or other is known, or reported, not to provide.
const LACKING: [&str; 13] = [
    "pg_get_userbyid",
    "pg_logical_emit_message",
    "pg_control_system",
    "pg_create_logical_replication_slot",
    "pg_current_wal_insert_lsn",
    "pg_current_wal_lsn",
    "pg_postmaster_start_time",
    "pg_walfile_name",
    "pg_stat_get_wal_senders",
    "pg_last_wal_replay_lsn",
    "pg_table_size",
    "pg_terminate_backend",
    "pg_current_wal_flush_lsn",
];

fn revoked(what: &str, way: &str, function: &str) -> String {
    format!(
        "DO $$ DECLARE f regprocedure; BEGIN
            FOR f IN SELECT oid FROM pg_proc WHERE proname = '{function}'
                AND pronamespace = 'pg_catalog'::regnamespace LOOP
                EXECUTE format('{what} EXECUTE ON ROUTINE %s {way} PUBLIC', f);
            END LOOP;
        END $$"
    )
}

/// The functions that our SQL calls, by name, directly or by a view, and that PUBLIC may call.
async fn called(world: &World) -> Vec<String> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts = Vec::new();
    let mut folders = vec![root.join("src"), root.join("migrations")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            match entry.is_dir() {
                true => folders.push(entry),
                false => texts.push(std::fs::read_to_string(entry).unwrap()),
            }
        }
    }
    let text = texts.concat();
    let words: BTreeSet<String> = text
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .map(str::to_owned)
        .collect();
    let words: Vec<String> = words.into_iter().collect();
    let sql = "WITH RECURSIVE named AS (
            SELECT oid FROM pg_proc WHERE proname::text = ANY ($1) AND proname LIKE 'pg\\_%'
            UNION SELECT d.refobjid FROM pg_class c JOIN pg_rewrite r ON r.ev_class = c.oid
                JOIN pg_depend d ON d.objid = r.oid AND d.refclassid = 'pg_proc'::regclass
                WHERE c.relkind = 'v' AND c.relname::text = ANY ($1))
        SELECT DISTINCT p.proname::text FROM pg_proc p JOIN named USING (oid)
        WHERE p.pronamespace = 'pg_catalog'::regnamespace
            AND has_function_privilege('public', p.oid, 'EXECUTE') ORDER BY 1";
    let db1 = world.servers.app(0).await;
    let rows = db1.query(sql, &[&words]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Ends the moves with rows that could not be compared, by the command that `check` names.
async fn end_what_was_not_audited(world: &World) {
    let checked = world.run(&["check"]).await;
    for finding in checked.last()["findings"].as_array().unwrap() {
        if finding["code"] == "not_audited" {
            let remedy = finding["remedy"].as_str().unwrap();
            let command = remedy.split('`').nth(1).unwrap();
            let words = command.split_whitespace().skip(1);
            let yes = command.contains("complete").then_some("--yes");
            let words: Vec<&str> = words.chain(yes).collect();
            world.run(&words).await.ended(0);
        }
    }
}

/// Runs every command while the function may not be called.
async fn works_without(world: &World, console: &Console, function: &str) {
    for args in [
        &["check"][..],
        &["host", "list"],
        &["migrate", "status"],
        &["migrate", "up"],
        &["map", "show"],
        &["moves", "list"],
        &["rebalance", "--plan", "--by", "bytes"],
    ] {
        let ran = world.run(args).await;
        let named = format!("{}{}", ran.stdout, ran.stderr).contains(function);
        assert!(
            ran.code() == 0 || named,
            "{function}: {args:?}: {} {}",
            ran.stdout,
            ran.stderr
        );
    }
    let metrics = console.get("/metrics");
    assert_eq!(metrics.status, 200, "{function}");
    for host in ["db1", "db2"] {
        let up = format!("pgshard_host_up{{host=\"{host}\"}}");
        assert!(metrics.body.contains(&up), "{function}: {}", metrics.body);
    }
    assert_eq!(console.get("/hosts").status, 200, "{function}");
    for mode in ["online", "blocking"] {
        let target = ["db2", "db1"][world.host_of(1)];
        let args = ["move", "1", "--to", target, "--mode", mode];
        let before = world.all_about(1).await;
        let plan = world.run(&[&args[..], &["--plan"]].concat()).await;
        if plan.code() != 0 {
            assert!(
                plan.stderr.contains(function),
                "{function}: {}",
                plan.stderr
            );
            assert_eq!(world.all_about(1).await, before, "{function}");
            continue;
        }
        let ran = world.run(&[&args[..], &["--yes"]].concat()).await;
        assert_eq!(
            ran.code(),
            0,
            "{function}: {mode}: {} {}",
            ran.stdout,
            ran.stderr
        );
        let warned = warnings(&plan).iter().any(|one| one.contains(function));
        assert!(
            warned || !ran.stdout.contains("\"not audited\""),
            "{function}: {}",
            ran.stdout
        );
        let id = ran.id();
        if mode == "online" {
            let back = world.run(&["moves", "rollback", &id, "--yes"]).await;
            let warned = warnings(&plan)
                .iter()
                .any(|one| one.contains("no rollback"));
            assert!(
                back.code() == 0 || warned,
                "{function}: {} {}",
                back.stdout,
                back.stderr
            );
        }
        world.run(&["moves", "gc"]).await;
        let shown = world.run(&["moves", "complete", &id, "--yes"]).await;
        assert!(
            shown.code() == 0 || mode == "online",
            "{function}: {}",
            shown.stderr
        );
    }
}

/// What a plan warns of.
fn warnings(plan: &Ran) -> Vec<String> {
    let texts = |found: &Value| {
        let found = found.as_array().cloned().unwrap_or_default();
        found
            .iter()
            .filter_map(|one| Some(one.as_str()?.to_owned()))
            .collect::<Vec<_>>()
    };
    let plan = plan.last();
    let mut all = texts(&plan["warnings"]);
    for shard in plan["shards"].as_array().into_iter().flatten() {
        all.extend(texts(&shard["warnings"]));
    }
    all
}
