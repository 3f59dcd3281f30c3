//! Reads what a schema consists of, from the catalogs of its host. pg_dump is not used: it refuses
//! newer servers, takes seconds on a host with thousands of schemas, and cannot select a schema by
//! its OID. [`fingerprint`] reduces it to what can be compared later.
//!
//! It uses none of the other rooms of [`schema`](crate::schema).
//!
//! Invariant: every expression and definition is deparsed under the settings of [`preamble`], so
//! that it can be executed for a schema of another name; and every query finds its rows through
//! indexes, because a fence waits for some of them on hosts with hundreds of thousands of
//! relations.

mod facts;
pub(crate) mod fingerprint;
mod names;
mod read;
mod session;
mod stamp;

pub(crate) use facts::{
    Address, Attribute, Column, Comment, Constraint, ConstraintKind, DefaultPrivilege, Facts,
    Function, Grant, Grantee, Index, IndexStatistics, Name, OwnedBy, Persistence, Policy, Relation,
    RelationKind, Rule, Sequence, SimpleKind, SimpleObject, Trigger, Type, TypeKind,
};
pub(crate) use read::read;
pub use read::{Error, Namespace};
pub(crate) use session::{CLOSE_PATH, path_with, preamble, search_path};
pub(crate) use stamp::{Stamp, stamp};

/// The common table expressions that find everything in the schema `$1` (an OID): `member`,
/// `relation`, `named_type`, `constrained` and `part` (class, oid, home_class, home).
macro_rules! objects_sql {
    () => {
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/src/schema/catalog/sql/objects.sql"
        ))
    };
}
pub(crate) use objects_sql;
