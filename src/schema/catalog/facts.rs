//! The facts of one schema as values. Pure; made by [`read`](super::read), read by the fingerprint
//! and by the mover.
//!
//! All SQL in them (types, expressions, definitions) names the objects of the schema without the
//! schema, and everything else in such a way that it means the same under every `search_path` that
//! starts with the schema. Invariant: no text here contains the schema's own name, except function
//! bodies and their settings, which are text in the database too, and except where others may make
//! objects in it ([`Facts::makers`]): that schema is not carried.

use std::collections::BTreeMap;
#[cfg(feature = "import")]
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// An object's place in the catalogs of its host: the catalog (`pg_class`) and the OID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Address {
    /// The catalog that has the object's row, without `pg_catalog`: `pg_class`, `pg_type`,
    /// `pg_proc` …
    pub(crate) class: String,
    /// The OID of the row.
    pub(crate) oid: u32,
}

impl Address {
    /// The address of a row.
    pub(crate) fn new(class: &str, oid: u32) -> Address {
        Address {
            class: class.to_owned(),
            oid,
        }
    }
}

/// The rows of one schema in the catalogs of one host.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The schema's name at the time.
    pub(crate) schema: String,
    /// The schema's OID.
    pub(crate) oid: u32,
    /// Its owner.
    pub(crate) owner: String,
    /// The role that read the facts.
    pub(crate) reader: String,
    /// Whether no row level security hides rows from that role, forced or not.
    pub(crate) reader_bypasses: bool,
    /// `server_version_num` of the host: 150004, 180000.
    pub(crate) version: u32,
    /// The roles, other than the reader's, that may create objects in the schema, or have created
    /// one that is there. If there are any, definitions have the schema's name in them.
    pub(crate) makers: Vec<String>,
    /// Whether an operator of the schema hides one by which PostgreSQL finds the texts of views.
    pub(crate) hides_equality: bool,
    /// Tables and views, and relations of other kinds, which are only named because they cannot be
    /// carried.
    pub(crate) relations: Vec<Relation>,
    /// The index of each of them in that list, by its OID.
    pub(super) places: BTreeMap<u32, usize>,
    /// Sequences: of identity columns, of serial columns, and free ones.
    pub(crate) sequences: Vec<Sequence>,
    /// Indexes, those of constraints too.
    pub(crate) indexes: Vec<Index>,
    /// Constraints of tables and of domains, without NOT NULL, which is a fact of the column.
    pub(crate) constraints: Vec<Constraint>,
    /// Functions and procedures.
    pub(crate) functions: Vec<Function>,
    /// Types that were created as such.
    pub(crate) types: Vec<Type>,
    /// Triggers that users created.
    pub(crate) triggers: Vec<Trigger>,
    /// Policies of row level security.
    pub(crate) policies: Vec<Policy>,
    /// Rules that users created.
    pub(crate) rules: Vec<Rule>,
    /// Extended statistics.
    pub(crate) statistics: Vec<ExtendedStatistics>,
    /// Collations, text search objects, operators, conversions and casts.
    pub(crate) simple: Vec<SimpleObject>,
    /// Privileges that objects get when they are created.
    pub(crate) default_privileges: Vec<DefaultPrivilege>,
    /// Comments on any of these and on the schema.
    pub(crate) comments: Vec<Comment>,
    /// The differences of access lists from their defaults.
    pub(crate) grants: Vec<Grant>,
    /// What else is in the schema or depends on it.
    pub(crate) others: Vec<Other>,
    /// Things outside the schema that its objects need, other than what every server has.
    pub(crate) outside: Vec<Outside>,
    /// Objects that have operators of other schemas, other than PostgreSQL's own: the object, and
    /// the schema of the operator.
    pub(crate) operators: Vec<(Address, String)>,
    /// Which object of the schema needs which: `(needs, needed)`, whole objects, each pair once.
    pub(crate) edges: Vec<(Address, Address)>,
    /// The columns that views and bound functions read:
    /// `(reader, relation, column number; 0 for the whole)`.
    pub(crate) reads: Vec<(Address, Address, i32)>,
}

impl Facts {
    /// The relation with this OID.
    pub(crate) fn relation(&self, oid: u32) -> Option<&Relation> {
        self.places.get(&oid).and_then(|at| self.relations.get(*at))
    }

    /// The facts of these tables, as a schema that has nothing else and belongs to this role: with
    /// what is on them, and with the types, functions and sequences that they need, other than
    /// these.
    #[cfg(feature = "import")]
    pub(crate) fn only(
        mut self,
        tables: &BTreeSet<u32>,
        others: &BTreeSet<Address>,
        owner: &str,
    ) -> Facts {
        let is_relation = |address: &Address| {
            address.class == "pg_class" && self.places.contains_key(&address.oid)
        };
        let mut kept: BTreeSet<Address> = tables
            .iter()
            .map(|oid| Address::new("pg_class", *oid))
            .collect();
        let partitions = self.relations.iter().filter_map(|relation| {
            let parent = relation.partition.as_ref()?.parent;
            Some((relation.oid, parent))
        });
        let partitions: Vec<(u32, u32)> = partitions.collect();
        loop {
            let before = kept.len();
            for (oid, parent) in &partitions {
                if kept.contains(&Address::new("pg_class", *parent)) {
                    kept.insert(Address::new("pg_class", *oid));
                }
            }
            for (needs, needed) in &self.edges {
                if kept.contains(needs) && !is_relation(needed) && !others.contains(needed) {
                    kept.insert(needed.clone());
                }
            }
            if kept.len() == before {
                break;
            }
        }
        let has = |class: &str, oid: u32| kept.contains(&Address::new(class, oid));
        let on = |oid: u32| has("pg_class", oid);
        self.relations
            .retain(|one| on(one.oid) && one.kind != RelationKind::ForeignTable);
        self.places = (0..)
            .zip(&self.relations)
            .map(|(at, one)| (one.oid, at))
            .collect();
        self.sequences.retain(|one| {
            on(one.oid)
                || one
                    .owned_by
                    .as_ref()
                    .is_some_and(|owner| on(owner.relation))
        });
        self.indexes.retain(|one| on(one.relation));
        self.constraints.retain(|one| {
            // A foreign key to another table is judged by the decisions about both.
            let leaves = one.kind == ConstraintKind::ForeignKey && !on(one.refers_to);
            !leaves && (on(one.relation) || (one.type_ != 0 && has("pg_type", one.type_)))
        });
        self.functions.retain(|one| has("pg_proc", one.oid));
        self.types.retain(|one| has("pg_type", one.oid));
        self.triggers.retain(|one| on(one.relation));
        self.policies.retain(|one| on(one.relation));
        self.rules.retain(|one| on(one.relation));
        self.statistics
            .retain(|one| has("pg_statistic_ext", one.oid));
        self.simple.retain(|one| has(one.kind.class(), one.oid));
        self.default_privileges.clear();
        self.comments.retain(|one| kept.contains(&one.on));
        self.grants.retain(|one| kept.contains(&one.on));
        self.others.clear();
        self.operators.retain(|(address, _)| kept.contains(address));
        self.edges
            .retain(|(needs, needed)| kept.contains(needs) && kept.contains(needed));
        self.reads
            .retain(|(reader, read, _)| kept.contains(reader) && kept.contains(read));
        for relation in &mut self.relations {
            relation.owner = owner.to_owned();
            relation.heirs_outside = false;
            relation
                .parents
                .retain(|parent| kept.contains(&Address::new("pg_class", *parent)));
        }
        for sequence in &mut self.sequences {
            sequence.owner = owner.to_owned();
        }
        self.functions
            .iter_mut()
            .for_each(|one| one.owner = owner.to_owned());
        self.types
            .iter_mut()
            .for_each(|one| one.owner = owner.to_owned());
        self.statistics
            .iter_mut()
            .for_each(|one| one.owner = owner.to_owned());
        for simple in &mut self.simple {
            simple.owner = simple.owner.as_ref().map(|_| owner.to_owned());
        }
        self.owner = owner.to_owned();
        self.reader = owner.to_owned();
        self.reader_bypasses = true;
        self.makers.clear();
        self
    }

    /// The name of the relation with this OID, or `?` for one that is not of this schema.
    pub(crate) fn relation_name(&self, oid: u32) -> &str {
        self.relation(oid).map_or("?", |relation| &relation.name)
    }
}

/// An object's name, in the two forms that are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// For people: `table photos`.
    pub(crate) plain: String,
    /// For `COMMENT ON`: `TABLE`.
    pub(crate) keyword: &'static str,
    /// The object's own name, quoted, with a function's arguments. The schema goes before it unless
    /// there is an `on`.
    pub(crate) quoted: String,
    /// The quoted relation or type that a constraint or trigger is on, with the keyword `DOMAIN`
    /// where it is one.
    pub(crate) on: Option<(&'static str, String)>,
}

/// The kind of a relation. Foreign tables are not carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RelationKind {
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
    pub(crate) fn keyword(self) -> &'static str {
        match self {
            RelationKind::Table | RelationKind::PartitionedTable => "TABLE",
            RelationKind::View => "VIEW",
            RelationKind::MaterializedView => "MATERIALIZED VIEW",
            RelationKind::ForeignTable => "FOREIGN TABLE",
        }
    }

    /// Whether it stores rows: then it has indexes and storage parameters.
    pub(crate) fn is_stored(self) -> bool {
        self.is_table() || self == RelationKind::MaterializedView
    }

    /// Whether it has columns of its own, with values that are rows or are routed to partitions.
    pub(crate) fn is_table(self) -> bool {
        matches!(self, RelationKind::Table | RelationKind::PartitionedTable)
    }

    /// `table`, `view` …, with a separate word for partitioned tables.
    pub(crate) fn plain(self) -> &'static str {
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
pub(crate) enum Persistence {
    /// Logged, the usual.
    #[serde(rename = "p")]
    Permanent,
    /// Emptied by a crash, and not replicated.
    #[serde(rename = "u")]
    Unlogged,
    /// Gone with its session.
    #[serde(rename = "t")]
    Temporary,
}

/// A table or view.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Relation {
    /// OID in `pg_class`.
    pub(crate) oid: u32,
    /// Name, not quoted.
    pub(crate) name: String,
    /// What it is.
    pub(crate) kind: RelationKind,
    /// Whether it is logged.
    pub(crate) persistence: Persistence,
    /// Owner.
    pub(crate) owner: String,
    /// `heap`; `None` for views.
    pub(crate) access_method: Option<String>,
    /// Where it is stored if not in the database's default tablespace. A fact of the host, not of
    /// the schema.
    pub(crate) tablespace: Option<String>,
    /// Storage parameters or view options, `name=value`.
    pub(crate) options: Vec<String>,
    /// Storage parameters of its TOAST table.
    pub(crate) toast_options: Vec<String>,
    /// `d`efault, `n`othing, `f`ull, by `i`ndex.
    pub(crate) replica_identity: String,
    /// Whether row level security is enabled.
    pub(crate) row_security: bool,
    /// Whether it is forced, so that it applies to the owner too.
    pub(crate) force_row_security: bool,
    /// `CREATE TABLE … OF type`.
    pub(crate) of_type: Option<String>,
    /// OIDs of the tables that it INHERITS, in their order. Empty for a partition.
    pub(crate) parents: Vec<u32>,
    /// Whether a table of another schema INHERITS it.
    pub(crate) heirs_outside: bool,
    /// How it is partitioned: `RANGE (made)`.
    pub(crate) partition_key: Option<String>,
    /// Whether the partition of a row depends on OIDs, which differ on another host.
    pub(crate) hashes_oids: bool,
    /// What it is a partition of.
    pub(crate) partition: Option<Partition>,
    /// The query of a view, materialized or not.
    pub(crate) definition: Option<String>,
    /// Whether a materialized view has the rows of its query, from whatever moment.
    pub(crate) populated: bool,
    /// Columns, in order, without dropped ones.
    pub(crate) columns: Vec<Column>,
}

impl Relation {
    /// The name of the column with this number.
    pub(crate) fn column(&self, number: i32) -> Option<&Column> {
        self.columns.iter().find(|column| column.number == number)
    }
}

/// What makes a table a partition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Partition {
    /// OID of the partitioned table.
    pub(crate) parent: u32,
    /// `FOR VALUES FROM (…) TO (…)`, `DEFAULT` …
    pub(crate) bound: String,
    /// Whether a DETACH … CONCURRENTLY of it was begun and not finished.
    pub(crate) detaching: bool,
}

/// A column.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Column {
    /// `attnum`; it counts dropped columns, so it may differ between hosts.
    pub(crate) number: i32,
    /// Name, not quoted.
    pub(crate) name: String,
    /// Type with its modifier: `character varying(10)`.
    #[serde(rename = "type")]
    pub(crate) type_: String,
    /// Type without modifier.
    pub(crate) type_name: String,
    /// Collation as SQL, where it is not the type's own.
    pub(crate) collation: Option<String>,
    /// Whether it is the table's own, not only that of the tables that it inherits.
    pub(crate) is_local: bool,
    /// NOT NULL.
    pub(crate) not_null: bool,
    /// The NOT NULL's name (PostgreSQL 18).
    pub(crate) not_null_name: Option<String>,
    /// Whether it comes from the partitioned table, or from an inherited one, and PostgreSQL chose
    /// its name.
    pub(crate) not_null_inherited: bool,
    /// Whether it is the table's own as well (PostgreSQL 18).
    pub(crate) not_null_is_local: bool,
    /// Whether tables that inherit this one do not get it (PostgreSQL 18).
    pub(crate) not_null_no_inherit: bool,
    /// False for a NOT NULL that is NOT VALID (PostgreSQL 18).
    pub(crate) not_null_validated: bool,
    /// The comment on a NOT NULL (PostgreSQL 18).
    pub(crate) not_null_comment: Option<String>,
    /// `a`lways, by `d`efault, or empty; also empty if it comes from the partitioned table.
    pub(crate) identity: String,
    /// `s`tored, `v`irtual, or empty.
    pub(crate) generated: String,
    /// Default or generation expression.
    pub(crate) default: Option<String>,
    /// Its OID in `pg_attrdef`.
    pub(crate) default_oid: Option<u32>,
    /// Statistics target, if set.
    pub(crate) statistics: Option<i32>,
    /// `p`lain, `m`ain, `e`xternal, e`x`tended, where it is not the type's own.
    pub(crate) storage: Option<String>,
    /// `p`glz or `l`z4, if set.
    pub(crate) compression: Option<String>,
    /// `n_distinct` and such, `name=value`.
    pub(crate) options: Vec<String>,
}

/// A sequence.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sequence {
    /// OID in `pg_class`.
    pub(crate) oid: u32,
    /// Name, not quoted.
    pub(crate) name: String,
    /// Owner.
    pub(crate) owner: String,
    /// Whether it is logged.
    pub(crate) persistence: Persistence,
    /// `smallint`, `integer` or `bigint`.
    #[serde(rename = "type")]
    pub(crate) type_: String,
    /// START.
    pub(crate) start: i64,
    /// INCREMENT.
    pub(crate) increment: i64,
    /// MINVALUE.
    pub(crate) minimum: i64,
    /// MAXVALUE.
    pub(crate) maximum: i64,
    /// CACHE.
    pub(crate) cache: i64,
    /// CYCLE.
    pub(crate) cycle: bool,
    /// The column it belongs to.
    pub(crate) owned_by: Option<OwnedBy>,
}

/// The column that a sequence belongs to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OwnedBy {
    /// OID of the table.
    pub(crate) relation: u32,
    /// The column's name.
    pub(crate) column: String,
    /// Whether it is the sequence of an identity column; otherwise OWNED BY, as for `serial`.
    pub(crate) identity: bool,
}

/// An index.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Index {
    /// OID in `pg_class`.
    pub(crate) oid: u32,
    /// Name, not quoted.
    pub(crate) name: String,
    /// OID of its table.
    pub(crate) relation: u32,
    /// UNIQUE.
    pub(crate) unique: bool,
    /// Whether it is ready for use. A failed CREATE INDEX CONCURRENTLY leaves one that is not.
    pub(crate) valid: bool,
    /// What follows `CREATE INDEX name ON table`: `USING btree (id)`.
    pub(crate) definition: String,
    /// OID of the constraint that the index belongs to.
    pub(crate) constraint: Option<u32>,
    /// OID of the partitioned table's index that it is attached to.
    pub(crate) parent: Option<u32>,
    /// Storage parameters, `name=value`.
    pub(crate) options: Vec<String>,
    /// Where it is stored if not in the database's default tablespace.
    pub(crate) tablespace: Option<String>,
    /// Whether it is the table's CLUSTER mark.
    pub(crate) clustered: bool,
    /// Whether it is the table's replica identity.
    pub(crate) replica_identity: bool,
    /// Whether it has expressions or a predicate, so that building it may call functions.
    pub(crate) evaluates: bool,
    /// Statistics targets of its columns.
    pub(crate) statistics: Vec<IndexStatistics>,
}

/// A statistics target of an index's column.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct IndexStatistics {
    /// The column's number in the index.
    pub(crate) column: i32,
    /// The target.
    pub(crate) target: i32,
}

/// What kind of constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ConstraintKind {
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
pub(crate) struct Constraint {
    /// OID in `pg_constraint`.
    pub(crate) oid: u32,
    /// Name, not quoted.
    pub(crate) name: String,
    /// What it is.
    pub(crate) kind: ConstraintKind,
    /// OID of its table, 0 for a domain's.
    pub(crate) relation: u32,
    /// OID of its domain, 0 for a table's.
    #[serde(rename = "type")]
    pub(crate) type_: u32,
    /// `CHECK ((a > 0)) NOT VALID`.
    pub(crate) definition: String,
    /// Whether it is validated, that is, not NOT VALID.
    pub(crate) validated: bool,
    /// OID of its index; for a foreign key that of the referenced one; 0 if there is none.
    pub(crate) index: u32,
    /// OID of the table that a foreign key refers to; 0 for others.
    pub(crate) refers_to: u32,
    /// Whether that table is in this schema.
    pub(crate) refers_inside: bool,
}

/// A function or procedure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Function {
    /// OID in `pg_proc`.
    pub(crate) oid: u32,
    /// Name, not quoted.
    pub(crate) name: String,
    /// `f`unction, `p`rocedure, `a`ggregate, `w`indow function.
    pub(crate) kind: String,
    /// Owner.
    pub(crate) owner: String,
    /// The arguments that identify it, as SQL.
    pub(crate) arguments: String,
    /// `sql`, `plpgsql` …
    pub(crate) language: String,
    /// Whether the language may be used without being superuser.
    pub(crate) trusted: bool,
    /// LEAKPROOF, which only a superuser may set.
    pub(crate) leakproof: bool,
    /// Whether it has a planner support function, which only a superuser may set.
    pub(crate) support: bool,
    /// The body, if it is text.
    pub(crate) body: String,
    /// `BEGIN ATOMIC` or `RETURN`: the body is bound when the function is created, and is not text.
    pub(crate) bound: bool,
    /// SET clauses, `name=value`.
    pub(crate) settings: Vec<String>,
    /// What follows `CREATE FUNCTION name`: `(a integer) RETURNS …`. Empty for aggregates and
    /// window functions.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub(crate) definition: String,
    /// For an aggregate.
    pub(crate) aggregate: Option<Aggregate>,
}

/// What an aggregate consists of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Aggregate {
    /// `n`ormal, `o`rdered set, `h`ypothetical set.
    pub(crate) kind: String,
    /// What follows `CREATE AGGREGATE name`: `(integer) (SFUNC = …, STYPE = …)`.
    pub(crate) definition: String,
}

fn null_as_empty<'de, D: serde::Deserializer<'de>>(value: D) -> Result<String, D::Error> {
    Ok(Option::<String>::deserialize(value)?.unwrap_or_default())
}

/// What kind of type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TypeKind {
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
pub(crate) struct Type {
    /// OID in `pg_type`.
    pub(crate) oid: u32,
    /// Name, not quoted.
    pub(crate) name: String,
    /// What it is.
    pub(crate) kind: TypeKind,
    /// Owner.
    pub(crate) owner: String,
    /// An enum's labels in order.
    pub(crate) labels: Vec<String>,
    /// A domain's type.
    pub(crate) base: Option<String>,
    /// A domain's collation as SQL, where it is not its type's own.
    pub(crate) collation: Option<String>,
    /// A domain's NOT NULL.
    pub(crate) not_null: bool,
    /// The name of a domain's NOT NULL (PostgreSQL 17 and later).
    pub(crate) not_null_name: Option<String>,
    /// A domain's default.
    pub(crate) default: Option<String>,
    /// A composite type's attributes.
    pub(crate) attributes: Vec<Attribute>,
    /// A range's parameters.
    pub(crate) range: Option<Range>,
}

/// An attribute of a composite type.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Attribute {
    /// `attnum`.
    pub(crate) number: i32,
    /// Name, not quoted.
    pub(crate) name: String,
    /// Type with its modifier.
    #[serde(rename = "type")]
    pub(crate) type_: String,
    /// Collation as SQL, where it is not the type's own.
    pub(crate) collation: Option<String>,
}

/// The parameters of a range type.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Range {
    /// The type of the bounds.
    pub(crate) subtype: String,
    /// The operator class, where it is not the default one.
    pub(crate) operator_class: Option<String>,
    /// The collation, where it is not the subtype's own.
    pub(crate) collation: Option<String>,
    /// Whether it has a canonical function, which only a superuser can create.
    pub(crate) canonical: bool,
    /// The function that subtracts.
    pub(crate) difference: Option<String>,
    /// The name of its multirange type (PostgreSQL 14 and later).
    pub(crate) multirange: Option<String>,
}

/// A trigger.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Trigger {
    /// OID in `pg_trigger`.
    pub(crate) oid: u32,
    /// Name, not quoted.
    pub(crate) name: String,
    /// OID of its table or view.
    pub(crate) relation: u32,
    /// `O`rigin (the usual), `D`isabled, `R`eplica, `A`lways.
    pub(crate) enabled: String,
    /// OID of the partitioned table's trigger that created it.
    pub(crate) parent: Option<u32>,
    /// The whole `CREATE TRIGGER`, with the table's name unqualified.
    pub(crate) definition: String,
}

/// A policy of row level security.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Policy {
    /// OID in `pg_policy`.
    pub(crate) oid: u32,
    /// Name, not quoted.
    pub(crate) name: String,
    /// OID of its table.
    pub(crate) relation: u32,
    /// Whether it is PERMISSIVE, which is usual; otherwise RESTRICTIVE.
    pub(crate) permissive: bool,
    /// `r`ead, insert (`a`), `w`rite (UPDATE), `d`elete, `*` for all.
    pub(crate) command: String,
    /// The roles that it applies to.
    pub(crate) roles: Vec<Grantee>,
    /// USING.
    pub(crate) using: Option<String>,
    /// WITH CHECK.
    pub(crate) check: Option<String>,
}

/// A rule, other than the one that makes a view.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Rule {
    /// OID in `pg_rewrite`.
    pub(crate) oid: u32,
    /// Name, not quoted.
    pub(crate) name: String,
    /// OID of its table or view.
    pub(crate) relation: u32,
    /// `O`rigin (the usual), `D`isabled, `R`eplica, `A`lways.
    pub(crate) enabled: String,
    /// The whole `CREATE RULE`, with the table's name unqualified.
    pub(crate) definition: String,
}

/// The kind of an object that a single statement creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SimpleKind {
    /// A collation.
    #[serde(rename = "pg_collation")]
    Collation,
    /// A text search dictionary.
    #[serde(rename = "pg_ts_dict")]
    Dictionary,
    /// A text search configuration.
    #[serde(rename = "pg_ts_config")]
    Configuration,
    /// An operator.
    #[serde(rename = "pg_operator")]
    Operator,
    /// A conversion of encodings.
    #[serde(rename = "pg_conversion")]
    Conversion,
    /// A cast from or to a type of the schema. It is in no schema itself.
    #[serde(rename = "pg_cast")]
    Cast,
}

impl SimpleKind {
    /// The catalog that has its row.
    pub(crate) fn class(self) -> &'static str {
        match self {
            SimpleKind::Collation => "pg_collation",
            SimpleKind::Dictionary => "pg_ts_dict",
            SimpleKind::Configuration => "pg_ts_config",
            SimpleKind::Operator => "pg_operator",
            SimpleKind::Conversion => "pg_conversion",
            SimpleKind::Cast => "pg_cast",
        }
    }

    /// `COLLATION` …
    pub(crate) fn keyword(self) -> &'static str {
        match self {
            SimpleKind::Collation => "COLLATION",
            SimpleKind::Dictionary => "TEXT SEARCH DICTIONARY",
            SimpleKind::Configuration => "TEXT SEARCH CONFIGURATION",
            SimpleKind::Operator => "OPERATOR",
            SimpleKind::Conversion => "CONVERSION",
            SimpleKind::Cast => "CAST",
        }
    }

    /// `collation` …
    pub(crate) fn plain(self) -> &'static str {
        match self {
            SimpleKind::Collation => "collation",
            SimpleKind::Dictionary => "text search dictionary",
            SimpleKind::Configuration => "text search configuration",
            SimpleKind::Operator => "operator",
            SimpleKind::Conversion => "conversion",
            SimpleKind::Cast => "cast",
        }
    }
}

/// An object that a single statement creates, with the mappings of a text search configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SimpleObject {
    /// OID in the catalog of its kind.
    pub(crate) oid: u32,
    /// What it is.
    pub(crate) kind: SimpleKind,
    /// Name, not quoted; an operator's symbol; empty for a cast.
    pub(crate) name: String,
    /// What distinguishes it from others of its name: `(integer, NONE)` for an operator, `(a AS b)`
    /// for a cast; otherwise empty.
    pub(crate) signature: String,
    /// Owner; a cast has none.
    pub(crate) owner: Option<String>,
    /// What follows `CREATE COLLATION name`: `(PROVIDER = icu, LOCALE = 'de')`.
    pub(crate) definition: String,
    /// Whether it is the default conversion between its encodings.
    pub(crate) is_default: bool,
    /// For an operator, symbols of this schema: what follows `COMMUTATOR` and `NEGATOR`.
    pub(crate) commutator: Option<String>,
    pub(crate) negator: Option<String>,
    /// For a configuration, what follows `ADD MAPPING`: `FOR word WITH simple`.
    pub(crate) mappings: Vec<String>,
}

/// A privilege that objects get when they are created in the schema.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DefaultPrivilege {
    /// The role with objects that get it.
    pub(crate) role: String,
    /// `TABLES`, `SEQUENCES`, `FUNCTIONS`, `TYPES`.
    pub(crate) objects: String,
    /// The grantee; `Owner` is the role itself.
    pub(crate) grantee: Grantee,
    /// `SELECT`, `USAGE` …
    pub(crate) privilege: String,
    /// WITH GRANT OPTION.
    pub(crate) grantable: bool,
}

/// Extended statistics.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ExtendedStatistics {
    /// OID in `pg_statistic_ext`.
    pub(crate) oid: u32,
    /// Name, not quoted.
    pub(crate) name: String,
    /// Owner.
    pub(crate) owner: String,
    /// The whole `CREATE STATISTICS`, with the names unqualified.
    pub(crate) definition: String,
    /// Statistics target, if set.
    pub(crate) target: Option<i32>,
}

/// A comment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Comment {
    /// What it is on.
    #[serde(flatten)]
    pub(crate) on: Address,
    /// The number of the column it is on, or 0.
    pub(crate) column: i32,
    /// The text.
    pub(crate) text: String,
}

/// Who has a grant. The owner has a variant of its own, because it may have another name on another
/// host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Grantee {
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

/// An entry that an access list has in addition to its default, or one of the default that it
/// lacks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// What it is on.
    #[serde(flatten)]
    pub(crate) on: Address,
    /// The number of the column it is on, or 0.
    pub(crate) column: i32,
    /// To whom.
    pub(crate) grantee: Grantee,
    /// `SELECT`, `USAGE` …
    pub(crate) privilege: String,
    /// WITH GRANT OPTION.
    pub(crate) grantable: bool,
    /// Whether the default has it and this object does not.
    pub(crate) revoked: bool,
    /// Who granted it, if not the owner.
    pub(crate) grantor: Option<String>,
}

/// Something in the schema that has no list of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Other {
    /// PostgreSQL's name for its kind: `rule`, `operator`, `extension member` …
    pub(crate) kind: String,
    /// PostgreSQL's description of it.
    pub(crate) object: String,
}

/// Something outside the schema that objects in it need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outside {
    /// PostgreSQL's name for its kind: `function`, `type`, `collation` …
    pub(crate) kind: String,
    /// Its qualified, quoted name.
    pub(crate) identity: String,
    /// One object that needs it.
    pub(crate) used_by: String,
    /// The extension that brings it.
    pub(crate) extension: Option<String>,
}
