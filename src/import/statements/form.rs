//! The form of a statement: its text with `$1` for each value, and without comments and needless
//! spaces. Statements of one form differ in their values only.

/// The form of a statement.
pub(super) fn of(text: &str) -> String {
    let mut form = Form {
        text: String::with_capacity(text.len().min(4096)),
    };
    let mut rest = text.trim().trim_end_matches(';').trim_end();
    while let Some(first) = rest.chars().next() {
        rest = form.take(first, rest);
    }
    let text = form.text.trim_end().to_owned();
    first_word_of_session(&text).unwrap_or(text)
}

/// What only controls the session or a transaction.
const CONTROLS: [&str; 17] = [
    "BEGIN",
    "START",
    "COMMIT",
    "END",
    "ROLLBACK",
    "ABORT",
    "SAVEPOINT",
    "RELEASE",
    "SET",
    "RESET",
    "SHOW",
    "DISCARD",
    "DEALLOCATE",
    "LISTEN",
    "UNLISTEN",
    "NOTIFY",
    "CLOSE",
];

/// What defines objects, or looks after them.
const DEFINES: [&str; 13] = [
    "CREATE",
    "ALTER",
    "DROP",
    "COMMENT",
    "GRANT",
    "REVOKE",
    "VACUUM",
    "ANALYZE",
    "REINDEX",
    "CLUSTER",
    "CHECKPOINT",
    "REFRESH",
    "SECURITY",
];

/// A statement that only controls the session or a transaction, without what may differ each time:
/// `SAVEPOINT s1` and `SAVEPOINT s2` are one.
fn first_word_of_session(text: &str) -> Option<String> {
    let word = first_word(text);
    CONTROLS.contains(&word.as_str()).then_some(word)
}

/// Whether the form of a statement only controls the session or a transaction.
pub(super) fn controls_session(form: &str) -> bool {
    CONTROLS.contains(&form)
}

/// Whether the form of a statement defines objects.
pub(super) fn defines(form: &str) -> bool {
    DEFINES.contains(&first_word(form).as_str())
}

/// Whether what the statement does is not in its text.
pub(super) fn hides(form: &str) -> bool {
    ["CALL", "DO", "EXECUTE", "FETCH", "MOVE"].contains(&first_word(form).as_str())
}

fn first_word(text: &str) -> String {
    text.split(' ')
        .next()
        .unwrap_or_default()
        .to_ascii_uppercase()
}

struct Form {
    text: String,
}

impl Form {
    /// Takes what begins here, and returns the rest.
    fn take<'a>(&mut self, first: char, rest: &'a str) -> &'a str {
        let after = |bytes: usize| rest.get(bytes..).unwrap_or_default();
        if first.is_whitespace() {
            self.space();
            return rest.trim_start();
        }
        if rest.starts_with("--") {
            self.space();
            return rest.find('\n').map_or("", after);
        }
        if rest.starts_with("/*") {
            self.space();
            return after(comment(rest));
        }
        if first == '\'' {
            // The letter of E'…' and the like is a part of the value.
            let escapes = self.drop_prefix();
            self.value();
            return after(quoted(rest, escapes));
        }
        if first == '"' {
            let end = rest[1..].find('"').map_or(rest.len(), |at| at + 2);
            self.text.push_str(&rest[..end]);
            return after(end);
        }
        if first == '$' {
            if let Some(end) = dollar_quoted(rest) {
                self.value();
                return after(end);
            }
            let digits = rest[1..].bytes().take_while(u8::is_ascii_digit).count();
            if digits > 0 {
                self.value();
                return after(1 + digits);
            }
        }
        if first.is_ascii_digit() {
            self.value();
            let end = rest
                .bytes()
                .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_'))
                .count();
            return after(end);
        }
        if is_word(first) {
            let end = rest
                .find(|c: char| !is_word(c) && !c.is_ascii_digit() && c != '$')
                .unwrap_or(rest.len());
            self.text.push_str(&rest[..end]);
            return after(end);
        }
        self.text.push(first);
        if first == ')' {
            self.fold();
        }
        after(first.len_utf8())
    }

    fn space(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with(' ') {
            self.text.push(' ');
        }
    }

    /// A value; a list of values is as one.
    fn value(&mut self) {
        let trimmed = self.text.trim_end();
        let sign = trimmed.strip_suffix(['-', '+']);
        // A sign after something that is no operand belongs to the number.
        if let Some(before) = sign
            && before.trim_end().ends_with(['(', ',', '=', '<', '>'])
        {
            self.text.truncate(before.len());
        }
        let before = self.text.trim_end();
        if let Some(list) = before.strip_suffix(',')
            && list.trim_end().ends_with("($1")
        {
            self.text.truncate(list.trim_end().len());
            return;
        }
        self.text.push_str("$1");
    }

    /// Rows of values are as one: `VALUES ($1), ($1)`.
    fn fold(&mut self) {
        let twice = ["($1), ($1)", "($1),($1)"];
        for twice in twice {
            if self.text.ends_with(twice) {
                let length = self.text.len() - twice.len() + "($1)".len();
                self.text.truncate(length);
            }
        }
    }

    /// Drops the `E`, `B`, `X`, `N` or `U&` before a quote. Returns whether backslashes escape.
    fn drop_prefix(&mut self) -> bool {
        for prefix in ["E", "e", "B", "b", "X", "x", "N", "n", "U&", "u&"] {
            if let Some(before) = self.text.strip_suffix(prefix)
                && !before.ends_with(is_word)
                && !before.ends_with(|c: char| c.is_ascii_digit())
            {
                let length = before.len();
                self.text.truncate(length);
                return matches!(prefix, "E" | "e");
            }
        }
        false
    }
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphabetic()
}

/// The bytes of a comment, which may contain others.
fn comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    let bytes = text.as_bytes();
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The bytes of a quoted value.
fn quoted(text: &str, escapes: bool) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if escapes => at += 2,
            b'\'' if bytes.get(at + 1) == Some(&b'\'') => at += 2,
            b'\'' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// The bytes of a value in dollar quotes, if one begins here.
fn dollar_quoted(text: &str) -> Option<usize> {
    let tag = text[1..].find('$')?;
    let tag = &text[..tag + 2];
    let inner = &tag[1..tag.len() - 1];
    let is_tag = !inner.starts_with(|c: char| c.is_ascii_digit())
        && inner.chars().all(|c| is_word(c) || c.is_ascii_digit());
    if !is_tag {
        return None;
    }
    let end = text[tag.len()..].find(tag);
    Some(end.map_or(text.len(), |at| tag.len() + at + tag.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_that_differ_in_values_have_one_form() {
        for (statement, form) in [
            (
                "SELECT * FROM t WHERE a = 12;",
                "SELECT * FROM t WHERE a = $1",
            ),
            ("select  1.5e3 ,\n 'it''s'", "select $1 , $1"),
            ("SELECT E'a\\'b', x'ff' FROM t1", "SELECT $1, $1 FROM t1"),
            (
                "SELECT a FROM t WHERE a IN (1, 2, 3)",
                "SELECT a FROM t WHERE a IN ($1)",
            ),
            (
                "SELECT a FROM t WHERE a IN ($1,$2 , $3)",
                "SELECT a FROM t WHERE a IN ($1)",
            ),
            (
                "SELECT a FROM t WHERE a IN ($1 /*, ... */)",
                "SELECT a FROM t WHERE a IN ($1 )",
            ),
            (
                "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
                "INSERT INTO t VALUES ($1)",
            ),
            (
                "SELECT a -- why\nFROM t /* x /* y */ z */ WHERE b=-1",
                "SELECT a FROM t WHERE b=$1",
            ),
            (
                "SELECT \"Weird 1\" FROM \"T\"",
                "SELECT \"Weird 1\" FROM \"T\"",
            ),
            ("SELECT $a$ it's $a$, $$x$$", "SELECT $1, $1"),
            ("SAVEPOINT s140_x17", "SAVEPOINT"),
            ("set local search_path = a", "SET"),
            ("SELECT a - 1 FROM t", "SELECT a - $1 FROM t"),
            ("SELECT 'open", "SELECT $1"),
            ("", ""),
        ] {
            assert_eq!(of(statement), form, "{statement}");
        }
    }
}
