//! Watches who serves which shard. When a shard has moved, compares both copies before any client
//! writes to the new one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_postgres::{Client, Error};

use super::compare::{Side, log_differs, rows_differ, sequences_differ};
use super::state::{Shared, Told, add};

const POLL: Duration = Duration::from_millis(25);

pub(crate) async fn watch(shared: Arc<Shared>) {
    let mut clients = [shared.reach(0).await, shared.reach(1).await];
    while !shared.is_over() {
        if look(&shared, &clients).await.is_err() {
            for (host, client) in clients.iter_mut().enumerate() {
                if client.is_closed() {
                    *client = shared.reach(host).await;
                }
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn look(shared: &Shared, clients: &[Client; 2]) -> Result<(), Error> {
    let sql = "SELECT shard_id, fence_deadline < clock_timestamp() AND state = 'fenced' FROM \
        pgshard.shard
        WHERE state = 'serving' OR state = 'fenced' AND fence_deadline < clock_timestamp()";
    let mut serving: [Vec<i32>; 2] = Default::default();
    for (host, client) in clients.iter().enumerate() {
        for row in client.query(sql, &[]).await? {
            let shard: i32 = row.get(0);
            if row.get::<_, Option<bool>>(1) == Some(true) {
                client
                    .query("SELECT pgshard.expire_fence($1)", &[&shard])
                    .await?;
            } else {
                serving[host].push(shard);
            }
        }
    }
    for shard in 0..shared.gates.len() as u16 {
        let there = |host: usize| serving[host].contains(&i32::from(shard));
        let host = *shared.gates[usize::from(shard)].host.read().await;
        if there(1 - host) {
            // It may have come there after the other host was queried.
            let sql = "SELECT state FROM pgshard.shard WHERE shard_id = $1";
            let state: String = clients[host]
                .query_one(sql, &[&i32::from(shard)])
                .await?
                .get(0);
            if state == "serving" {
                shared.fail(
                    "two serve",
                    format!("shard {shard} is served by both hosts"),
                );
            }
            switch(shared, clients, shard, host).await?;
        }
    }
    Ok(())
}

/// The schema of the newest old copy of a shard.
pub(crate) async fn old_copy(client: &Client, shard: u16) -> Result<Option<String>, Error> {
    let prefix = format!("{}__left_e", Shared::schema_name(shard));
    let sql = "SELECT nspname::text FROM pg_namespace WHERE starts_with(nspname, $1)
        ORDER BY substr(nspname, length($1) + 1)::integer DESC LIMIT 1";
    Ok(client
        .query_opt(sql, &[&prefix])
        .await?
        .map(|row| row.get(0)))
}

/// Compares, and lets the workload continue at the new host.
async fn switch(
    shared: &Shared,
    clients: &[Client; 2],
    shard: u16,
    from: usize,
) -> Result<(), Error> {
    let schema = Shared::schema_name(shard);
    let Some(left) = old_copy(&clients[from], shard).await? else {
        shared.fail(
            "rows",
            format!("shard {shard}: db{} has no old copy", from + 1),
        );
        return Ok(());
    };
    let (old, new) = (
        Side {
            client: &clients[from],
            schema: &left,
        },
        Side {
            client: &clients[1 - from],
            schema: &schema,
        },
    );
    let told = snapshot(&shared.gates[usize::from(shard)].told.lock().unwrap());
    let rows = rows_differ(old, new).await?;
    let sequences = sequences_differ(old, new).await?;
    let log = log_differs(new, &told).await?;
    // A session that still holds the old host has a transaction there that the fence let pass.
    let mut host = shared.gates[usize::from(shard)].host.write().await;
    let again = rows_differ(old, new).await?;
    let what = format!(
        "shard {shard} from db{} to db{} ({left})",
        from + 1,
        2 - from
    );
    if !rows.is_empty() {
        shared.fail("rows", format!("{what}:\n  {}", rows.join("\n  ")));
    } else if !again.is_empty() {
        shared.fail(
            "late",
            format!("{what}, after the open:\n  {}", again.join("\n  ")),
        );
    }
    if shared.gates[usize::from(shard)]
        .altered
        .load(Ordering::SeqCst)
    {
        let differ = super::definition::copies_differ(shared, shard, (from, &left), 1 - from);
        if !differ.is_empty() {
            shared.fail("definition", format!("{what}:\n  {}", differ.join("\n  ")));
        }
    }
    if !sequences.is_empty() {
        shared.fail(
            "sequences",
            format!("{what}:\n  {}", sequences.join("\n  ")),
        );
    }
    if !log.is_empty() {
        shared.fail("log", format!("{what}: {}", log.join("; ")));
    }
    shared.tell(format!(
        "{what} is compared; {} acknowledged",
        told.acknowledged.len()
    ));
    add(&shared.counts.compared);
    *host = 1 - from;
    Ok(())
}

pub(crate) fn snapshot(told: &Told) -> Told {
    Told {
        acknowledged: told.acknowledged.clone(),
        rolled_back: told.rolled_back.clone(),
        unknown: told.unknown.clone(),
    }
}

/// At the end, without any work: each shard's log.
pub(crate) async fn last_look(shared: &Shared) -> Result<(), Error> {
    assert!(shared.quiet.load(Ordering::SeqCst), "nobody writes");
    for (shard, gate) in shared.gates.iter().enumerate() {
        let client = shared.reach(*gate.host.read().await).await;
        let schema = Shared::schema_name(shard as u16);
        let told = snapshot(&gate.told.lock().unwrap());
        let wrong = log_differs(
            Side {
                client: &client,
                schema: &schema,
            },
            &told,
        )
        .await?;
        if !wrong.is_empty() {
            shared.fail(
                "log",
                format!("shard {shard} at the end: {}", wrong.join("; ")),
            );
        }
    }
    Ok(())
}
