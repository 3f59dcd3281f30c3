//! `[tables]`: the columns that hold sharding keys. Only `check --rows` looks at it.

use std::collections::BTreeMap;

use crate::store::Findings;
use crate::store::section::Section;

/// The config of a table that every shard has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableConfig {
    /// The column with the key of its rows' shard.
    pub key: String,
}

/// The longest name that PostgreSQL keeps, in bytes.
const NAME_MAX: usize = 63;

const FORM: &str = "write [tables.photos] with key = \"user_id\"";

/// Reads `[tables]`. Whether a shard has these tables is not known here.
pub(super) fn read(
    section: &Section<'_>,
    findings: &mut Findings<'_>,
) -> BTreeMap<String, TableConfig> {
    let mut tables = BTreeMap::new();
    for entry in section.entries() {
        let name = entry.name();
        if entry.as_table().is_none() {
            let message = format!("tables.{name} must be a section");
            findings.add(&entry.at(), message, Some(FORM.to_owned()));
            continue;
        }
        if let Some((problem, hint)) = unusable(name, FORM) {
            findings.add(
                &entry.key_at(),
                format!("the table {name:?} {problem}"),
                Some(hint.to_owned()),
            );
        }
        let Some(table) = entry.section(findings) else {
            continue;
        };
        table.only(&["key"], findings);
        let remedy = "add key = \"user_id\": the column with the sharding key";
        let Some(entry) = table.need("key", remedy, findings) else {
            continue;
        };
        let Some(key) = entry.string(findings) else {
            continue;
        };
        if let Some((problem, hint)) = unusable(key, FORM) {
            findings.add(
                &entry.at(),
                format!("the column {key:?} {problem}"),
                Some(hint.to_owned()),
            );
            continue;
        }
        let key = key.to_owned();
        tables.insert(name.to_owned(), TableConfig { key });
    }
    tables
}

/// Why a name cannot be that of a table or a column in a shard.
pub(super) fn unusable(name: &str, form: &'static str) -> Option<(&'static str, &'static str)> {
    let schema = "names a schema";
    match name {
        "" => Some(("has no name", form)),
        _ if name.len() > NAME_MAX => Some(("has a name of more than 63 bytes", form)),
        _ if name.contains(['{', '}', '.']) => Some((
            schema,
            "write the name alone, as in CREATE TABLE after {shard}., without quotes",
        )),
        _ if name.contains('"') => Some(("has a quote in its name", "write it without quotes")),
        _ => None,
    }
}
