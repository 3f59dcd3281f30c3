//! Partitioned tables: how their keys, indexes and triggers are joined with those of their
//! partitions.
//!
//! A partition is created as a table of its own and attached while it is empty, so that its columns
//! keep their own order. Its indexes are built as those of any table. The parent's index is then
//! created ON ONLY the parent, and the partitions' indexes are attached to it. Triggers and checks
//! that a parent's create on each partition are left to PostgreSQL.

use std::collections::BTreeMap;

use crate::mover::definition::ddl::order::Node;
use crate::mover::definition::ddl::stage::Stage;
use crate::mover::definition::ddl::statements::Writer;
use crate::pg::quote_ident;
use crate::schema::catalog::{Address, Constraint, Facts, Index, Relation, RelationKind, Trigger};

/// The first version that accepts a foreign key of a partitioned table that is NOT VALID.
const UNPROVED_SINCE: u32 = 180_000;

/// An order that the catalogs do not give: a partitioned table's index is made after those that are
/// attached to it, and the state of a partition's trigger is set after the parent's trigger has
/// created it.
pub(super) fn edges(facts: &Facts) -> Vec<(Address, Address)> {
    let by_oid: BTreeMap<u32, &Index> = facts
        .indexes
        .iter()
        .map(|index| (index.oid, index))
        .collect();
    let indexes = facts.indexes.iter();
    let indexes =
        indexes.filter_map(|index| Some((address(by_oid.get(&index.parent?)?), address(index))));
    let trigger = |oid| Address::new("pg_trigger", oid);
    let triggers = facts
        .triggers
        .iter()
        .filter_map(|one| Some((trigger(one.oid), trigger(one.parent?))));
    indexes.chain(triggers).collect()
}

/// The address that creates an index: its constraint, if it has one.
fn address(index: &Index) -> Address {
    match index.constraint {
        Some(constraint) => Address::new("pg_constraint", constraint),
        None => Address::new("pg_class", index.oid),
    }
}

impl Writer<'_> {
    pub(super) fn is_partitioned(&self, relation: u32) -> bool {
        self.facts
            .relation(relation)
            .is_some_and(|relation| relation.kind == RelationKind::PartitionedTable)
    }

    /// `ONLY ` where a statement on this relation would also reach its partitions or its children.
    pub(super) fn only(&self, relation: u32) -> &'static str {
        if self.is_partitioned(relation) || self.inherited.contains(&relation) {
            "ONLY "
        } else {
            ""
        }
    }

    /// The statement that attaches a partition to its parent.
    pub(super) fn attach(&self, table: &Relation) -> Option<String> {
        let partition = table.partition.as_ref()?;
        let parent = self.qualified(self.facts.relation_name(partition.parent));
        let (name, bound) = (self.qualified(&table.name), &partition.bound);
        Some(format!(
            "ALTER TABLE ONLY {parent} ATTACH PARTITION {name} {bound}"
        ))
    }

    /// The statements that attach the partitions' indexes to this index of a partitioned table.
    pub(super) fn attach_indexes(&self, parent: &Index) -> Vec<String> {
        let name = self.qualified(&parent.name);
        let parts = self.attached.get(&parent.oid).into_iter().flatten();
        parts
            .map(|part| {
                format!(
                    "ALTER INDEX {name} ATTACH PARTITION {}",
                    self.qualified(&part.name)
                )
            })
            .collect()
    }

    /// A foreign key of a partitioned table for versions that cannot make it NOT VALID: one key for
    /// each partition, which is validated by itself, and then the key of the whole table, which
    /// adopts them.
    pub(super) fn key_by_partitions(&self, key: &Constraint) -> Option<Vec<Node>> {
        if !self.is_partitioned(key.relation) || self.target.version >= UNPROVED_SINCE {
            return None;
        }
        let add = |relation: u32, name: &str| {
            let table = self.qualified(self.facts.relation_name(relation));
            format!(
                "ALTER TABLE {table} ADD CONSTRAINT {} {}",
                quote_ident(name),
                key.definition
            )
        };
        let mut whole = self.node(
            "pg_constraint",
            key.oid,
            Stage::Proved,
            0,
            vec![add(key.relation, &key.name)],
        );
        whole.may_wait = true;
        let mut parts = Node {
            stage: Stage::ForeignKey,
            sql: Vec::new(),
            ..whole.clone()
        };
        parts.address = Address::new("keys of partitions", key.oid);
        for leaf in self.leaves(key.relation) {
            let is_free = |name: &String| !self.constraint_names.contains(&(leaf, name.as_str()));
            let numbered =
                (1..).map(|n| format!("{}_{n}", key.name.chars().take(40).collect::<String>()));
            let name = std::iter::once(key.name.clone())
                .chain(numbered)
                .find(is_free)
                .unwrap_or_default();
            parts.sql.push(add(leaf, &name));
        }
        Some(vec![parts, whole])
    }

    /// The partitions below a table that hold rows: the leaves.
    fn leaves(&self, parent: u32) -> Vec<u32> {
        let of_parent = |one: &&Relation| {
            one.partition
                .as_ref()
                .is_some_and(|partition| partition.parent == parent)
        };
        let below = self.facts.relations.iter().filter(of_parent);
        below
            .flat_map(|one| match one.kind {
                RelationKind::PartitionedTable => self.leaves(one.oid),
                _ => vec![one.oid],
            })
            .collect()
    }

    /// Whether a trigger needs a statement for its state: not if it comes from the parent's trigger
    /// and has the same state.
    pub(super) fn differs_from_parent(&self, trigger: &Trigger) -> bool {
        let parent = trigger.parent.and_then(|parent| self.triggers.get(&parent));
        parent.is_none_or(|parent| parent.enabled != trigger.enabled)
    }
}
