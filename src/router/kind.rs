//! What kind of statement a text is, by its first words: what may be run again, what changes the session, what belongs
//! to the router alone. Pure.

/// What the router may do with a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only reads, as far as its first word says: SELECT, VALUES, TABLE, SHOW.
    Read,
    /// All or nothing, so that it can be run again after it failed.
    Write,
    /// Leaves something behind in the session: SET, LISTEN, CREATE (TEMP), … All or nothing too.
    Session,
    /// Can commit in its middle, or work outside a transaction: CALL, DO, VACUUM, … CONCURRENTLY.
    Once,
    /// SAVEPOINT, RELEASE.
    Savepoint,
    /// ROLLBACK TO a savepoint.
    RollbackTo,
    /// Starts or ends a transaction.
    Control,
}

impl Kind {
    /// Reads the first words, past white space, comments and opening parentheses.
    pub(super) fn of(sql: &str) -> Kind {
        let mut words = Words(sql);
        let first = words.next().unwrap_or_default();
        match first.as_str() {
            "SELECT" | "VALUES" | "TABLE" | "SHOW" => Kind::Read,
            "WITH" | "INSERT" | "UPDATE" | "DELETE" | "MERGE" | "EXPLAIN" | "LOCK" | "TRUNCATE" | "COMMENT"
            | "GRANT" | "REVOKE" | "ANALYZE" | "NOTIFY" | "COPY" => Kind::Write,
            "SET" => match words.next().as_deref() {
                Some("LOCAL" | "TRANSACTION" | "CONSTRAINTS") => Kind::Write,
                _ => Kind::Session,
            },
            "CALL" | "DO" | "VACUUM" | "CLUSTER" => Kind::Once,
            "CREATE" | "DROP" | "REINDEX" | "ALTER" | "REFRESH" if words.any(|word| word == "CONCURRENTLY") => {
                Kind::Once
            }
            "SAVEPOINT" | "RELEASE" => Kind::Savepoint,
            "PREPARE" => match words.next().as_deref() {
                Some("TRANSACTION") => Kind::Control,
                _ => Kind::Session,
            },
            "ROLLBACK" | "ABORT" => {
                let mut after = words.skip_while(|word| word == "WORK" || word == "TRANSACTION");
                if after.next().as_deref() == Some("TO") { Kind::RollbackTo } else { Kind::Control }
            }
            "BEGIN" | "START" | "COMMIT" | "END" => Kind::Control,
            _ => Kind::Session,
        }
    }

    /// Whether it begins with WITH.
    pub(super) fn is_with(sql: &str) -> bool {
        Words(sql).next().as_deref() == Some("WITH")
    }

    /// Whether it is certain that nothing of a failed statement stays, so that it may run again.
    pub(super) fn repeatable(self) -> bool {
        self != Kind::Once
    }
}

/// The words of a statement in upper case, without what stands between them.
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
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                self.0 = &rest[end..];
                return Some(rest[..end].to_ascii_uppercase());
            } else {
                self.0 = &rest[first.len_utf8()..];
            }
        }
    }
}

/// What follows a block comment. They nest; one that does not end takes the rest.
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
    fn kinds() {
        for (sql, kind) in [
            ("SELECT 1", Kind::Read),
            ("  -- why\n\t/* a /* nested */ one */ select 1", Kind::Read),
            ("((SELECT 1) UNION SELECT 2)", Kind::Read),
            ("WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x", Kind::Write),
            ("insert into t values (1)", Kind::Write),
            ("CALL p()", Kind::Once),
            ("/* COMMIT */ do $$ begin end $$", Kind::Once),
            ("DO$$ begin end $$", Kind::Once),
            ("VACUUM", Kind::Once),
            ("CREATE INDEX CONCURRENTLY ON t (a)", Kind::Once),
            ("CREATE INDEX ON t (a)", Kind::Session),
            ("begin", Kind::Control),
            ("START TRANSACTION", Kind::Control),
            ("COMMIT;", Kind::Control),
            ("-- the server ends it here\rCOMMIT", Kind::Control),
            ("END", Kind::Control),
            ("ROLLBACK", Kind::Control),
            ("ROLLBACK TO a", Kind::RollbackTo),
            ("rollback work to savepoint a", Kind::RollbackTo),
            ("PREPARE TRANSACTION 'x'", Kind::Control),
            ("PREPARE x AS SELECT 1", Kind::Session),
            ("SAVEPOINT a", Kind::Savepoint),
            ("RELEASE a", Kind::Savepoint),
            ("SET search_path = a", Kind::Session),
            ("SET LOCAL search_path = a", Kind::Write),
            ("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", Kind::Write),
            ("LISTEN a", Kind::Session),
            ("", Kind::Session),
            ("/* never ends", Kind::Session),
        ] {
            assert_eq!(Kind::of(sql), kind, "{sql}");
        }
    }

    proptest! {
        #[test]
        fn any_text_has_a_kind(sql in ".{0,40}") {
            Kind::of(&sql);
        }

        #[test]
        fn what_stands_before_a_call_does_not_hide_it(before in "([ \t\n]|/\\*[^*/]{0,5}\\*/|--[a-z ]{0,5}\n){0,5}") {
            prop_assert_eq!(Kind::of(&format!("{before}CALL p()")), Kind::Once);
        }
    }
}
