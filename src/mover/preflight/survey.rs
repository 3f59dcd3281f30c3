//! Reads the facts of a request, and combines the judgements of its shards.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};

use crate::map::{HostName, ShardEpoch, ShardMap};
use crate::schema;
use crate::schema::shards_named;
use crate::shard::ShardId;

use crate::mover::control::context::{ByHost, Context};
use crate::mover::control::session::Session;
use crate::mover::definition::refusal::Refusal;
use crate::mover::preflight::facts;
use crate::mover::preflight::facts::HostFacts;
use crate::mover::preflight::plan;
use crate::mover::preflight::plan::{Plan, Room, ShardPlan};
use crate::mover::preflight::rehearsal;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::Names;
use crate::mover::protocol::options::Event;
use crate::mover::protocol::state::Mode;

/// The request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The shards, from any hosts.
    pub shards: Vec<ShardId>,
    /// Where they shall go.
    pub target: HostName,
    /// How the rows are moved. `None`: online if all of the sources can decode their WAL
    /// (`wal_level = logical`, or from version 19 on `replica`), blocking otherwise.
    pub mode: Option<Mode>,
}

impl Request {
    /// A request for these shards, to this host, in the mode that the sources allow.
    pub fn new(shards: Vec<ShardId>, target: HostName) -> Request {
        Request {
            shards,
            target,
            mode: None,
        }
    }
}

setters!(Request: mode: Option<Mode>);

/// How many shards are read at the same time.
const WIDTH: usize = 4;

/// How many hosts are read at the same time for what they have given away.
const HOSTS_WIDTH: usize = 16;

pub(in crate::mover) fn plan<'a>(
    context: &'a Context,
    request: &'a Request,
) -> BoxFuture<'a, Result<Plan, Error>> {
    Box::pin(async move {
        context.hosts.are_sharded()?;
        let map = context.store.load().await.map_err(Error::Map)?;
        if !context.hosts.names().any(|host| *host == request.target) {
            return Err(Error::UnknownHost {
                host: request.target.clone(),
            });
        }
        let _kept = context.hosts.keep_sessions();
        let (placed, mut refusals) = locate(context, &map, request).await?;
        let already_there: Vec<ShardId> = placed
            .iter()
            .filter(|(_, host)| **host == request.target)
            .map(|(shard, _)| *shard)
            .collect();
        let moving: Vec<(ShardId, &HostName)> = placed
            .iter()
            .filter(|(_, host)| **host != request.target)
            .map(|(shard, host)| (*shard, host))
            .collect();
        let mut hosts: Vec<&HostName> = moving.iter().map(|(_, host)| *host).collect();
        hosts.push(&request.target);
        hosts.sort_unstable();
        hosts.dedup();
        let survey = survey(context, &request.target).await?;
        let (mut facts, wrong) = host_facts(context, &hosts, &survey).await?;
        refusals.extend(wrong);
        let given = departed_shards(context, &map, &moving).await;
        let sources = facts.values().filter(|host| host.name != request.target);
        let mode = request
            .mode
            .unwrap_or_else(|| plan::suitable(sources.clone()));
        let why_blocking = match (request.mode, mode) {
            (None, Mode::Blocking) => plan::why_blocking(sources),
            _ => Vec::new(),
        };
        let needed = match moving.is_empty() {
            true => 0,
            false => plan::connections_needed(mode, moving.len(), &context.options),
        };
        for host in facts.values_mut() {
            let session = context.hosts.open(&host.name).await?;
            host.recount(&session, needed).await?;
            if mode == Mode::Online {
                host.try_replication(&session).await?;
            }
            context.hosts.give_back(session).await;
            refusals.extend(plan::too_few_connections(host, needed));
        }
        let mut fitting: ByHost<&HostFacts> = BTreeMap::new();
        if let Some(target) = facts.get(&request.target) {
            refusals.extend(lost(&survey, &request.target));
            for source in hosts
                .iter()
                .filter(|host| ***host != request.target)
                .filter_map(|host| facts.get(*host))
            {
                let against = plan::judge_hosts(source, target, mode);
                if against.is_empty() {
                    fitting.insert(source.name.clone(), source);
                }
                refusals.extend(against);
            }
            let judging: Vec<_> = moving
                .iter()
                .filter_map(|(shard, host)| {
                    let source = fitting.get(*host)?;
                    Some(async move {
                        let judged = shard_plan(context, *shard, source, target, mode).await;
                        context.observer.notify(Event::Examined { shard: *shard });
                        judged
                    })
                })
                .collect();
            let judged: Vec<_> = stream::iter(judging).buffered(WIDTH).collect().await;
            let mut shards = Vec::with_capacity(judged.len());
            for outcome in judged {
                match outcome? {
                    Ok(shard) => shards.push(shard),
                    Err(against) => refusals.extend(against),
                }
            }
            refusals.extend(emptied(context, &moving).await?);
            if refusals.is_empty() {
                refusals.extend(rehearse(context, &shards, &request.target).await?);
            }
            refusals.extend(shards.iter().filter_map(|shard| went_back(shard, &given)));
            refusals.extend(
                shards
                    .iter()
                    .filter_map(|shard| served_twice(shard, &survey)),
            );
            let mut warnings = why_blocking;
            if let Some(room) = room(context, &request.target).await?
                && !shards.is_empty()
            {
                let size = |shard: &ShardPlan| shard.bytes + shard.materialized_bytes;
                let sizes: Vec<i64> = shards.iter().map(size).collect();
                match plan::fits(&request.target, room, &sizes) {
                    Ok(line) => warnings.push(line),
                    Err(refusal) => refusals.push(refusal),
                }
            }
            if refusals.is_empty() {
                for source in fitting.values() {
                    let own = shards.iter().filter(|shard| shard.source == source.name);
                    let sizes: Vec<_> = own.map(|shard| (shard.tables, shard.bytes)).collect();
                    warnings.extend(plan::warnings(source, target, mode, &sizes));
                }
                return Ok(Plan {
                    target: request.target.clone(),
                    mode,
                    shards,
                    already_there,
                    warnings,
                });
            }
        }
        refusals.sort();
        refusals.dedup();
        Err(Error::Refused { refusals })
    })
}

/// Builds the shards' schemas at the target in transactions that are rolled back: each definition
/// once, since most shards have the same. Gives what is refused there, for each shard that has it.
///
/// Locks: as [`rehearsal::build`].
async fn rehearse(
    context: &Context,
    shards: &[ShardPlan],
    target: &HostName,
) -> Result<Vec<Refusal>, Error> {
    let mut known: BTreeMap<(&HostName, Vec<String>), Vec<Refusal>> = BTreeMap::new();
    let mut refusals = Vec::new();
    for plan in shards {
        let names = Names {
            schema: plan.schema.clone(),
        };
        let incoming = names.incoming();
        let statements = || plan.before_data.iter().chain(&plan.after_data);
        let definition = (&plan.source, rehearsal::alike(statements(), &names));
        let found = match known.get(&definition) {
            Some(found) => found.clone(),
            None => {
                let (from, to) =
                    tokio::try_join!(context.hosts.open(&plan.source), context.hosts.open(target))?;
                let (from, to) = (from.for_shard(plan.shard), to.for_shard(plan.shard));
                let schema = facts::schema_oid(&from, &plan.schema).await?.unwrap_or(0);
                let found = rehearsal::build(&from, &to, (schema, &incoming), statements()).await?;
                tokio::join!(context.hosts.give_back(from), context.hosts.give_back(to));
                known.insert(definition, found.clone());
                found
            }
        };
        let at = |one: Refusal| one.at(plan.shard, &plan.source);
        refusals.extend(found.into_iter().map(at));
    }
    Ok(refusals)
}

/// How much room the target has, if the config limits it.
///
/// Locks: ACCESS SHARE on each table of the target's shards while its files are measured.
async fn room(context: &Context, target: &HostName) -> Result<Option<Room>, Error> {
    let Some(most) = context.options.bytes_max.get(target).copied() else {
        return Ok(None);
    };
    // A session of its own: measuring sets a limit for locks.
    let session = context.hosts.open_new(target).await?;
    let measured = schema::measure(session.client.client(), schema::Sizes::Exact).await;
    let measured = measured.map_err(|error| session.failed("measuring the target", error))?;
    let used = measured.values().map(|measure| measure.bytes).sum();
    Ok(Some(Room { used, most }))
}

/// Finds where the shards are, by the hosts' own rows; the map only decides where to look first.
async fn locate(
    context: &Context,
    map: &ShardMap,
    request: &Request,
) -> Result<(BTreeMap<ShardId, HostName>, Vec<Refusal>), Error> {
    let mut placed = BTreeMap::new();
    let mut refusals = Vec::new();
    let mut sessions: ByHost<Session> = BTreeMap::new();
    for &shard in &request.shards {
        let Some(mut host) = map.host(shard).cloned() else {
            continue;
        };
        let mut owned = false;
        // A map can be behind by any number of moves, but a chain of signposts is no longer than
        // the number of hosts.
        for _ in 0..context.hosts.names().count() {
            if !sessions.contains_key(&host) {
                sessions.insert(host.clone(), context.hosts.open(&host).await?);
            }
            let Some(session) = sessions.get(&host) else {
                break;
            };
            if facts::of_host(session).await?.is_err() {
                break;
            }
            let row = facts::row_of(session, shard).await?;
            owned = row.as_ref().is_some_and(|row| row.state != "moved");
            let peer = row
                .filter(|row| row.state == "moved")
                .and_then(|row| row.peer);
            match peer.and_then(|peer| HostName::new(&peer).ok()) {
                Some(peer) if context.hosts.names().any(|known| *known == peer) => host = peer,
                Some(peer) => {
                    let reason = format!("has moved to {peer}, which the config does not name");
                    let remedy = format!("add [hosts.{peer}] to the config");
                    refusals.push(Refusal::new("the shard", reason, remedy).at(shard, &host));
                    break;
                }
                None => break,
            }
        }
        // Whether a shard can come to the target is judged by its facts later.
        if host == request.target && !owned {
            let reason = "is not there, although the map or another host says so";
            let remedy = "run `pgshard check`; `pgshard moves resume` opens it if it was decided, \
                `pgshard map rebuild` corrects the map";
            refusals.push(Refusal::new("the shard", reason, remedy).at(shard, &host));
        }
        placed.insert(shard, host);
    }
    Ok((placed, refusals))
}

/// Refuses the shards that lack what others on their host have: a move would make them look right,
/// and remove the place where the rest may still be found.
async fn emptied(
    context: &Context,
    moving: &[(ShardId, &HostName)],
) -> Result<Vec<Refusal>, Error> {
    let mut refusals = Vec::new();
    let mut hosts: Vec<&HostName> = moving.iter().map(|(_, host)| *host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    for host in hosts {
        let session = context.hosts.open(host).await?;
        let facts = schema::host_facts(&session.client).await;
        let facts = facts.map_err(|source| Error::Facts {
            host: host.clone(),
            source,
        })?;
        let Some(control) = &facts.control else {
            continue;
        };
        let mut lacking = schema::missing_objects(host, control);
        for (shard, _) in moving.iter().filter(|(_, on)| on == &host) {
            if let Some(what) = lacking.remove(shard) {
                refusals.push(Refusal::new("the schema", what, schema::RESTORE).at(*shard, host));
            }
        }
    }
    Ok(refusals)
}

/// A statement that a host owns a shard since an epoch.
struct DepartedShard {
    shard: ShardId,
    epoch: ShardEpoch,
    owner: String,
    /// Who reports it, for messages.
    by: String,
}

/// The owners of these shards by the map and by the hosts that answer. A host that does not answer
/// is ignored: while it is down, shards of other hosts must still be movable.
async fn departed_shards(
    context: &Context,
    map: &ShardMap,
    moving: &[(ShardId, &HostName)],
) -> Vec<DepartedShard> {
    let shards: Vec<ShardId> = moving.iter().map(|(shard, _)| *shard).collect();
    let ask = |host: &HostName| {
        let (host, shards) = (host.clone(), &shards);
        async move {
            let session = context.hosts.open(&host).await.ok()?;
            facts::of_host(&session).await.ok()?.ok()?;
            Some((facts::given_away(&session, shards).await.ok()?, host))
        }
    };
    let answers: Vec<_> = stream::iter(context.hosts.names())
        .map(ask)
        .buffer_unordered(HOSTS_WIDTH)
        .collect()
        .await;
    let by_hosts = answers.into_iter().flatten().flat_map(|(away, from)| {
        let by = format!("host {from}");
        away.into_iter()
            .map(move |(shard, epoch, owner)| DepartedShard {
                shard,
                epoch,
                owner,
                by: by.clone(),
            })
    });
    let by_map = moving.iter().filter_map(|(shard, _)| {
        let placement = map.placement(*shard)?;
        let owner = placement.host.to_string();
        Some(DepartedShard {
            shard: *shard,
            epoch: placement.epoch,
            owner,
            by: "the map".to_owned(),
        })
    });
    by_hosts.chain(by_map).collect()
}

/// Refuses a shard with an owner that does not know of the move that brought it: that host's
/// database is from before the move, and so are its rows.
fn went_back(plan: &ShardPlan, given: &[DepartedShard]) -> Option<Refusal> {
    let later = given
        .iter()
        .filter(|given| given.shard == plan.shard && given.owner == plan.source.as_str());
    let latest = later
        .filter(|given| given.epoch > plan.epoch)
        .max_by_key(|given| given.epoch)?;
    let reason = format!(
        "is served there since epoch {}, but {} knows of epoch {}",
        plan.epoch, latest.by, latest.epoch
    );
    let remedy = "the host was restored from before a move, or failed over to a standby that lacks \
        it, and has old rows: run `pgshard check`";
    Some(Refusal::new("the shard", reason, remedy).at(plan.shard, &plan.source))
}

/// Refuses a shard that another host serves as well: whichever is right, a move would make that
/// harder to find out.
fn served_twice(plan: &ShardPlan, survey: &schema::Survey) -> Option<Refusal> {
    let others = survey.iter().filter(|(host, _)| **host != plan.source);
    let serves = |facts: &schema::HostFacts| {
        facts
            .control
            .as_ref()?
            .shards
            .get(&plan.shard)
            .filter(|row| row.state.is_owner())
            .map(|row| row.epoch)
    };
    let (other, epoch) = others
        .filter_map(|(host, facts)| Some((host, serves(facts.as_ref().ok()?)?)))
        .next()?;
    let reason = format!(
        "is served there since epoch {}, and on {other} since epoch {epoch}",
        plan.epoch
    );
    let remedy = format!(
        "`pgshard moves repair {} --plan` says what can be done; or try again",
        plan.shard
    );
    Some(Refusal::new("the shard", reason, remedy).at(plan.shard, &plan.source))
}

/// The facts of all hosts. A host that does not answer is ignored: it must not keep shards where
/// they are. The hosts do not answer at the same instant, so a shard that arrived at the target in
/// between seems to be nowhere. So shards count as lost there only if they are still missing at the
/// next look.
async fn survey(context: &Context, target: &HostName) -> Result<schema::Survey, Error> {
    let hosts: Result<Vec<_>, Error> = context
        .hosts
        .names()
        .map(|host| Ok((host.clone(), context.hosts.options(host)?.clone())))
        .collect();
    let hosts = hosts?;
    let read = || async { Ok(schema::survey(hosts.iter().cloned()).await) };
    let is_settled = |survey: &schema::Survey| schema::missing_shards(survey, target).is_none();
    schema::read_until_settled(read, is_settled).await
}

/// Refuses a host that no longer knows what it had: nothing is built over what has to be restored.
fn lost(survey: &schema::Survey, host: &HostName) -> Option<Refusal> {
    let schema::MissingShards { shards, by, .. } = schema::missing_shards(survey, host)?;
    let reason = format!(
        "has lost {}, which {by} knows were there",
        shards_named(&shards)
    );
    Some(Refusal::new("the database", reason, schema::restore(host)).at(None, host))
}

async fn host_facts(
    context: &Context,
    hosts: &[&HostName],
    survey: &schema::Survey,
) -> Result<(ByHost<HostFacts>, Vec<Refusal>), Error> {
    let mut facts = BTreeMap::new();
    let mut refusals = Vec::new();
    for host in hosts {
        match facts::of_host(&context.hosts.open(host).await?).await? {
            Ok(found) => drop(facts.insert((*host).clone(), found)),
            Err(refusal) => refusals.push(lost(survey, host).unwrap_or(refusal)),
        }
    }
    Ok((facts, refusals))
}

async fn shard_plan(
    context: &Context,
    shard: ShardId,
    source: &HostFacts,
    target: &HostFacts,
    mode: Mode,
) -> Result<Result<ShardPlan, Vec<Refusal>>, Error> {
    let (from, to) = tokio::try_join!(
        context.hosts.open(&source.name),
        context.hosts.open(&target.name)
    )?;
    let (from, to) = (from.for_shard(shard), to.for_shard(shard));
    let facts = match facts::of_shard(
        &from,
        &to,
        shard,
        &context.prefix,
        context.options.replica_identity,
    )
    .await
    {
        Err(error) if error.is_lock() => {
            return Err(facts::locked(&from, shard, &context.prefix, error).await);
        }
        facts => facts?,
    };
    tokio::join!(context.hosts.give_back(from), context.hosts.give_back(to));
    Ok(plan::judge(&facts, source, target, mode, &context.options))
}
