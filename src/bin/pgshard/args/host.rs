//! `pgshard host`.

use clap::{Args as ArgGroup, Subcommand};

use super::moves::Wide;

#[derive(Debug, Subcommand)]
pub(crate) enum HostCommand {
    Add(HostAdd),
    Remove(HostRemove),
    List(HostList),
    Accept(HostAccept),
}

/// Check a new host, give it a control schema, and write it into the config
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The host gets no shards: `pgshard rebalance` or `pgshard move` brings them. The role that connects \
must be able to create schemas there; roles and extensions that shards elsewhere use are looked \
for, and named where they are missing. The config keeps its comments. Doing it again with the same \
URL continues where it stopped.

A password is never taken from the command line, where other users of the machine can read it.

Examples:
  pgshard host add db3 postgres://app@10.0.0.3/app --password-env DB3_PASSWORD
  pgshard host add db3 'host=10.0.0.3 dbname=app user=app' --password-file db3")]
pub(crate) struct HostAdd {
    /// Its name in the config
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// A libpq URL or key=value string, without a password
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// The environment variable that holds the password
    #[arg(long, value_name = "VARIABLE", conflicts_with = "password_file")]
    pub(crate) password_env: Option<String>,
    /// The file whose first line is the password; from the config's folder if it is not absolute
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<String>,
}

/// Take a host out of the config; it must hold no shard
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
`pgshard drain` empties it first. Nothing is dropped on the host: what stays there is named. \
Applications that still have the old config do no harm: they find signposts there.

Examples:
  pgshard drain db1 --complete && pgshard host remove db1")]
pub(crate) struct HostRemove {
    /// Its name in the config
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// Every host with its version, shards, size, connections, WAL and lag
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
`wal kept` is what replication slots hold back, `lag` how far the slowest standby is behind in \
replay; a role needs pg_monitor to see that. The exit code is 1 if a host does not answer.

Examples:
  pgshard host list
  pgshard host list --json | jq '.hosts | map_values(.bytes)'")]
pub(crate) struct HostList {
    #[command(flatten)]
    pub(crate) wide: Wide,
}

/// Take the server that answers under a host's name for the host, after an upgrade or a restore
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The cluster remembers which server each host is: its system identifier, and the highest timeline \
at which it was seen. Another server, or one of an earlier timeline, is refused by routers \
and commands, for it may be a former primary. pg_upgrade, a dump that is restored, and a backup of \
an earlier timeline make such a server on purpose; this accepts it. A fail-over, and a restore \
that \
ends with a new timeline, need nothing. Never run it to get rid of an alarm that is not \
explained: see docs/high-availability.md.

With --system, a server that does not answer yet is accepted in advance: the green server of a \
blue/green upgrade, whose identifier its `SELECT system_identifier FROM \
pg_control_system()` shows. \
It becomes the host once it answers under the host's name and takes writes, without an alarm, and \
the former server is refused from then on. Any third one is refused. --system with the identifier \
that the host has now takes that back.

Examples:
  pgshard host accept db1
  pgshard host accept db1 --system 7577311984398540837")]
pub(crate) struct HostAccept {
    /// Its name in the config
    #[arg(value_name = "HOST")]
    pub(crate) host: String,
    /// Accept only the server with this system identifier, also before it answers
    #[arg(long, value_name = "IDENTIFIER")]
    pub(crate) system: Option<i64>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}
