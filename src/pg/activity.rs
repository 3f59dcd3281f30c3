//! Other sessions' statements, as they may be shown.

/// An SQL expression: the first 100 characters of the statement in a column, without its literals and comments, since
/// what people have typed there is nobody's to read in a log, a journal or a message. Cut off where it is not complete;
/// where it is in doubt what is a literal, more is left out.
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
        "pg_catalog.left(pg_catalog.regexp_replace(pg_catalog.regexp_replace({column}, E'{literals}', '?', 'g'),
            E'\\\\s+', ' ', 'g'), 100)"
    )
}
