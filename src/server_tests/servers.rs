//! [`Servers`]: throwaway servers that know nothing of shards.

use tokio_postgres::{Client, NoTls};

use crate::dev::{Binaries, Cluster, ClusterOptions, Server};

/// Servers of one version, counted from 0. They stop and vanish at the end of the test.
pub(crate) struct Servers(Cluster);

impl Servers {
    pub(crate) fn start(version: u32, count: usize) -> Servers {
        let binaries = Binaries::of_major(version).unwrap_or_else(|error| panic!("{error}"));
        Servers(
            Cluster::start(&ClusterOptions::new(count, binaries))
                .unwrap_or_else(|error| panic!("{error}")),
        )
    }

    pub(crate) fn server(&self, at: usize) -> &Server {
        &self.0.servers()[at]
    }

    pub(crate) fn count(&self) -> usize {
        self.0.servers().len()
    }

    /// A connection of the application's role `app`.
    pub(crate) async fn app(&self, at: usize) -> Client {
        connect(&self.server(at).url()).await
    }

    pub(crate) async fn superuser(&self, at: usize) -> Client {
        connect(&self.server(at).superuser_url()).await
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("a test's server takes connections");
    tokio::spawn(connection);
    client
}
