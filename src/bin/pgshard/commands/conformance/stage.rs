//! [`Stage`]: what the scenes have to play with: the config, the hosts, and a client's command.

use std::path::PathBuf;
use std::time::Duration;

use pgshard::config::Config;
use pgshard::pg::Connection;
use serde_json::{Value, json};

use super::client::{Client, Played};
use crate::exit::Exit;
use crate::failure::Failure;

/// N. The first half is on db1 at the start, the other on db2.
pub(super) const SHARDS: u16 = 32;

/// The application's table.
pub(super) const NOTES: &str = "\
CREATE TABLE {shard}.notes (
    id    bigint PRIMARY KEY DEFAULT {shard}.next_id(),
    owner bigint NOT NULL,
    word  text NOT NULL CONSTRAINT notes_once UNIQUE,
    times integer NOT NULL DEFAULT 1
);
";

/// The servers and settings of a scene.
pub(super) struct Stage {
    pub(super) config: Config,
    /// The config as the client has it: with the map from before the moves.
    pub(super) path: PathBuf,
    pub(super) hosts: Value,
    pub(super) command: Vec<String>,
    pub(super) patience: Duration,
}

impl Stage {
    /// A connection of the kit's own.
    pub(super) async fn host(&self, name: &str) -> Played<Connection> {
        let host = self
            .config
            .hosts
            .values()
            .find(|host| host.name.as_str() == name);
        let host =
            host.ok_or_else(|| Failure::new(Exit::Failed, format!("there is no host {name}")))?;
        Ok(host.connect.connect("pgshard conformance").await?)
    }

    /// A new client, that knows the map from before the moves.
    pub(super) async fn client(&self, scene: &str) -> Played<Client> {
        let mut client = Client::start(&self.command, &self.path, self.patience)?;
        let open = json!({
            "ask": "open", "scene": scene, "config": self.path, "shards": SHARDS, "key": "integer",
            "prefix": "shard_", "hosts": self.hosts, "map": old_map(),
        });
        client.request(&open).await?;
        Ok(client)
    }
}

/// Each shard's host and epoch at the start.
pub(super) fn old_map() -> Vec<(&'static str, u32)> {
    (0..SHARDS)
        .map(|shard| (if shard < SHARDS / 2 { "db1" } else { "db2" }, 1))
        .collect()
}
