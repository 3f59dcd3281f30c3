//! The class of a statement, by its first words: what may be run again, what changes the session,
//! what belongs to the router alone. Pure.

/// What the router may do with a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatementClass {
    /// Only reads, as far as its first word shows: SELECT, VALUES, TABLE, SHOW.
    Read,
    /// All or nothing, so that it can be run again after it failed.
    Write,
    /// Leaves something behind in the session: SET, LISTEN, CREATE (TEMP), … All or nothing too.
    Session,
    /// Can commit before its end, or work outside a transaction: CALL, DO, VACUUM, REPACK, …
    /// CONCURRENTLY.
    Once,
    /// SAVEPOINT, RELEASE.
    Savepoint,
    /// ROLLBACK TO a savepoint.
    RollbackTo,
    /// Starts or ends a transaction.
    Control,
    /// LISTEN; its notifications do not come out of a pool's connection.
    Listen,
    /// COPY … FROM STDIN.
    CopyIn,
    /// COPY … TO STDOUT.
    CopyOut,
}

impl StatementClass {
    /// Reads the first words, past white space, comments and opening parentheses.
    pub(super) fn of(sql: &str) -> StatementClass {
        let mut words = Words(sql);
        let first = words.next().unwrap_or_default();
        match first.as_str() {
            "SELECT" | "VALUES" | "TABLE" | "SHOW" => StatementClass::Read,
            "WITH" | "INSERT" | "UPDATE" | "DELETE" | "MERGE" | "EXPLAIN" | "LOCK" | "TRUNCATE"
            | "COMMENT" | "GRANT" | "REVOKE" | "ANALYZE" | "NOTIFY" => StatementClass::Write,
            "COPY" => StatementClass::of_copy(words),
            "LISTEN" => StatementClass::Listen,
            "SET" => match words.next().as_deref() {
                Some("LOCAL" | "TRANSACTION" | "CONSTRAINTS") => StatementClass::Write,
                _ => StatementClass::Session,
            },
            "CALL" | "DO" | "VACUUM" | "CLUSTER" | "REPACK" => StatementClass::Once,
            "CREATE" | "DROP" | "REINDEX" | "ALTER" | "REFRESH"
                if words.any(|word| word == "CONCURRENTLY") =>
            {
                StatementClass::Once
            }
            "SAVEPOINT" | "RELEASE" => StatementClass::Savepoint,
            "PREPARE" => match words.next().as_deref() {
                Some("TRANSACTION") => StatementClass::Control,
                _ => StatementClass::Session,
            },
            "ROLLBACK" | "ABORT" => {
                let mut after = words.skip_while(|word| word == "WORK" || word == "TRANSACTION");
                if after.next().as_deref() == Some("TO") {
                    StatementClass::RollbackTo
                } else {
                    StatementClass::Control
                }
            }
            "BEGIN" | "START" | "COMMIT" | "END" => StatementClass::Control,
            _ => StatementClass::Session,
        }
    }

    /// COPY from or to the client is another exchange than a statement's; a file or a program is at
    /// the server. PostgreSQL takes STDIN and STDOUT for each other.
    fn of_copy(words: Words<'_>) -> StatementClass {
        let mut before = String::new();
        for word in words {
            if word == "STDIN" || word == "STDOUT" {
                match before.as_str() {
                    "FROM" => return StatementClass::CopyIn,
                    "TO" => return StatementClass::CopyOut,
                    _ => {}
                }
            }
            before = word;
        }
        StatementClass::Write
    }

    /// Whether it begins with WITH.
    pub(super) fn is_with(sql: &str) -> bool {
        Words(sql).next().as_deref() == Some("WITH")
    }

    /// Whether it is certain that nothing of a failed statement stays, so that it may run again.
    pub(super) fn repeatable(self) -> bool {
        self != StatementClass::Once
    }
}

/// The words of a statement in upper case, without anything between them.
struct Words<'a>(&'a str);

impl Iterator for Words<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        loop {
            let rest = self.0;
            let first = rest.chars().next()?;
            if rest.starts_with("--") {
                self.0 = rest.split_once(['\n', '\r']).map_or("", |(_, after)| after);
            } else if rest.starts_with("/*") {
                self.0 = past_comment(rest);
            } else if first.is_alphanumeric() || first == '_' {
                let end = rest
                    .find(|c: char| !c.is_alphanumeric() && c != '_')
                    .unwrap_or(rest.len());
                self.0 = &rest[end..];
                return Some(rest[..end].to_ascii_uppercase());
            } else {
                self.0 = &rest[first.len_utf8()..];
            }
        }
    }
}

/// What follows a block comment. Block comments nest; one that does not end takes the rest.
pub(super) fn past_comment(text: &str) -> &str {
    let mut depth = 0usize;
    let mut rest = text;
    loop {
        if let Some(after) = rest.strip_prefix("/*") {
            depth += 1;
            rest = after;
        } else if let Some(after) = rest.strip_prefix("*/") {
            depth -= 1;
            rest = after;
            if depth == 0 {
                return rest;
            }
        } else {
            let mut chars = rest.chars();
            if chars.next().is_none() {
                return rest;
            }
            rest = chars.as_str();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn statements_have_their_class() {
        for (sql, class) in [
            ("SELECT 1", StatementClass::Read),
            (
                "  -- why\n\t/* a /* nested */ one */ select 1",
                StatementClass::Read,
            ),
            ("((SELECT 1) UNION SELECT 2)", StatementClass::Read),
            (
                "WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x",
                StatementClass::Write,
            ),
            ("insert into t values (1)", StatementClass::Write),
            ("CALL p()", StatementClass::Once),
            ("/* COMMIT */ do $$ begin end $$", StatementClass::Once),
            ("DO$$ begin end $$", StatementClass::Once),
            ("VACUUM", StatementClass::Once),
            ("REPACK (CONCURRENTLY) t", StatementClass::Once),
            (
                "INSERT INTO t VALUES (1) ON CONFLICT (a) DO SELECT FOR UPDATE RETURNING *",
                StatementClass::Write,
            ),
            ("WAIT FOR LSN '0/1'", StatementClass::Session),
            ("CREATE INDEX CONCURRENTLY ON t (a)", StatementClass::Once),
            ("CREATE INDEX ON t (a)", StatementClass::Session),
            ("begin", StatementClass::Control),
            ("START TRANSACTION", StatementClass::Control),
            ("COMMIT;", StatementClass::Control),
            (
                "-- the server ends it here\rCOMMIT",
                StatementClass::Control,
            ),
            ("END", StatementClass::Control),
            ("ROLLBACK", StatementClass::Control),
            ("ROLLBACK TO a", StatementClass::RollbackTo),
            ("rollback work to savepoint a", StatementClass::RollbackTo),
            ("PREPARE TRANSACTION 'x'", StatementClass::Control),
            ("PREPARE x AS SELECT 1", StatementClass::Session),
            ("SAVEPOINT a", StatementClass::Savepoint),
            ("RELEASE a", StatementClass::Savepoint),
            ("SET search_path = a", StatementClass::Session),
            ("SET LOCAL search_path = a", StatementClass::Write),
            (
                "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
                StatementClass::Write,
            ),
            ("LISTEN a", StatementClass::Listen),
            ("UNLISTEN *", StatementClass::Session),
            ("copy t (a, b) from stdin", StatementClass::CopyIn),
            ("COPY t TO STDOUT (FORMAT csv)", StatementClass::CopyOut),
            ("COPY t TO STDIN", StatementClass::CopyOut),
            (
                "COPY (SELECT a FROM t) TO /* us */ STDOUT",
                StatementClass::CopyOut,
            ),
            ("COPY t FROM '/tmp/stdin'", StatementClass::Write),
            ("COPY t TO PROGRAM 'cat >stdout'", StatementClass::Write),
            ("", StatementClass::Session),
            ("/* never ends", StatementClass::Session),
        ] {
            assert_eq!(StatementClass::of(sql), class, "{sql}");
        }
    }

    proptest! {
        #[test]
        fn any_text_has_a_class(sql in ".{0,40}") {
            StatementClass::of(&sql);
        }

        #[test]
        fn what_stands_before_a_call_does_not_hide_it(
            before in "([ \t\n]|/\\*[^*/]{0,5}\\*/|--[a-z ]{0,5}\n){0,5}",
        ) {
            prop_assert_eq!(StatementClass::of(&format!("{before}CALL p()")), StatementClass::Once);
        }
    }
}
