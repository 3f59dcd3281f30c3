//! What a migration's file leaves in its session, what a run leaves on the servers, and how much
//! memory it takes.

use std::time::Duration;

use crate::support::{Ran, TABLES, World, lines};

/// Two files that leave everything in the session, and use the same names; the first removes the
/// guard against queues.
const UNTIDY: [(&str, &str); 2] = [
    (
        "0002_untidy.sql",
        "SET lock_timeout = 0; SELECT pg_catalog.set_config('lock_timeout', '0', false);
         CREATE TEMP TABLE scratch (one int); PREPARE one AS SELECT 1; DECLARE here CURSOR WITH \
         HOLD FOR SELECT 1;
         SET datestyle = 'German'; SELECT pg_catalog.pg_advisory_lock(1, {shard_id});
         ALTER TABLE {shard}.photos ADD COLUMN caption text; SET statement_timeout = '50ms'",
    ),
    (
        "0003_untidy.sql",
        "CREATE TEMP TABLE scratch (two int); PREPARE one AS SELECT 2; DECLARE here CURSOR WITH \
            HOLD FOR SELECT 2;
         SELECT pg_catalog.pg_sleep(0.1);
         CREATE TABLE {shard}.days AS SELECT DATE '2026-11-22'::text AS day,
         pg_catalog.current_setting('lock_timeout') AS guard",
    ),
];

/// A deferred trigger notes the settings that it meets at the COMMIT, and leaves others behind in
/// the session. The file itself notes what it begins with.
const LATE: &str = "CREATE TABLE {shard}.met AS SELECT format('%s %s %s', \
    current_setting('statement_timeout'),
        current_setting('transaction_isolation'), current_setting('transaction_read_only')) AS what;
    CREATE TABLE {shard}.notes (id int);
    CREATE FUNCTION {shard}.late() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
        INSERT INTO {shard}.met SELECT format('%s %s %s', current_setting('timezone'), \
        current_setting('datestyle'),
            current_setting('lock_timeout'));
        PERFORM set_config('statement_timeout', '1ms', false), set_config('search_path', \
        'nowhere', false),
            set_config('default_transaction_read_only', 'on', false), pg_advisory_lock(2, \
            {shard_id}),
            set_config('default_transaction_isolation', 'serializable', false);
        RETURN NULL;
    END$$;
    CREATE CONSTRAINT TRIGGER late AFTER INSERT ON {shard}.notes DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION {shard}.late();
    INSERT INTO {shard}.notes VALUES (1)";

on_each_version! {
    /// What runs at the COMMIT of a shard meets the same settings on every host, whatever the
    /// role's own are; and what it leaves behind does not reach the next shard, neither its files
    /// nor the record of one that failed.
    async fn what_a_deferred_trigger_meets_and_leaves(version) {
        let world = World::new(&[version], 8).await;
        let superuser = world.servers.superuser(0).await;
        let own = "ALTER ROLE app SET timezone = 'Asia/Tokyo'; ALTER ROLE app SET datestyle = \
            'German';
            ALTER ROLE app SET default_transaction_read_only = on";
        superuser.batch_execute(own).await.unwrap();
        world.file(("migrations/0002_late.sql", LATE));
        let fails = "SELECT 1 / CASE {shard_id} WHEN 5 THEN (SELECT count(*) FROM {shard}.users) \
            ELSE 1 END";
        world.file(("migrations/0003_fails.sql", fails));
        let ran = world.run(&["migrate", "up", "--jobs", "1"]).await;
        let failed = ran.ended(8).last()["hosts"]["db1"]["failed"].clone();
        let failed = failed.as_array().unwrap();
        assert!(
            failed.len() == 1
                && failed[0]["message"].as_str().unwrap().contains(
                    "division by \
            zero"
                ),
            "{failed:?}"
        );
        let attempts = "SELECT shard_id::text FROM pgshard.migration_attempt WHERE message LIKE \
            '%division by zero%'";
        assert_eq!(
            lines(&superuser, attempts).await.trim(),
            "5",
            "its failure is on record"
        );
        superuser
            .batch_execute("INSERT INTO shard_0005.users VALUES (1, 'a')")
            .await
            .unwrap();
        world
            .run(&["migrate", "retry", "--jobs", "1"])
            .await
            .ended(0);
        assert_eq!(
            (
                world.recorded("0002_late").await,
                world.recorded("0003_fails").await
            ),
            (8, 8)
        );
        let each: Vec<String> = (0..8)
            .map(|shard| format!("SELECT what FROM shard_{shard:04}.met"))
            .collect();
        let met = lines(
            &superuser,
            &format!("{} ORDER BY 1", each.join(" UNION ALL ")),
        )
        .await;
        let met: Vec<&str> = met.lines().collect();
        assert_eq!(met.len(), 16, "{met:?}");
        assert!(
            met[..8].iter().all(|what| *what == "0 read committed off"),
            "{met:?}"
        );
        assert!(
            met[8..].iter().all(|what| *what == "UTC ISO, YMD 100ms"),
            "{met:?}"
        );
    }

    /// A role with short limits on sessions and transactions has migrations that take longer.
    async fn limits_of_the_role(version) {
        let world = World::new(&[version], 4).await;
        let superuser = world.servers.superuser(0).await;
        superuser
            .batch_execute("ALTER ROLE app SET idle_session_timeout = '200ms'")
            .await
            .unwrap();
        if version >= 17 {
            superuser
                .batch_execute(
                    "ALTER ROLE app SET transaction_timeout = \
                '200ms'",
                )
                .await
                .unwrap();
        }
        let busy = async {
            superuser
                .batch_execute(
                    "BEGIN; SELECT FROM shard_0003.photos; SELECT pg_sleep(2); \
                COMMIT",
                )
                .await
                .unwrap();
        };
        world.file((
            "migrations/0002_long.sql",
            "SELECT pg_sleep(0.5); ALTER TABLE {shard}.photos \
            ADD COLUMN a int",
        ));
        let args = ["migrate", "up", "--jobs", "1"];
        let ran = tokio::join!(world.run(&args), busy).0;
        ran.ended(0);
        assert!(!ran.stderr.contains("lost"), "{}", ran.stderr);
        assert_eq!(world.having("a").await, 4);
    }

    /// Every file finds a session as if it were the first: one after the other in a shard, shard
    /// after shard on one connection, in new shards and in existing ones. None waits in a queue for
    /// longer than it may, whatever it sets.
    async fn files_that_leave_their_session_untidy(version) {
        let [first, second] = UNTIDY;
        let made =
            World::with_tables(&[version], 3, &[("0001_tables.sql", TABLES), first, second]).await;
        let world = World::new(&[version], 6).await;
        for (name, sql) in UNTIDY {
            world.file((&format!("migrations/{name}"), sql));
        }
        let db1 = world.servers.app(0).await;
        let holder = world.servers.app(0).await;
        holder
            .batch_execute("BEGIN; SELECT FROM shard_0003.photos")
            .await
            .unwrap();
        let ran = world
            .run(&["migrate", "up", "--patience-s", "1", "--jobs", "1"])
            .await;
        let failed = ran.ended(8).last()["hosts"]["db1"]["failed"].clone();
        let busy = failed[0]["message"].as_str().unwrap();
        assert!(
            failed.as_array().unwrap().len() == 1 && busy.contains("lock timeout"),
            "{failed}"
        );
        holder.batch_execute("COMMIT").await.unwrap();
        world.run(&["migrate", "retry"]).await.ended(0);
        assert_eq!(
            (
                world.recorded("0003_untidy").await,
                made.recorded("0003_untidy").await
            ),
            (6, 3)
        );
        let days = "SELECT day, guard FROM shard_0003.days";
        let row = db1.query_one(days, &[]).await.unwrap();
        assert_eq!(
            (row.get::<_, &str>(0), row.get::<_, &str>(1)),
            ("2026-11-22", "100ms")
        );
        let same = "SELECT day FROM shard_0002.days";
        assert_eq!(
            made.servers
                .app(0)
                .await
                .query_one(same, &[])
                .await
                .unwrap()
                .get::<_, &str>(0),
            "2026-11-22"
        );
    }

    /// Ctrl-C, SIGTERM and SIGKILL end what the server does, so that the application does not wait
    /// behind it. If something is still running, the next run reports which process it is.
    async fn a_run_that_is_interrupted(version) {
        let world = World::new(&[version], 4).await;
        world.file((
            "migrations/0002_long.sql",
            "LOCK TABLE {shard}.photos; SELECT pg_catalog.pg_sleep(CASE {shard_id} WHEN 1 THEN \
                3600 ELSE 0 END)",
        ));
        let db1 = world.servers.app(0).await;
        let asleep = async || {
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgshard \
                migrate' \
                       AND wait_event = 'PgSleep'";
            db1.query_one(sql, &[]).await.unwrap().get::<_, i64>(0)
        };
        for signal in [
            rustix::process::Signal::INT,
            rustix::process::Signal::TERM,
            rustix::process::Signal::KILL,
        ] {
            let up = world.command(&["migrate", "up"], &[]).spawn().unwrap();
            while asleep().await == 0 || world.recorded("0002_long").await < 3 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let pid = i32::try_from(up.id().unwrap()).unwrap();
            rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal)
                .unwrap();
            let ran = Ran::of(up).await;
            if signal != rustix::process::Signal::KILL {
                assert!(
                    ran.ended(130).stderr.contains("it does what is left"),
                    "{}",
                    ran.stderr
                );
            }
            // It would sleep for an hour.
            db1.batch_execute(
                "INSERT INTO shard_0001.users VALUES (1, 'a') ON CONFLICT DO NOTHING;
                INSERT INTO shard_0001.photos (user_id, title) VALUES (1, 'x')",
            )
            .await
            .unwrap();
            assert_eq!(asleep().await, 0);
        }
        assert_eq!(world.recorded("0002_long").await, 3);

        let stray = world.servers.app(0).await;
        let sql = "SET application_name = 'a stray'; SELECT \
            pg_catalog.pg_advisory_lock_shared(1885827944, 3)";
        stray.batch_execute(sql).await.unwrap();
        let pid: i32 = stray
            .query_one("SELECT pg_backend_pid()", &[])
            .await
            .unwrap()
            .get(0);
        let ran = world.run(&["migrate", "up", "--only", "0"]).await;
        let named = format!("at work on it: process {pid} (a stray, since ");
        assert!(
            ran.code() != 0 && ran.stderr.contains(&named),
            "{}",
            ran.stderr
        );
    }

    /// A file of several megabytes is not held in memory once for each shard.
    async fn a_large_file_and_many_shards(version) {
        let world = World::new(&[version], 64).await;
        let seed = format!(
            "CREATE TABLE {{shard}}.seed AS SELECT \
            length('{}')",
            "seed ".repeat(600_000)
        );
        world.file(("migrations/0002_seed.sql", &seed));
        let up = world
            .command(&["migrate", "up", "--jobs", "1"], &[])
            .spawn()
            .unwrap();
        let status = format!("/proc/{}/status", up.id().unwrap());
        let watch = tokio::spawn(async move {
            let mut most = 0_u64;
            while let Ok(text) = tokio::fs::read_to_string(&status).await {
                let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
                let Some(kib) = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok())
                else {
                    break;
                };
                most = most.max(kib);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            most / 1024
        });
        Ran::of(up).await.ended(0);
        let most = watch.await.unwrap();
        assert_eq!(world.recorded("0002_seed").await, 64);
        assert!(
            (1..120).contains(&most),
            "64 times 3 MB would be 192 MiB; it took {most} MiB"
        );
    }
}
