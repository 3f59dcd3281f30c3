//! A `search_path` as PostgreSQL reads it, with a schema before another. Pure.

use crate::pg::quote_ident;

/// The former schema and the new one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schemas<'a> {
    pub(super) old: &'a str,
    pub(super) new: &'a str,
}

/// What a path needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// It does not lead to the former schema.
    Nothing,
    /// The new schema comes before the former one.
    Met,
    /// It has to be this.
    Path(Vec<String>),
}

/// The elements of a setting.
pub(super) fn parse(setting: &str) -> Vec<String> {
    let mut elements = Vec::new();
    let mut rest = setting.trim_start();
    while !rest.is_empty() {
        let mut element = String::new();
        if let Some(quoted) = rest.strip_prefix('"') {
            let mut end = quoted.len();
            let mut chars = quoted.char_indices().peekable();
            while let Some((at, c)) = chars.next() {
                if c != '"' {
                    element.push(c);
                } else if chars.next_if(|(_, next)| *next == '"').is_some() {
                    element.push('"');
                } else {
                    end = at + 1;
                    break;
                }
            }
            rest = &quoted[end..];
        } else {
            let end = rest.find(|c: char| c == ',' || c.is_ascii_whitespace());
            let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
            element = word.to_lowercase();
            rest = after;
        }
        elements.push(element);
        rest = rest.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    elements
}

/// The elements as SQL.
pub(super) fn sql(elements: &[String]) -> String {
    if elements.is_empty() {
        return "''".to_owned();
    }
    let quoted: Vec<String> = elements.iter().map(|one| quote_ident(one)).collect();
    quoted.join(", ")
}

/// What the path of a role needs; of no role, that of all without a path of their own.
pub(super) fn need(elements: &[String], schemas: Schemas<'_>, role: Option<&str>) -> Need {
    let leads = |element: &String, schema: &str| {
        element == schema || (element == "$user" && role == Some(schema))
    };
    let Some(at) = elements.iter().position(|one| leads(one, schemas.old)) else {
        return Need::Nothing;
    };
    let (before, after) = elements.split_at(at);
    if schemas.new == schemas.old || before.iter().any(|one| leads(one, schemas.new)) {
        return Need::Met;
    }
    let after = after.iter().filter(|one| *one != schemas.new);
    let new = schemas.new.to_owned();
    let path = before.iter().cloned().chain([new]).chain(after.cloned());
    Need::Path(path.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_as_postgres_reads_it() {
        for (setting, expected) in [
            (r#""$user", public"#, vec!["$user", "public"]),
            (r#"Public,"It""s, so" ,x"#, vec!["public", "It\"s, so", "x"]),
            ("", vec![]),
            (r#""""#, vec![""]),
        ] {
            assert_eq!(parse(setting), expected, "{setting}");
        }
        assert_eq!(sql(&parse(r#"a, "B""c""#)), r#""a", "B""c""#);
        assert_eq!(sql(&[]), "''");
    }

    #[test]
    fn the_new_schema_comes_before_the_former_one() {
        let schemas = Schemas {
            old: "public",
            new: "app",
        };
        let path = |setting, role| match need(&parse(setting), schemas, role) {
            Need::Path(path) => path.join(" "),
            need => format!("{need:?}"),
        };
        assert_eq!(path(r#""$user", public"#, None), "$user app public");
        assert_eq!(
            path(r#""$user", public"#, Some("public")),
            "app $user public"
        );
        assert_eq!(path("public, app", None), "app public");
        assert_eq!(path("app, public", None), "Met");
        assert_eq!(path(r#""$user", public"#, Some("app")), "Met");
        assert_eq!(path("other", None), "Nothing");
    }
}
