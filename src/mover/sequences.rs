//! Carrying the values of a schema's sequences. They are no rows: no copy and no stream has them.

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use super::ddl::{Stage, Statement};
use crate::pg::{quote_ident, quote_literal};
use crate::schema::catalog::Namespace;

/// The state of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceValue {
    /// The sequence's name, not quoted.
    pub name: String,
    /// The last value handed out to a session (which may hold some of them in its cache still), or the first to come.
    pub last_value: i64,
    /// Whether `last_value` was handed out; otherwise it is the next.
    pub is_called: bool,
}

/// The values of all sequences of a schema, identity and serial ones too, sorted by name. The schema is renamed by the
/// fence: ask by OID.
///
/// # Errors
/// When the server refuses, as for a sequence without SELECT.
///
/// # Cancel safety
/// Only reads. Not one snapshot: values may grow meanwhile unless writers are fenced.
pub async fn sequence_values<C: GenericClient + Sync>(
    client: &C,
    schema: &Namespace,
) -> Result<Vec<SequenceValue>, tokio_postgres::Error> {
    let (oid, name) = schema.parameters();
    // By the schema's members in pg_depend: pg_class has no index by namespace.
    let members = "SELECT n.nspname::text, c.relname::text
        FROM pg_catalog.pg_namespace n, pg_catalog.pg_depend d, pg_catalog.pg_class c
        WHERE (n.oid = $1 OR n.nspname = $2) AND d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
            AND d.refobjid = n.oid AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND c.oid = d.objid
            AND c.relkind = 'S'
        ORDER BY c.relname";
    let rows = client.query_typed(members, &[(&oid, Type::OID), (&name, Type::NAME)]).await?;
    let mut selects = Vec::with_capacity(rows.len());
    for row in rows {
        let (schema, name): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
        let (from, literal) = (format!("{}.{}", quote_ident(schema), quote_ident(name)), quote_literal(name));
        selects.push(format!("SELECT {literal}::text AS name, last_value, is_called FROM {from}"));
    }
    if selects.is_empty() {
        return Ok(Vec::new());
    }
    let rows = client.query_typed(&selects.join(" UNION ALL "), &[]).await?;
    rows.iter()
        .map(|row| Ok(SequenceValue { name: row.try_get(0)?, last_value: row.try_get(1)?, is_called: row.try_get(2)? }))
        .collect()
}

/// Sets the sequences of the schema with this name to these values. What is set is not rolled back with a transaction.
///
/// # Errors
/// When a sequence does not exist or the value is outside its bounds; sequences before it may have been set.
///
/// # Cancel safety
/// Some of the sequences may be set. Setting them again is right.
pub async fn set_sequence_values<C: GenericClient + Sync>(
    client: &C,
    schema: &str,
    values: &[SequenceValue],
) -> Result<(), tokio_postgres::Error> {
    let names: Vec<&str> = values.iter().map(|value| value.name.as_str()).collect();
    let last: Vec<i64> = values.iter().map(|value| value.last_value).collect();
    let called: Vec<bool> = values.iter().map(|value| value.is_called).collect();
    let sql = "SELECT pg_catalog.setval(format('%I.%I', $1, s.name)::pg_catalog.regclass, s.value, s.called)
        FROM unnest($2::text[], $3::bigint[], $4::boolean[]) AS s(name, value, called)";
    let parameters: &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)] =
        &[(&schema, Type::TEXT), (&names, Type::TEXT_ARRAY), (&last, Type::INT8_ARRAY), (&called, Type::BOOL_ARRAY)];
    client.query_typed(sql, parameters).await?;
    Ok(())
}

/// The same as statements, to show or to run with others.
pub fn set_sequence_statements(schema: &str, values: &[SequenceValue]) -> Vec<Statement> {
    let statement = |value: &SequenceValue| {
        let name = quote_literal(&format!("{}.{}", quote_ident(schema), quote_ident(&value.name)));
        Statement {
            stage: Stage::Finish,
            what: format!("value of sequence {}", value.name),
            sql: format!("SELECT pg_catalog.setval({name}, {}, {})", value.last_value, value.is_called),
        }
    };
    values.iter().map(statement).collect()
}
