//! Large objects: they are in no schema, and no move carries them. At the target, a column that refers to some would
//! refer to nothing, or to somebody else's.

use crate::mover::control::session::Session;
use crate::mover::definition::refusal::Refusal;
use crate::mover::protocol::error::Error;
use crate::pg::quote_ident;
use crate::schema::catalog::{Column, Facts, Relation, RelationKind};

/// Whether the values of a column may be numbers of large objects: its type is `oid`, or the `lo` of the extension of
/// that name, or an array of them.
pub(crate) fn may_name(column: &Column) -> bool {
    let plain = column.type_name.trim_end_matches("[]");
    plain == "oid" || plain == "lo" || plain.ends_with(".lo")
}

/// The columns of a schema's tables that refer to large objects of this database.
///
/// Locks: ACCESS SHARE on each table that has such a column, for one statement, which may read the whole table.
pub(crate) async fn named(source: &Session, facts: &Facts) -> Result<Vec<Refusal>, Error> {
    let what = "looking for large objects";
    // What somebody else owns is refused for that; he could put a view in its place that runs what he likes.
    let own = |relation: &&Relation| relation.kind == RelationKind::Table && relation.owner == facts.reader;
    let tables = facts.relations.iter().filter(own);
    let columns: Vec<_> = tables
        .flat_map(|table| table.columns.iter().filter(|column| may_name(column)).map(move |column| (table, column)))
        .collect();
    let any = "SELECT EXISTS (SELECT FROM pg_largeobject_metadata)";
    if columns.is_empty() || !source.row(what, any, &[]).await?.get::<_, bool>(0)? {
        return Ok(Vec::new());
    }
    let mut refusals = Vec::new();
    for (table, column) in columns {
        let value = match column.type_name.ends_with("[]") {
            true => format!("ANY (t.{}::oid[])", quote_ident(&column.name)),
            false => format!("t.{}::oid", quote_ident(&column.name)),
        };
        let table_name = format!("{}.{}", quote_ident(&facts.schema), quote_ident(&table.name));
        let sql =
            format!("SELECT EXISTS (SELECT FROM {table_name} t JOIN pg_largeobject_metadata m ON m.oid = {value})");
        if source.row(what, &sql, &[]).await?.get(0)? {
            refusals.push(Refusal::new(
                format!("column {}.{}", table.name, column.name),
                "refers to large objects, which are in no schema and would stay behind",
                "keep them as bytea; or make it a bigint, if its numbers refer to something else",
            ));
        }
    }
    Ok(refusals)
}
