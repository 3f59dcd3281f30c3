//! A value as a parameter of a statement, for whichever type its column has.

use std::error::Error;

use bytes::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::values::{Fold, Value};

/// A value as it is compared with its column, folded.
#[derive(Debug)]
pub(super) struct Parameter(Value);

impl Parameter {
    pub(super) fn new(value: &Value, fold: Fold) -> Parameter {
        Parameter(match value {
            Value::Text(_) => Value::Text(value.form(fold)),
            other => other.clone(),
        })
    }
}

impl ToSql for Parameter {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match &self.0 {
            Value::Integer(number) => match *ty {
                Type::INT2 => i16::try_from(*number)?.to_sql(ty, out),
                Type::INT4 => i32::try_from(*number)?.to_sql(ty, out),
                _ => number.to_sql(ty, out),
            },
            Value::Text(text) => text.to_sql(ty, out),
            Value::Uuid(uuid) => uuid.to_sql(ty, out),
            Value::Date(date) => date.to_sql(ty, out),
            Value::Day(days) => days.to_sql(&Type::INT4, out),
        }
    }

    fn accepts(ty: &Type) -> bool {
        [
            Type::INT2,
            Type::INT4,
            Type::INT8,
            Type::TEXT,
            Type::VARCHAR,
            Type::UUID,
            Type::DATE,
        ]
        .contains(ty)
    }

    to_sql_checked!();
}

/// Any date that PostgreSQL has: days since 2000-01-01, as it sends them.
pub(super) struct Day(pub(super) i32);

impl<'a> FromSql<'a> for Day {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Day, Box<dyn Error + Sync + Send>> {
        i32::from_sql(&Type::INT4, raw).map(Day)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::DATE
    }
}
