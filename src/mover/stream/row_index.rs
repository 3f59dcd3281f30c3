//! An index by which changes find the rows of a table without a key, at the target and in an old
//! copy, for as long as changes are applied. Such rows are identified by the texts of all their
//! values, for which the table has no index of its own. Without this one, each change would read
//! the whole table.
//!
//! It is on a hash of the row's values, and only narrows the search: the texts decide. So it may
//! leave out values of types without a hash, and may be absent.

use crate::mover::definition::ddl::{Creation, Stage, Statement};
use crate::mover::preflight::table::{Column, TableShape};
use crate::pg::quote_ident;
use crate::schema::catalog::Facts;

/// The prefix of these indexes' names. No other index may use it.
pub(crate) const PREFIX: &str = "pgshard_rows_";

/// The oldest version that can hash a row.
const SINCE: u32 = 140_000;

/// The most columns that are hashed: PostgreSQL keeps an index's expression in one page.
const COLUMNS_MAX: usize = 32;

/// The columns with values in the index: the first ones that can be hashed.
pub(super) fn hashed(shape: &TableShape) -> impl Iterator<Item = &Column> {
    let plain = shape
        .columns
        .iter()
        .filter(|column| column.hashable && !column.generated);
    plain.take(COLUMNS_MAX)
}

/// The statements that create and drop the index of a table in this schema. `None` if the table has
/// a key, or nothing to hash.
fn statements(schema: &str, shape: &TableShape) -> Option<[String; 2]> {
    let names: Vec<String> = hashed(shape).map(Column::quoted).collect();
    if names.is_empty() || !shape.key.is_empty() {
        return None;
    }
    let (schema, index) = (quote_ident(schema), format!("{PREFIX}{}", shape.oid));
    Some([
        format!(
            "CREATE INDEX {index} ON {schema}.{} ({})",
            quote_ident(&shape.name),
            of_row(&names)
        ),
        format!("DROP INDEX IF EXISTS {schema}.{index}"),
    ])
}

/// SQL for the hash of these expressions' values.
pub(super) fn of_row(values: &[String]) -> String {
    format!("hash_record_extended(ROW({}), 0)", values.join(", "))
}

/// Adds the indexes to what is created at a target of this version. Each is created with the
/// table's other indexes, and dropped at the open.
pub(crate) fn add(creation: &mut Creation, schema: &str, shapes: &[TableShape], version: u32) {
    let indexes = shapes.iter().filter(|_| version >= SINCE);
    for (shape, [create, drop]) in
        indexes.filter_map(|shape| Some((shape, statements(schema, shape)?)))
    {
        let statement = |stage, sql, table| Statement {
            stage,
            what: format!("rows of table {}", shape.name),
            sql,
            table,
            path: None,
        };
        creation
            .after_data
            .push(statement(Stage::Index, create, Some(shape.name.clone())));
        creation
            .after_data
            .push(statement(Stage::Dismantle, drop, None));
    }
}

/// The statements that create them in an old copy, which is in the first schema and will be opened
/// in the second. The open drops them.
pub(crate) fn give(
    creation: &mut Creation,
    (schema, opened): (&str, &str),
    shapes: &[TableShape],
    version: u32,
) -> String {
    add(creation, opened, shapes, version);
    let made = shapes
        .iter()
        .filter(|_| version >= SINCE)
        .filter_map(|shape| statements(schema, shape));
    made.map(|[create, _]| format!("{create};\n")).collect()
}

/// Removes these indexes from the facts of a schema: they are the mover's, not the shard's.
pub(crate) fn leave_out(facts: &mut Facts) {
    facts
        .indexes
        .retain(|index| !index.name.starts_with(PREFIX));
}
