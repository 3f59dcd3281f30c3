//! Turns the facts of a schema into the statements that make it again elsewhere. Pure: no I/O, and
//! nothing is left for the caller to decide.
//!
//! # How to run the statements
//! In one transaction at the target (or `before_data` in one and `after_data` in another), as the
//! role that shall own everything. Each transaction begins with
//! [`preamble`](crate::schema::catalog::preamble)`(target.schema)`. `before_data` creates the
//! schema itself, which must not exist. Function bodies that are text still name the shard's final
//! schema; they are right once the schema is renamed. Everything else binds by OID to the objects
//! of the new schema and follows the rename by itself. A statement with a [`path`](Statement::path)
//! runs between the two statements of that. Then look for its
//! [`crossings`](crate::mover::definition::border::crossings): there must be none before anything
//! else is done.
//!
//! Invariant: nothing is left out silently. What cannot be carried is refused by name, all at once;
//! what is lost without harm is in [`Creation::notes`].

pub(crate) mod grants;
mod inheritance;
mod operators;
mod order;
mod partitions;
mod refuse;
mod stage;
mod statements;

use std::collections::BTreeMap;

use crate::schema::catalog::Facts;

use crate::mover::definition::refusal::Refusal;

pub(crate) use stage::{Online, Refresh, Target};
pub use stage::{Stage, Statement};

/// The statements that make a schema.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Creation {
    /// To run before the data is copied: everything of [`Stage::Definition`].
    pub(crate) before_data: Vec<Statement>,
    /// To run after the data is copied, in order of the stages.
    pub(crate) after_data: Vec<Statement>,
    /// Statements that fill the materialized views, once the tables' rows are there. Each comes
    /// after those of the views that it reads.
    pub(crate) refreshes: Vec<Refresh>,
    /// What an operator should know: what is not carried because it belongs to the host. One
    /// sentence each.
    pub(crate) notes: Vec<String>,
}

impl Creation {
    /// What can be built on each table as soon as its own rows are there, in whatever state the
    /// other tables are. Empty where another statement comes in between, since the order matters
    /// then.
    pub(crate) fn builds(&self) -> BTreeMap<String, Vec<Statement>> {
        let mut builds: BTreeMap<String, Vec<Statement>> = BTreeMap::new();
        for statement in self
            .after_data
            .iter()
            .filter(|statement| statement.online() == Online::Loaded)
        {
            let Some(table) = &statement.table else {
                return BTreeMap::new();
            };
            builds
                .entry(table.clone())
                .or_default()
                .push(statement.clone());
        }
        builds
    }
}

/// The statements that make the schema of `facts` again as `target.schema`.
///
/// # Errors
/// With every reason why it cannot be carried faithfully, sorted by object.
pub(crate) fn create(facts: &Facts, target: &Target<'_>) -> Result<Creation, Vec<Refusal>> {
    let (mut refusals, notes) = refuse::examine(facts, target);
    let nodes = statements::nodes(facts, target, &mut refusals);
    let mut edges = facts.edges.clone();
    edges.extend(partitions::edges(facts));
    edges.extend(inheritance::edges(facts));
    let ordered = match order::order(nodes, &edges) {
        Ok(ordered) => ordered,
        Err(stuck) => {
            refusals.extend(stuck);
            Vec::new()
        }
    };
    if !refusals.is_empty() {
        refusals.sort();
        refusals.dedup();
        return Err(refusals);
    }
    let refreshes = statements::refreshes(facts, target, &ordered);
    let operators = operators::Operators::of(facts, target);
    let mut all = Vec::new();
    for node in ordered {
        let order::Node {
            address,
            stage,
            what,
            sql,
            table,
            ..
        } = node;
        for sql in sql {
            let path = match operators.path(&address, &what, &sql) {
                Ok(path) => path,
                Err(refusal) => {
                    refusals.push(refusal);
                    None
                }
            };
            all.push(Statement {
                stage,
                what: what.clone(),
                sql,
                table: table.clone(),
                path,
            });
        }
    }
    if !refusals.is_empty() {
        return Err(refusals);
    }
    let (mut before_data, after_data): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|s| s.stage == Stage::Definition);
    before_data.splice(0..0, statements::schema(facts, target));
    Ok(Creation {
        before_data,
        after_data,
        refreshes,
        notes,
    })
}
