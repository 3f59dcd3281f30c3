//! `pgshard console`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args as ArgGroup;

/// See shards, hosts, moves and findings in a browser; runs until it is stopped
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Only reads: what would change something is shown as the command to type. The hosts are read for \
all browsers together, at most once every --floor-s, and not at all while no browser is connected. \
A host that has not responded within --timeout-s is shown in grey and does not delay the page.

On any address but loopback it requires a --token-file, which browsers request as the password of \
the user pgshard, and which scripts send as `Authorization: Bearer`. It has no TLS: put a proxy in \
front, and give its name with --name. /api/ has the same as JSON, /metrics what the \
exporter has.

Examples:
  pgshard console
  pgshard console --listen 127.0.0.1:9000 --floor-s 30
  curl -s http://127.0.0.1:8420/api/moves | jq -r '.moves[].phase'
  (umask 077; openssl rand -hex 24 >token)
  pgshard console --listen 0.0.0.0:8420 --token-file token --name shards.example.com")]
pub(crate) struct Console {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8420")]
    pub(crate) listen: SocketAddr,
    /// The file with the token that every request must have; 16 characters or more, readable only
    /// by you
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// A name by which browsers may request it, in addition to localhost and addresses; can be
    /// repeated
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// The shortest time between two looks at the hosts
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=3600),
    )]
    pub(crate) floor_s: u64,
    /// How long config, map and hosts may take to answer
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(1..=300),
    )]
    pub(crate) timeout_s: u64,
}
