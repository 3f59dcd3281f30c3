//! The audit: compares the rows in the databases with the acknowledged ones. It reads each host
//! directly, past the router.

use std::collections::HashMap;

use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::id::Id;
use pgshard::map::{HostName, ShardMap};

use super::writers::Tally;
use crate::failure::Failure;

/// What the audit has found.
#[derive(Default)]
pub(super) struct Audit {
    pub(super) rows_found: usize,
    pub(super) lost: usize,
    pub(super) duplicated: usize,
    pub(super) misplaced: usize,
    pub(super) complaints: Vec<String>,
}

/// A row as it is in a database.
struct StoredRow {
    host: HostName,
    shard: ShardId,
    id: i64,
}

/// Reads every serving shard of every host and compares.
pub(super) async fn audit(
    config: &Config,
    map: &ShardMap,
    tally: &Tally,
) -> Result<Audit, Failure> {
    let mut audit = Audit::default();
    // By title, which is unique among all that the writers wrote.
    let mut found: HashMap<String, Vec<StoredRow>> = HashMap::new();
    let mut serving: HashMap<ShardId, Vec<HostName>> = HashMap::new();
    for host in config.hosts.values() {
        let client = host.connect.connect("pgshard demo").await?;
        let sql = "SELECT shard_id, schema_name FROM pgshard.shard WHERE state = 'serving' ORDER \
            BY shard_id";
        for row in client.query(sql, &[]).await? {
            let (number, schema): (i32, String) = (row.try_get(0)?, row.try_get(1)?);
            let Ok(shard) = ShardId::try_from(number) else {
                continue;
            };
            serving.entry(shard).or_default().push(host.name.clone());
            let sql = format!(
                "SELECT title, id FROM {}.photos",
                pgshard::pg::quote_ident(&schema)
            );
            for row in client.query(&sql, &[]).await? {
                let (title, id): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
                found.entry(title).or_default().push(StoredRow {
                    host: host.name.clone(),
                    shard,
                    id,
                });
                audit.rows_found += 1;
            }
        }
    }
    for shard in config.cluster.shards.iter() {
        let hosts = serving.get(&shard).map(Vec::as_slice).unwrap_or_default();
        let mapped = map.host(shard);
        if hosts.len() != 1 || hosts.first() != mapped {
            audit.complaints.push(format!(
                "shard {shard} is served by {hosts:?}, the map says {mapped:?}"
            ));
        }
    }
    let mut ids: HashMap<i64, u32> = HashMap::new();
    for row in &tally.rows {
        *ids.entry(row.id).or_default() += 1;
        let shard = config.cluster.shards.shard_of_key(row.user);
        match found.get(&row.title).map(Vec::as_slice).unwrap_or_default() {
            [] => audit.lost += 1,
            [one] => {
                let placed = one.shard == shard
                    && Id::decode(one.id).shard() == shard
                    && Some(&one.host) == map.host(shard);
                if !placed || one.id != row.id {
                    audit.misplaced += 1;
                }
            }
            several => audit.duplicated += several.len() - 1,
        }
    }
    // An ID that was given out twice is a duplicate, wherever its rows are.
    audit.duplicated += ids.values().filter(|count| **count > 1).count();
    Ok(audit)
}
