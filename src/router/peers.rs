//! What the hosts have recorded of each other: which server each of them is.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio_postgres::Client;

use crate::map::HostName;
use crate::pg::{self, ConnectOptions, Records};

/// The servers that are awaited come first: they are known when the others come.
const RECORDS: &str = "SELECT host_name, generation, system_identifier, timeline FROM \
    pgshard.identity ORDER BY timeline";

/// The hosts of a router by name, with what any of them has recorded of each.
#[derive(Default)]
pub(super) struct Peers(Mutex<HashMap<String, Peer>>);

#[derive(Default)]
struct Peer {
    connect: Option<ConnectOptions>,
    records: Records,
}

impl Peers {
    /// Adds a host, and how it is reached.
    pub(super) fn add(&self, name: &HostName, connect: &ConnectOptions) {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let peer = peers.entry(name.to_string()).or_default();
        peer.connect = Some(connect.clone());
        for record in peer.records.each() {
            connect.learn(record);
        }
    }

    /// Reads what one host has recorded of all hosts. A host with an older control schema has
    /// recorded nothing.
    pub(super) async fn read_records(&self, client: &Client) {
        let Ok(rows) = client.query_typed(RECORDS, &[]).await else {
            return;
        };
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for row in &rows {
            let (Ok(name), Some(record)) = (row.try_get::<_, String>(0), pg::record(row, 1)) else {
                continue;
            };
            let peer = peers.entry(name).or_default();
            peer.records.add(record);
            if let Some(connect) = &peer.connect {
                peer.records.each().for_each(|record| connect.learn(record));
            }
        }
    }
}
