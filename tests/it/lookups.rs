//! Look-ups: values that belong to one key over all shards.

mod build;
mod claims;
mod hashes;
mod interrupted;
mod losses;
mod moves;
mod recording;
mod refusals;
mod rounds;
mod statements;
mod unsharded;

use pgshard::Router;
use pgshard::config::Config;
use pgshard::lookups::{Definition, Step, migration};

use super::support;
use support::World;
use tokio_postgres::types::ToSql;

/// Users with an e-mail address, as a shard migration.
const USERS: &str =
    "CREATE TABLE {shard}.users (id bigint PRIMARY KEY, email text UNIQUE, name text)";

const INSERT: &str = "INSERT INTO {shard}.users (id, email) VALUES ($1, $2)";

fn emails() -> Definition {
    Definition::new("emails", "users", ["email"], "id")
}

/// A cluster with the look-up `emails` over its users.
async fn world(versions: &[u32], shards: u16) -> World {
    let migrations = [
        ("0001_users.sql", USERS),
        ("0002_emails.sql", &migration(&emails(), Step::Create)),
    ];
    let world = World::with_tables(versions, shards, &migrations).await;
    define(
        &world,
        "[lookups.emails]\ntable = \"users\"\ncolumns = [\"email\"]\nkey = \"id\"\n",
    );
    world
}

/// Adds look-ups to the world's config.
fn define(world: &World, lookups: &str) {
    let text = std::fs::read_to_string(&world.config.path).unwrap();
    let (before, map) = text.split_once("[map]").expect("the config has a map");
    let text = format!("{before}{lookups}\n[map]{map}");
    Config::parse(&text, &world.config.path).unwrap();
    world.write("pgshard.toml", &text);
}

/// Every row with a value: key and value, sorted.
async fn rows(world: &World) -> Vec<(i64, String)> {
    let clients = world.all().await;
    let mut rows = Vec::new();
    for shard in 0..world.config.cluster.shards.get() {
        let client = &clients[world.host_of(shard)];
        let sql = format!("SELECT id, email FROM shard_{shard:04}.users WHERE email IS NOT NULL");
        for row in client.query(&sql, &[]).await.unwrap() {
            rows.push((row.get(0), row.get(1)));
        }
    }
    rows.sort();
    rows
}

/// The parameters of [`INSERT`].
fn both<'a>(id: &'a i64, email: &'a (dyn ToSql + Sync)) -> [&'a (dyn ToSql + Sync); 2] {
    [id, email]
}

async fn register(router: &Router, id: i64, email: &str) -> Result<u64, pgshard::router::Error> {
    router
        .claiming(id, [("emails", email)])?
        .execute(INSERT, &[&id, &email])
        .await
}
