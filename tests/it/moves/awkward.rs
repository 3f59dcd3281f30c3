//! Statements and tables that a stream of changes might not expect, while a shard moves online and
//! is taken back. After each open the copy that was left is compared with what is served, row by
//! row: it has what the source had when it was fenced.

use std::time::Duration;

use tokio::process::Child;
use tokio_postgres::Client;

use crate::support::{World, lines, never_stopped};

/// The tables, and what is done to them: `awkward.sql`.
struct Script {
    tables: Vec<String>,
    again: Vec<String>,
}

impl Script {
    /// What a server of this version can do, which may be built without ICU.
    fn read(version: u32, has_icu: bool) -> Script {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/moves/awkward.sql");
        let mut text = std::fs::read_to_string(path)
            .unwrap()
            .replace("{s}", "shard_0000");
        if version < 14 {
            // No numeric is infinite there.
            text = text.replace("'-Infinity'", "-1e300");
        }
        let mut script = Script {
            tables: Vec::new(),
            again: Vec::new(),
        };
        for case in text.split("\n-- tables").skip(1) {
            let (tables, again) = case.split_once("\n-- again\n").expect("a case has both");
            if tables.starts_with(" from 18") && version < 18
                || tables.starts_with(" with ICU") && !has_icu
            {
                continue;
            }
            script.tables.push(format!("--{tables}"));
            // MERGE came with 15.
            let known =
                |line: &&str| !line.is_empty() && (version >= 15 || !line.starts_with("MERGE"));
            script
                .again
                .extend(again.lines().filter(known).map(str::to_owned));
        }
        assert!(script.tables.len() > 10 && script.again.len() > 50);
        script
    }
}

/// Settings of a role or of a database that change how texts look, how they are read, or how long a
/// session lasts; a different list for each host.
const SETTINGS: [&str; 2] = [
    "DateStyle = 'German, DMY'; IntervalStyle = 'sql_standard'; extra_float_digits = -15; \
        bytea_output = 'escape'; \
     TimeZone = 'Asia/Kolkata';
     array_nulls = off; xmloption = document; quote_all_identifiers = on; transform_null_equals = \
     on; \
     default_transaction_isolation = 'serializable';
     search_path = 'shard_0000'; lock_timeout = '3s'; statement_timeout = '60s'; \
     default_transaction_deferrable = on; \
     enable_indexscan = off; backslash_quote = off",
    "DateStyle = 'SQL, MDY'; IntervalStyle = 'iso_8601'; extra_float_digits = 0; TimeZone = \
        'America/St_Johns'; \
     array_nulls = off;
     default_transaction_isolation = 'repeatable read'; row_security = off; enable_seqscan = off; \
     enable_indexscan = \
     off; plan_cache_mode = force_generic_plan",
];

/// The application: runs all statements, round after round.
struct Application {
    client: Client,
    statements: Vec<String>,
    round: u32,
}

impl Application {
    /// Runs one round. Returns false if the shard is closed here.
    async fn round(&mut self) -> bool {
        self.round += 1;
        for statement in &self.statements {
            let sql = statement.replace("{n}", &self.round.to_string());
            let Err(error) = self.client.batch_execute(&sql).await else {
                continue;
            };
            self.client
                .batch_execute("ROLLBACK; RESET session_replication_role; RESET synchronous_commit")
                .await
                .unwrap();
            let state = lines(
                &self.client,
                "SELECT state FROM pgshard.shard WHERE shard_id = 0",
            )
            .await;
            assert!(
                state != "serving\n" || error.code().is_some_and(|code| code.code() == "SH001"),
                "{sql}: {error:?}"
            );
            // A prepared transaction would keep the fence from closing.
            for prepared in lines(&self.client, "SELECT gid FROM pg_prepared_xacts")
                .await
                .lines()
            {
                self.client
                    .batch_execute(&format!("COMMIT PREPARED '{prepared}'"))
                    .await
                    .unwrap();
            }
            return false;
        }
        true
    }

    /// Works until the target has applied changes of all tables.
    async fn until_they_are_applied(&mut self, target: &Client) {
        for _ in 0..200 {
            assert!(
                self.round().await,
                "the shard is open until the mover goes on"
            );
            if lines(target, BY_AN_INDEX).await == ALL {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        assert_eq!(lines(target, BY_AN_INDEX).await, ALL);
    }

    /// Works while a command runs that stops itself before it fences the shard; then runs one more
    /// round, and continues until the shard is closed.
    async fn meanwhile(&mut self, child: Child, target: &Client) {
        let pid = child.id().unwrap();
        let first = self.round;
        while !["T", "Z"].contains(&state_of(pid).as_str()) {
            assert!(
                self.round().await,
                "the shard is open until the mover goes on"
            );
            // A mover that is not optimized, and does other work, must be able to keep up.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        eprintln!("{} rounds before the fence", self.round - first);
        if state_of(pid) == "T" {
            by_an_index(target).await;
            assert!(
                self.round().await,
                "the shard is open until the mover goes on"
            );
        }
        let ran = tokio::spawn(never_stopped(child));
        while !ran.is_finished() && self.round().await {}
        ran.await.unwrap().ended(0);
    }
}

/// Which of the tables without a key, but with something to hash, have found rows of changes by an
/// index; without those that not every server has.
const BY_AN_INDEX: &str = "SELECT relname::text || ' ' || (idx_scan > 0) FROM pg_stat_all_indexes
    WHERE indexrelname LIKE 'pgshard\\_rows\\_%' AND relname NOT LIKE 'cases%' ORDER BY 1";

/// The expected result, once there were enough changes.
const ALL: &str = "altered_full true\ncomputed_full true\ncounted_full true\nkinds \
    true\nlarge_full true\nlate \
                   true\nlater true\npairs true\n";

/// Waits until changes of such tables have found their rows by an index: a server counts that late,
/// especially for an idle session. On a slow machine some changes may have come before their index
/// was built.
async fn by_an_index(target: &Client) {
    for _ in 0..600 {
        if lines(target, BY_AN_INDEX).await.contains("true") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!(
        "no change has found its row by an index:\n{}",
        lines(target, BY_AN_INDEX).await
    );
}

/// The state of a process: `R`, `S`, `T` if it has stopped itself, `Z` if it has ended.
fn state_of(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1[..1].to_owned()
}

/// Checks that every table that one host serves has the rows of the copy that the other has kept,
/// and the same columns and indexes.
async fn same_as_left(world: &World, serving: usize, left: &str) {
    let (here, there) = (
        world.servers.superuser(serving).await,
        world.servers.superuser(1 - serving).await,
    );
    let tables = "SELECT relname::text FROM pg_class WHERE relnamespace = \
        'shard_0000'::regnamespace AND relkind = 'r' \
                  ORDER BY 1";
    let tables = lines(&here, tables).await;
    let mut different = String::new();
    for table in tables.lines() {
        let rows =
            |schema: &str| format!("SELECT one_row::text FROM {schema}.{table} one_row ORDER BY 1");
        let definition = |schema: &str| {
            format!(
                "SELECT concat_ws(' ', attname, format_type(atttypid, atttypmod), attidentity, \
                attgenerated, attnotnull)
             FROM pg_attribute
             WHERE attrelid = '{schema}.{table}'::regclass AND attnum > 0 AND NOT attisdropped
             UNION ALL SELECT indexrelid::regclass::text || indisprimary || indisreplident FROM \
             pg_index
             WHERE indrelid = '{schema}.{table}'::regclass
                 AND NOT ('{schema}' LIKE '%left%' AND indexrelid::regclass::text LIKE \
                 '%pgshard\\_rows\\_%')
             ORDER BY 1"
            )
        };
        for (sql, what) in [
            (&rows as &dyn Fn(&str) -> String, "rows"),
            (&definition, "definition"),
        ] {
            let ours = lines(&here, &sql("shard_0000"))
                .await
                .replace("shard_0000.", "");
            let theirs = lines(&there, &sql(left))
                .await
                .replace(&format!("{left}."), "");
            if ours != theirs {
                let only = |a: &str, b: &str| {
                    a.lines()
                        .filter(|line| !b.lines().any(|other| other == *line))
                        .take(5)
                        .map(|line| line.chars().take(300).collect::<String>())
                        .collect::<Vec<_>>()
                        .join("\n  ")
                };
                different += &format!(
                    "{table}, {what}: {} and {}\n  served only:\n  {}\n  left only:\n  {}\n",
                    ours.lines().count(),
                    theirs.lines().count(),
                    only(&ours, &theirs),
                    only(&theirs, &ours)
                );
            }
        }
    }
    assert!(different.is_empty(), "{different}");
}

on_each_version! {
    /// All of them, forward and back.
    async fn statements_that_a_stream_might_not_expect(version) {
        let world = World::new(&[version, version], 2).await;
        let icu = "SELECT (count(*) > 0)::text FROM pg_collation WHERE collname LIKE '%-x-icu'";
        let has_icu = lines(&world.servers.app(0).await, icu).await == "true\n";
        assert!(has_icu || version != 15, "Debian's servers have it");
        let script = Script::read(version, has_icu);
        for tables in &script.tables {
            world
                .servers
                .app(0)
                .await
                .batch_execute(tables)
                .await
                .unwrap_or_else(|error| panic!("{tables}: {error:?}"));
        }
        for (host, settings) in SETTINGS.iter().enumerate() {
            let newer = [
                (
                    14,
                    "idle_session_timeout = \
                '500ms'",
                ),
                (
                    17,
                    "transaction_timeout = \
                '500ms'",
                ),
            ];
            let newer = newer
                .into_iter()
                .filter(|(since, _)| version >= *since)
                .map(|(_, setting)| setting);
            for setting in settings.split(';').chain(newer) {
                world
                    .servers
                    .superuser(host)
                    .await
                    .batch_execute(&format!("ALTER ROLE app SET {setting}"))
                    .await
                    .unwrap();
            }
        }
        let stop = ("PGSHARD_FAILPOINT", "before swap=stop");
        let mut application = Application {
            client: world.servers.superuser(0).await,
            statements: script.again,
            round: 0,
        };
        assert!(application.round().await);
        let args = [
            "move", "0", "--to", "db2", "--mode", "online", "--yes", "--hold",
        ];
        let child = world.command(&args, &[stop]).spawn().unwrap();
        application
            .until_they_are_applied(&world.servers.superuser(1).await)
            .await;
        let id = lines(
            &world.servers.app(0).await,
            "SELECT move_id::text FROM pgshard.move",
        )
        .await;
        world.run(&["moves", "continue", id.trim()]).await.ended(0);
        application
            .meanwhile(child, &world.servers.superuser(1).await)
            .await;
        same_as_left(&world, 1, "shard_0000__left_e1").await;

        application.client = world.servers.superuser(1).await;
        assert!(application.round().await);
        let child = world
            .command(&["moves", "rollback", id.trim(), "--yes"], &[stop])
            .spawn()
            .unwrap();
        application
            .meanwhile(child, &world.servers.superuser(0).await)
            .await;
        same_as_left(&world, 0, "shard_0000__left_e2").await;
        application.client = world.servers.superuser(0).await;
        assert!(application.round().await);
        for host in 0..2 {
            world
                .servers
                .superuser(host)
                .await
                .batch_execute(
                    "ALTER ROLE app RESET \
                ALL",
                )
                .await
                .unwrap();
        }
        world.audit_places().await;
        if version >= 18 {
            // Once published it would refuse UPDATE and DELETE: it is lent its primary key, if it
            // has one.
            let full = "ALTER TABLE shard_0000.virtual REPLICA IDENTITY FULL";
            world
                .servers
                .app(0)
                .await
                .batch_execute(full)
                .await
                .unwrap();
            let args = ["move", "0", "--to", "db2", "--mode", "online", "--plan"];
            let plan =
                world.run(&args).await.ended(0).last()["shards"][0]["lent_identities"].to_string();
            assert_eq!(plan, r#"[{"index":"virtual_pkey","table":"virtual"}]"#);
            let keyless = "ALTER TABLE shard_0000.virtual DROP CONSTRAINT virtual_pkey";
            world
                .servers
                .app(0)
                .await
                .batch_execute(keyless)
                .await
                .unwrap();
            let refused = world.run(&args).await;
            assert!(
                refused.ended(4).stderr.contains("virtual generated column"),
                "{}",
                refused.stderr
            );
        }
    }
}
