//! A call's parameters, encoded for the types that the server named: they no longer borrow from the
//! caller.

use std::sync::Arc;

use bytes::BytesMut;
use tokio_postgres::types::{Format, IsNull, Kind, ToSql, Type};

/// The values as they are sent. Every shard gets the same bytes.
#[derive(Clone, Debug)]
pub(crate) struct Bound(Arc<[Value]>);

#[derive(Debug)]
struct Value {
    /// The type that the bytes were made for.
    ty: Type,
    format: Format,
    /// `None` is NULL.
    bytes: Option<Box<[u8]>>,
}

/// A shard's parameter has another type than the one that the value was made for.
#[derive(Debug, thiserror::Error)]
#[error("the parameter was made for {made}, and {wanted} is wanted")]
pub(super) struct OtherType {
    made: Type,
    wanted: Type,
}

impl Bound {
    /// Encodes the parameters. `None` when the driver refuses one: it returns the reason when the
    /// statement is run by itself.
    pub(crate) fn new(params: &[&(dyn ToSql + Sync)], types: &[Type]) -> Option<Bound> {
        if params.len() != types.len() {
            return None;
        }
        let bind = |(param, ty): (&&(dyn ToSql + Sync), &Type)| {
            let mut bytes = BytesMut::new();
            let bytes = match param.to_sql_checked(ty, &mut bytes).ok()? {
                IsNull::Yes => None,
                IsNull::No => Some(bytes.to_vec().into_boxed_slice()),
            };
            Some(Value {
                ty: ty.clone(),
                format: param.encode_format(ty),
                bytes,
            })
        };
        params
            .iter()
            .zip(types)
            .map(bind)
            .collect::<Option<_>>()
            .map(Bound)
    }

    pub(crate) fn values(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.0.iter().map(|value| value as _).collect()
    }
}

impl Value {
    /// Whether the bytes are right for `wanted` too. Those of an enum are its label, so another
    /// shard's enum with the same labels takes them. Those of composite types and arrays contain
    /// type OIDs, which differ from shard to shard.
    fn fits(&self, wanted: &Type) -> bool {
        match (self.ty.kind(), wanted.kind()) {
            (Kind::Enum(made), Kind::Enum(wanted)) => made == wanted,
            _ => self.ty == *wanted,
        }
    }
}

impl ToSql for Value {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let Some(bytes) = &self.bytes else {
            return Ok(IsNull::Yes);
        };
        out.extend_from_slice(bytes);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn to_sql_checked(
        &self,
        wanted: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        if self.fits(wanted) {
            return self.to_sql(wanted, out);
        }
        Err(Box::new(OtherType {
            made: self.ty.clone(),
            wanted: wanted.clone(),
        }))
    }

    fn encode_format(&self, _: &Type) -> Format {
        self.format
    }
}
