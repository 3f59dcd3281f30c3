//! `pgshard demo`, `dev` and `conformance`; the completions and the manual of the command itself.

use std::path::PathBuf;

use clap::{Args as ArgGroup, Subcommand};
use clap_complete::Shell;
use pgshard::ShardCount;

use crate::values;

/// The whole story on throwaway servers, in under a minute: bootstrap, writers, moves, a kill, an
/// audit
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Needs PostgreSQL's programs (see `pgshard dev up --help`), and no config. Exit code 1 if a single \
row is \
lost, doubled or misplaced, or a writer has seen a single error.

Examples:
  pgshard demo
  pgshard demo --hosts 4 --shards 1024 --moves 64 --writers 16")]
pub(crate) struct Demo {
    /// How many servers
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 3,
        value_parser = clap::value_parser!(u16).range(2..=16),
    )]
    pub(crate) hosts: u16,
    /// N, the number of shards
    #[arg(long, value_name = "N", default_value = "256", value_parser = values::shard_count)]
    pub(crate) shards: ShardCount,
    /// How many shards are moved under the writers
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=4096),
    )]
    pub(crate) moves: u16,
    /// How many writers work without pause
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=256),
    )]
    pub(crate) writers: u16,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DevCommand {
    Up(DevUp),
    Down(DevDown),
    Status(DevStatus),
}

/// Start local PostgreSQL servers, and write a config for them
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The servers run until `pgshard dev down`. Doing it again changes nothing: servers that run go on, \
the config and the migrations that are there stay. PGSHARD_PG_BIN names the folder of PostgreSQL's \
programs where they are not found. For development only. The servers ask for random passwords: \
they \
stand in files that only you can read, whose names are in the URLs (passfile=).

Examples:
  pgshard dev up --hosts 3 --shards 256
  pgshard --config pgshard-dev/pgshard.toml bootstrap
  psql \"$(pgshard dev up --json | jq -r .hosts.db1.url)\"")]
pub(crate) struct DevUp {
    /// How many servers
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(1..=64),
    )]
    pub(crate) hosts: u16,
    /// N, the number of shards, 1 to 8192, for a config that is not there yet
    #[arg(long, value_name = "N", default_value = "256", value_parser = values::shard_count)]
    pub(crate) shards: ShardCount,
    #[command(flatten)]
    pub(crate) folder: DevFolder,
}

/// Stop the local servers and remove them with their data
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Only servers that `pgshard dev up` made are touched. The config and the migrations stay.

Examples:
  pgshard dev down
  pgshard dev down --dir /var/tmp/trial --yes")]
pub(crate) struct DevDown {
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) folder: DevFolder,
}

/// Which local servers there are, and whether they run
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Examples:
  pgshard dev status
  pgshard dev status --json | jq '.hosts | map_values(.running)'")]
pub(crate) struct DevStatus {
    #[command(flatten)]
    pub(crate) folder: DevFolder,
}

#[derive(Debug, ArgGroup)]
pub(crate) struct DevFolder {
    /// Where the servers, the config and the migrations are
    #[arg(long, value_name = "DIR", default_value = "pgshard-dev")]
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConformanceCommand {
    Serve(ConformanceServe),
}

/// Play a scripted cluster before a client: shards that move, fences, dead movers, lost connections
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Starts two throwaway servers, as `pgshard demo` does, and starts the client for each scene. The \
client reads a line of JSON from its stdin and responds with one on its stdout, by \
docs/protocol.md. PGSHARD_CONFIG is set for it. What it did is judged by the rows. Exit code 1 if \
it fails anywhere.

Examples:
  pgshard conformance serve -- python3 examples/conformance/client.py
  pgshard conformance serve --only fence --only dead-mover -- ./my-client")]
pub(crate) struct ConformanceServe {
    /// Play this scene only; may be repeated
    #[arg(long, value_name = "SCENE")]
    pub(crate) only: Vec<String>,
    /// Seconds that the client may take for an answer
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=3600),
    )]
    pub(crate) answer_s: u64,
    /// The client, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// Print a script that completes pgshard's commands and flags in a shell
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Examples:
  pgshard completions bash > /etc/bash_completion.d/pgshard
  pgshard completions zsh > \"${fpath[1]}/_pgshard\"
  pgshard completions fish > ~/.config/fish/completions/pgshard.fish")]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: Shell,
}

/// Print the JSON Schema of what a command prints with --json
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
stderr is the schema of errors and notes. What may change and what does not is in \
docs/json/README.md.

Examples:
  pgshard json-schema
  pgshard json-schema moves list
  pgshard json-schema --out schemas")]
pub(crate) struct JsonSchema {
    /// The command, such as moves list [default: list those that print JSON]
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
    /// Write the schemas of all commands into this folder
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    pub(crate) out: Option<PathBuf>,
}

/// Print the manual page, or write those of all commands
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Examples:
  pgshard man | man -l -
  pgshard man --out /usr/local/share/man/man1")]
pub(crate) struct Man {
    /// Write the pages of all commands into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}
