//! The messages of pgoutput, protocol version 1, as PostgreSQL 14 to 19 send them.
//! <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>
//!
//! Pure. Invariant: no bytes make it panic, and a message is read to its end or refused.

use bytes::{Buf, Bytes};

/// A change of a table of a shard.
#[derive(Clone)]
pub(super) enum Change {
    Insert(Row),
    Update(Option<Row>, Row),
    Delete(Row),
    Truncate,
}

/// One message of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    /// A transaction begins. Transactions do not overlap; they come in the order of their commits.
    Begin {
        /// Where its commit record begins.
        commit_lsn: u64,
        /// The lower 32 bits of the top transaction's number.
        xid: u32,
        /// When it was committed: microseconds since 2000.
        committed_at: i64,
    },
    /// The transaction has ended.
    Commit {
        /// Where its commit record ends.
        end_lsn: u64,
    },
    /// Describes the rows of a table that follow. Sent before the first row and after each change
    /// of the table.
    Relation(Relation),
    /// A new row.
    Insert { relation: u32, new: Row },
    /// A row was changed. `old` is present if its key changed, or if the replica identity is FULL.
    Update {
        relation: u32,
        old: Option<Row>,
        new: Row,
    },
    /// A row was deleted. `old` has all columns if the replica identity is FULL, otherwise those of
    /// the key, and nulls.
    Delete { relation: u32, old: Row },
    /// All rows of these tables were removed.
    Truncate { relations: Vec<u32> },
    /// Messages that are not used here: origins, types, logical messages.
    Other,
}

/// A table as the stream describes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Relation {
    pub(crate) oid: u32,
    pub(crate) schema: String,
    pub(crate) name: String,
    /// The names of the columns, without generated ones.
    pub(crate) columns: Vec<String>,
    /// Whether former rows have the column: those of the replica identity do, and all if it is
    /// FULL.
    pub(crate) in_identity: Vec<bool>,
}

/// The values of a row, one for each column of its relation.
pub(crate) type Row = Vec<Value>;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    /// A value stored out of line that the statement did not change; it is not sent.
    Unchanged,
    /// The text that the type's output function writes.
    Text(Bytes),
}

impl Value {
    /// The bytes of the text; `None` for null and for what was not sent.
    pub(crate) fn text(&self) -> Option<&[u8]> {
        match self {
            Value::Text(text) => Some(text),
            Value::Null | Value::Unchanged => None,
        }
    }
}

/// The bytes are no message of pgoutput.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message of the stream cannot be read: {what}")]
pub(crate) struct WireError {
    pub(crate) what: &'static str,
}

/// Reads one message.
pub(crate) fn decode(message: Bytes) -> Result<Message, WireError> {
    let mut rest = Input(message);
    let decoded = match rest.byte()? {
        b'B' => Message::Begin {
            commit_lsn: rest.u64()?,
            committed_at: rest.u64()? as i64,
            xid: rest.u32()?,
        },
        b'C' => {
            let (_flags, _begin, end_lsn, _at) =
                (rest.byte()?, rest.u64()?, rest.u64()?, rest.u64()?);
            Message::Commit { end_lsn }
        }
        b'R' => Message::Relation(rest.relation()?),
        b'I' => {
            let relation = rest.u32()?;
            match rest.byte()? {
                b'N' => Message::Insert {
                    relation,
                    new: rest.row()?,
                },
                _ => {
                    return Err(WireError {
                        what: "an insert without a row",
                    });
                }
            }
        }
        b'U' => {
            let relation = rest.u32()?;
            let mut kind = rest.byte()?;
            let mut old = None;
            if matches!(kind, b'K' | b'O') {
                old = Some(rest.row()?);
                kind = rest.byte()?;
            }
            if kind != b'N' {
                return Err(WireError {
                    what: "an update without a row",
                });
            }
            Message::Update {
                relation,
                old,
                new: rest.row()?,
            }
        }
        b'D' => {
            let relation = rest.u32()?;
            match rest.byte()? {
                b'K' | b'O' => Message::Delete {
                    relation,
                    old: rest.row()?,
                },
                _ => {
                    return Err(WireError {
                        what: "a delete without a row",
                    });
                }
            }
        }
        b'T' => {
            let (count, _options) = (rest.u32()?, rest.byte()?);
            if rest.0.len() != count as usize * 4 {
                return Err(WireError {
                    what: "a truncate with another number of tables than it says",
                });
            }
            Message::Truncate {
                relations: (0..count).map(|_| rest.u32()).collect::<Result<_, _>>()?,
            }
        }
        b'O' | b'Y' | b'M' => return Ok(Message::Other),
        _ => {
            return Err(WireError {
                what: "a kind of message that is not known",
            });
        }
    };
    if rest.0.has_remaining() {
        return Err(WireError {
            what: "bytes after the end of a message",
        });
    }
    Ok(decoded)
}

/// The part of a message that has not been read yet.
struct Input(Bytes);

const SHORT: WireError = WireError {
    what: "it ends early",
};

impl Input {
    fn byte(&mut self) -> Result<u8, WireError> {
        self.0.try_get_u8().map_err(|_| SHORT)
    }

    fn u16(&mut self) -> Result<u16, WireError> {
        self.0.try_get_u16().map_err(|_| SHORT)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        self.0.try_get_u32().map_err(|_| SHORT)
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        self.0.try_get_u64().map_err(|_| SHORT)
    }

    fn name(&mut self) -> Result<String, WireError> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(SHORT)?;
        let name = self.0.split_to(end);
        self.0.advance(1);
        String::from_utf8(name.into()).map_err(|_| WireError {
            what: "a name that is not UTF-8",
        })
    }

    fn relation(&mut self) -> Result<Relation, WireError> {
        let oid = self.u32()?;
        let (schema, name) = (self.name()?, self.name()?);
        let (_identity, count) = (self.byte()?, self.u16()?);
        let (mut columns, mut in_identity) = (Vec::new(), Vec::new());
        for _ in 0..count {
            in_identity.push(self.byte()? & 1 == 1);
            columns.push(self.name()?);
            let (_type, _modifier) = (self.u32()?, self.u32()?);
        }
        // PostgreSQL leaves out the schema's name if it is pg_catalog.
        let schema = if schema.is_empty() {
            "pg_catalog".to_owned()
        } else {
            schema
        };
        Ok(Relation {
            oid,
            schema,
            name,
            columns,
            in_identity,
        })
    }

    fn row(&mut self) -> Result<Row, WireError> {
        let count = self.u16()?;
        // No more than there are bytes: the count is not trusted before the values are there.
        let mut row = Vec::with_capacity(usize::from(count).min(self.0.len()));
        for _ in 0..count {
            row.push(match self.byte()? {
                b'n' => Value::Null,
                b'u' => Value::Unchanged,
                b't' => {
                    let length = self.u32()? as usize;
                    if length > self.0.len() {
                        return Err(SHORT);
                    }
                    Value::Text(self.0.split_to(length))
                }
                _ => {
                    return Err(WireError {
                        what: "a value that is neither null nor text",
                    });
                }
            });
        }
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};
    use proptest::prelude::*;

    use super::*;

    /// A message made by hand: its parts one after the other.
    fn message(parts: &[&[u8]]) -> Bytes {
        Bytes::from(parts.concat())
    }

    fn text(value: &str) -> Value {
        Value::Text(Bytes::copy_from_slice(value.as_bytes()))
    }

    #[test]
    fn transactions_are_decoded() {
        let begin = message(&[
            b"B",
            &7u64.to_be_bytes(),
            &(-5i64).to_be_bytes(),
            &900u32.to_be_bytes(),
        ]);
        assert_eq!(
            decode(begin),
            Ok(Message::Begin {
                commit_lsn: 7,
                xid: 900,
                committed_at: -5
            })
        );
        let commit = message(&[b"C\0", &7u64.to_be_bytes(), &9u64.to_be_bytes(), &[0; 8]]);
        assert_eq!(decode(commit), Ok(Message::Commit { end_lsn: 9 }));
    }

    #[test]
    fn a_relation_is_decoded() {
        let parts: [&[u8]; 6] = [
            b"R\0\0\0\x05s\0Na\xc3\xafve \"t\"\0f\0\x02",
            b"\x01id\0",
            &[0; 8],
            b"\0b\0",
            &[0; 8],
            b"",
        ];
        let relation = Relation {
            oid: 5,
            schema: "s".to_owned(),
            name: "Naïve \"t\"".to_owned(),
            columns: vec!["id".to_owned(), "b".to_owned()],
            in_identity: vec![true, false],
        };
        assert_eq!(decode(message(&parts)), Ok(Message::Relation(relation)));
    }

    #[test]
    fn changes_are_decoded() {
        let row: &[u8] = b"\0\x03nut\0\0\0\x02hi";
        let values = vec![Value::Null, Value::Unchanged, text("hi")];
        let relation = 3;
        let cases: [(&[&[u8]], Message); 6] = [
            (
                &[b"I\0\0\0\x03N", row],
                Message::Insert {
                    relation,
                    new: values.clone(),
                },
            ),
            (
                &[b"U\0\0\0\x03N", row],
                Message::Update {
                    relation,
                    old: None,
                    new: values.clone(),
                },
            ),
            (
                &[b"U\0\0\0\x03K\0\x01t\0\0\0\x011N", row],
                Message::Update {
                    relation,
                    old: Some(vec![text("1")]),
                    new: values.clone(),
                },
            ),
            (
                &[b"D\0\0\0\x03O", row],
                Message::Delete {
                    relation,
                    old: values.clone(),
                },
            ),
            (
                &[b"T\0\0\0\x02\x01\0\0\0\x03\0\0\0\x04"],
                Message::Truncate {
                    relations: vec![3, 4],
                },
            ),
            (&[b"O\0\0\0\0\0\0\0\0x\0"], Message::Other),
        ];
        for (parts, expected) in cases {
            assert_eq!(decode(message(parts)), Ok(expected));
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let cases: [(&[u8], &str); 7] = [
            (b"", "it ends early"),
            (b"?", "a kind of message that is not known"),
            (b"I\0\0\0\x03K\0\0", "an insert without a row"),
            (b"I\0\0\0\x03N\0\x01t\0\0\0\x09hi", "it ends early"),
            (
                b"I\0\0\0\x03N\0\x01b\0\0\0\0",
                "a value that is neither null nor text",
            ),
            (b"I\0\0\0\x03N\0\x01nn", "bytes after the end of a message"),
            (
                b"T\xff\xff\xff\xff\0\0\0\0\x03",
                "a truncate with another number of tables than it says",
            ),
        ];
        for (bytes, what) in cases {
            assert_eq!(
                decode(Bytes::copy_from_slice(bytes)),
                Err(WireError { what }),
                "{bytes:?}"
            );
        }
    }

    fn encoded(row: &[Value]) -> BytesMut {
        let mut out = BytesMut::new();
        out.put_u16(row.len() as u16);
        for value in row {
            match value {
                Value::Null => out.put_u8(b'n'),
                Value::Unchanged => out.put_u8(b'u'),
                Value::Text(text) => {
                    out.put_u8(b't');
                    out.put_u32(text.len() as u32);
                    out.put_slice(text);
                }
            }
        }
        out
    }

    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            Just(Value::Unchanged),
            proptest::collection::vec(any::<u8>(), 0..20).prop_map(|text| Value::Text(text.into())),
        ]
    }

    proptest! {
        #[test]
        fn no_bytes_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            kind in "[BCRIUDTOYM]",
        ) {
            let _ = decode(bytes.clone().into());
            let _ = decode([kind.as_bytes(), &bytes].concat().into());
        }

        #[test]
        fn no_message_that_is_cut_short_is_read(
            new in proptest::collection::vec(value(), 0..6),
            cut in 0.0..1.0f64,
        ) {
            let whole = message(&[b"I\0\0\0\x03N", &encoded(&new)]);
            prop_assert_eq!(decode(whole.clone()), Ok(Message::Insert { relation: 3, new }));
            let cut = (whole.len() as f64 * cut) as usize;
            prop_assert!(decode(whole.slice(..cut)).is_err());
        }
    }
}
