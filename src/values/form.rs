//! The one form of a value, and its hash.

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::definition::{Definition, Fold};
use crate::shard::{KeyValue, ShardCount, ShardId};

/// The value of one column.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// Of `smallint`, `integer` and `bigint`.
    Integer(i64),
    /// Of `text` and `varchar`.
    Text(String),
    /// Of `uuid`.
    Uuid(Uuid),
    /// Of `date`.
    Date(jiff::civil::Date),
    /// Of `date`, and any that PostgreSQL has: days since 2000-01-01. `i32::MAX` is `infinity`,
    /// `i32::MIN` is `-infinity`.
    Day(i32),
}

impl Value {
    /// What the shards call its type.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Integer(_) => "integer",
            Value::Text(_) => "text",
            Value::Uuid(_) => "uuid",
            Value::Date(_) | Value::Day(_) => "date",
        }
    }

    /// It as text, as PostgreSQL's `to_jsonb` writes it, folded.
    pub(crate) fn form(&self, fold: Fold) -> String {
        let form = match self {
            Value::Integer(number) => number.to_string(),
            Value::Text(text) => text.clone(),
            Value::Uuid(uuid) => uuid.hyphenated().to_string(),
            Value::Date(date) => {
                let (month, day) = (date.month().into(), date.day().into());
                date_form(date.year().into(), month, day)
            }
            Value::Day(i32::MAX) => "infinity".to_owned(),
            Value::Day(i32::MIN) => "-infinity".to_owned(),
            Value::Day(days) => {
                let (year, month, day) = civil(i64::from(*days));
                date_form(year, month, day)
            }
        };
        match fold {
            Fold::None => form,
            Fold::Ascii => form.to_ascii_lowercase(),
        }
    }
}

/// A date as PostgreSQL writes it. There is no year 0: before 1 comes 1 BC.
fn date_form(year: i64, month: i64, day: i64) -> String {
    let (year, era) = match year {
        1.. => (year, ""),
        _ => (1 - year, " BC"),
    };
    format!("{year:04}-{month:02}-{day:02}{era}")
}

/// Year, month and day of a number of days since 2000-01-01. Years begin in March here, so that the
/// day that only some of them have is their last one; 400 of them have 146,097 days.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days - 60;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = 2000 + 400 * era + year;
    match month {
        0..10 => (year, month + 3, day),
        _ => (year + 1, month - 9, day),
    }
}

macro_rules! values {
    ($($kind:ty: |$value:ident| $made:expr),+ $(,)?) => {$(
        impl From<$kind> for Value {
            fn from($value: $kind) -> Value {
                $made
            }
        }

        impl From<$kind> for Values {
            fn from(value: $kind) -> Values {
                Values(vec![value.into()])
            }
        }
    )+};
}

values!(
    i16: |number| Value::Integer(number.into()),
    i32: |number| Value::Integer(number.into()),
    i64: |number| Value::Integer(number),
    &str: |text| Value::Text(text.to_owned()),
    &String: |text| Value::Text(text.clone()),
    String: |text| Value::Text(text),
    Uuid: |uuid| Value::Uuid(uuid),
    jiff::civil::Date: |date| Value::Date(date),
);

/// The values of a look-up's columns, in the order of the columns: one value, or an array of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values(pub(crate) Vec<Value>);

impl From<Value> for Values {
    fn from(value: Value) -> Values {
        Values(vec![value])
    }
}

impl From<Vec<Value>> for Values {
    fn from(values: Vec<Value>) -> Values {
        Values(values)
    }
}

impl<V: Into<Value>, const N: usize> From<[V; N]> for Values {
    fn from(values: [V; N]) -> Values {
        Values(values.into_iter().map(Into::into).collect())
    }
}

/// The SHA-256 of a value's form. It is all that an entry has of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash([u8; 32]);

impl Hash {
    /// The hash of the values of a look-up's columns. Each is written as its length in bytes, a
    /// colon and its text, so that no two lists of values have the same form.
    ///
    /// ```
    /// use pgshard::lookups::{Fold, Hash, Values};
    /// let hash = |value: &str| Hash::of(&Values::from(value), Fold::Ascii);
    /// assert_eq!(hash("Ada@example.com"), hash("ada@example.com"));
    /// assert_ne!(hash("ada@example.com"), hash("ada@example.org"));
    /// ```
    pub fn of(values: &Values, fold: Fold) -> Hash {
        let mut hash = Sha256::new();
        for value in &values.0 {
            let form = value.form(fold);
            hash.update(format!("{}:", form.len()));
            hash.update(form);
        }
        Hash(hash.finalize().into())
    }

    /// The hash itself.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The shard that has the entry: by the look-up's name and the hash, as a text key.
    pub(crate) fn shard(&self, definition: &Definition, shards: ShardCount) -> ShardId {
        let mut text = format!("{}:", definition.name);
        text.extend(self.0.iter().map(|byte| format!("{byte:02x}")));
        shards.shard_of_key(text.as_str())
    }
}

/// A key as PostgreSQL casts it to text. None where no column can hold it.
pub(crate) fn key_text(key: KeyValue<'_>) -> Option<String> {
    match key {
        KeyValue::Integer(number) => number.map(|number| number.to_string()),
        KeyValue::Text(text) => Some(text.to_owned()),
        KeyValue::Uuid(uuid) => Some(uuid.hyphenated().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct File {
        hashes: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        lookup: String,
        fold: String,
        values: Vec<serde_json::Value>,
        hash: String,
        shard_of_4096: u16,
    }

    fn value(json: &serde_json::Value) -> Value {
        match json {
            serde_json::Value::Number(number) => number.as_i64().unwrap().into(),
            serde_json::Value::String(text) => text.as_str().into(),
            serde_json::Value::Object(typed) => match typed.iter().next().unwrap() {
                (kind, text) if kind == "uuid" => {
                    text.as_str().unwrap().parse::<Uuid>().unwrap().into()
                }
                (_, text) => {
                    let date: jiff::civil::Date = text.as_str().unwrap().parse().unwrap();
                    date.into()
                }
            },
            other => panic!("{other}"),
        }
    }

    /// The vectors that every language computes.
    #[test]
    fn a_hash_is_that_of_the_vectors() {
        let file: File =
            serde_json::from_str(include_str!("../../tests/vectors/lookups.json")).unwrap();
        assert!(!file.hashes.is_empty());
        for case in file.hashes {
            let fold = Fold::ALL
                .into_iter()
                .find(|fold| fold.as_str() == case.fold);
            let values = Values(case.values.iter().map(value).collect());
            let hash = Hash::of(&values, fold.unwrap());
            let text: String = hash.0.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(text, case.hash, "{:?}", case.values);
            let definition = Definition::new(case.lookup, "t", ["c"], "id");
            let shard = hash.shard(&definition, ShardCount::new(4096).unwrap());
            assert_eq!(shard.get(), case.shard_of_4096, "{:?}", case.values);
        }
    }

    #[test]
    fn the_border_between_two_values_counts() {
        let hash = |values: [&str; 2]| Hash::of(&values.into(), Fold::None);
        assert_ne!(hash(["ab", "c"]), hash(["a", "bc"]));
        assert_ne!(hash(["", "1:a"]), hash(["1:a", ""]));
    }
}
