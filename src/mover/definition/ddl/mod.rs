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
//! runs between the two statements of that. Then ask for its
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
mod statements;

use std::collections::BTreeMap;

use crate::schema::catalog::Facts;

use crate::mover::definition::refusal::Refusal;

/// Where the schema is made, and under which names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    /// The schema to create, not quoted: `shard_0007__incoming`.
    pub(crate) schema: &'a str,
    /// The name that it will have in the end: `shard_0007`. Function bodies may name it.
    pub(crate) final_schema: &'a str,
    /// `server_version_num` of the target: 150004, 180000.
    pub(crate) version: u32,
    /// The schemas there in which only the target's role can create objects. Only their operators
    /// may be found by name.
    pub(crate) closed: &'a [String],
}

/// When a statement is run. The stages run in this order, and the statements are sorted by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Before the data: schema, types, sequences, functions, tables, defaults, views, policies.
    Definition,
    /// Primary keys; or the unique index that is the replica identity in the place of one.
    PrimaryKey,
    /// Unique and exclusion constraints, all other indexes, primary keys that are no replica
    /// identity.
    Index,
    /// Keys and indexes of partitioned tables, to which those of their partitions are attached.
    Attached,
    /// Checks.
    Check,
    /// Foreign keys inside the schema. Before PostgreSQL 18, a foreign key of a partitioned table
    /// is made on each partition here.
    ForeignKey,
    /// Foreign keys of partitioned tables before PostgreSQL 18. Those versions accept no foreign
    /// key there that is NOT VALID, so it is added when those of the partitions are validated, and
    /// these become its parts.
    Proved,
    /// Triggers, in the state they are in.
    Trigger,
    /// CLUSTER mark, REPLICA IDENTITY NOTHING, extended statistics.
    Finish,
    /// Indexes and the like that only helped to apply changes are dropped.
    Dismantle,
    /// Privileges by which others attach code to a table: TRIGGER and REFERENCES.
    Grant,
}

/// When a statement of [`Creation::after_data`] is run while changes are applied to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Online {
    /// As soon as the rows are there: changes find their rows by the primary key, and non-unique
    /// indexes are cheapest to build while nothing is applied yet.
    Loaded,
    /// Once the target is in a state that the source was in. Before that, rows that were copied at
    /// different times may contradict each other.
    CaughtUp,
    /// When the target is opened: triggers and rules, which act on changes or refuse them, and the
    /// privileges by which others make some.
    Open,
    /// When the foreign keys that the open has made are validated.
    Proved,
}

/// One statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// When it is run.
    pub stage: Stage,
    /// What it makes: `table photos`.
    pub what: String,
    /// The SQL, without a semicolon.
    pub sql: String,
    /// The table with the key or index that this creates or alters; `None` for everything else.
    pub table: Option<String>,
    /// The statements before and after it, if it needs another `search_path` than
    /// [`preamble`](crate::schema::catalog::preamble) gives.
    pub(crate) path: Option<(String, String)>,
}

impl Statement {
    pub(crate) fn online(&self) -> Online {
        match self.stage {
            Stage::Definition | Stage::PrimaryKey => Online::Loaded,
            // The rest of this stage: unique indexes, constraints, and comments on either once it
            // exists.
            Stage::Index if self.sql.starts_with("CREATE INDEX") => Online::Loaded,
            Stage::Index | Stage::Attached | Stage::Check | Stage::Finish => Online::CaughtUp,
            Stage::Proved => Online::Proved,
            Stage::ForeignKey | Stage::Trigger | Stage::Dismantle | Stage::Grant => Online::Open,
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
