//! Carries the values of a schema's sequences. They are not rows, so neither the copy nor the
//! stream brings them.

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::pg::{quote_ident, quote_literal};
use crate::schema::catalog::Namespace;

/// The state of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SequenceValue {
    /// The sequence's name, not quoted.
    pub(crate) name: String,
    /// The last value handed out to a session (which may still hold some of them in its cache), or
    /// the first one.
    pub(crate) last_value: i64,
    /// Whether `last_value` was handed out; otherwise it is the next.
    pub(crate) is_called: bool,
}

/// The values of all sequences of a schema, identity and serial ones too, sorted by name. The
/// schema is given by its OID, since the fence renames it.
///
/// # Errors
/// When the server refuses, as for a sequence without SELECT.
///
/// # Cancel safety
/// Only reads. The values are not of one snapshot: they may grow during the reading unless writers
/// are fenced.
pub(crate) async fn sequence_values<C: GenericClient + Sync>(
    client: &C,
    schema: &Namespace,
) -> Result<Vec<SequenceValue>, tokio_postgres::Error> {
    let (oid, name) = schema.parameters();
    // By the schema's members in pg_depend: pg_class has no index on the namespace.
    let members = "SELECT n.nspname::text, c.relname::text
        FROM pg_catalog.pg_namespace n, pg_catalog.pg_depend d, pg_catalog.pg_class c
        WHERE (n.oid = $1 OR n.nspname = $2) AND d.refclassid = \
        'pg_catalog.pg_namespace'::pg_catalog.regclass
            AND d.refobjid = n.oid AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND \
            c.oid = d.objid
            AND c.relkind = 'S'
        ORDER BY c.relname";
    let rows = client
        .query_typed(members, &[(&oid, Type::OID), (&name, Type::NAME)])
        .await?;
    let Some(first) = rows.first() else {
        return Ok(Vec::new());
    };
    let schema: &str = first.try_get(0)?;
    let names = rows
        .iter()
        .map(|row| row.try_get::<_, &str>(1))
        .collect::<Result<Vec<_>, _>>()?;
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
        let (from, literal) = (
            format!("{}.{}", quote_ident(schema), quote_ident(name)),
            quote_literal(name),
        );
        format!("SELECT {literal}::text AS name, last_value, is_called FROM {from}")
    };
    let selects: Vec<String> = names.iter().map(select).collect();
    let rows = client
        .query_typed(&selects.join(" UNION ALL "), &[])
        .await?;
    rows.iter()
        .map(|row| {
            Ok(SequenceValue {
                name: row.try_get(0)?,
                last_value: row.try_get(1)?,
                is_called: row.try_get(2)?,
            })
        })
        .collect()
}

/// Sets the sequences of the schema with this name to these values. A rollback does not undo that.
///
/// # Errors
/// When a sequence does not exist or the value is outside its bounds; sequences before it may have
/// been set.
///
/// # Cancel safety
/// Some of the sequences may be set. Setting them again is right.
pub(crate) async fn set_sequence_values<C: GenericClient + Sync>(
    client: &C,
    schema: &str,
    values: &[SequenceValue],
) -> Result<(), tokio_postgres::Error> {
    let names: Vec<&str> = values.iter().map(|value| value.name.as_str()).collect();
    let last: Vec<i64> = values.iter().map(|value| value.last_value).collect();
    let called: Vec<bool> = values.iter().map(|value| value.is_called).collect();
    let sql =
        "SELECT pg_catalog.setval(format('%I.%I', $1, s.name)::pg_catalog.regclass, s.value, \
        s.called)
        FROM unnest($2::text[], $3::bigint[], $4::boolean[]) AS s(name, value, called)";
    let parameters: &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)] = &[
        (&schema, Type::TEXT),
        (&names, Type::TEXT_ARRAY),
        (&last, Type::INT8_ARRAY),
        (&called, Type::BOOL_ARRAY),
    ];
    client.query_typed(sql, parameters).await?;
    Ok(())
}

/// How many values a sequence is set ahead of the source's. That covers what old transactions may
/// still take from it behind the fence, and what is handed out between reading it and the fence.
const AHEAD: i128 = 10_000;

/// A sequence is never set ahead by more than one in this many of the values that it has left.
const PART: i128 = 100;

/// A sequence with fewer values left than this is mentioned before the move: it is close to its
/// end, and is set ahead only a little.
const FEW: i128 = 10_000;

/// How far the clock of a shard's IDs is set ahead, in its units of 1/1024 ms: a fifth of a second,
/// in which the fence mostly comes; if not, it is [set again](Presets::anew). The first IDs at the
/// target may be from that far in the future, as after a burst. If a standby is promoted there
/// before their time, the IDs of rows that it lacks may be given again: so no further.
const CLOCK_AHEAD: i64 = 1024 * 200;

/// The sequence of a shard's ID clock that is set ahead.
const CLOCK: &str = "id_offset";

/// A sequence of a schema: where it is, and where it can get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sequence {
    pub(crate) value: SequenceValue,
    increment: i64,
    min: i64,
    max: i64,
    /// How many values a session takes at once.
    cache: i64,
    cycles: bool,
}

impl Sequence {
    /// How many values it can still hand out before its bound.
    fn values_left(&self) -> i128 {
        let SequenceValue {
            last_value,
            is_called,
            ..
        } = self.value;
        let bound = if self.increment > 0 {
            self.max
        } else {
            self.min
        };
        let steps = (i128::from(bound) - i128::from(last_value)) / i128::from(self.increment);
        steps + i128::from(!is_called)
    }

    /// How many values it can hand out until one is repeated or none is left.
    fn room(&self) -> i128 {
        if !self.cycles {
            return self.values_left();
        }
        (i128::from(self.max) - i128::from(self.min)) / i128::from(self.increment).abs()
    }

    /// By how many values it is set ahead.
    fn ahead(&self) -> i128 {
        AHEAD
            .max(10 * i128::from(self.cache))
            .min(self.room() / PART)
    }

    /// Its state once it has handed out this many more values; at most as many as there is
    /// [room](Sequence::room) for.
    fn after(&self, values: i128) -> SequenceValue {
        let (last, step) = (
            i128::from(self.value.last_value),
            i128::from(self.increment),
        );
        let left = self.values_left();
        let last = match values {
            ..=0 => return self.value.clone(),
            _ if values > left => {
                let begin = if step > 0 { self.min } else { self.max };
                i128::from(begin) + (values - left - 1) * step
            }
            _ if self.value.is_called => last + values * step,
            _ => last + (values - 1) * step,
        };
        // `left` and `room` keep it within the bounds.
        let last_value = i64::try_from(last).unwrap_or(self.value.last_value);
        SequenceValue {
            name: self.value.name.clone(),
            last_value,
            is_called: true,
        }
    }

    /// The state `at` as a number that grows with every value that a sequence like this one hands
    /// out. It means nothing for one that cycles.
    fn place(&self, at: &SequenceValue) -> i128 {
        let step = i128::from(self.increment);
        let last = i128::from(at.last_value) - if at.is_called { 0 } else { step };
        last * step.signum()
    }

    /// Where the target's sequence is to begin.
    fn preset(&self) -> SequenceValue {
        if self.value.name == CLOCK {
            let last_value = self
                .value
                .last_value
                .saturating_add(CLOCK_AHEAD)
                .clamp(self.min, self.max);
            return SequenceValue {
                last_value,
                is_called: true,
                ..self.value.clone()
            };
        }
        self.after(self.ahead())
    }
}

/// The sequences of a schema with their bounds, sorted by name.
///
/// Locks: ACCESS SHARE on the sequences, for one statement.
pub(crate) async fn read<C: GenericClient + Sync>(
    client: &C,
    schema: &Namespace,
) -> Result<Vec<Sequence>, tokio_postgres::Error> {
    let values = sequence_values(client, schema).await?;
    let (oid, name) = schema.parameters();
    let sql = "SELECT c.relname::text, s.seqincrement, s.seqmin, s.seqmax, s.seqcache, s.seqcycle
        FROM pg_catalog.pg_sequence s JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.oid = $1 OR n.nspname = \
        $2";
    let rows = client
        .query_typed(sql, &[(&oid, Type::OID), (&name, Type::NAME)])
        .await?;
    let mut sequences = Vec::with_capacity(values.len());
    for row in &rows {
        let name: &str = row.try_get(0)?;
        let Some(value) = values.iter().find(|value| value.name == name) else {
            continue;
        };
        sequences.push(Sequence {
            value: value.clone(),
            increment: row.try_get(1)?,
            min: row.try_get(2)?,
            max: row.try_get(3)?,
            cache: row.try_get(4)?,
            cycles: row.try_get(5)?,
        });
    }
    sequences.sort_by(|a, b| a.value.name.cmp(&b.value.name));
    Ok(sequences)
}

/// The first of these sequences that is ahead of its namesake among the others, or has none there;
/// `None` if the others are all as far or further. The two sequences of an ID clock count together.
/// One that cycles is never ahead or behind.
pub(crate) fn behind(these: &[Sequence], others: &[Sequence]) -> Option<String> {
    let clock = |all: &[Sequence]| clock_of(&mut all.iter().map(|one| &one.value));
    if clock(these) > clock(others) {
        return Some("the clock of its IDs".to_owned());
    }
    let further = |one: &&Sequence| {
        let other = others
            .iter()
            .find(|other| other.value.name == one.value.name);
        !is_clock(&one.value.name)
            && other
                .is_none_or(|other| !one.cycles && one.place(&one.value) > one.place(&other.value))
    };
    these
        .iter()
        .find(further)
        .map(|one| format!("sequence {}", one.value.name))
}

/// What an operator should know about sequences that have few values left.
pub(crate) fn warnings(sequences: &[Sequence]) -> Vec<String> {
    let few = sequences
        .iter()
        .filter(|one| !one.cycles && one.values_left() < FEW);
    let warning = |one: &Sequence| {
        let (name, left, ahead) = (&one.value.name, one.values_left(), one.ahead());
        match left {
            0 => format!("sequence {name} has no values left, and will have none at the target"),
            _ => format!(
                "sequence {name} has {left} values left, of which the move skips {ahead}: fewer \
                    than the 10,000 that keep nextval in transactions older than the fence from \
                    giving a value twice"
            ),
        }
    };
    few.map(warning).collect()
}

/// Where the target's sequences begin. They are set while the source still hands out values, so
/// that behind the fence there is mostly nothing left to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Presets {
    /// The source's sequences when they were read.
    seen: Vec<Sequence>,
    /// What the target's own sequences had handed out before: those of an old copy, in a rollback.
    floor: Vec<SequenceValue>,
    /// The values that the target's were set to.
    pub(crate) values: Vec<SequenceValue>,
}

impl Presets {
    /// Computes the presets from the source's sequences; `floor` is what the target's may not fall
    /// behind.
    pub(crate) fn of(seen: Vec<Sequence>, floor: Vec<SequenceValue>) -> Presets {
        let values = above(&seen, &floor);
        Presets {
            seen,
            floor,
            values,
        }
    }

    /// The names of the sequences, in the order of their values.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|value| value.name.as_str())
    }

    /// What has to be set again, given the source's values behind the fence: sequences that have
    /// passed their presets, or were set back. The two sequences of an ID clock count together:
    /// their sum is the clock.
    pub(crate) fn anew(&self, now: &[SequenceValue]) -> Vec<SequenceValue> {
        let clock = |values: &mut dyn Iterator<Item = &SequenceValue>| clock_of(values);
        let (seen, at) = (
            clock(&mut self.seen.iter().map(|one| &one.value)),
            clock(&mut now.iter()),
        );
        let clock_fits = (seen..=clock(&mut self.values.iter())).contains(&at);
        let outdated = self.seen.iter().filter_map(|one| {
            let now = now.iter().find(|value| value.name == one.value.name)?;
            let set = self
                .values
                .iter()
                .find(|value| value.name == one.value.name)?;
            let fits = if is_clock(&now.name) {
                clock_fits
            } else if one.cycles {
                *now == one.value
            } else {
                (one.place(&one.value)..=one.place(set)).contains(&one.place(now))
            };
            (!fits).then(|| Sequence {
                value: now.clone(),
                ..one.clone()
            })
        });
        above(&outdated.collect::<Vec<_>>(), &self.floor)
    }
}

/// Where the target's sequences begin; none begins before what it has handed out already.
fn above(seen: &[Sequence], floor: &[SequenceValue]) -> Vec<SequenceValue> {
    let mut values: Vec<SequenceValue> = Vec::with_capacity(seen.len());
    for one in seen {
        let preset = one.preset();
        let own = floor
            .iter()
            .find(|own| own.name == preset.name && !one.cycles && !is_clock(&own.name));
        let own = own.filter(|own| one.place(own) > one.place(&preset));
        values.push(own.cloned().unwrap_or(preset));
    }
    let behind = clock_of(&mut floor.iter()) - clock_of(&mut values.iter());
    if behind > 0
        && let Some(clock) = values.iter_mut().find(|value| value.name == CLOCK)
    {
        clock.last_value = clock
            .last_value
            .saturating_add(i64::try_from(behind).unwrap_or(i64::MAX));
    }
    values
}

/// What an ID clock shows, in its units of 1/1024 ms.
fn clock_of(values: &mut dyn Iterator<Item = &SequenceValue>) -> i128 {
    values
        .filter(|value| is_clock(&value.name))
        .map(|value| i128::from(value.last_value))
        .sum()
}

fn is_clock(name: &str) -> bool {
    name == CLOCK || name == "id_ticket"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(name: &str, last_value: i64, is_called: bool) -> SequenceValue {
        SequenceValue {
            name: name.to_owned(),
            last_value,
            is_called,
        }
    }

    fn sequence(increment: i64, (min, max): (i64, i64), last_value: i64) -> Sequence {
        let value = value("s", last_value, true);
        Sequence {
            value,
            increment,
            min,
            max,
            cache: 1,
            cycles: false,
        }
    }

    const BIGINT: (i64, i64) = (1, i64::MAX);
    const SMALLINT: (i64, i64) = (1, 32_767);

    #[test]
    fn a_sequence_is_set_ahead_by_a_part_of_what_is_left() {
        let preset = |one: Sequence| (one.preset().last_value, one.preset().is_called);
        assert_eq!(preset(sequence(1, BIGINT, 5)), (10_005, true));
        assert_eq!(preset(sequence(7, BIGINT, 5)), (70_005, true));
        assert_eq!(preset(sequence(1, SMALLINT, 23_000)), (23_097, true));
        assert_eq!(preset(sequence(1, SMALLINT, 32_700)), (32_700, true));
        assert_eq!(preset(sequence(1, SMALLINT, 32_767)), (32_767, true));
        assert_eq!(preset(sequence(1, (1, 100), 50)), (50, true));
        assert_eq!(preset(sequence(7, (1, 100), 99)), (99, true));
        assert_eq!(preset(sequence(-1, (-i64::MAX, -1), -5)), (-10_005, true));
        assert_eq!(
            preset(sequence(-3, (-32_768, -1), -32_000)),
            (-32_006, true)
        );
        assert_eq!(
            preset(sequence(1, (i64::MIN, i64::MAX), i64::MIN)),
            (i64::MIN + 10_000, true)
        );
        assert_eq!(preset(sequence(i64::MAX, BIGINT, 1)), (1, true));
        let caching = Sequence {
            cache: 5_000,
            ..sequence(1, BIGINT, 5)
        };
        assert_eq!(preset(caching), (50_005, true));
    }

    #[test]
    fn what_was_never_handed_out_is_the_first_to_come() {
        let fresh = |one: Sequence| Sequence {
            value: value("s", one.value.last_value, false),
            ..one
        };
        assert_eq!(
            fresh(sequence(1, BIGINT, 42)).preset(),
            value("s", 10_041, true)
        );
        assert_eq!(
            fresh(sequence(1, (1, 100), 42)).preset(),
            value("s", 42, false)
        );
        assert_eq!(
            (
                fresh(sequence(1, (1, 100), 100)).values_left(),
                sequence(1, (1, 100), 100).values_left()
            ),
            (1, 0)
        );
        let last = fresh(sequence(1, (1, 100), 100));
        assert_eq!(
            (last.place(&last.value), last.place(&value("s", 99, true))),
            (99, 99)
        );
    }

    #[test]
    fn a_sequence_that_cycles_goes_on_at_its_other_end() {
        let round = |one: Sequence| {
            Sequence {
                cycles: true,
                ..one
            }
            .preset()
            .last_value
        };
        assert_eq!(round(sequence(1, (1, 100_000), 5)), 1_004);
        assert_eq!(round(sequence(1, (1, 100_000), 99_500)), 499);
        assert_eq!(round(sequence(-1, (-100_000, -1), -99_500)), -499);
        assert_eq!(
            round(sequence(1, (i64::MIN, i64::MAX), i64::MAX)),
            i64::MIN + 9_999
        );
        // 3, 10, … 94, 1, 8, …
        assert_eq!(
            Sequence {
                cycles: true,
                ..sequence(7, (1, 100), 87)
            }
            .after(3)
            .last_value,
            8
        );
        assert_eq!(round(sequence(1, (1, 5), 3)), 3);
    }

    #[test]
    fn behind_the_fence_what_is_not_between_look_and_preset_is_set_anew() {
        let anew =
            |one: Sequence, now: SequenceValue| Presets::of(vec![one], Vec::new()).anew(&[now]);
        let (up, down) = (sequence(1, BIGINT, 10), sequence(-1, (-i64::MAX, -1), -10));
        for (one, at) in [
            (&up, 10),
            (&up, 11),
            (&up, 10_010),
            (&down, -10),
            (&down, -10_010),
        ] {
            assert_eq!(anew(one.clone(), value("s", at, true)), []);
        }
        assert_eq!(
            anew(up.clone(), value("s", 10_011, true)),
            [value("s", 20_011, true)]
        );
        assert_eq!(
            anew(down, value("s", -10_011, true)),
            [value("s", -20_011, true)]
        );
        // The sequence was set back or restarted.
        assert_eq!(
            anew(up.clone(), value("s", 9, true)),
            [value("s", 10_009, true)]
        );
        assert_eq!(anew(up, value("s", 1, false)), [value("s", 10_000, true)]);
        // A short sequence is not set ahead: every further value has to be carried.
        let short = sequence(1, (1, 100), 50);
        assert_eq!(anew(short.clone(), value("s", 50, true)), []);
        assert_eq!(anew(short, value("s", 51, true)), [value("s", 51, true)]);
        let round = Sequence {
            cycles: true,
            ..sequence(1, (1, 5), 4)
        };
        assert_eq!(anew(round, value("s", 1, true)), [value("s", 1, true)]);
    }

    #[test]
    fn an_old_copy_does_not_fall_behind_what_it_has_handed_out() {
        let short = sequence(1, (1, 100), 50);
        let presets = |floor| Presets::of(vec![short.clone()], vec![value("s", floor, true)]);
        assert_eq!(
            (presets(49).values, presets(53).values),
            (vec![value("s", 50, true)], vec![value("s", 53, true)])
        );
        assert_eq!(presets(53).anew(&[value("s", 52, true)]), []);
        assert_eq!(
            presets(53).anew(&[value("s", 54, true)]),
            [value("s", 54, true)]
        );
    }

    #[test]
    fn an_id_clock_is_the_sum_of_its_two_sequences() {
        let named = |name, last_value| {
            let one = sequence(1, (0, i64::MAX), last_value);
            Sequence {
                value: value(name, last_value, true),
                ..one
            }
        };
        let seen = vec![named("id_offset", 100), named("id_ticket", 10)];
        let presets = Presets::of(seen.clone(), Vec::new());
        let (offset, ticket) = (100 + CLOCK_AHEAD, 10 + 10_000);
        assert_eq!(
            presets.values,
            [
                value("id_offset", offset, true),
                value("id_ticket", ticket, true)
            ]
        );
        let now = |offset, ticket| {
            [
                value("id_offset", offset, true),
                value("id_ticket", ticket, true),
            ]
        };
        assert_eq!(presets.anew(&now(offset + 10_000, 10)), []);
        let later = now(offset + 10_001, 10);
        assert_eq!(
            presets.anew(&later),
            now(offset + 10_001 + CLOCK_AHEAD, 10_010)
        );
        // The clock of an old copy never goes back.
        let floor = Presets::of(seen, now(offset, ticket + 7).to_vec());
        assert_eq!(floor.values, now(offset + 7, ticket));
    }
}
