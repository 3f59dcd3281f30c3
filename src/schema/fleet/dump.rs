//! What the output of pg_dump has that a migration cannot have: commands of psql, rows, and
//! statements about the schema that it was dumped from. Pure.
//!
//! Every server would refuse it, some with an error that names neither the file nor the line; an
//! empty `search_path` would even be left to the statements that follow.

use crate::schema::control::script::{Statement, statements};

/// Something that has to be taken out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::schema) struct FromDump {
    /// The line that it begins on, from 1.
    pub(in crate::schema) line: usize,
    /// Its first words.
    pub(in crate::schema) statement: String,
    /// Why it cannot stay.
    pub(in crate::schema) why: &'static str,
}

/// Whether the file's statements are about one shard, or about the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::schema) enum About {
    Shard,
    Host,
}

/// Everything in this text that is pg_dump's. A command of psql ends with its line, and rows with
/// `\.`: what follows is read from there.
pub(in crate::schema) fn from_dump(text: &str, about: About) -> Vec<FromDump> {
    let mut found = Vec::new();
    let (mut from, mut line) = (0, 1);
    loop {
        let rest = &text[from..];
        let mut end = None;
        for statement in statements(rest) {
            let sql = &rest[statement.at.clone()];
            let (first, why) = if sql.starts_with('\\') {
                let length = sql.find('\n').unwrap_or(sql.len());
                end = Some(statement.at.start + length);
                (sql[..length].split_whitespace().next(), Some(PSQL))
            } else if is_copy_from_client(&statement) {
                end = Some(end_of_rows(rest, statement.at.end));
                (None, Some(ROWS))
            } else {
                let why = (about == About::Shard).then(|| of_schema(sql, &statement));
                (None, why.flatten())
            };
            if let Some(why) = why {
                found.push(FromDump {
                    line: line + statement.line - 1,
                    statement: first.map_or_else(|| first_words(&statement), str::to_owned),
                    why,
                });
            }
            if end.is_some() {
                break;
            }
        }
        let Some(end) = end else { return found };
        line += rest[..end].matches('\n').count();
        from += end;
    }
}

const PSQL: &str = "is a command of psql, as pg_dump writes it: take the line out";
const ROWS: &str = "has rows from the client: dump without them (`pg_dump --schema-only`), or use \
    INSERT";
const SCHEMA: &str = "makes a schema; each shard has its own, which bootstrap makes: take it out";
const COMMENT: &str = "is about a schema that is no shard's: take it out";
const PATH: &str = "empties the search_path of the statements that follow, as pg_dump does: take \
    it out, and name the schema as {shard}";

fn is_copy_from_client(statement: &Statement) -> bool {
    let words = &statement.words;
    words.first().is_some_and(|word| word == "COPY")
        && words.windows(2).any(|two| two == ["FROM", "STDIN"])
}

/// Where the rows of a COPY end: behind the line `\.`, or with the text.
fn end_of_rows(text: &str, at: usize) -> usize {
    const END: &str = "\n\\.";
    text[at..]
        .find(END)
        .map_or(text.len(), |found| at + found + END.len())
}

/// Why a statement about a schema, or about the search_path, cannot stay.
fn of_schema(sql: &str, statement: &Statement) -> Option<&'static str> {
    let words: Vec<&str> = statement.words.iter().map(String::as_str).collect();
    // Without spaces, what is compared does not depend on how the file is written.
    let compact: String = sql.chars().filter(|c| !c.is_whitespace()).collect();
    let compact = compact.to_ascii_lowercase();
    match words.as_slice() {
        ["CREATE", "SCHEMA", ..] if is_public_or_shard(&compact) => Some(SCHEMA),
        ["COMMENT", "ON", "SCHEMA", "PUBLIC", ..] | ["ALTER", "SCHEMA", "PUBLIC", ..] => {
            Some(COMMENT)
        }
        ["SELECT", ..] if compact.contains("set_config('search_path','',") => Some(PATH),
        ["SET", "SEARCH_PATH", ..] | ["SET", "SESSION", "SEARCH_PATH", ..]
            if compact.ends_with("=''") || compact.ends_with("to''") =>
        {
            Some(PATH)
        }
        _ => None,
    }
}

/// Whether the schema that a statement without spaces creates is `public`, or the shard's.
fn is_public_or_shard(create: &str) -> bool {
    let name = create.trim_start_matches("createschema");
    let name = name.strip_prefix("ifnotexists").unwrap_or(name);
    let name = name.split("authorization").next().unwrap_or(name);
    ["public", "\"public\"", "{shard}"].contains(&name)
}

fn first_words(statement: &Statement) -> String {
    let words: Vec<&str> = statement.words.iter().take(3).map(String::as_str).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What pg_dump 17.6 writes for a small schema, with `public.` replaced.
    const DUMP: &str = r"--
-- PostgreSQL database dump
--

\restrict bF3

SET statement_timeout = 0;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;

CREATE SCHEMA public;
COMMENT ON SCHEMA public IS 'standard public schema';

CREATE TABLE {shard}.notes (id bigint NOT NULL, body text DEFAULT 'it''s');

COPY {shard}.notes (id, body) FROM stdin;
1	it's one
2	\N
\.

ALTER TABLE ONLY {shard}.notes ADD CONSTRAINT notes_pkey PRIMARY KEY (id);

\unrestrict bF3
";

    #[test]
    fn everything_of_a_dump_is_found_with_its_line() {
        let found = from_dump(DUMP, About::Shard);
        let found: Vec<(usize, &str)> = found
            .iter()
            .map(|one| (one.line, one.statement.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                (5, "\\restrict"),
                (8, "SELECT PG_CATALOG SET_CONFIG"),
                (11, "CREATE SCHEMA PUBLIC"),
                (12, "COMMENT ON SCHEMA"),
                (16, "COPY SHARD NOTES"),
                (23, "\\unrestrict"),
            ]
        );
        let of_host = from_dump(DUMP, About::Host).len();
        assert_eq!(of_host, 3, "schemas and the search_path are a host's own");
    }

    #[test]
    fn what_is_no_dump_stays() {
        for text in [
            "CREATE FUNCTION {shard}.f() RETURNS text LANGUAGE sql AS $$\n\\restrict\n$$",
            "INSERT INTO {shard}.t VALUES (E'\\n\n\\connect')",
            "SET LOCAL search_path = {shard}, public; CREATE VIEW v AS SELECT '''' AS public",
            "SELECT set_config('search_path', '{shard}', true)",
            "COPY {shard}.t TO '/tmp/x'; CREATE TABLE {shard}.public (a int)",
            "CREATE SCHEMA IF NOT EXISTS reports",
        ] {
            assert_eq!(from_dump(text, About::Shard), [], "{text}");
        }
    }
}
