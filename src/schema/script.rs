//! Enough of SQL's lexis to find the statements of a script: strings, quoted names, dollar quotes, comments.
//!
//! Pure. What may not break: a word inside a string, a comment or a function's body is no statement.

/// A statement of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Statement {
    /// The line it begins on, from 1.
    pub(super) line: usize,
    /// Its first words outside strings and comments, upper-case, at most [`WORDS_MAX`].
    pub(super) words: Vec<String>,
}

/// Enough for the columns of a `COPY t (a, b, …) FROM STDIN`.
const WORDS_MAX: usize = 64;

/// The statements of a script, empty ones left out.
pub(super) fn statements(sql: &str) -> Vec<Statement> {
    let mut list = Vec::new();
    let mut now: Option<Statement> = None;
    // BEGIN ATOMIC … END of an SQL function holds statements of its own; CASE … END nests in it.
    let mut depth = 0usize;
    let mut before = String::new();
    let mut at = 0;
    let mut line = 1;
    while at < sql.len() {
        let rest = &sql[at..];
        let first = rest.chars().next().unwrap_or_default();
        let (length, word) = match first {
            _ if rest.starts_with("--") => (rest.find('\n').unwrap_or(rest.len()), None),
            _ if rest.starts_with("/*") => (comment(rest), None),
            '\'' => (quoted(rest, '\'', matches!(before.as_str(), "E")), Some("")),
            '"' => (quoted(rest, '"', false), Some("")),
            '$' if dollar_tag(rest).is_some() => {
                let tag = dollar_tag(rest).unwrap_or_default();
                let end = rest[tag.len()..].find(tag).map_or(rest.len(), |end| end + 2 * tag.len());
                (end, Some(""))
            }
            c if c.is_alphabetic() || c == '_' => {
                let length = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$')).unwrap_or(rest.len());
                (length, Some(&rest[..length]))
            }
            c => (c.len_utf8(), None),
        };
        if first == ';' && depth == 0 {
            list.extend(now.take());
        } else if word.is_some() || !(first.is_whitespace() || rest.starts_with("--") || rest.starts_with("/*")) {
            let statement = now.get_or_insert(Statement { line, words: Vec::new() });
            let word = word.unwrap_or_default().to_ascii_uppercase();
            if !word.is_empty() && statement.words.len() < WORDS_MAX {
                statement.words.push(word.clone());
            }
            match word.as_str() {
                "ATOMIC" if before == "BEGIN" => depth += 1,
                "CASE" if depth > 0 => depth += 1,
                "END" => depth = depth.saturating_sub(1),
                _ => {}
            }
            // E'…' only if nothing stands between; of everything else only the last word matters.
            before = word;
        } else if first.is_whitespace() && before == "E" {
            before.clear();
        }
        line += rest[..length].matches('\n').count();
        at += length;
    }
    list.extend(now);
    list
}

/// The length of a comment, which may hold others.
fn comment(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0usize);
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if rest.starts_with("*/") {
            (at, depth) = (at + 2, depth - 1);
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of a quoted text. A doubled mark reads as two texts side by side, which comes to the same.
fn quoted(text: &str, mark: char, escapes: bool) -> usize {
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        if c == '\\' && escapes {
            chars.next();
        } else if c == mark {
            return at + 1;
        }
    }
    text.len()
}

/// `$$` or `$body$` at the start of the text.
fn dollar_tag(text: &str) -> Option<&str> {
    let inside = text[1..].find('$')?;
    let tag = &text[1..1 + inside];
    let starts = !tag.starts_with(|c: char| c.is_ascii_digit());
    (starts && tag.chars().all(|c| c.is_alphanumeric() || c == '_')).then(|| &text[..inside + 2])
}

/// Why a statement cannot be part of a shard's migration, if it cannot.
pub(super) fn forbidden(statement: &Statement) -> Option<&'static str> {
    const TRANSACTION: &str =
        "controls the transaction; each shard's migrations run in one that pgshard begins and commits";
    let words: Vec<&str> = statement.words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["BEGIN" | "START" | "COMMIT" | "END" | "ROLLBACK" | "ABORT" | "SAVEPOINT" | "RELEASE", ..]
        | ["PREPARE", "TRANSACTION", ..] => Some(TRANSACTION),
        ["VACUUM" | "CLUSTER", ..]
        | ["ALTER", "SYSTEM", ..]
        | ["CREATE" | "DROP" | "ALTER", "DATABASE" | "TABLESPACE" | "SUBSCRIPTION", ..] => {
            Some("cannot run inside a transaction")
        }
        ["CREATE" | "DROP" | "REINDEX" | "REFRESH", more @ ..] if more.contains(&"CONCURRENTLY") => {
            Some("cannot run inside a transaction: leave CONCURRENTLY out")
        }
        ["COPY", more @ ..] if more.contains(&"STDIN") => Some("needs rows from the client: use INSERT"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn firsts(sql: &str) -> Vec<(usize, String)> {
        statements(sql).into_iter().map(|s| (s.line, s.words.into_iter().next().unwrap_or_default())).collect()
    }

    #[test]
    fn statements_and_their_lines() {
        let one = |line, word: &str| (line, word.to_owned());
        assert_eq!(firsts(""), []);
        assert_eq!(firsts(" ; -- nothing; at all\n /* a; /* b; */ c; */ ;"), []);
        assert_eq!(firsts("select 1;\n\nSELECT 2"), [one(1, "SELECT"), one(3, "SELECT")]);
        assert_eq!(firsts("a 'x; y'' z; '; b \"p;q\" ; c"), [one(1, "A"), one(1, "B"), one(1, "C")]);
        assert_eq!(firsts(r"a E'\'; x'; b"), [one(1, "A"), one(1, "B")]);
        assert_eq!(firsts(r"a '\'; b"), [one(1, "A"), one(1, "B")], "a backslash is no escape in a plain string");
        assert_eq!(firsts("do $$ begin; end; $$; do $x$ $$; $x$;\nend"), [one(1, "DO"), one(1, "DO"), one(2, "END")]);
        assert_eq!(
            firsts("create function f() begin atomic select case when 1 then 2 end; select 2; end; commit"),
            [one(1, "CREATE"), one(1, "COMMIT")]
        );
        assert_eq!(firsts("select $1; commit"), [one(1, "SELECT"), one(1, "COMMIT")]);
    }

    #[test]
    fn what_cannot_be_in_a_migration() {
        let bad = |sql: &str| statements(sql).iter().any(|s| forbidden(s).is_some());
        for sql in [
            "BEGIN",
            "-- x\ncommit;",
            "create table t(); rollback to s",
            "start transaction",
            "create unique index concurrently i on t (a)",
            "vacuum t",
            "copy t from stdin",
            "savepoint a",
            "prepare transaction 'x'",
        ] {
            assert!(bad(sql), "{sql}");
        }
        for sql in [
            "create table begin_log (commit text)",
            "create function f() returns void language plpgsql as $$ begin commit; end $$",
            "insert into t values ('; commit;')",
            "create index i on t (a)",
            "comment on table t is 'vacuum; begin'",
        ] {
            assert!(!bad(sql), "{sql}");
        }
    }

    proptest! {
        #[test]
        fn any_text_comes_to_an_end(sql in r#"[-/*'"$;aE\\ \nbé]{0,40}"#) {
            prop_assert!(statements(&sql).len() <= sql.len());
        }
    }
}
