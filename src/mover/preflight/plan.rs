//! Turns facts into a plan, or into every reason against it: a pure function. Executing a [`Plan`]
//! makes no choices.

use crate::mover::preflight::facts;
use crate::mover::protocol::bytes::Bytes;
use std::time::Duration;

use crate::map::{HostName, ShardEpoch};
use crate::pg::quote_ident;
use crate::schema::START_A_STANDBY;
use crate::shard::ShardId;

use crate::mover::definition::ddl::{Creation, Statement};
use crate::mover::definition::refusal::Refusal;
use crate::mover::preflight::facts::{
    ActiveMove, HostFacts, Lock, ReplicationRight, Row, ShardFacts, StreamFacts,
};
use crate::mover::preflight::functions::FunctionUse;
use crate::mover::preflight::identity::LentIdentity;
use crate::mover::protocol::desired::{Rollback, UnloggedRows};
use crate::mover::protocol::names::Names;
use crate::mover::protocol::options::Options;
use crate::mover::protocol::state::Mode;

/// What a move will do, shard by shard.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the shards go.
    pub target: HostName,
    /// How the rows are moved.
    pub mode: Mode,
    /// The shards that will be moved.
    pub shards: Vec<ShardPlan>,
    /// Requested shards that are on the target already.
    pub already_there: Vec<ShardId>,
    /// Warnings about the hosts and all shards together: what may make the move slow or hard.
    pub warnings: Vec<String>,
}

/// What a move will do with one shard.
#[derive(Clone, Debug)]
pub struct ShardPlan {
    /// The shard.
    pub shard: ShardId,
    /// Its schema.
    pub schema: String,
    /// The host that serves it.
    pub source: HostName,
    /// Its epoch there. At the target it is one more.
    pub epoch: ShardEpoch,
    /// How many tables it has.
    pub tables: usize,
    /// The size of its tables and indexes, in bytes.
    pub bytes: i64,
    /// How many of its materialized views have rows. They are filled at the target.
    pub materialized_views: usize,
    /// The size of those, with their indexes, in bytes.
    pub materialized_bytes: i64,
    /// How many of its tables are unlogged and keep their rows. An online move copies them while
    /// the shard is closed.
    pub unlogged_tables: usize,
    /// The size of those, with their indexes, in bytes.
    pub unlogged_bytes: i64,
    /// The statements that build its schema at the target before the rows come, in order.
    pub before_data: Vec<Statement>,
    /// The statements that run once the rows are there.
    pub after_data: Vec<Statement>,
    /// Online: the replica identities that its tables get until the move is completed or aborted.
    pub lent: Vec<LentIdentity>,
    /// What may make the move slow or hard, and what its operator should know.
    pub warnings: Vec<String>,
}

impl ShardPlan {
    /// The steps in an operator's words, one on each line. Together with `before_data` and
    /// `after_data` they are all that will run.
    pub fn steps(&self, target: &HostName, mode: Mode) -> Vec<String> {
        let ShardPlan {
            shard,
            schema,
            source,
            epoch,
            ..
        } = self;
        let names = Names {
            schema: schema.clone(),
        };
        let (incoming, signpost, left) = (names.incoming(), names.signpost(), names.left(*epoch));
        let mut steps = vec![
            format!("claim shard {shard} on {source}, announce it on {target}"),
            format!(
                "prepare: {} to build {incoming} on {target}; build {signpost} on {source}",
                counted(self.before_data.len(), "statement")
            ),
        ];
        if !self.lent.is_empty() {
            let lent = self
                .lent
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; ");
            steps.insert(
                1,
                format!("lend on {source}, until `pgshard moves complete` or abort: {lent}"),
            );
        }
        let (tables, bytes) = (counted(self.tables, "table"), Bytes(self.bytes));
        let after = self.after_data.len();
        let fence = [
            format!(
                "fence: rename {schema} to {left} and {signpost} to {schema} on {source}; writers \
                    wait from here"
            ),
            format!(
                "barrier: wait until no transaction on {source} holds a lock on {left}; then the \
                    marker"
            ),
        ];
        let fill = (self.materialized_views > 0).then(|| {
            let (views, size) = (
                counted(self.materialized_views, "materialized view"),
                Bytes(self.materialized_bytes),
            );
            format!("fill {views}, about {size}, on {target}: they show the data of that moment")
        });
        match mode {
            Mode::Blocking => {
                steps.extend(fence);
                steps.push(format!("copy {tables}, about {bytes}; compare digests"));
                steps.push(format!(
                    "{after} statements build indexes, constraints and triggers; set the sequences"
                ));
                steps.extend(fill);
            }
            Mode::Online => {
                steps.extend([
                    format!(
                        "stream: publication of {tables} and a slot on {source}; it keeps WAL \
                        until the move ends"
                    ),
                    format!(
                        "copy {tables}, about {bytes}, in chunks while {source} serves; then \
                        keys and indexes"
                    ),
                    "catch up: apply what changed meanwhile; the other indexes; compare \
                        digests"
                        .to_owned(),
                ]);
                steps.extend(fill);
                steps.extend([
                    "set the sequences ahead; wait until the target is close behind".to_owned(),
                ]);
                steps.extend(fence);
                if self.unlogged_tables > 0 {
                    let (tables, size) = (
                        counted(self.unlogged_tables, "unlogged table"),
                        Bytes(self.unlogged_bytes),
                    );
                    let closed = closed_for(self.unlogged_bytes).as_secs_f64();
                    steps.push(format!(
                        "copy {tables}, {size}: the shard is closed for about \
                        {closed:.1} s meanwhile"
                    ));
                }
                steps.push("drain: apply up to the marker".to_owned());
            }
        }
        steps.extend([
            format!(
                "decide on {source}: moved to {target}, epoch {}",
                epoch.next()
            ),
            format!("open: rename {incoming} to {schema} on {target}; writers go on from here"),
            format!("publish the map; keep {left} on {source} until `pgshard moves complete`"),
        ]);
        if mode == Mode::Online {
            let both = format!(
                "{left} on {source} and {schema} on {target} as it was before its first foreign \
                    write"
            );
            steps.push(format!(
                "audit: compare all rows of {both}; its snapshots hold back VACUUM on both hosts \
                    meanwhile"
            ));
        }
        steps
    }
    /// Estimates from its size how long a blocking move closes the shard: at least 50 ms, and a
    /// second for each 20 MiB. That is the rate of a slow disk for the copy, two digests and the
    /// indexes together. The command marks it as an estimate.
    pub fn closed_for(&self) -> Duration {
        closed_for(self.bytes + self.materialized_bytes)
    }
}

fn closed_for(bytes: i64) -> Duration {
    const BYTES_PER_SECOND: f64 = 20.0 * 1024.0 * 1024.0;
    Duration::from_secs_f64(0.05 + bytes.max(0) as f64 / BYTES_PER_SECOND)
}

/// `1 table`, `3 tables`.
fn counted(count: usize, what: &str) -> String {
    if count == 1 {
        format!("1 {what}")
    } else {
        format!("{count} {what}s")
    }
}

/// The plan of one shard.
///
/// # Errors
/// Every reason against it.
pub(crate) fn judge(
    facts: &ShardFacts,
    source: &HostFacts,
    target: &HostFacts,
    mode: Mode,
    options: &Options,
) -> Result<ShardPlan, Vec<Refusal>> {
    let (shard, epoch) = (
        facts.shard,
        facts
            .source_row
            .as_ref()
            .filter(|row| row.state == "serving")
            .map(|row| row.epoch),
    );
    let mut refusals = against_source(facts, source);
    refusals.extend(against_target(facts, target, epoch));
    let (unlogged_tables, unlogged_bytes) = match options.unlogged {
        UnloggedRows::Carried => (facts.unlogged_tables, facts.unlogged_bytes),
        UnloggedRows::Left => (0, 0),
    };
    let (what, bytes, remedy) = match mode {
        Mode::Blocking => (
            "it is",
            facts.bytes + facts.materialized_bytes,
            "move it with --mode online",
        ),
        Mode::Online => (
            "its unlogged tables are",
            unlogged_bytes,
            "leave their rows with --unlogged empty",
        ),
    };
    let (closed, most) = (closed_for(bytes), options.pause_max);
    if closed > most {
        let (closed, most) = (closed.as_secs(), most.as_secs());
        let reason = format!(
            "would be closed for about {closed} s while {what} copied; at most {most} s are allowed"
        );
        let remedy = format!("{remedy}, or allow more with --max-pause-s");
        refusals.push(Refusal::new("the shard", reason, remedy).at(shard, &source.name));
    }
    refusals.extend(
        facts
            .at_source
            .iter()
            .map(|found| found.clone().at(shard, &source.name)),
    );
    if mode == Mode::Online {
        refusals.extend(
            facts
                .online
                .refusals
                .iter()
                .map(|found| found.clone().at(shard, &source.name)),
        );
    }
    refusals.extend(
        facts
            .at_target
            .iter()
            .map(|found| found.clone().at(shard, &target.name)),
    );
    let creation = facts.creation.clone();
    let (Some(epoch), Some(creation), true) = (epoch, creation, refusals.is_empty()) else {
        return Err(refusals);
    };
    let Creation {
        before_data,
        after_data,
        refreshes: _,
        notes,
    } = creation;
    let no_reverse = (mode == Mode::Online && options.rollback == Rollback::Prepared)
        .then(|| facts::no_reverse(target))
        .flatten();
    let no_reverse = no_reverse.map(|why| {
        format!(
            "no rollback will be possible, because of host {}: {why}",
            target.name
        )
    });
    let lent = if mode == Mode::Online {
        facts.online.lent.clone()
    } else {
        Vec::new()
    };
    let old_locks = facts.locks.iter().filter(|lock| lock.seconds > 1.0);
    let warnings = old_locks
        .map(waited_for)
        .chain(facts.sequences.iter().cloned())
        .chain(facts.texts.iter().cloned())
        .chain(notes)
        .chain(no_reverse);
    let warnings = warnings.chain(full(&lent));
    Ok(ShardPlan {
        shard,
        schema: facts.schema.clone(),
        source: source.name.clone(),
        epoch,
        tables: facts.tables,
        bytes: facts.bytes,
        materialized_views: facts.materialized_views,
        materialized_bytes: facts.materialized_bytes,
        unlogged_tables,
        unlogged_bytes,
        before_data,
        after_data,
        warnings: warnings.collect(),
        lent,
    })
}

/// What REPLICA IDENTITY FULL costs while it is lent.
fn full(lent: &[LentIdentity]) -> Option<String> {
    let full: Vec<&str> = lent
        .iter()
        .filter(|one| one.index.is_none())
        .map(|one| one.table.as_str())
        .collect();
    (!full.is_empty()).then(|| {
        format!(
            "no index identifies the rows of {}: until the move is completed, each UPDATE and \
                DELETE there writes the \
             whole former row to the WAL",
            full.join(", ")
        )
    })
}

/// Describes a lock that the fence would wait for.
fn waited_for(lock: &Lock) -> String {
    let holder = lock.holder();
    format!(
        "{holder} has held {} on {} for {:.0} s: the fence waits for it",
        lock.mode, lock.relation, lock.seconds
    )
}

/// The reasons against the move in the source's control tables.
fn against_source(facts: &ShardFacts, source: &HostFacts) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let mut refuse = |reason: String, remedy: &str| {
        refusals.push(Refusal::new("the shard", reason, remedy).at(facts.shard, &source.name));
    };
    match &facts.source_row {
        Some(Row { state, .. }) if state == "serving" => {}
        Some(Row { state, peer, .. }) => {
            let peer = peer.as_deref().unwrap_or("nowhere");
            refuse(
                format!("is {state} (to {peer}) there"),
                "look with `pgshard moves list` and `pgshard check`",
            );
        }
        None => {
            let remedy = "run `pgshard check`, then `pgshard bootstrap` or `pgshard map rebuild`";
            refuse("was never there".to_owned(), remedy);
        }
    }
    if let Some(ActiveMove { id, phase, worker }) = &facts.active_move {
        let (by, remedy) = match worker {
            Some(worker) => (
                format!("; {worker} works on it"),
                format!(
                    "wait for it, `pgshard moves watch {id}`; or `pgshard moves stop {id}`, \
                        `pgshard moves abort {id}`"
                ),
            ),
            None => (
                String::new(),
                format!("`pgshard moves resume {id}` or `pgshard moves abort {id}` first"),
            ),
        };
        refuse(format!("has a move {id} that is {phase}{by}"), &remedy);
    }
    refusals
}

/// The reasons in the target's control tables against the move of a shard that its source serves at
/// this epoch.
fn against_target(
    facts: &ShardFacts,
    target: &HostFacts,
    epoch: Option<ShardEpoch>,
) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let mut refuse = |reason: String, remedy: &str| {
        refusals.push(Refusal::new("the shard", reason, remedy).at(facts.shard, &target.name));
    };
    if let Some(id) = &facts.incoming {
        let remedy = format!(
            "`pgshard moves resume {id}` or `pgshard moves abort {id}` first; `pgshard moves gc` \
                if it is gone"
        );
        refuse(format!("is being brought there by the move {id}"), &remedy);
    }
    match &facts.target_row {
        Some(row) if row.state != "moved" => {
            let reason = format!("is {} there too, at epoch {}", row.state, row.epoch);
            refuse(
                reason,
                "two hosts own this shard: run `pgshard check`; the one with the higher epoch is \
                    right",
            );
        }
        Some(row) if epoch.is_some_and(|epoch| row.epoch > epoch) => {
            let reason = format!("was there at epoch {}, later than the source's", row.epoch);
            let remedy = "run `pgshard check`; was the source restored, or failed over to a \
                standby that lacked its last commits?";
            refuse(reason, remedy);
        }
        _ => {}
    }
    for schema in &facts.in_the_way {
        let remedy =
            "`pgshard moves gc` drops what dead moves left; anything else must be renamed by hand";
        refuse(
            format!("cannot go there: schema {schema} already exists"),
            remedy,
        );
    }
    refusals
}

/// The default mode: online if every source can send its changes.
pub(crate) fn suitable<'a>(sources: impl IntoIterator<Item = &'a HostFacts>) -> Mode {
    let logical = sources.into_iter().all(|source| source.stream.can_decode);
    if logical {
        Mode::Online
    } else {
        Mode::Blocking
    }
}

/// Why no mode but blocking was suitable, where the operator has not chosen it.
pub(crate) fn why_blocking<'a>(sources: impl IntoIterator<Item = &'a HostFacts>) -> Vec<String> {
    let mute = sources
        .into_iter()
        .filter(|source| !source.stream.can_decode);
    mute.map(|source| {
        format!(
            "the shards are closed while they are copied, and cannot be taken back without a \
                copy: {} has wal_level {}; set wal_level = logical there and restart the server \
                to move them while they are open",
            source.name, source.stream.wal_level
        )
    })
    .collect()
}

/// How many connections to each of its hosts a move of so many shards takes at most. Copying takes
/// one more for each chunk on its way, as far as there are some left.
///
/// A blocking move has its heartbeat, and an online move in addition the watchdog, the session of
/// the group, that of the follower and that of the fence. Each shard that is worked on has a
/// session, and another one for its snapshot. The stream does not count: PostgreSQL limits
/// walsenders by themselves.
pub(crate) fn connections_needed(mode: Mode, shards: usize, options: &Options) -> i64 {
    let at_once = i64::try_from(shards.min(options.jobs).max(1)).unwrap_or(i64::MAX);
    let shared: i64 = match mode {
        Mode::Online => 5,
        Mode::Blocking => 1,
    };
    shared.saturating_add(at_once.saturating_mul(2))
}

/// The reason against a move that takes more connections than a host has left.
pub(crate) fn too_few_connections(host: &HostFacts, needed: i64) -> Option<Refusal> {
    let limit = host.connections.as_ref()?;
    (limit.free < needed).then(|| {
        let reason = format!(
            "has {} connections left for the role ({}), and the move takes {needed}",
            limit.free.max(0),
            limit.what
        );
        let remedy = "close some, or raise the limit; fewer are taken with fewer shards at a time";
        Refusal::new("the server", reason, remedy).at(None, &host.name)
    })
}

/// Reasons against any move between these hosts.
pub(crate) fn judge_hosts(source: &HostFacts, target: &HostFacts, mode: Mode) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let mut refuse = |host: &HostFacts, reason: String, remedy: &str| {
        refusals.push(Refusal::new("the database", reason, remedy).at(None, &host.name));
    };
    for host in [source, target] {
        if !host.may_create {
            let remedy = format!(
                "GRANT CREATE ON DATABASE {} TO {}",
                host.database, host.role
            );
            refuse(
                host,
                "does not let the role create or rename schemas".to_owned(),
                &remedy,
            );
        }
        if !host.keeper_may {
            let remedy = format!(
                "GRANT {} TO {}, or connect as {}",
                host.role, host.keeper, host.keeper
            );
            refuse(
                host,
                format!(
                    "has a control schema of {}, who may not act for {}",
                    host.keeper, host.role
                ),
                &remedy,
            );
        }
        if host.commits_hang {
            refuse(
                host,
                "has no synchronous standby, and commits wait for one".to_owned(),
                START_A_STANDBY,
            );
        }
        if host.in_recovery {
            refuse(
                host,
                "is a standby: it takes no writes".to_owned(),
                "name the primary in the config",
            );
        }
    }
    for host in [source, target] {
        let is_needed = |needed| match needed {
            FunctionUse::Always => true,
            FunctionUse::Online => mode == Mode::Online,
            FunctionUse::Slots => mode == Mode::Online && host.name == source.name,
            FunctionUse::Better(_) => false,
        };
        for missing in host.missing.iter().filter(|one| is_needed(one.needed)) {
            let function = &missing.function;
            let or = match missing.needed {
                FunctionUse::Online | FunctionUse::Slots => ", or move with --mode blocking",
                _ => "",
            };
            let remedy = format!(
                "GRANT EXECUTE ON FUNCTION pg_catalog.{function} TO {}, by an administrator{or}",
                quote_ident(&host.role)
            );
            refuse(
                host,
                format!("does not provide the function {function}()"),
                &remedy,
            );
        }
    }
    if mode == Mode::Online {
        refusals.extend(against_stream(source));
    }
    let mut refuse = |host: &HostFacts, reason: String, remedy: &str| {
        refusals.push(Refusal::new("the database", reason, remedy).at(None, &host.name));
    };
    if source.cluster != target.cluster {
        let reason = format!(
            "was bootstrapped as {}, {} as {}",
            target.cluster, source.name, source.cluster
        );
        refuse(
            target,
            reason,
            "the two hosts belong to different clusters: correct the config",
        );
    }
    if source.encoding != target.encoding {
        let reason = format!(
            "has encoding {}, {} has {}",
            target.encoding, source.name, source.encoding
        );
        refuse(
            target,
            reason,
            "create the target's database with the source's encoding",
        );
    }
    if source.collation != target.collation {
        let reason = format!(
            "has collation {}, {} has {}",
            target.collation, source.name, source.collation
        );
        refuse(
            target,
            reason,
            "create the target's database with the source's LC_COLLATE and LC_CTYPE",
        );
    }
    refusals
}

/// Reasons against taking changes from this host, as an online move does.
fn against_stream(source: &HostFacts) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let mut refuse = |reason: String, remedy: &str| {
        refusals.push(Refusal::new("the database", reason, remedy).at(None, &source.name));
    };
    let StreamFacts {
        wal_level,
        can_decode,
        replication,
        free_slots,
        free_senders,
        prepared,
        ..
    } = &source.stream;
    if !can_decode {
        let remedy = "set wal_level = logical there and restart the server, or move with \
            --mode blocking";
        refuse(
            format!("has wal_level {wal_level}: it cannot send its changes"),
            remedy,
        );
    }
    if let ReplicationRight::Refused(why) = replication {
        let remedy = format!(
            "ALTER ROLE {} REPLICATION, or what `pgshard rights --for mover` prints for your \
                service; or move with --mode blocking",
            quote_ident(&source.role)
        );
        let reason = format!("does not let the role read its changes: {why}");
        refuse(reason, &remedy);
    }
    if *free_slots < 1 {
        let remedy = "raise max_replication_slots there, or drop a slot: `pgshard moves gc` \
            drops those of dead moves";
        refuse("has no replication slot left".to_owned(), remedy);
    }
    if *free_senders < 1 {
        refuse(
            "has no walsender left".to_owned(),
            "raise max_wal_senders there",
        );
    }
    if !prepared.is_empty() {
        let remedy = "end them with COMMIT PREPARED or ROLLBACK PREPARED, in the database that \
            is named";
        refuse(
            format!(
                "has old prepared transactions on its server, for which the slot would wait: \
                    {}",
                prepared.join("; ")
            ),
            remedy,
        );
    }
    refusals
}

/// Clocks that differ by more are mentioned: IDs stay unique, but their order across hosts is
/// wrong.
const CLOCKS_S: f64 = 0.5;

/// What an operator should know before shards of these sizes (tables, bytes) go from one host to
/// the other.
pub(crate) fn warnings(
    source: &HostFacts,
    target: &HostFacts,
    mode: Mode,
    sizes: &[(usize, i64)],
) -> Vec<String> {
    let mut warnings = Vec::new();
    for host in [source, target] {
        for missing in &host.missing {
            if let FunctionUse::Better(without) = missing.needed {
                warnings.push(format!(
                    "{} does not provide the function {}(): {without}",
                    host.name, missing.function
                ));
            }
        }
    }
    if target.version / 10000 < source.version / 10000 {
        let (from, to) = (source.version / 10000, target.version / 10000);
        warnings.push(format!(
            "{} has PostgreSQL {to}, older than {} with {from}",
            target.name, source.name
        ));
    }
    let apart = source.ahead_s - target.ahead_s;
    if apart.abs() > CLOCKS_S {
        let way = if apart > 0.0 { "behind" } else { "ahead of" };
        let apart = apart.abs();
        warnings.push(format!(
            "the clock of {} is {apart:.1} s {way} that of {}: correct it",
            target.name, source.name
        ));
    }
    let versions = (&source.collation_version, &target.collation_version);
    if let (Some(from), Some(to)) = versions
        && from != to
    {
        let name = &target.name;
        warnings.push(format!(
            "{name} sorts text by version {to} of its collation, {} by {from}: ORDER BY may differ \
                there",
            source.name
        ));
    }
    for host in [source, target] {
        if !host.event_triggers.is_empty() {
            let triggers = host.event_triggers.join(", ");
            warnings.push(format!(
                "{} has event triggers, which see what the move creates and renames: {triggers}",
                host.name
            ));
        }
        // The tables of a schema are created in one transaction: each with its key, its TOAST table
        // and their indexes.
        if let Some(tables) = sizes
            .iter()
            .map(|(tables, _)| *tables)
            .max()
            .filter(|t| 5 * *t as i64 > host.locks_max)
        {
            let name = &host.name;
            warnings.push(format!(
                "{name} has locks for {} objects, and a shard has {tables} tables: raise \
                    max_locks_per_transaction",
                host.locks_max
            ));
        }
    }
    if mode == Mode::Online {
        warnings.extend(
            source
                .stream
                .old
                .iter()
                .map(|old| format!("{}: {old}; the slot waits for its end", source.name)),
        );
        warnings.extend(source.stream.idle_max.iter().map(|most| {
            format!(
                "{} has idle_replication_slot_timeout = {most}: a copy that takes longer is lost, \
                    since nobody reads the slot meanwhile; set it to 0 until the move is done",
                source.name
            )
        }));
    }
    let bytes: i64 = sizes.iter().map(|(_, bytes)| bytes).sum();
    if bytes >= ROOM_BYTES {
        let kept = if mode == Mode::Online {
            ", and keeps the WAL of what is written there meanwhile"
        } else {
            ""
        };
        warnings.push(format!(
            "{} needs about {} of disk space and writes as much WAL; {} keeps the old copies until \
                `pgshard moves complete`{kept}",
            target.name,
            Bytes(bytes),
            source.name
        ));
    }
    warnings
}

/// How much room a host has for shards, if the config limits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// What it has in shards.
    pub(crate) used: u64,
    /// `max_bytes` of the config.
    pub(crate) most: u64,
}

/// What the shards of these sizes take of the room at their target: a line of the plan.
///
/// # Errors
/// When there is not so much.
pub(crate) fn fits(target: &HostName, room: Room, sizes: &[i64]) -> Result<String, Refusal> {
    let bytes: i64 = sizes.iter().sum();
    let left = room.most.saturating_sub(room.used);
    let of_room = format!(
        "{}, and {} of its max_bytes {} are left",
        Bytes(bytes),
        Bytes(left.cast_signed()),
        Bytes(room.most.cast_signed())
    );
    if u64::try_from(bytes).unwrap_or(0) <= left {
        return Ok(format!("{target} gets about {of_room}"));
    }
    let remedy = "move fewer shards, raise max_bytes of the host in the config if its disk has \
        room, or take others away first: `pgshard rebalance --plan`";
    let reason = format!("would get {of_room}");
    Err(Refusal::new("the host", reason, remedy).at(None, target))
}

/// Below this size the disk space is not mentioned.
const ROOM_BYTES: i64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> HostFacts {
        HostFacts {
            name: HostName::new(name).unwrap(),
            database: "app".to_owned(),
            role: "app".to_owned(),
            encoding: "UTF8".to_owned(),
            collation: "C.UTF-8".to_owned(),
            collation_version: None,
            cluster: "4 shards, epoch 0, prefix shard_".to_owned(),
            may_create: true,
            in_recovery: false,
            version: 150004,
            keeper: "app".to_owned(),
            keeper_may: true,
            ahead_s: 0.0,
            event_triggers: Vec::new(),
            locks_max: 12_800,
            commits_hang: false,
            missing: Vec::new(),
            connections: None,
            stream: StreamFacts {
                wal_level: "logical".to_owned(),
                can_decode: true,
                replication: ReplicationRight::Granted,
                free_slots: 1,
                free_senders: 1,
                prepared: Vec::new(),
                old: Vec::new(),
                idle_max: None,
            },
        }
    }

    fn options() -> Options {
        Options::default().pause_max(Duration::from_secs(60))
    }

    fn facts() -> ShardFacts {
        ShardFacts {
            shard: ShardId::new(2).unwrap(),
            schema: "shard_0002".to_owned(),
            source_row: Some(Row {
                state: "serving".to_owned(),
                epoch: ShardEpoch::FIRST,
                peer: None,
            }),
            creation: Some(Creation::default()),
            ..ShardFacts::default()
        }
    }

    #[test]
    fn a_plan_has_the_steps_of_its_mode() {
        for (mode, steps) in [(Mode::Blocking, 9), (Mode::Online, 13)] {
            let plan = judge(&facts(), &host("db1"), &host("db2"), mode, &options()).unwrap();
            assert_eq!(
                (plan.epoch, plan.source.as_str()),
                (ShardEpoch::FIRST, "db1")
            );
            assert_eq!(
                plan.steps(&HostName::new("db2").unwrap(), mode).len(),
                steps
            );
            assert!(judge_hosts(&host("db1"), &host("db2"), mode).is_empty());
        }
    }

    #[test]
    fn unlogged_tables_close_a_shard() {
        let judged = |mode, bytes, options: Options| {
            let facts = ShardFacts {
                bytes,
                unlogged_tables: 2,
                unlogged_bytes: bytes,
                ..facts()
            };
            judge(&facts, &host("db1"), &host("db2"), mode, &options)
        };
        let to = HostName::new("db2").unwrap();
        let said = judged(Mode::Online, 40 << 20, options())
            .unwrap()
            .steps(&to, Mode::Online);
        let of_unlogged =
            "copy 2 unlogged tables, 40 MiB: the shard is closed for about 2.0 s meanwhile";
        assert!(said.iter().any(|step| step == of_unlogged), "{said:#?}");
        let refusals = judged(Mode::Online, 4 << 30, options()).unwrap_err();
        assert!(
            refusals[0]
                .to_string()
                .contains("its unlogged tables are copied"),
            "{}",
            refusals[0]
        );
        assert!(
            judged(
                Mode::Online,
                4 << 30,
                options().unlogged(UnloggedRows::Left)
            )
            .is_ok()
        );
    }

    #[test]
    fn every_reason_is_said_at_once() {
        let found = |object: &str| Refusal::new(object, "is odd", "drop it");
        let row = |state: &str, epoch| {
            Some(Row {
                state: state.to_owned(),
                epoch: ShardEpoch::new(epoch).unwrap(),
                peer: None,
            })
        };
        let facts = ShardFacts {
            source_row: row("moved", 2),
            target_row: row("serving", 3),
            active_move: Some(ActiveMove {
                id: "m1".to_owned(),
                phase: "fenced".to_owned(),
                worker: None,
            }),
            incoming: Some("m2".to_owned()),
            in_the_way: vec!["shard_0002".to_owned()],
            bytes: 10 << 30,
            at_source: vec![found("policy p"), found("view public.v")],
            at_target: vec![found("type citext")],
            ..facts()
        };
        let refusals = judge(
            &facts,
            &host("db1"),
            &host("db2"),
            Mode::Blocking,
            &options(),
        )
        .unwrap_err();
        assert_eq!(refusals.len(), 9);
        assert!(refusals.iter().all(|refusal| !refusal.remedy.is_empty()));
        assert_eq!(
            refusals[0].to_string(),
            "shard 2 on host db1: the shard is moved (to nowhere) there"
        );
    }

    #[test]
    fn what_an_operator_should_know() {
        let sizes = [(3, 10_000)];
        assert!(warnings(&host("db1"), &host("db2"), Mode::Online, &sizes).is_empty());
        let stream = StreamFacts {
            old: vec!["backend 7 has a transaction".to_owned()],
            idle_max: Some("1h".to_owned()),
            ..host("db1").stream
        };
        let source = HostFacts {
            version: 180000,
            ahead_s: 2.0,
            stream,
            collation_version: Some("2.36".to_owned()),
            ..host("db1")
        };
        let target = HostFacts {
            collation_version: Some("2.31".to_owned()),
            event_triggers: vec!["audit".to_owned()],
            locks_max: 10,
            ..host("db2")
        };
        let said = |mode| warnings(&source, &target, mode, &[(3, 2 << 30)]);
        assert_eq!(said(Mode::Online).len(), 8, "{:#?}", said(Mode::Online));
        assert_eq!(said(Mode::Blocking).len(), 6);
        assert!(said(Mode::Online)[1].starts_with("the clock of db2 is 2.0 s behind that of db1"));
    }

    #[test]
    fn hosts_that_do_not_fit() {
        let other = HostFacts {
            encoding: "LATIN1".to_owned(),
            collation: "en_US".to_owned(),
            cluster: "8 shards".to_owned(),
            may_create: false,
            in_recovery: true,
            keeper_may: false,
            commits_hang: true,
            ..host("db2")
        };
        assert_eq!(judge_hosts(&host("db1"), &other, Mode::Blocking).len(), 7);
        let stream = StreamFacts {
            wal_level: "replica".to_owned(),
            can_decode: false,
            replication: ReplicationRight::Refused("permission denied".to_owned()),
            free_slots: 0,
            free_senders: 0,
            prepared: vec!["'gid' in database app, prepared 90 s ago".to_owned()],
            old: Vec::new(),
            idle_max: None,
        };
        let mute = HostFacts {
            stream,
            ..host("db1")
        };
        assert_eq!(judge_hosts(&mute, &host("db2"), Mode::Online).len(), 5);
        assert!(judge_hosts(&mute, &host("db2"), Mode::Blocking).is_empty());
        assert_eq!(suitable([&host("db1"), &mute]), Mode::Blocking);
        assert_eq!(suitable([&host("db1")]), Mode::Online);
    }
}
