//! What something takes: time, and processor time of the servers and of their client.

use std::time::{Duration, Instant};

use pgshard::dev::{Cluster, Server};

/// What it took.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) seconds: f64,
    /// Of the servers' processors.
    pub(crate) servers: f64,
    /// Of this process's, and of the programs' that it has started for it (psql).
    pub(crate) client: f64,
}

impl Taken {
    /// As much for all, when so much was taken for a sample.
    pub(crate) fn scaled(self, by: f64) -> Taken {
        Taken {
            seconds: self.seconds * by,
            servers: self.servers * by,
            client: self.client * by,
        }
    }

    /// The medians of each.
    pub(crate) fn medians(taken: &[Taken]) -> Taken {
        let median = |field: fn(&Taken) -> f64| {
            let mut all: Vec<f64> = taken.iter().map(field).collect();
            all.sort_unstable_by(f64::total_cmp);
            all[all.len() / 2]
        };
        Taken {
            seconds: median(|taken| taken.seconds),
            servers: median(|taken| taken.servers),
            client: median(|taken| taken.client),
        }
    }

    /// For a table: the time, both processor times, the client's part of them, and what a shard
    /// costs.
    pub(crate) fn line(self, shards: f64) -> String {
        let Taken {
            seconds,
            servers,
            client,
        } = self;
        let ms = |seconds: f64| seconds * 1000.0 / shards;
        format!(
            "{seconds:>8.2} s  processors: servers {servers:>7.2} s, client {client:>6.2} s \
                ({:>4.1} % of both); a \
             shard {:>6.3} and {:>6.3} ms",
            100.0 * client / (servers + client).max(0.01),
            ms(servers),
            ms(client)
        )
    }
}

/// Runs something and returns what it took. The servers' is that of their processes that have
/// ended, so the connections must be closed by then.
pub(crate) fn taken(cluster: &Cluster, run: impl FnOnce()) -> Taken {
    let (servers, client) = (servers_ticks(cluster), client_ticks());
    let started = Instant::now();
    run();
    let seconds = started.elapsed().as_secs_f64();
    let client = client_ticks() - client;
    // A backend takes a moment to end after its client has gone.
    std::thread::sleep(Duration::from_millis(200));
    Taken {
        seconds,
        servers: (servers_ticks(cluster) - servers) / 100.0,
        client: client / 100.0,
    }
}

/// The servers' children that have ended.
fn servers_ticks(cluster: &Cluster) -> f64 {
    let children = |server: &Server| ticks(&server.pid()?.to_string(), 13..15);
    cluster.servers().iter().filter_map(children).sum()
}

/// This process and its children that have ended.
fn client_ticks() -> f64 {
    ticks("self", 11..15).unwrap_or(0.0)
}

/// Hundredths of a second; `None` where there is no /proc. After a process's name, which may hold
/// anything, its state is the first field, utime and stime are 11 and 12, cutime and cstime 13 and
/// 14.
fn ticks(process: &str, fields: std::ops::Range<usize>) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let all: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    all.get(fields)?
        .iter()
        .map(|field| field.parse::<f64>().ok())
        .sum()
}
