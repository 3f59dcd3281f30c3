//! The facts of one schema as values. Pure; made by [`read`](super::read), read by the fingerprint and by the mover.
//!
//! All SQL in them (types, expressions, definitions) names the objects of the schema without the schema and everything
//! else so that it means the same under every `search_path` that starts with the schema. Invariant: no
//! text here holds the schema's own name, except function bodies and their settings, which are text in the database
//! too.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An object's place in the catalogs of its host: the catalog (`pg_class`) and the OID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Address {
    /// The catalog that has the object's row, without `pg_catalog`: `pg_class`, `pg_type`, `pg_proc` …
    pub class: String,
    /// The OID of the row.
    pub oid: u32,
}

impl Address {
    /// The address of a row.
    pub fn new(class: &str, oid: u32) -> Address {
        Address { class: class.to_owned(), oid }
    }
}

/// What the catalogs of one host say of one schema.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// The schema's name at the time.
    pub schema: String,
    /// The schema's OID.
    pub oid: u32,
    /// Its owner.
    pub owner: String,
    /// The role that read the facts.
    pub reader: String,
    /// `server_version_num` of the host: 150004, 180000.
    pub version: u32,
    /// Tables and views, and kinds of relations that are only named here because they cannot be carried.
    pub relations: Vec<Relation>,
    /// Sequences: of identity columns, of serial columns, and free ones.
    pub sequences: Vec<Sequence>,
    /// Indexes, those of constraints too.
    pub indexes: Vec<Index>,
    /// Constraints of tables and of domains, without NOT NULL, which is a fact of the column.
    pub constraints: Vec<Constraint>,
    /// Functions and procedures.
    pub functions: Vec<Function>,
    /// Types that were created as such.
    pub types: Vec<Type>,
    /// Triggers that users made.
    pub triggers: Vec<Trigger>,
    /// Comments on any of these and on the schema.
    pub comments: Vec<Comment>,
    /// How access lists differ from their defaults.
    pub grants: Vec<Grant>,
    /// What else is in the schema or hangs on it.
    pub others: Vec<Other>,
    /// Things outside the schema that its objects need, other than what every server has.
    pub outside: Vec<Outside>,
    /// Which object of the schema needs which: `(needs, needed)`, whole objects, each pair once.
    pub edges: Vec<(Address, Address)>,
    /// The columns that views and bound functions read: `(reader, relation, column number; 0 for the whole)`.
    pub reads: Vec<(Address, Address, i32)>,
}

impl Facts {
    /// The relation with this OID.
    pub fn relation(&self, oid: u32) -> Option<&Relation> {
        self.relations.iter().find(|relation| relation.oid == oid)
    }

    /// The name of the relation with this OID, or `?` for one that is not of this schema.
    pub fn relation_name(&self, oid: u32) -> &str {
        self.relation(oid).map_or("?", |relation| &relation.name)
    }

    /// Names every object as SQL names it in a comment, without the schema: `TABLE "photos"`,
    /// `TRIGGER "t" ON "photos"`.
    pub fn names(&self) -> BTreeMap<Address, Name> {
        super::names::of(self)
    }
}

/// An object's name, in the two ways that are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// For people: `table photos`.
    pub plain: String,
    /// For `COMMENT ON`: `TABLE`.
    pub keyword: &'static str,
    /// The object's own name, quoted, with a function's arguments; the schema goes before it unless `on` is there.
    pub quoted: String,
    /// The quoted relation or type that a constraint or trigger is on, with the keyword `DOMAIN` where it is one.
    pub on: Option<(&'static str, String)>,
}

/// What kind of relation. Only [`Table`](RelationKind::Table) and [`View`](RelationKind::View) can be carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelationKind {
    /// An ordinary table.
    #[serde(rename = "r")]
    Table,
    /// A view.
    #[serde(rename = "v")]
    View,
    /// A materialized view.
    #[serde(rename = "m")]
    MaterializedView,
    /// A partitioned table.
    #[serde(rename = "p")]
    PartitionedTable,
    /// A foreign table.
    #[serde(rename = "f")]
    ForeignTable,
}

impl RelationKind {
    /// `TABLE`, `VIEW` …
    pub fn keyword(self) -> &'static str {
        match self {
            RelationKind::Table | RelationKind::PartitionedTable => "TABLE",
            RelationKind::View => "VIEW",
            RelationKind::MaterializedView => "MATERIALIZED VIEW",
            RelationKind::ForeignTable => "FOREIGN TABLE",
        }
    }

    /// `table`, `view` …, telling partitioned tables from others.
    pub fn plain(self) -> &'static str {
        match self {
            RelationKind::Table => "table",
            RelationKind::View => "view",
            RelationKind::MaterializedView => "materialized view",
            RelationKind::PartitionedTable => "partitioned table",
            RelationKind::ForeignTable => "foreign table",
        }
    }
}

/// Whether a relation is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Persistence {
    /// Logged, the usual.
    #[serde(rename = "p")]
    Permanent,
    /// Emptied by a crash and not replicated.
    #[serde(rename = "u")]
    Unlogged,
    /// Gone with its session.
    #[serde(rename = "t")]
    Temporary,
}

/// A table or view.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Relation {
    /// OID in `pg_class`.
    pub oid: u32,
    /// Name, not quoted.
    pub name: String,
    /// What it is.
    pub kind: RelationKind,
    /// Whether it is logged.
    pub persistence: Persistence,
    /// Owner.
    pub owner: String,
    /// `heap`; nothing for views.
    pub access_method: Option<String>,
    /// Where it is stored if not in the database's default tablespace. A fact of the host, not of the schema.
    pub tablespace: Option<String>,
    /// Storage parameters or view options, `name=value`.
    pub options: Vec<String>,
    /// Storage parameters of its TOAST table.
    pub toast_options: Vec<String>,
    /// `d`efault, `n`othing, `f`ull, by `i`ndex.
    pub replica_identity: String,
    /// Row level security is enabled or forced.
    pub row_security: bool,
    /// `CREATE TABLE … OF type`.
    pub typed: bool,
    /// It has parents or children.
    pub inherits: bool,
    /// The query of a view.
    pub definition: Option<String>,
    /// Columns, in order, without dropped ones.
    pub columns: Vec<Column>,
}

impl Relation {
    /// The name of the column with this number.
    pub fn column(&self, number: i32) -> Option<&Column> {
        self.columns.iter().find(|column| column.number == number)
    }
}

/// A column.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Column {
    /// `attnum`; it counts dropped columns, so it may differ between hosts.
    pub number: i32,
    /// Name, not quoted.
    pub name: String,
    /// Type with its modifier: `character varying(10)`.
    #[serde(rename = "type")]
    pub type_: String,
    /// Type without modifier.
    pub type_name: String,
    /// Collation as SQL, where it is not the type's own.
    pub collation: Option<String>,
    /// NOT NULL.
    pub not_null: bool,
    /// The NOT NULL's name (PostgreSQL 18).
    pub not_null_name: Option<String>,
    /// False for a NOT NULL that is NOT VALID (PostgreSQL 18).
    pub not_null_validated: bool,
    /// The comment on a NOT NULL (PostgreSQL 18).
    pub not_null_comment: Option<String>,
    /// `a`lways, by `d`efault, or empty.
    pub identity: String,
    /// `s`tored, `v`irtual, or empty.
    pub generated: String,
    /// Default or generation expression.
    pub default: Option<String>,
    /// Its OID in `pg_attrdef`.
    pub default_oid: Option<u32>,
    /// Statistics target, if set.
    pub statistics: Option<i32>,
    /// `p`lain, `m`ain, `e`xternal, e`x`tended, where it is not the type's own.
    pub storage: Option<String>,
    /// `p`glz or `l`z4, if set.
    pub compression: Option<String>,
    /// `n_distinct` and such, `name=value`.
    pub options: Vec<String>,
}

/// A sequence.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sequence {
    /// OID in `pg_class`.
    pub oid: u32,
    /// Name, not quoted.
    pub name: String,
    /// Owner.
    pub owner: String,
    /// Whether it is logged.
    pub persistence: Persistence,
    /// `smallint`, `integer` or `bigint`.
    #[serde(rename = "type")]
    pub type_: String,
    /// START.
    pub start: i64,
    /// INCREMENT.
    pub increment: i64,
    /// MINVALUE.
    pub minimum: i64,
    /// MAXVALUE.
    pub maximum: i64,
    /// CACHE.
    pub cache: i64,
    /// CYCLE.
    pub cycle: bool,
    /// The column it belongs to.
    pub owned_by: Option<OwnedBy>,
}

/// The column that a sequence belongs to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OwnedBy {
    /// OID of the table.
    pub relation: u32,
    /// The column's name.
    pub column: String,
    /// It is the sequence of an identity column; otherwise OWNED BY, as of `serial`.
    pub identity: bool,
}

/// An index.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Index {
    /// OID in `pg_class`.
    pub oid: u32,
    /// Name, not quoted.
    pub name: String,
    /// OID of its table.
    pub relation: u32,
    /// UNIQUE.
    pub unique: bool,
    /// Ready for use. A failed CREATE INDEX CONCURRENTLY leaves one that is not.
    pub valid: bool,
    /// What follows `CREATE INDEX name ON table`: `USING btree (id)`.
    pub definition: String,
    /// OID of the constraint whose index this is.
    pub constraint: Option<u32>,
    /// Storage parameters, `name=value`.
    pub options: Vec<String>,
    /// Where it is stored if not in the database's default tablespace.
    pub tablespace: Option<String>,
    /// The table's CLUSTER mark.
    pub clustered: bool,
    /// The table's replica identity.
    pub replica_identity: bool,
    /// It has expressions or a predicate, so that building it may call functions.
    pub evaluates: bool,
    /// Statistics targets of its columns.
    pub statistics: Vec<IndexStatistics>,
}

/// A statistics target of an index's column.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IndexStatistics {
    /// The column's number in the index.
    pub column: i32,
    /// The target.
    pub target: i32,
}

/// What kind of constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConstraintKind {
    /// PRIMARY KEY.
    #[serde(rename = "p")]
    PrimaryKey,
    /// UNIQUE.
    #[serde(rename = "u")]
    Unique,
    /// EXCLUDE.
    #[serde(rename = "x")]
    Exclusion,
    /// CHECK.
    #[serde(rename = "c")]
    Check,
    /// FOREIGN KEY.
    #[serde(rename = "f")]
    ForeignKey,
}

/// A constraint of a table or of a domain.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Constraint {
    /// OID in `pg_constraint`.
    pub oid: u32,
    /// Name, not quoted.
    pub name: String,
    /// What it is.
    pub kind: ConstraintKind,
    /// OID of its table, 0 for a domain's.
    pub relation: u32,
    /// OID of its domain, 0 for a table's.
    #[serde(rename = "type")]
    pub type_: u32,
    /// `CHECK ((a > 0)) NOT VALID`.
    pub definition: String,
    /// Not NOT VALID.
    pub validated: bool,
    /// OID of its index, of a foreign key the referenced one; else 0.
    pub index: u32,
    /// OID of the table a foreign key refers to, else 0.
    pub refers_to: u32,
    /// That table is of this schema.
    pub refers_inside: bool,
}

/// A function or procedure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Function {
    /// OID in `pg_proc`.
    pub oid: u32,
    /// Name, not quoted.
    pub name: String,
    /// `f`unction, `p`rocedure, `a`ggregate, `w`indow function.
    pub kind: String,
    /// Owner.
    pub owner: String,
    /// The arguments that identify it, as SQL.
    pub arguments: String,
    /// `sql`, `plpgsql` …
    pub language: String,
    /// The language is one that may be used without being superuser.
    pub trusted: bool,
    /// LEAKPROOF, which only a superuser may say.
    pub leakproof: bool,
    /// It has a planner support function, which only a superuser may set.
    pub support: bool,
    /// The body, if it is text.
    pub body: String,
    /// `BEGIN ATOMIC` or `RETURN`: the body is bound when the function is made, not text.
    pub bound: bool,
    /// SET clauses, `name=value`.
    pub settings: Vec<String>,
    /// What follows `CREATE FUNCTION name`: `(a integer) RETURNS …`. Empty for aggregates and window functions.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub definition: String,
}

fn null_as_empty<'de, D: serde::Deserializer<'de>>(value: D) -> Result<String, D::Error> {
    Ok(Option::<String>::deserialize(value)?.unwrap_or_default())
}

/// What kind of type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TypeKind {
    /// An enum.
    #[serde(rename = "e")]
    Enum,
    /// A domain.
    #[serde(rename = "d")]
    Domain,
    /// A composite type.
    #[serde(rename = "c")]
    Composite,
    /// A range, with its multirange.
    #[serde(rename = "r")]
    Range,
    /// A base or shell type, which only a superuser can make.
    #[serde(rename = "b")]
    Base,
}

/// A type.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Type {
    /// OID in `pg_type`.
    pub oid: u32,
    /// Name, not quoted.
    pub name: String,
    /// What it is.
    pub kind: TypeKind,
    /// Owner.
    pub owner: String,
    /// An enum's labels in order.
    pub labels: Vec<String>,
    /// A domain's type.
    pub base: Option<String>,
    /// A domain's collation as SQL, where it is not its type's own.
    pub collation: Option<String>,
    /// A domain's NOT NULL.
    pub not_null: bool,
    /// A domain's default.
    pub default: Option<String>,
    /// A composite type's attributes.
    pub attributes: Vec<Attribute>,
    /// A range's parameters.
    pub range: Option<Range>,
}

/// An attribute of a composite type.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attribute {
    /// `attnum`.
    pub number: i32,
    /// Name, not quoted.
    pub name: String,
    /// Type with its modifier.
    #[serde(rename = "type")]
    pub type_: String,
    /// Collation as SQL, where it is not the type's own.
    pub collation: Option<String>,
}

/// The parameters of a range type.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Range {
    /// The type of the bounds.
    pub subtype: String,
    /// The operator class, where it is not the default one.
    pub operator_class: Option<String>,
    /// The collation, where it is not the subtype's own.
    pub collation: Option<String>,
    /// It has a canonical function, which only a superuser can make.
    pub canonical: bool,
    /// The function that subtracts.
    pub difference: Option<String>,
    /// The name of its multirange type (PostgreSQL 14 and later).
    pub multirange: Option<String>,
}

/// A trigger.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trigger {
    /// OID in `pg_trigger`.
    pub oid: u32,
    /// Name, not quoted.
    pub name: String,
    /// OID of its table or view.
    pub relation: u32,
    /// `O`rigin (the usual), `D`isabled, `R`eplica, `A`lways.
    pub enabled: String,
    /// The whole `CREATE TRIGGER`, with the table's name unqualified.
    pub definition: String,
}

/// A comment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Comment {
    /// What it is on.
    #[serde(flatten)]
    pub on: Address,
    /// The number of the column it is on, or 0.
    pub column: i32,
    /// The text.
    pub text: String,
}

/// Who is granted something. The owner is a role of its own: on another host it may have another name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Grantee {
    /// The owner of the object.
    Owner,
    /// Everybody.
    Public,
    /// A role.
    Role {
        /// Its name, not quoted.
        name: String,
    },
}

/// One entry that an access list has beyond its default, or one of the default that it lacks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// What it is on.
    #[serde(flatten)]
    pub on: Address,
    /// The number of the column it is on, or 0.
    pub column: i32,
    /// To whom.
    pub grantee: Grantee,
    /// `SELECT`, `USAGE` …
    pub privilege: String,
    /// WITH GRANT OPTION.
    pub grantable: bool,
    /// The default has it, this object does not.
    pub revoked: bool,
    /// Who granted it, if not the owner.
    pub grantor: Option<String>,
}

/// Something in the schema that is no table, view, sequence, index, constraint, function, type or trigger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Other {
    /// PostgreSQL's word for its kind: `policy`, `rule`, `statistics object`, `extension member` …
    pub kind: String,
    /// PostgreSQL's description of it.
    pub object: String,
}

/// Something outside the schema that objects in it need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outside {
    /// PostgreSQL's word for its kind: `function`, `type`, `collation` …
    pub kind: String,
    /// Its qualified, quoted name.
    pub identity: String,
    /// One object that needs it.
    pub used_by: String,
    /// The extension that brings it.
    pub extension: Option<String>,
}
