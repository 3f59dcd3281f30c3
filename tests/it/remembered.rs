//! What hosts remember about each other: a database that was lost, a host that the config does not
//! name, hosts that come and go.

use serde_json::Value;

use crate::support::World;

/// The findings other than notices: `code host shards`.
async fn findings(world: &World, args: &[&str]) -> Vec<String> {
    let report = world.run(&[&["check"], args].concat()).await.last();
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or("-").to_owned();
    let all = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["severity"] != "notice");
    all.map(|found| {
        format!(
            "{} {} {}",
            text(found, "code"),
            text(found, "host"),
            text(found, "shards")
        )
    })
    .collect()
}

/// Drops a host's database and creates it again, empty.
async fn lose(world: &World, host: usize) {
    let root = world
        .servers
        .server(host)
        .superuser_url()
        .replace("/app", "/postgres");
    let root = crate::support::connect(&root).await;
    root.batch_execute("DROP DATABASE app WITH (FORCE)")
        .await
        .unwrap();
    root.batch_execute("CREATE DATABASE app OWNER app")
        .await
        .unwrap();
}

async fn schemas(world: &World, host: usize) -> String {
    let sql = "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'shard%' OR nspname = \
        'pgshard' ORDER BY 1";
    crate::support::lines(&world.servers.app(host).await, sql).await
}

/// The text of the world's config without its third host, and with these shards on the first.
fn without_the_last(world: &World, on_db1: Option<&str>) -> String {
    let text = std::fs::read_to_string(&world.config.path).unwrap();
    let mut kept = Vec::new();
    let mut skip = false;
    for line in text.lines() {
        if line.starts_with('[') {
            skip = line.starts_with("[hosts.db3");
        }
        match on_db1 {
            _ if skip || line.starts_with("db3 = ") => {}
            Some(shards) if line.starts_with("db1 = ") => kept.push(format!("db1 = {shards:?}")),
            _ => kept.push(line.to_owned()),
        }
    }
    kept.join("\n")
}

on_each_version! {
    /// A database was dropped and created again: no command builds anything in its place until the
    /// operator declares its rows lost.
    async fn a_database_that_is_lost(version) {
        let world = World::new(&[version, version, version], 12).await;
        world
            .run(&["move", "0", "--to", "db3", "--yes"])
            .await
            .ended(0);
        world.run(&["check"]).await.ended(0);
        lose(&world, 2).await;

        let checked = world.run(&["check"]).await;
        let found = checked.ended(1).last()["findings"]
            .as_array()
            .unwrap()
            .clone();
        let emptied: Vec<_> = found
            .iter()
            .filter(|found| found["code"] == "host_emptied")
            .collect();
        assert_eq!(emptied.len(), 1, "{found:#?}");
        assert_eq!(
            (&emptied[0]["severity"], &emptied[0]["shards"]),
            (&"alarm".into(), &"0, 8-11".into()),
            "{found:#?}"
        );
        let remedy = emptied[0]["remedy"].as_str().unwrap();
        assert!(
            remedy.starts_with("restore its database")
                && remedy.contains(
                    "`pgshard bootstrap \
                --lost db3`"
                ),
            "{remedy}"
        );
        assert!(
            found
                .iter()
                .all(|found| found["remedy"] != "run `pgshard bootstrap`"),
            "{found:#?}"
        );

        let before = world.published();
        for (args, words) in [
            (
                &["bootstrap"][..],
                "its database is empty, and db1 knows that shards 0, 8-11 were \
                there",
            ),
            (
                &["bootstrap", "--host", "db3"],
                "its database is empty, and db1 knows that shards 0, \
                8-11 were there",
            ),
            (&["bootstrap", "--lost", "db2"], "its database is empty"),
            (
                &["bootstrap", "--lost", "db33"],
                "--lost db33: neither the config nor a host that \
                answers knows",
            ),
            (
                &["bootstrap", "--assume-empty", "db3"],
                "its database is empty",
            ),
            (
                &["move", "1", "--to", "db3", "--yes"],
                "the database has lost shards 0, 8-11, which db1 knows were there",
            ),
            (
                &["host", "remove", "db3", "--yes"],
                "db1 knows that shards 0, 8-11 were on db3, and \
                no host serves them",
            ),
        ] {
            let ran = world.run(args).await;
            assert_eq!(ran.code(), 4, "{args:?}\n{}\n{}", ran.stdout, ran.stderr);
            assert!(ran.stderr.contains(words), "{args:?}\n{}", ran.stderr);
        }
        let rebuilt = world.run(&["map", "rebuild", "--yes"]).await;
        assert!(
            rebuilt
                .stderr
                .contains("knows that it was on db3, and no host serves it"),
            "{}{}",
            rebuilt.stdout,
            rebuilt.stderr
        );
        assert_eq!(
            (world.published(), schemas(&world, 2).await.as_str()),
            (before, "")
        );

        // What came by a move may still be on the host that it came from: that is not made again.
        let made = world.run(&["bootstrap", "--lost", "db3"]).await;
        assert!(
            made.ended(8).stderr.contains(
                "db3: shard 0: db1 says that it has moved to db3 (epoch \
                2)"
            ),
            "{}",
            made.stderr
        );
        assert_eq!(made.last()["hosts"]["db3"]["created"], 4, "{}", made.stdout);
        assert_eq!(findings(&world, &[]).await, ["served_nowhere db3 0"]);
        world.run(&["bootstrap"]).await.ended(1);
        world.run(&["moves", "repair", "0", "--yes"]).await.ended(4);
        world
            .run(&["moves", "repair", "0", "--give-up", "db3", "--yes"])
            .await
            .ended(0);
        assert_eq!(world.state(0, 0).await, "serving");
        world.run(&["moves", "gc"]).await.ended(0);
        assert_eq!(findings(&world, &[]).await, [""; 0]);

        // One shard was removed, with its row.
        let db2 = world.servers.app(1).await;
        db2.batch_execute(
            "DROP SCHEMA shard_0005 CASCADE; DELETE FROM pgshard.shard_migration WHERE shard_id = 5;
            DELETE FROM pgshard.shard WHERE shard_id = 5",
        )
        .await
        .unwrap();
        assert!(
            findings(&world, &[])
                .await
                .contains(&"shard_lost db2 5".to_owned())
        );
        let ran = world.run(&["bootstrap"]).await;
        assert!(
            ran.ended(1).stderr.contains(
                "shard 5: db1 knows that it was on db2, which no longer \
                knows it"
            ),
            "{}",
            ran.stderr
        );
        world
            .run(&["move", "1", "--to", "db2", "--yes"])
            .await
            .ended(4);
    }

    /// A config from before a host was added makes none of its shards a second time, and `check`
    /// and `migrate up` report what is missing. A host that leaves properly, and one that comes
    /// again, cause no alarm. A cluster that has no records gets them from bootstrap.
    async fn hosts_that_come_and_go(version) {
        let world = World::new(&[version, version, version], 12).await;
        let old = world.write("old.toml", &without_the_last(&world, Some("0-3, 8-11")));
        let old = ["--config", old.to_str().unwrap()];
        assert_eq!(findings(&world, &old).await, ["host_absent db3 8-11"]);
        let ran = world.run(&[&["bootstrap"][..], &old].concat()).await;
        let words = "db1: shards 8-11: db1 knows that it was on db3, which the config does not \
            name";
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
        assert_ne!(ran.code(), 0);
        assert!(!schemas(&world, 0).await.contains("shard_0008"));
        let ran = world.run(&[&["migrate", "up"][..], &old].concat()).await;
        let words = "shards 8-11: no host says that it serves it: db1 knows that it was on db3, \
            which the \
                config does not name";
        assert!(ran.ended(8).stderr.contains(words), "{}", ran.stderr);
        assert_eq!(ran.last()["unserved"], "8-11", "{}", ran.stdout);
        world.run(&["migrate", "up"]).await.ended(0);

        // Once it is drained and removed, no host knows it; its shards are known where they are
        // now.
        world
            .run(&["drain", "db3", "--yes", "--complete"])
            .await
            .ended(0);
        world
            .run(&["host", "remove", "db3", "--yes"])
            .await
            .ended(0);
        let db1 = world.servers.app(0).await;
        let known = "SELECT host_name || ': ' || shards FROM pgshard.known_host ORDER BY 1";
        let written = crate::support::lines(&db1, known).await;
        assert!(
            !written.contains("db3") && written.contains("@2"),
            "{written}"
        );
        assert_eq!(
            written,
            crate::support::lines(&world.servers.app(1).await, known).await
        );
        world.run(&["check"]).await.ended(0);
        world.run(&["bootstrap"]).await.ended(0);

        // It comes again, as it was left and as an empty database.
        for empty in [false, true] {
            if empty {
                lose(&world, 2).await;
            }
            world
                .run(&["host", "add", "db3", &world.servers.server(2).url()])
                .await
                .ended(0);
            assert!(crate::support::lines(&db1, known).await.contains("db3: \n"));
            world.run(&["check"]).await.ended(0);
            world
                .run(&["host", "remove", "db3", "--yes"])
                .await
                .ended(0);
        }
        // It is removed by hand while it has no shards: it is forgotten with `--lost`.
        world
            .run(&["host", "add", "db3", &world.servers.server(2).url()])
            .await
            .ended(0);
        let path = world.write("two.toml", &without_the_last(&world, None));
        let two = ["--config", path.to_str().unwrap()];
        assert_eq!(findings(&world, &two).await, ["host_absent db3 -"]);
        world
            .run(&[&["bootstrap", "--lost", "db3"][..], &two].concat())
            .await
            .ended(0);
        assert_eq!(findings(&world, &two).await, [""; 0]);

        // A cluster of an earlier version: a mover's error contains what to do, and bootstrap
        // records what the hosts agree on.
        for host in [0, 1, 2] {
            let sql = "DROP TABLE pgshard.known_host, pgshard.identity;
                DELETE FROM pgshard.control_migration WHERE version >= 7";
            world
                .servers
                .app(host)
                .await
                .batch_execute(sql)
                .await
                .unwrap();
        }
        let ran = world.run(&["move", "0", "--to", "db2", "--yes"]).await;
        let words = "has a control schema of version 6, and this pgshard works with version 8: \
            run `pgshard bootstrap \
                     --host db1`";
        assert!(ran.stderr.contains(words), "{} {}", ran.code(), ran.stderr);
        assert!(
            findings(&world, &[])
                .await
                .iter()
                .all(|found| found.starts_with("control_old "))
        );
        world.run(&["migrate", "plan"]).await.ended(8);
        // A session with a lock keeps it from being brought up to date, and routers and movers do
        // not wait behind it for long.
        let reader = world.servers.app(0).await;
        let sql = "ALTER TABLE pgshard.move DROP COLUMN audited_at";
        reader.batch_execute(sql).await.unwrap();
        reader
            .batch_execute("BEGIN; SELECT FROM pgshard.move")
            .await
            .unwrap();
        let waited = world.run(&["bootstrap", "--host", "db1"]).await;
        assert!(
            waited.ended(1).stderr.contains(
                "as pg_dump does until it \
            ends"
            ),
            "{}",
            waited.stderr
        );
        reader.batch_execute("COMMIT").await.unwrap();
        // Whichever role does it, the config's role can continue with it.
        let mut text = std::fs::read_to_string(&world.config.path).unwrap();
        for host in [0, 1, 2] {
            let server = world.servers.server(host);
            text = text.replace(&server.url(), &server.superuser_url());
        }
        let superuser = world.write("superuser.toml", &text);
        world
            .run(&["bootstrap", "--config", superuser.to_str().unwrap()])
            .await
            .ended(0);
        world.run(&["bootstrap"]).await.ended(0);
        world.run(&["check"]).await.ended(0);
        world
            .run(&["move", "0", "--to", "db2", "--yes"])
            .await
            .ended(0);

        // One of a later version: it may have what this mover would leave out.
        let later = "INSERT INTO pgshard.control_migration (version, name, checksum) VALUES (99, \
            'later', '')";
        world
            .servers
            .app(2)
            .await
            .batch_execute(later)
            .await
            .unwrap();
        let ran = world.run(&["move", "0", "--to", "db3", "--yes"]).await;
        assert!(
            ran.ended(1).stderr.contains("use the newer pgshard"),
            "{}",
            ran.stderr
        );
    }
}
