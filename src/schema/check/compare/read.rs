//! Reads the definitions of the hosts' shards: digests of everything, then the texts of what
//! differs.

use futures_util::future::{BoxFuture, join_all};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::classes::unsure;
use super::definitions::{DefinitionSurvey, Definitions, Property, Subject, SubjectsByShard};
use crate::map::HostName;
use crate::pg::cause::chain;
use crate::pg::{ConnectOptions, Connection};
use crate::schema::fleet::session;
use crate::schema::survey::facts::FactsError;
use crate::shard::ShardId;

const LOCKS: &str = include_str!("locks.sql");
const LENT: &str =
    "WITH lent AS MATERIALIZED (SELECT shard_id, table_name, former FROM pgshard.lent_identity)";
/// For a host with an older control schema.
const NOTHING_LENT: &str = "WITH lent AS (SELECT 0 AS shard_id, ''::pg_catalog.text AS table_name, \
    ''::pg_catalog.text AS former LIMIT 0)";
const DIGESTS: &str = concat!(include_str!("definitions.sql"), include_str!("digests.sql"));
const TEXTS: &str = concat!(include_str!("definitions.sql"), include_str!("texts.sql"));

/// A host that has given its digests.
struct Reading {
    client: Connection,
    /// The shards, and how many locks each takes.
    locks: Vec<(i32, i64)>,
    locks_max: i64,
    /// What the queries are made from.
    dialect: Dialect,
    definitions: Definitions,
}

/// In what the queries differ, by the versions of the control schema and of the server.
#[derive(Clone, Copy)]
struct Dialect {
    /// Their beginning.
    lent: &'static str,
    /// An expression: how the column `a` of pg_attribute is compressed.
    compression: &'static str,
}

impl Dialect {
    async fn read(client: &Connection) -> Result<Dialect, tokio_postgres::Error> {
        let sql = "SELECT pg_catalog.to_regclass('pgshard.lent_identity') IS NOT NULL,
            pg_catalog.current_setting('server_version_num')::integer OPERATOR(pg_catalog.>=) \
            140000";
        let row = client.query_typed_one(sql, &[]).await?;
        let lent = if row.try_get(0)? { LENT } else { NOTHING_LENT };
        let compression = if row.try_get(1)? {
            "a.attcompression::pg_catalog.text"
        } else {
            "NULL"
        };
        Ok(Dialect { lent, compression })
    }

    fn query(self, sql: &str) -> String {
        format!(
            "{}{}",
            self.lent,
            sql.replace("COMPRESSION", self.compression)
        )
    }
}

/// Reads the definitions of the shards that the hosts serve. If a host cannot be read, it has the
/// reason instead. `on_shards` is called with how many were read, as they are.
///
/// # Cancel safety
/// Only reads.
pub fn definitions<'a>(
    hosts: impl IntoIterator<Item = (HostName, ConnectOptions)>,
    on_shards: &'a (dyn Fn(usize) + Send + Sync),
) -> BoxFuture<'a, DefinitionSurvey> {
    definitions_of(hosts.into_iter().collect(), on_shards)
}

fn definitions_of(
    hosts: Vec<(HostName, ConnectOptions)>,
    on_shards: &(dyn Fn(usize) + Send + Sync),
) -> BoxFuture<'_, DefinitionSurvey> {
    Box::pin(async move {
        let ask = |(name, connect): (HostName, ConnectOptions)| async move {
            (name, Reading::new(&connect, on_shards).await)
        };
        let mut read: Vec<(HostName, Result<Reading, String>)> =
            join_all(hosts.into_iter().map(ask)).await;
        // What is wanted depends on which hosts have answered: without one that is lost now, other
        // shards represent all.
        let mut lost = true;
        while lost {
            let digests: Vec<&Definitions> = read
                .iter()
                .filter_map(|(_, read)| read.as_ref().ok())
                .map(|read| &read.definitions)
                .collect();
            let wanted = unsure(&digests);
            let texts = read.iter_mut().map(|(_, read)| async {
                let failed = match read {
                    Ok(reading) => reading.texts(&wanted).await.err(),
                    Err(_) => None,
                };
                failed.map(|reason| *read = Err(reason)).is_some()
            });
            lost = join_all(texts).await.contains(&true);
        }
        read.into_iter()
            .map(|(name, read)| (name, read.map(|read| read.definitions)))
            .collect()
    })
}

/// The property in a row of [`DIGESTS`].
fn property(row: &Row) -> Result<Property, tokio_postgres::Error> {
    let shards: Vec<i32> = row.try_get(3)?;
    let shards = shards.iter().filter_map(|number| shard(*number)).collect();
    let plain: Option<Vec<String>> = row.try_get(4)?;
    let subject = (row.try_get(0)?, row.try_get(1)?);
    Ok(Property {
        subject,
        digest: row.try_get(2)?,
        shards,
        plain: plain.unwrap_or_default(),
    })
}

/// Shard and property in a row of [`TEXTS`].
fn text_of(row: &Row) -> Result<(i32, Subject), tokio_postgres::Error> {
    Ok((row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?)))
}

impl Reading {
    async fn new(
        connect: &ConnectOptions,
        on_shards: &(dyn Fn(usize) + Send + Sync),
    ) -> Result<Reading, String> {
        let client = session::open(connect, "pgshard survey")
            .await
            .map_err(|fault| fault.to_string())?;
        client
            .batch_execute("SET quote_all_identifiers = off; SET jit = off")
            .await
            .map_err(failed)?;
        let rows = client.query_typed(LOCKS, &[]).await.map_err(failed)?;
        let locks: Result<Vec<(i32, i64)>, _> = rows
            .iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .collect();
        let locks = locks.map_err(failed)?;
        let locks_max = rows
            .first()
            .map_or(Ok(0), |row| row.try_get(2))
            .map_err(failed)?;
        let dialect = Dialect::read(&client).await.map_err(failed)?;
        let digests = dialect.query(DIGESTS);
        let mut definitions = Definitions::default();
        // A shard with an empty schema differs from the others too.
        let all = locks
            .iter()
            .filter_map(|(number, _)| shard(*number))
            .collect();
        let subject = ("schema".to_owned(), String::new());
        definitions.properties.push(Property {
            subject,
            digest: String::new(),
            shards: all,
            plain: Vec::new(),
        });
        for shards in portions(locks.iter().copied(), locks_max) {
            for row in client
                .query_typed(&digests, &[(&shards, Type::INT4_ARRAY)])
                .await
                .map_err(failed)?
            {
                definitions.properties.push(property(&row).map_err(failed)?);
            }
            on_shards(shards.len());
        }
        Ok(Reading {
            client,
            locks,
            locks_max,
            dialect,
            definitions,
        })
    }

    /// Reads the texts that are wanted.
    async fn texts(&mut self, wanted: &SubjectsByShard) -> Result<(), String> {
        let wanted_of = |number: i32| shard(number).and_then(|shard| wanted.get(&shard));
        let sql = self.dialect.query(TEXTS);
        let of_wanted = self
            .locks
            .iter()
            .copied()
            .filter(|(number, _)| wanted_of(*number).is_some());
        for portion in portions(of_wanted, self.locks_max) {
            for shards in portion.chunks(SHARDS_OF_TEXTS) {
                let here = shards
                    .iter()
                    .filter_map(|number| wanted_of(*number))
                    .flatten();
                let (objects, names): (Vec<&str>, Vec<&str>) = here
                    .map(|subject| (subject.0.as_str(), subject.1.as_str()))
                    .unzip();
                let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] = [
                    (&shards, Type::INT4_ARRAY),
                    (&objects, Type::TEXT_ARRAY),
                    (&names, Type::TEXT_ARRAY),
                ];
                for row in self
                    .client
                    .query_typed(&sql, &parameters)
                    .await
                    .map_err(failed)?
                {
                    let (number, subject) = text_of(&row).map_err(failed)?;
                    if let Some(shard) = shard(number)
                        && wanted_of(number).is_some_and(|subjects| subjects.contains(&subject))
                    {
                        let text = row.try_get(3).map_err(failed)?;
                        self.definitions
                            .texts
                            .entry(subject)
                            .or_default()
                            .insert(shard, text);
                    }
                }
            }
        }
        Ok(())
    }
}

/// The shards in as few portions as the locks allow: each shard takes this many until the end of
/// its query. If nothing has to be locked, there is one portion.
fn portions(shards: impl Iterator<Item = (i32, i64)>, locks_max: i64) -> Vec<Vec<i32>> {
    let mut portions: Vec<Vec<i32>> = Vec::new();
    let mut left = 0;
    for (shard, locks) in shards {
        if portions.is_empty() || locks > left {
            portions.push(Vec::new());
            left = locks_max;
        }
        left -= locks;
        if let Some(portion) = portions.last_mut() {
            portion.push(shard);
        }
    }
    portions
}

/// For how many shards texts are read at once: that is a few megabytes.
const SHARDS_OF_TEXTS: usize = 256;

fn shard(number: i32) -> Option<ShardId> {
    ShardId::try_from(number).ok()
}

fn failed(source: tokio_postgres::Error) -> String {
    chain(&FactsError::Query {
        what: "catalogs",
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_asked_for_together_as_long_as_there_are_locks() {
        let portions = |shards: &[(i32, i64)], max| portions(shards.iter().copied(), max);
        assert_eq!(portions(&[], 10), [[0; 0]; 0]);
        assert_eq!(portions(&[(1, 0), (2, 0), (9, 0)], 0), [[1, 2, 9]]);
        assert_eq!(
            portions(&[(1, 4), (2, 6), (3, 1), (4, 99), (5, 1)], 10),
            [vec![1, 2], vec![3], vec![4], vec![5]]
        );
    }
}
