//! A query whose columns are known, wrapped so that the server gives JSON or text whatever their types are.

use std::collections::BTreeMap;

use pgshard::ShardId;
use pgshard::pg::quote_ident;
use serde_json::value::RawValue;
use tokio_postgres::Row;
use tokio_postgres::types::{Kind, Type};

use crate::failure::Failure;
use crate::output::{Align, Format, Output};

/// The columns that the query gives, by name and type.
pub(super) struct Shape {
    columns: Vec<(String, Type)>,
    wrapped: Wrapped,
}

/// Whether the server makes JSON or text of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrapped {
    /// The query stands in another.
    Yes,
    /// The query is an EXPLAIN, which can stand in no other: lines of text.
    No,
}

impl Shape {
    /// A statement that reads no row of the query and gives one all the same, which [`Shape::of`] takes.
    pub(super) fn question(query: &str) -> String {
        format!("SELECT q.* FROM (SELECT 1) AS one LEFT JOIN ({query}\n) AS q ON false")
    }

    /// The shape that the answer to the question has.
    pub(super) fn of(rows: &[Row]) -> Shape {
        let columns = rows.first().map(Row::columns).unwrap_or_default();
        let columns = columns.iter().map(|column| (column.name().to_owned(), column.type_().clone()));
        Shape { columns: columns.collect(), wrapped: Wrapped::Yes }
    }

    /// The shape of a plan: a column of text.
    pub(super) fn of_a_plan() -> Shape {
        Shape { columns: vec![("QUERY PLAN".to_owned(), Type::TEXT)], wrapped: Wrapped::No }
    }

    /// The query, wrapped: one row a shard with a JSON array in it, or rows of text.
    pub(super) fn sql(&self, query: &str, format: Format) -> String {
        if self.wrapped == Wrapped::No {
            return query.to_owned();
        }
        // By position, since names can be there twice.
        let positions: Vec<String> = (1..=self.columns.len()).map(|n| quote_ident(&n.to_string())).collect();
        let value = |(position, (name, column_type)): (&String, &(String, Type))| {
            let cast = match (format, is_int8(column_type)) {
                (Format::Text, _) | (Format::Json, Some(Int8::One)) => "::pg_catalog.text",
                (Format::Json, Some(Int8::Array)) => "::pg_catalog.text[]",
                (Format::Json, None) => "",
            };
            format!("q.{position}{cast} AS {}", quote_ident(name))
        };
        let values: Vec<String> = positions.iter().zip(&self.columns).map(value).collect();
        let alias = if positions.is_empty() { String::new() } else { format!("({})", positions.join(", ")) };
        let plain = format!("SELECT {} FROM ({query}\n) AS q{alias}", values.join(", "));
        match format {
            Format::Text => plain,
            Format::Json => {
                format!("SELECT coalesce(pg_catalog.json_agg(t), '[]')::pg_catalog.text FROM ({plain}) AS t")
            }
        }
    }

    pub(super) fn print(&self, table: &[(ShardId, Vec<Row>)], output: &Output) -> Result<(), Failure> {
        let numeric = |column_type: &Type| {
            [Type::INT2, Type::INT4, Type::INT8, Type::FLOAT4, Type::FLOAT8, Type::NUMERIC].contains(column_type)
        };
        let align = |column_type: &Type| if numeric(column_type) { Align::Right } else { Align::Left };
        let mut columns = vec![("shard", Align::Right)];
        columns.extend(self.columns.iter().map(|(name, column_type)| (name.as_str(), align(column_type))));
        let mut lines: Vec<Vec<String>> = Vec::new();
        for (shard, rows) in table {
            for row in rows {
                let mut line = vec![shard.to_string()];
                for index in 0..row.len() {
                    line.push(row.try_get::<_, Option<String>>(index)?.unwrap_or_default());
                }
                lines.push(line);
            }
        }
        Ok(output.table(&columns, lines)?)
    }

    /// The sums over all shards of what aggregates have counted or added up on each; nothing where there are none, or
    /// where a shard has several rows. Of other numbers the sum would tell nothing.
    pub(super) fn totals(&self, table: &[(ShardId, Vec<Row>)]) -> String {
        if table.len() < 2 || table.iter().any(|(_, rows)| rows.len() != 1) {
            return String::new();
        }
        let total = |index: usize| -> Option<i128> {
            let values =
                table.iter().flat_map(|(_, rows)| rows).map(|row| row.try_get::<_, Option<&str>>(index).ok()?);
            values.map(|value| value.unwrap_or("0").parse::<i128>().ok()).sum()
        };
        let summed = |name: &str| ["count", "sum"].contains(&name);
        let totals = self.columns.iter().enumerate().filter(|(_, (name, _))| summed(name));
        totals.filter_map(|(at, (name, _))| Some(format!("; {name} of all: {}", total(at)?))).collect()
    }

    /// The rows as a JSON array on one line.
    pub(super) fn json(&self, rows: &[Row]) -> Result<Box<RawValue>, Failure> {
        if self.wrapped == Wrapped::Yes {
            return json(rows);
        }
        let lines: Vec<BTreeMap<&str, &str>> = rows
            .iter()
            .map(|row| Ok(BTreeMap::from([("QUERY PLAN", row.try_get::<_, &str>(0)?)])))
            .collect::<Result<_, tokio_postgres::Error>>()?;
        Ok(serde_json::value::to_raw_value(&lines)?)
    }
}

/// A bigint, which may be an ID.
#[derive(Clone, Copy)]
enum Int8 {
    One,
    Array,
}

/// IDs are strings in our JSON. We cannot know which bigint is an ID, so all of them are strings.
fn is_int8(column_type: &Type) -> Option<Int8> {
    match column_type.kind() {
        _ if *column_type == Type::INT8 => Some(Int8::One),
        Kind::Array(member) if is_int8(member).is_some() => Some(Int8::Array),
        Kind::Domain(base) => is_int8(base),
        _ => None,
    }
}

/// The array that the server made, on one line.
fn json(rows: &[Row]) -> Result<Box<RawValue>, Failure> {
    let text = rows.first().map(|row| row.try_get::<_, String>(0)).transpose()?;
    // A line end inside a string is written as \n, so the real ones stand only between values.
    let line = text.unwrap_or_else(|| "[]".to_owned()).replace(['\n', '\r'], "");
    Ok(RawValue::from_string(line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bigint_is_a_string() {
        let column = |name: &str, column_type: Type| (name.to_owned(), column_type);
        let columns = vec![column("id", Type::INT8), column("ids", Type::INT8_ARRAY), column("n\"", Type::INT4)];
        let shape = Shape { columns, wrapped: Wrapped::Yes };
        assert_eq!(
            shape.sql("TABLE x", Format::Json),
            "SELECT coalesce(pg_catalog.json_agg(t), '[]')::pg_catalog.text FROM (SELECT \
             q.\"1\"::pg_catalog.text AS \"id\", q.\"2\"::pg_catalog.text[] AS \"ids\", q.\"3\" AS \"n\"\"\" \
             FROM (TABLE x\n) AS q(\"1\", \"2\", \"3\")) AS t"
        );
    }
}
