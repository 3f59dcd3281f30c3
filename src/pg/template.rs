//! SQL with the place of the shard's schema left open: `SELECT * FROM {shard}.photos`.

use super::quote::quote_ident;

const SHARD: &str = "{shard}";
const LITERAL: &str = "{{shard}}";

/// SQL in which `{shard}` stands for a shard's schema. Read once, rendered for as many shards as
/// need be.
///
/// `{shard}` is replaced wherever it stands, in string literals too, by the schema's name. That
/// stands without quotes where PostgreSQL reads it as the same name without them, as every shard's,
/// so that it means the schema in a literal too: `schemaname = '{shard}'`,
/// `'{shard}.photos'::regclass`. Any other name has its quotes, there too. `{{shard}}` is the text
/// `{shard}` itself. Every other brace is the SQL's own (`'{"a": 1}'::jsonb`, `'{1,2}'::int[]`).
///
/// ```
/// use pgshard::pg::Template;
/// let template = Template::new("SELECT '{}'::jsonb, '{shard}' FROM {shard}.photos");
/// assert_eq!(template.render("shard_0007"), "SELECT '{}'::jsonb, 'shard_0007' FROM shard_0007.photos");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// What stands between the places: one piece more than there are places.
    pieces: Vec<String>,
}

impl Template {
    /// Reads the SQL. Any text is a template; one without `{shard}` renders as it is.
    pub fn new(sql: &str) -> Template {
        let mut pieces = Vec::new();
        let mut piece = String::new();
        let mut rest = sql;
        while let Some(at) = rest.find('{') {
            piece.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some(after) = rest.strip_prefix(LITERAL) {
                piece.push_str(SHARD);
                rest = after;
            } else if let Some(after) = rest.strip_prefix(SHARD) {
                pieces.push(std::mem::take(&mut piece));
                rest = after;
            } else {
                piece.push('{');
                rest = &rest[1..];
            }
        }
        piece.push_str(rest);
        pieces.push(piece);
        Template { pieces }
    }

    /// Whether the SQL names the shard at all.
    pub fn names_shard(&self) -> bool {
        self.pieces.len() > 1
    }

    /// The SQL for the shard with this schema, a name that is not quoted yet.
    pub fn render(&self, schema: &str) -> String {
        if is_plain(schema) {
            self.pieces.join(schema)
        } else {
            self.pieces.join(&quote_ident(schema))
        }
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
        fn pieces_come_back_around_the_schema(pieces in prop::collection::vec("[a-z '{}\\[\"]{0,6}", 1..6)) {
            // Pieces that would form a place where they meet are left out.
            prop_assume!(pieces.iter().all(|piece| !piece.contains("shard") && !piece.ends_with('{')));
            prop_assert_eq!(Template::new(&pieces.join("{shard}")).render("x"), pieces.join("\"x\""));
        }
    }
}
