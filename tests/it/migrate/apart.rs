//! Files that do not go into one transaction: a value that is used after it was added, a table that
//! is altered while its deferred constraint is still to be checked.

use std::time::{Duration, Instant};

use crate::support::{Ran, World, lines};

const FIRST: (&str, &str) = (
    "0001_tables.sql",
    "CREATE TYPE {shard}.mood AS ENUM ('a');
     CREATE TABLE {shard}.photos (id bigint PRIMARY KEY, mood {shard}.mood);
     CREATE TABLE {shard}.albums (id bigint PRIMARY KEY,
        cover bigint REFERENCES {shard}.photos DEFERRABLE INITIALLY DEFERRED)",
);

const LATER: [(&str, &str); 4] = [
    ("0002_value.sql", "ALTER TYPE {shard}.mood ADD VALUE 'b'"),
    (
        "0003_default.sql",
        "ALTER TABLE {shard}.photos ALTER mood SET DEFAULT 'b'",
    ),
    (
        "0004_rows.sql",
        "INSERT INTO {shard}.photos VALUES (1); INSERT INTO {shard}.albums VALUES (1, 1)",
    ),
    (
        "0005_title.sql",
        "ALTER TABLE {shard}.albums ADD COLUMN title text",
    ),
];

/// What the files have made in each shard that is served, with its rows.
async fn made(world: &World) -> Vec<String> {
    let db1 = world.servers.app(0).await;
    let mut made = Vec::new();
    for schema in lines(
        &db1,
        "SELECT schema_name FROM pgshard.shard WHERE state = 'serving' ORDER BY 1",
    )
    .await
    .lines()
    {
        let sql = format!(
            "SELECT string_agg(name, ' ' ORDER BY name) FROM pgshard.shard_migration JOIN \
                pgshard.shard USING (shard_id)
             WHERE schema_name = '{schema}' AND name < '0006'
             UNION ALL SELECT id || coalesce(mood::text, '') FROM {schema}.photos
             UNION ALL SELECT id || ' ' || cover FROM {schema}.albums
             UNION ALL SELECT string_agg(attname || coalesce(split_part(pg_get_expr(adbin, \
             adrelid), ':', 1), ''), ' '
                ORDER BY attrelid::regclass::text, attnum)
             FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
             WHERE attnum > 0 AND attrelid IN ('{schema}.photos'::regclass, \
             '{schema}.albums'::regclass)"
        );
        made.push(lines(&db1, &sql).await);
    }
    made
}

/// Schemas of shards, their rows, and what is recorded about them.
async fn left(world: &World) -> String {
    let sql = "SELECT concat_ws(' ', (SELECT count(*) FROM pg_namespace WHERE nspname ~ '^shard_'),
        (SELECT count(*) FROM pgshard.shard),
        (SELECT count(*) FROM pgshard.shard_migration WHERE name = 'pgshard:unfinished'))";
    lines(&world.servers.app(0).await, sql)
        .await
        .trim()
        .to_owned()
}

/// Waits until the last file is running in some shard.
async fn asleep(world: &World) {
    let asleep = "SELECT pid::text FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    let begun = Instant::now();
    while lines(&world.servers.superuser(0).await, asleep)
        .await
        .is_empty()
    {
        assert!(begun.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

on_each_version! {
    /// Existing shards that lack all of the files get them; so do new shards. A file that fails in
    /// a new shard leaves nothing, and a killed bootstrap leaves nothing that is served: the next
    /// one makes it again.
    async fn files_that_want_a_commit_between(version) {
        let world = World::with_tables(&[version], 4, &[FIRST]).await;
        for (name, sql) in LATER {
            world.file((&format!("migrations/{name}"), sql));
        }
        world.run(&["migrate", "up"]).await.ended(0);
        let one_by_one = made(&world).await;
        assert_eq!(one_by_one.len(), 4);
        assert!(
            one_by_one[0].contains("mood'b'") && one_by_one[0].contains("title"),
            "{one_by_one:?}"
        );

        // The same host, emptied.
        let db1 = world.servers.app(0).await;
        let wipe = "DO $$ DECLARE name text; BEGIN
                FOR name IN SELECT nspname FROM pg_namespace WHERE nspname ~ '^(pgshard$|shard_)' \
                LOOP
                    EXECUTE format('DROP SCHEMA %I CASCADE', name);
                END LOOP;
            END $$";
        db1.batch_execute(wipe).await.unwrap();
        world.file((
            "migrations/0006_last.sql",
            "ALTER TABLE {shard}.nothing ADD COLUMN title \
            text",
        ));
        let failed = world.run(&["bootstrap"]).await;
        let said = failed.code() != 0 && failed.stderr.contains("0006_last failed: relation ");
        assert!(said, "{} {}", failed.stdout, failed.stderr);
        assert_eq!(left(&world).await, "0 0 0");

        world.file((
            "migrations/0006_last.sql",
            "-- {shard}\nSELECT '{shard}', \
            pg_catalog.pg_sleep(0.5)",
        ));
        world.file(("migrations/0007_rows.sql", "CREATE TABLE {shard}.rows ()"));
        // Another bootstrap drops what this one makes, and continues it: this one must do nothing
        // more there.
        let robbed = world.command(&["bootstrap"], &[]).spawn().unwrap();
        asleep(&world).await;
        // The lock is granted when the file has ended, before the next one begins.
        let taken = "BEGIN; LOCK TABLE pgshard.shard_migration IN EXCLUSIVE MODE;
            UPDATE pgshard.shard_migration SET checksum = 'another' WHERE name = \
            'pgshard:unfinished'; COMMIT";
        world
            .servers
            .superuser(0)
            .await
            .batch_execute(taken)
            .await
            .unwrap();
        let robbed = Ran::of(robbed).await;
        let said = robbed.code() != 0
            && robbed.stderr.contains(
                "another bootstrap has taken over \
            shard ",
            );
        assert!(said, "{} {}", robbed.stdout, robbed.stderr);
        assert_eq!(left(&world).await, "4 3 1");
        let files = "SELECT count(*)::text FROM pg_class WHERE relname = 'rows'";
        assert_eq!(
            lines(&db1, files).await,
            "3\n",
            "the file after the take-over is not run"
        );
        std::fs::remove_file(world.servers.directory().join("migrations/0007_rows.sql")).unwrap();
        db1.batch_execute(wipe).await.unwrap();

        let mut killed = world.command(&["bootstrap"], &[]).spawn().unwrap();
        asleep(&world).await;
        killed.kill().await.unwrap();
        assert_eq!(
            left(&world).await,
            "1 0 1",
            "no router finds what is half made"
        );
        // Another session reads what is left, and keeps a lock.
        let visitor = world.servers.app(0).await;
        let half = lines(
            &db1,
            "SELECT nspname FROM pg_namespace WHERE nspname ~ '^shard_'",
        )
        .await;
        visitor
            .batch_execute(&format!("BEGIN; LOCK TABLE {}.photos", half.trim()))
            .await
            .unwrap();
        let refused = world.run(&["bootstrap"]).await;
        assert!(
            refused.code() != 0
                && refused.stderr.contains(
                    "the remains of shard \
            "
                ),
            "{}",
            refused.stderr
        );
        assert!(
            refused.stderr.contains("lock timeout"),
            "{}",
            refused.stderr
        );
        visitor.batch_execute("ROLLBACK").await.unwrap();
        world.run(&["bootstrap"]).await.ended(0);
        assert_eq!(left(&world).await, "4 4 0");
        assert_eq!(made(&world).await, one_by_one);
        world.run(&["check", "--ddl"]).await.ended(0);
        world.run(&["bootstrap"]).await.ended(0);
    }
}
