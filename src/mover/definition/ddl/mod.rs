//! From the facts of a schema to the statements that make it again elsewhere. Pure: no I/O, no choice left to who runs
//! it.
//!
//! # How to run the statements
//! In one transaction at the target (or `before_data` in one and `after_data` in another), as the role that shall own
//! everything, each transaction beginning with [`preamble`](crate::schema::catalog::preamble)`(target.schema)`.
//! `before_data` creates the schema itself, which must not exist. Function bodies that are text still name the shard's
//! final schema; that becomes true with the rename. Everything else binds by OID to the objects of the new schema and
//! follows the rename by itself. Then ask for its [`crossings`](crate::mover::definition::border::crossings): none may
//! be there before anything else is done.
//!
//! Invariant: nothing is left out silently. What cannot be carried is refused by name, all at once; what is lost
//! without harm is in [`Creation::notes`].

mod inheritance;
mod order;
mod partitions;
mod refuse;
mod statements;

use std::collections::BTreeMap;

use crate::schema::catalog::Facts;

use crate::mover::definition::refusal::Refusal;

/// Where and for what the schema is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    /// The schema to create, not quoted: `shard_0007__incoming`.
    pub(crate) schema: &'a str,
    /// The name that it will have in the end: `shard_0007`. Function bodies may name it.
    pub(crate) final_schema: &'a str,
    /// `server_version_num` of the target: 150004, 180000.
    pub(crate) version: u32,
}

/// When a statement is run. In this order, which is also the order of the statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Before the data: schema, types, sequences, functions, tables, defaults, views, policies.
    Definition,
    /// Primary keys, and unique indexes that are a replica identity.
    PrimaryKey,
    /// Unique and exclusion constraints, all other indexes.
    Index,
    /// Keys and indexes of partitioned tables, to which those of their partitions are attached.
    Attached,
    /// Checks.
    Check,
    /// Foreign keys inside the schema; before PostgreSQL 18, of partitioned tables those of each partition.
    ForeignKey,
    /// Foreign keys of partitioned tables before PostgreSQL 18, which takes none there that is not proved: those of the
    /// partitions become parts of them.
    Proved,
    /// Triggers, in the state they are in.
    Trigger,
    /// Replica identity, CLUSTER mark, extended statistics.
    Finish,
    /// What only helped to apply changes is dropped.
    Dismantle,
}

/// When a statement of [`Creation::after_data`] is run while changes are applied to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Online {
    /// As soon as the rows are there: changes find their rows by the primary key; other indexes that allow duplicates
    /// are built while nothing is applied yet.
    Loaded,
    /// Once the target is as the source was at some moment. Before, rows that were copied at different times may
    /// contradict each other.
    CaughtUp,
    /// When the target is opened: what acts on changes, or refuses them.
    Open,
    /// When the foreign keys that the open has made are proved.
    Proved,
}

/// One statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// When.
    pub stage: Stage,
    /// What it makes: `table photos`.
    pub what: String,
    /// The SQL, without a semicolon.
    pub sql: String,
    /// The table whose key or index it makes, or says something about; `None` of everything else.
    pub table: Option<String>,
}

impl Statement {
    pub(crate) fn online(&self) -> Online {
        match self.stage {
            Stage::Definition | Stage::PrimaryKey => Online::Loaded,
            // A unique index, a constraint, and what is said about either of them once it is there.
            Stage::Index if self.sql.starts_with("CREATE INDEX") => Online::Loaded,
            Stage::Index | Stage::Attached | Stage::Check | Stage::Finish => Online::CaughtUp,
            Stage::Proved => Online::Proved,
            Stage::ForeignKey | Stage::Trigger | Stage::Dismantle => Online::Open,
        }
    }
}

/// The statement that fills a materialized view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refresh {
    /// The view's name, not quoted.
    pub(crate) view: String,
    /// The SQL, without a semicolon.
    pub(crate) sql: String,
}

/// The statements that make a schema.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Creation {
    /// To run before the data are copied: everything of [`Stage::Definition`].
    pub(crate) before_data: Vec<Statement>,
    /// To run after the data are copied, in order of the stages.
    pub(crate) after_data: Vec<Statement>,
    /// What fills the materialized views, once the tables' rows are there: each after those that it reads.
    pub(crate) refreshes: Vec<Refresh>,
    /// What an operator should know: what is not carried because it belongs to the host, a sentence each.
    pub(crate) notes: Vec<String>,
}

impl Creation {
    /// What can be built on each table as soon as its own rows are there, whatever becomes of the others. Nothing at
    /// all where something else has to be made in between: the order matters then.
    pub(crate) fn builds(&self) -> BTreeMap<String, Vec<String>> {
        let mut builds: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for statement in self.after_data.iter().filter(|statement| statement.online() == Online::Loaded) {
            let Some(table) = &statement.table else { return BTreeMap::new() };
            builds.entry(table.clone()).or_default().push(statement.sql.clone());
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
    let all = ordered.into_iter().flat_map(|node| {
        let order::Node { stage, what, sql, table, .. } = node;
        sql.into_iter().map(move |sql| Statement { stage, what: what.clone(), sql, table: table.clone() })
    });
    let (mut before_data, after_data): (Vec<_>, Vec<_>) = all.partition(|s| s.stage == Stage::Definition);
    before_data.splice(0..0, statements::schema(facts, target));
    Ok(Creation { before_data, after_data, refreshes, notes })
}
