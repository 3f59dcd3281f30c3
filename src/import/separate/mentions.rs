//! The tables that the body of a function names, as far as its text shows it. Pure.
//!
//! Texts of statements that a body makes at run time cannot be known.

/// A name in a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mention {
    /// The name before the dot.
    pub(super) schema: Option<String>,
    pub(super) name: String,
    /// Whether the word before shows that it is a table.
    is_table: bool,
}

impl Mention {
    /// Whether it is this table, with its schema.
    pub(super) fn is_with_schema(&self, schema: &str, table: &str) -> bool {
        self.schema.as_deref() == Some(schema) && self.name == table
    }

    /// Whether it is this table, in a statement.
    pub(super) fn is_of(&self, schema: &str, table: &str) -> bool {
        self.is_with_schema(schema, table)
            || (self.schema.is_none() && self.is_table && self.name == table)
    }
}

/// The words that a table follows.
const BEFORE: [&str; 8] = [
    "from", "join", "into", "update", "only", "using", "table", "truncate",
];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Quoted(String),
    Dot,
    Other,
}

impl Token {
    fn name(&self) -> Option<&str> {
        match self {
            Token::Word(name) | Token::Quoted(name) => Some(name),
            _ => None,
        }
    }
}

/// The names in a text.
pub(super) fn find(text: &str) -> Vec<Mention> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| tokens.get(at));
        let (Some(name), false) = (token.name(), before == Some(&Token::Dot)) else {
            continue;
        };
        let is_table = match before {
            Some(Token::Word(word)) => BEFORE.contains(&word.as_str()),
            _ => false,
        };
        let after = (tokens.get(at + 1) == Some(&Token::Dot)).then(|| tokens.get(at + 2));
        found.push(match after.flatten().and_then(Token::name) {
            Some(inner) => Mention {
                schema: Some(name.to_owned()),
                name: inner.to_owned(),
                is_table,
            },
            None => Mention {
                schema: None,
                name: name.to_owned(),
                is_table,
            },
        });
    }
    found
}

/// The tokens of a text; what is in a literal counts, as it may be a statement.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let is_word = |c: char| c == '_' || c == '$' || c.is_alphanumeric();
        let end = if rest.starts_with("--") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if c == '"' {
            let end = rest[1..].find('"').map_or(rest.len(), |end| end + 2);
            tokens.push(Token::Quoted(rest[1..end].trim_end_matches('"').to_owned()));
            end
        } else if c == '_' || c.is_alphanumeric() {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            tokens.push(Token::Word(rest[..end].to_lowercase()));
            end
        } else {
            match c {
                '.' => tokens.push(Token::Dot),
                c if c.is_whitespace() => {}
                _ => tokens.push(Token::Other),
            }
            c.len_utf8()
        };
        rest = &rest[end..];
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_found_where_a_statement_names_them() {
        let names = |text: &str| find(text).iter().any(|one| one.is_of("public", "photos"));
        for text in [
            "INSERT INTO Photos (id)",
            "select 1 from photos p",
            "DELETE FROM ONLY \"photos\"",
            "EXECUTE 'UPDATE public.photos SET a = 1'",
            "x := \"public\" . \"photos\".id",
        ] {
            assert!(names(text), "{text}");
        }
        for text in [
            "-- FROM photos\nSELECT 1",
            "/* FROM photos */ SELECT photos FROM albums",
            "UPDATE albums SET photos = photos + 1",
            "FROM other.photos",
            "FROM \"Photos\"",
            "FROM photos_old",
        ] {
            assert!(!names(text), "{text}");
        }
    }
}
