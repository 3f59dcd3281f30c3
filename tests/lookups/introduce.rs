//! Look-ups over a table that an application writes already: recording, building, enforcing.

use std::time::{Duration, Instant};

use pgshard::config::Config;
use pgshard::lookups::{Definition, Step, migration};
use pgshard::router::Router;

use super::case::Case;
use super::support::World;

/// The first key of rows that are written without a claim. Other keys are smaller.
const UNCLAIMED_KEYS: i64 = 2_000_000;

/// Rows from before the look-ups, some of which share values.
pub(crate) async fn plant_rows(case: &Case, world: &World) {
    let router = world.router().await;
    let sql = "INSERT INTO {shard}.users (id, email, name, op) VALUES ($1, $2, $3, 'planted') ON \
        CONFLICT DO NOTHING";
    let history = "INSERT INTO {shard}.history (op, id, email, name, gone) SELECT 'planted' || $1, \
        id, email, name, false FROM {shard}.users WHERE id = $1 ON CONFLICT DO NOTHING";
    for key in 0..case.keys {
        let number = key.unsigned_abs() % case.values.max(1) as u64;
        let [email, name] = ["emails", "names"].map(|lookup| format!("{lookup}{number}"));
        let shard = router.by_key(key);
        shard
            .execute(sql, &[&key, &email, &name])
            .await
            .expect("a row can be written");
        let _ = shard.execute(history, &[&key]).await;
    }
}

/// Puts a migration of each look-up into the folder.
pub(crate) fn add_step(case: &Case, world: &World, first: u32, step: Step) {
    for (number, definition) in (first..).zip(case.definitions()) {
        let file = format!("migrations/{number:04}_{}.sql", definition.name);
        world.write(&file, &migration(&definition, step));
    }
}

/// Writes a row without a claim that no other process touches: only the look-up's record of it, or
/// a build, can give it entries.
async fn write_unclaimed(router: &Router, number: i64) {
    let sql = "INSERT INTO {shard}.users (id, email, name, op) VALUES ($1, $2, $3, 'planted')";
    let key = UNCLAIMED_KEYS + number;
    let [email, name] = ["email", "name"].map(|column| format!("unclaimed {column} {number}"));
    // Its connection may be one of those that are ended.
    let _ = router
        .by_key(key)
        .execute(sql, &[&key, &email, &name])
        .await;
}

/// The look-ups are built again and again, and some of the builds are killed. Rows are written
/// without a claim at the same time, also to shards that a build has read.
pub(crate) async fn build_until(case: &Case, world: &World, end: Instant) {
    let mut rng = case.rng(4000);
    let router = world.router().await;
    let mut numbers = 0..;
    while Instant::now() < end {
        write_unclaimed(&router, numbers.next().expect("there are more")).await;
        let name = ["emails", "names"][rng.usize(..2)];
        let mut command = world.command(&["lookups", "build", name], &[]);
        let mut child = command.spawn().expect("the command was built");
        let patience = Duration::from_millis(rng.u64(10..1500));
        let _ = tokio::time::timeout(patience, child.wait()).await;
        let _ = child.kill().await;
        tokio::time::sleep(Duration::from_millis(rng.u64(10..500))).await;
    }
}

/// From recording to complete, while the processes that claim continue. Everything that is in the
/// way for a moment is tried again: moves, lost connections, claims of others.
pub(crate) async fn complete(case: &Case, world: &World) {
    let began = Instant::now();
    let mut has_step = false;
    loop {
        assert!(
            began.elapsed() < Duration::from_secs(90),
            "the look-ups do not become complete"
        );
        let mut is_built = true;
        for definition in case.definitions() {
            is_built &= is_without_duplicates(world, &definition).await;
        }
        if !is_built {
            continue;
        }
        if !std::mem::replace(&mut has_step, true) {
            add_step(case, world, 4, Step::Enforce);
        }
        let migrated = world.run(&["migrate", "up"]).await;
        let status = world.run(&["lookups", "status"]).await;
        if migrated.code() == 0 && status.code() == 0 {
            return;
        }
    }
}

/// Builds a look-up, and deletes one row of each pair with one value.
async fn is_without_duplicates(world: &World, definition: &Definition) -> bool {
    let built = world.run(&["lookups", "build", &definition.name]).await;
    let Some(report) = built.json().pop() else {
        return false;
    };
    let Some(duplicates) = report["duplicates"].as_array() else {
        return false;
    };
    let router = world.router().await;
    for duplicate in duplicates {
        let key: i64 = duplicate["key"]
            .as_str()
            .and_then(|key| key.parse().ok())
            .expect("a key");
        let column = &definition.columns[0];
        let clear =
            format!("UPDATE {{shard}}.users SET {column} = NULL, op = 'cleared' WHERE id = $1");
        let _ = router.by_key(key).execute(clear, &[&key]).await;
    }
    built.code() == 0
}

/// The world's config with the look-ups.
pub(crate) fn define(case: &Case, world: &mut World) {
    let text = std::fs::read_to_string(&world.config.path).expect("the config is there");
    let (before, map) = text.split_once("[map]").expect("the config has a map");
    let mut lookups = String::new();
    for one in case.definitions() {
        lookups += &format!(
            "[lookups.{}]\ntable = \"users\"\ncolumns = [\"{}\"]\nkey = \"id\"\nfold = \"{}\"\n",
            one.name,
            one.columns[0],
            one.fold.as_str()
        );
    }
    world.write("pgshard.toml", &format!("{before}{lookups}\n[map]{map}"));
    world.config = Config::load(&world.config.path).expect("the config is right");
}
