//! What the assessment knows about a database. Plain values: [`read`](super::read) makes them, and
//! everything that judges them does no I/O.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::key::KeyColumn;

/// A database, as far as an import depends on it.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    pub(crate) server: Server,
    /// The key, found in the database.
    pub(crate) key: KeyColumn,
    /// What was decided by an engineer.
    pub(crate) chosen: Chosen,
    pub(crate) tables: BTreeMap<u32, Table>,
    pub(crate) foreign_keys: Vec<ForeignKey>,
    pub(crate) uniques: Vec<Unique>,
    pub(crate) dependents: Vec<Dependent>,
    pub(crate) triggers: Vec<Trigger>,
    pub(crate) sequences: Vec<SequenceUse>,
    pub(crate) publications: Vec<Publication>,
    pub(crate) extensions: Vec<ExtensionUse>,
    pub(crate) roles: Vec<RoleUse>,
    pub(crate) searches: Vec<SearchIndex>,
    /// The statistics of columns, by table and column number.
    pub(crate) statistics: BTreeMap<(u32, i16), ColumnStatistics>,
}

/// What an engineer has decided, found in the database.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chosen {
    pub(crate) stays: BTreeSet<u32>,
    pub(crate) references: BTreeSet<u32>,
    pub(crate) by: BTreeMap<u32, i16>,
}

impl Chosen {
    /// Whether it was decided that the table is not imported.
    pub(crate) fn excludes(&self, table: u32) -> bool {
        self.stays.contains(&table) || self.references.contains(&table)
    }

    /// Whether a foreign key may give a table its key.
    pub(crate) fn allows(&self, key: &ForeignKey) -> bool {
        let column = self.by.get(&key.table);
        column.is_none_or(|column| key.columns.contains(column))
    }
}

/// The oldest version that pgshard works with.
pub(crate) const VERSION_MIN: u32 = 140_000;

/// The server, and what the connecting role may do there.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Server {
    pub(crate) database: String,
    pub(crate) role: String,
    /// `server_version_num`.
    pub(crate) version: u32,
    pub(crate) wal_level: String,
    pub(crate) can_decode: bool,
    /// Whether it is a standby: it does not count writes.
    pub(crate) standby: bool,
    pub(crate) free_slots: i64,
    pub(crate) free_senders: i64,
    /// Whether row level security hides no rows from the role.
    pub(crate) bypasses_rls: bool,
    /// Transactions that were prepared for two-phase commit and not ended.
    pub(crate) prepared: i64,
    /// Large objects in the database.
    pub(crate) large_objects: bool,
    /// Bytes of WAL that the server has written, and in how many seconds; none before PostgreSQL 14
    /// and where the statistics were just reset.
    pub(crate) wal: Option<WalRate>,
    /// Whether a replication connection was accepted; otherwise the server's answer.
    #[serde(skip)]
    pub(crate) replication: Option<String>,
}

/// How fast WAL is written.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct WalRate {
    pub(crate) bytes: f64,
    pub(crate) seconds: f64,
}

/// A table. Partitions are part of their partitioned table, and are no tables of their own here.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Table {
    pub(crate) oid: u32,
    pub(crate) schema: String,
    pub(crate) name: String,
    /// `r`, `p` or `f`.
    pub(crate) kind: String,
    /// Whether it, or one of its partitions, is unlogged.
    pub(crate) unlogged: bool,
    /// Whether one of its partitions is a foreign table.
    pub(crate) has_foreign_partition: bool,
    pub(crate) inherits: Vec<u32>,
    /// Rows by the last ANALYZE or VACUUM; none if there was none.
    pub(crate) rows: Option<f64>,
    /// Bytes of the table with TOAST, and of its indexes.
    pub(crate) heap_bytes: i64,
    pub(crate) index_bytes: i64,
    /// How many indexes it has, and whether it has a TOAST table.
    pub(crate) indexes: i64,
    pub(crate) toasted: bool,
    /// Rows that were inserted, updated and deleted since the statistics were reset.
    pub(crate) writes: i64,
    /// Rows that were changed since the last ANALYZE.
    pub(crate) changed: i64,
    pub(crate) forced_rls: bool,
    pub(crate) owner: String,
    pub(crate) columns: Vec<Column>,
}

/// A column.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Column {
    pub(crate) number: i16,
    pub(crate) name: String,
    /// The type; of a domain, the type that it is made of.
    #[serde(rename = "type")]
    pub(crate) type_: String,
    pub(crate) not_null: bool,
    /// Whether it is an identity column.
    pub(crate) identity: bool,
    /// The default.
    pub(crate) default: Option<String>,
}

/// A foreign key. For partitions, only that of the partitioned table.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ForeignKey {
    pub(crate) name: String,
    pub(crate) table: u32,
    pub(crate) columns: Vec<i16>,
    pub(crate) target: u32,
    pub(crate) target_columns: Vec<i16>,
    /// Whether there is no such constraint, and the columns' names suggest one.
    #[serde(default)]
    pub(crate) by_name: bool,
    /// Whether a row may come before the one that it refers to, in a transaction.
    #[serde(default)]
    pub(crate) deferrable: bool,
    /// What a sample of rows has shown about the keys on both sides.
    #[serde(skip)]
    pub(crate) sample: Sample,
}

/// What a sample of rows has shown about a foreign key: whether a row and the row that it refers to
/// have the same key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Rows that were compared.
    pub(crate) rows: i64,
    /// Rows with another key than the row that they refer to.
    pub(crate) differ: i64,
}

impl Unique {
    /// The columns and expressions, in their order.
    pub(crate) fn parts<'a>(&'a self, database: &'a Database) -> Vec<&'a str> {
        let mut expressions = self.expressions.iter();
        let part = |number: &i16| match number {
            0 => expressions.next().map_or("expression", String::as_str),
            number => database.column_name(self.table, *number),
        };
        self.columns.iter().map(part).collect()
    }
}

/// A primary key, a unique constraint or index, or an exclusion constraint.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Unique {
    pub(crate) name: String,
    pub(crate) table: u32,
    /// The columns; 0 for an expression.
    pub(crate) columns: Vec<i16>,
    /// The texts of the expressions, in their order.
    pub(crate) expressions: Vec<String>,
    pub(crate) primary: bool,
    pub(crate) exclusion: bool,
    /// Whether it is a constraint; otherwise it is an index only.
    pub(crate) constraint: bool,
    /// Whether a primary key can be made of it, if no column may be NULL.
    pub(crate) fits_primary: bool,
    /// Whether it is for some rows only.
    pub(crate) partial: bool,
}

/// What kind of object depends on tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DependentKind {
    View,
    MaterializedView,
    Rule,
    Function,
}

/// A view, rule or function that is bound to tables.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Dependent {
    pub(crate) kind: DependentKind,
    pub(crate) name: String,
    pub(crate) tables: Vec<u32>,
}

/// A trigger that a user has made.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Trigger {
    pub(crate) name: String,
    pub(crate) table: u32,
    pub(crate) function: String,
    /// The text of the function.
    pub(crate) body: String,
}

/// A sequence, and the tables with a default that uses it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SequenceUse {
    pub(crate) name: String,
    pub(crate) tables: Vec<u32>,
}

/// A publication of tables.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Publication {
    pub(crate) name: String,
    pub(crate) tables: Vec<u32>,
}

/// An extension with types, functions or operators that tables use.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ExtensionUse {
    pub(crate) name: String,
    pub(crate) tables: Vec<u32>,
}

/// A role that has rights on tables, or is named by their policies.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RoleUse {
    pub(crate) name: String,
    pub(crate) tables: Vec<u32>,
}

/// An index for full-text, similarity or nearest-neighbour search.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SearchIndex {
    pub(crate) name: String,
    pub(crate) table: u32,
    /// The operator class, such as `gin_trgm_ops`.
    pub(crate) class: String,
}

/// What ANALYZE has recorded about a column, or a sample has shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct ColumnStatistics {
    /// The share of rows that have NULL.
    pub(crate) null_share: f64,
    /// The commonest values, each with the share of rows that have it.
    pub(crate) common: Vec<(String, f64)>,
    /// The smallest and largest value, if it is a number with an index.
    pub(crate) range: Option<(i64, i64)>,
}

impl Database {
    /// A database in which nothing was found so far.
    pub(crate) fn without_tables(server: Server) -> Database {
        Database {
            server,
            key: KeyColumn {
                table: 0,
                column: 0,
            },
            chosen: Chosen::default(),
            tables: BTreeMap::new(),
            foreign_keys: Vec::new(),
            uniques: Vec::new(),
            dependents: Vec::new(),
            triggers: Vec::new(),
            sequences: Vec::new(),
            publications: Vec::new(),
            extensions: Vec::new(),
            roles: Vec::new(),
            searches: Vec::new(),
            statistics: BTreeMap::new(),
        }
    }

    /// The name of a table for people: with its schema unless that is the key table's.
    pub(crate) fn name(&self, table: u32) -> String {
        let Some(found) = self.tables.get(&table) else {
            return format!("table {table}");
        };
        let home = self.tables.get(&self.key.table).map(|key| &key.schema);
        if home == Some(&found.schema) {
            found.name.clone()
        } else {
            format!("{}.{}", found.schema, found.name)
        }
    }

    /// `table.column`, or `table (a, b)`.
    pub(crate) fn column_names(&self, table: u32, columns: &[i16]) -> String {
        let name = |number: &i16| self.column_name(table, *number);
        match columns {
            [one] => format!("{}.{}", self.name(table), name(one)),
            several => {
                let names: Vec<&str> = several.iter().map(name).collect();
                format!("{} ({})", self.name(table), names.join(", "))
            }
        }
    }

    /// The name of a column; `expression` for that of an index.
    pub(crate) fn column_name(&self, table: u32, number: i16) -> &str {
        self.column(table, number)
            .map_or("expression", |column| &column.name)
    }

    pub(crate) fn column(&self, table: u32, number: i16) -> Option<&Column> {
        self.tables.get(&table)?.column(number)
    }

    /// The foreign keys that a table has.
    pub(crate) fn foreign_keys_of(&self, table: u32) -> impl Iterator<Item = &ForeignKey> {
        self.foreign_keys
            .iter()
            .filter(move |key| key.table == table)
    }

    /// Whether a row may refer to nothing.
    pub(crate) fn is_nullable(&self, key: &ForeignKey) -> bool {
        key.columns.iter().any(|number| {
            self.column(key.table, *number)
                .is_none_or(|column| !column.not_null)
        })
    }
}

impl Table {
    pub(crate) fn column(&self, number: i16) -> Option<&Column> {
        self.columns.iter().find(|column| column.number == number)
    }

    pub(crate) fn column_named(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    pub(crate) fn bytes(&self) -> i64 {
        self.heap_bytes.saturating_add(self.index_bytes)
    }

    pub(crate) fn is_foreign(&self) -> bool {
        self.kind == "f"
    }
}

impl Column {
    /// Whether it holds integers that IDs of shards do not fit into.
    pub(crate) fn is_narrow(&self) -> bool {
        matches!(self.type_.as_str(), "integer" | "smallint")
    }

    pub(crate) fn is_integer(&self) -> bool {
        self.is_narrow() || self.type_ == "bigint"
    }

    pub(crate) fn is_text(&self) -> bool {
        matches!(
            self.type_.as_str(),
            "text" | "character varying" | "character" | "citext"
        )
    }

    /// Whether the database makes values from a sequence.
    pub(crate) fn is_from_sequence(&self) -> bool {
        let default = self.default.as_ref();
        self.identity || default.is_some_and(|default| default.contains("nextval("))
    }

    /// Whether values of both types can be equal.
    pub(crate) fn is_alike(&self, other: &Column) -> bool {
        (self.is_integer() && other.is_integer())
            || (self.is_text() && other.is_text())
            || self.type_ == other.type_
    }
}
