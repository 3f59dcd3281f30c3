//! The text of a view's query in a form that does not depend on the major version.
//!
//! PostgreSQL 16 stopped qualifying the columns of a query that reads one thing: 15 has `SELECT
//! photos.id FROM photos` where 16 has `SELECT id FROM photos`. Only the outermost query changed,
//! so only its qualifiers are removed. The fingerprint also contains the columns that the view
//! reads, so nothing that matters is lost.

/// Tokens with one space between them, and without the qualifiers that only some versions write.
pub(super) fn canonical(query: &str) -> String {
    let tokens = tokens(query);
    let from = single_source(&tokens);
    let mut out: Vec<&str> = Vec::with_capacity(tokens.len());
    // One entry for each open parenthesis: whether it began a query of its own.
    let mut open: Vec<bool> = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.as_str() {
            "(" => open.push(
                tokens
                    .get(at + 1)
                    .is_some_and(|t| ["SELECT", "WITH", "VALUES"].contains(&t.as_str())),
            ),
            ")" => {
                open.pop();
            }
            _ => {}
        }
        let strip = from.as_ref().is_some_and(|from| !from.contains(&at))
            && !open.contains(&true)
            && is_name(token)
            && tokens.get(at + 1).is_some_and(|t| t == ".")
            && tokens.get(at + 2).is_some_and(|t| is_name(t))
            && tokens.get(at + 3).is_none_or(|t| t != "(" && t != ".")
            && !out
                .last()
                .is_some_and(|before| [".", ":", "COLLATE"].contains(before));
        if strip {
            at += 2;
            continue;
        }
        out.push(token);
        at += 1;
    }
    out.join(" ")
}

/// The tokens of the outermost FROM, if it names exactly one thing.
fn single_source(tokens: &[String]) -> Option<std::ops::Range<usize>> {
    const END: [&str; 12] = [
        "WHERE",
        "GROUP",
        "HAVING",
        "WINDOW",
        "ORDER",
        "LIMIT",
        "OFFSET",
        "FETCH",
        "FOR",
        "UNION",
        "INTERSECT",
        "EXCEPT",
    ];
    let mut depth = 0;
    let mut start = None;
    let mut end = tokens.len();
    for (at, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "(" => depth += 1,
            ")" => depth -= 1,
            // `a IS DISTINCT FROM b` contains no FROM clause.
            "FROM"
                if depth == 0 && start.is_none() && !(at > 0 && tokens[at - 1] == "DISTINCT") =>
            {
                start = Some(at)
            }
            "," | "JOIN" if depth == 0 && start.is_some() => return None,
            word if depth == 0 && start.is_some() && END.contains(&word) => {
                end = at;
                break;
            }
            _ => {}
        }
    }
    start.map(|start| start..end)
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c == '"' || c == '_' || c.is_alphabetic())
}

/// Words, quoted names and texts are one token each, and so is every other character.
fn tokens(query: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut rest = query.trim_end().trim_end_matches(';');
    while let Some(first) = rest.chars().next() {
        let escaped = first == '\'' && tokens.last().is_some_and(|t| t == "E");
        let length = match first {
            c if c.is_whitespace() => {
                rest = &rest[c.len_utf8()..];
                continue;
            }
            '"' | '\'' => quoted_length(rest, first, escaped),
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        tokens.push(rest[..length].to_owned());
        rest = &rest[length..];
    }
    tokens
}

fn is_word(c: char) -> bool {
    c == '_' || c == '$' || c.is_alphanumeric() || !c.is_ascii()
}

/// The length of a quoted run with its marks. A doubled mark ends one run and begins another, which
/// gives the same result.
fn quoted_length(text: &str, mark: char, escaped: bool) -> usize {
    let mut skip = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if skip => skip = false,
            '\\' if escaped => skip = true,
            c if c == mark => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn versions_agree_on_the_text_of_a_view() {
        for (fifteen, sixteen) in [
            (
                "SELECT photos.id,\n    photos.\"T\"\n   FROM photos\n  WHERE (photos.id > 0);",
                "SELECT id,\n \"T\" FROM photos WHERE (id > 0);",
            ),
            (
                "SELECT p.id FROM public.photos p",
                "SELECT id FROM public.photos p",
            ),
            (
                "SELECT lower(p.a) AS a FROM p ORDER BY p.a",
                "SELECT lower(a) AS a FROM p ORDER BY a",
            ),
            (
                "SELECT (t.a IS DISTINCT FROM t.b) AS x FROM t",
                "SELECT (a IS DISTINCT FROM b) AS x FROM t",
            ),
            (
                "SELECT t.a FROM t WHERE (EXISTS ( SELECT u.b FROM u WHERE (u.b = t.a)))",
                "SELECT a FROM t WHERE (EXISTS ( SELECT u.b FROM u WHERE (u.b = t.a)))",
            ),
        ] {
            assert_eq!(canonical(fifteen), canonical(sixteen));
        }
    }

    #[test]
    fn what_differs_stays_different() {
        for (left, right) in [
            (
                "SELECT a.id FROM a JOIN b ON a.id = b.id",
                "SELECT b.id FROM a JOIN b ON a.id = b.id",
            ),
            ("SELECT public.f(t.a) FROM t", "SELECT other.f(t.a) FROM t"),
            ("SELECT t.a::public.x FROM t", "SELECT t.a::other.x FROM t"),
            ("SELECT 'a.b' FROM t", "SELECT 'c.b' FROM t"),
            ("SELECT 'it''s  two' FROM t", "SELECT 'it''s two' FROM t"),
            (r"SELECT E'a\'b  c' FROM t", r"SELECT E'a\'b c' FROM t"),
            ("SELECT a FROM s.t", "SELECT a FROM r.t"),
        ] {
            assert_ne!(canonical(left), canonical(right));
        }
    }
}
