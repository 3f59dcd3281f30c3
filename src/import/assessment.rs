//! The assessment as it is reported: values without further logic, which are printed as text, JSON
//! and HTML.

use schemars::JsonSchema;
use serde::Serialize;

use super::estimate::Figure;
use super::obstacle::{Level, Obstacle};
use super::statements::StatementReport;

/// Whether a database can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it is.
    Possible,
    /// Once something was changed.
    PossibleAfterChanges,
    /// Not as it is, and no change of the schema or the application helps.
    Impossible,
}

/// What was found out about a database.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Assessment {
    /// Whether it can be imported.
    pub verdict: Verdict,
    /// The database.
    pub database: String,
    /// The server's version, such as `18.1`.
    pub server_version: String,
    /// The key, as it was named.
    pub key: String,
    /// What stands in the way, the worst first.
    pub obstacles: Vec<Obstacle>,
    /// What becomes of each table, sorted by decision and size.
    pub tables: Vec<TableReport>,
    /// What the application sends; none if it is not known.
    pub statements: Option<StatementReport>,
    /// The keys with most rows.
    pub largest_keys: Vec<LargeKey>,
    /// IDs, and how far they are from those of shards.
    pub ids: IdReport,
    /// Time, disk and WAL to expect.
    pub figures: Vec<Figure>,
    /// What is not known, and why, one sentence each.
    pub unknown: Vec<String>,
}

impl Assessment {
    /// The obstacles of a level.
    pub fn of(&self, level: Level) -> impl Iterator<Item = &Obstacle> {
        self.obstacles
            .iter()
            .filter(move |obstacle| obstacle.level == level)
    }

    /// The tables with this decision.
    pub fn decided(&self, decision: TableDecision) -> impl Iterator<Item = &TableReport> {
        self.tables
            .iter()
            .filter(move |table| table.decision == decision)
    }
}

/// What becomes of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TableDecision {
    /// It is the key's own table.
    Key,
    /// It has the key in a column.
    KeyColumn,
    /// Foreign keys lead to the key, and `import keys` adds the column.
    PathToKey,
    /// Each host gets it.
    Reference,
    /// It stays where it is.
    Stays,
    /// Its rows belong to keys, and nothing says to which.
    Impossible,
}

impl TableDecision {
    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            TableDecision::Key => "the key's own table",
            TableDecision::KeyColumn => "key column",
            TableDecision::PathToKey => "path to key",
            TableDecision::Reference => "reference",
            TableDecision::Stays => "stays",
            TableDecision::Impossible => "impossible as it is",
        }
    }
}

/// What becomes of a table, and why.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TableReport {
    /// Its name, with the schema if that is not the key table's.
    pub table: String,
    /// What becomes of it.
    pub decision: TableDecision,
    /// Why.
    pub reason: String,
    /// The column with the key.
    pub key_column: Option<String>,
    /// The foreign keys from the table to the key.
    pub path: Vec<PathStep>,
    /// Rows, by the last ANALYZE; none if there was none.
    pub rows: Option<f64>,
    /// Bytes with indexes and TOAST, by the last VACUUM or ANALYZE.
    pub bytes: i64,
}

/// A step of a path.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PathStep {
    /// The constraint; none where the reference is known by the column's name only.
    pub foreign_key: Option<String>,
    /// The columns: `likes.photo_id`.
    pub from: String,
    /// The columns that they refer to: `photos.id`.
    pub to: String,
}

/// A key with many rows.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LargeKey {
    /// The key.
    pub key: String,
    /// Its rows in the tables with the key in a column.
    pub rows: f64,
    /// Their bytes.
    pub bytes: f64,
    /// Their share of these tables.
    pub share: f64,
}

/// IDs, and how far they are from those of shards.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct IdReport {
    /// The largest ID of an imported table. A text, since not every reader of JSON has integers of
    /// 64 bits.
    pub largest: Option<String>,
    /// Its column.
    pub largest_of: Option<String>,
    /// The first ID that a shard would make now.
    pub first_of_shards: String,
    /// The epoch that this assumes.
    pub epoch: String,
    /// A bound between both: clients refuse smaller IDs that come without a key.
    pub legacy_below: Option<String>,
}
