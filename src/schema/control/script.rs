//! Knows enough of SQL's lexical rules to find the statements of a script: strings, quoted names,
//! dollar quotes, comments.
//!
//! Pure. Invariant: a word inside a string, a comment or a function's body is not taken for a
//! statement.

/// A statement of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::schema) struct Statement {
    /// The line it begins on, from 1.
    pub(in crate::schema) line: usize,
    /// Its range in the script, in bytes, without its semicolon.
    pub(in crate::schema) at: std::ops::Range<usize>,
    /// Its first words outside strings and comments, upper-case, at most [`WORDS_MAX`].
    pub(in crate::schema) words: Vec<String>,
}

/// More than any statement has that is known by its words. For a COPY all are kept: its target is
/// behind its columns.
const WORDS_MAX: usize = 64;

/// A mark that opens something that the script does not close. The server would take what follows
/// for a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::schema) struct UnclosedMark {
    /// Its line, from 1.
    pub(in crate::schema) line: usize,
    /// The mark: `'`, `"`, `/*` or `$body$`.
    pub(in crate::schema) mark: String,
    /// What is wrong with it.
    pub(in crate::schema) why: &'static str,
}

/// The statements of a script, without empty ones.
pub(in crate::schema) fn statements(sql: &str) -> Vec<Statement> {
    read(sql).0
}

/// The text or comment that the script opens and does not close. The server reads a whole script
/// before it runs the first statement, so none of them changes what a backslash means in it.
pub(in crate::schema) fn unclosed(sql: &str) -> Option<UnclosedMark> {
    read(sql).1
}

/// The smallest parts of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind<'a> {
    /// Whitespace or a comment.
    Nothing,
    /// A keyword, or a name without quotes.
    Word(&'a str),
    /// A quoted text or name.
    Text,
    /// Any other character.
    Mark(char),
}

fn read(sql: &str) -> (Vec<Statement>, Option<UnclosedMark>) {
    let (mut list, mut unclosed) = (Vec::new(), None);
    let mut now: Option<Statement> = None;
    // BEGIN ATOMIC … END of an SQL function contains statements; CASE … END is nested in it.
    let mut depth = 0usize;
    let mut before = String::new();
    let (mut at, mut line) = (0, 1);
    while at < sql.len() {
        let rest = &sql[at..];
        let (length, kind) = token(rest, before == "E");
        if length.is_none() {
            unclosed = Some(opened(rest, line));
        }
        let length = length.unwrap_or(rest.len());
        match kind {
            // E'…' only if nothing is in between; in all other cases only the last part matters.
            Kind::Nothing if before == "E" => before.clear(),
            Kind::Nothing => {}
            Kind::Mark(';') if depth == 0 => {
                list.extend(now.take());
                before.clear();
            }
            _ => {
                let statement = now.get_or_insert(Statement {
                    line,
                    at: at..at,
                    words: Vec::new(),
                });
                statement.at.end = at + length;
                let part = match kind {
                    Kind::Word(word) => word.to_ascii_uppercase(),
                    Kind::Mark(mark) => mark.to_string(),
                    _ => String::new(),
                };
                if matches!(kind, Kind::Word(_)) {
                    let first = statement.words.first().map_or("", String::as_str);
                    depth = nested(depth, &part, &before, first);
                    if statement.words.len() < WORDS_MAX || first == "COPY" {
                        statement.words.push(part.clone());
                    }
                }
                before = part;
            }
        }
        line += rest[..length].matches('\n').count();
        at += length;
    }
    list.extend(now);
    (list, unclosed)
}

/// What the text begins with, and its length; without one, it has no end.
fn token(text: &str, escapes: bool) -> (Option<usize>, Kind<'_>) {
    let first = text.chars().next().unwrap_or_default();
    match first {
        _ if text.starts_with("--") => (Some(text.find('\n').unwrap_or(text.len())), Kind::Nothing),
        _ if text.starts_with("/*") => (comment(text), Kind::Nothing),
        '\'' => (quoted(text, '\'', escapes), Kind::Text),
        '"' => (quoted(text, '"', false), Kind::Text),
        '$' if dollar_tag(text).is_some() => {
            let tag = dollar_tag(text).unwrap_or_default();
            (
                text[tag.len()..].find(tag).map(|end| end + 2 * tag.len()),
                Kind::Text,
            )
        }
        c if c.is_alphabetic() || c == '_' => {
            let length = text
                .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$'))
                .unwrap_or(text.len());
            (Some(length), Kind::Word(&text[..length]))
        }
        c if c.is_whitespace() => (Some(c.len_utf8()), Kind::Nothing),
        c => (Some(c.len_utf8()), Kind::Mark(c)),
    }
}

/// What is opened at the beginning of a text and not closed in it.
fn opened(text: &str, line: usize) -> UnclosedMark {
    let (mark, why) = match text.as_bytes().first() {
        Some(b'/') => ("/*", "opens a comment that is never closed"),
        Some(b'"') => ("\"", "opens a name that is never closed"),
        Some(b'$') => (
            dollar_tag(text).unwrap_or_default(),
            "opens a text that is never closed",
        ),
        _ => ("'", "opens a text that is never closed"),
    };
    UnclosedMark {
        line,
        mark: mark.to_owned(),
        why,
    }
}

/// How deep a script is in BEGIN ATOMIC and CASE after this word, given the word before it and the
/// beginning of the statement.
fn nested(depth: usize, word: &str, before: &str, first: &str) -> usize {
    match word {
        "ATOMIC" if depth == 0 && before == "BEGIN" && first == "CREATE" => 1,
        _ if depth == 0 => 0,
        // `p.end` and `AS end` are names.
        "CASE" | "END" if matches!(before, "." | "AS") => depth,
        "CASE" => depth + 1,
        // The block's own END begins a statement; any other is the name that a column gets.
        "END" if depth == 1 && !matches!(before, ";" | "ATOMIC") => depth,
        "END" => depth - 1,
        _ => depth,
    }
}

/// The length of a comment, which may contain others.
fn comment(text: &str) -> Option<usize> {
    let (mut at, mut depth) = (0, 0usize);
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if rest.starts_with("*/") {
            (at, depth) = (at + 2, depth - 1);
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    None
}

/// The length of a quoted text. A doubled mark counts as two adjacent texts, which gives the same
/// result.
fn quoted(text: &str, mark: char, escapes: bool) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        if c == '\\' && escapes {
            chars.next();
        } else if c == mark {
            return Some(at + 1);
        }
    }
    None
}

/// `$$` or `$body$` at the start of the text.
fn dollar_tag(text: &str) -> Option<&str> {
    let inside = text[1..].find('$')?;
    let tag = &text[1..1 + inside];
    let starts = !tag.starts_with(|c: char| c.is_ascii_digit());
    (starts && tag.chars().all(|c| c.is_alphanumeric() || c == '_')).then(|| &text[..inside + 2])
}

/// Why a statement cannot be part of a shard's migration; `None` if it can.
pub(in crate::schema) fn forbidden(statement: &Statement) -> Option<&'static str> {
    const TRANSACTION: &str = "controls the transaction; each shard's migrations run in one that \
        pgshard begins and commits";
    let words: Vec<&str> = statement.words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [
            "BEGIN" | "START" | "COMMIT" | "END" | "ROLLBACK" | "ABORT" | "SAVEPOINT" | "RELEASE",
            ..,
        ]
        | ["PREPARE", "TRANSACTION", ..] => Some(TRANSACTION),
        ["VACUUM" | "REPACK", ..] => Some(
            "cannot run inside a transaction: put `-- pgshard: no-transaction` on the first line",
        ),
        ["CLUSTER", ..]
        | ["ALTER", "SYSTEM", ..]
        | [
            "CREATE" | "DROP" | "ALTER",
            "DATABASE" | "TABLESPACE" | "SUBSCRIPTION",
            ..,
        ] => Some("cannot run inside a transaction"),
        // Only in this position: elsewhere the word is a name, for example of a column.
        ["CREATE" | "DROP", "INDEX", "CONCURRENTLY", ..]
        | ["CREATE", "UNIQUE", "INDEX", "CONCURRENTLY", ..]
        | ["REFRESH", "MATERIALIZED", "VIEW", "CONCURRENTLY", ..] => Some(
            "cannot run inside a transaction: put `-- pgshard: no-transaction` on the first line",
        ),
        ["REINDEX", more @ ..] if more.contains(&"CONCURRENTLY") => Some(
            "cannot run inside a transaction, nor again where it was stopped: run it by hand \
                (`pgshard sql`)",
        ),
        ["ALTER", "TABLE", more @ .., "CONCURRENTLY"]
            if more.windows(2).any(|two| two == ["DETACH", "PARTITION"]) =>
        {
            Some(
                "cannot run inside a transaction, nor again where it was stopped: leave \
                    CONCURRENTLY out",
            )
        }
        // PostgreSQL accepts either word in either direction.
        ["COPY", more @ ..] => more.windows(2).find_map(|two| match two {
            ["FROM", "STDIN" | "STDOUT"] => Some("needs rows from the client: use INSERT"),
            ["TO", "STDIN" | "STDOUT"] => {
                Some("gives rows to the client, which drops them: leave it out")
            }
            _ => None,
        }),
        _ => None,
    }
}

/// The script with `guard` after each statement that may change what the guard sets, on the same
/// line, so that line numbers stay the same. There is none at the end. What a function or a DO
/// block sets within itself is ignored.
pub(in crate::schema) fn guarded(sql: &str, guard: &str) -> String {
    let small = sql.to_ascii_lowercase();
    if !["lock_timeout", "reset", "discard"]
        .iter()
        .any(|word| small.contains(word))
    {
        return sql.to_owned();
    }
    let mut text = String::with_capacity(sql.len());
    let mut from = 0;
    for pair in statements(sql).windows(2) {
        let [statement, next] = pair else { continue };
        let words: Vec<&str> = statement.words.iter().map(String::as_str).collect();
        match words.as_slice() {
            // From here on backslashes may be escapes, so that what looks like the end of a
            // statement may not be one.
            ["SET", more @ ..]
                if more.contains(&"STANDARD_CONFORMING_STRINGS") && !more.contains(&"ON") =>
            {
                break;
            }
            [
                "CREATE" | "ALTER" | "DROP" | "COMMENT" | "GRANT" | "REVOKE",
                ..,
            ] => {}
            _ => {
                text.push_str(&sql[from..next.at.start]);
                text.push_str(guard);
                from = next.at.start;
            }
        }
    }
    text.push_str(&sql[from..]);
    text
}

/// A statement that runs outside transactions and can be run again after it was stopped anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::schema) enum Repeatable {
    /// `CREATE INDEX CONCURRENTLY` of this name. If stopped, it leaves an invalid index, which is
    /// dropped first.
    Index(String),
    /// It does no harm a second time.
    Harmless,
}

/// How the statement of a `-- pgshard: no-transaction` file can be repeated, or why it cannot.
pub(in crate::schema) fn repeatable(
    sql: &str,
    statement: &Statement,
) -> Result<Repeatable, &'static str> {
    let words: Vec<&str> = statement.words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["CREATE", "INDEX", "CONCURRENTLY", ..]
        | ["CREATE", "UNIQUE", "INDEX", "CONCURRENTLY", ..] => {
            match index_name(&sql[statement.at.clone()]) {
                Some(name) => Ok(Repeatable::Index(name)),
                None => Err(
                    "needs the index's name right after CONCURRENTLY, without IF NOT EXISTS, which \
                        would take an invalid index as done",
                ),
            }
        }
        ["DROP", "INDEX", "CONCURRENTLY", "IF", "EXISTS", ..]
        | ["REFRESH", "MATERIALIZED", "VIEW", "CONCURRENTLY", ..]
        | ["VACUUM", ..] => Ok(Repeatable::Harmless),
        ["DROP", "INDEX", "CONCURRENTLY", ..] => {
            Err("needs IF EXISTS: it may have to be run a second time")
        }
        _ => Err(
            "cannot be run a second time after it was stopped: without a transaction there are \
                CREATE INDEX \
                  CONCURRENTLY, DROP INDEX CONCURRENTLY IF EXISTS, REFRESH MATERIALIZED VIEW \
                  CONCURRENTLY and VACUUM",
        ),
    }
}

/// The longest name in bytes. PostgreSQL cuts longer ones off, between characters.
const NAME_MAX: usize = 63;

/// The name in `CREATE INDEX CONCURRENTLY name ON …`, as the catalogs have it.
fn index_name(statement: &str) -> Option<String> {
    let mut rest = statement;
    loop {
        let end = rest.find(char::is_whitespace)?;
        let word = &rest[..end];
        rest = rest[end..].trim_start();
        if word.eq_ignore_ascii_case("CONCURRENTLY") {
            break;
        }
    }
    if let Some(inside) = rest.strip_prefix('"') {
        let end = inside.find('"')?;
        let plain = !inside[end + 1..].starts_with('"');
        return plain.then(|| cut(&inside[..end]));
    }
    let end =
        rest.find(|c: char| c.is_ascii() && !(c.is_ascii_alphanumeric() || c == '_' || c == '$'))?;
    // PostgreSQL folds no other letters than these where a character can have several bytes.
    let name = rest[..end].to_ascii_lowercase();
    let named = !name.is_empty()
        && rest[end..].starts_with(char::is_whitespace)
        && name != "on"
        && name != "if";
    named.then(|| cut(&name))
}

fn cut(name: &str) -> String {
    let end = (0..=NAME_MAX.min(name.len()))
        .rev()
        .find(|end| name.is_char_boundary(*end));
    name[..end.unwrap_or_default()].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn firsts(sql: &str) -> Vec<(usize, String)> {
        statements(sql)
            .into_iter()
            .map(|s| (s.line, s.words.into_iter().next().unwrap_or_default()))
            .collect()
    }

    #[test]
    fn statements_and_their_lines() {
        let one = |line, word: &str| (line, word.to_owned());
        assert_eq!(firsts(""), []);
        assert_eq!(firsts(" ; -- nothing; at all\n /* a; /* b; */ c; */ ;"), []);
        assert_eq!(
            firsts("select 1;\n\nSELECT 2"),
            [one(1, "SELECT"), one(3, "SELECT")]
        );
        assert_eq!(
            firsts("a 'x; y'' z; '; b \"p;q\" ; c"),
            [one(1, "A"), one(1, "B"), one(1, "C")]
        );
        assert_eq!(firsts(r"a E'\'; x'; b"), [one(1, "A"), one(1, "B")]);
        assert_eq!(
            firsts(r"a '\'; b"),
            [one(1, "A"), one(1, "B")],
            "a backslash is no escape in a plain string"
        );
        assert_eq!(
            firsts("do $$ begin; end; $$; do $x$ $$; $x$;\nend"),
            [one(1, "DO"), one(1, "DO"), one(2, "END")]
        );
        assert_eq!(
            firsts(
                "create function f() begin atomic select case when 1 then 2 end; select 2; end; \
                    commit"
            ),
            [one(1, "CREATE"), one(1, "COMMIT")]
        );
        assert_eq!(
            firsts("select $1; commit"),
            [one(1, "SELECT"), one(1, "COMMIT")]
        );
        for names in [
            "create function f() begin atomic select p.end, 1 as end from p; select p.case end; \
                select 2; end; commit",
            "create procedure f() begin atomic end; commit",
        ] {
            assert_eq!(
                firsts(names),
                [one(1, "CREATE"), one(1, "COMMIT")],
                "{names}"
            );
        }
        assert_eq!(
            firsts("select a.begin atomic from a; end"),
            [one(1, "SELECT"), one(1, "END")]
        );
    }

    #[test]
    fn what_is_never_closed() {
        let said = |sql: &str| unclosed(sql).map(|found| (found.line, found.mark));
        for (sql, line, mark) in [
            ("select 1;\n\nselect 'it; -- no", 3, "'"),
            (r"select '\', E'\'", 1, "'"),
            ("/* a /* b */\nselect 1", 1, "/*"),
            ("a;\nselect \"x", 2, "\""),
            ("do $$ begin end $x$; $$;\ndo $b$ 'x' $$", 2, "$b$"),
        ] {
            assert_eq!(said(sql), Some((line, mark.to_owned())), "{sql}");
        }
        for sql in ["", "-- it's\n/* ' */ a '''', \"'\", $$ ' $$"] {
            assert_eq!(said(sql), None, "{sql}");
        }
    }

    #[test]
    fn the_guard_comes_back_behind_what_sets_it() {
        let guarded = |sql| guarded(sql, "G; ");
        for same in [
            "SET a = 1; ALTER TABLE t ADD x int",
            "SET lock_timeout = 0",
            "CREATE TABLE lock_timeout (); CREATE TABLE b ()",
        ] {
            assert_eq!(guarded(same), same);
        }
        assert_eq!(
            guarded("SET lock_timeout = 0; -- x;\nALTER a"),
            "SET lock_timeout = 0; -- x;\nG; ALTER a"
        );
        assert_eq!(
            guarded("SELECT set_config('lock_timeout', '0', false);\nALTER a;\nRESET ALL; ALTER b"),
            "SELECT set_config('lock_timeout', '0', false);\nG; ALTER a;\nRESET ALL; G; ALTER b"
        );
        let escapes =
            "SET lock_timeout = 0; SET standard_conforming_strings = off; SELECT '\\'; x'; ALTER a";
        assert_eq!(
            guarded(escapes),
            escapes.replacen("; SET st", "; G; SET st", 1)
        );
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
            "copy t from /* here */ stdout",
            "copy (select * from t) to stdout with (format csv)",
            "copy t to stdin",
            "savepoint a",
            "prepare transaction 'x'",
            "reindex (verbose) table concurrently t",
            "refresh materialized view concurrently v",
            "alter table if exists t detach partition p concurrently",
        ] {
            assert!(bad(sql), "{sql}");
        }
        let columns: Vec<String> = (0..2000).map(|n| format!("c{n}")).collect();
        for more in ["from stdin", "to stdout"] {
            assert!(
                bad(&format!("copy t ({}) {more}", columns.join(", "))),
                "{more}"
            );
        }
        for sql in [
            "create table begin_log (commit text)",
            "create function f() returns void language plpgsql as $$ begin commit; end $$",
            "insert into t values ('; commit;')",
            "create index i on t (a)",
            "comment on table t is 'vacuum; begin'",
            "create view v as select t.concurrently, 1 as concurrently from t",
            "create table t (\"concurrently\" boolean)",
            "create index i on t (\"concurrently\")",
            "alter table t rename column a to \"concurrently\"",
            "alter table t detach partition p",
            "copy t (stdin) to '/x'",
            "copy t to program 'cat'",
        ] {
            assert!(!bad(sql), "{sql}");
        }
    }

    #[test]
    fn what_can_be_run_again() {
        let is_repeatable = |sql: &str| repeatable(sql, &statements(sql)[0]);
        let index = |name: &str| Ok(Repeatable::Index(name.to_owned()));
        let (long, wide) = ("l".repeat(70), "é".repeat(40));
        for (sql, expected) in [
            (
                "CREATE INDEX CONCURRENTLY Photos_Title ON {shard}.photos (title)",
                index("photos_title"),
            ),
            (
                "-- why\ncreate unique index\n  concurrently \"T x\" on {shard}.photos (title)",
                index("T x"),
            ),
            (
                "CREATE INDEX CONCURRENTLY ÚNICO_É ON t (a)",
                index("Único_É"),
            ),
            (
                &format!("CREATE INDEX CONCURRENTLY {long} ON t (a)"),
                index(&long[..63]),
            ),
            (
                &format!("CREATE INDEX CONCURRENTLY \"a{wide}\" ON t (a)"),
                index(&format!("a{}", &wide[..62])),
            ),
            (
                &format!("CREATE INDEX CONCURRENTLY {wide} ON t (a)"),
                index(&wide[..62]),
            ),
            (
                "DROP INDEX CONCURRENTLY IF EXISTS {shard}.photos_title",
                Ok(Repeatable::Harmless),
            ),
            ("VACUUM (ANALYZE) {shard}.photos", Ok(Repeatable::Harmless)),
        ] {
            assert_eq!(is_repeatable(sql), expected, "{sql}");
        }
        for sql in [
            "CREATE INDEX CONCURRENTLY ON {shard}.photos (title)",
            "CREATE INDEX CONCURRENTLY IF NOT EXISTS i ON {shard}.photos (title)",
            "CREATE INDEX CONCURRENTLY/**/i ON {shard}.photos (title)",
            "CREATE INDEX i ON {shard}.photos (title)",
            "DROP INDEX CONCURRENTLY {shard}.i",
            "INSERT INTO {shard}.photos DEFAULT VALUES",
        ] {
            assert!(is_repeatable(sql).is_err(), "{sql}");
        }
    }

    #[test]
    fn where_statements_are() {
        let sql = "-- one\nselect 1 /* x */ ; /* y */ select 'a;b'\n-- end";
        let found: Vec<&str> = statements(sql).iter().map(|s| &sql[s.at.clone()]).collect();
        assert_eq!(found, ["select 1", "select 'a;b'"]);
    }

    proptest! {
        #[test]
        fn any_text_comes_to_an_end(sql in r#"[-/*'"$;aE\\ \nbé]{0,40}"#) {
            prop_assert!(statements(&sql).len() <= sql.len());
            prop_assert!(unclosed(&sql).is_none_or(|found| sql.contains(&found.mark)));
        }
    }
}
