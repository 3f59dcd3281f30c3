//! Large objects: they are in no schema, and no move carries them. At the target, a column that
//! refers to some would refer to nothing, or to other ones.

use crate::mover::control::session::Session;
use crate::mover::definition::refusal::Refusal;
use crate::mover::preflight::oid_columns::Part;
use crate::mover::protocol::error::Error;
use crate::pg::quote_ident;
use crate::schema::catalog::{Column, Facts, Relation, RelationKind};

/// Whether the values of a column may be numbers of large objects: its type is `oid`, or the `lo`
/// of the extension of that name, or an array of them.
pub(crate) fn may_name(column: &Column) -> bool {
    let plain = column.type_name.trim_end_matches("[]");
    plain == "oid" || plain == "lo" || plain.ends_with(".lo")
}

/// The columns of a schema's tables that refer to large objects of this database. `parts` are those
/// of their types.
///
/// Locks: ACCESS SHARE on each table that has such a column, for one statement, which may read the
/// whole table.
pub(crate) async fn named(
    source: &Session,
    facts: &Facts,
    parts: &[Part],
) -> Result<Vec<Refusal>, Error> {
    let what = "looking for large objects";
    // What another role owns is refused for that; that role could replace it by a view that runs
    // any code.
    let own = |relation: &&Relation| {
        relation.kind == RelationKind::Table && relation.owner == facts.reader
    };
    let tables = facts.relations.iter().filter(own);
    let is_part = |table: &Relation, column: &Column| {
        let mut oids = parts.iter().filter(|part| part.type_name == "oid");
        oids.any(|part| part.table == table.name && part.column == column.name)
    };
    let is_asked = |table: &Relation, column: &Column| may_name(column) || is_part(table, column);
    let columns = tables.flat_map(|table| table.columns.iter().map(move |column| (table, column)));
    let columns: Vec<_> = columns
        .filter(|(table, column)| is_asked(table, column))
        .collect();
    let any = "SELECT EXISTS (SELECT FROM pg_largeobject_metadata)";
    if columns.is_empty() || !source.row(what, any, &[]).await?.get::<_, bool>(0)? {
        return Ok(Vec::new());
    }
    let mut refusals = Vec::new();
    for (table, column) in columns {
        let value = format!("t.{}", quote_ident(&column.name));
        // In a value that is made of others, any number in its text may be that of a large object.
        // It is the text that the type writes: a cast to text might be a user's function.
        let (numbers, found) = match (may_name(column), column.type_name.ends_with("[]")) {
            (true, true) => (String::new(), format!("m.oid = ANY ({value}::oid[])")),
            (true, false) => (String::new(), format!("m.oid = {value}::oid")),
            (false, _) => {
                let numbers = format!(
                    " CROSS JOIN LATERAL regexp_matches(format('%s', {value}), '\\d+', 'g') AS \
                        n(found)"
                );
                (numbers, "m.oid::text = n.found[1]".to_owned())
            }
        };
        let table_name = format!(
            "{}.{}",
            quote_ident(&facts.schema),
            quote_ident(&table.name)
        );
        let sql = format!(
            "SELECT EXISTS (SELECT FROM {table_name} t{numbers} JOIN pg_largeobject_metadata m ON \
                {found})"
        );
        if source.row(what, &sql, &[]).await?.get(0)? {
            let refers = match may_name(column) {
                true => "refers to large objects".to_owned(),
                false => format!(
                    "is of type {} and has numbers of large objects",
                    column.type_name
                ),
            };
            refusals.push(Refusal::new(
                format!("column {}.{}", table.name, column.name),
                format!("{refers}, which are in no schema and would stay behind"),
                "keep them as bytea; or make it a bigint, if its numbers refer to something else",
            ));
        }
    }
    Ok(refusals)
}
