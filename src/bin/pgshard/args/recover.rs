//! `pgshard recover`.

use clap::Args as ArgGroup;
use pgshard::mover::Failpoint;

/// Bring a host back into service that was restored, failed over or emptied
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
For a host that came back from an earlier time: from a backup, as a standby that lacked the last \
seconds, or with an empty disk. It asks all hosts and says which moves the host does not know of, \
which shards others have since, which rows others have kept, and whether IDs could come twice. \
Then \
it asks, raises the ID clocks, and has each shard that hosts contradict each other about served by \
one of them, as `pgshard moves repair` does. What only you can decide is named with its commands. \
Keep the application out until it has run. Done again, it does what is left.

The exit code is 4 if only decisions are left, and 8 if something was done and decisions are left.

Examples:
  pgshard recover db1 --plan
  pgshard recover db1 --yes && pgshard check")]
pub(crate) struct Recover {
    /// The host that came back
    #[arg(value_name = "HOST")]
    pub(crate) host: String,
    /// Only show what is known and what would be done
    #[arg(long)]
    pub(crate) plan: bool,
    /// How far the lost server's clock may have been ahead: IDs go on that much later than now
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..86_400))]
    pub(crate) margin_s: Option<u64>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// For pgshard's own tests
    #[arg(long, hide = true, env = "PGSHARD_FAILPOINT", value_parser = Failpoint::parse)]
    pub(crate) failpoint: Option<Failpoint>,
}
