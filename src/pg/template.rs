//! SQL with the place of the shard's schema left open: `SELECT * FROM {shard}.photos`.

use std::borrow::Cow;

use super::quote::quote_ident;
use crate::shard::ShardId;

/// The placeholders, each before those that it contains.
const PLACES: [(&str, Place); 4] = [
    ("{{shard}}", Place::Text("{shard}")),
    ("{{shard_id}}", Place::Text("{shard_id}")),
    ("{shard}", Place::Schema),
    ("{shard_id}", Place::Number),
];

/// The value of a placeholder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The name of the shard's schema.
    Schema,
    /// The shard's number.
    Number,
    /// This text itself.
    Text(&'static str),
}

/// SQL in which `{shard}` is replaced by a shard's schema, and `{shard_id}` by its number. Parsed
/// once, rendered for any number of shards.
///
/// `{shard}` is replaced everywhere, in string literals too, by the schema's name. The name is not
/// quoted if PostgreSQL reads it as the same name without quotes, as that of every shard, so that
/// it means the schema in a literal too: `schemaname = '{shard}'`, `'{shard}.photos'::regclass`.
/// Any other name is quoted, in literals too. `{{shard}}` is the text `{shard}` itself,
/// `{{shard_id}}` the text `{shard_id}`. Every other brace is the SQL's own (`'{"a": 1}'::jsonb`,
/// `'{1,2}'::int[]`).
///
/// ```
/// use pgshard::{ShardId, pg::Template};
/// let shard = ShardId::new(7).unwrap();
/// let template = Template::new("SELECT '{}'::jsonb, {shard_id} FROM {shard}.photos");
/// assert_eq!(
///     template.render_shard("shard_0007", shard),
///     "SELECT '{}'::jsonb, 7 FROM shard_0007.photos",
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// The text before each placeholder, and its value.
    pieces: Vec<(String, Place)>,
    /// The text behind the last one.
    end: String,
}

impl Template {
    /// Reads the SQL. Any text is a template; one without a place renders as it is.
    pub fn new(sql: &str) -> Template {
        let mut pieces = Vec::new();
        let mut piece = String::new();
        let mut rest = sql;
        while let Some(at) = rest.find('{') {
            piece.push_str(&rest[..at]);
            rest = &rest[at..];
            let place = PLACES.iter().find(|(text, _)| rest.starts_with(text));
            match place {
                Some((text, place)) => {
                    pieces.push((std::mem::take(&mut piece), *place));
                    rest = &rest[text.len()..];
                }
                None => {
                    piece.push('{');
                    rest = &rest[1..];
                }
            }
        }
        piece.push_str(rest);
        Template { pieces, end: piece }
    }

    /// Whether the SQL names the shard at all, by its schema or by its number.
    pub fn names_shard(&self) -> bool {
        self.has(Place::Schema) || self.has(Place::Number)
    }

    /// Whether the SQL names the shard's schema.
    pub fn names_schema(&self) -> bool {
        self.has(Place::Schema)
    }

    /// Whether the SQL names the shard's number.
    pub(crate) fn names_number(&self) -> bool {
        self.has(Place::Number)
    }

    fn has(&self, place: Place) -> bool {
        self.pieces.iter().any(|(_, its)| *its == place)
    }

    /// The SQL for this shard. `schema` is the name of its schema, not quoted yet.
    pub fn render_shard(&self, schema: &str, shard: ShardId) -> String {
        self.rendered(schema, Some(shard))
    }

    /// The same where no number is known: `{shard_id}` and `{{shard_id}}` stay as they are.
    pub fn render(&self, schema: &str) -> String {
        self.rendered(schema, None)
    }

    fn rendered(&self, schema: &str, shard: Option<ShardId>) -> String {
        let name = match is_plain(schema) {
            true => Cow::Borrowed(schema),
            false => Cow::Owned(quote_ident(schema)),
        };
        let number = shard.map(|shard| shard.to_string());
        let length = self
            .pieces
            .iter()
            .map(|(piece, _)| piece.len() + name.len());
        let mut sql = String::with_capacity(length.sum::<usize>() + self.end.len());
        for (piece, place) in &self.pieces {
            sql.push_str(piece);
            sql.push_str(match (place, &number) {
                (Place::Schema, _) => &name,
                (Place::Number, Some(number)) => number,
                (Place::Number, None) => "{shard_id}",
                (Place::Text("{shard_id}"), None) => "{{shard_id}}",
                (Place::Text(text), _) => text,
            });
        }
        sql.push_str(&self.end);
        sql
    }
}

/// Whether the name means the same without quotes. No keyword has a digit in it.
fn is_plain(name: &str) -> bool {
    let is_digit = |b: u8| b.is_ascii_digit();
    name.bytes()
        .all(|b| b.is_ascii_lowercase() || b == b'_' || is_digit(b))
        && name.bytes().any(is_digit)
        && !name.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn places_literals_and_other_braces() {
        for (sql, rendered) in [
            ("SELECT 1", "SELECT 1"),
            ("", ""),
            ("{shard}", r#""s""#),
            ("FROM {shard}.a JOIN {shard}.b", r#"FROM "s".a JOIN "s".b"#),
            (
                "SELECT '{{shard}}', {shard}.f()",
                r#"SELECT '{shard}', "s".f()"#,
            ),
            (
                "SELECT '{shrad}', '{Shard}', '{ shard }'",
                "SELECT '{shrad}', '{Shard}', '{ shard }'",
            ),
            (r#"'{"a": {"b": 1}}'::jsonb"#, r#"'{"a": {"b": 1}}'::jsonb"#),
            ("{{{shard}}}", "{{shard}}"),
            ("{shard", "{shard"),
            ("{{shard}", r#"{"s""#),
            ("'ü{shard}ü{'", "'ü\"s\"ü{'"),
        ] {
            assert_eq!(Template::new(sql).render("s"), rendered, "{sql}");
        }
        assert_eq!(
            Template::new("{shard}.t").render("we\"ird"),
            r#""we""ird".t"#
        );
        assert!(!Template::new("{{shard}}").names_shard());
    }

    #[test]
    fn the_number_stands_wherever_it_is_named() {
        let shard = ShardId::new(7).unwrap();
        let rendered = |sql: &str| Template::new(sql).render_shard("shard_0007", shard);
        assert_eq!(
            rendered("CHECK (user_id % 4096 = {shard_id}), '{{shard_id}}', '{{shard}}'"),
            "CHECK (user_id % 4096 = 7), '{shard_id}', '{shard}'"
        );
        let only = Template::new("SELECT {shard_id}");
        assert!(only.names_shard() && !only.names_schema());
        assert_eq!(only.render(""), "SELECT {shard_id}");
        assert!(!Template::new("'{{shard_id}}'").names_shard());
    }

    #[test]
    fn quotes_stand_only_where_they_must() {
        for plain in ["shard_0007", "s1", "_1", "app1_0000"] {
            assert_eq!(
                Template::new("'{shard}' {shard}.t").render(plain),
                format!("'{plain}' {plain}.t")
            );
        }
        for other in ["user", "s", "1s", "S1", "s1$", "s-1", "s 1", "é1", ""] {
            assert_eq!(
                Template::new("{shard}.t").render(other),
                format!("\"{other}\".t")
            );
        }
    }

    proptest! {
        #[test]
        fn text_without_the_word_is_left_alone(sql in "[^s]*") {
            prop_assert_eq!(Template::new(&sql).render("x"), sql);
        }

        #[test]
        fn pieces_come_back_around_the_schema(
            pieces in prop::collection::vec("[a-z '{}\\[\"]{0,6}", 1..6),
        ) {
            // Pieces that would form a place where they meet are left out.
            let is_whole = |piece: &String| !piece.contains("shard") && !piece.ends_with('{');
            prop_assume!(pieces.iter().all(is_whole));
            let rendered = Template::new(&pieces.join("{shard}")).render("x");
            prop_assert_eq!(rendered, pieces.join("\"x\""));
        }
    }
}
