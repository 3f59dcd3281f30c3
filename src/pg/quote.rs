//! Names and texts as SQL.

/// A name as a quoted identifier: `we"ird` becomes `"we""ird"`.
///
/// A NUL byte cannot be in a name in PostgreSQL; it is dropped, as it would cut the statement
/// short.
pub fn quote_ident(name: &str) -> String {
    quoted(name, '"')
}

/// A text as a string literal, whatever `standard_conforming_strings` is: with a backslash in it,
/// an `E''` literal.
pub fn quote_literal(text: &str) -> String {
    if text.contains('\\') {
        format!(" E{}", quoted(&text.replace('\\', "\\\\"), '\''))
    } else {
        quoted(text, '\'')
    }
}

fn quoted(text: &str, mark: char) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push(mark);
    for c in text.chars().filter(|c| *c != '\0') {
        if c == mark {
            out.push(mark);
        }
        out.push(c);
    }
    out.push(mark);
    out
}

/// A DO statement. A name in the body cannot end its quotes, whatever the name is.
#[cfg(feature = "ops")]
pub(crate) fn do_block(body: &str) -> String {
    let tag = "$rights$";
    if body.contains(tag) {
        format!("DO {}", quote_literal(body))
    } else {
        format!("DO {tag} {body} {tag}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_doubled() {
        assert_eq!(quote_ident("shard_0007"), r#""shard_0007""#);
        assert_eq!(quote_ident("we\"ird\0"), r#""we""ird""#);
        assert_eq!(quote_literal("O'Hara"), "'O''Hara'");
        assert_eq!(quote_literal(r"a\'b"), r" E'a\\''b'");
    }
}
