//! What the hosts report, queried by SQL and not by pgshard.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Client;

use super::support::{World, lines};

/// A host's own row about a shard.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Counted from 0.
    pub(crate) host: usize,
    pub(crate) shard: u16,
    pub(crate) state: String,
    pub(crate) epoch: i32,
}

impl Row {
    pub(crate) fn is_owner(&self) -> bool {
        self.state != "moved"
    }
}

/// A shard of a move, by its source's journal.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    pub(crate) id: String,
    pub(crate) shard: u16,
    pub(crate) source: String,
    pub(crate) phase: String,
    pub(crate) back_of: Option<String>,
    pub(crate) desired: String,
}

impl Moved {
    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.phase.as_str(), "kept" | "completed" | "aborted")
    }
}

/// Connections to the servers that have a control schema, with the number of each.
async fn bootstrapped(world: &World) -> Vec<(usize, Client)> {
    let mut found = Vec::new();
    for (host, client) in world.all().await.into_iter().enumerate() {
        let sql = "SELECT to_regclass('pgshard.lent_identity') IS NOT NULL";
        if client
            .query_one(sql, &[])
            .await
            .expect("a server answers")
            .get::<_, bool>(0)
        {
            found.push((host, client));
        }
    }
    found
}

/// What all hosts report about all shards.
pub(crate) async fn rows(world: &World) -> Vec<Row> {
    let mut rows = Vec::new();
    for (host, client) in bootstrapped(world).await {
        let sql = "SELECT shard_id, state, epoch FROM pgshard.shard ORDER BY 1";
        for row in client.query(sql, &[]).await.expect("a server answers") {
            let shard = u16::try_from(row.get::<_, i32>(0)).expect("a shard is a small number");
            rows.push(Row {
                host,
                shard,
                state: row.get(1),
                epoch: row.get(2),
            });
        }
    }
    rows
}

/// The latest epoch that any host knows of each shard.
pub(crate) fn epochs(rows: &[Row]) -> BTreeMap<u16, i32> {
    let mut latest = BTreeMap::new();
    for row in rows {
        let known = latest.entry(row.shard).or_insert(row.epoch);
        *known = row.epoch.max(*known);
    }
    latest
}

/// Every move that there ever was, shard by shard, the oldest first.
pub(crate) async fn moves(world: &World) -> Vec<Moved> {
    let mut moves = Vec::new();
    for (_, client) in bootstrapped(world).await {
        let sql = "SELECT move_id::text, shard_id, source, phase, back_of::text, wanted
            FROM pgshard.move ORDER BY move_id, shard_id";
        for row in client.query(sql, &[]).await.expect("a server answers") {
            moves.push(Moved {
                id: row.get(0),
                shard: u16::try_from(row.get::<_, i32>(1)).expect("a shard is a small number"),
                source: row.get(2),
                phase: row.get(3),
                back_of: row.get(4),
                desired: row.get(5),
            });
        }
    }
    moves.sort_by(|a, b| (&a.id, a.shard).cmp(&(&b.id, b.shard)));
    moves
}

/// The migrations that are recorded for each shard at its only owner. A shard that none or two have
/// is left out.
pub(crate) async fn migrations(world: &World) -> BTreeMap<u16, BTreeSet<String>> {
    let mut found: BTreeMap<u16, Vec<BTreeSet<String>>> = BTreeMap::new();
    for (_, client) in bootstrapped(world).await {
        // One statement, one snapshot.
        let sql =
            "SELECT s.shard_id, coalesce(array_agg(m.name) FILTER (WHERE m.name IS NOT NULL), '{}')
            FROM pgshard.shard s LEFT JOIN pgshard.shard_migration m USING (shard_id)
            WHERE s.state IN ('serving', 'fenced') GROUP BY s.shard_id";
        for row in client.query(sql, &[]).await.expect("a server answers") {
            let shard = u16::try_from(row.get::<_, i32>(0)).expect("a shard is a small number");
            found
                .entry(shard)
                .or_default()
                .push(row.get::<_, Vec<String>>(1).into_iter().collect());
        }
    }
    found
        .into_iter()
        .filter_map(|(shard, all)| Some((shard, <[_; 1]>::try_from(all).ok()?.into_iter().next()?)))
        .collect()
}

/// Who waits for whom at the servers, for the story of a command that does not end.
pub(crate) async fn activity(world: &World) -> String {
    let mut text = String::new();
    for host in 0..world.servers.servers().len() {
        let sql = "SELECT format('%s %s %s %s %s by %s: %s', pid, application_name, state, \
            wait_event_type, wait_event,
                pg_blocking_pids(pid), left(regexp_replace(query, '\\s+', ' ', 'g'), 160))
            FROM pg_stat_activity WHERE backend_type IN ('client backend', 'walsender') AND pid <> \
            pg_backend_pid()
            AND application_name <> 'pgshard' ORDER BY 1";
        text += &format!(
            "  db{}\n{}",
            host + 1,
            lines(&world.servers.superuser(host).await, sql).await
        );
    }
    text
}
