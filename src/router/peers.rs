//! What the hosts have recorded of each other: which server each of them is.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio_postgres::Client;

use crate::map::HostName;
use crate::pg::{self, ConnectOptions, Record};

const RECORDS: &str =
    "SELECT host_name, generation, system_identifier, timeline FROM pgshard.identity";

/// The hosts of a router by name, with what any of them has recorded of each.
#[derive(Default)]
pub(super) struct Peers(Mutex<HashMap<String, Peer>>);

#[derive(Default)]
struct Peer {
    connect: Option<ConnectOptions>,
    record: Option<Record>,
}

impl Peers {
    /// Adds a host, and how it is reached.
    pub(super) fn add(&self, name: &HostName, connect: &ConnectOptions) {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let peer = peers.entry(name.to_string()).or_default();
        peer.connect = Some(connect.clone());
        if let Some(record) = peer.record {
            connect.learn(record);
        }
    }

    /// Asks one host what it has recorded of all hosts. A host with an older control schema has
    /// recorded nothing.
    pub(super) async fn ask(&self, client: &Client) {
        let Ok(rows) = client.query_typed(RECORDS, &[]).await else {
            return;
        };
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for row in &rows {
            let (Ok(name), Some(record)) = (row.try_get::<_, String>(0), pg::record(row, 1)) else {
                continue;
            };
            let peer = peers.entry(name).or_default();
            let known = peer.record.map_or(record, |known| known.with(record));
            peer.record = Some(known);
            if let Some(connect) = &peer.connect {
                connect.learn(known);
            }
        }
    }
}
