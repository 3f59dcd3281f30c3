//! Carrying the values of a schema's sequences. They are no rows: no copy and no stream has them.

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

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
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let schema: &str = first.try_get(0)?;
    let names = rows.iter().map(|row| row.try_get::<_, &str>(1)).collect::<Result<Vec<_>, _>>()?;
    values_of(client, schema, &names).await
}

/// The values of the sequences with these names in the schema of this name, in the same order.
///
/// Locks: ACCESS SHARE on the sequences, for one statement.
pub(crate) async fn values_of<C: GenericClient + Sync>(
    client: &C,
    schema: &str,
    names: &[&str],
) -> Result<Vec<SequenceValue>, tokio_postgres::Error> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let select = |name: &&str| {
        let (from, literal) = (format!("{}.{}", quote_ident(schema), quote_ident(name)), quote_literal(name));
        format!("SELECT {literal}::text AS name, last_value, is_called FROM {from}")
    };
    let selects: Vec<String> = names.iter().map(select).collect();
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

/// How far a sequence of numbers is set ahead of the source's: what it may hand out between the look and the fence.
const AHEAD: i64 = 10_000;

/// How far the clock of a shard's IDs is set ahead, in its units of 1/1024 ms: a second. The first IDs at the target are of
/// times that far ahead at most, as after a burst.
const CLOCK_AHEAD: i64 = 1024 * 1000;

/// The sequence of a shard's ID clock that takes the distance.
const CLOCK: &str = "id_offset";

/// Where the sequences of a schema are, and how each of them may be set ahead of the present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Preset {
    pub(crate) value: SequenceValue,
    ascends: bool,
}

/// Values that the target's sequences can be given while the source still hands out numbers, so that nothing is left to
/// do in the pause: each [`AHEAD`] of the source's, or at its bound. A sequence that cycles is not set ahead.
pub(crate) async fn presets<C: GenericClient + Sync>(
    client: &C,
    schema: &Namespace,
) -> Result<Vec<Preset>, tokio_postgres::Error> {
    let values = sequence_values(client, schema).await?;
    let (oid, name) = schema.parameters();
    let sql = "SELECT c.relname::text, s.seqincrement, s.seqmin, s.seqmax, s.seqcycle
        FROM pg_catalog.pg_sequence s JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.oid = $1 OR n.nspname = $2";
    let rows = client.query_typed(sql, &[(&oid, Type::OID), (&name, Type::NAME)]).await?;
    let mut presets = Vec::with_capacity(values.len());
    for mut value in values {
        let Some(row) = rows.iter().find(|row| row.get::<_, &str>(0) == value.name) else { continue };
        let (increment, min, max): (i64, i64, i64) = (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
        if !row.try_get::<_, bool>(4)? {
            let ahead = if value.name == CLOCK { CLOCK_AHEAD } else { increment.saturating_mul(AHEAD) };
            value.last_value = value.last_value.saturating_add(ahead).clamp(min, max);
            value.is_called = true;
        }
        presets.push(Preset { value, ascends: increment > 0 });
    }
    Ok(presets)
}

/// The first sequence that is not where the preset says, or behind it; by the name of its schema's sequence. The two of an
/// ID clock count together: their sum is the clock.
pub(crate) fn overtaken(presets: &[Preset], now: &[SequenceValue]) -> Option<String> {
    let clock = |values: &mut dyn Iterator<Item = &SequenceValue>| {
        values.filter(|value| is_clock(&value.name)).map(|value| i128::from(value.last_value)).sum::<i128>()
    };
    if clock(&mut presets.iter().map(|preset| &preset.value)) < clock(&mut now.iter()) {
        return Some("the clock of its IDs".to_owned());
    }
    let behind = |value: &&SequenceValue| {
        let preset = presets.iter().find(|preset| preset.value.name == value.name);
        !is_clock(&value.name)
            && preset.is_none_or(|preset| {
                let ahead = if preset.ascends {
                    preset.value.last_value >= value.last_value
                } else {
                    preset.value.last_value <= value.last_value
                };
                !ahead || preset.value.last_value == value.last_value && value.is_called && !preset.value.is_called
            })
    };
    now.iter().find(behind).map(|value| format!("sequence {}", value.name))
}

fn is_clock(name: &str) -> bool {
    name == CLOCK || name == "id_ticket"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(name: &str, last_value: i64, is_called: bool) -> SequenceValue {
        SequenceValue { name: name.to_owned(), last_value, is_called }
    }

    fn preset(name: &str, last_value: i64, ascends: bool) -> Preset {
        Preset { value: value(name, last_value, true), ascends }
    }

    #[test]
    fn a_sequence_that_has_passed_its_preset_is_named() {
        let presets = [preset("up", 10, true), preset("down", -10, false)];
        assert_eq!(overtaken(&presets, &[value("up", 10, true), value("down", -10, true)]), None);
        assert_eq!(overtaken(&presets, &[value("up", 11, true)]).as_deref(), Some("sequence up"));
        assert_eq!(overtaken(&presets, &[value("down", -11, true)]).as_deref(), Some("sequence down"));
        assert_eq!(overtaken(&presets, &[value("new", 1, false)]).as_deref(), Some("sequence new"));
    }

    #[test]
    fn an_id_clock_is_the_sum_of_its_two_sequences() {
        let presets = [preset("id_ticket", 10, true), preset("id_offset", 100, true)];
        assert_eq!(overtaken(&presets, &[value("id_ticket", 60, true), value("id_offset", 50, true)]), None);
        assert!(overtaken(&presets, &[value("id_ticket", 61, true), value("id_offset", 50, true)]).is_some());
    }
}
