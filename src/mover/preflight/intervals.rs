//! Intervals that the target does not have. From version 17 on there are infinite ones; a server of
//! such a version reads the largest and the smallest of an older one as infinite.

use crate::mover::control::session::Session;
use crate::mover::definition::refusal::Refusal;
use crate::mover::protocol::error::Error;
use crate::pg::quote_ident;
use crate::schema::catalog::{Column, Facts, Relation, RelationKind};

/// The first version with infinite intervals.
const INFINITE_SINCE: u32 = 170_000;

/// The largest and the smallest interval of older versions.
const EXTREMES: [&str; 2] = [
    "178956970 years 7 mons 2147483647 days 2562047788:00:54.775807",
    "-178956970 years -8 mons -2147483648 days -2562047788:00:54.775808",
];

/// The columns of intervals, or of arrays of them, that have a value which `version` does not have.
/// Those within other types are left to the copy: it sends and compares them as texts.
///
/// Locks: ACCESS SHARE on each table that has such a column, for one statement, which may read the
/// whole table.
pub(crate) async fn lost(
    source: &Session,
    facts: &Facts,
    version: u32,
) -> Result<Vec<Refusal>, Error> {
    let (had, has) = (facts.version >= INFINITE_SINCE, version >= INFINITE_SINCE);
    if had == has {
        return Ok(Vec::new());
    }
    let (values, reason, remedy) = match had {
        true => (
            ["infinity", "-infinity"],
            "has infinite intervals, which versions before 17 do not have",
            "UPDATE them to other values, or choose a target of version 17 or later",
        ),
        false => (
            EXTREMES,
            "has the largest or the smallest interval, which versions from 17 on read as infinite",
            "UPDATE it to another value, or choose a target of a version before 17",
        ),
    };
    // By their texts: no version reads that of the smallest interval. An array's has those of its
    // members in it.
    let list = values.map(|value| format!("'%{value}%'")).join(", ");
    // What another role owns is refused for that.
    let own = |relation: &&Relation| {
        relation.kind == RelationKind::Table && relation.owner == facts.reader
    };
    // To read a virtual column is to run what computes it.
    let is_one = |column: &Column| {
        matches!(column.type_name.as_str(), "interval" | "interval[]") && column.generated != "v"
    };
    let mut refusals = Vec::new();
    for table in facts.relations.iter().filter(own) {
        for column in table.columns.iter().filter(|column| is_one(column)) {
            let from = format!(
                "{}.{}",
                quote_ident(&facts.schema),
                quote_ident(&table.name)
            );
            let value = format!("t.{}::text", quote_ident(&column.name));
            let sql = format!(
                "SELECT EXISTS (SELECT FROM ONLY {from} t WHERE {value} LIKE ANY (ARRAY[{list}]))"
            );
            if source
                .row("looking for intervals", &sql, &[])
                .await?
                .get(0)?
            {
                refusals.push(Refusal::new(
                    format!("column {}.{}", table.name, column.name),
                    reason,
                    remedy,
                ));
            }
        }
    }
    Ok(refusals)
}
