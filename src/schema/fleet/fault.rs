//! Why bootstrap or a migration left a shard, or a whole host, as it was.

use super::migrations::Drift;
use crate::map::{HostName, ShardEpoch, print_shards};
use crate::pg::HostState;
use crate::pg::cause::chain;
use crate::schema::survey::facts::{FactsError, OpenMove, ShardState};
use crate::schema::survey::refusal::{Refusal, restore};
use crate::shard::ShardId;

/// Why a shard was left as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardFault {
    /// Another host owns the shard: the map is behind, or was changed by hand.
    #[error("{host} serves it (epoch {epoch})")]
    ServedElsewhere {
        /// The host that owns it.
        host: HostName,
        /// Since which epoch.
        epoch: ShardEpoch,
    },
    /// A host has given the shard away.
    #[error(
        "{host} says that it has moved to {} (epoch {epoch})",
        peer.as_ref().map_or("?", HostName::as_str)
    )]
    Moved {
        /// The host with that record: this one, or another.
        host: HostName,
        /// Where it went.
        peer: Option<HostName>,
        /// Since which epoch it is there.
        epoch: ShardEpoch,
    },
    /// A move is bringing the shard to a host.
    #[error("a move is bringing it from {source_host} to {host}")]
    Arriving {
        /// The host it is brought to: this one, or another.
        host: HostName,
        /// The host it comes from.
        source_host: HostName,
    },
    /// A move is at work, so the shard's tables may not change.
    #[error("a move away from here is at work, and migrations wait for it{}", describe_move(.0))]
    Moving(Option<OpenMove>),
    /// A host could not be read. A shard that it serves would get an empty second copy.
    #[error("{} could not be asked whether it serves it", names(hosts))]
    Unread {
        /// The hosts that could not be read.
        hosts: Vec<HostName>,
    },
    /// A host had the shard and lost it, or the config does not name that host. It would get an
    /// empty second copy.
    #[error(
        "{by} knows that it was on {host}, which {}",
        if *named { "no longer knows it" } else { "the config does not name" }
    )]
    Lost {
        /// Where it was.
        host: HostName,
        /// A host that knows.
        by: HostName,
        /// Whether the config names the host where it was.
        named: bool,
    },
    /// Hosts that others have a record of and the config does not name, so that they were not read.
    /// A shard that they serve would get an empty second copy.
    #[error(
        "{} could not be asked whether it serves it: other hosts know it, and the config does not \
            name it",
        names(hosts)
    )]
    Absent {
        /// The hosts that the config does not name.
        hosts: Vec<HostName>,
    },
    /// No host serves the shard.
    #[error(
        "no host says that it serves it{}",
        reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default()
    )]
    Unserved {
        /// What is known about where it is.
        reason: Option<String>,
    },
    /// The shard has moved before, and no host knows it.
    #[error("the map says that it has moved before (epoch {epoch}), but no host knows it")]
    Unknown {
        /// The epoch in the map.
        epoch: ShardEpoch,
    },
    /// There is a schema of the shard's name, but the host does not know it as the shard.
    #[error("the schema {schema} exists, but the host does not know it as a shard")]
    SchemaTaken {
        /// The schema.
        schema: String,
    },
    /// The host knows the shard, but its schema is gone.
    #[error("the host serves it, but the schema {schema} does not exist")]
    SchemaGone {
        /// The schema.
        schema: String,
    },
    /// The migrations that it has are not the first ones of those that it should have.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Drift(Vec<Drift>),
    /// It was left as it was, because other shards or hosts have run what the folder does not have:
    /// what it would get now differs from what they have.
    #[error("nothing is run while others have run what the folder does not have")]
    Withheld,
    /// A migration failed; nothing of it is left.
    #[error(
        "{migration}{} failed: {words}",
        line.map(|line| format!(" line {line}")).unwrap_or_default()
    )]
    Migration {
        /// The migration, as it is recorded.
        migration: String,
        /// The line of its file that the server points at, from 1.
        line: Option<usize>,
        /// The server's words.
        words: String,
    },
    /// One of pgshard's own statements failed.
    #[error("cannot {doing}: {words}")]
    Statement {
        /// What was being done.
        doing: &'static str,
        /// The server's words.
        words: String,
    },
    /// Another session was in the way each time: mostly, a lock was not granted in time.
    #[error("busy, tried {tries} times in {seconds} s: {words}{}",
            holder.as_ref().map(|holder| format!("; {holder}")).unwrap_or_default())]
    Busy {
        /// What the last try failed with.
        words: String,
        /// How often it was tried.
        tries: u32,
        /// For how long.
        seconds: u64,
        /// Who held a lock on the shard at the end.
        holder: Option<String>,
    },
    /// The shards of the canary failed, so the others were not touched.
    #[error("not tried: {failed} of the canary failed")]
    Canary {
        /// How many.
        failed: usize,
    },
    /// So many shards had failed before one was done that the rest was not tried.
    #[error("not tried: the {failed} shards before it failed")]
    NotTried {
        /// How many.
        failed: usize,
    },
}

impl ShardFault {
    /// Whether nothing was tried in the shard, because others had failed.
    pub fn is_not_tried(&self) -> bool {
        matches!(
            self,
            ShardFault::Canary { .. } | ShardFault::NotTried { .. }
        )
    }

    /// What to do.
    pub fn remedy(&self) -> String {
        match self {
            ShardFault::ServedElsewhere { .. } => {
                "run `pgshard map rebuild`; to bring the shard here, `pgshard move` it".to_owned()
            }
            ShardFault::Moved { .. } => {
                "end its move if it is open (`pgshard moves`, `pgshard moves resume`); else run \
                                         `pgshard map rebuild`, then `pgshard check`"
                    .to_owned()
            }
            ShardFault::Moving(Some(OpenMove {
                id, since: Some(_), ..
            })) => format!(
                "wait for it, `pgshard moves watch {id}`, or have it undone, `pgshard moves abort \
                    {id}`; then the same command again"
            ),
            ShardFault::Moving(Some(OpenMove {
                id, since: None, ..
            })) => {
                format!(
                    "`pgshard moves resume {id}`, or `pgshard moves abort {id}`; then the same \
                    command again"
                )
            }
            ShardFault::Arriving { .. } | ShardFault::Moving(None) => {
                "see `pgshard moves list`; run the same command again when the move has \
                    ended"
                    .to_owned()
            }
            ShardFault::Unread { hosts } => {
                format!("start {} and run bootstrap again", names(hosts))
            }
            ShardFault::Lost {
                host, named: true, ..
            } => restore(host),
            ShardFault::Lost {
                host, named: false, ..
            } => add_again(host),
            ShardFault::Absent { hosts } => {
                hosts.iter().map(add_again).collect::<Vec<_>>().join("; ")
            }
            ShardFault::Unserved { .. } => "run `pgshard check`, then the same command \
                again"
                .to_owned(),
            ShardFault::Unknown { epoch } => format!(
                "the host that had it may have been replaced: restore its database. If this is a \
                    new cluster, write the shard without @{epoch} in the map"
            ),
            ShardFault::SchemaTaken { schema } => {
                let name = crate::pg::quote_ident(schema);
                format!(
                    "rename the schema, as with ALTER SCHEMA {name} RENAME TO another_name, or \
                     drop it if its rows are not needed; then run the same command again"
                )
            }
            ShardFault::SchemaGone { .. } => "restore the schema from a backup".to_owned(),
            ShardFault::Drift(drifts) => {
                let mut remedies: Vec<String> = drifts.iter().map(Drift::remedy).collect();
                remedies.dedup();
                remedies.join("; ")
            }
            ShardFault::Withheld => {
                "see what is reported about the others; --host leaves out hosts that cannot be \
                    repaired"
                    .to_owned()
            }
            ShardFault::Migration { migration, .. } => format!(
                "correct what is wrong and run the same command again, or `pgshard migrate retry`; \
                    done by hand, `pgshard migrate resolve {migration} --applied --only` those \
                    shards"
            ),
            ShardFault::Busy { .. } => {
                "end that transaction or wait for it, then `pgshard migrate retry`; \
                    --lock-timeout-ms waits longer"
                    .to_owned()
            }
            ShardFault::Canary { .. } => {
                "see what the canary's shards failed with, then run the same command \
                    again"
                    .to_owned()
            }
            ShardFault::NotTried { .. } => {
                "see what the shards before it failed with; once that is corrected, run the same \
                 command again"
                    .to_owned()
            }
            ShardFault::Statement { .. } => {
                "see what the server says; once that is corrected, run the same command again"
                    .to_owned()
            }
        }
    }
}

/// Who is at work, as the end of a sentence.
fn at_work(processes: &[String]) -> String {
    if processes.is_empty() {
        String::new()
    } else {
        format!(": {}", processes.join(", "))
    }
}

fn names(hosts: &[HostName]) -> String {
    hosts
        .iter()
        .map(HostName::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

/// The move that is at work, as the end of a sentence.
fn describe_move(open: &Option<OpenMove>) -> String {
    open.as_ref()
        .map(|open| format!(": {open}"))
        .unwrap_or_default()
}

/// What to do about a host that others know and the config does not name.
pub(in crate::schema) fn add_again(host: &HostName) -> String {
    format!(
        "name {host} in the config again, as it was: its shards are there. Only if its rows are \
            lost for good, and no application reaches it any more: `pgshard bootstrap --lost \
            {host} --fenced {host}` makes the hosts forget it"
    )
}

/// Why a whole host was left as it was, or half done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostFault {
    /// It could not be read.
    #[error("{reason}")]
    Unread {
        /// In which state it is.
        state: HostState,
        /// Why not, with the causes.
        reason: String,
    },
    /// It was declared empty, or its rows lost, and it answers: it may serve shards.
    #[error("it is not gone: {reason}")]
    NotGone {
        /// In which state it is.
        state: HostState,
        /// What it answers, with the causes.
        reason: String,
    },
    /// Its control schema is another role's.
    #[error("its control schema belongs to the role {owner}, not to {role}")]
    NotOwner {
        /// The role that owns it.
        owner: String,
        /// The role that was used.
        role: String,
    },
    /// Another bootstrap or migration is at work on it.
    #[error(
        "another bootstrap or migration is at work on it{}",
        at_work(processes)
    )]
    Busy {
        /// The server's processes that are at work, as the server names them.
        processes: Vec<String>,
    },
    /// It was to be forgotten, and has shards or is getting them.
    #[error("shards {} are on it, or on their way to it", print_shards(.0.iter().copied()))]
    HasShards(Vec<ShardId>),
    /// Its signposts of these shards lead to a host that was to be forgotten, and no host knows
    /// where the shards are now.
    #[error("its signposts of shards {} lead to {}", print_shards(.1.iter().copied()), .0)]
    LeadsTo(HostName, Vec<ShardId>),
    /// It has no control schema, or an older one.
    #[error("it has not been bootstrapped by this version")]
    NotBootstrapped,
    /// What it has run is not the beginning of the folder: every difference, with its remedy.
    #[error("it has run what the folder does not have: {}", .0.join("; "))]
    Drift(Vec<String>),
    /// Another host, or its shards, have run what the folder does not have.
    #[error("nothing is run while another host has run what the folder does not have")]
    Withheld,
    /// A once-per-host migration failed; nothing of it is left, and no shard of the host was
    /// touched.
    #[error(
        "{migration}{} failed: {words}",
        line.map(|line| format!(" line {line}")).unwrap_or_default()
    )]
    Migration {
        /// The migration, as it is recorded.
        migration: String,
        /// The line of its file that the server points at, from 1.
        line: Option<usize>,
        /// The server's words.
        words: String,
    },
    /// It does not match the config, or rights are missing: every reason.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Refused(Vec<Refusal>),
    /// The control schema could not be installed.
    #[error("the control schema cannot be installed: {reason}")]
    Control {
        /// Why not, with the causes.
        reason: String,
    },
    /// The remains of a shard that an earlier bootstrap was creating, which is not served, cannot
    /// be dropped.
    #[error("the remains of shard {shard} from an earlier bootstrap cannot be dropped: {reason}")]
    Unfinished {
        /// The shard.
        shard: ShardId,
        /// Why not, with the causes.
        reason: String,
    },
    /// The connection was lost. What was done before is kept, unless the server crashed.
    #[error("the connection was lost: {reason}")]
    Lost {
        /// Why, with the causes.
        reason: String,
    },
}

impl HostFault {
    /// Why a host that could not be read is left as it is.
    pub(in crate::schema) fn unread(error: &FactsError) -> HostFault {
        match error {
            FactsError::NotOwner { owner, role } => HostFault::NotOwner {
                owner: owner.clone(),
                role: role.clone(),
            },
            error => HostFault::Unread {
                state: error.host_state(),
                reason: chain(error),
            },
        }
    }

    /// Why a host that did not answer a statement is left alone.
    pub(in crate::schema) fn unanswered(error: &tokio_postgres::Error) -> HostFault {
        HostFault::Unread {
            state: HostState::of_query(error),
            reason: chain(error),
        }
    }

    /// The state of the host that this fault shows.
    pub fn host_state(&self) -> HostState {
        match self {
            HostFault::Unread { state, .. } | HostFault::NotGone { state, .. } => *state,
            HostFault::Control { .. }
            | HostFault::Lost { .. }
            | HostFault::NotOwner { .. }
            | HostFault::Busy { .. } => HostState::AnswersWithError,
            _ => HostState::Serving,
        }
    }

    /// What to do.
    pub fn remedy(&self) -> String {
        match self {
            HostFault::Unread { state, .. } => {
                format!("{}; then run the same command again", state.remedy())
            }
            HostFault::NotGone { state, .. } => format!(
                "{}; then run the same command again. Only if it has been fenced off, so that no \
                    application reaches it any more: add --fenced",
                state.remedy()
            ),
            HostFault::NotOwner { owner, .. } => {
                format!("connect as {owner}, or as a member of it")
            }
            HostFault::Busy { .. } => {
                "wait until the other command has ended; if it hangs, `SELECT \
                pg_terminate_backend(…)` of the process ends it"
                    .to_owned()
            }
            HostFault::Refused(refusals) => refusals
                .iter()
                .map(Refusal::remedy)
                .collect::<Vec<_>>()
                .join("; "),
            HostFault::NotBootstrapped => "run `pgshard bootstrap`".to_owned(),
            HostFault::Drift(_) => {
                "put the files back as they were; --only and --host leave out what cannot be \
                    repaired"
                    .to_owned()
            }
            HostFault::LeadsTo(..) => {
                "see what `pgshard check` finds about these shards; once a host serves them, run \
                    the same command again"
                    .to_owned()
            }
            HostFault::HasShards(_) => {
                "let the moves that are under way end (`pgshard moves`), and `pgshard drain` \
                    it"
                .to_owned()
            }
            HostFault::Withheld => "see what is reported about the other host".to_owned(),
            HostFault::Migration { .. } => "correct the migration and run the same command \
                again"
                .to_owned(),
            HostFault::Unfinished { .. } => {
                "end the session that has locked the shard's tables (see pg_locks), and run \
                    the same command again"
                    .to_owned()
            }
            HostFault::Control { .. } => {
                "see what the server says; once that is corrected, run the same command again"
                    .to_owned()
            }
            HostFault::Lost { .. } => "run the same command again once the host answers".to_owned(),
        }
    }
}

impl ShardState {
    /// Whether the host owns the shard: it serves it, or a move has closed it for a moment.
    pub fn is_owner(self) -> bool {
        matches!(self, ShardState::Serving | ShardState::Fenced)
    }
}
