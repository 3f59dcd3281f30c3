//! The border of a shard's schema. The fence works by names; whatever is bound to the shard's
//! objects by OID passes it. So no dependency may cross the border, and this module lists those
//! that do.
//!
//! Invariant: the query finds its rows by OID, through indexes only, so that it takes milliseconds
//! on a host with thousands of shards (the fence waits for it). It uses the schema's OID, because
//! the schema may have the name of an old copy by then.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use tokio_postgres::GenericClient;
use tokio_postgres::types::{Json, Type};

use crate::schema::catalog::{Namespace, objects_sql};
use crate::shard::SchemaPrefix;

/// What kind of thing crosses the border.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub(crate) enum CrossingKind {
    /// A foreign key from outside, or to outside: its actions change rows in spite of the fence.
    ForeignKey,
    /// A parent table, child table or partition on the other side.
    Inheritance,
    /// A view or rule outside that reads or writes the shard's objects, temporary ones too.
    View,
    /// A default outside that uses the shard's sequence or function, or the other way around with a
    /// sequence.
    Default,
    /// A function outside with a body that is bound to the shard's objects (`BEGIN ATOMIC`), or
    /// that has its types as arguments.
    Function,
    /// A trigger outside that calls the shard's function.
    Trigger,
    /// A sequence on one side owned by a column on the other.
    Sequence,
    /// A table outside with a column of the shard's type.
    Type,
    /// A subscription that writes into the shard's table.
    Subscription,
    /// An object of the shard that is bound to another shard's.
    OtherShard,
    /// Anything else outside that is bound to the shard's objects.
    Other,
}

/// One dependency that crosses the border.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Crossing {
    /// What kind.
    pub(crate) kind: CrossingKind,
    /// The object inside, qualified: `table shard_0007.photos`.
    pub(crate) inside: String,
    /// The object outside, qualified: `view public.all_photos`.
    pub(crate) outside: String,
    /// Whether the outside needs the inside; otherwise the inside needs the outside.
    pub(crate) incoming: bool,
    /// What to do about it: an imperative.
    pub(crate) remedy: &'static str,
}

impl fmt::Display for Crossing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Crossing {
            inside,
            outside,
            remedy,
            ..
        } = self;
        match (self.kind, self.incoming) {
            (CrossingKind::Subscription, _) => {
                write!(f, "{outside} writes into {inside}; {remedy}")
            }
            (_, true) => write!(f, "{outside} is bound to {inside}; {remedy}"),
            (_, false) => write!(f, "{inside} is bound to {outside}; {remedy}"),
        }
    }
}

/// Why the border cannot be checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such schema.
    #[error("{namespace} does not exist on this host")]
    NoSchema {
        /// The requested schema.
        namespace: Namespace,
    },
    /// The server refused or the connection broke.
    #[error("cannot check the border of {namespace}")]
    Postgres {
        /// The schema.
        namespace: Namespace,
        /// The error of the driver.
        source: tokio_postgres::Error,
    },
}

#[derive(Deserialize)]
struct Row {
    incoming: bool,
    outside_kind: String,
    outside: String,
    outside_schema: Option<String>,
    inside_class: String,
    inside_kind: String,
    inside: String,
    dependency: String,
    foreign_key: bool,
    internal_trigger: bool,
}

const SQL: &str = concat!(objects_sql!(), include_str!("sql/border.sql"));

/// Every dependency that crosses the border of a schema, with each outside object once, sorted;
/// empty if the schema is closed.
///
/// It is no crossing when the shard's objects use functions, types, tables and views of shared
/// schemas: those are not the shard's and are not moved. A sequence of a shared schema is a
/// crossing: its values differ from host to host. `prefix` identifies the schemas of other shards,
/// under any name that a move gives them.
///
/// # Errors
/// When there is no such schema or the server refuses.
///
/// # Cancel safety
/// Only reads.
pub(crate) async fn crossings<C: GenericClient + Sync>(
    client: &C,
    schema: &Namespace,
    prefix: &SchemaPrefix,
) -> Result<Vec<Crossing>, Error> {
    let failed = |source| Error::Postgres {
        namespace: schema.clone(),
        source,
    };
    let (oid, name) = schema.parameters();
    let find = "SELECT oid FROM pg_catalog.pg_namespace WHERE oid = $1 OR nspname = $2";
    let found = client
        .query_typed(find, &[(&oid, Type::OID), (&name, Type::NAME)])
        .await
        .map_err(failed)?;
    let found = found.first().ok_or_else(|| Error::NoSchema {
        namespace: schema.clone(),
    })?;
    let oid: u32 = found.try_get(0).map_err(failed)?;
    let rows = client
        .query_typed(SQL, &[(&oid, Type::OID)])
        .await
        .map_err(failed)?;
    // Each outside object counts once for each kind: an outside foreign key depends on a table and
    // also on its index.
    let mut found: BTreeMap<(bool, String, CrossingKind, String), Crossing> = BTreeMap::new();
    for row in rows {
        let Json(row): Json<Row> = row.try_get(0).map_err(failed)?;
        let Some(crossing) = classify(row, prefix) else {
            continue;
        };
        // Where the inside needs the outside, each inside object has to be changed, so each is
        // listed.
        let inside = if crossing.incoming {
            String::new()
        } else {
            crossing.inside.clone()
        };
        let key = (
            crossing.incoming,
            crossing.outside.clone(),
            crossing.kind,
            inside,
        );
        match found.get(&key) {
            // Of several inside objects a table is the one that people know and look for.
            Some(had)
                if had.inside.starts_with("table ") || !crossing.inside.starts_with("table ") => {}
            _ => {
                found.insert(key, crossing);
            }
        }
    }
    let mut crossings: Vec<Crossing> = found.into_values().collect();
    crossings.sort();
    Ok(crossings)
}

/// Whether a dependency crosses the border in a way that matters, and how.
fn classify(row: Row, prefix: &SchemaPrefix) -> Option<Crossing> {
    // A partition's dependencies ("P", "S") repeat the one on the parent itself, and a foreign
    // key's triggers repeat the key.
    if row.internal_trigger || matches!(row.dependency.as_str(), "P" | "S") {
        return None;
    }
    let (kind, remedy) = if row.incoming {
        incoming(&row)
    } else {
        outgoing(&row, prefix)?
    };
    Some(Crossing {
        kind,
        inside: format!("{} {}", row.inside_kind, row.inside),
        outside: format!("{} {}", row.outside_kind, row.outside),
        incoming: row.incoming,
        remedy,
    })
}

fn incoming(row: &Row) -> (CrossingKind, &'static str) {
    let on_type = row.inside_class == "pg_type";
    match row.outside_kind.as_str() {
        "table constraint" if row.foreign_key => (CrossingKind::ForeignKey, "drop the foreign key"),
        "view" | "materialized view" | "rule" => (
            CrossingKind::View,
            "drop it, or put it into the shard's schema, or let it read through a function with a \
                text body",
        ),
        "default value" => (CrossingKind::Default, "give the column another default"),
        "function" | "procedure" | "aggregate" => (
            CrossingKind::Function,
            "drop it, or write it with a body that is text and with types from outside the shard",
        ),
        "trigger" => (
            CrossingKind::Trigger,
            "drop the trigger, or let it call a function outside the shard",
        ),
        "sequence" => (
            CrossingKind::Sequence,
            "detach it with ALTER SEQUENCE … OWNED BY NONE",
        ),
        "subscription" => (
            CrossingKind::Subscription,
            "take the table out of the subscription's publication, or drop the subscription",
        ),
        "table" | "foreign table" if !on_type => (
            CrossingKind::Inheritance,
            "separate them with DETACH PARTITION or ALTER TABLE … NO INHERIT",
        ),
        _ if on_type => (CrossingKind::Type, "let it use a type outside the shard"),
        _ => (CrossingKind::Other, "drop it"),
    }
}

fn outgoing(row: &Row, prefix: &SchemaPrefix) -> Option<(CrossingKind, &'static str)> {
    if row.foreign_key && row.inside_class == "pg_constraint" {
        // The foreign key depends on the index of the referenced key as well, which would list it
        // twice.
        return (row.outside_kind != "index")
            .then_some((CrossingKind::ForeignKey, "drop the foreign key"));
    }
    if row.outside_kind == "sequence" {
        return Some((
            CrossingKind::Default,
            "use a sequence of the shard: a shared one has other values on every host",
        ));
    }
    let tables = |kind: &str| matches!(kind, "table" | "foreign table");
    if row.inside_class == "pg_class" && tables(&row.inside_kind) && tables(&row.outside_kind) {
        return Some((
            CrossingKind::Inheritance,
            "separate them with DETACH PARTITION or ALTER TABLE … NO INHERIT",
        ));
    }
    if row.inside_kind == "sequence" && row.dependency == "a" {
        return Some((
            CrossingKind::Sequence,
            "detach it with ALTER SEQUENCE … OWNED BY NONE",
        ));
    }
    let schema = row.outside_schema.as_deref()?;
    // A move's names of a shard's schema end in `__left_e3`, `__incoming` or `__signpost`.
    let shard = schema.rsplit_once("__").map_or(schema, |(shard, _)| shard);
    (prefix.shard(schema).is_some() || prefix.shard(shard).is_some()).then_some((
        CrossingKind::OtherShard,
        "let it use the shard's own objects",
    ))
}
