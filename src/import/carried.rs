//! What a move would not carry, judged by the mover's own rules: the imported tables are looked at
//! as a schema that has nothing else, which is what they become.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Client;

use super::decide::Decisions;
use super::error::Error;
use super::facts::Database;
use super::obstacle::{BlockingObject, Kind};
use super::read;
use crate::mover::definition::ddl::{self, Target};
use crate::schema::catalog::{self, Address, Namespace};

/// The name of the schema that the tables will be in, where a name is needed.
const SCHEMA: &str = "imported";

/// The obstacles, and what could not be read, one sentence each.
pub(super) async fn find_obstacles(
    client: &Client,
    database: &Database,
    decisions: &Decisions,
) -> Result<(Vec<BlockingObject>, Vec<String>), Error> {
    let mut by_schema: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for table in database.tables.values() {
        let imported = decisions
            .get(&table.oid)
            .is_some_and(|decision| decision.is_imported());
        if imported {
            by_schema
                .entry(&table.schema)
                .or_default()
                .insert(table.oid);
        }
    }
    let extensions = members(client).await?;
    let (mut found, mut unread) = (Vec::new(), Vec::new());
    for (schema, tables) in by_schema {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY";
        read::execute(client, "beginning to read", begin).await?;
        let facts = catalog::read(client, &Namespace::from(schema)).await;
        read::execute(client, "ending to read", "ROLLBACK").await?;
        let facts = match facts {
            Ok(facts) => facts,
            Err(error) => {
                unread.push(format!(
                    "what a move does not carry of schema {schema}: {}",
                    crate::pg::cause::chain(&error)
                ));
                continue;
            }
        };
        let owner = tables.first().and_then(|oid| database.tables.get(oid));
        let owner = owner.map_or("", |table| &table.owner);
        let version = facts.version;
        let facts = facts.only(&tables, &extensions, owner);
        let target = Target {
            schema: SCHEMA,
            final_schema: SCHEMA,
            version,
            closed: &[],
        };
        let refusals = ddl::create(&facts, &target).err().unwrap_or_default();
        found.extend(refusals.into_iter().map(|refusal| BlockingObject {
            kind: Kind::NotCarried,
            object: refusal.object,
            detail: refusal.reason,
            remedy: Some(refusal.remedy),
        }));
    }
    Ok((found, unread))
}

/// What extensions have brought.
async fn members(client: &Client) -> Result<BTreeSet<Address>, Error> {
    let sql = "SELECT d.classid::regclass, d.objid FROM pg_depend d
        WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'";
    let rows = read::texts(client, sql)
        .await
        .map_err(|source| Error::postgres("the extensions", source))?;
    let member = |row: Vec<Option<String>>| match row.as_slice() {
        [Some(class), Some(oid)] => Some(Address::new(class, oid.parse().ok()?)),
        _ => None,
    };
    Ok(rows.into_iter().filter_map(member).collect())
}
