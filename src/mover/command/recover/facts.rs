//! The facts of all hosts about a host that was set back: rows, old copies, IDs, clocks.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;

use crate::id::Id;
use crate::map::HostName;
use crate::mover::command::recover::scope;
use crate::mover::command::repair::{self, RepairPlan, ServerRecord};
use crate::mover::control::context::Context;
use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::state::Phase;
use crate::pg::cause::chain;
use crate::pg::quote_ident;
use crate::schema::{self, HostFacts, Survey};
use crate::shard::ShardId;

/// Everything that the judgement is based on.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) host: HostName,
    pub(super) survey: Survey,
    /// Which server the host is; `None` if its database has no control schema.
    pub(super) server: Option<ServerRecord>,
    /// The shards that were read on all hosts.
    pub(super) looked: BTreeMap<ShardId, RepairOutcome>,
    /// The last IDs that were seen on any host.
    pub(super) ids: BTreeMap<ShardId, Vec<IdSeen>>,
    /// Open moves from or to the host without a mover at work.
    pub(super) open: Vec<OpenMove>,
}

/// The result of a repair's judgement of a shard.
#[derive(Debug)]
pub(super) enum RepairOutcome {
    At {
        /// The plan if no host is given up.
        sure: Box<RepairPlan>,
        /// The plan if the host is given up.
        without: Box<RepairPlan>,
    },
    /// The hosts that could not be read, and why.
    Not(String),
}

/// The last ID of a shard in a schema.
#[derive(Clone, Debug)]
pub(super) struct IdSeen {
    pub(super) host: HostName,
    pub(super) schema: String,
    pub(super) by: SeenBy,
    pub(super) unix_ms: i64,
}

/// What an ID was seen in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeenBy {
    /// The schema's ID clock has reached it.
    Clock,
    /// A row has it.
    Row,
}

#[derive(Clone, Debug)]
pub(super) struct OpenMove {
    pub(super) id: MoveId,
    pub(super) shard: ShardId,
    pub(super) source: HostName,
    pub(super) target: HostName,
    pub(super) phase: Phase,
}

const WHAT: &str = "looking for the last IDs of the shard";

/// Reads all hosts.
pub(super) async fn read(context: &Context, host: &HostName) -> Result<Facts, Error> {
    context.hosts.options(host)?;
    let all = context
        .hosts
        .names()
        .map(|name| Ok((name.clone(), context.hosts.options(name)?.clone())));
    let all: Vec<_> = all.collect::<Result<_, Error>>()?;
    let mut survey = schema::survey_with_clocks(all).await;
    match survey.remove(host) {
        Some(Ok(own)) => survey.insert(host.clone(), Ok(own)),
        Some(Err(source)) => {
            return Err(Error::Facts {
                host: host.clone(),
                source,
            });
        }
        None => return Err(Error::UnknownHost { host: host.clone() }),
    };
    let server = match &survey[host] {
        Ok(HostFacts {
            control: Some(_), ..
        }) => {
            let session = context.hosts.open(host).await?;
            Some(repair::server(&session).await?)
        }
        _ => None,
    };
    let unclear = scope::contradictory(host, &survey);
    let mut looked = BTreeMap::new();
    // One after the other, because each question goes to all hosts.
    for shard in unclear.union(&scope::kept_elsewhere(host, &survey)) {
        let at = match repair::plan_with_and_without(context, *shard, host).await {
            Ok((sure, without)) => RepairOutcome::At {
                sure: Box::new(sure),
                without: Box::new(without),
            },
            Err(error @ (Error::ControlOld { .. } | Error::ControlNewer { .. })) => {
                return Err(error);
            }
            Err(error) => RepairOutcome::Not(chain(&error)),
        };
        looked.insert(*shard, at);
    }
    let ids = ids(context, &survey, &scope::concerned(host, &survey)).await?;
    let open = open(context, host).await;
    Ok(Facts {
        host: host.clone(),
        survey,
        server,
        looked,
        ids,
        open,
    })
}

async fn open(context: &Context, host: &HostName) -> Vec<OpenMove> {
    let (entries, unknown) = context.list(None).await;
    for (host, error) in unknown {
        tracing::warn!(%host, error = chain(&error), "its journal cannot be read");
    }
    let open = entries
        .into_iter()
        .filter(|entry| !entry.phase.is_ended() && entry.worker.is_none());
    let open = open.filter(|entry| entry.source == *host || entry.target == *host);
    open.map(|entry| OpenMove {
        id: entry.id,
        shard: entry.shard,
        source: entry.source,
        target: entry.target,
        phase: entry.phase,
    })
    .collect()
}

/// The last IDs of these shards, wherever something of them exists: where they are served, in old
/// copies, and in what moves were bringing. The rows of all hosts come first, then the ID clocks: a
/// row that is written in between has an ID that its clock has reached.
async fn ids(
    context: &Context,
    survey: &Survey,
    shards: &BTreeSet<ShardId>,
) -> Result<BTreeMap<ShardId, Vec<IdSeen>>, Error> {
    let mut ids: BTreeMap<ShardId, Vec<IdSeen>> = BTreeMap::new();
    for by in [SeenBy::Row, SeenBy::Clock] {
        let asked = survey.iter().filter_map(|(host, facts)| {
            let HostFacts {
                control: Some(control),
                of_moves,
                ..
            } = facts.as_ref().ok()?
            else {
                return None;
            };
            let epoch_ms = control.cluster.as_ref()?.epoch_ms;
            let mut schemas: Vec<(ShardId, String)> = Vec::new();
            for shard in shards {
                let own = context.prefix.schema(*shard);
                let (left, incoming) = (format!("{own}__left_e"), format!("{own}__incoming"));
                let of_moves = of_moves
                    .schemas
                    .iter()
                    .filter(|name| name.starts_with(&left) || **name == incoming);
                schemas.extend(of_moves.map(|name| (*shard, name.clone())));
                if control
                    .shards
                    .get(shard)
                    .is_some_and(|row| row.state.is_owner())
                {
                    schemas.push((*shard, own));
                }
            }
            (!schemas.is_empty()).then(|| on(context, host, epoch_ms, schemas, by))
        });
        for seen in join_all(asked).await {
            for (shard, seen) in seen? {
                ids.entry(shard).or_default().push(seen);
            }
        }
    }
    Ok(ids)
}

/// How many schemas are in one query. Each table takes a lock until the query ends.
const SCHEMAS_AT_ONCE: usize = 16;

/// The last IDs on one host, of rows or of ID clocks.
///
/// Locks: ACCESS SHARE on one table at a time, for a statement that reads the end of an index.
async fn on(
    context: &Context,
    host: &HostName,
    epoch_ms: i64,
    schemas: Vec<(ShardId, String)>,
    by: SeenBy,
) -> Result<Vec<(ShardId, IdSeen)>, Error> {
    let session = context.hosts.open(host).await?;
    let mut seen = Vec::new();
    for some in schemas.chunks(SCHEMAS_AT_ONCE) {
        let numbers: Vec<i32> = some.iter().map(|(shard, _)| shard.as_i32()).collect();
        let names: Vec<&str> = some.iter().map(|(_, name)| name.as_str()).collect();
        let sql = match by {
            SeenBy::Clock => CLOCKS,
            SeenBy::Row => COLUMNS,
        };
        let mut found: BTreeMap<(ShardId, String), i64> = BTreeMap::new();
        for row in session.rows(WHAT, sql, &[&numbers, &names]).await? {
            let (number, schema): (i32, String) = (row.get(0)?, row.get(1)?);
            let Ok(shard) = ShardId::try_from(number) else {
                continue;
            };
            let ms = match by {
                SeenBy::Clock => row.get::<_, Option<i64>>(2)?,
                SeenBy::Row => {
                    let id = largest(&session, shard, &schema, row.get(2)?, row.get(3)?).await?;
                    id.map(|id| i64::try_from(Id::decode(id).ms()).unwrap_or(i64::MAX))
                }
            };
            if let Some(ms) = ms {
                let last = found.entry((shard, schema)).or_insert(ms);
                *last = ms.max(*last);
            }
        }
        let told = |((shard, schema), ms): ((ShardId, String), i64)| {
            (
                shard,
                IdSeen {
                    host: host.clone(),
                    schema,
                    by,
                    unix_ms: epoch_ms.saturating_add(ms),
                },
            )
        };
        seen.extend(found.into_iter().map(told));
    }
    Ok(seen)
}

/// The last ID of the shard in a column. IDs past 2^40 ms are negative, and later than the others.
async fn largest(
    session: &Session,
    shard: ShardId,
    schema: &str,
    table: &str,
    column: &str,
) -> Result<Option<i64>, Error> {
    let (from, id) = (
        format!("ONLY {}.{}", quote_ident(schema), quote_ident(table)),
        quote_ident(column),
    );
    let own = format!("({id} >> 10) & 8191 = {shard}");
    let sql = format!(
        "SELECT coalesce((SELECT {id} FROM {from} WHERE {own} AND {id} < 0 ORDER BY {id} DESC \
            LIMIT 1),
            (SELECT {id} FROM {from} WHERE {own} AND {id} >= 0 ORDER BY {id} DESC LIMIT 1))"
    );
    session.row(WHAT, &sql, &[]).await?.get(0)
}

/// How far the ID clocks of schemas are, in milliseconds since the epoch. The CASE is needed
/// because a signpost has views with these names.
const CLOCKS: &str = "
    SELECT s.shard, s.name, (CASE WHEN t.relkind = 'S' THEN pg_sequence_last_value(t.oid) END
        + CASE WHEN o.relkind = 'S' THEN pg_sequence_last_value(o.oid) END) >> 10
    FROM unnest($1::int4[], $2::text[]) AS s(shard, name)
    JOIN pg_namespace n ON n.nspname = s.name
    JOIN pg_class t ON t.relnamespace = n.oid AND t.relname = 'id_ticket'
    JOIN pg_class o ON o.relnamespace = n.oid AND o.relname = 'id_offset'";

/// Columns with IDs from next_id() that an index orders. Other columns would have to be read as a
/// whole, which `check --rows` does.
const COLUMNS: &str = "
    SELECT s.shard, s.name, c.relname::text, a.attname::text
    FROM unnest($1::int4[], $2::text[]) AS s(shard, name)
    JOIN pg_namespace n ON n.nspname = s.name
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind = 'r'
    JOIN pg_attrdef d ON d.adrelid = c.oid
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.adnum AND NOT a.attisdropped
        AND a.atttypid = 'int8'::regtype
    WHERE EXISTS (SELECT FROM pg_depend e JOIN pg_proc p ON p.oid = e.refobjid
            WHERE e.classid = 'pg_attrdef'::regclass AND e.objid = d.oid AND e.refclassid = \
            'pg_proc'::regclass
                AND p.proname = 'next_id' AND p.pronargs = 0 AND p.pronamespace = n.oid)
        AND EXISTS (SELECT FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON \
        m.oid = x.relam
            WHERE i.indrelid = c.oid AND i.indkey[0] = a.attnum AND i.indisvalid AND i.indpred IS \
            NULL
                AND m.amname = 'btree')
    ORDER BY 1, 2, 3, 4";
