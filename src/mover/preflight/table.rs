//! A table with rows to be copied and changes to be applied: its columns, and the key by which the
//! stream identifies its rows.
//!
//! Invariant: the key is that of the replica identity, never just any unique one. The stream has
//! the former values of no other columns, and a row with an unknown former key could not be
//! assigned to its chunk. A deferrable key does not count: within a transaction two rows may have
//! the same value, and a change would hit both, or the wrong one.

use futures_util::future::BoxFuture;

use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::pg::quote_ident;

use crate::mover::preflight::key::KeyKind;

/// How the stream identifies a row that was updated or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// By the primary key, if there is one.
    Default,
    /// By all columns.
    Full,
    /// By nothing: updates and deletes fail while the table is published.
    Nothing,
    /// By a unique index.
    Index,
}

/// Types with smaller OIDs have them on every server. Those of information_schema are PostgreSQL's
/// own as well, but get their OIDs when a server is made, as users' types do later.
const FIRST_OF_A_SERVER: u32 = 10_000;

/// aclitem, tsquery and their arrays.
const WITHOUT_BINARY_FORM: [u32; 4] = [1033, 1034, 3615, 3645];

/// interval and its array. From version 17 on there are infinite intervals, and their binary forms
/// are those of the largest and the smallest interval of older versions: sent as such, the one
/// would become the other, and look the same. Their texts differ.
const OF_OTHER_MEANING: [u32; 2] = [1186, 1187];

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) type_oid: u32,
    /// Whether its values are rows of a composite type, or of a domain over one.
    pub(crate) composite: bool,
    /// Whether its value is computed from other columns; it is neither copied nor applied.
    pub(crate) generated: bool,
    /// Whether its value is computed whenever it is read, and never stored.
    pub(crate) is_virtual: bool,
    /// Whether the server can hash its values so that values with the same text have the same hash.
    pub(crate) hashable: bool,
    /// Its position in the key, from 0.
    pub(crate) in_key: Option<usize>,
    /// Whether its own collation calls values equal that are different ones in the key's index,
    /// which has another collation.
    pub(crate) ambiguous: bool,
}

impl Column {
    /// Whether a value's binary form is the same on every host and can be read back. That is so if
    /// the type is PostgreSQL's own, with one OID everywhere, and not one that has no binary form
    /// (aclitem), cannot read its own (an empty tsquery), or means another value by it in another
    /// version.
    pub(crate) fn is_binary(&self) -> bool {
        let known = !WITHOUT_BINARY_FORM.contains(&self.type_oid)
            && !OF_OTHER_MEANING.contains(&self.type_oid);
        self.type_oid < FIRST_OF_A_SERVER && known
    }

    /// Whether the column may have this type at another server, where some types have another OID.
    pub(crate) fn may_be_of(&self, type_oid: u32) -> bool {
        self.type_oid == type_oid || self.type_oid.min(type_oid) >= FIRST_OF_A_SERVER
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
    /// Whether it is checked row by row. The stream does not use a deferrable index to identify
    /// rows, and its columns are no key.
    pub(crate) immediate: bool,
}

/// One table of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableShape {
    /// The OID on the source. The name changes when the shard is fenced, the OID does not.
    pub(crate) oid: u32,
    pub(crate) name: String,
    /// In the order of the table.
    pub(crate) columns: Vec<Column>,
    /// Indexes into `columns`, in the key's order. Empty if the table has no key that the stream
    /// uses.
    pub(crate) key: Vec<usize>,
    /// The kind of the key's first column, if its order is known here; otherwise the table is
    /// copied as one chunk.
    pub(crate) first_key: Option<KeyKind>,
    pub(crate) identity: Identity,
    pub(crate) key_index: Option<KeyIndex>,
}

impl TableShape {
    /// The columns that have a value of their own, quoted and joined.
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

    /// Whether all values can be sent in binary form.
    pub(crate) fn is_binary(&self) -> bool {
        self.columns.iter().all(Column::is_binary)
    }
}

fn joined<'a>(columns: impl Iterator<Item = &'a Column>) -> String {
    columns.map(Column::quoted).collect::<Vec<_>>().join(", ")
}

/// The tables of a schema, by its OID, with changes in the stream: those that are logged. Sorted by
/// name.
///
/// Locks: ACCESS SHARE on catalogs.
pub(crate) async fn shapes(session: &Session, schema: u32) -> Result<Vec<TableShape>, Error> {
    read(session, schema, &["p"]).await
}

/// The tables of a schema without changes in the stream: unlogged ones.
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

/// The tables are found by pg_depend, which has an index for it: pg_class has no index on the
/// schema.
fn read<'a>(
    session: &'a Session,
    schema: u32,
    persistence: &'a [&'a str],
) -> BoxFuture<'a, Result<Vec<TableShape>, Error>> {
    Box::pin(async move {
        // The default collation orders by bytes if the database's locale is C, unless its provider
        // is another library.
        let sql =
            "SELECT c.oid, c.relname::text, c.relreplident::text, x.relname::text, i.indisprimary, \
                i.indimmediate,
            a.attname::text, a.atttypid, coalesce(t.typcategory = 'C', false), a.attgenerated::text,
            CASE WHEN i.indimmediate THEN array_position((i.indkey::int2[])[0:i.indnkeyatts - 1], \
            a.attnum) END,
            coalesce(nullif(t.typbasetype, 0), t.oid),
            a.atttypid = ANY
            \
            ('{16,17,20,21,23,25,700,701,1042,1043,1082,1083,1114,1184,1186,1266,1700,2950,\
            3802}'::oid[])
                AND a.attcollation IN (0, 100, 950, 951),
            pg_encoding_to_char(b.encoding) = 'UTF8' AND (a.attcollation IN (950, 951) OR \
            a.attcollation = 100
                AND b.datcollate IN ('C', 'POSIX') AND coalesce(to_jsonb(b) ->> 'datlocprovider', \
                'c') = 'c'),
            a.attcollation = ANY (ARRAY(SELECT oid FROM pg_collation WHERE NOT collisdeterministic))
                AND a.attcollation <> (i.indcollation::oid[])[array_position(i.indkey::int2[], \
                a.attnum)]
        FROM pg_depend d JOIN pg_class c ON c.oid = d.objid JOIN pg_database b ON b.datname = \
        current_database()
        LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisvalid
            AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
        LEFT JOIN pg_class x ON x.oid = i.indexrelid
        LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_type t ON t.oid = a.atttypid
        WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = $1 AND d.classid = \
        'pg_class'::regclass
            AND c.relkind = 'r' AND c.relpersistence::text = ANY ($2)
        ORDER BY c.relname COLLATE \"C\", c.oid, a.attnum";
        let mut shapes: Vec<TableShape> = Vec::new();
        let mut kinds = Vec::new();
        for row in session
            .rows("reading the tables", sql, &[&schema, &persistence])
            .await?
        {
            let oid = row.get(0)?;
            if shapes.last().is_none_or(|last| last.oid != oid) {
                if let Some(last) = shapes.last_mut() {
                    find_key(last, &kinds);
                }
                kinds.clear();
                let key_index = match row.get::<_, Option<String>>(3)? {
                    Some(name) => Some(KeyIndex {
                        name,
                        primary: row.get(4)?,
                        immediate: row.get(5)?,
                    }),
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
            let (Some(name), Some(last)) = (row.get::<_, Option<String>>(6)?, shapes.last_mut())
            else {
                continue;
            };
            kinds.push(KeyKind::of(row.get(11)?, row.get(13)?));
            last.columns.push(Column {
                name,
                type_oid: row.get(7)?,
                composite: row.get(8)?,
                generated: !row.get::<_, &str>(9)?.is_empty(),
                is_virtual: row.get::<_, &str>(9)? == "v",
                hashable: row.get(12)?,
                in_key: row
                    .get::<_, Option<i32>>(10)?
                    .and_then(|at| usize::try_from(at).ok()),
                ambiguous: row.get::<_, Option<bool>>(14)? == Some(true),
            });
        }
        if let Some(last) = shapes.last_mut() {
            find_key(last, &kinds);
        }
        Ok(shapes)
    })
}

/// Fills in the key, once all columns are known. A generated column is not in the stream, so a key
/// that contains one does not count; nor does one of which a condition on its columns would find
/// several rows.
fn find_key(shape: &mut TableShape, kinds: &[Option<KeyKind>]) {
    let mut key: Vec<(usize, usize)> = shape
        .columns
        .iter()
        .enumerate()
        .filter_map(|(at, column)| Some((column.in_key?, at)))
        .collect();
    key.sort_unstable();
    let counts = |column: &Column| !column.generated && !column.ambiguous;
    if key.iter().all(|(_, at)| counts(&shape.columns[*at])) {
        shape.key = key.into_iter().map(|(_, at)| at).collect();
    } else {
        shape.key.clear();
        shape
            .columns
            .iter_mut()
            .for_each(|column| column.in_key = None);
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
            ambiguous: false,
        };
        let mut shape = TableShape {
            oid: 1,
            name: "t".to_owned(),
            columns: columns.iter().enumerate().map(column).collect(),
            key: Vec::new(),
            first_key: None,
            identity: Identity::Default,
            key_index: (in_key > 0).then(|| KeyIndex {
                name: "t_pkey".to_owned(),
                primary: true,
                immediate: true,
            }),
        };
        find_key(&mut shape, &vec![Some(KeyKind::Integer); columns.len()]);
        shape
    }

    /// A table with a generated column as its primary key.
    pub(crate) fn keyed_by_a_generated_column() -> TableShape {
        let mut shape = shape(&["id", "v"], 1);
        shape.columns[0].generated = true;
        find_key(
            &mut shape,
            &[Some(KeyKind::Integer), Some(KeyKind::Integer)],
        );
        shape
    }

    #[test]
    fn a_generated_column_makes_no_key() {
        let shape = keyed_by_a_generated_column();
        assert!(shape.key.is_empty() && shape.first_key.is_none());
    }

    #[test]
    fn an_ambiguous_column_makes_no_key() {
        let mut ambiguous = shape(&["name", "v"], 1);
        ambiguous.columns[0].ambiguous = true;
        find_key(&mut ambiguous, &[None, None]);
        assert!(ambiguous.key.is_empty());
    }

    #[test]
    fn keys_keep_their_own_order() {
        let mut shape = shape(&["a", "b", "c"], 0);
        shape.columns[2].in_key = Some(0);
        shape.columns[0].in_key = Some(1);
        find_key(&mut shape, &[None, None, Some(KeyKind::Uuid)]);
        assert_eq!(
            (shape.key.as_slice(), shape.first_key),
            ([2, 0].as_slice(), Some(KeyKind::Uuid))
        );
        assert_eq!(shape.first_key_column().unwrap().name, "c");
    }
}
