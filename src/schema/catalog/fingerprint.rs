//! Whether two schemas have the same definition: a fingerprint to keep, and a difference to read.
//!
//! Both use the same list of properties, so they cannot disagree. Invariant: nothing that belongs
//! to the host is included (OIDs, column numbers, owners, tablespaces, the schema's name), and
//! nothing that a statement can change in a schema is left out, but whether a column or its NOT
//! NULL is a child's own. Publications are not part of a schema; a move creates one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::schema::catalog::{
    Address, Column, Facts, Grantee, Persistence, Policy, Relation, Sequence, Type,
};

mod view_text;

/// Which properties a fingerprint is made of, and how: one that was recorded under another number
/// cannot be compared with ours. It changes whenever a definition gets another fingerprint than
/// before.
pub(crate) const VERSION: u32 = 1;

/// The SHA-256 of a schema's definition, as 64 hexadecimal digits.
///
/// It is the same for the same definition under another name, on another host and, as far as the
/// versions deparse alike, on another major version of PostgreSQL. Two schemas that differ have
/// different ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Fingerprint(String);

impl Fingerprint {
    /// The text to record: [`VERSION`], a colon and the digits. The first version had the digits
    /// only.
    pub(crate) fn record(&self) -> String {
        if VERSION == 1 {
            self.0.clone()
        } else {
            format!("{VERSION}:{}", self.0)
        }
    }

    /// Whether the definition is the one that was recorded.
    pub(crate) fn compare(&self, recorded: Option<&str>) -> RecordComparison {
        let (version, digits) =
            match recorded.map(|text| text.split_once(':').unwrap_or(("1", text))) {
                Some(both) => both,
                None => return RecordComparison::Other,
            };
        match version.parse() {
            Ok(VERSION) if digits == self.0 => RecordComparison::Same,
            Ok(VERSION) => RecordComparison::Other,
            _ => RecordComparison::Unknown,
        }
    }
}

/// How a definition compares with what was recorded of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordComparison {
    /// It is the same.
    Same,
    /// It is another, or nothing was recorded.
    Other,
    /// It was recorded by a pgshard that makes other fingerprints.
    Unknown,
}

/// The message where a comparison is not possible.
pub(crate) const OTHER_VERSION: &str =
    "another version of pgshard has recorded its definition, in a way that this one does not know";

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One property in which two schemas differ:
/// `table photos: column title: text vs character varying(10)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The object: `table photos`.
    pub(crate) object: String,
    /// The property: `column title`; empty for the object itself.
    pub(crate) property: String,
    /// The value in the first schema; `None` if it is missing there.
    pub(crate) left: Option<String>,
    /// The value in the second schema.
    pub(crate) right: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |side: &Option<String>| match side.as_deref() {
            None => "nothing".to_owned(),
            Some("") => "is there".to_owned(),
            Some(text) => text.to_owned(),
        };
        f.write_str(&self.object)?;
        if !self.property.is_empty() {
            write!(f, ": {}", self.property)?;
        }
        write!(f, ": {} vs {}", side(&self.left), side(&self.right))
    }
}

/// The fingerprint of a schema.
pub(crate) fn fingerprint(facts: &Facts) -> Fingerprint {
    let mut hash = Sha256::new();
    for ((object, property), value) in properties(facts) {
        for part in [object, property, value] {
            // The length goes before each part, or two lists could give the same bytes.
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
    }
    Fingerprint(
        hash.finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect(),
    )
}

/// The differences of two schemas, in order of the objects' names; empty if and only if the
/// fingerprints are equal.
pub(crate) fn differences(left: &Facts, right: &Facts) -> Vec<Difference> {
    let (left, right) = (properties(left), properties(right));
    let keys: BTreeSet<_> = left.keys().chain(right.keys()).collect();
    keys.into_iter()
        .filter(|key| left.get(*key) != right.get(*key))
        .map(|key| Difference {
            object: key.0.clone(),
            property: key.1.clone(),
            left: left.get(key).cloned(),
            right: right.get(key).cloned(),
        })
        .collect()
}

type Properties = BTreeMap<(String, String), String>;

/// Everything that defines the schema, as (object, property) and value.
fn properties(facts: &Facts) -> Properties {
    let mut list = List(BTreeMap::new());
    let names = facts.names();
    let name = |class: &str, oid: u32| {
        names
            .get(&Address::new(class, oid))
            .map_or("?", |name| name.plain.as_str())
    };
    for relation in &facts.relations {
        let object = name("pg_class", relation.oid);
        list.relation(facts, object, relation);
        let parents: Vec<&str> = relation
            .parents
            .iter()
            .map(|parent| facts.relation_name(*parent))
            .collect();
        list.put_some(object, "inherits", parents.join(", "));
        list.put_some(
            object,
            "partitioned by",
            relation.partition_key.clone().unwrap_or_default(),
        );
        if let Some(partition) = &relation.partition {
            list.put(
                object,
                "partition",
                format!(
                    "of {} {}",
                    facts.relation_name(partition.parent),
                    partition.bound
                ),
            );
        }
    }
    for sequence in &facts.sequences {
        let owner = sequence.owned_by.as_ref().map(|by| {
            let how = if by.identity {
                "identity of"
            } else {
                "owned by"
            };
            format!(", {how} {}.{}", facts.relation_name(by.relation), by.column)
        });
        list.put(
            name("pg_class", sequence.oid),
            "",
            sequence_text(sequence) + owner.as_deref().unwrap_or(""),
        );
    }
    for index in &facts.indexes {
        let object = name("pg_class", index.oid);
        let unique = if index.unique { "unique " } else { "" };
        list.put(
            object,
            "",
            format!(
                "{unique}on {} {}",
                facts.relation_name(index.relation),
                index.definition
            ),
        );
        list.put_some(object, "storage parameters", sorted(&index.options));
        if let Some(parent) = index.parent {
            list.put(object, "attached to", name("pg_class", parent).to_owned());
        }
        list.flag(object, "not valid", !index.valid);
        list.flag(object, "cluster mark", index.clustered);
        list.flag(object, "replica identity", index.replica_identity);
        for statistics in &index.statistics {
            list.put(
                object,
                &format!("statistics of column {}", statistics.column),
                statistics.target.to_string(),
            );
        }
    }
    for constraint in &facts.constraints {
        list.put(
            name("pg_constraint", constraint.oid),
            "",
            constraint.definition.clone(),
        );
    }
    for function in &facts.functions {
        let aggregate = function
            .aggregate
            .as_ref()
            .map(|aggregate| &aggregate.definition);
        list.put(
            name("pg_proc", function.oid),
            "",
            aggregate.unwrap_or(&function.definition).clone(),
        );
    }
    for type_ in &facts.types {
        let object = name("pg_type", type_.oid);
        list.put(object, "", type_text(type_));
        list.put_some(
            object,
            "name of NOT NULL",
            type_.chosen_not_null_name().unwrap_or_default().to_owned(),
        );
    }
    list.rules(facts, &names);
    list.privileges_by_default(facts);
    for other in facts
        .others
        .iter()
        .filter(|other| !other.kind.starts_with("publication"))
    {
        // `extension member` is a property of an object that is in the list already.
        let property = if other.object.starts_with(&other.kind) {
            ""
        } else {
            &other.kind
        };
        list.put(&other.object, property, String::new());
    }
    list.reads(facts, &names);
    for comment in &facts.comments {
        let property = column_of(facts, &comment.on, comment.column, "comment");
        list.put(
            name(&comment.on.class, comment.on.oid),
            &property,
            comment.text.clone(),
        );
    }
    list.grants(facts, &names);
    list.0
}

struct List(Properties);

impl List {
    fn put(&mut self, object: &str, property: &str, value: String) {
        self.0
            .insert((object.to_owned(), property.to_owned()), value);
    }

    fn put_some(&mut self, object: &str, property: &str, value: String) {
        if !value.is_empty() {
            self.put(object, property, value);
        }
    }

    fn flag(&mut self, object: &str, property: &str, set: bool) {
        if set {
            self.put(object, property, String::new());
        }
    }

    fn relation(&mut self, facts: &Facts, object: &str, relation: &Relation) {
        let columns: Vec<&str> = relation
            .columns
            .iter()
            .map(|column| column.name.as_str())
            .collect();
        self.put(object, "columns", columns.join(", "));
        if let Some(definition) = &relation.definition {
            self.put(object, "query", view_text::canonical(definition));
        }
        self.put_some(
            object,
            "access method",
            relation.access_method.clone().unwrap_or_default(),
        );
        self.put_some(object, "storage parameters", sorted(&relation.options));
        self.put_some(
            object,
            "storage parameters of TOAST",
            sorted(&relation.toast_options),
        );
        self.flag(
            object,
            "unlogged",
            relation.persistence == Persistence::Unlogged,
        );
        self.flag(object, "row security", relation.row_security);
        self.flag(object, "forced row security", relation.force_row_security);
        self.put_some(
            object,
            "of type",
            relation.of_type.clone().unwrap_or_default(),
        );
        // Views have none; PostgreSQL has `n` for them.
        let identity = match relation.replica_identity.as_str() {
            "f" => "full",
            "i" => "index",
            "n" if relation.definition.is_none() => "nothing",
            _ => "",
        };
        self.put_some(object, "replica identity", identity.to_owned());
        for column in &relation.columns {
            let property = format!("column {}", column.name);
            self.put(object, &property, column_text(column));
            let mut detail = |what: &str, value: Option<String>| {
                self.put_some(
                    object,
                    &format!("{property}: {what}"),
                    value.unwrap_or_default(),
                );
            };
            detail("storage", column.storage.clone());
            detail("compression", column.compression.clone());
            detail(
                "statistics",
                column.statistics.map(|target| target.to_string()),
            );
            detail("options", Some(sorted(&column.options)));
            detail("comment on NOT NULL", column.not_null_comment.clone());
            detail(
                "name of NOT NULL",
                column
                    .chosen_not_null_name(facts, relation)
                    .map(str::to_owned),
            );
            // The origin of a NOT NULL is not kept by a table that is created apart from its
            // parents, nor by a version before 18: its copy would seem to be another when it goes
            // back.
        }
    }

    /// What acts on rows or hides them, and what they are sorted, searched and counted by.
    fn rules(&mut self, facts: &Facts, names: &BTreeMap<Address, crate::schema::catalog::Name>) {
        let name = |class: &str, oid: u32| {
            names
                .get(&Address::new(class, oid))
                .map_or("?", |name| name.plain.as_str())
        };
        for trigger in &facts.triggers {
            let object = name("pg_trigger", trigger.oid);
            self.put(object, "", trigger.definition.clone());
            self.put(object, "enabled", trigger.enabled.clone());
        }
        for policy in &facts.policies {
            self.put(name("pg_policy", policy.oid), "", policy_text(policy));
        }
        for rule in &facts.rules {
            let object = name("pg_rewrite", rule.oid);
            self.put(object, "", view_text::canonical(&rule.definition));
            self.put(object, "enabled", rule.enabled.clone());
        }
        for one in &facts.simple {
            let object = name(one.kind.class(), one.oid);
            let link = |what: &str, other: &Option<String>| {
                other
                    .as_ref()
                    .map(|other| format!(" {what} {other}"))
                    .unwrap_or_default()
            };
            let links = link("commutator", &one.commutator) + &link("negator", &one.negator);
            self.put(object, "", format!("{}{links}", one.definition));
            self.flag(object, "default", one.is_default);
            self.put_some(object, "mappings", one.mappings.join(", "));
        }
        for statistics in &facts.statistics {
            let object = name("pg_statistic_ext", statistics.oid);
            self.put(object, "", statistics.definition.clone());
            self.put_some(
                object,
                "target",
                statistics
                    .target
                    .map(|target| target.to_string())
                    .unwrap_or_default(),
            );
        }
    }

    fn privileges_by_default(&mut self, facts: &Facts) {
        for privilege in &facts.default_privileges {
            let grantee = grantee_text(&privilege.grantee);
            // On another host the owner may be another role.
            let role = if privilege.role == facts.owner {
                ""
            } else {
                &privilege.role
            };
            let property = format!(
                "{} on {} by default to {grantee} {role}",
                privilege.privilege, privilege.objects
            );
            let value = if privilege.grantable {
                "with grant option"
            } else {
                ""
            };
            self.put("schema", property.trim_end(), value.to_owned());
        }
    }

    /// The columns that views and bound functions read: their texts are compared without some
    /// qualifiers.
    fn reads(&mut self, facts: &Facts, names: &BTreeMap<Address, crate::schema::catalog::Name>) {
        let mut read: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for (reader, read_from, column) in &facts.reads {
            let (Some(reader), Some(name)) = (names.get(reader), names.get(read_from)) else {
                continue;
            };
            let column = column_of(facts, read_from, *column, "");
            read.entry(&reader.plain)
                .or_default()
                .insert(format!("{} {column}", name.plain).trim_end().to_owned());
        }
        for (object, sources) in read {
            self.put(
                object,
                "reads",
                sources.into_iter().collect::<Vec<_>>().join(", "),
            );
        }
    }

    fn grants(&mut self, facts: &Facts, names: &BTreeMap<Address, crate::schema::catalog::Name>) {
        for grant in &facts.grants {
            let object = names.get(&grant.on).map_or("?", |name| name.plain.as_str());
            let grantee = grantee_text(&grant.grantee);
            let what = if grant.revoked { "revoked" } else { "granted" };
            let property = format!("{} {what} {grantee}", grant.privilege);
            let value = if grant.grantable {
                "with grant option"
            } else {
                ""
            };
            self.put(
                object,
                &column_of(facts, &grant.on, grant.column, &property),
                value.to_owned(),
            );
        }
    }
}

impl Column {
    /// The NOT NULL's name, if it was chosen by a user: PostgreSQL's own choice means nothing, and
    /// before 18 there is none. One that comes from a parent has the parent's name.
    pub(crate) fn chosen_not_null_name(&self, facts: &Facts, relation: &Relation) -> Option<&str> {
        let name = self.not_null_name.as_deref()?;
        if name == default_name(&relation.name, Some(&self.name), "not_null") {
            return None;
        }
        let is_theirs = |parent: &Column| parent.not_null_name.as_deref() == Some(name);
        (!self.not_null_inherited || !self.in_parents(facts, relation).any(is_theirs))
            .then_some(name)
    }

    /// The columns of the tables that the table inherits or is a partition of, from which this one
    /// comes.
    fn in_parents<'f>(
        &'f self,
        facts: &'f Facts,
        relation: &'f Relation,
    ) -> impl Iterator<Item = &'f Column> {
        let parents = relation
            .parents
            .iter()
            .copied()
            .chain(relation.partition.as_ref().map(|one| one.parent));
        let columns = parents
            .filter_map(|parent| facts.relation(parent))
            .flat_map(|parent| &parent.columns);
        columns.filter(|column| column.name == self.name)
    }

    /// NOT NULL, also in tables that inherit this one.
    pub(crate) fn gives_not_null(&self) -> bool {
        self.not_null && !self.not_null_no_inherit
    }

    /// Whether a table has its own NOT NULL in addition to its parents' one where it would have
    /// none by how it was created: with columns that are only its parents'. Before 18 this is not
    /// recorded.
    pub(crate) fn has_own_not_null(&self, facts: &Facts, relation: &Relation) -> bool {
        let within = relation.columns.iter().any(|column| !column.is_local);
        let theirs = self.in_parents(facts, relation).any(Column::gives_not_null);
        !relation.parents.is_empty() && within && theirs && self.not_null_is_local
    }

    /// Whether a table of columns that are all its own has a NOT NULL only from its parents
    /// (PostgreSQL 18).
    pub(crate) fn lacks_own_not_null(&self, relation: &Relation) -> bool {
        let apart = relation.columns.iter().all(|column| column.is_local);
        !relation.parents.is_empty() && apart && self.not_null_inherited && !self.not_null_is_local
    }
}

/// The name that PostgreSQL gives to a constraint: the parts with an underscore between them. Where
/// that is too long, the longer of table and column is cut, byte by byte, down to whole characters
/// (`makeObjectName` in PostgreSQL's indexcmds.c).
fn default_name(table: &str, column: Option<&str>, label: &str) -> String {
    const NAME_MAX: usize = 63;
    let column_length = column.map_or(0, str::len);
    let fixed = label.len() + 1 + usize::from(column.is_some());
    let (mut first, mut second) = (table.len(), column_length);
    while first + second + fixed > NAME_MAX {
        if first > second {
            first -= 1
        } else {
            second -= 1
        }
    }
    let clipped = |name: &'_ str, bytes: usize| -> String {
        let end = (0..=bytes).rev().find(|at| name.is_char_boundary(*at));
        name[..end.unwrap_or(0)].to_owned()
    };
    match column {
        Some(column) => format!(
            "{}_{}_{label}",
            clipped(table, first),
            clipped(column, second)
        ),
        None => format!("{}_{label}", clipped(table, first)),
    }
}

impl Type {
    /// The name of a domain's NOT NULL, if it was chosen by a user.
    pub(crate) fn chosen_not_null_name(&self) -> Option<&str> {
        self.not_null_name
            .as_deref()
            .filter(|name| *name != default_name(&self.name, None, "not_null"))
    }
}

fn column_of(facts: &Facts, on: &Address, column: i32, property: &str) -> String {
    if column == 0 {
        return property.to_owned();
    }
    let relation = (on.class == "pg_class")
        .then(|| facts.relation(on.oid))
        .flatten();
    let name = match relation.and_then(|relation| relation.column(column)) {
        Some(column) => column.name.clone(),
        None => facts
            .types
            .iter()
            .filter(|type_| on.class == "pg_type" && type_.oid == on.oid)
            .find_map(|type_| {
                type_
                    .attributes
                    .iter()
                    .find(|attribute| attribute.number == column)
            })
            .map_or(column.to_string(), |attribute| attribute.name.clone()),
    };
    if property.is_empty() {
        format!("column {name}")
    } else {
        format!("column {name}: {property}")
    }
}

fn sorted(options: &[String]) -> String {
    let mut options = options.to_vec();
    options.sort();
    options.join(", ")
}

fn column_text(column: &Column) -> String {
    let mut text = column.type_.clone();
    let mut add = |part: String| {
        text.push(' ');
        text.push_str(&part);
    };
    if let Some(collation) = &column.collation {
        add(format!("COLLATE {collation}"));
    }
    if column.not_null {
        let no_inherit = if column.not_null_no_inherit {
            " NO INHERIT"
        } else {
            ""
        };
        let not_valid = if column.not_null_validated {
            ""
        } else {
            " NOT VALID"
        };
        add(format!("NOT NULL{no_inherit}{not_valid}"));
    }
    match (
        column.identity.as_str(),
        column.generated.as_str(),
        &column.default,
    ) {
        ("a", ..) => add("GENERATED ALWAYS AS IDENTITY".to_owned()),
        ("d", ..) => add("GENERATED BY DEFAULT AS IDENTITY".to_owned()),
        (_, "s", Some(expression)) => add(format!("GENERATED ALWAYS AS ({expression}) STORED")),
        (_, "v", Some(expression)) => add(format!("GENERATED ALWAYS AS ({expression}) VIRTUAL")),
        (_, _, Some(default)) => add(format!("DEFAULT {default}")),
        _ => {}
    }
    text
}

fn sequence_text(sequence: &Sequence) -> String {
    let Sequence {
        type_,
        start,
        increment,
        minimum,
        maximum,
        cache,
        cycle,
        persistence,
        ..
    } = sequence;
    let cycle = if *cycle { ", cycle" } else { "" };
    let unlogged = if *persistence == Persistence::Unlogged {
        ", unlogged"
    } else {
        ""
    };
    format!(
        "{type_} {minimum}..{maximum} by {increment} from {start}, cache {cache}{cycle}{unlogged}"
    )
}

fn grantee_text(grantee: &Grantee) -> String {
    match grantee {
        Grantee::Owner => "its owner".to_owned(),
        Grantee::Public => "PUBLIC".to_owned(),
        Grantee::Role { name } => name.clone(),
    }
}

fn policy_text(policy: &Policy) -> String {
    let kind = if policy.permissive {
        "permissive"
    } else {
        "restrictive"
    };
    let mut roles: Vec<String> = policy.roles.iter().map(grantee_text).collect();
    roles.sort();
    let mut text = format!("{kind} for {} to {}", policy.command, roles.join(", "));
    for (what, expression) in [("using", &policy.using), ("with check", &policy.check)] {
        if let Some(expression) = expression {
            text += &format!(" {what} {expression}");
        }
    }
    text
}

fn type_text(type_: &Type) -> String {
    let attributes: Vec<String> = type_
        .attributes
        .iter()
        .map(|a| {
            format!(
                "{} {} {}",
                a.name,
                a.type_,
                a.collation.as_deref().unwrap_or("")
            )
            .trim_end()
            .to_owned()
        })
        .collect();
    let Type {
        kind,
        labels,
        base,
        collation,
        not_null,
        default,
        ..
    } = type_;
    let mut text = format!("{kind:?}");
    if !labels.is_empty() {
        text += &format!(" {labels:?}");
    }
    for (what, value) in [("", base), ("COLLATE ", collation), ("DEFAULT ", default)] {
        if let Some(value) = value {
            text += &format!(" {what}{value}");
        }
    }
    if *not_null {
        text += " NOT NULL";
    }
    if !attributes.is_empty() {
        text += &format!(" ({})", attributes.join(", "));
    }
    if let Some(range) = &type_.range {
        let or = |value: &Option<String>| value.clone().unwrap_or_default();
        text += &format!(
            " of {} {} {} {} {}",
            range.subtype,
            or(&range.operator_class),
            or(&range.collation),
            or(&range.difference),
            range.canonical
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_version_has_recorded_is_not_compared() {
        let ours = Fingerprint("0a".repeat(32));
        let (same, marked) = (ours.record(), format!("{VERSION}:{}", ours.0));
        for (recorded, is) in [
            (Some(same.as_str()), RecordComparison::Same),
            (Some(&marked), RecordComparison::Same),
            (Some("ff"), RecordComparison::Other),
            (None, RecordComparison::Other),
            (Some(&format!("99:{}", ours.0)), RecordComparison::Unknown),
            (Some("x:"), RecordComparison::Unknown),
        ] {
            assert_eq!(ours.compare(recorded), is, "{recorded:?}");
        }
    }
}
