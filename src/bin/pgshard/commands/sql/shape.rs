//! A query with known columns, wrapped so that the server returns JSON or text whatever their types
//! are.

use std::collections::BTreeMap;
use std::fmt;

use pgshard::ShardId;
use pgshard::pg::quote_ident;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Kind, Type};

use crate::failure::Failure;
use crate::output::{Align, Format, Output};

/// The columns that the query gives, by name and type.
pub(super) struct Shape {
    columns: Vec<(String, Type)>,
    wrapped: ResultFormat,
}

/// Whether the server makes JSON or text of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResultFormat {
    /// The query is within another.
    Yes,
    /// The query is an EXPLAIN, which cannot be part of another query: lines of text.
    No,
}

impl Shape {
    /// A statement that reads no row of the query and gives one all the same, which [`Shape::of`]
    /// takes.
    pub(super) fn question(query: &str) -> String {
        format!("SELECT q.* FROM (SELECT 1) AS one LEFT JOIN ({query}\n) AS q ON false")
    }

    /// The shape that the answer to the question has.
    pub(super) fn of(rows: &[Row]) -> Shape {
        let columns = rows.first().map(Row::columns).unwrap_or_default();
        let columns = columns
            .iter()
            .map(|column| (column.name().to_owned(), column.type_().clone()));
        Shape {
            columns: columns.collect(),
            wrapped: ResultFormat::Yes,
        }
    }

    /// The shape of a plan: a column of text.
    pub(super) fn of_a_plan() -> Shape {
        Shape {
            columns: vec![(PLAN.to_owned(), Type::TEXT)],
            wrapped: ResultFormat::No,
        }
    }

    /// The query, wrapped: one row a shard with a JSON array in it, or rows of text.
    pub(super) fn sql(&self, query: &str, format: Format) -> String {
        if self.wrapped == ResultFormat::No {
            return query.to_owned();
        }
        // By position, since names can be there twice.
        let positions: Vec<String> = (1..=self.columns.len())
            .map(|n| quote_ident(&n.to_string()))
            .collect();
        let value = |(position, (name, column_type)): (&String, &(String, Type))| {
            let cast = match (format, is_int8(column_type)) {
                (Format::Text, _) | (Format::Json, Some(Int8::One)) => "::pg_catalog.text",
                (Format::Json, Some(Int8::Array)) => "::pg_catalog.text[]",
                (Format::Json, None) => "",
            };
            format!("q.{position}{cast} AS {}", quote_ident(name))
        };
        let values: Vec<String> = positions.iter().zip(&self.columns).map(value).collect();
        let alias = if positions.is_empty() {
            String::new()
        } else {
            format!("({})", positions.join(", "))
        };
        let plain = format!("SELECT {} FROM ({query}\n) AS q{alias}", values.join(", "));
        match format {
            Format::Text => plain,
            Format::Json => {
                // With the star it is the row, whatever its columns are called.
                format!(
                    "SELECT coalesce(pg_catalog.json_agg(t.*), '[]')::pg_catalog.text FROM \
                        ({plain}) AS t"
                )
            }
        }
    }

    pub(super) fn print(
        &self,
        table: &[(ShardId, Vec<Row>)],
        output: &Output,
    ) -> Result<(), Failure> {
        let numeric = |column_type: &Type| {
            [
                Type::INT2,
                Type::INT4,
                Type::INT8,
                Type::FLOAT4,
                Type::FLOAT8,
                Type::NUMERIC,
            ]
            .contains(column_type)
        };
        let align = |column_type: &Type| {
            if numeric(column_type) {
                Align::Right
            } else {
                Align::Left
            }
        };
        let mut columns = vec![("shard", Align::Right)];
        columns.extend(
            self.columns
                .iter()
                .map(|(name, column_type)| (name.as_str(), align(column_type))),
        );
        let mut lines: Vec<Vec<String>> = Vec::new();
        for (shard, rows) in table {
            if self.wrapped == ResultFormat::No {
                let plan = plan(rows)?;
                lines.extend(
                    plan.lines()
                        .map(|line| vec![shard.to_string(), line.to_owned()]),
                );
                continue;
            }
            for row in rows {
                let mut line = vec![shard.to_string()];
                for index in 0..row.len() {
                    line.push(row.try_get::<_, Option<String>>(index)?.unwrap_or_default());
                }
                lines.push(line);
            }
        }
        output.table(&columns, lines);
        Ok(())
    }

    /// The sums over all shards of the counts and sums that aggregates returned on each; nothing
    /// where there are none, or where a shard has several rows. The sum of other numbers would be
    /// meaningless.
    pub(super) fn totals(&self, table: &[(ShardId, Vec<Row>)]) -> String {
        if table.len() < 2 || table.iter().any(|(_, rows)| rows.len() != 1) {
            return String::new();
        }
        let total = |index: usize| -> Option<i128> {
            let values = table
                .iter()
                .flat_map(|(_, rows)| rows)
                .map(|row| row.try_get::<_, Option<&str>>(index).ok()?);
            values
                .map(|value| value.unwrap_or("0").parse::<i128>().ok())
                .sum()
        };
        let summed = |name: &str| ["count", "sum"].contains(&name);
        let totals = self
            .columns
            .iter()
            .enumerate()
            .filter(|(_, (name, _))| summed(name));
        totals
            .filter_map(|(at, (name, _))| Some(format!("; {name} of all: {}", total(at)?)))
            .collect()
    }

    /// The rows as a JSON array on one line.
    pub(super) fn json(&self, rows: &[Row]) -> Result<Box<RawValue>, Failure> {
        if self.wrapped == ResultFormat::Yes {
            let types: Vec<Type> = self
                .columns
                .iter()
                .map(|(_, column_type)| column_type.clone())
                .collect();
            return json(rows, &types);
        }
        if let [row] = rows
            && row
                .columns()
                .first()
                .is_some_and(|column| *column.type_() == Type::JSON)
        {
            // EXPLAIN (FORMAT JSON): the plan is a value, and no text with one in it.
            let plan = RawValue::from_string(one_line(&plan(rows)?))?;
            return Ok(serde_json::value::to_raw_value(&[BTreeMap::from([(
                PLAN, plan,
            )])])?);
        }
        let line = |row: &Row| Ok(BTreeMap::from([(PLAN, plan(std::slice::from_ref(row))?)]));
        let lines: Vec<BTreeMap<&str, String>> =
            rows.iter().map(line).collect::<Result<_, Failure>>()?;
        Ok(serde_json::value::to_raw_value(&lines)?)
    }
}

/// The column that EXPLAIN gives.
const PLAN: &str = "QUERY PLAN";

/// A plan as the server writes it, in whatever format: text, XML, JSON and YAML are texts to the
/// driver.
struct PlanText(String);

impl<'a> FromSql<'a> for PlanText {
    fn from_sql(
        _: &Type,
        raw: &'a [u8],
    ) -> Result<PlanText, Box<dyn std::error::Error + Sync + Send>> {
        Ok(PlanText(std::str::from_utf8(raw)?.to_owned()))
    }

    fn accepts(column_type: &Type) -> bool {
        [Type::TEXT, Type::JSON, Type::XML].contains(column_type)
    }
}

fn plan(rows: &[Row]) -> Result<String, Failure> {
    let lines = rows.iter().map(|row| Ok(row.try_get::<_, PlanText>(0)?.0));
    Ok(lines
        .collect::<Result<Vec<_>, tokio_postgres::Error>>()?
        .join("\n"))
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

/// Whether rows are in it; the server writes their bigints as numbers.
fn has_rows(column_type: &Type) -> bool {
    match column_type.kind() {
        Kind::Composite(_) => true,
        Kind::Array(member) | Kind::Domain(member) => has_rows(member),
        _ => is_untyped(column_type),
    }
}

/// Whether it is a row with fields of unknown types.
fn is_untyped(column_type: &Type) -> bool {
    [Type::RECORD, Type::RECORD_ARRAY].contains(column_type)
}

/// The array that the server made, on one line.
fn json(rows: &[Row], types: &[Type]) -> Result<Box<RawValue>, Failure> {
    let text = rows
        .first()
        .map(|row| row.try_get::<_, String>(0))
        .transpose()?;
    let line = one_line(text.as_deref().unwrap_or("[]"));
    if !types.iter().any(has_rows) {
        return Ok(RawValue::from_string(line)?);
    }
    let rows: Vec<Fields<'_>> = serde_json::from_str(&line)?;
    let rows: Vec<String> = rows
        .into_iter()
        .map(|row| row.rewritten(types))
        .collect::<Result<_, _>>()?;
    Ok(RawValue::from_string(format!("[{}]", rows.join(",")))?)
}

/// A line end inside a string is written as \n, so the real ones are only between values.
fn one_line(json: &str) -> String {
    json.replace(['\n', '\r'], "")
}

/// The fields of an object in their order; a name can be there twice.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'de>, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Fields(fields))
    }
}

impl Fields<'_> {
    /// The object with each field as [`value`] writes it.
    fn rewritten(&self, types: &[Type]) -> serde_json::Result<String> {
        let fields = self.0.iter().enumerate().map(|(at, (name, found))| {
            let found = value(found.get(), types.get(at).unwrap_or(&Type::RECORD))?;
            Ok(format!("{}:{found}", serde_json::to_string(name)?))
        });
        Ok(format!(
            "{{{}}}",
            fields.collect::<serde_json::Result<Vec<_>>>()?.join(",")
        ))
    }
}

/// A value that the server has written, with every bigint in it as a string. In a row without a
/// type every whole number may be one.
fn value(json: &str, column_type: &Type) -> serde_json::Result<String> {
    let is_number = json.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    match column_type.kind() {
        _ if json == "null" => {}
        Kind::Domain(base) => return value(json, base),
        Kind::Composite(fields) if json.starts_with('{') => {
            let types: Vec<Type> = fields.iter().map(|field| field.type_().clone()).collect();
            return serde_json::from_str::<Fields<'_>>(json)?.rewritten(&types);
        }
        _ if json.starts_with('[') && (has_rows(column_type) || is_int8(column_type).is_some()) => {
            // An array of arrays has the same type.
            let member = match column_type.kind() {
                Kind::Array(member) if !json[1..].trim_start().starts_with('[') => member,
                _ => column_type,
            };
            let members: Vec<&RawValue> = serde_json::from_str(json)?;
            let members = members
                .into_iter()
                .map(|member_json| value(member_json.get(), member));
            return Ok(format!(
                "[{}]",
                members.collect::<serde_json::Result<Vec<_>>>()?.join(",")
            ));
        }
        _ if json.starts_with('{') && is_untyped(column_type) => {
            return serde_json::from_str::<Fields<'_>>(json)?.rewritten(&[]);
        }
        _ if is_number && (is_untyped(column_type) || is_int8(column_type).is_some()) => {
            return Ok(format!("\"{json}\""));
        }
        _ => {}
    }
    Ok(json.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bigint_is_a_string() {
        let column = |name: &str, column_type: Type| (name.to_owned(), column_type);
        let columns = vec![
            column("id", Type::INT8),
            column("ids", Type::INT8_ARRAY),
            column("n\"", Type::INT4),
        ];
        let shape = Shape {
            columns,
            wrapped: ResultFormat::Yes,
        };
        assert_eq!(
            shape.sql("TABLE x", Format::Json),
            "SELECT coalesce(pg_catalog.json_agg(t.*), '[]')::pg_catalog.text FROM (SELECT \
             q.\"1\"::pg_catalog.text AS \"id\", q.\"2\"::pg_catalog.text[] AS \"ids\", q.\"3\" \
             AS \"n\"\"\" \
             FROM (TABLE x\n) AS q(\"1\", \"2\", \"3\")) AS t"
        );
    }
}
