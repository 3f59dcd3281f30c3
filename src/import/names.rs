//! References that no foreign key declares, by the names of columns: `photos.user_id` refers to
//! `users`. Many applications have no foreign keys.

use std::collections::{BTreeSet, HashMap};

use super::facts::{Column, Database, ForeignKey, Table, Unique};

/// The foreign keys that the names of columns suggest, where no constraint covers the column. A
/// column next to one for a type (`item_type`, `item_id`) refers to several tables, and is left
/// out.
pub(crate) fn suggested(database: &Database) -> Vec<ForeignKey> {
    let covered: BTreeSet<(u32, i16)> = database
        .foreign_keys
        .iter()
        .flat_map(|key| key.columns.iter().map(|column| (key.table, *column)))
        .collect();
    let keys = single_keys(database);
    let key_name = database.column_name(database.key.table, database.key.column);
    // A key such as `username` has the same name everywhere; `id` is something else in each table.
    let is_key_by_name = |column: &Column| {
        column.name == key_name && !["id", "key", "name", "code", "uuid"].contains(&key_name)
    };
    let mut by_name: HashMap<(&str, &str), u32> = HashMap::new();
    // `wiki_pages` by `pages`.
    let mut by_end: HashMap<(&str, &str), Vec<u32>> = HashMap::new();
    for table in database.tables.values() {
        by_name.insert((&table.schema, &table.name), table.oid);
        for (at, _) in table.name.match_indices('_') {
            let end = (table.schema.as_str(), &table.name[at + 1..]);
            by_end.entry(end).or_default().push(table.oid);
        }
    }
    let key_table = database.tables.get(&database.key.table);
    let mut found = Vec::new();
    for table in database.tables.values() {
        for column in &table.columns {
            let is_inherited = table.inherits.iter().any(|parent| {
                let parent = database.tables.get(parent);
                parent.is_some_and(|parent| parent.column_named(&column.name).is_some())
            });
            if is_inherited
                || covered.contains(&(table.oid, column.number))
                || type_column(database, table, column).is_some()
            {
                continue;
            }
            let of_key = key_table
                .filter(|key| is_named_after(&column.name, &key.name) || is_key_by_name(column))
                .map(|key| key.oid);
            let target = of_key.or_else(|| {
                let names = plurals(&stem(&column.name)?);
                let schema = table.schema.as_str();
                // Tables of one module share their first word: `wiki_contents` and `wiki_pages`.
                let module = table.name.split_once('_').map(|(module, _)| module);
                let mut named = names
                    .iter()
                    .map(|name| by_name.get(&(schema, name.as_str())));
                let exact = named.find_map(|table| table.copied());
                let next = || {
                    let mut named = names.iter().filter_map(|name| {
                        let name = format!("{}_{name}", module?);
                        by_name.get(&(schema, name.as_str())).copied()
                    });
                    named.next()
                };
                let only = || {
                    let ends = names
                        .iter()
                        .filter_map(|name| by_end.get(&(schema, name.as_str())));
                    let all: BTreeSet<u32> = ends.flatten().copied().collect();
                    all.first().copied().filter(|_| all.len() == 1)
                };
                exact.or_else(next).or_else(only)
            });
            // A tree: rows refer to others of the same table.
            let own = || ["parent_id", "parentId"].contains(&column.name.as_str());
            let target = target.or_else(|| own().then_some(table.oid));
            let Some(target) = target.filter(|target| *target != table.oid || own()) else {
                continue;
            };
            let target_column = if target == database.key.table {
                Some(database.key.column)
            } else {
                keys.get(&target).copied()
            };
            let Some(target_column) = target_column else {
                continue;
            };
            let alike = database
                .column(target, target_column)
                .is_some_and(|other| column.is_alike(other));
            if alike {
                found.push(ForeignKey {
                    name: column.name.clone(),
                    table: table.oid,
                    columns: vec![column.number],
                    target,
                    target_columns: vec![target_column],
                    by_name: true,
                    deferrable: false,
                    sample: Default::default(),
                });
            }
        }
    }
    found
}

/// The column that names the table to which this one refers, in a polymorphic association: Rails
/// has `item_type` next to `item_id`, Django `content_type_id` next to `object_id`.
pub(crate) fn type_column<'a>(
    database: &Database,
    table: &'a Table,
    column: &Column,
) -> Option<&'a Column> {
    let kind = named_type_column(table, column)?;
    // An ID that is unique without its type has no other; `sessions.session_id` is the table's own.
    let uniques = database.uniques.iter();
    let mut uniques = uniques.filter(|unique| {
        unique.table == table.oid && !unique.partial && unique.columns.contains(&column.number)
    });
    let is_own = is_named_after(&column.name, &table.name);
    let is_whole = uniques.all(|unique| unique.columns.contains(&kind.number));
    (is_whole && !is_own).then_some(kind)
}

fn named_type_column<'a>(table: &'a Table, column: &Column) -> Option<&'a Column> {
    let name = column.name.as_str();
    if matches!(name, "object_id" | "object_pk") {
        return table.column_named("content_type_id");
    }
    if let Some(prefix) = name.strip_suffix("_object_id") {
        return table.column_named(&format!("{prefix}_content_type_id"));
    }
    let stem = name.strip_suffix("_id").or(name.strip_suffix("Id"))?;
    let named = ["_type", "Type"]
        .iter()
        .find_map(|end| table.column_named(&format!("{stem}{end}")));
    // Next to `status_id`, `status_type` may be anything; a name of a class is a text.
    named.filter(|found| found.is_text())
}

/// Whether a column is called after this table: `user_id`, `userId` and `user` after `users`.
pub(crate) fn is_named_after(column: &str, table: &str) -> bool {
    let stem = stem(column).unwrap_or_else(|| column.to_owned());
    stems_of_key(table).any(|name| name == stem)
}

/// Tables with a primary key of one column, and that column.
fn single_keys(database: &Database) -> HashMap<u32, i16> {
    let single = |unique: &Unique| match unique.columns.as_slice() {
        [one] if unique.primary => Some((unique.table, *one)),
        _ => None,
    };
    database.uniques.iter().filter_map(single).collect()
}

/// What the name of a column implies about the table that it refers to: `user` of `user_id` and
/// `userId`.
fn stem(column: &str) -> Option<String> {
    let stem = column.strip_suffix("_id").or(column.strip_suffix("Id"))?;
    (!stem.is_empty()).then(|| stem.to_owned())
}

/// The names that a table may have if one of its rows is called so.
fn plurals(stem: &str) -> Vec<String> {
    let mut names = vec![stem.to_owned(), format!("{stem}s"), format!("{stem}es")];
    names.extend(stem.strip_suffix('y').map(|stem| format!("{stem}ies")));
    let capital: Vec<String> = names.iter().map(|name| capitalized(name)).collect();
    names.extend(capital);
    names
}

/// What a column may be called that refers to the key's table: `user` for `users`, `auth_user` and
/// `User`.
fn stems_of_key(table: &str) -> impl Iterator<Item = String> {
    let last = table.rsplit('_').next().unwrap_or(table);
    let mut names = Vec::new();
    for name in [table, last] {
        let lower = uncapitalized(name);
        let singular = lower
            .strip_suffix("ies")
            .map(|stem| format!("{stem}y"))
            .or_else(|| lower.strip_suffix('s').map(str::to_owned));
        names.extend(singular);
        names.push(lower);
    }
    names.into_iter()
}

fn capitalized(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

fn uncapitalized(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_lowercase().chain(letters).collect()
    })
}
