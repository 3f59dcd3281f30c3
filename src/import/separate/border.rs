//! What is bound to imported tables and would stay, or is bound the other way. Pure.
//!
//! A fence of the new schema stops no statement that is bound to a table by its OID, and tables
//! that moved are found by no name with the former schema.

use std::collections::BTreeSet;

use super::mentions::{self, Mention};
use super::outside::Outside;
use super::path::{self, Need, Schemas};
use crate::import::change::Refusal;
use crate::import::decide::{Decision, Decisions};
use crate::import::facts::{Database, Table};
use crate::import::judge;
use crate::import::obstacle::{BlockingObject, Kind};

/// A database at its border.
#[derive(Clone, Copy)]
pub(super) struct Border<'a> {
    pub(super) database: &'a Database,
    pub(super) decisions: &'a Decisions,
    pub(super) outside: &'a Outside,
    pub(super) schemas: Schemas<'a>,
}

/// Where a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Imported,
    Outside,
    /// It is a reference table.
    Both,
}

impl Border<'_> {
    /// What has to be changed first.
    pub(super) fn refusals(&self) -> Vec<Refusal> {
        let found = judge::border(self.database, self.decisions);
        let mut refusals: Vec<Refusal> = found.iter().filter_map(|one| self.of_kind(one)).collect();
        self.cascades(&mut refusals);
        self.policies(&mut refusals);
        self.triggers(&mut refusals);
        self.functions(&mut refusals);
        for name in &self.outside.publications {
            refusals.push(Refusal::new(
                format!("publication {name}"),
                format!("has all tables of schema {}", self.schemas.old),
                "publish the tables by name",
            ));
        }
        for name in &self.outside.clashes {
            refusals.push(Refusal::new(
                format!("{}.{name}", self.schemas.new),
                "has the name of something that moves there",
                "rename one of them",
            ));
        }
        refusals
    }

    fn is_imported(&self, table: u32) -> bool {
        let decision = self.decisions.get(&table);
        decision.is_some_and(Decision::is_imported)
    }

    fn side(&self, table: u32) -> Side {
        match self.decisions.get(&table) {
            Some(Decision::Reference) => Side::Both,
            Some(decision) if decision.is_imported() => Side::Imported,
            _ => Side::Outside,
        }
    }

    /// The tables of a side.
    fn tables(&self, side: Side) -> impl Iterator<Item = &Table> {
        let tables = self.database.tables.values();
        tables.filter(move |table| self.side(table.oid) == side)
    }

    /// Whether a view or function is in the new schema, by its name.
    fn is_inside(&self, object: &str) -> bool {
        object
            .strip_prefix(self.schemas.new)
            .is_some_and(|rest| rest.starts_with('.'))
    }

    fn of_kind(&self, found: &BlockingObject) -> Option<Refusal> {
        let BlockingObject { object, detail, .. } = found;
        let new = self.schemas.new;
        let (reason, remedy) = match found.kind {
            Kind::ForeignKeyToStays => (
                format!("is a foreign key {detail}, which is not imported"),
                "drop it, make that a reference table (--reference), or give it the key".to_owned(),
            ),
            Kind::ForeignKeyFromStays => (
                format!("is a foreign key {detail}, which is imported, and its own table is not"),
                "drop it".to_owned(),
            ),
            Kind::InheritanceAcross => (
                format!("inherits {detail}, and one of them is not imported"),
                "ALTER TABLE … NO INHERIT".to_owned(),
            ),
            Kind::ViewAcross => (
                format!("is a view that {detail}"),
                "drop it, or let the application read both".to_owned(),
            ),
            Kind::View | Kind::MaterializedView if !self.is_inside(object) => (
                "is a view of imported tables outside their schema".to_owned(),
                format!(
                    "create it in schema {new} too, let search_path lead there first \
                     (--keep-search-path), renew sessions, then drop this one"
                ),
            ),
            Kind::RuleAcross => (
                format!("is a rule, {detail}"),
                "drop it, or write a trigger".to_owned(),
            ),
            Kind::FunctionBound if !self.is_inside(object) => (
                format!("is a function with a body that is bound {detail}"),
                "give it a body that is text (AS '…')".to_owned(),
            ),
            Kind::NameClash => (
                format!("is the name of several imported tables: {detail}"),
                "rename them".to_owned(),
            ),
            _ => return None,
        };
        Some(Refusal::new(object, reason, remedy))
    }

    /// A reference table that writes to imported ones.
    fn cascades(&self, refusals: &mut Vec<Refusal>) {
        for key in &self.outside.cascades {
            if self.is_imported(key.table) && self.side(key.target) == Side::Both {
                refusals.push(Refusal::new(
                    format!("{} of {}", key.name, self.database.name(key.table)),
                    format!(
                        "is a foreign key by which {}, a reference table, writes to it",
                        self.database.name(key.target)
                    ),
                    "make it ON DELETE and ON UPDATE NO ACTION",
                ));
            }
        }
    }

    fn policies(&self, refusals: &mut Vec<Refusal>) {
        for policy in &self.outside.policies {
            let sides = (self.side(policy.table), self.side(policy.reads));
            let is_open = match sides {
                (Side::Imported, reads) => reads == Side::Outside,
                (_, reads) => reads == Side::Imported,
            };
            if is_open {
                refusals.push(Refusal::new(
                    format!(
                        "policy {} on {}",
                        policy.name,
                        self.database.name(policy.table)
                    ),
                    format!(
                        "reads {}, and one of them is not imported",
                        self.database.name(policy.reads)
                    ),
                    "write it without that table, or drop it",
                ));
            }
        }
    }

    /// Triggers of either side that name tables of the other.
    fn triggers(&self, refusals: &mut Vec<Refusal>) {
        let mut seen = BTreeSet::new();
        for trigger in &self.database.triggers {
            let (others, own, other) = match self.is_imported(trigger.table) {
                true => (Side::Outside, "imported", "not"),
                false => (Side::Imported, "not imported", "imported"),
            };
            let mentions = mentions::find(&trigger.body);
            let named = named(&mentions, self.tables(others), Mention::is_of);
            if named.is_empty() || !seen.insert((&trigger.function, own)) {
                continue;
            }
            refusals.push(Refusal::new(
                &trigger.function,
                format!(
                    "is called by trigger {} on {}, which is {own}, and names {}, which is {other}",
                    trigger.name,
                    self.database.name(trigger.table),
                    named.join(", ")
                ),
                "write these rows in the application, or drop the trigger",
            ));
        }
    }

    /// Functions that do not find imported tables once they have moved, as far as their texts show.
    fn functions(&self, refusals: &mut Vec<Refusal>) {
        for function in &self.outside.functions {
            let mentions = mentions::find(&function.body);
            let with_schema = named(
                &mentions,
                self.tables(Side::Imported),
                |mention, _, table| mention.is_with_schema(self.schemas.old, table),
            );
            if !with_schema.is_empty() {
                refusals.push(Refusal::new(
                    &function.name,
                    format!(
                        "names {}",
                        with_schema
                            .iter()
                            .map(|table| format!("{}.{table}", self.schemas.old))
                            .collect::<Vec<_>>()
                            .join(", ")
                    ),
                    "leave the schema out",
                ));
                continue;
            }
            let Some(own) = &function.path else { continue };
            let Need::Path(wanted) = path::need(&path::parse(own), self.schemas, None) else {
                continue;
            };
            let named = named(&mentions, self.tables(Side::Imported), Mention::is_of);
            if !named.is_empty() {
                refusals.push(Refusal::new(
                    &function.name,
                    format!(
                        "names {}, and has a search_path of its own",
                        named.join(", ")
                    ),
                    format!(
                        "ALTER ROUTINE {} SET search_path = {}",
                        function.name,
                        path::sql(&wanted)
                    ),
                ));
            }
        }
    }

    /// What to know before.
    pub(super) fn warnings(&self) -> Vec<String> {
        let roles = self.outside.default_privileges.iter();
        let warning = |role: &String| {
            format!(
                "role {role} has default privileges in schema {}: give it the same in {} (ALTER \
                 DEFAULT PRIVILEGES), for tables that come later",
                self.schemas.old, self.schemas.new
            )
        };
        roles.map(warning).collect()
    }
}

/// The tables that are named.
fn named<'a>(
    mentions: &[Mention],
    tables: impl Iterator<Item = &'a Table>,
    is_it: impl Fn(&Mention, &str, &str) -> bool,
) -> Vec<String> {
    let named = tables.filter(|table| {
        let mut mentions = mentions.iter();
        mentions.any(|mention| is_it(mention, &table.schema, &table.name))
    });
    named.map(|table| table.name.clone()).collect()
}
