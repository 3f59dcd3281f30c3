//! Reads the rows of one host, some blocks of a table at a time.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Instant;

use futures_util::future::BoxFuture;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::column::{Column, FilledBy, HostShards, RowRules, Unread};
use crate::pg::cause::chain;
use crate::pg::{Connection, quote_ident};
use crate::schema::fleet::session;
use crate::schema::survey::facts::FactsError;
use crate::shard::{KeyKind, ShardCount, ShardId};

const COLUMNS: &str = include_str!("columns.sql");
const KEYS: &str = include_str!("keys.sql");

/// The number of shards in one query about columns: each partition takes a lock until the end of
/// the query.
const SHARDS_AT_ONCE: usize = 16;

/// Replaces a table's name where the names of a shard's tables could not be read.
const TABLES: &str = "what its tables have";

/// 8 MiB at the usual block size.
const BLOCKS_AT_ONCE: i64 = 1024;

/// The version since which a range of `ctid` reads only those blocks.
const RANGES_SINCE: u32 = 14;

/// Flips the sign, which turns the order of signed numbers into that of unsigned ones: IDs past
/// 2^40 ms are negative.
const SIGN: &str = "'-9223372036854775808'::int8";

/// A column that is to be read, in the table that has it.
struct ColumnToRead {
    shard: ShardId,
    schema: String,
    table: String,
    name: String,
    fill: Fill,
    /// Why its table is not to be read.
    unread: Option<Unread>,
}

/// What puts the values into a column.
enum Fill {
    /// `next_id()`.
    Id,
    Sequence(Sequence),
    /// The application puts the sharding key into it.
    Key(KeyKind, ShardCount),
}

struct Sequence {
    name: String,
    grows: bool,
}

/// What was seen in a column so far.
#[derive(Clone, Default)]
struct ColumnContents {
    foreign: i64,
    example: Option<String>,
    last: Option<i64>,
}

impl Column {
    fn of_unread_shard(shard: ShardId, reason: String) -> Column {
        let filled_by = FilledBy::Unread(Unread::Refused(reason));
        Column {
            shard,
            table: TABLES.to_owned(),
            name: String::new(),
            filled_by,
        }
    }
}

pub(super) fn read<'a>(
    host: &'a HostShards,
    rules: RowRules<'a>,
    on_shard: &'a (dyn Fn() + Send + Sync),
) -> BoxFuture<'a, Result<Vec<Column>, String>> {
    Box::pin(async move {
        let client = session::open(&host.connect, "pgshard rows")
            .await
            .map_err(|fault| fault.to_string())?;
        // If a table is locked for longer, that is reported, not waited for.
        client
            .batch_execute("SET lock_timeout = '10s'; SET row_security = off")
            .await
            .map_err(failed)?;
        let version: i32 = client
            .query_one(
                "SELECT pg_catalog.current_setting('server_version_num')::int4 / 10000",
                &[],
            )
            .await
            .and_then(|row| row.try_get(0))
            .map_err(failed)?;
        let step = if version.unsigned_abs() < RANGES_SINCE {
            i64::from(i32::MAX)
        } else {
            BLOCKS_AT_ONCE
        };
        let shards: Vec<(i32, &str)> = host
            .schemas
            .iter()
            .map(|(shard, schema)| (shard.as_i32(), schema.as_str()))
            .collect();
        let mut columns = Vec::new();
        let mut left: VecDeque<&[(i32, &str)]> = shards.chunks(SHARDS_AT_ONCE).collect();
        while let Some(some) = left.pop_front() {
            let wanted = match (all_wanted(&client, some, rules).await, some) {
                (Ok((wanted, unusable)), _) => {
                    columns.extend(unusable);
                    wanted
                }
                (Err(reason), _) if client.is_closed() => return Err(reason),
                (Err(reason), [(shard, _)]) => {
                    columns.extend(
                        ShardId::try_from(*shard)
                            .map(|shard| Column::of_unread_shard(shard, reason)),
                    );
                    on_shard();
                    continue;
                }
                // Another session has locked a partition, for example. Only its shard is not read.
                (Err(_), several) => {
                    several.chunks(1).rev().for_each(|one| left.push_front(one));
                    continue;
                }
            };
            let mut told = 0;
            for of_a_shard in wanted.chunk_by(|a, b| a.shard == b.shard) {
                for of_a_table in of_a_shard.chunk_by(|a, b| a.table == b.table) {
                    columns.extend(of_table(&client, of_a_table, step).await?);
                }
                told += 1;
                on_shard();
            }
            // Those without a table that is read.
            (told..some.len()).for_each(|_| on_shard());
        }
        Ok(columns)
    })
}

/// The columns that are to be read in these shards, and those that the config has as keys and that
/// cannot be.
async fn all_wanted(
    client: &Connection,
    shards: &[(i32, &str)],
    rules: RowRules<'_>,
) -> Result<(Vec<ColumnToRead>, Vec<Column>), String> {
    let (numbers, schemas): (Vec<i32>, Vec<&str>) = shards.iter().copied().unzip();
    let rows = client
        .query_typed(
            COLUMNS,
            &[(&schemas, Type::TEXT_ARRAY), (&numbers, Type::INT4_ARRAY)],
        )
        .await;
    let wanted: Result<Vec<Option<ColumnToRead>>, _> =
        rows.map_err(failed)?.iter().map(column_to_read).collect();
    let mut wanted: Vec<ColumnToRead> = wanted.map_err(failed)?.into_iter().flatten().collect();
    if rules.keys.is_empty() {
        return Ok((wanted, Vec::new()));
    }
    let (tables, columns): (Vec<&str>, Vec<&str>) = rules
        .keys
        .iter()
        .map(|(table, column)| (table.as_str(), column.as_str()))
        .unzip();
    let rows = client
        .query_typed(
            KEYS,
            &[
                (&schemas, Type::TEXT_ARRAY),
                (&numbers, Type::INT4_ARRAY),
                (&tables, Type::TEXT_ARRAY),
                (&columns, Type::TEXT_ARRAY),
            ],
        )
        .await
        .map_err(failed)?;
    let mut unusable = Vec::new();
    for row in rows {
        match key(&row, rules).map_err(failed)? {
            Some(Ok(key)) => wanted.push(key),
            Some(Err(column)) => unusable.push(column),
            None => {}
        }
    }
    // A table is read once, for all of its columns.
    wanted.sort_by(|a, b| (a.shard, &a.table, &a.name).cmp(&(b.shard, &b.table, &b.name)));
    Ok((wanted, unusable))
}

/// A column that the config has as a key; an error if it cannot be one.
fn key(
    row: &Row,
    rules: RowRules<'_>,
) -> Result<Option<Result<ColumnToRead, Column>>, tokio_postgres::Error> {
    let Ok(shard) = ShardId::try_from(row.try_get::<_, i32>(0)?) else {
        return Ok(None);
    };
    let (has_table, has_column): (bool, bool) = (row.try_get(4)?, row.try_get(5)?);
    let kind = rules.cluster.key;
    let category: Option<&str> = row.try_get(7)?;
    let fits = match kind {
        KeyKind::Integer => category == Some("N"),
        KeyKind::String => category == Some("S"),
        KeyKind::Uuid => row.try_get::<_, Option<bool>>(8)?.unwrap_or(false),
    };
    let (table, name): (String, String) = (row.try_get(2)?, row.try_get(3)?);
    let problem = if !has_table {
        Some("the shard has no such table".to_owned())
    } else if !has_column {
        Some("the table has no such column".to_owned())
    } else if !fits {
        let its: Option<&str> = row.try_get(6)?;
        let its = its.unwrap_or("an unknown type");
        Some(format!("it is of the type {its}, while keys are {kind}"))
    } else {
        None
    };
    if let Some(problem) = problem {
        let filled_by = FilledBy::NoKey(problem);
        return Ok(Some(Err(Column {
            shard,
            table,
            name,
            filled_by,
        })));
    }
    let unread = match row.try_get::<_, Option<String>>(9)? {
        Some(owner) => Some(Unread::OfAnother(owner)),
        None => row.try_get::<_, bool>(10)?.then_some(Unread::Hidden),
    };
    Ok(Some(Ok(ColumnToRead {
        shard,
        schema: row.try_get(1)?,
        table,
        name,
        fill: Fill::Key(kind, rules.cluster.shards),
        unread,
    })))
}

/// The shard of a key, as the server computes it (docs/keys.md).
fn shard_of(name: &str, kind: KeyKind, shards: ShardCount) -> String {
    let hashed =
        |bytes: String| format!("('x' || left(encode(sha256({bytes}), 'hex'), 15))::bit(60)::int8");
    match kind {
        KeyKind::Integer => format!("(({name}::numeric % {shards} + {shards}) % {shards})"),
        KeyKind::String => {
            format!(
                "({} % {shards})",
                hashed(format!("convert_to({name}::text, 'UTF8')"))
            )
        }
        KeyKind::Uuid => format!(
            "({} % {shards})",
            hashed(format!("uuid_send({name}::uuid)"))
        ),
    }
}

/// The columns of a table, or one with the reason why it is not read. Only an error of the
/// connection ends more than this table.
async fn of_table(
    client: &Connection,
    wanted: &[ColumnToRead],
    step: i64,
) -> Result<Vec<Column>, String> {
    let unread = |ColumnToRead {
                      shard, table, name, ..
                  }: &ColumnToRead,
                  why: Unread| {
        vec![Column {
            shard: *shard,
            table: table.clone(),
            name: name.clone(),
            filled_by: FilledBy::Unread(why),
        }]
    };
    if let Some((wanted, why)) = wanted
        .iter()
        .find_map(|wanted| Some((wanted, wanted.unread.clone()?)))
    {
        return Ok(unread(wanted, why));
    }
    let Some(first) = wanted.first() else {
        return Ok(Vec::new());
    };
    match read_columns(client, wanted, step).await {
        Err(reason) if !client.is_closed() => Ok(unread(first, Unread::Refused(reason))),
        seen => seen,
    }
}

async fn read_columns(
    client: &Connection,
    wanted: &[ColumnToRead],
    step: i64,
) -> Result<Vec<Column>, String> {
    let seen = table(client, wanted, step).await?;
    let mut columns = Vec::new();
    for (wanted, seen) in wanted.iter().zip(seen) {
        columns.push(compare_with_generator(client, wanted, seen).await?);
    }
    Ok(columns)
}

fn column_to_read(row: &Row) -> Result<Option<ColumnToRead>, tokio_postgres::Error> {
    let fill = match row
        .try_get::<_, Option<&str>>(4)?
        .zip(row.try_get::<_, Option<&str>>(5)?)
    {
        Some((schema, name)) => Fill::Sequence(Sequence {
            name: format!("{}.{}", quote_ident(schema), quote_ident(name)),
            grows: row.try_get(6)?,
        }),
        None => Fill::Id,
    };
    let Ok(shard) = ShardId::try_from(row.try_get::<_, i32>(0)?) else {
        return Ok(None);
    };
    let unread = match row.try_get::<_, Option<String>>(7)? {
        Some(owner) => Some(Unread::OfAnother(owner)),
        None => row.try_get::<_, bool>(8)?.then_some(Unread::Hidden),
    };
    Ok(Some(ColumnToRead {
        shard,
        schema: row.try_get(1)?,
        table: row.try_get(2)?,
        name: row.try_get(3)?,
        fill,
        unread,
    }))
}

/// Reads all rows of a table, this many blocks at a time. Rows that are added behind the last block
/// during that time are not read.
async fn table(
    client: &Connection,
    columns: &[ColumnToRead],
    step: i64,
) -> Result<Vec<ColumnContents>, String> {
    let mut seen = vec![ColumnContents::default(); columns.len()];
    let mut selected = String::new();
    for column in columns {
        let name = quote_ident(&column.name);
        let own = format!("({name} >> 10 & 8191) = {}", column.shard);
        let separator = if selected.is_empty() { "" } else { ", " };
        match &column.fill {
            Fill::Id => {
                _ = write!(
                    selected,
                    "{separator}count(*) FILTER (WHERE NOT {own}), min({name}::int8) FILTER (WHERE \
                        NOT {own})::text, \
                 max({name}::int8 # {SIGN}) FILTER (WHERE {own}) # {SIGN}"
                )
            }
            Fill::Key(kind, shards) => {
                let other = format!("{} <> {}", shard_of(&name, *kind, *shards), column.shard);
                _ = write!(
                    selected,
                    "{separator}count(*) FILTER (WHERE {other}), \
                     min({name}::text) FILTER (WHERE {other}), NULL::int8"
                );
            }
            Fill::Sequence(Sequence { grows, .. }) => {
                let last = if *grows { "max" } else { "min" };
                // With max() alone the planner would walk through the column's index, past all rows
                // of other blocks.
                _ = write!(
                    selected,
                    "{separator}count(*) FILTER (WHERE false), NULL::text, {last}({name})::int8"
                );
            }
        }
    }
    let Some(first) = columns.first() else {
        return Ok(seen);
    };
    let from = format!(
        "{}.{}",
        quote_ident(&first.schema),
        quote_ident(&first.table)
    );
    let blocks = blocks(client, &from).await?;
    let mut block = 0;
    while block < blocks {
        let begun = Instant::now();
        let end = block.saturating_add(step);
        let text = format!(
            "SELECT {selected} FROM ONLY {from} WHERE ctid >= '({block},0)' AND ctid < '({end},0)'"
        );
        let rows = client.query_typed(&text, &[]).await.map_err(failed)?;
        let row = rows.first().ok_or("an aggregate gave no row")?;
        for (at, (seen, column)) in seen.iter_mut().zip(columns).enumerate() {
            let [foreign, example, last] = [3 * at, 3 * at + 1, 3 * at + 2];
            seen.foreign += row.try_get::<_, i64>(foreign).map_err(failed)?;
            if seen.example.is_none() {
                seen.example = row.try_get(example).map_err(failed)?;
            }
            let later = |one: i64, other: i64| match &column.fill {
                Fill::Sequence(sequence) if sequence.grows => one.max(other),
                Fill::Sequence(_) => one.min(other),
                _ => one.cast_unsigned().max(other.cast_unsigned()).cast_signed(),
            };
            seen.last = match (
                seen.last,
                row.try_get::<_, Option<i64>>(last).map_err(failed)?,
            ) {
                (Some(one), Some(other)) => Some(later(one, other)),
                (one, other) => one.or(other),
            };
        }
        block = end;
        // It rests for as long as the read took, which leaves half of the server's I/O to readers
        // and writers.
        tokio::time::sleep(begun.elapsed()).await;
    }
    Ok(seen)
}

/// How many blocks a table has. It is read for each table alone, since it waits for a lock.
async fn blocks(client: &Connection, table: &str) -> Result<i64, String> {
    const BLOCKS: &str = "SELECT pg_catalog.pg_relation_size($1::text::pg_catalog.regclass)
        / pg_catalog.current_setting('block_size')::int8";
    let rows = client
        .query_typed(BLOCKS, &[(&table, Type::TEXT)])
        .await
        .map_err(failed)?;
    rows.first()
        .ok_or("the size of a table has no row")?
        .try_get(0)
        .map_err(failed)
}

/// Compares the rows that were read with the state of the generator. The generator is read
/// afterwards, so whatever it gave out in between is below that state.
async fn compare_with_generator(
    client: &Connection,
    wanted: &ColumnToRead,
    seen: ColumnContents,
) -> Result<Column, String> {
    let filled_by = match &wanted.fill {
        Fill::Key(..) => FilledBy::Key(seen.example.map(|example| (seen.foreign, example))),
        Fill::Id => {
            let text = format!("SELECT {}.id_high_water()", quote_ident(&wanted.schema));
            let rows = client.query_typed(&text, &[]).await.map_err(failed)?;
            let high: Option<Option<i64>> = rows
                .first()
                .map(|row| row.try_get(0))
                .transpose()
                .map_err(failed)?;
            let high = high.flatten();
            let past = |id: i64| high.is_some_and(|high| id.cast_unsigned() > high.cast_unsigned());
            let example = seen.example.and_then(|example| example.parse().ok());
            let foreign = example.map(|example| (seen.foreign, example));
            FilledBy::Shard {
                foreign,
                largest: seen.last,
                is_ahead: seen.last.is_some_and(past),
            }
        }
        Fill::Sequence(sequence) => {
            let text = format!("SELECT last_value, is_called FROM {}", sequence.name);
            let rows = client.query_typed(&text, &[]).await.map_err(failed)?;
            let row = rows.first().ok_or("a sequence has no row")?;
            let (last, called): (i64, bool) = (
                row.try_get(0).map_err(failed)?,
                row.try_get(1).map_err(failed)?,
            );
            let past = |value: &i64| match sequence.grows {
                true => *value > last || (*value == last && !called),
                false => *value < last || (*value == last && !called),
            };
            FilledBy::Sequence {
                name: sequence.name.clone(),
                behind: seen.last.filter(past),
            }
        }
    };
    let (shard, table, name) = (wanted.shard, wanted.table.clone(), wanted.name.clone());
    Ok(Column {
        shard,
        table,
        name,
        filled_by,
    })
}

fn failed(source: tokio_postgres::Error) -> String {
    chain(&FactsError::Query {
        what: "rows",
        source,
    })
}
