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
    ring: Option<Ring>,
}

/// What a sequence with CYCLE goes round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ring {
    min: i64,
    max: i64,
    /// How far it is set ahead: [`AHEAD`] numbers, with the increment's sign.
    ahead: i64,
}

impl Ring {
    fn len(self) -> i128 {
        i128::from(self.max) - i128::from(self.min) + 1
    }

    /// Whether it hands out every number so soon again that ahead and behind mean nothing.
    fn is_small(self) -> bool {
        2 * i128::from(self.ahead).abs() >= self.len()
    }

    fn after(self, value: i64) -> i64 {
        let at = (i128::from(value) - i128::from(self.min) + i128::from(self.ahead)).rem_euclid(self.len());
        i64::try_from(at + i128::from(self.min)).unwrap_or(self.max)
    }

    /// Whether `now` is no further from where it was than the preset is.
    fn reaches(self, preset: i64, now: i64) -> bool {
        let way = (i128::from(preset) - i128::from(now)) * i128::from(self.ahead.signum());
        way.rem_euclid(self.len()) <= i128::from(self.ahead).abs()
    }
}

/// Values that the target's sequences can be given while the source still hands out numbers, so that nothing is left to
/// do in the pause: each [`AHEAD`] of the source's, or at its bound. A sequence that cycles is set ahead round its ring, and
/// goes on from where it was if it hands out every number again within that distance.
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
        let ahead = increment.saturating_mul(AHEAD);
        let ring = row.try_get::<_, bool>(4)?.then_some(Ring { min, max, ahead });
        if let Some(ring) = ring {
            if !ring.is_small() {
                value.last_value = ring.after(value.last_value);
                value.is_called = true;
            }
        } else {
            let ahead = if value.name == CLOCK { CLOCK_AHEAD } else { ahead };
            value.last_value = value.last_value.saturating_add(ahead).clamp(min, max);
            value.is_called = true;
        }
        presets.push(Preset { value, ascends: increment > 0, ring });
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
                if let Some(ring) = preset.ring {
                    return !ring.is_small() && !ring.reaches(preset.value.last_value, value.last_value);
                }
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
        Preset { value: value(name, last_value, true), ascends, ring: None }
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
    fn a_sequence_that_cycles_is_ahead_round_its_ring() {
        let ring = |min, max, ahead| Ring { min, max, ahead };
        let wide = ring(1, 100_000, AHEAD);
        assert_eq!((wide.after(5), wide.after(95_000)), (10_005, 5_000));
        assert_eq!(ring(-100_000, -1, -AHEAD).after(-95_000), -5_000);
        assert_eq!(ring(i64::MIN, i64::MAX, AHEAD).after(i64::MAX), i64::MIN + AHEAD - 1);
        assert!(ring(1, 5, AHEAD).is_small() && !wide.is_small());
        let preset = |ring: Ring, last_value| Preset { ring: Some(ring), ..preset("round", last_value, true) };
        let passed = |ring, at, now| overtaken(&[preset(ring, at)], &[value("round", now, true)]);
        assert_eq!(passed(wide, 5_000, 95_000), None);
        assert_eq!(passed(wide, 5_000, 4_999), None);
        assert_eq!(passed(wide, 5_000, 5_001).as_deref(), Some("sequence round"));
        assert_eq!(passed(ring(1, 5, AHEAD), 2, 4), None);
    }

    #[test]
    fn an_id_clock_is_the_sum_of_its_two_sequences() {
        let presets = [preset("id_ticket", 10, true), preset("id_offset", 100, true)];
        assert_eq!(overtaken(&presets, &[value("id_ticket", 60, true), value("id_offset", 50, true)]), None);
        assert!(overtaken(&presets, &[value("id_ticket", 61, true), value("id_offset", 50, true)]).is_some());
    }
}
