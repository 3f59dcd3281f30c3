//! Parameters that a call over many shards owns.

use std::error::Error;
use std::fmt;

use bytes::BytesMut;
use tokio_postgres::types::{IsNull, Kind, ToSql, Type};

use super::params::Params;
use crate::shard::{Key, KeyKind, KeyValue};

/// Parameters of a statement, owned: [`params!`](crate::params) makes them of values,
/// [`columns!`](crate::columns) of iterators, each an array.
pub struct Values(pub(super) Vec<Box<dyn ToSql + Sync + Send>>);

impl Values {
    /// These values, in the order of the statement's parameters.
    pub fn new(values: Vec<Box<dyn ToSql + Sync + Send>>) -> Values {
        Values(values)
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values", self.0.len())
    }
}

/// [`fanout::Values`](crate::fanout::Values) of values of any types: `params![user, "Prague"]`.
#[macro_export]
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        $crate::fanout::Values::new(vec![$(Box::new($value)),*])
    };
}

/// The keys of one shard as an array, of the element type that the statement wants.
pub(super) struct KeyArray<K>(pub(super) Vec<K>);

/// A key is outside the range of the type that the statement wants.
#[derive(Debug, thiserror::Error)]
#[error("key {key} does not fit {wanted}")]
struct KeyError {
    key: String,
    wanted: Type,
}

impl<K: Key> KeyArray<K> {
    fn integers<T: TryFrom<i128>>(&self, wanted: &Type) -> Result<Vec<T>, KeyError> {
        let integer = |key: &K| match key.value() {
            KeyValue::Integer(Some(number)) => T::try_from(number).map_err(|_| number.to_string()),
            _ => Err("of more than 128 bits".to_owned()),
        };
        let integer = |key| {
            integer(key).map_err(|key| KeyError {
                key,
                wanted: wanted.clone(),
            })
        };
        self.0.iter().map(integer).collect()
    }
}

impl<K: Key> fmt::Debug for KeyArray<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(Key::value))
            .finish()
    }
}

impl<K: Key> ToSql for KeyArray<K> {
    fn to_sql(
        &self,
        wanted: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let member = match wanted.kind() {
            Kind::Array(member) => member,
            _ => wanted,
        };
        match K::KIND {
            KeyKind::Integer if *member == Type::INT2 => {
                self.integers::<i16>(wanted)?.to_sql_checked(wanted, out)
            }
            KeyKind::Integer if *member == Type::INT4 => {
                self.integers::<i32>(wanted)?.to_sql_checked(wanted, out)
            }
            KeyKind::Integer => self.integers::<i64>(wanted)?.to_sql_checked(wanted, out),
            KeyKind::String => {
                let text = |key: &K| match key.value() {
                    KeyValue::Text(text) => text.to_owned(),
                    _ => String::new(),
                };
                let texts: Vec<String> = self.0.iter().map(text).collect();
                texts.to_sql_checked(wanted, out)
            }
            KeyKind::Uuid => {
                let uuid = |key: &K| match key.value() {
                    KeyValue::Uuid(uuid) => uuid,
                    _ => uuid::Uuid::nil(),
                };
                let uuids: Vec<uuid::Uuid> = self.0.iter().map(uuid).collect();
                uuids.to_sql_checked(wanted, out)
            }
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn to_sql_checked(
        &self,
        wanted: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        self.to_sql(wanted, out)
    }
}

/// A shard's keys, and what is the same for all shards.
pub(super) struct WithKeys<K> {
    pub(super) keys: KeyArray<K>,
    pub(super) values: std::sync::Arc<Values>,
}

impl<K: Key + Send + Sync> Params for WithKeys<K> {
    fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        let values = self.values.0.iter().map(|value| &**value as _);
        std::iter::once(&self.keys as _).chain(values).collect()
    }
}

impl Params for std::sync::Arc<Values> {
    fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.0.iter().map(|value| &**value as _).collect()
    }
}
