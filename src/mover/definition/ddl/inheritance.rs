//! Tables that inherit others: which columns and checks are their own, and which come from their
//! parents.
//!
//! A column that comes only from its parents is dropped from the child when the parents drop it. A
//! child with such a column is created with INHERITS, and then begins with its parents' columns.
//! Any other child is created as a table of its own, and ALTER TABLE … INHERIT follows. That is
//! also done if the child's own columns come before inherited ones, as after ALTER TABLE parent ADD
//! COLUMN: statements depend on the order of the columns.
//!
//! The same is true of a NOT NULL (PostgreSQL 18): a child that was created apart has its own.

use std::collections::BTreeMap;

use crate::mover::definition::ddl::statements::Writer;
use crate::pg::quote_ident;
use crate::schema::catalog::{Address, Column, ConstraintKind, Facts, Relation};

/// How a child gets its parents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attachment {
    /// By INHERITS, when it is created.
    Within,
    /// By INHERIT, after it was created.
    Apart,
    /// By INHERIT too, although it has columns that came only from its parents: they are its own
    /// then.
    Emancipated,
}

/// How a child gets its parents.
pub(super) fn made(facts: &Facts, child: &Relation) -> Attachment {
    let all_own = child.columns.iter().all(|column| column.is_local);
    // The facts count no column of a partition as its own, and name no parents of it.
    if child.parents.is_empty() || all_own && !wants_parents(child) {
        return Attachment::Apart;
    }
    let mut made: Vec<&str> = Vec::new();
    let parents = child
        .parents
        .iter()
        .filter_map(|parent| facts.relation(*parent));
    let own = child.columns.iter().filter(|column| column.is_local);
    for column in parents.flat_map(|parent| &parent.columns).chain(own) {
        if !made.contains(&column.name.as_str()) {
            made.push(&column.name);
        }
    }
    let in_order = made
        .into_iter()
        .eq(child.columns.iter().map(|column| column.name.as_str()));
    match (in_order, all_own) {
        (true, _) => Attachment::Within,
        (false, true) => Attachment::Apart,
        (false, false) => Attachment::Emancipated,
    }
}

/// Whether a child with columns that are all its own is better created with INHERITS, for a NOT
/// NULL that it has only from its parents. Generation expressions of its own could not be repeated
/// there.
fn wants_parents(child: &Relation) -> bool {
    child
        .columns
        .iter()
        .any(|column| column.lacks_own_not_null(child))
        && child
            .columns
            .iter()
            .all(|column| column.generated.is_empty())
}

/// Whether a NOT NULL that the child has only from its parents becomes its own.
pub(super) fn owns_not_nulls(facts: &Facts, child: &Relation) -> bool {
    made(facts, child) == Attachment::Apart
        && child
            .columns
            .iter()
            .any(|column| column.lacks_own_not_null(child))
}

/// The columns that can be null in a child although they cannot in a parent that gives them its NOT
/// NULL: up to 17, ALTER TABLE ONLY made that.
pub(super) fn nullable(facts: &Facts, child: &Relation) -> Vec<(String, String)> {
    let parents = child
        .parents
        .iter()
        .filter_map(|parent| facts.relation(*parent));
    let given = parents.flat_map(|parent| {
        let columns = parent
            .columns
            .iter()
            .filter(|column| column.gives_not_null());
        columns.map(|column| (parent.name.clone(), column.name.clone()))
    });
    given
        .filter(|(_, name)| {
            child
                .columns
                .iter()
                .any(|own| own.name == *name && !own.not_null)
        })
        .collect()
}

/// An order that the catalogs do not give: if a child has a check of its own that its parent has
/// too, the child's is made first. The parent's would otherwise create the child's.
pub(super) fn edges(facts: &Facts) -> Vec<(Address, Address)> {
    let checks = facts
        .constraints
        .iter()
        .filter(|one| one.kind == ConstraintKind::Check && one.relation != 0);
    let checks: BTreeMap<(u32, &str), u32> = checks
        .map(|one| ((one.relation, one.name.as_str()), one.oid))
        .collect();
    let address = |oid: u32| Address::new("pg_constraint", oid);
    let mut edges = Vec::new();
    for ((child, name), own) in &checks {
        let mut above = parents_of(facts, *child);
        // All ancestors count, not only the parents. There is no circle.
        while let Some(parent) = above.pop() {
            edges.extend(
                checks
                    .get(&(parent, *name))
                    .map(|parents| (address(*parents), address(*own))),
            );
            above.extend(parents_of(facts, parent));
        }
    }
    edges
}

fn parents_of(facts: &Facts, child: u32) -> Vec<u32> {
    facts
        .relation(child)
        .map(|child| child.parents.clone())
        .unwrap_or_default()
}

impl Writer<'_> {
    /// The columns that `CREATE TABLE` lists, and the clause that follows them.
    pub(super) fn own_columns(&self, table: &Relation) -> (Vec<Column>, String) {
        if made(self.facts, table) != Attachment::Within {
            return (table.columns.clone(), String::new());
        }
        // Generation expressions come from the parents, since up to 15 a child may not repeat them;
        // so does a NOT NULL of theirs.
        let own = table.columns.iter().filter(|one| one.is_local);
        let own = own
            .filter(|one| one.generated.is_empty() || self.inherited_column(table, one).is_none());
        let own = own.map(|one| {
            let theirs = !one.not_null_is_local
                && self
                    .inherited_column(table, one)
                    .is_some_and(Column::gives_not_null);
            Column {
                not_null: one.not_null && !theirs,
                ..one.clone()
            }
        });
        let parents: Vec<String> = self.parents(table).collect();
        (own.collect(), format!(" INHERITS ({})", parents.join(", ")))
    }

    /// The NOT NULLs of the child's own that `CREATE TABLE` lists, on columns that come only from
    /// its parents and have one there, too.
    pub(super) fn own_not_nulls(&self, table: &Relation) -> Vec<String> {
        if made(self.facts, table) != Attachment::Within || self.target.version < 180_000 {
            return Vec::new();
        }
        let own = table
            .columns
            .iter()
            .filter(|one| !one.is_local && one.has_own_not_null(self.facts, table));
        own.map(|one| {
            let name = one
                .not_null_name
                .as_deref()
                .map(|name| format!("CONSTRAINT {} ", quote_ident(name)));
            format!(
                "{}NOT NULL {}",
                name.unwrap_or_default(),
                quote_ident(&one.name)
            )
        })
        .collect()
    }

    /// What follows once a child is created: INHERIT where it was created without parents, or a NOT
    /// NULL of its own on a column of theirs.
    pub(super) fn inherit(&self, table: &Relation) -> Vec<String> {
        let name = self.qualified(&table.name);
        if made(self.facts, table) != Attachment::Within {
            return self
                .parents(table)
                .map(|parent| format!("ALTER TABLE {name} INHERIT {parent}"))
                .collect();
        }
        let is_theirs = |column: &Column| {
            self.inherited_column(table, column)
                .is_some_and(Column::gives_not_null)
        };
        let own = table
            .columns
            .iter()
            .filter(|one| one.not_null && !one.is_local && !is_theirs(one));
        own.map(|column| {
            let quoted = quote_ident(&column.name);
            match &column.not_null_name {
                Some(named) if self.target.version >= 180_000 => {
                    let no_inherit = if column.not_null_no_inherit {
                        " NO INHERIT"
                    } else {
                        ""
                    };
                    let named = quote_ident(named);
                    format!(
                        "ALTER TABLE {name} ADD CONSTRAINT {named} NOT NULL {quoted}{no_inherit}"
                    )
                }
                _ => format!("ALTER TABLE {name} ALTER COLUMN {quoted} SET NOT NULL"),
            }
        })
        .collect()
    }

    /// The parent's column that this column is inherited from; if there are several, one that is
    /// NOT NULL is preferred.
    fn inherited_column(&self, child: &Relation, column: &Column) -> Option<&Column> {
        let parents = child
            .parents
            .iter()
            .filter_map(|parent| self.facts.relation(*parent));
        let theirs =
            parents.flat_map(|parent| parent.columns.iter().filter(|one| one.name == column.name));
        theirs.max_by_key(|one| one.gives_not_null())
    }

    fn parents(&self, table: &Relation) -> impl Iterator<Item = String> {
        table
            .parents
            .iter()
            .map(|parent| self.qualified(self.facts.relation_name(*parent)))
    }
}
