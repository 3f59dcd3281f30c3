//! Other sessions' statements, as they may be shown.

/// An SQL expression: the first 100 characters of the statement in a column, with a `?` for each
/// literal and comment, because logs, journals and messages must not contain users' data. A literal
/// without an end is replaced up to the end of the text; where a text can be read in two ways, the
/// longer match is replaced.
pub(crate) fn shown(column: &str) -> String {
    let literals = [
        r"\'([^\'\\\\]|\\\\.|\'\')*(\'|$)",
        r"\\$([A-Za-z_][A-Za-z_0-9]*)?\\$.*",
        r"/\\*([^*]|\\*[^/])*(\\*/|$)",
        r"--[^\n]*",
        r"\\m[0-9][0-9.]*",
    ];
    let literals = literals.join("|");
    format!(
        "pg_catalog.left(pg_catalog.regexp_replace(pg_catalog.regexp_replace({column}, \
            E'{literals}', '?', 'g'),
            E'\\\\s+', ' ', 'g'), 100)"
    )
}
