//! What a backfill is: a statement with placeholders for a shard and a range of keys. Pure.

use std::fmt::Write as _;

use crate::pg::{Template, quote_literal};
use crate::schema::control::script::{forbidden, statements, unclosed};
use crate::schema::control::steps::checksum;
use crate::shard::ShardId;

const PLACES: [(&str, Place); 2] = [("{low}", Place::Low), ("{high}", Place::High)];

/// The longest name.
const NAME_MAX: usize = 63;

/// A statement that is run in every shard, over a table in ranges of its key.
///
/// `{low}` and `{high}` are the first and the last key of a range, both inclusive; `{shard}` is the
/// shard's schema, `{shard_id}` its number.
///
/// ```
/// use pgshard::schema::backfill::Backfill;
/// let sql = "UPDATE {shard}.photos SET caption = title
///     WHERE id BETWEEN {low} AND {high} AND caption IS NULL";
/// let backfill = Backfill::new("0001_captions", sql, "photos", None)?;
/// assert_eq!(backfill.table(), "photos");
/// # Ok::<(), pgshard::schema::backfill::BackfillMistake>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backfill {
    name: String,
    table: String,
    key: Option<String>,
    checksum: String,
    pieces: Vec<(Template, Option<Place>)>,
}

/// A placeholder in the statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Low,
    High,
}

/// Why a text is not a backfill.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackfillMistake {
    /// The name is empty, too long, or has other characters.
    #[error("{name:?} is no name for a backfill: use 1 to 63 of a-z A-Z 0-9 _ -")]
    Name {
        /// The name.
        name: String,
    },
    /// The name of the table or of the key is empty, or has a zero byte in it.
    #[error(
        "{name:?} is no name of a table or a column: give it without its schema and without quotes"
    )]
    Identifier {
        /// The name.
        name: String,
    },
    /// There is no statement, or there are several.
    #[error("it has {count} statements, and must have one: what is to be run over a range of keys")]
    Statements {
        /// How many.
        count: usize,
    },
    /// A placeholder is missing.
    #[error(
        "it never says {place}: the statement must name the shard's tables {{shard}}.photos, and \
            keep to the keys \
         BETWEEN {{low}} AND {{high}}"
    )]
    Lacks {
        /// `{shard}`, `{low}` or `{high}`.
        place: &'static str,
    },
    /// The statement cannot run in a transaction, or has a text or comment without an end.
    #[error("line {line}: {why}")]
    Forbidden {
        /// Where it begins, from 1.
        line: usize,
        /// Why not.
        why: &'static str,
    },
}

impl Backfill {
    /// A backfill from its name, its statement, the table with the keys that make the ranges, and
    /// the column of the key; without one, the first column of the primary key.
    ///
    /// # Errors
    /// When the text is not a single statement over a range of keys in a shard.
    pub fn new(
        name: &str,
        sql: &str,
        table: &str,
        key: Option<&str>,
    ) -> Result<Backfill, BackfillMistake> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(is_plain) {
            return Err(BackfillMistake::Name {
                name: name.to_owned(),
            });
        }
        if let Some(wrong) = [Some(table), key]
            .into_iter()
            .flatten()
            .find(|name| name.is_empty() || name.contains('\0'))
        {
            return Err(BackfillMistake::Identifier {
                name: wrong.to_owned(),
            });
        }
        let sql = sql.strip_prefix('\u{feff}').unwrap_or(sql);
        if let Some(found) = unclosed(sql) {
            return Err(BackfillMistake::Forbidden {
                line: found.line,
                why: found.why,
            });
        }
        let found = statements(sql);
        let [statement] = found.as_slice() else {
            return Err(BackfillMistake::Statements { count: found.len() });
        };
        if let Some(why) = forbidden(statement) {
            return Err(BackfillMistake::Forbidden {
                line: statement.line,
                why,
            });
        }
        // Without the comments before and after it, which may contain placeholders too.
        let statement = &sql[statement.at.clone()];
        if !Template::new(statement).names_schema() {
            return Err(BackfillMistake::Lacks { place: "{shard}" });
        }
        if let Some(place) = ["{low}", "{high}"]
            .into_iter()
            .find(|place| !statement.contains(place))
        {
            return Err(BackfillMistake::Lacks { place });
        }
        let checksum = checksum(&format!(
            "{statement}\0{table}\0{}",
            key.unwrap_or_default()
        ));
        let (name, table, key) = (name.to_owned(), table.to_owned(), key.map(str::to_owned));
        Ok(Backfill {
            name,
            table,
            key,
            checksum,
            pieces: pieces(statement),
        })
    }

    /// The name under which the shards record its progress.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The table with the keys that make the ranges.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// The column of the key; `None`: the first column of the primary key.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// SHA-256 of the statement, the table and the key, in hexadecimal.
    pub fn checksum(&self) -> &str {
        &self.checksum
    }

    /// The statement over a range of keys of this type.
    pub(super) fn render(
        &self,
        (schema, shard): (&str, ShardId),
        kind: &str,
        low: &str,
        high: &str,
    ) -> String {
        let mut sql = String::new();
        for (piece, place) in &self.pieces {
            sql.push_str(&piece.render_shard(schema, shard));
            let _ = match place {
                Some(Place::Low) => write!(sql, "{}::{kind}", quote_literal(low)),
                Some(Place::High) => write!(sql, "{}::{kind}", quote_literal(high)),
                None => Ok(()),
            };
        }
        sql
    }
}

fn pieces(sql: &str) -> Vec<(Template, Option<Place>)> {
    let mut pieces = Vec::new();
    let mut rest = sql;
    while let Some((at, word, place)) = PLACES
        .iter()
        .filter_map(|(word, place)| Some((rest.find(word)?, word, *place)))
        .min_by_key(|(at, ..)| *at)
    {
        pieces.push((Template::new(&rest[..at]), Some(place)));
        rest = &rest[at + word.len()..];
    }
    pieces.push((Template::new(rest), None));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    const SQL: &str =
        "UPDATE {shard}.p SET a = '{}', s = {shard_id} WHERE id BETWEEN {low} AND {high}";

    #[test]
    fn places_are_filled() {
        let backfill =
            Backfill::new("a", &format!("-- {{low}}\n{SQL};\n-- {{high}}"), "p", None).unwrap();
        assert_eq!(
            backfill.render(
                ("shard_0007", ShardId::new(7).unwrap()),
                "bigint",
                "-3",
                "it's"
            ),
            "UPDATE shard_0007.p SET a = '{}', s = 7 WHERE id BETWEEN '-3'::bigint AND \
                'it''s'::bigint"
        );
        assert_eq!(
            backfill.checksum(),
            Backfill::new("b", SQL, "p", None).unwrap().checksum()
        );
        assert_ne!(
            backfill.checksum(),
            Backfill::new("a", SQL, "q", None).unwrap().checksum()
        );
        assert_ne!(
            backfill.checksum(),
            Backfill::new("a", SQL, "p", Some("id")).unwrap().checksum()
        );
    }

    #[test]
    fn what_is_no_backfill() {
        let said = |name: &str, sql: &str, table: &str| {
            Backfill::new(name, sql, table, None)
                .unwrap_err()
                .to_string()
        };
        assert!(said("a b", SQL, "p").starts_with("\"a b\" is no name for a backfill"));
        assert!(said("a", SQL, "").contains("no name of a table"));
        assert!(said("a", "", "p").starts_with("it has 0 statements"));
        assert!(said("a", &format!("{SQL}; SELECT 1"), "p").starts_with("it has 2 statements"));
        assert!(said("a", &SQL.replace("{shard}", "s"), "p").starts_with("it never says {shard}"));
        assert!(said("a", &SQL.replace("{low}", "1"), "p").starts_with("it never says {low}"));
        assert!(
            said(
                "a",
                "-- {high}\nUPDATE {shard}.p SET a = 1 WHERE id > {low}",
                "p"
            )
            .contains("{high}")
        );
        assert!(
            said("a", "VACUUM {shard}.p", "p")
                .starts_with("line 1: cannot run inside a transaction")
        );
        assert!(
            said("a", &format!("{SQL}\n/* open"), "p")
                .starts_with("line 2: opens a comment that is never")
        );
        assert!(said("a", "COMMIT", "p").contains("controls the transaction"));
    }
}
