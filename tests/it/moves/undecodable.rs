//! A server that can no longer decode its own WAL: the slot is given up, but no row is lost.

use crate::support::{Ran, World, lines, until};

/// This many rows are inserted in one statement, slowly enough for what is done during the
/// statement.
const SLOWLY: usize = 80;

async fn users(world: &World, host: usize, schema: &str) -> String {
    lines(
        &world.servers.app(host).await,
        &format!("SELECT u::text FROM {schema}.users u ORDER BY 1"),
    )
    .await
}

/// Makes a host write changes of a file that, by its catalogs at that time, belongs to no table.
async fn write_what_nobody_can_decode(world: &World, host: usize) {
    let (app, superuser) = (
        world.servers.app(host).await,
        world.servers.superuser(host).await,
    );
    let file = "SELECT relfilenode::text FROM pg_class WHERE oid = 'shard_0000.users'::regclass";
    let file = lines(&superuser, file).await;
    let another = |file: &str| {
        format!("UPDATE pg_class SET relfilenode = {file} WHERE oid = 'shard_0000.users'::regclass")
    };
    // The value of a sequence is visible before its transaction ends: it shows which row is being
    // inserted.
    app.batch_execute("CREATE SEQUENCE public.inserted CYCLE MAXVALUE 1000000")
        .await
        .unwrap();
    // With explicit IDs: `next_id()` would read the catalogs again.
    let slowly = format!(
        "INSERT INTO shard_0000.users (id, name) SELECT {host} * 1000 + n, \
            nextval('public.inserted')::text || pg_sleep(0.05)::text FROM generate_series(1, \
            {SLOWLY}) n"
    );
    let inserts = tokio::spawn(async move {
        app.batch_execute(&slowly).await?;
        app.batch_execute("DROP SEQUENCE public.inserted").await
    });
    let row = async |row: i64| {
        until(
            &superuser,
            &format!("SELECT last_value > {row} FROM public.inserted"),
        )
        .await
    };
    // After some rows it has read everything that it needs from the catalogs.
    row(10).await;
    superuser
        .batch_execute(&another("2000000000"))
        .await
        .unwrap();
    let at = lines(&superuser, "SELECT last_value::text FROM public.inserted").await;
    row(at.trim().parse::<i64>().unwrap() + 3).await;
    superuser
        .batch_execute(&another(file.trim()))
        .await
        .unwrap();
    inserts.await.unwrap().unwrap();
}

on_each_version! {
    /// A move reports it and ends; a resume copies again. Afterwards the same happens to what is
    /// fed: there is no longer a reverse replication.
    async fn a_slot_that_is_given_up(version) {
        let world = World::new(&[version, version], 2).await;
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        let some = "INSERT INTO shard_0000.users (name) SELECT 'old' FROM generate_series(1, 100)";
        db1.batch_execute(some).await.unwrap();
        let child = world
            .command(
                &[
                    "move", "0", "--to", "db2", "--mode", "online", "--yes", "--hold",
                ],
                &[],
            )
            .spawn()
            .unwrap();
        until(&db1, "SELECT bool_or(phase = 'ready') FROM pgshard.move").await;
        let id = lines(&db1, "SELECT move_id::text FROM pgshard.move").await;
        let id = id.trim();
        write_what_nobody_can_decode(&world, 0).await;
        let ended = Ran::of(child).await;
        assert!(
            ended.ended(7).stderr.contains(
                "the server can no longer decode \
            it"
            ),
            "{}",
            ended.stderr
        );
        assert!(
            ended.stderr.contains(&format!("pgshard moves resume {id}")),
            "{}",
            ended.stderr
        );
        assert_eq!(world.state(0, 0).await, "serving");
        let slots = "SELECT count(*)::text FROM pg_replication_slots";
        assert_eq!(lines(&db1, slots).await, "0\n");
        world.run(&["moves", "continue", id]).await;
        world.run(&["moves", "resume", id]).await.ended(0);
        assert_eq!(world.state(1, 0).await, "serving");
        assert_eq!(
            users(&world, 1, "shard_0000").await,
            users(&world, 0, "shard_0000__left_e1").await
        );
        assert_eq!(
            users(&world, 1, "shard_0000").await.lines().count(),
            100 + SLOWLY
        );

        write_what_nobody_can_decode(&world, 1).await;
        let mut feed = world.command(&["moves", "feed"], &[]).spawn().unwrap();
        until(&db1, "SELECT bool_or(lost IS NOT NULL) FROM pgshard.back").await;
        // The ledger forgets the publication once that is gone, and it goes after the slot.
        until(
            &db2,
            "SELECT NOT EXISTS (SELECT FROM pgshard.ledger WHERE kind = \
            'publication')",
        )
        .await;
        feed.kill().await.unwrap();
        let refused = world.run(&["moves", "rollback", id, "--yes"]).await;
        assert!(
            refused.ended(4).stderr.contains("its slot is gone"),
            "{}",
            refused.stderr
        );
        assert_eq!(lines(&db2, slots).await, "0\n");
        assert_eq!(world.state(1, 0).await, "serving");
        world.audit_places().await;
    }
}
