//! `pgshard init`, `check`, `explain`, `exporter`, `bootstrap`, `rights`, `sql` and `bench`.

use std::net::SocketAddr;
use std::num::NonZeroUsize;

use clap::{Args as ArgGroup, ValueEnum};
use pgshard::ShardCount;
use pgshard::map::HostName;
use pgshard::schema::bootstrap::Request;
use pgshard::schema::{Grantor, Purpose, Service, Severity};

use crate::values;

/// Write a commented pgshard.toml to begin with
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
With --from, names, shards, epoch, prefix, keys and map are as the hosts have recorded them. What \
no host \
knows has to be written again: where passwords are, how routers work, the weights of hosts.

Examples:
  pgshard init                       two hosts, 4096 shards
  pgshard init --hosts 3 --shards 2048
  pgshard --config etc/app.toml init
  pgshard init --from postgres://app@10.0.0.1/app --from postgres://app@10.0.0.2/app")]
pub(crate) struct Init {
    /// How many hosts to write down; the shards are spread evenly over them
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(1..=64),
    )]
    pub(crate) hosts: u16,
    /// N, the number of shards, 1 to 8192. It cannot be changed once bootstrapped: take far more
    /// than hosts
    #[arg(long, value_name = "N", default_value = "4096", value_parser = values::shard_count)]
    pub(crate) shards: ShardCount,
    /// The url of a host of a cluster whose config is lost; once for each host
    #[arg(long, value_name = "URL", conflicts_with_all = ["hosts", "shards"])]
    pub(crate) from: Vec<String>,
    /// Overwrite a file that is there
    #[arg(long)]
    pub(crate) force: bool,
}

/// Are config, map and hosts as they should be, and do they agree?
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Reads only. All hosts are asked at the same time, each has twice its connect_timeout to answer (10 \
s where \
its url says nothing). Every finding has a remedy. The exit code is 1 if anything is as bad as \
--fail-on says.

Examples:
  pgshard check
  pgshard check --ddl
  pgshard check --movable
  pgshard check --rows
  pgshard check --fail-on alarm        rows may be lost without action
  pgshard check --json | jq -r '.findings[] | [.severity, .host, .shards]'")]
pub(crate) struct Check {
    /// Compare what the shards are made of with each other, too: tables, columns, indexes,
    /// functions and all
    #[arg(long)]
    pub(crate) ddl: bool,
    /// Say what would stop a move of any shard, too, in the words of `pgshard move --plan`: looks
    /// once at each definition, not at each shard
    #[arg(long)]
    pub(crate) movable: bool,
    /// Read every row, too, at half speed: for IDs of other shards, or ahead of their shard's
    /// clock, keys of other shards where the config names the column, and sequences behind their
    /// tables
    #[arg(long)]
    pub(crate) rows: bool,
    /// From which severity on the exit code is 1
    #[arg(long, value_name = "SEVERITY", default_value = "warning")]
    pub(crate) fail_on: FailOn,
}

/// From which severity on findings make `check` fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailOn {
    // No help texts: the severities are in the documentation of findings.
    Notice,
    Warning,
    Error,
    Alarm,
}

impl From<FailOn> for Severity {
    fn from(fail_on: FailOn) -> Severity {
        match fail_on {
            FailOn::Notice => Severity::Notice,
            FailOn::Warning => Severity::Warning,
            FailOn::Error => Severity::Error,
            FailOn::Alarm => Severity::Alarm,
        }
    }
}

/// What a code means, and what to do: of a finding, an exit code, a phase, a SQLSTATE or an error
/// of ours
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The words are those of the pages in docs/, of this very release. No config is needed.

Examples:
  pgshard explain host_emptied
  pgshard explain 7
  pgshard explain SH001
  pgshard explain InDoubt --json | jq -r .do")]
pub(crate) struct Explain {
    /// The code [default: list all there are]
    #[arg(value_name = "CODE")]
    pub(crate) code: Option<String>,
}

/// Answer Prometheus: findings of `check`, moves, pauses, slots and hosts; runs until it is stopped
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Each scrape reads the config, the map and the hosts, at most once every --floor-s; scrapes in \
between get the cached response. A host that has not responded within --timeout-s is \
pgshard_host_up 0 and does not delay the response. There is no login: on any address but loopback, \
restrict who can reach the port. docs/metrics.md lists the metrics.

Examples:
  pgshard exporter
  pgshard exporter --listen 127.0.0.1:9900 --floor-s 60
  curl -s http://127.0.0.1:9788/metrics | grep pgshard_findings")]
pub(crate) struct Exporter {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9788")]
    pub(crate) listen: SocketAddr,
    /// The shortest time between two looks at the hosts
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(0..=3600),
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

/// Create what the hosts lack: control schema, shards, ID functions, migrations
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Doing it again does only what is left. All hosts are read, whichever are written to, so that no \
shard is ever made a second time: each host remembers which shards were on the others. Where a \
host \
is empty now, or the config does not name it, the shards that it is known to have had are made \
again \
only with --lost; restore the host instead, if there is any way. A shard that fails is named and \
the \
others go on; the exit code is then 8.

Examples:
  pgshard bootstrap
  pgshard bootstrap --host db3 --jobs 8
  pgshard bootstrap --json | tail -n 1 | jq '.hosts | map_values(.failed)'")]
pub(crate) struct Bootstrap {
    /// Write to this host only; can be repeated [default: all hosts]
    #[arg(long = "host", value_name = "HOST")]
    pub(crate) hosts: Vec<String>,
    /// Connections to each host
    #[arg(long, value_name = "COUNT", default_value_t = Request::WIDTH)]
    pub(crate) jobs: NonZeroUsize,
    /// This host certainly holds no shard: create shards even if it cannot be reached; can be
    /// repeated
    #[arg(long, value_name = "HOST")]
    pub(crate) assume_empty: Vec<String>,
    /// The rows of this host are lost permanently: create its shards again, without any; a host
    /// that the
    /// config does not name is forgotten by the others. Can be repeated
    #[arg(long, value_name = "HOST", value_parser = host_name)]
    pub(crate) lost: Vec<HostName>,
    /// This host, which --assume-empty or --lost names, answers with an error or is not in the
    /// config, and has been fenced off: no application reaches it any more. Can be repeated
    #[arg(long, value_name = "HOST", value_parser = host_name)]
    pub(crate) fenced: Vec<HostName>,
}

/// A host's name, which the config need not contain.
fn host_name(text: &str) -> Result<HostName, String> {
    HostName::new(text).map_err(|error| error.to_string())
}

/// Run a query on all shards, or on some
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
{shard} stands for the name of the shard's schema, in strings too (schemaname = '{shard}'), \
{shard_id} for its number; {{shard}} is the text {shard} itself. The query runs in a READ ONLY \
transaction on each shard, \
eight shards of a host at a time. With --json each shard is one line, written as soon as it is \
there; every bigint in it is a string, since it may be an ID, and so is every whole number of a \
row that has \
no type, as ROW(1, 2). Shards that fail are named, and the \
exit code is 8, or 1 if none answered.

Examples:
  pgshard sql 'SELECT count(*) FROM {shard}.users'
  pgshard sql 'EXPLAIN SELECT FROM {shard}.photos WHERE user_id = 7' --shards 7
  pgshard sql 'SELECT id, title FROM {shard}.photos LIMIT 3' --shards 0-15,300
  pgshard sql 'SELECT max(id) FROM {shard}.users' --json | jq .rows[0].max")]
pub(crate) struct Sql {
    /// SELECT, WITH, VALUES or TABLE, or EXPLAIN of one of these
    pub(crate) query: String,
    /// The shards, such as 17 or 0-255,300 [default: all]
    #[arg(long, value_name = "SHARDS")]
    pub(crate) shards: Option<String>,
}

/// What the router costs on your network: round trips by hand, and through the router
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Runs SELECT 1 and writes nothing: this is about the way to the hosts, not about your tables. Each \
host that has shards is measured by itself, by hand (a prepared statement on a connection) and \
through the router, turn by turn: opening a connection, one call at a time, all connections busy. \
Then one call over up to 1000 shards, compared with a loop. It keeps that many connections of each \
host busy for twice the seconds and loads hosts and network, which other users will notice. A \
host's url is used, also where routers have a router_url. Hosts that cannot be measured are \
named, and the \
exit code is 8, or 1 if none could.

Examples:
  pgshard bench
  pgshard bench --seconds 10 --connections 32
  pgshard bench --json | jq '.hosts | map_values(.latency_ratio)'")]
pub(crate) struct Bench {
    /// How long each part of a host's run takes, two of them a host
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 2,
        value_parser = clap::value_parser!(u64).range(1..=60),
    )]
    pub(crate) seconds: u64,
    /// Calls in flight, each on a connection of its own; not more than the host's pool_size
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=256),
    )]
    pub(crate) connections: u16,
}

/// Print the SQL that gives a role the least that it needs
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Prints only: no config is read, no host is asked. Running the SQL again changes nothing. `pgshard \
check` says which \
role lacks something.

Examples:
  pgshard rights --for owner --role app
  pgshard rights --for router --role web
  pgshard rights --for mover --role app --service rds
  pgshard rights --for monitor --role watch --by owner | psql
  pgshard rights --for router --role web --migration > migrations/0002_web.sql")]
pub(crate) struct Rights {
    /// What the role is for
    #[arg(long = "for", value_name = "PURPOSE")]
    pub(crate) purpose: RightsFor,
    /// The role
    #[arg(long, value_name = "ROLE")]
    pub(crate) role: String,
    /// Where the hosts run: which statements give the right to use replication slots
    #[arg(long, value_name = "SERVICE", default_value = "plain")]
    pub(crate) service: RightsService,
    /// Print only the script of this role [default: both, one after the other]
    #[arg(long, value_name = "ROLE", conflicts_with = "migration")]
    pub(crate) by: Option<RightsBy>,
    /// Print what it needs of each shard, as a shard migration, so that shards to come have it too
    #[arg(long)]
    pub(crate) migration: bool,
}

/// Where the hosts run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RightsService {
    /// A server with a superuser
    Plain,
    /// Amazon RDS for PostgreSQL, Amazon Aurora
    Rds,
    /// Google Cloud SQL
    Cloudsql,
    /// Azure Database for PostgreSQL, Flexible Server
    Azure,
}

impl From<RightsService> for Service {
    fn from(service: RightsService) -> Service {
        match service {
            RightsService::Plain => Service::Plain,
            RightsService::Rds => Service::Rds,
            RightsService::Cloudsql => Service::CloudSql,
            RightsService::Azure => Service::Azure,
        }
    }
}

/// Which role runs the statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RightsBy {
    /// A superuser, or what a service has in its place
    Administrator,
    /// The role that owns the control schema, after `pgshard bootstrap`
    Owner,
}

impl From<RightsBy> for Grantor {
    fn from(by: RightsBy) -> Grantor {
        match by {
            RightsBy::Administrator => Grantor::Administrator,
            RightsBy::Owner => Grantor::Owner,
        }
    }
}

/// What a role is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RightsFor {
    /// Owns the control schema and the shards: the role of the config
    Owner,
    /// The same, and moves shards while they are open
    Mover,
    /// Reads and writes rows, through a router
    Router,
    /// Reads rows, through a router
    Reader,
    /// Watches: for `console`, `exporter`, `check` and `moves list`; reads no row, and writes
    /// nothing
    Monitor,
}

impl From<RightsFor> for Purpose {
    fn from(purpose: RightsFor) -> Purpose {
        match purpose {
            RightsFor::Owner => Purpose::Owner,
            RightsFor::Mover => Purpose::Mover,
            RightsFor::Router => Purpose::Router,
            RightsFor::Reader => Purpose::Reader,
            RightsFor::Monitor => Purpose::Monitor,
        }
    }
}
