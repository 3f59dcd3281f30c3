//! What is known of a table whose rows are copied and whose changes are applied: its columns, and the key by which the
//! stream names its rows.
//!
//! Invariant: the key is the one of the replica identity, never just any unique one. The stream tells the former values
//! of no other columns, and a row whose former key is not known could not be put to its chunk. A key that is deferrable
//! is none: within a transaction two rows may have the same one, and a change would hit both, or the other.

use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::pg::quote_ident;

use crate::mover::preflight::key::KeyKind;

/// By what the stream names a row that was updated or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// The primary key, if there is one.
    Default,
    /// All columns.
    Full,
    /// Nothing: updates and deletes fail while the table is published.
    Nothing,
    /// A unique index.
    Index,
}

/// Types with smaller OIDs are PostgreSQL's own.
const FIRST_OF_USERS: u32 = 16384;

/// aclitem, tsquery and their arrays.
const WITHOUT_BINARY_FORM: [u32; 4] = [1033, 1034, 3615, 3645];

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) type_oid: u32,
    /// Its values are rows of a type, or of a domain over one.
    pub(crate) composite: bool,
    /// Its value comes from the others; it is neither copied nor applied.
    pub(crate) generated: bool,
    /// Its value is computed whenever it is read: nothing of it is stored.
    pub(crate) is_virtual: bool,
    /// The server can hash its values, and two that have the same text have the same hash.
    pub(crate) hashable: bool,
    /// Its place in the key, from 0.
    pub(crate) in_key: Option<usize>,
}

impl Column {
    /// Whether a value's binary form is the same on every host, and can be read again: the type is PostgreSQL's own,
    /// and none of those that have no binary form (aclitem) or do not read their own (tsquery, where it is empty).
    pub(crate) fn is_binary(&self) -> bool {
        self.type_oid < FIRST_OF_USERS && !WITHOUT_BINARY_FORM.contains(&self.type_oid)
    }

    pub(crate) fn quoted(&self) -> String {
        quote_ident(&self.name)
    }
}

/// The index that makes the key unique.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyIndex {
    pub(crate) name: String,
    pub(crate) primary: bool,
    /// Checked row by row. One that is deferrable names no rows in the stream, and its columns are no key.
    pub(crate) immediate: bool,
}

/// One table of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableShape {
    /// On the source. The name changes when the shard is fenced, this does not.
    pub(crate) oid: u32,
    pub(crate) name: String,
    /// In the table's order.
    pub(crate) columns: Vec<Column>,
    /// Indexes into `columns`, in the key's order. Empty: the table has no key that the stream tells.
    pub(crate) key: Vec<usize>,
    /// The kind of the key's first column, if its order is known here; else the table is copied as one chunk.
    pub(crate) first_key: Option<KeyKind>,
    pub(crate) identity: Identity,
    pub(crate) key_index: Option<KeyIndex>,
}

impl TableShape {
    /// Quoted and joined: the columns that have a value of their own.
    pub(crate) fn written(&self) -> String {
        joined(self.columns.iter().filter(|column| !column.generated))
    }

    /// The key's columns, in its order.
    pub(crate) fn key_columns(&self) -> impl Iterator<Item = &Column> {
        self.key.iter().map(|at| &self.columns[*at])
    }

    /// The column by which the table is cut into chunks.
    pub(crate) fn first_key_column(&self) -> Option<&Column> {
        self.key_columns().next()
    }

    /// Whether all values can go over in binary form.
    pub(crate) fn is_binary(&self) -> bool {
        self.columns.iter().all(Column::is_binary)
    }
}

fn joined<'a>(columns: impl Iterator<Item = &'a Column>) -> String {
    columns.map(Column::quoted).collect::<Vec<_>>().join(", ")
}

/// The tables of a schema whose changes a stream has, by its OID and sorted by name: those that are logged.
///
/// Locks: ACCESS SHARE on catalogs.
pub(crate) async fn shapes(session: &Session, schema: u32) -> Result<Vec<TableShape>, Error> {
    read(session, schema, &["p"]).await
}

/// The tables of a schema whose changes no stream has.
///
/// Locks: ACCESS SHARE on catalogs.
pub(crate) async fn unlogged(session: &Session, schema: u32) -> Result<Vec<TableShape>, Error> {
    read(session, schema, &["u"]).await
}

/// All tables of a schema.
///
/// Locks: ACCESS SHARE on catalogs.
pub(crate) async fn all(session: &Session, schema: u32) -> Result<Vec<TableShape>, Error> {
    read(session, schema, &["p", "u"]).await
}

/// Found by pg_depend, whose index answers at once: pg_class has none by schema.
async fn read(session: &Session, schema: u32, persistence: &[&str]) -> Result<Vec<TableShape>, Error> {
    // The default collation orders by bytes where the database's locale is C, and its provider not another library.
    let sql = "SELECT c.oid, c.relname::text, c.relreplident::text, x.relname::text, i.indisprimary, i.indimmediate,
            a.attname::text, a.atttypid, coalesce(t.typcategory = 'C', false), a.attgenerated::text,
            CASE WHEN i.indimmediate THEN array_position((i.indkey::int2[])[0:i.indnkeyatts - 1], a.attnum) END,
            coalesce(nullif(t.typbasetype, 0), t.oid),
            a.atttypid = ANY
            ('{16,17,20,21,23,25,700,701,1042,1043,1082,1083,1114,1184,1186,1266,1700,2950,3802}'::oid[])
                AND a.attcollation IN (0, 100, 950, 951),
            pg_encoding_to_char(b.encoding) = 'UTF8' AND (a.attcollation IN (950, 951) OR a.attcollation = 100
                AND b.datcollate IN ('C', 'POSIX') AND coalesce(to_jsonb(b) ->> 'datlocprovider', 'c') = 'c')
        FROM pg_depend d JOIN pg_class c ON c.oid = d.objid JOIN pg_database b ON b.datname = current_database()
        LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisvalid
            AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
        LEFT JOIN pg_class x ON x.oid = i.indexrelid
        LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_type t ON t.oid = a.atttypid
        WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = $1 AND d.classid = 'pg_class'::regclass
            AND c.relkind = 'r' AND c.relpersistence::text = ANY ($2)
        ORDER BY c.relname COLLATE \"C\", c.oid, a.attnum";
    let mut shapes: Vec<TableShape> = Vec::new();
    let mut kinds = Vec::new();
    for row in session.rows("reading the tables", sql, &[&schema, &persistence]).await? {
        let oid = row.get(0)?;
        if shapes.last().is_none_or(|last| last.oid != oid) {
            if let Some(last) = shapes.last_mut() {
                find_key(last, &kinds);
            }
            kinds.clear();
            let key_index = match row.get::<_, Option<String>>(3)? {
                Some(name) => Some(KeyIndex { name, primary: row.get(4)?, immediate: row.get(5)? }),
                None => None,
            };
            shapes.push(TableShape {
                oid,
                name: row.get(1)?,
                columns: Vec::new(),
                key: Vec::new(),
                first_key: None,
                identity: match row.get(2)? {
                    "f" => Identity::Full,
                    "n" => Identity::Nothing,
                    "i" => Identity::Index,
                    _ => Identity::Default,
                },
                key_index,
            });
        }
        let (Some(name), Some(last)) = (row.get::<_, Option<String>>(6)?, shapes.last_mut()) else { continue };
        kinds.push(KeyKind::of(row.get(11)?, row.get(13)?));
        last.columns.push(Column {
            name,
            type_oid: row.get(7)?,
            composite: row.get(8)?,
            generated: !row.get::<_, &str>(9)?.is_empty(),
            is_virtual: row.get::<_, &str>(9)? == "v",
            hashable: row.get(12)?,
            in_key: row.get::<_, Option<i32>>(10)?.and_then(|at| usize::try_from(at).ok()),
        });
    }
    if let Some(last) = shapes.last_mut() {
        find_key(last, &kinds);
    }
    Ok(shapes)
}

/// Fills the key in, now that all columns are there. A generated column is not in the stream, so neither is a key with
/// one.
fn find_key(shape: &mut TableShape, kinds: &[Option<KeyKind>]) {
    let mut key: Vec<(usize, usize)> =
        shape.columns.iter().enumerate().filter_map(|(at, column)| Some((column.in_key?, at))).collect();
    key.sort_unstable();
    if key.iter().all(|(_, at)| !shape.columns[*at].generated) {
        shape.key = key.into_iter().map(|(_, at)| at).collect();
    } else {
        shape.key.clear();
        shape.columns.iter_mut().for_each(|column| column.in_key = None);
    }
    shape.first_key = shape.key.first().and_then(|at| kinds[*at]);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A table with bigint columns of these names; the first of them are its primary key.
    pub(crate) fn shape(columns: &[&str], in_key: usize) -> TableShape {
        let column = |(at, name): (usize, &&str)| Column {
            name: (*name).to_owned(),
            type_oid: 20,
            composite: false,
            generated: false,
            is_virtual: false,
            hashable: true,
            in_key: (at < in_key).then_some(at),
        };
        let mut shape = TableShape {
            oid: 1,
            name: "t".to_owned(),
            columns: columns.iter().enumerate().map(column).collect(),
            key: Vec::new(),
            first_key: None,
            identity: Identity::Default,
            key_index: (in_key > 0).then(|| KeyIndex { name: "t_pkey".to_owned(), primary: true, immediate: true }),
        };
        find_key(&mut shape, &vec![Some(KeyKind::Integer); columns.len()]);
        shape
    }

    /// A table whose primary key is a generated column.
    pub(crate) fn keyed_by_a_generated_column() -> TableShape {
        let mut shape = shape(&["id", "v"], 1);
        shape.columns[0].generated = true;
        find_key(&mut shape, &[Some(KeyKind::Integer), Some(KeyKind::Integer)]);
        shape
    }

    #[test]
    fn a_generated_column_makes_no_key() {
        let shape = keyed_by_a_generated_column();
        assert!(shape.key.is_empty() && shape.first_key.is_none());
    }

    #[test]
    fn keys_keep_their_own_order() {
        let mut shape = shape(&["a", "b", "c"], 0);
        shape.columns[2].in_key = Some(0);
        shape.columns[0].in_key = Some(1);
        find_key(&mut shape, &[None, None, Some(KeyKind::Uuid)]);
        assert_eq!((shape.key.as_slice(), shape.first_key), ([2, 0].as_slice(), Some(KeyKind::Uuid)));
        assert_eq!(shape.first_key_column().unwrap().name, "c");
    }
}
