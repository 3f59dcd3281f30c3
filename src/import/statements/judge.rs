//! Whether a statement names the key of the rows that it uses. Pure.

use std::collections::{BTreeSet, HashMap};

use super::class::StatementClass;
use super::form;
use super::parse::{self, ComparedColumn, Level};
use crate::import::decide::{Decision, Decisions};
use crate::import::facts::Database;

/// What was found out about a statement.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) class: StatementClass,
    /// The tables that make it so, or why it cannot be read.
    pub(super) about: String,
    /// Whether it names the schema of an imported table.
    pub(super) names_schema: bool,
}

/// Judges statements by the decisions about tables.
pub(super) struct Judge<'a> {
    database: &'a Database,
    decisions: &'a Decisions,
    /// Tables by their names, those of the key's schema first.
    by_name: HashMap<&'a str, Vec<(&'a str, u32)>>,
    /// The columns that are the key, by table.
    keys: HashMap<u32, &'a str>,
    /// The columns that are IDs of imported tables, or refer to one, by table.
    ids: HashMap<u32, BTreeSet<&'a str>>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(database: &'a Database, decisions: &'a Decisions) -> Judge<'a> {
        let mut judge = Judge {
            database,
            decisions,
            by_name: HashMap::new(),
            keys: HashMap::new(),
            ids: HashMap::new(),
        };
        let home = database.tables.get(&database.key.table);
        let home = home.map_or("", |table| table.schema.as_str());
        for table in database.tables.values() {
            let named = judge.by_name.entry(&table.name).or_default();
            let place = if table.schema == home { 0 } else { named.len() };
            named.insert(place, (&table.schema, table.oid));
        }
        // A view is as the first imported table that it reads, or else as its first one.
        for view in &database.dependents {
            let imported = view.tables.iter().find(|table| judge.is_imported(**table));
            if let (Some((schema, name)), Some(table)) =
                (view.name.split_once('.'), imported.or(view.tables.first()))
            {
                judge
                    .by_name
                    .entry(name)
                    .or_default()
                    .push((schema, *table));
            }
        }
        for (table, decision) in decisions {
            let column = match decision {
                Decision::Key => database.key.column,
                Decision::Column(key) => key.column,
                _ => continue,
            };
            judge
                .keys
                .insert(*table, database.column_name(*table, column));
        }
        for unique in database.uniques.iter().filter(|unique| unique.primary) {
            if let [id] = unique.columns.as_slice() {
                let name = database.column_name(unique.table, *id);
                judge.ids.entry(unique.table).or_default().insert(name);
            }
        }
        for key in &database.foreign_keys {
            if let [column] = key.columns.as_slice()
                && decisions
                    .get(&key.target)
                    .is_some_and(Decision::is_imported)
            {
                let name = database.column_name(key.table, *column);
                judge.ids.entry(key.table).or_default().insert(name);
            }
        }
        judge
    }

    fn is_imported(&self, table: u32) -> bool {
        self.decisions
            .get(&table)
            .is_some_and(Decision::is_imported)
    }

    /// Whether a text has the name of an imported table, or of a view of one.
    fn names_imported(&self, text: &str) -> bool {
        let is_inside = |c: char| c == '_' || c == '$' || c.is_alphanumeric();
        let mut words = text.split(|c| !is_inside(c));
        words.any(|word| {
            let named = self
                .by_name
                .get(word)
                .or_else(|| self.by_name.get(word.to_lowercase().as_str()));
            named.is_some_and(|named| named.iter().any(|(_, table)| self.is_imported(*table)))
        })
    }

    /// Judges the form of a statement.
    pub(super) fn judge(&self, text: &str) -> Judgement {
        let unreadable = |about: String| Judgement {
            class: StatementClass::Unreadable,
            about,
            names_schema: false,
        };
        let other = Judgement {
            class: StatementClass::Other,
            about: String::new(),
            names_schema: false,
        };
        if form::controls_session(text) {
            return other;
        }
        if text == "<insufficient privilege>" {
            return unreadable("the role may not see it: GRANT pg_read_all_stats".to_owned());
        }
        let levels = match parse::levels(text) {
            Ok(levels) => levels,
            // Definitions are none of the application's daily work.
            Err(_) if form::defines(text) => return other,
            // What names no imported table uses none, unless its text does not show what it does.
            Err(_) if !form::hides(text) && !self.names_imported(text) => return other,
            Err(error) => return unreadable(error),
        };
        let mut judged = StatementNames::default();
        for level in &levels {
            self.level(level, &mut judged);
        }
        let class = if judged.imported.is_empty() {
            return other;
        } else if !judged.staying.is_empty() {
            StatementClass::Across
        } else if judged.without_key {
            StatementClass::WithoutKey
        } else if judged.by_id || !judged.by_key {
            // A level by an ID, or by what another level gives.
            if judged.by_key && !judged.by_id {
                StatementClass::ByKey
            } else {
                StatementClass::ById
            }
        } else {
            StatementClass::ByKey
        };
        let tables: Vec<String> = judged
            .imported
            .iter()
            .chain(
                judged
                    .staying
                    .iter()
                    .filter(|_| class == StatementClass::Across),
            )
            .map(|table| self.database.name(*table))
            .collect();
        Judgement {
            class,
            about: tables.join(", "),
            names_schema: judged.names_schema,
        }
    }

    fn level(&self, level: &Level, judged: &mut StatementNames) {
        let mut tables: Vec<(&str, u32)> = Vec::new();
        for name in &level.tables {
            let Some(table) = self.find(name.schema.as_deref(), &name.table) else {
                continue;
            };
            tables.push((&name.alias, table));
            if self.is_imported(table) {
                judged.imported.insert(table);
                judged.names_schema |= name.schema.is_some();
            } else if self.decisions.get(&table) != Some(&Decision::Reference) {
                judged.staying.insert(table);
            }
        }
        tables.retain(|(_, table)| self.is_imported(*table));
        if tables.is_empty() {
            return;
        }
        let naming = match &level.inserts {
            Some(columns) => self.inserting(tables[0].1, columns),
            None => {
                let alternatives = level.alternatives.iter();
                alternatives
                    .map(|all| self.naming(&tables, all))
                    .max()
                    .unwrap_or(Naming::Nothing)
            }
        };
        match naming {
            Naming::Key => judged.by_key = true,
            Naming::Another => {}
            Naming::Id => judged.by_id = true,
            Naming::Nothing => judged.without_key = true,
        }
    }

    fn find(&self, schema: Option<&str>, table: &str) -> Option<u32> {
        let named = self.by_name.get(table)?;
        let fits = named
            .iter()
            .find(|(found, _)| schema.is_none_or(|wanted| wanted == *found));
        fits.map(|(_, table)| *table)
    }

    /// What one alternative names.
    fn naming(&self, tables: &[(&str, u32)], compared: &[ComparedColumn]) -> Naming {
        let named = |one: &ComparedColumn| {
            let fits = |(alias, table): &&(&str, u32)| match &one.alias {
                Some(wanted) => wanted == alias,
                None => self
                    .database
                    .tables
                    .get(table)
                    .is_some_and(|table| table.column_named(&one.column).is_some()),
            };
            let table = tables.iter().find(fits).map(|(_, table)| *table);
            let column = one.column.as_str();
            let Some(table) = table else {
                return Naming::Nothing;
            };
            let is_key = self.keys.get(&table) == Some(&column);
            let is_id = self.ids.get(&table).is_some_and(|ids| ids.contains(column));
            match (is_key, is_id, one.with_value) {
                (true, _, true) => Naming::Key,
                (false, true, true) => Naming::Id,
                // The key, or an ID, is that of a row of another level or table.
                (_, _, false) if is_key || is_id => Naming::Another,
                _ => Naming::Nothing,
            }
        };
        let mut best = Naming::Nothing;
        for one in compared {
            let own = named(one);
            // Two tables of one level that are joined do not find each other.
            let joined = own == Naming::Another
                && compared.iter().all(|one| !one.with_value)
                && tables.len() > 1;
            if !joined {
                best = best.min(own);
            }
        }
        best
    }

    fn inserting(&self, table: u32, columns: &[String]) -> Naming {
        match self.keys.get(&table) {
            Some(key) if columns.is_empty() || columns.iter().any(|one| one == key) => Naming::Key,
            Some(_) => Naming::Nothing,
            // Its key is that of the row that it refers to.
            None => Naming::Id,
        }
    }
}

/// What a level names of the rows that it uses, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Naming {
    /// The key.
    Key,
    /// What another level or table gives.
    Another,
    /// An ID.
    Id,
    /// Neither.
    Nothing,
}

/// What the levels of a statement name.
#[derive(Debug, Default)]
struct StatementNames {
    imported: BTreeSet<u32>,
    staying: BTreeSet<u32>,
    by_key: bool,
    by_id: bool,
    without_key: bool,
    names_schema: bool,
}
