//! A table of the stream and its counterpart at the target: the statements that apply its changes.
//!
//! Invariant: a row is identified by its whole key, or, if there is none, by all of its values as
//! they are written, never by an equality that treats 1.0 and 1.00 as the same.

use std::sync::Arc;

use bytes::Bytes;

use crate::pg::quote_ident;
use crate::shard::ShardId;

use crate::mover::preflight::table::TableShape;

use crate::mover::stream::row_index;
use crate::mover::stream::wire::{Relation, Row, Value};

/// What the target knows about a column.
#[derive(Clone, Debug)]
pub(crate) struct TargetColumn {
    /// The column's type in the target's SQL.
    pub(crate) type_sql: String,
    /// Whether it is `GENERATED ALWAYS AS IDENTITY`. The source may have changed its value (by
    /// `SET c = DEFAULT` or a BEFORE trigger), but an UPDATE at the target cannot set it to that
    /// value: such a row is deleted and inserted.
    pub(crate) always: bool,
    /// Whether its table has a [`row_index`].
    pub(crate) row_index: bool,
}

/// A column that has a value of its own.
#[derive(Clone, Debug)]
struct Column {
    /// The position of its value in a row of the stream.
    at: usize,
    quoted: String,
    composite: bool,
    /// Whether its value is in the table's [`row_index`].
    hashed: bool,
    target: TargetColumn,
}

impl Column {
    fn sql(&self) -> &str {
        &self.target.type_sql
    }
}

/// The most rows of one statement.
pub(crate) const MOST_AT_ONCE: usize = 128;

/// How rows of the stream become rows of the target.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) shard: ShardId,
    /// The OID at the source.
    pub(crate) oid: u32,
    /// The table's name, not quoted.
    pub(crate) name: String,
    /// The table's name with the target's schema, quoted.
    target: String,
    columns: Vec<Column>,
    /// The positions of the key's values in a row, in the key's order. Empty: rows are identified
    /// by all of their values.
    key: Vec<usize>,
    /// The number of values in a row.
    width: usize,
}

/// Parameters of a statement, as texts.
pub(crate) type Texts = Vec<Option<Bytes>>;

impl Layout {
    /// Combines both descriptions, or returns what does not fit: then the table was altered.
    pub(crate) fn new(
        shard: ShardId,
        shape: &TableShape,
        relation: &Relation,
        schema: &str,
        target: impl Fn(&str) -> Option<TargetColumn>,
    ) -> Result<Arc<Layout>, String> {
        let mut columns = Vec::new();
        for (at, name) in relation.columns.iter().enumerate() {
            let known = shape.columns.iter().find(|column| column.name == *name);
            match (known, target(name)) {
                (Some(column), _) if column.generated => {}
                (Some(known), Some(target)) => {
                    let hashed = target.row_index
                        && row_index::hashed(shape).any(|column| column.name == *name);
                    let composite = known.composite;
                    columns.push(Column {
                        at,
                        quoted: quote_ident(name),
                        composite,
                        hashed,
                        target,
                    });
                }
                _ => return Err(format!("the source has a new column {name}")),
            }
        }
        let place = |name: &str| relation.columns.iter().position(|column| column == name);
        if let Some(gone) = shape
            .columns
            .iter()
            .find(|column| !column.generated && place(&column.name).is_none())
        {
            return Err(format!("the source no longer has a column {}", gone.name));
        }
        let key: Vec<usize> = shape
            .key_columns()
            .filter_map(|column| place(&column.name))
            .collect();
        // If a replica identity was altered for a while, former rows lack values that identify
        // them.
        let mut named_by: Vec<usize> = if key.is_empty() {
            (0..relation.columns.len()).collect()
        } else {
            key.clone()
        };
        named_by.retain(|at| relation.in_identity.get(*at) != Some(&true));
        if let Some(at) = named_by.first() {
            return Err(format!(
                "its REPLICA IDENTITY was altered: it no longer includes {}",
                relation.columns[*at]
            ));
        }
        let target = format!("{}.{}", quote_ident(schema), quote_ident(&shape.name));
        let width = relation.columns.len();
        Ok(Arc::new(Layout {
            shard,
            oid: relation.oid,
            name: shape.name.clone(),
            target,
            columns,
            key,
            width,
        }))
    }

    /// Whether a row has as many values as the relation has columns.
    pub(crate) fn fits(&self, row: &Row) -> bool {
        row.len() == self.width
    }

    pub(crate) fn has_key(&self) -> bool {
        !self.key.is_empty()
    }

    /// The texts of the row's key; empty if the table has no key.
    pub(crate) fn key(&self, row: &Row) -> Texts {
        self.key.iter().map(|at| text(&row[*at])).collect()
    }

    /// The values that identify the row in a condition: its key, or all of its values if there is
    /// none.
    pub(crate) fn naming(&self, row: &Row) -> Texts {
        if self.has_key() {
            self.key(row)
        } else {
            self.values(row)
        }
    }

    /// All values of a row.
    pub(crate) fn values(&self, row: &Row) -> Texts {
        self.columns
            .iter()
            .map(|column| text(&row[column.at]))
            .collect()
    }

    /// Whether a value of the row was not sent.
    pub(crate) fn lacks_values(&self, row: &Row) -> bool {
        self.columns
            .iter()
            .any(|column| row[column.at] == Value::Unchanged)
    }

    /// The columns that an update sets: those that were sent, and the key only if it has changed.
    pub(crate) fn changed(&self, row: &Row, key_changed: bool) -> Vec<usize> {
        let set = |(_, column): &(usize, &Column)| {
            row[column.at] != Value::Unchanged && (key_changed || !self.key.contains(&column.at))
        };
        self.columns
            .iter()
            .enumerate()
            .filter(set)
            .map(|(index, _)| index)
            .collect()
    }

    /// The values of these columns.
    pub(crate) fn values_of(&self, row: &Row, columns: &[usize]) -> Texts {
        columns
            .iter()
            .map(|index| text(&row[self.columns[*index].at]))
            .collect()
    }

    /// How many of the waiting rows one statement takes: one of a few numbers, so that there are
    /// few different statements.
    pub(crate) fn at_once(&self, waiting: usize) -> usize {
        if self.columns.is_empty() {
            return 1;
        }
        let most = 16_000 / (self.columns.len() + self.key.len());
        [MOST_AT_ONCE, 16, 4]
            .into_iter()
            .find(|rows| *rows <= waiting && *rows <= most)
            .unwrap_or(1)
    }

    /// `OVERRIDING SYSTEM VALUE`, because identities keep the values that they have.
    ///
    /// Locks: ROW EXCLUSIVE on the table until the target's transaction ends, as the next two.
    pub(crate) fn insert(&self, rows: usize) -> String {
        if self.columns.is_empty() {
            return format!("INSERT INTO {} DEFAULT VALUES", self.target);
        }
        let names: Vec<&str> = self
            .columns
            .iter()
            .map(|column| column.quoted.as_str())
            .collect();
        let row = |row: usize| {
            let values: Vec<String> = (1..=names.len())
                .map(|at| format!("${}", row * names.len() + at))
                .collect();
            format!("({})", values.join(", "))
        };
        let values: Vec<String> = (0..rows).map(row).collect();
        let (target, names) = (&self.target, names.join(", "));
        format!(
            "INSERT INTO {target} ({names}) OVERRIDING SYSTEM VALUE VALUES {}",
            values.join(", ")
        )
    }

    /// Sets these columns in this many rows. The parameters of a row are the new values and the
    /// values that identify it. More than one row is only possible if the table has a key, and the
    /// keys differ.
    pub(crate) fn update(&self, columns: &[usize], rows: usize) -> String {
        if columns
            .iter()
            .any(|index| self.columns[*index].target.always)
        {
            return self.replace(columns, rows);
        }
        let names = columns
            .iter()
            .map(|index| &self.columns[*index].quoted)
            .enumerate();
        if rows == 1 {
            let set: Vec<String> = names
                .map(|(at, name)| format!("{name} = ${}", at + 1))
                .collect();
            return format!(
                "UPDATE ONLY {} SET {} WHERE {}",
                self.target,
                set.join(", "),
                self.row_condition(columns.len())
            );
        }
        let set: Vec<String> = names
            .map(|(at, name)| format!("{name} = v.c{at}"))
            .collect();
        let values = self.rows_of(columns, rows);
        let equal = self.equal_to(columns.len());
        format!(
            "UPDATE ONLY {} AS t SET {} FROM {values} WHERE {equal}",
            self.target,
            set.join(", ")
        )
    }

    /// An update by other means: the rows are deleted, and inserted with their new values. An
    /// INSERT may set the value of an identity that is GENERATED ALWAYS, an UPDATE may not.
    fn replace(&self, columns: &[usize], rows: usize) -> String {
        let (mut names, mut values, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for (index, Column { quoted, target, .. }) in self.columns.iter().enumerate() {
            names.push(quoted.as_str());
            values.push(match columns.iter().position(|set| *set == index) {
                Some(at) if rows == 1 => format!("${}::{}", at + 1, target.type_sql),
                Some(at) => format!("c{at}"),
                None => {
                    kept.push(format!("t.{quoted} AS k{index}"));
                    format!("k{index}")
                }
            });
        }
        let delete = if rows == 1 {
            format!(
                "DELETE FROM ONLY {} AS t WHERE {}",
                self.target,
                self.row_condition(columns.len())
            )
        } else {
            kept.extend((0..columns.len()).map(|at| format!("v.c{at}")));
            let (values, equal) = (self.rows_of(columns, rows), self.equal_to(columns.len()));
            format!(
                "DELETE FROM ONLY {} AS t USING {values} WHERE {equal}",
                self.target
            )
        };
        // RETURNING needs at least one column.
        let kept = if kept.is_empty() {
            "true".to_owned()
        } else {
            kept.join(", ")
        };
        let (target, names, values) = (&self.target, names.join(", "), values.join(", "));
        format!(
            "WITH former AS ({delete} RETURNING {kept})
             INSERT INTO {target} ({names}) OVERRIDING SYSTEM VALUE SELECT {values} FROM former"
        )
    }

    /// Deletes this many rows, with the same parameters as [`update`](Layout::update).
    pub(crate) fn delete(&self, rows: usize) -> String {
        if rows == 1 {
            return format!(
                "DELETE FROM ONLY {} WHERE {}",
                self.target,
                self.row_condition(0)
            );
        }
        format!(
            "DELETE FROM ONLY {} AS t USING {} WHERE {}",
            self.target,
            self.rows_of(&[], rows),
            self.equal_to(0)
        )
    }

    /// `(VALUES …) AS v (c0, c1, …)`: these columns and the key, with their types, for this many
    /// rows.
    fn rows_of(&self, columns: &[usize], rows: usize) -> String {
        let keys = self.key_columns();
        let types: Vec<&str> = columns
            .iter()
            .map(|index| &self.columns[*index])
            .chain(keys)
            .map(Column::sql)
            .collect();
        let row = |row: usize| {
            let values = types
                .iter()
                .enumerate()
                .map(|(at, sql)| format!("${}::{sql}", row * types.len() + at + 1));
            format!("({})", values.collect::<Vec<_>>().join(", "))
        };
        let values: Vec<String> = (0..rows).map(row).collect();
        let names: Vec<String> = (0..types.len()).map(|at| format!("c{at}")).collect();
        format!("(VALUES {}) AS v ({})", values.join(", "), names.join(", "))
    }

    /// A condition that the key of `t` is the one in `v`, which comes there after this many other
    /// columns.
    fn equal_to(&self, before: usize) -> String {
        let keys = self.key_columns().enumerate();
        keys.map(|(at, column)| format!("t.{} = v.c{}", column.quoted, before + at))
            .collect::<Vec<_>>()
            .join(" AND ")
    }

    fn key_columns(&self) -> impl Iterator<Item = &Column> {
        self.key
            .iter()
            .filter_map(|at| self.columns.iter().find(|column| column.at == *at))
    }

    /// Deletes what matches a condition that is given as SQL. TRUNCATE would remove the rows even
    /// from sessions that read an older snapshot, as verification does.
    pub(crate) fn delete_where(&self, condition: &str) -> String {
        format!("DELETE FROM ONLY {} WHERE {condition}", self.target)
    }

    /// The condition that finds one row; its parameters come after the first `before`.
    fn row_condition(&self, before: usize) -> String {
        if self.has_key() {
            let equal = |(at, column): (usize, &Column)| {
                format!(
                    "{} = ${}::{}",
                    column.quoted,
                    before + at + 1,
                    column.target.type_sql
                )
            };
            return self
                .key_columns()
                .enumerate()
                .map(equal)
                .collect::<Vec<_>>()
                .join(" AND ");
        }
        if self.columns.is_empty() {
            return format!("ctid = (SELECT ctid FROM ONLY {} LIMIT 1)", self.target);
        }
        // Not every type has an equality, but every one has an output function, and format uses
        // that. Its text has the column's collation, in which different texts may be equal. IS NULL
        // does not work for a composite value: it is true for one with only null fields.
        let same = |(at, column): (usize, &Column)| {
            let (name, parameter) = (&column.quoted, before + at + 1);
            format!(
                "CASE num_nulls({name}) WHEN 1 THEN ${parameter}::text IS NULL
                 ELSE format('%s', {name}) = ${parameter}::text COLLATE \"C\" END"
            )
        };
        let mut all: Vec<String> = self.columns.iter().enumerate().map(same).collect();
        let hashed = || {
            self.columns
                .iter()
                .enumerate()
                .filter(|(_, column)| column.hashed)
        };
        if hashed().next().is_some() {
            let values = |(at, column): (usize, &Column)| {
                format!("${}::text::{}", before + at + 1, column.sql())
            };
            let row = row_index::of_row(
                &hashed()
                    .map(|(_, column)| column.quoted.clone())
                    .collect::<Vec<_>>(),
            );
            let wanted = row_index::of_row(&hashed().map(values).collect::<Vec<_>>());
            all.insert(0, format!("{row} = {wanted}"));
        }
        format!(
            "ctid = (SELECT ctid FROM ONLY {} WHERE {} LIMIT 1)",
            self.target,
            all.join(" AND ")
        )
    }

    /// Reads the row with a key from the source's table, which has this name at present: the texts
    /// of all values, in the order of [`values`](Layout::values). The parameters are the key's
    /// texts.
    pub(crate) fn reread(&self, source: &str) -> String {
        // Null stays null, where format would make an empty text of it. IS NOT NULL is false for a
        // composite value with a null field.
        let texts: Vec<String> = self
            .columns
            .iter()
            .map(|column| {
                format!(
                    "CASE num_nulls({0}) WHEN 0 THEN format('%s', {0}) END",
                    column.quoted
                )
            })
            .collect();
        // No type is named, because one of the shard's own is in a schema that the fence renames. A
        // parameter takes the type of what it is compared with. Only for a composite value that
        // would be any record, and no text can be read as that.
        let equal = |(at, column): (usize, &Column)| match column.composite {
            true => format!("format('%s', {}) = ${}::text", column.quoted, at + 1),
            false => format!("{} = ${}", column.quoted, at + 1),
        };
        let key: Vec<String> = self.key_columns().enumerate().map(equal).collect();
        format!(
            "SELECT ARRAY[{}]::text[] FROM ONLY {source} WHERE {}",
            texts.join(", "),
            key.join(" AND ")
        )
    }
}

fn text(value: &Value) -> Option<Bytes> {
    match value {
        Value::Text(text) => Some(text.clone()),
        Value::Null | Value::Unchanged => None,
    }
}
