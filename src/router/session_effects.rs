//! What a statement may leave behind in its session, and whether a signpost could answer it, by its
//! text. Pure.
//!
//! Invariant: a text counts as leaving nothing only if everything that it calls is known. What the
//! text does not show (a trigger, a view, a default that calls a function) is missed.
//! [`Recycle::Clean`](super::Recycle) does not depend on the text.

use super::statement_class::{StatementClass, past_comment};

/// Whether something may be left in the session once the statement has run: a temporary table, a
/// setting, a lock, a cursor. `sql` as it was given, with `{shard}` in it.
pub(super) fn may_change_session(sql: &str, class: StatementClass) -> bool {
    match class {
        StatementClass::Session | StatementClass::Once => true,
        StatementClass::Savepoint
        | StatementClass::RollbackTo
        | StatementClass::Control
        | StatementClass::Listen => false,
        StatementClass::Read
        | StatementClass::Write
        | StatementClass::CopyIn
        | StatementClass::CopyOut => {
            let tokens: Vec<Token<'_>> = Tokens {
                rest: sql,
                escapes: false,
            }
            .collect();
            makes_table(&tokens) || explains(&tokens) || calls_unknown(&tokens) || hides(sql)
        }
    }
}

/// Whether a signpost in the shard's place would change the answer without an error, because the
/// statement looks a name up in the catalogs.
pub(super) fn asks_about_names(sql: &str) -> bool {
    const ASKING: [&str; 11] = [
        "pg_get_serial_sequence",
        "relation_size",
        "table_size",
        "indexes_size",
        "to_reg",
        "information_schema",
        "pg_class",
        "pg_attribute",
        "pg_description",
        "pg_tables",
        "pg_sequences",
    ];
    // Names of functions end like this. Names of columns do too, so only a call counts.
    const CALLED: [&str; 2] = ["_privilege", "_description"];
    let sql = sql.to_ascii_lowercase();
    let is_called = |name: &str| {
        sql.split(name)
            .skip(1)
            .any(|after| after.trim_start().starts_with('('))
    };
    ASKING.iter().any(|asking| sql.contains(asking)) || CALLED.iter().any(|name| is_called(name))
}

/// SELECT … INTO makes a table, a temporary one perhaps.
fn makes_table(tokens: &[Token<'_>]) -> bool {
    let into = |at: &usize| tokens[*at].is("INTO");
    let before = |at: usize| at.checked_sub(1).map(|at| tokens[at]);
    (0..tokens.len())
        .filter(into)
        .any(|at| !before(at).is_some_and(|before| before.is("INSERT") || before.is("MERGE")))
}

/// EXPLAIN ANALYZE runs whatever it explains.
fn explains(tokens: &[Token<'_>]) -> bool {
    tokens.first().is_some_and(|first| first.is("EXPLAIN"))
        && tokens.iter().any(|token| token.is("ANALYZE"))
}

/// A setting of the server decides what a backslash in a string means. So what follows it may be in
/// a string for this reader and outside of it for the server.
fn hides(sql: &str) -> bool {
    let words = ["into", "set_config", "advisory_lock"];
    sql.contains('\\')
        && words
            .iter()
            .any(|word| sql.to_ascii_lowercase().contains(word))
}

fn calls_unknown(tokens: &[Token<'_>]) -> bool {
    (1..tokens.len())
        .filter(|at| tokens[*at] == Token::Open)
        .any(|open| {
            let name = open - 1;
            let (qualifier, first) = match name.checked_sub(2) {
                Some(before) if tokens[name - 1] == Token::Other('.') => match tokens[before] {
                    // The end of `{shard}`.
                    Token::Other('}') => ("{shard}", before.saturating_sub(2)),
                    Token::Word(qualifier) => (qualifier, before),
                    _ => ("?", before),
                },
                _ => ("", name),
            };
            // A name after these words has a list of columns and is not called.
            let names = [
                "INTO",
                "AS",
                "WITH",
                "RECURSIVE",
                "ON",
                "CONFLICT",
                "VIEW",
                "TABLE",
            ];
            if first
                .checked_sub(1)
                .is_some_and(|before| names.iter().any(|word| tokens[before].is(word)))
            {
                return false;
            }
            match tokens[name] {
                Token::Quoted => true,
                Token::Word(word) => {
                    let word = word.to_ascii_uppercase();
                    let known = |list: &[&str]| list.binary_search(&word.as_str()).is_ok();
                    if word == "SET_CONFIG" {
                        return !is_local(&tokens[open..]);
                    }
                    !match qualifier.to_ascii_lowercase().as_str() {
                        "" => known(&BEFORE_A_LIST) || known(&HARMLESS),
                        "pg_catalog" => known(&HARMLESS),
                        "{shard}" => known(&OWN),
                        _ => false,
                    }
                }
                Token::Open | Token::Close | Token::Other(_) => false,
            }
        })
}

/// Whether the last of the arguments is `true`: what `set_config` sets then ends with the
/// transaction. `call` begins with the parenthesis.
fn is_local(call: &[Token<'_>]) -> bool {
    let mut depth = 0_usize;
    for (at, token) in call.iter().enumerate() {
        match token {
            Token::Open => depth += 1,
            Token::Close => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at >= 2 && call[at - 1].is("TRUE") && call[at - 2] == Token::Other(',');
        }
    }
    false
}

/// The ID functions of a shard.
const OWN: [&str; 4] = ["ID_HIGH_WATER", "NEXT_ID", "NEXT_IDS", "RESUME_AFTER"];

/// Words before a parenthesis that are no functions.
#[rustfmt::skip]
const BEFORE_A_LIST: [&str; 55] = [
    "ALL", "AND", "ANY", "ARRAY", "AS", "BETWEEN", "BIT", "BY", "CASE", "CHAR", "CHARACTER",
    "CONFLICT", "CUBE", "DATE", "DECIMAL", "DISTINCT", "ELSE", "EXCEPT", "EXISTS", "FILTER", "FROM",
    "GROUP", "GROUPING", "HAVING", "IN", "INTERSECT", "INTERVAL", "IS", "JOIN", "KEY", "LATERAL",
    "LIKE", "LIMIT", "MATERIALIZED", "NOT", "NUMERIC", "OFFSET", "ON", "OR", "OVER", "RETURNING",
    "ROLLUP", "ROW", "SELECT", "SET", "SETS", "SOME", "THEN", "TIME", "TIMESTAMP", "UNION", "USING",
    "VALUES", "VARCHAR", "WHEN",
];

/// Functions of PostgreSQL that leave nothing in the session.
#[rustfmt::skip]
const HARMLESS: [&str; 171] = [
    "ABS", "AGE", "ARRAY_AGG", "ARRAY_APPEND", "ARRAY_CAT", "ARRAY_LENGTH", "ARRAY_POSITION",
    "ARRAY_PREPEND", "ARRAY_REMOVE", "ARRAY_REPLACE", "ARRAY_TO_JSON", "ARRAY_TO_STRING", "AVG",
    "BIT_AND", "BIT_OR", "BOOL_AND", "BOOL_OR", "BTRIM", "CARDINALITY", "CAST", "CEIL", "CEILING",
    "CHARACTER_LENGTH", "CHAR_LENGTH", "CLOCK_TIMESTAMP", "COALESCE", "CONCAT", "CONCAT_WS",
    "CONVERT_FROM", "CONVERT_TO", "CORR", "COUNT", "CUME_DIST", "CURRENT_DATABASE",
    "CURRENT_SCHEMA", "CURRENT_SETTING", "DATE_BIN", "DATE_PART", "DATE_TRUNC", "DECODE",
    "DENSE_RANK", "ENCODE", "ENUM_RANGE", "EVERY", "EXP", "EXTRACT", "FIRST_VALUE", "FLOOR",
    "FORMAT", "GENERATE_SERIES", "GEN_RANDOM_UUID", "GREATEST", "HASHTEXT", "HASHTEXTEXTENDED",
    "INITCAP", "ISFINITE", "JSONB_AGG", "JSONB_ARRAY_ELEMENTS", "JSONB_ARRAY_ELEMENTS_TEXT",
    "JSONB_ARRAY_LENGTH", "JSONB_BUILD_ARRAY", "JSONB_BUILD_OBJECT", "JSONB_EACH",
    "JSONB_EACH_TEXT", "JSONB_EXTRACT_PATH", "JSONB_EXTRACT_PATH_TEXT", "JSONB_INSERT",
    "JSONB_OBJECT_AGG", "JSONB_OBJECT_KEYS", "JSONB_PATH_EXISTS", "JSONB_PATH_QUERY", "JSONB_SET",
    "JSONB_STRIP_NULLS", "JSONB_TO_RECORDSET", "JSONB_TYPEOF", "JSON_AGG", "JSON_ARRAY_ELEMENTS",
    "JSON_BUILD_ARRAY", "JSON_BUILD_OBJECT", "JSON_OBJECT_AGG", "LAG", "LAST_VALUE", "LEAD",
    "LEAST", "LEFT", "LENGTH", "LN", "LOCALTIMESTAMP", "LOG", "LOWER", "LPAD", "LTRIM", "MAKE_DATE",
    "MAKE_INTERVAL", "MAKE_TIMESTAMP", "MAKE_TIMESTAMPTZ", "MAX", "MD5", "MIN", "MOD", "MODE",
    "NEXTVAL", "NOW", "NTH_VALUE", "NTILE", "NULLIF", "NUM_NONNULLS", "NUM_NULLS", "OCTET_LENGTH",
    "OVERLAY", "PERCENTILE_CONT", "PERCENTILE_DISC", "PERCENT_RANK", "PG_ADVISORY_XACT_LOCK",
    "PG_ADVISORY_XACT_LOCK_SHARED", "PG_BACKEND_PID", "PG_COLUMN_SIZE", "PG_CURRENT_XACT_ID",
    "PG_NOTIFY", "PG_SLEEP", "PG_TRY_ADVISORY_XACT_LOCK", "PG_TRY_ADVISORY_XACT_LOCK_SHARED",
    "PG_TYPEOF", "PHRASETO_TSQUERY", "PLAINTO_TSQUERY", "POSITION", "POWER", "RANDOM", "RANK",
    "REGEXP_MATCH", "REGEXP_MATCHES", "REGEXP_REPLACE", "REPEAT", "REPLACE", "REVERSE", "RIGHT",
    "ROUND", "ROW_NUMBER", "ROW_TO_JSON", "RPAD", "RTRIM", "SETVAL", "SHA256", "SIGN", "SPLIT_PART",
    "SQRT", "STARTS_WITH", "STATEMENT_TIMESTAMP", "STDDEV", "STRING_AGG", "STRING_TO_ARRAY",
    "STRPOS", "SUBSTR", "SUBSTRING", "SUM", "TO_CHAR", "TO_DATE", "TO_JSON", "TO_JSONB",
    "TO_NUMBER", "TO_TIMESTAMP", "TO_TSQUERY", "TO_TSVECTOR", "TRIM", "TRUNC", "TS_RANK", "UNNEST",
    "UPPER", "VARIANCE", "WEBSEARCH_TO_TSQUERY", "WIDTH_BUCKET",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    /// A name in quotation marks.
    Quoted,
    Open,
    Close,
    /// Anything else; a string is a `'`.
    Other(char),
}

impl Token<'_> {
    /// Whether it is this word, given in upper case.
    fn is(self, word: &str) -> bool {
        matches!(self, Token::Word(own) if own.eq_ignore_ascii_case(word))
    }
}

/// The tokens of a text, without comments and without the contents of strings.
struct Tokens<'a> {
    rest: &'a str,
    /// Whether a string that begins here has escapes: an E is before it.
    escapes: bool,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            let rest = self.rest;
            let first = rest.chars().next()?;
            let escapes = std::mem::take(&mut self.escapes);
            if rest.starts_with("--") {
                self.rest = rest.split_once(['\n', '\r']).map_or("", |(_, after)| after);
            } else if rest.starts_with("/*") {
                self.rest = past_comment(rest);
            } else if first.is_whitespace() {
                self.rest = &rest[first.len_utf8()..];
            } else if is_of_word(first) && !first.is_ascii_digit() {
                let end = rest
                    .find(|c: char| !is_of_word(c) && c != '$')
                    .unwrap_or(rest.len());
                let word = &rest[..end];
                self.rest = &rest[end..];
                self.escapes = word.eq_ignore_ascii_case("e");
                return Some(Token::Word(word));
            } else if first == '\'' || first == '"' {
                self.rest = past_quoted(&rest[1..], first, escapes);
                return Some(if first == '"' {
                    Token::Quoted
                } else {
                    Token::Other('\'')
                });
            } else if let Some(after) = past_dollar_quoted(rest) {
                self.rest = after;
                return Some(Token::Other('\''));
            } else {
                self.rest = &rest[first.len_utf8()..];
                return Some(match first {
                    '(' => Token::Open,
                    ')' => Token::Close,
                    other => Token::Other(other),
                });
            }
        }
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || !c.is_ascii()
}

/// What follows a string or name after its opening mark has been read. Two marks in it are one
/// character.
fn past_quoted(text: &str, mark: char, escapes: bool) -> &str {
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if c == '\\' && escapes {
            chars.next();
        } else if c == mark && chars.next_if(|(_, next)| *next == mark).is_none() {
            return &text[at + 1..];
        }
    }
    ""
}

/// What follows `$tag$ … $tag$`, if that is what the text begins with.
fn past_dollar_quoted(text: &str) -> Option<&str> {
    let tag = &text.strip_prefix('$')?;
    let end = tag.find('$')?;
    let tag = &tag[..end];
    if tag.starts_with(|c: char| c.is_ascii_digit()) || !tag.chars().all(is_of_word) {
        return None;
    }
    let mark = &text[..end + 2];
    let body = &text[mark.len()..];
    Some(body.find(mark).map_or("", |at| &body[at + mark.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn leaves_something(sql: &str) -> bool {
        may_change_session(sql, StatementClass::of(sql))
    }

    #[test]
    fn lists_are_in_order() {
        for list in [&OWN[..], &BEFORE_A_LIST, &HARMLESS] {
            assert!(list.is_sorted_by(|a, b| a < b), "{list:?}");
        }
    }

    #[test]
    fn what_leaves_nothing() {
        for sql in [
            "SELECT id, title FROM {shard}.photos WHERE id = $1",
            "SELECT count(*), max(id), coalesce(sum(n), 0)::numeric(10, 2) FROM {shard}.photos \
                WHERE id IN ($1, $2)",
            "INSERT INTO {shard}.photos (user_id, title) VALUES ($1, $2) RETURNING id",
            "INSERT INTO \"photos\" (\"id\", \"title\") VALUES (1, 'into') RETURNING \"kind\"",
            "INSERT INTO {shard}.photos (id, title) SELECT * FROM unnest($1::bigint[], $2::text[]) \
                AS new (id, title) \
             RETURNING id",
            "INSERT INTO {shard}.photos AS p (id) VALUES ({shard}.next_id()) ON CONFLICT (id) DO \
                UPDATE \
             SET title = lower(p.title)",
            "WITH gone AS (DELETE FROM {shard}.photos WHERE id = ANY($1) RETURNING id) SELECT \
                count(*) FROM gone",
            "MERGE INTO {shard}.photos USING x ON (true) WHEN MATCHED THEN DELETE",
            "SELECT 'select in to', E'\\'', $$ set_confi(1) $$, $x$ $$ f( $x$, \"f(\" FROM t -- \
                f(\n /* g( */",
            "SELECT set_config('app.tenant', $1, true)",
            "SELECT pg_catalog.set_config('app.tenant', coalesce($1, ''), TRUE), \
                pg_advisory_xact_lock($1)",
            "SELECT pg_catalog.now()",
            "EXPLAIN SELECT 1",
            "SET LOCAL work_mem = '1MB'",
            "SAVEPOINT a",
        ] {
            assert!(!leaves_something(sql), "{sql}");
        }
    }

    #[test]
    fn what_may_leave_something() {
        for sql in [
            "SELECT id INTO TEMP users FROM {shard}.photos",
            "select '--', 1 as n\rinto temp x",
            "WITH a AS (SELECT 1) SELECT * INTO TEMP b FROM a",
            "SELECT '\\', 1 INTO TEMP b --'",
            "SELECT set_config('app.tenant', $1, false)",
            "SELECT set_config('app.tenant', $1, true), set_config('search_path', 'x', $2)",
            "SELECT pg_catalog . set_config ('a', 'b', 't')",
            "SELECT \"set_config\"('a.b', 'c', false)",
            "SELECT U&\"set\\005fconfig\"('a.b', 'c', false)",
            "SELECT pg_advisory_lock(7)",
            "SELECT public.now()",
            "SELECT {shard}.remember($1)",
            "SELECT remember /* it */ ($1)",
            "INSERT INTO {shard}.photos (id) SELECT remember(7)",
            "EXPLAIN (ANALYZE) CREATE TEMP TABLE x AS SELECT 1",
            "DO $$ BEGIN PERFORM set_config('a.b', 'c', false); END $$",
            "CREATE TEMP TABLE x (n int)",
            "SET work_mem = '1MB'",
        ] {
            assert!(leaves_something(sql), "{sql}");
        }
    }

    proptest! {
        #[test]
        fn any_text_will_do(sql in "[ -~\\n$'\"\\\\é(]{0,60}") {
            leaves_something(&sql);
            asks_about_names(&sql);
        }

        #[test]
        fn what_stands_around_does_not_hide_it(
            before in "[ \t\n]|/\\*[^*/']{0,5}\\*/|--[a-z' ]{0,5}\n|'[a-z ]{0,5}',|\\$\\$'\\$\\$,"
        ) {
            let select = format!("SELECT {before} pg_advisory_lock(7)");
            prop_assert!(leaves_something(&select));
        }
    }
}
