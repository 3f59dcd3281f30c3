//! `pgshard tickets` and `pgshard workers`.

use std::num::NonZeroUsize;

use clap::{Args as ArgGroup, Subcommand};
use pgshard::idgen::tickets::TicketName;

#[derive(Debug, Subcommand)]
pub(crate) enum TicketsCommand {
    Create(TicketsCreate),
    Status(TicketsStatus),
    Next(TicketsNext),
}

/// Make hosts give tickets of a name, each with a residue of its own
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Hosts take turns in the numbers, a run each. A host gives the tickets with ticket / run modulo \
stride = its residue, so it need not ask the others. Runs are as long as the largest N, so that \
key \
mod N reaches every shard; --stride 2 --run 1 is odd and even. Every host of the config records \
which residue belongs to which host, so all must answer. Doing it again changes nothing. To add a \
host, name it; it begins where the others are.

A host that is lost for good is taken out of the config. Its residue stays taken, unless another \
takes it over: --replace, with a --start above every ticket that the lost one may have given. Of \
the hosts that give the tickets more than half must answer, not counting those named with --lost. \
A host restored from a backup, or rebuilt, needs a --start too before it serves.

With --max no host gives a ticket above it, whichever hosts are named: at the end, taking tickets \
fails. It can be raised, and lowered to what was given; `check` warns when a host has given four \
fifths of its own.

Examples:
  pgshard tickets create users
  pgshard tickets create users --max 2147483647    # an integer column
  pgshard tickets create users --hosts db3
  pgshard tickets create users --hosts db4 --replace db2 --start 5000000")]
pub(crate) struct TicketsCreate {
    /// What the tickets are called, such as users
    #[arg(value_name = "NAME")]
    pub(crate) name: TicketName,
    /// The hosts that give them [default: all hosts]
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    pub(crate) hosts: Vec<String>,
    /// How many hosts there can ever be [default: 16]
    #[arg(long, value_name = "STRIDE", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) stride: Option<u32>,
    /// How many tickets in a row are one host's, N or more [default: 8192]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) run: Option<u32>,
    /// No ticket below; hosts that are past it stay where they are
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) start: Option<i64>,
    /// No ticket of the series above, on any host, for columns narrower than bigint
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) max: Option<i64>,
    /// The host whose residue is taken over, lost for good
    #[arg(long, value_name = "HOST", requires = "start")]
    pub(crate) replace: Option<String>,
    /// Hosts that are lost for good and need not answer; their residues stay taken
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    pub(crate) lost: Vec<String>,
}

/// Which host gives which tickets, and the last of each
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Reads only. The exit code is 1 when a host does not answer.

Examples:
  pgshard tickets status
  pgshard tickets status --json | jq '.hosts.db1.names.users.last'")]
pub(crate) struct TicketsStatus {}

/// Take tickets
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
A ticket that was taken is never given again, used or not. Hosts that are down are passed over.

Examples:
  pgshard tickets next users
  pgshard tickets next users -n 1000 --json | jq -r '.tickets[]'")]
pub(crate) struct TicketsNext {
    /// What the tickets are called
    #[arg(value_name = "NAME")]
    pub(crate) name: TicketName,
    /// How many
    #[arg(short = 'n', long, value_name = "COUNT", default_value = "1")]
    pub(crate) count: NonZeroUsize,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkersCommand {
    Install(WorkersInstall),
    Status(WorkersStatus),
    Hold(WorkersHold),
    Release(WorkersRelease),
}

/// Make the table of leases on a host, once
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
All generators whose IDs must differ lease from the same host; the schema is pgshard_workers, and \
the \
role needs CREATE on the database. Doing it again changes nothing; a table of an older pgshard is \
upgraded.

A new table grants no number for two minutes, because generators may still lease from another one, \
or from one that is lost. Where there never were any, --first spares the wait.

Examples:
  pgshard workers install --host db1 --first")]
pub(crate) struct WorkersInstall {
    /// The host that keeps the leases
    #[arg(long, value_name = "HOST")]
    pub(crate) host: String,
    /// There were never generators of these IDs: grant numbers at once
    #[arg(long)]
    pub(crate) first: bool,
}

/// Grant no worker number for a while, after the table of leases was restored
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
A table that went back in time does not know who holds its numbers. A restart, a restored base \
backup and \
a promoted standby are noticed by themselves; rows that were put back by hand are not. Generators \
that hold \
a number go on with it; those that need one wait. It lasts for the longest lease, two minutes at \
least.

Examples:
  pgshard workers hold --host db1
  pgshard workers hold --host db1 --for-s 600")]
pub(crate) struct WorkersHold {
    /// The host that keeps the leases
    #[arg(long, value_name = "HOST")]
    pub(crate) host: String,
    /// How long, in seconds [default: the longest lease, 120 at least]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) for_s: Option<u32>,
}

/// Take worker numbers back whose holders are gone, before their leases end
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
A generator gives its number back when it ends; one that is killed keeps it until its lease ends, \
half a minute unless it asked for more. So this is for leases of hours. If a holder is alive after \
all, it goes on until its lease ends, then takes another number. The next holder of its number \
makes \
only IDs of later milliseconds, and waits for those.

Examples:
  pgshard workers release --host db1 --space photos --worker 7,8")]
pub(crate) struct WorkersRelease {
    /// The host that keeps the leases
    #[arg(long, value_name = "HOST")]
    pub(crate) host: String,
    /// The IDs that differ from each other
    #[arg(long, value_name = "SPACE")]
    pub(crate) space: String,
    /// The numbers
    #[arg(long = "worker", value_name = "NUMBERS", value_delimiter = ',', required = true,
        value_parser = clap::value_parser!(u16).range(0..1024))]
    pub(crate) workers: Vec<u16>,
}

/// Which worker numbers are held, and for how long
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Reads only. A number is kept for its holder until its lease ends; the next holder makes IDs of \
later \
milliseconds than its ceiling.

Examples:
  pgshard workers status --host db1 --space photos
  pgshard workers status --host db1 --json | jq '.spaces.photos'")]
pub(crate) struct WorkersStatus {
    /// The host that keeps the leases
    #[arg(long, value_name = "HOST")]
    pub(crate) host: String,
    /// Only the numbers of these IDs
    #[arg(long, value_name = "SPACE")]
    pub(crate) space: Option<String>,
}
