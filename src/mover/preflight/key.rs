//! Keys that sort here as they do in PostgreSQL, so that a change can be assigned to the chunk that
//! holds its row.

use uuid::Uuid;

/// The types of first key columns with an order that is known here. A table with a key of another
/// type is one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyKind {
    /// smallint, integer, bigint.
    Integer,
    /// uuid.
    Uuid,
    /// text, varchar and char under the collation "C", in a database with the encoding UTF-8: the
    /// order of the bytes.
    Text {
        /// char pads with spaces that do not count.
        padded: Padding,
    },
}

/// Whether trailing spaces count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Padding {
    /// They count: text, varchar.
    No,
    /// They do not count: char.
    Yes,
}

/// A value of a first key column. Two keys of the same kind compare as PostgreSQL compares them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Integer(i64),
    Uuid(Uuid),
    Text(Box<str>),
}

impl KeyKind {
    /// The kind of a column, given its type's OID (that of the base type, for a domain), and
    /// whether its texts are ordered by bytes.
    pub(crate) fn of(type_oid: u32, by_bytes: bool) -> Option<KeyKind> {
        match type_oid {
            20 | 21 | 23 => Some(KeyKind::Integer),
            2950 => Some(KeyKind::Uuid),
            25 | 1043 if by_bytes => Some(KeyKind::Text {
                padded: Padding::No,
            }),
            1042 if by_bytes => Some(KeyKind::Text {
                padded: Padding::Yes,
            }),
            _ => None,
        }
    }

    /// Reads a value as the server writes it. `None` if it is not of this kind.
    pub(crate) fn parse(&self, text: &str) -> Option<Key> {
        match self {
            KeyKind::Integer => text.parse().ok().map(Key::Integer),
            KeyKind::Uuid => Uuid::try_parse(text).ok().map(Key::Uuid),
            KeyKind::Text {
                padded: Padding::No,
            } => Some(Key::Text(text.into())),
            KeyKind::Text {
                padded: Padding::Yes,
            } => Some(Key::Text(text.trim_end_matches(' ').into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: KeyKind = KeyKind::Text {
        padded: Padding::No,
    };

    #[test]
    fn each_kind_of_key_is_known() {
        assert_eq!(KeyKind::of(23, false), Some(KeyKind::Integer));
        assert_eq!(KeyKind::of(2950, false), Some(KeyKind::Uuid));
        assert_eq!(KeyKind::of(25, true), Some(TEXT));
        assert_eq!(
            KeyKind::of(25, false),
            None,
            "an order of a language is not known here"
        );
        assert_eq!(KeyKind::of(1184, false), None);
    }

    #[test]
    fn values_of_keys_are_read() {
        assert_eq!(
            KeyKind::Integer.parse("-9223372036854775808"),
            Some(Key::Integer(i64::MIN))
        );
        assert_eq!(KeyKind::Integer.parse("1.5"), None);
        assert_eq!(KeyKind::Uuid.parse("nonsense"), None);
        let padded = KeyKind::Text {
            padded: Padding::Yes,
        };
        assert_eq!(padded.parse("ab  "), padded.parse("ab"));
        assert_ne!(TEXT.parse("ab  "), TEXT.parse("ab"));
    }

    #[test]
    fn keys_are_ordered_as_the_server_orders_them() {
        for (kind, sorted) in [
            (KeyKind::Integer, vec!["-32768", "-1", "0", "9", "10"]),
            (
                KeyKind::Uuid,
                vec![
                    "00000000-0000-0000-0000-000000000001",
                    "7fffffff-0000-0000-0000-000000000000",
                    "80000000-0000-0000-0000-000000000000",
                ],
            ),
            (
                TEXT,
                vec!["", " ", "A", "Z", "a", "é", "€", "\u{ffff}", "🦀"],
            ),
        ] {
            let keys: Vec<Key> = sorted
                .iter()
                .map(|text| kind.parse(text).unwrap())
                .collect();
            assert!(keys.is_sorted_by(|a, b| a < b), "{sorted:?}");
        }
    }

    proptest! {
        #[test]
        fn uuids_are_ordered_by_their_bytes(a: [u8; 16], b: [u8; 16]) {
            let key = |bytes| KeyKind::Uuid.parse(&Uuid::from_bytes(bytes).to_string()).unwrap();
            prop_assert_eq!(key(a).cmp(&key(b)), a.cmp(&b));
        }

        #[test]
        fn integers_are_ordered_as_numbers(a: i64, b: i64) {
            let key = |number: i64| KeyKind::Integer.parse(&number.to_string()).unwrap();
            prop_assert_eq!(key(a).cmp(&key(b)), a.cmp(&b));
        }
    }
}
