//! The queries and their order on the wire: two round trips for a whole schema. Its objects are
//! searched once, in one statement with everything that is read about them, because planning that
//! search costs more than each of the parts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio_postgres::GenericClient;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{Json, Type};

use super::facts::{Address, Facts, Relation};
use super::session::{CLOSED, PINNED, search_path};

/// Which schema: by OID, which a rename does not change, or by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// The schema's OID.
    Oid(u32),
    /// The schema's name, not quoted.
    Name(String),
}

impl From<u32> for Namespace {
    fn from(oid: u32) -> Namespace {
        Namespace::Oid(oid)
    }
}

impl From<&str> for Namespace {
    fn from(name: &str) -> Namespace {
        Namespace::Name(name.to_owned())
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Namespace::Oid(oid) => write!(f, "schema with OID {oid}"),
            Namespace::Name(name) => write!(f, "schema {name}"),
        }
    }
}

impl Namespace {
    /// The parameters `$1` (OID) and `$2` (name), one of them null.
    pub(crate) fn parameters(&self) -> (Option<u32>, Option<&str>) {
        match self {
            Namespace::Oid(oid) => (Some(*oid), None),
            Namespace::Name(name) => (None, Some(name)),
        }
    }
}

/// Why a schema cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such schema.
    #[error("{namespace} does not exist on this host")]
    NoSchema {
        /// The requested schema.
        namespace: Namespace,
    },
    /// The connection is not in a transaction, so that settings do not hold.
    #[error("the catalogs must be read in a transaction: begin one before reading {namespace}")]
    NoTransaction {
        /// The requested schema.
        namespace: Namespace,
    },
    /// The server refused or the connection broke.
    #[error("cannot read the {what} of {namespace}")]
    Postgres {
        /// What was being read.
        what: &'static str,
        /// The schema.
        namespace: Namespace,
        /// The error of the driver.
        source: tokio_postgres::Error,
    },
    /// The catalogs contain something that this version of pgshard does not know.
    #[error("the {what} of {namespace} are not what pgshard expects: {row}")]
    Unexpected {
        /// What was being read.
        what: &'static str,
        /// The schema.
        namespace: Namespace,
        /// The row.
        row: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

#[derive(Deserialize)]
struct Head {
    oid: u32,
    name: String,
    owner: String,
    reader: String,
    reader_bypasses: bool,
    version: u32,
    makers: Vec<String>,
    hides_equality: bool,
}

#[derive(Deserialize)]
struct Component {
    #[serde(flatten)]
    address: Address,
    home_class: String,
    home: u32,
}

#[derive(Deserialize)]
struct OperatorSchema {
    #[serde(flatten)]
    address: Address,
    schema: String,
}

#[derive(Deserialize)]
struct Edge {
    #[serde(flatten)]
    address: Address,
    of_class: String,
    #[serde(rename = "of")]
    referenced: u32,
    of_column: i32,
}

macro_rules! sections {
    ($($name:ident: $file:literal,)+) => {
        /// The facts about the objects, each with the name of its section.
        const SECTIONS: &str = concat!(
            super::objects_sql!(),
            "SELECT NULL::pg_catalog.text, NULL::pg_catalog.json WHERE false",
            $(
                " UNION ALL SELECT '", stringify!($name), "', s.fact FROM (",
                include_str!(concat!("sql/", $file)),
                ") AS s (fact)",
            )+
        );

        /// The facts of each section, in the order of its query.
        #[derive(Default)]
        struct Sections {
            $($name: Vec<serde_json::Value>,)+
        }

        impl Sections {
            fn named(&mut self, name: &str) -> Option<&mut Vec<serde_json::Value>> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)+
                    _ => None,
                }
            }
        }
    };
}

sections! {
    relations: "relations.sql",
    sequences: "sequences.sql",
    indexes: "indexes.sql",
    constraints: "constraints.sql",
    functions: "functions.sql",
    types: "types.sql",
    triggers: "triggers.sql",
    policies: "policies.sql",
    rules: "rules.sql",
    statistics: "statistics.sql",
    simple: "simple.sql",
    default_privileges: "default_privileges.sql",
    comments: "comments.sql",
    grants: "grants.sql",
    others: "others.sql",
    outside: "outside.sql",
    parts: "parts.sql",
    edges: "edges.sql",
    operators: "operators.sql",
}

/// Reads the facts of a schema, in the transaction that the connection is in.
///
/// Where another role than the reader may make objects in the schema, the definitions are read with
/// PostgreSQL's own schema first, and name the schema: they are not for execution.
///
/// A `REPEATABLE READ` transaction gives one state. Under `READ COMMITTED`, DDL that commits in
/// between may be seen in part, which a later fingerprint shows. The session's settings are
/// restored before it returns.
///
/// # Errors
/// When the schema does not exist, the connection is in no transaction, or the server refuses; in
/// the last case the transaction is aborted.
///
/// # Cancel safety
/// Only reads. If dropped, the transaction may still have the settings of the reading: end it.
pub(crate) async fn read<C: GenericClient + Sync>(
    client: &C,
    namespace: &Namespace,
) -> Result<Facts, Error> {
    let reader = Reader { client, namespace };
    let names: Vec<&str> = std::iter::once("search_path")
        .chain(PINNED.map(|(name, _)| name))
        .collect();
    // In the order of the answers: after a failure the server refuses what follows it.
    let (head, before) = tokio::try_join!(biased; reader.head(), reader.settings(&names))?;
    // PostgreSQL itself runs what is first in the path: pg_get_viewdef() compares by the operator
    // `=` that it finds. Where another role may have created that, or the shard has such an
    // operator, the definitions have the schema's name in them, and the schema cannot be moved.
    let path = if head.makers.is_empty() && !head.hides_equality {
        search_path(&head.name)
    } else {
        CLOSED.to_owned()
    };
    let pinned: Vec<&str> = std::iter::once(CLOSED)
        .chain(PINNED.map(|(_, value)| value))
        .collect();
    let before: Vec<&str> = before.iter().map(String::as_str).collect();
    let opened = [path.as_str()];
    // All of these are sent before the first answer; the server runs them in this order. Our own
    // query is analyzed while nothing of the schema is in the path: a table called "text" or an
    // operator of its own must not be found by it. It runs with the schema first, which is what
    // the functions that deparse look at.
    let ((), (), (), sections, (), ()) = tokio::try_join!(
        biased;
        reader.set(&names, &pinned),
        reader.declare(head.oid),
        reader.set(&names[..1], &opened),
        reader.sections(),
        reader.check(&path),
        reader.set(&names, &before),
    )?;
    let relations: Vec<Relation> = reader.facts("tables and views", sections.relations)?;
    let places = relations
        .iter()
        .enumerate()
        .map(|(at, relation)| (relation.oid, at))
        .collect();
    let parts = reader.facts("parts", sections.parts)?;
    let homes = homes(parts);
    let (edges, reads) = whole_objects(&homes, reader.facts("dependencies", sections.edges)?);
    let operators: Vec<OperatorSchema> = reader.facts("operators", sections.operators)?;
    let operators = operators
        .into_iter()
        .filter_map(|one| Some((home(&homes, &one.address)?, one.schema)))
        .collect();
    let Head {
        oid,
        name,
        owner,
        reader: role,
        reader_bypasses,
        version,
        makers,
        hides_equality,
    } = head;
    Ok(Facts {
        schema: name,
        oid,
        owner,
        reader: role,
        reader_bypasses,
        version,
        makers,
        hides_equality,
        relations,
        places,
        sequences: reader.facts("sequences", sections.sequences)?,
        indexes: reader.facts("indexes", sections.indexes)?,
        constraints: reader.facts("constraints", sections.constraints)?,
        functions: reader.facts("functions", sections.functions)?,
        types: reader.facts("types", sections.types)?,
        triggers: reader.facts("triggers", sections.triggers)?,
        policies: reader.facts("policies", sections.policies)?,
        rules: reader.facts("rules", sections.rules)?,
        statistics: reader.facts("extended statistics", sections.statistics)?,
        simple: reader.facts(
            "collations, text search objects, operators, conversions and casts",
            sections.simple,
        )?,
        default_privileges: reader.facts("default privileges", sections.default_privileges)?,
        comments: reader.facts("comments", sections.comments)?,
        grants: reader.facts("grants", sections.grants)?,
        others: reader.facts("other objects", sections.others)?,
        outside: reader.facts("references to the outside", sections.outside)?,
        operators,
        edges,
        reads,
    })
}

type Parameters<'a> = [(&'a (dyn tokio_postgres::types::ToSql + Sync), Type)];

/// The whole object that each row of the catalogs belongs to, by the row's address.
type Homes = BTreeMap<Address, Address>;

fn homes(parts: Vec<Component>) -> Homes {
    let home = |part: Component| {
        let whole = Address {
            class: part.home_class,
            oid: part.home,
        };
        (part.address, whole)
    };
    parts.into_iter().map(home).collect()
}

/// The whole object that a row of the catalogs belongs to: a view for its rule, a table for its row
/// type.
fn home(homes: &Homes, address: &Address) -> Option<Address> {
    let mut at = homes.get(address)?;
    // Array of a multirange, multirange, range: no chain is longer than that.
    for _ in 0..4 {
        match homes.get(at) {
            Some(next) if next != at => at = next,
            _ => break,
        }
    }
    Some(at.clone())
}

/// Turns dependencies between rows of the catalogs into dependencies between whole objects.
#[expect(
    clippy::type_complexity,
    reason = "two lists, named where they are kept"
)]
fn whole_objects(
    homes: &Homes,
    edges: Vec<Edge>,
) -> (Vec<(Address, Address)>, Vec<(Address, Address, i32)>) {
    let mut whole = BTreeSet::new();
    let mut reads = BTreeSet::new();
    for edge in edges {
        let referenced = Address {
            class: edge.of_class,
            oid: edge.referenced,
        };
        let (Some(from), Some(to)) = (home(homes, &edge.address), home(homes, &referenced)) else {
            continue;
        };
        if from == to {
            continue;
        }
        if matches!(edge.address.class.as_str(), "pg_rewrite" | "pg_proc") {
            reads.insert((from.clone(), to.clone(), edge.of_column));
        }
        whole.insert((from, to));
    }
    (whole.into_iter().collect(), reads.into_iter().collect())
}

/// The name of the cursor that has a schema's definition.
const CURSOR: &str = "pgshard_definition";

struct Reader<'a, C> {
    client: &'a C,
    namespace: &'a Namespace,
}

impl<C: GenericClient + Sync> Reader<'_, C> {
    fn failed(&self, what: &'static str, source: tokio_postgres::Error) -> Error {
        Error::Postgres {
            what,
            namespace: self.namespace.clone(),
            source,
        }
    }

    /// The facts in the values of a section.
    fn facts<T: DeserializeOwned>(
        &self,
        what: &'static str,
        values: Vec<serde_json::Value>,
    ) -> Result<Vec<T>, Error> {
        let fact = |value: serde_json::Value| {
            T::deserialize(&value).map_err(|source| Error::Unexpected {
                what,
                namespace: self.namespace.clone(),
                row: value.to_string(),
                source,
            })
        };
        values.into_iter().map(fact).collect()
    }

    /// Plans all queries about the objects of the schema with this OID, under the present
    /// `search_path`.
    async fn declare(&self, oid: u32) -> Result<(), Error> {
        let sql = format!("DECLARE {CURSOR} NO SCROLL CURSOR FOR {SECTIONS}");
        let declared = self.client.query_typed(&sql, &[(&oid, Type::OID)]).await;
        match declared {
            Ok(_) => Ok(()),
            Err(error) if error.code() == Some(&SqlState::NO_ACTIVE_SQL_TRANSACTION) => {
                Err(Error::NoTransaction {
                    namespace: self.namespace.clone(),
                })
            }
            Err(error) => Err(self.failed("definition", error)),
        }
    }

    /// The answers to what was declared.
    async fn sections(&self) -> Result<Sections, Error> {
        let what = "definition";
        let failed = |source| self.failed(what, source);
        let mut sections = Sections::default();
        let (all, closed) = (
            format!("FETCH ALL FROM {CURSOR}"),
            format!("CLOSE {CURSOR}"),
        );
        let (rows, _) = tokio::try_join!(
            biased;
            self.client.query_typed(&all, &[]),
            self.client.query_typed(&closed, &[]),
        )
        .map_err(failed)?;
        for row in rows {
            let (name, Json(value)): (&str, Json<serde_json::Value>) = (
                row.try_get(0).map_err(failed)?,
                row.try_get(1).map_err(failed)?,
            );
            // The statement is ours, and names no other section.
            if let Some(section) = sections.named(name) {
                section.push(value);
            }
        }
        Ok(sections)
    }

    /// The schema itself.
    async fn head(&self) -> Result<Head, Error> {
        let (oid, name) = self.namespace.parameters();
        let which: &Parameters<'_> = &[(&oid, Type::OID), (&name, Type::NAME)];
        let failed = |source| self.failed("name", source);
        let rows = self
            .client
            .query_typed(include_str!("sql/namespace.sql"), which)
            .await
            .map_err(failed)?;
        let Some(row) = rows.first() else {
            return Err(Error::NoSchema {
                namespace: self.namespace.clone(),
            });
        };
        let Json(value): Json<serde_json::Value> = row.try_get(0).map_err(failed)?;
        self.facts("name", vec![value])?
            .pop()
            .ok_or_else(|| Error::NoSchema {
                namespace: self.namespace.clone(),
            })
    }

    /// The present values of these settings.
    async fn settings(&self, names: &[&str]) -> Result<Vec<String>, Error> {
        let sql = "SELECT pg_catalog.array_agg(pg_catalog.current_setting(name) ORDER BY n)
            FROM pg_catalog.unnest($1::pg_catalog.text[]) WITH ORDINALITY AS s(name, n)";
        let failed = |source| self.failed("settings", source);
        let rows = self
            .client
            .query_typed(sql, &[(&names, Type::TEXT_ARRAY)])
            .await
            .map_err(failed)?;
        Ok(rows
            .first()
            .map(|row| row.try_get(0))
            .transpose()
            .map_err(failed)?
            .unwrap_or_default())
    }

    async fn set(&self, names: &[&str], values: &[&str]) -> Result<(), Error> {
        let sql = "SELECT pg_catalog.set_config(name, value, true)
            FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), \
            pg_catalog.unnest($2::pg_catalog.text[])) AS
            s(name, value)";
        let parameters: &Parameters<'_> =
            &[(&names, Type::TEXT_ARRAY), (&values, Type::TEXT_ARRAY)];
        self.client
            .query_typed(sql, parameters)
            .await
            .map_err(|source| self.failed("settings", source))?;
        Ok(())
    }

    /// Checks that settings hold. Settings made outside a transaction end with their statement, and
    /// what is read then would not mean the same elsewhere.
    async fn check(&self, path: &str) -> Result<(), Error> {
        let sql = "SELECT pg_catalog.current_setting('search_path')";
        let rows = self
            .client
            .query_typed(sql, &[])
            .await
            .map_err(|source| self.failed("settings", source))?;
        match rows.first().map(|row| row.try_get::<_, &str>(0)) {
            Some(Ok(now)) if now == path => Ok(()),
            Some(Err(source)) => Err(self.failed("settings", source)),
            _ => Err(Error::NoTransaction {
                namespace: self.namespace.clone(),
            }),
        }
    }
}
