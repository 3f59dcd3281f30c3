//! Where a schema is made, by which statements, and when each is run.

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

/// When a statement of [`Creation::after_data`](super::Creation::after_data) is run while changes
/// are applied to the target.
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
