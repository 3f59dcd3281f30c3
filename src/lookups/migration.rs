//! The migrations that make a look-up's tables and its trigger in every shard, and change what the
//! trigger does.
//!
//! They are ordinary shard migrations, so new shards get them at bootstrap, and moves, `check` and
//! `dump` know what they make. Invariant: a text is the same for the same definition.

use crate::pg::{quote_ident, quote_literal};
use crate::values::{Definition, Fold};

const CREATE: &str = include_str!("../../migrations/lookup/lookup.sql");
const ENFORCE: &str = include_str!("../../migrations/lookup/enforce.sql");
const RECORD: &str = include_str!("../../migrations/lookup/record.sql");

/// What a migration of a look-up does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Creates the tables and a trigger that refuses unclaimed values. For a table that no
    /// application writes yet.
    #[default]
    Create,
    /// Creates the tables and a trigger that records unclaimed values.
    CreateRecording,
    /// From then on the trigger refuses unclaimed values. Fails where not every row has its entry.
    Enforce,
    /// From then on the trigger records unclaimed values. Fails where the look-up answers `find`.
    Record,
}

impl Step {
    fn template(self) -> &'static str {
        match self {
            Step::Create | Step::CreateRecording => CREATE,
            Step::Enforce => ENFORCE,
            Step::Record => RECORD,
        }
    }
}

/// A shard migration of a look-up: a text with `{shard}`, for the folder of migrations.
///
/// The first one fails, and leaves the shard as it was, where the table or a column is missing or
/// of another type, or where no unique index over the columns exists (with folding it creates one).
pub fn migration(definition: &Definition, step: Step) -> String {
    let mode = match step {
        Step::CreateRecording => "recording",
        _ => "enforcing",
    };
    let texts: Vec<String> = definition
        .columns
        .iter()
        .map(|name| quote_literal(name))
        .collect();
    let table = quote_ident(&definition.table);
    let function = quote_ident(&format!("pgshard_lookup_{}", definition.name));
    let columns: Vec<String> = definition
        .columns
        .iter()
        .map(|name| quote_ident(name))
        .collect();
    let mut same: Vec<String> = columns
        .iter()
        .map(|name| format!("NEW.{name} IS NOT DISTINCT FROM OLD.{name}"))
        .collect();
    let key = quote_ident(&definition.key);
    same.push(format!("NEW.{key} IS NOT DISTINCT FROM OLD.{key}"));
    let (index, unique, only_texts) = match definition.fold {
        Fold::None => (String::new(), unique_check(definition), ""),
        Fold::Ascii => {
            let folded: Vec<String> = (0..columns.len())
                .map(|at| definition.folded_sql(at))
                .collect();
            let index = format!(
                "\n-- Locks: SHARE on the table, while the index is built.\nCREATE UNIQUE INDEX \
                {function} ON \
                    {{shard}}.{table} ({});\n",
                folded.join(", ")
            );
            (index, String::new(), "OR 'text' <> ANY (kinds) ")
        }
    };
    let places = [
        ("index", index),
        ("unique", unique),
        ("only_texts", only_texts.to_owned()),
        ("hash", definition.hash_sql("NEW")),
        ("texts", definition.texts_sql("NEW")),
        ("mode_text", quote_literal(mode)),
        ("as_before", same.join(" AND ")),
        ("function", function),
        ("name", definition.name.clone()),
        ("name_text", definition.name_literal()),
        ("about", definition.to_text().replace('\n', " ")),
        ("definition_text", quote_literal(&definition.to_text())),
        ("table_text", quote_literal(&format!("{{shard}}.{table}"))),
        ("table", table),
        (
            "columns_about",
            quote_literal(&definition.columns.join(", ")),
        ),
        ("columns_text", format!("ARRAY[{}]", texts.join(", "))),
        ("key_text", quote_literal(&definition.key)),
        ("key", key),
    ];
    // Every second part is the name of a place. What is put in is not read again: a column may
    // have an `@` in its name.
    let mut sql = String::new();
    for (at, part) in step.template().split('@').enumerate() {
        match places
            .iter()
            .find(|(place, _)| at % 2 == 1 && *place == part)
        {
            Some((_, text)) => sql.push_str(text),
            None => sql.push_str(part),
        }
    }
    sql
}

/// Without folding, the table has its unique index already: that is what its own code knows.
fn unique_check(definition: &Definition) -> String {
    format!(
        "IF NOT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = target AND \
        i.indisunique
        AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
        AND (SELECT pg_catalog.array_agg(k.attnum ORDER BY k.attnum)
            FROM pg_catalog.unnest(i.indkey) WITH ORDINALITY AS k(attnum, place) WHERE k.place \
            <= i.indnkeyatts)
            = (SELECT pg_catalog.array_agg(c.attnum ORDER BY c.attnum) FROM \
            pg_catalog.unnest(columns) AS c(attnum)))
    THEN
        RAISE EXCEPTION 'the look-up {name} wants a unique index over these columns of %: %', \
        target, wanted
            USING HINT = 'Create it by an earlier migration.';
    END IF;",
        name = definition.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_filled() {
        for fold in Fold::ALL {
            let emails = Definition::new("emails", "users", ["email"], "id").fold(fold);
            for step in [
                Step::Create,
                Step::CreateRecording,
                Step::Enforce,
                Step::Record,
            ] {
                let sql = migration(&emails, step);
                let places = [
                    "emails",
                    "\"email\"",
                    "\"users\"",
                    "\"pgshard_lookup_emails\"",
                ];
                assert!(places.iter().all(|place| sql.contains(place)), "{sql}");
                assert!(!sql.contains('@'), "{sql}");
                let names: Vec<&str> = step.template().split('@').skip(1).step_by(2).collect();
                assert!(
                    names.iter().all(|name| !name.contains([' ', '\n'])),
                    "{names:?}"
                );
            }
        }
    }
}
