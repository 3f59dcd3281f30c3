//! `[lookups]`: which values belong to one key over all shards.

use std::collections::BTreeMap;

use super::tables::unusable;
use crate::store::Findings;
use crate::store::section::{Entry, Section};
use crate::values::{Definition, Fold};

const FORM: &str =
    "write [lookups.emails] with table = \"users\", columns = [\"email\"] and key = \"id\"";

/// The most columns of a look-up, as of an index.
const COLUMNS_MAX: usize = 32;

/// Reads `[lookups]`. Whether a shard has these tables is not known here.
pub(super) fn read(
    section: &Section<'_>,
    findings: &mut Findings<'_>,
) -> BTreeMap<String, Definition> {
    let mut lookups = BTreeMap::new();
    for entry in section.entries() {
        let name = entry.name();
        if entry.as_table().is_none() {
            let message = format!("lookups.{name} must be a section");
            findings.add(&entry.at(), message, Some(FORM.to_owned()));
            continue;
        }
        if !is_name(name) {
            let hint = "write a to z, digits and underscores, a letter first, 40 at most";
            findings.add(
                &entry.key_at(),
                format!("{name:?} cannot be the name of a look-up"),
                Some(hint.to_owned()),
            );
        }
        let Some(section) = entry.section(findings) else {
            continue;
        };
        section.only(&["table", "columns", "key", "unique", "fold"], findings);
        let table = name_of(&section, "table", "table = \"users\"", "table", findings);
        let columns = columns(&section, findings);
        let key = name_of(
            &section,
            "key",
            "key = \"id\": the column with the sharding key",
            "column",
            findings,
        );
        unique(name, &section, findings);
        let fold = fold(&section, findings);
        if let (Some(table), Some(columns), Some(key)) = (table, columns, key) {
            if columns.contains(&key) {
                let message = format!("the look-up {name:?} looks up its own key {key:?}");
                let hint =
                    "a key is unique by itself: the router finds its shard without a look-up";
                findings.add(section.at(), message, Some(hint.to_owned()));
            }
            let definition = Definition::new(name, table, columns, key).fold(fold);
            lookups.insert(name.to_owned(), definition);
        }
    }
    lookups
}

/// Names in the shards are made of it.
fn is_name(name: &str) -> bool {
    name.len() <= Definition::NAME_MAX
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn name_of(
    section: &Section<'_>,
    key: &str,
    remedy: &str,
    what: &str,
    findings: &mut Findings<'_>,
) -> Option<String> {
    let entry = section.need(key, &format!("add {remedy}"), findings)?;
    let name = entry.string(findings)?;
    usable(&entry, name, what, findings)
}

fn usable(
    entry: &Entry<'_>,
    name: &str,
    what: &str,
    findings: &mut Findings<'_>,
) -> Option<String> {
    if let Some((problem, hint)) = unusable(name, FORM) {
        findings.add(
            &entry.at(),
            format!("the {what} {name:?} {problem}"),
            Some(hint.to_owned()),
        );
        return None;
    }
    Some(name.to_owned())
}

fn columns(section: &Section<'_>, findings: &mut Findings<'_>) -> Option<Vec<String>> {
    let remedy = "add columns = [\"email\"]: the columns that are looked up";
    let entry = section.need("columns", remedy, findings)?;
    let Some(array) = entry.as_array() else {
        entry.wrong_type("a list of names", findings);
        return None;
    };
    if array.is_empty() || array.len() > COLUMNS_MAX {
        let message = format!(
            "a look-up has 1 to {COLUMNS_MAX} columns, not {}",
            array.len()
        );
        findings.add(&entry.at(), message, Some(FORM.to_owned()));
        return None;
    }
    let mut columns: Vec<String> = Vec::new();
    for value in array {
        let Some(name) = value.get_ref().as_str() else {
            entry.wrong_type("a list of names", findings);
            return None;
        };
        let name = usable(&entry, name, "column", findings)?;
        if columns.contains(&name) {
            findings.add(
                &entry.at(),
                format!("the column {name:?} is there twice"),
                None,
            );
            return None;
        }
        columns.push(name);
    }
    Some(columns)
}

fn unique(name: &str, section: &Section<'_>, findings: &mut Findings<'_>) {
    let Some(entry) = section.get("unique") else {
        return;
    };
    match entry.as_bool() {
        Some(true) => {}
        Some(false) => findings.add(
            &entry.at(),
            format!("the look-up {name:?} is not unique, which is not supported yet"),
            Some("write unique = true, or leave the look-up out".to_owned()),
        ),
        None => entry.wrong_type("true", findings),
    }
}

fn fold(section: &Section<'_>, findings: &mut Findings<'_>) -> Fold {
    let Some(entry) = section.get("fold") else {
        return Fold::None;
    };
    let Some(text) = entry.string(findings) else {
        return Fold::None;
    };
    let fold = Fold::ALL.into_iter().find(|fold| fold.as_str() == text);
    if fold.is_none() {
        findings.add(
            &entry.at(),
            format!("fold is \"none\" or \"ascii\", not {text:?}"),
            Some("keep another normal form in a column of its own".to_owned()),
        );
    }
    fold.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const BEFORE: &str = "[cluster]\nshards = 4\nepoch = \
    \"2011-01-01T00:00:00Z\"\n[hosts.db1]\nurl = \
        \"postgres://app@10.0.0.1/app\"\n[map]\nversion = 1\n[map.placement]\ndb1 = \"0-3\"\n";

    fn parse(lookups: &str) -> Result<Config, String> {
        Config::parse(&format!("{BEFORE}{lookups}"), "pgshard.toml").map_err(|e| e.to_string())
    }

    #[test]
    fn a_lookup_arrives() {
        let config = parse(
            "[lookups.emails]\ntable = \"users\"\ncolumns = [\"email\", \"kind\"]\nkey = \
                \"id\"\nunique = true\nfold = \"ascii\"\n",
        );
        let expected =
            Definition::new("emails", "users", ["email", "kind"], "id").fold(Fold::Ascii);
        assert_eq!(config.unwrap().lookups["emails"], expected);
        assert!(parse("").unwrap().lookups.is_empty());
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let good = "table = \"users\"\ncolumns = [\"email\"]\nkey = \"id\"\n";
        let with = |line: &str| format!("[lookups.emails]\n{good}{line}\n");
        let cases = [
            ("lookups.emails = 1\n".to_owned(), "lookups"),
            (
                "[lookups]\nemails = 1\n".to_owned(),
                "lookups.emails must be a section",
            ),
            (
                "[lookups.Emails]\n".to_owned() + good,
                "\"Emails\" cannot be the name",
            ),
            (
                "[lookups.emails]\n".to_owned(),
                "[lookups.emails] has no table",
            ),
            (with("unique = false"), "which is not supported yet"),
            (with("unique = 1"), "lookups.emails.unique must be true"),
            (with("fold = \"unicode\""), "fold is \"none\" or \"ascii\""),
            (with("imutable = true"), "unknown key \"imutable\""),
            (
                with("").replace("\"users\"", "\"public.users\""),
                "names a schema",
            ),
            (
                with("").replace("[\"email\"]", "\"email\""),
                "must be a list of names",
            ),
            (
                with("").replace("[\"email\"]", "[]"),
                "a look-up has 1 to 32 columns",
            ),
            (
                with("").replace("[\"email\"]", "[\"a\", \"a\"]"),
                "is there twice",
            ),
            (
                with("").replace("[\"email\"]", "[\"id\"]"),
                "looks up its own key",
            ),
        ];
        for (text, why) in cases {
            let said = parse(&text).unwrap_err();
            assert!(
                said.contains(why) && said.contains("pgshard.toml:"),
                "{text}\n{said}"
            );
        }
    }
}
