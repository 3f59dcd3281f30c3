//! The migration that makes a look-up's tables and its trigger in every shard.
//!
//! It is an ordinary shard migration, so new shards get it at bootstrap, and moves, `check` and
//! `dump` know what it makes. Invariant: its text is the same for the same definition.

use crate::pg::{quote_ident, quote_literal};
use crate::values::{Definition, Fold};

const TEMPLATE: &str = include_str!("../../migrations/lookup/lookup.sql");

/// The shard migration of a look-up: a text with `{shard}`, for the folder of migrations.
///
/// It fails, and leaves the shard as it was, where the table or a column is missing or of another
/// type, or where no unique index over the columns exists (with folding it creates one).
pub fn migration(definition: &Definition) -> String {
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
            let folded: Vec<String> = columns
                .iter()
                .map(|name| format!("pg_catalog.lower({name} COLLATE \"C\")"))
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
    for (at, part) in TEMPLATE.split('@').enumerate() {
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
            let sql = migration(&emails);
            let places = ["emails", "\"email\"", "\"users\"", "\"id\"", "SH003"];
            assert!(places.iter().all(|place| sql.contains(place)), "{sql}");
            assert!(!sql.contains('@'), "{sql}");
            assert!(
                TEMPLATE
                    .split('@')
                    .skip(1)
                    .step_by(2)
                    .all(|place| !place.contains([' ', '\n']))
            );
        }
    }
}
