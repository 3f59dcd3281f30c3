//! What the table of an unsharded host must be for a look-up: the columns, and a unique index that
//! makes their values unique.
//!
//! Invariant: an index is taken only if two rows with one value cannot both be in it. It may be
//! stricter than the look-up: over fewer columns, or folding more than A to Z.

use crate::pg::quote_ident;
use crate::values::{Definition, Fold};

/// Reads the table `$2` of the schema `$1`: whether it can have a look-up, whether it has the key
/// column `$4`, and of each column `$3` its kind, its type and its collation, as SQL names them.
/// The types are those that a shard's look-up may have (`migrations/lookup/lookup.sql`), and
/// `citext`.
pub(super) const TABLE: &str = "SELECT c.relkind = 'r' AND NOT c.relispartition \
        AND NOT c.relhassubclass AND NOT c.relrowsecurity, \
    EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid \
        AND a.attname = $4::text AND a.attnotnull AND NOT a.attisdropped \
        AND a.atttypid IN ('pg_catalog.int2'::regtype, 'pg_catalog.int4'::regtype, \
            'pg_catalog.int8'::regtype, 'pg_catalog.text'::regtype, \
            'pg_catalog.varchar'::regtype, 'pg_catalog.uuid'::regtype)), \
    w.kinds, w.types, w.collations \
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace, \
    LATERAL (SELECT \
        pg_catalog.array_agg(CASE WHEN NOT coalesce(l.collisdeterministic, true) THEN 'other' \
            WHEN a.atttypid IN ('pg_catalog.int2'::regtype, 'pg_catalog.int4'::regtype, \
                'pg_catalog.int8'::regtype) THEN 'integer' \
            WHEN a.atttypid IN ('pg_catalog.text'::regtype, 'pg_catalog.varchar'::regtype) \
                THEN 'text' \
            WHEN a.atttypid = 'pg_catalog.uuid'::regtype THEN 'uuid' \
            WHEN a.atttypid = 'pg_catalog.date'::regtype THEN 'date' \
            WHEN t.typname = 'citext' AND t.typtype = 'b' THEN 'citext' ELSE 'other' END \
            ORDER BY x.place) AS kinds, \
        pg_catalog.array_agg(pg_catalog.quote_ident(s.nspname) ORDER BY x.place) AS types, \
        pg_catalog.array_agg(pg_catalog.quote_ident(ln.nspname) || '.' || \
            pg_catalog.quote_ident(l.collname) ORDER BY x.place) AS collations \
        FROM pg_catalog.unnest($3::text[]) WITH ORDINALITY AS x(name, place) \
        LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = x.name \
            AND a.attnum > 0 AND NOT a.attisdropped \
        LEFT JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
        LEFT JOIN pg_catalog.pg_namespace s ON s.oid = t.typnamespace \
        LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation \
        LEFT JOIN pg_catalog.pg_namespace ln ON ln.oid = l.collnamespace) w \
    WHERE n.nspname = $1::text AND c.relname = $2::text";

/// Reads the unique indexes of the table `$2` of the schema `$1` that hold for every row: of each
/// part the column or else an empty text, the expression, and the collation that compares it. A
/// deferrable one counts: two committed rows never have one value. One that calls a function of
/// somebody's own does not: nothing is known of that.
pub(super) const INDEXES: &str = "SELECT \
    pg_catalog.array_agg(coalesce(a.attname::text, '') ORDER BY p.place), \
    pg_catalog.array_agg(pg_catalog.pg_get_indexdef(i.indexrelid, p.place::int, false) \
        ORDER BY p.place), \
    pg_catalog.array_agg(coalesce(pg_catalog.quote_ident(ln.nspname) || '.' || \
        pg_catalog.quote_ident(l.collname), '') ORDER BY p.place) \
    FROM pg_catalog.pg_index i \
    JOIN pg_catalog.pg_class c ON c.oid = i.indrelid \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    JOIN LATERAL pg_catalog.unnest(i.indkey) WITH ORDINALITY AS p(attnum, place) \
        ON p.place <= i.indnkeyatts \
    LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = p.attnum \
        AND p.attnum > 0 \
    LEFT JOIN pg_catalog.pg_collation l ON l.oid = i.indcollation[p.place - 1] \
    LEFT JOIN pg_catalog.pg_namespace ln ON ln.oid = l.collnamespace \
    WHERE n.nspname = $1::text AND c.relname = $2::text \
        AND i.indisunique AND i.indisvalid AND i.indpred IS NULL \
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d \
            WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = i.indexrelid \
            AND d.refclassid = 'pg_catalog.pg_proc'::regclass) \
    GROUP BY i.indexrelid ORDER BY i.indexrelid";

/// Texts that some languages fold otherwise than A to Z: Turkish an I, Lithuanian an I or J with an
/// accent.
pub(super) const TRIAL: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ I\u{300} I\u{301} I\u{303} J\u{300}";

/// Whether each of these collations folds what A to Z folds, in the text `$1`.
pub(super) fn folds_ascii(collations: &[String]) -> String {
    let tried = collations.iter().map(|collation| {
        format!(
            "pg_catalog.lower($1::text COLLATE {collation}) COLLATE \"C\" = pg_catalog.lower(\
            pg_catalog.lower($1::text COLLATE \"C\") COLLATE {collation}) COLLATE \"C\""
        )
    });
    format!("SELECT ARRAY[{}]", tried.collect::<Vec<_>>().join(", "))
}

/// A row of [`TABLE`].
pub(super) type TableRow = (
    bool,
    bool,
    Vec<String>,
    Vec<Option<String>>,
    Vec<Option<String>>,
);

/// A row of [`INDEXES`].
pub(super) type IndexRow = (Vec<String>, Vec<String>, Vec<String>);

/// A column of a look-up.
#[derive(Clone, Debug)]
struct Column {
    name: String,
    kind: String,
    /// The schema of its type.
    type_schema: String,
    collation: String,
}

/// The columns of a look-up in a table that can have one.
#[derive(Clone, Debug)]
pub(super) struct Columns<'a> {
    definition: &'a Definition,
    columns: Vec<Column>,
}

/// An index that makes the values unique, if the collations fold ASCII.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UniqueIndex {
    /// The collations in which it folds.
    pub(super) collations: Vec<String>,
    /// What rows with the values have in the index, so that a statement uses it.
    conditions: Vec<String>,
}

impl<'a> Columns<'a> {
    /// The columns of this table, or why it cannot have the look-up.
    pub(super) fn of(
        definition: &'a Definition,
        row: Option<TableRow>,
    ) -> Result<Columns<'a>, &'static str> {
        let Some((is_ordinary, has_key, kinds, types, collations)) = row else {
            return Err("the schema has no such table");
        };
        if !is_ordinary {
            return Err(
                "it must be an ordinary table: not partitioned, no parent of others, no \
                row-level security",
            );
        }
        let is_allowed = |kind: &String| match definition.fold {
            Fold::None => !["other", "citext"].contains(&kind.as_str()),
            Fold::Ascii => ["text", "citext"].contains(&kind.as_str()),
        };
        if !kinds.iter().all(is_allowed) {
            return Err(match definition.fold {
                Fold::None => {
                    "each column must be an integer, text, varchar, uuid or date, without \
                    a collation that is not deterministic"
                }
                Fold::Ascii => {
                    "with fold = \"ascii\" each column must be text, varchar or citext, \
                    without a collation that is not deterministic"
                }
            });
        }
        if !has_key {
            return Err("its key column must be an integer, text, varchar or uuid, and NOT NULL");
        }
        let named = definition.columns.iter().zip(kinds);
        let columns = named.zip(types.into_iter().zip(collations));
        let columns = columns.map(|((name, kind), (type_schema, collation))| Column {
            name: name.clone(),
            kind,
            type_schema: type_schema.unwrap_or_default(),
            collation: collation.unwrap_or_default(),
        });
        Ok(Columns {
            definition,
            columns: columns.collect(),
        })
    }

    /// Their types, as shards call them.
    pub(super) fn kinds(&self) -> Vec<String> {
        let kinds = self.columns.iter().map(|column| match &*column.kind {
            "citext" => "text".to_owned(),
            kind => kind.to_owned(),
        });
        kinds.collect()
    }

    /// The index of this row, if two rows with one value cannot both be in it.
    pub(super) fn unique(&self, (names, expressions, collations): IndexRow) -> Option<UniqueIndex> {
        let mut index = UniqueIndex {
            collations: Vec::new(),
            conditions: Vec::new(),
        };
        for ((name, expression), collation) in names.iter().zip(&expressions).zip(&collations) {
            match self.definition.fold {
                Fold::None => self
                    .columns
                    .iter()
                    .find(|column| column.name == *name)
                    .map(drop)?,
                Fold::Ascii => self.folded(&mut index, (name, expression, collation))?,
            }
        }
        Some(index)
    }

    /// Adds a part of an index that folds a column: an expression, or a column of type `citext`.
    fn folded(
        &self,
        index: &mut UniqueIndex,
        (name, expression, compares): (&str, &str, &str),
    ) -> Option<()> {
        let (at, column) = (1..).zip(&self.columns).find(|(_, column)| match name {
            "" => lower_of(expression, &column.name).is_some(),
            name => column.name == name && column.kind == "citext",
        })?;
        let condition = if name.is_empty() {
            let collation = lower_of(expression, &column.name)?.unwrap_or(&column.collation);
            index.collations.push(collation.to_owned());
            format!(
                "({expression}) COLLATE {compares} = pg_catalog.lower(${at}::text COLLATE \
                {collation}) COLLATE {compares}"
            )
        } else {
            // Its comparison folds in the collation of the database.
            index.collations.push("pg_catalog.\"default\"".to_owned());
            let schema = &column.type_schema;
            format!(
                "{name} COLLATE {compares} OPERATOR({schema}.=) ${at}::text::{schema}.citext",
                name = quote_ident(name)
            )
        };
        index.conditions.push(condition);
        Some(())
    }

    /// Reads the key of the row with the values that are the parameters, by an index.
    pub(super) fn find(&self, index: &UniqueIndex) -> String {
        let has_values = self.definition.has_values_sql(|at| {
            let kind = match &*self.columns[at].kind {
                "integer" => "bigint",
                "citext" => "text",
                kind => kind,
            };
            format!("${}::{kind}", at + 1)
        });
        let mut conditions = vec![has_values];
        conditions.extend(index.conditions.iter().cloned());
        format!(
            "SELECT {}::text FROM {{shard}}.{} WHERE {}",
            quote_ident(&self.definition.key),
            quote_ident(&self.definition.table),
            conditions.join(" AND ")
        )
    }

    /// The statement that creates an index which makes the values unique.
    pub(super) fn remedy(&self, table: &str) -> String {
        let parts: Vec<String> = (0..self.columns.len())
            .map(|at| self.definition.folded_sql(at))
            .collect();
        let parts = parts.join(", ");
        format!("CREATE UNIQUE INDEX CONCURRENTLY ON {table} ({parts})")
    }
}

/// Whether an expression of an index, as PostgreSQL writes it, is `lower` of this column; and in
/// which collation, if it names one.
fn lower_of<'e>(expression: &'e str, column: &str) -> Option<Option<&'e str>> {
    let called = expression.strip_prefix("pg_catalog.").unwrap_or(expression);
    let mut inner = called.strip_prefix("lower(")?.strip_suffix(')')?;
    let mut collation = None;
    loop {
        if let Some((before, named)) = inner.rsplit_once(" COLLATE ")
            && collation.is_none()
            && is_name(named)
        {
            (inner, collation) = (before, Some(named));
        } else if let Some(before) = inner.strip_suffix("::text") {
            inner = before;
        } else if let Some(within) = inner.strip_prefix('(').and_then(|x| x.strip_suffix(')')) {
            inner = within;
        } else {
            break;
        }
    }
    let is_column = inner == column && !inner.contains('"') || inner == quote_ident(column);
    is_column.then_some(collation)
}

/// Whether a text is a name, or one with its schema, and nothing else.
fn is_name(text: &str) -> bool {
    let mut is_quoted = false;
    let is_part = |c: char| c.is_alphanumeric() || "_.$".contains(c);
    text.chars().all(|c| {
        is_quoted ^= c == '"';
        c == '"' || is_quoted || is_part(c)
    }) && !is_quoted
}
