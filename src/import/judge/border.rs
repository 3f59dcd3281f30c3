//! What is bound to imported tables by OID and is not imported with them, and what changes its
//! meaning when it is.

use std::collections::BTreeMap;

use super::case::Case;
use crate::import::facts::DependentKind;
use crate::import::obstacle::{BlockingObject, Kind};

pub(super) fn look(case: &Case<'_>, found: &mut Vec<BlockingObject>) {
    foreign_keys(case, found);
    inheritance(case, found);
    dependents(case, found);
    triggers(case, found);
    shared(case, found);
    names(case, found);
}

fn foreign_keys(case: &Case<'_>, found: &mut Vec<BlockingObject>) {
    for key in case.database.foreign_keys.iter().filter(|key| !key.by_name) {
        let object = case.database.column_names(key.table, &key.columns);
        let to = case.name(key.target);
        match (case.is_on_hosts(key.table), case.is_on_hosts(key.target)) {
            (true, false) => {
                let size = case.database.tables.get(&key.target);
                let is_large = size.is_some_and(|table| {
                    table.bytes() > crate::import::decide::REFERENCE_BYTES_MAX
                });
                let why = if is_large {
                    format!("to {to}, which is too large for a reference table")
                } else {
                    format!("to {to}")
                };
                found.push(BlockingObject::new(Kind::ForeignKeyToStays, object, why));
            }
            (false, true) if case.is_imported(key.target) => {
                found.push(BlockingObject::new(
                    Kind::ForeignKeyFromStays,
                    object,
                    format!("to {to}"),
                ));
            }
            (true, true) if !case.is_imported(key.table) && case.is_imported(key.target) => {
                let detail = format!("of a reference table, to {to}");
                found.push(BlockingObject::new(
                    Kind::ForeignKeyFromStays,
                    object,
                    detail,
                ));
            }
            _ => {}
        }
    }
}

fn inheritance(case: &Case<'_>, found: &mut Vec<BlockingObject>) {
    for table in case.database.tables.values() {
        for parent in &table.inherits {
            let detail = format!("from {}", case.name(*parent));
            let kind = match (case.is_imported(table.oid), case.is_imported(*parent)) {
                (true, true) => Kind::Inheritance,
                (false, false) => continue,
                _ => Kind::InheritanceAcross,
            };
            found.push(BlockingObject::new(kind, case.name(table.oid), detail));
        }
    }
}

fn dependents(case: &Case<'_>, found: &mut Vec<BlockingObject>) {
    for one in &case.database.dependents {
        let imported: Vec<u32> = one
            .tables
            .iter()
            .copied()
            .filter(|table| case.is_imported(*table))
            .collect();
        let Some(first) = imported.first() else {
            continue;
        };
        let outside = one
            .tables
            .iter()
            .find(|table| case.database.tables.contains_key(table) && !case.is_on_hosts(**table));
        let (kind, detail) = match (one.kind, outside) {
            (DependentKind::Function, _) => {
                (Kind::FunctionBound, format!("to {}", case.name(*first)))
            }
            (DependentKind::Rule, Some(outside)) => (
                Kind::RuleAcross,
                format!("bound to {}", case.name(*outside)),
            ),
            (DependentKind::Rule, None) => continue,
            (_, Some(outside)) => (
                Kind::ViewAcross,
                format!("reads {} and {}", case.name(*first), case.name(*outside)),
            ),
            (DependentKind::View, None) => (Kind::View, String::new()),
            (DependentKind::MaterializedView, None) => (Kind::MaterializedView, String::new()),
        };
        found.push(BlockingObject::new(kind, &one.name, detail));
    }
}

fn triggers(case: &Case<'_>, found: &mut Vec<BlockingObject>) {
    // Often one function is called for every table.
    let mut by_function: BTreeMap<&str, (&str, Vec<String>)> = BTreeMap::new();
    for trigger in &case.database.triggers {
        if case.is_imported(trigger.table) {
            let of_function = by_function.entry(&trigger.function);
            let (_, names) = of_function.or_insert((&trigger.body, Vec::new()));
            names.push(format!("{} on {}", trigger.name, case.name(trigger.table)));
        }
    }
    for (function, (body, names)) in by_function {
        let staying = case
            .database
            .tables
            .values()
            .filter(|table| !case.is_on_hosts(table.oid) && has_word(body, &table.name));
        let staying: Vec<&str> = staying.map(|table| table.name.as_str()).collect();
        let (first, others) = names
            .split_first()
            .map_or(("", 0), |(first, rest)| (first.as_str(), rest.len()));
        let mut detail = match others {
            0 => format!("called by {first}"),
            1 => format!("called by {first}, and by 1 other trigger"),
            more => format!("called by {first}, and by {more} other triggers"),
        };
        if !staying.is_empty() {
            detail.push_str(&format!("; it names {}", staying.join(", ")));
        }
        found.push(BlockingObject::new(Kind::Trigger, function, detail));
    }
}

/// Whether a text has this word, not as a part of another.
fn has_word(text: &str, word: &str) -> bool {
    let is_inside = |c: char| c == '_' || c.is_alphanumeric();
    text.match_indices(word).any(|(at, found)| {
        let before = text[..at].chars().next_back();
        let after = text[at + found.len()..].chars().next();
        !before.is_some_and(is_inside) && !after.is_some_and(is_inside)
    })
}

fn shared(case: &Case<'_>, found: &mut Vec<BlockingObject>) {
    let names = |tables: &[u32]| {
        let imported = tables.iter().filter(|table| case.is_imported(**table));
        let names: Vec<String> = imported.map(|table| case.name(*table)).collect();
        names
    };
    for sequence in &case.database.sequences {
        if !names(&sequence.tables).is_empty() {
            let all: Vec<String> = sequence
                .tables
                .iter()
                .map(|table| case.name(*table))
                .collect();
            let detail = format!("used by {}", all.join(", "));
            found.push(BlockingObject::new(
                Kind::SharedSequence,
                &sequence.name,
                detail,
            ));
        }
    }
    for publication in &case.database.publications {
        let names = names(&publication.tables);
        if !names.is_empty() {
            found.push(BlockingObject::new(
                Kind::Publication,
                &publication.name,
                counted(&names),
            ));
        }
    }
    let home = case.database.tables.get(&case.database.key.table);
    for role in &case.database.roles {
        let names = names(&role.tables);
        // The owner has to exist there in any case.
        if !names.is_empty() && home.is_none_or(|home| home.owner != role.name) {
            let detail = format!("on {}", counted(&names));
            found.push(BlockingObject::new(Kind::Role, &role.name, detail));
        }
    }
    for extension in &case.database.extensions {
        let names = names(&extension.tables);
        if !names.is_empty() {
            found.push(BlockingObject::new(
                Kind::Extension,
                &extension.name,
                format!("used by {}", counted(&names)),
            ));
        }
    }
}

fn counted(names: &[String]) -> String {
    match names {
        [one] => one.clone(),
        [first, rest @ ..] if rest.len() > 2 => format!("{first} and {} other tables", rest.len()),
        several => several.join(", "),
    }
}

fn names(case: &Case<'_>, found: &mut Vec<BlockingObject>) {
    let mut by_name: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for table in case.imported() {
        by_name.entry(&table.name).or_default().push(table.oid);
    }
    for (name, tables) in by_name {
        if tables.len() > 1 {
            let all: Vec<String> = tables.iter().map(|table| case.name(*table)).collect();
            found.push(BlockingObject::new(Kind::NameClash, name, all.join(", ")));
        }
    }
}
