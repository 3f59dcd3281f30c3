//! The statements of each object.

use std::collections::{BTreeMap, BTreeSet};

use crate::mover::definition::ddl::grants;
use crate::mover::definition::ddl::order::Node;
use crate::mover::definition::ddl::stage::{Refresh, Stage, Statement, Target};
use crate::mover::definition::refusal::Refusal;
use crate::pg::{quote_ident, quote_literal};
use crate::schema::catalog::{
    Address, Attribute, Column, Comment, Constraint, ConstraintKind, DefaultPrivilege, Facts,
    Function, Grant, Index, IndexStatistics, Name, OwnedBy, Persistence, Policy, Relation,
    RelationKind, Rule, Sequence, SimpleKind, SimpleObject, Trigger, Type, TypeKind,
};

/// `CREATE SCHEMA`, its comment and its grants.
pub(super) fn schema(facts: &Facts, target: &Target<'_>) -> Vec<Statement> {
    let writer = Writer::new(facts, target);
    let mut sql = vec![format!("CREATE SCHEMA {}", quote_ident(target.schema))];
    sql.extend(writer.comments_and_grants(&Address::new("pg_namespace", facts.oid)));
    sql.into_iter()
        .map(|sql| Statement {
            stage: Stage::Definition,
            what: "schema".to_owned(),
            sql,
            table: None,
            path: None,
        })
        .collect()
}

/// The statements that fill the materialized views, in the order in which these are made: none
/// reads one that comes later.
pub(super) fn refreshes(facts: &Facts, target: &Target<'_>, ordered: &[Node]) -> Vec<Refresh> {
    let schema = quote_ident(target.schema);
    let relation = |node: &Node| {
        facts
            .relation(node.address.oid)
            .filter(|_| node.address.class == "pg_class")
    };
    let views = ordered
        .iter()
        .filter_map(relation)
        .filter(|one| one.kind == RelationKind::MaterializedView);
    let refresh = |view: &Relation| Refresh {
        view: view.name.clone(),
        sql: format!(
            "REFRESH MATERIALIZED VIEW {schema}.{}",
            quote_ident(&view.name)
        ),
    };
    views.map(refresh).collect()
}

/// Every object of the schema, in no particular order.
pub(super) fn nodes(facts: &Facts, target: &Target<'_>, refusals: &mut Vec<Refusal>) -> Vec<Node> {
    let writer = Writer::new(facts, target);
    let mut nodes = Vec::new();
    for one in &facts.simple {
        let mut node = writer.node(
            one.kind.class(),
            one.oid,
            Stage::Definition,
            0,
            writer.simple(one),
        );
        node.may_wait = matches!(
            one.kind,
            SimpleKind::Operator | SimpleKind::Conversion | SimpleKind::Cast
        );
        nodes.push(node);
    }
    for type_ in &facts.types {
        nodes.push(writer.node(
            "pg_type",
            type_.oid,
            Stage::Definition,
            0,
            writer.type_(type_),
        ));
    }
    for function in &facts.functions {
        let mut node = writer.node(
            "pg_proc",
            function.oid,
            Stage::Definition,
            1,
            vec![writer.function(function)],
        );
        node.may_wait = true;
        nodes.push(node);
    }
    for relation in &facts.relations {
        match relation.kind {
            RelationKind::View => {
                let mut node = writer.node(
                    "pg_class",
                    relation.oid,
                    Stage::Definition,
                    4,
                    vec![writer.view(relation)],
                );
                node.may_wait = true;
                nodes.push(node);
            }
            RelationKind::MaterializedView => {
                let sql = writer.materialized_view(relation);
                let mut node = writer.node("pg_class", relation.oid, Stage::Definition, 4, sql);
                node.may_wait = true;
                nodes.push(node);
            }
            _ => nodes.push(writer.node(
                "pg_class",
                relation.oid,
                Stage::Definition,
                2,
                writer.table(relation),
            )),
        }
        nodes.extend(writer.defaults(relation));
    }
    for sequence in facts
        .sequences
        .iter()
        .filter(|s| !s.owned_by.as_ref().is_some_and(|by| by.identity))
    {
        nodes.push(writer.node(
            "pg_class",
            sequence.oid,
            Stage::Definition,
            3,
            writer.sequence(sequence),
        ));
    }
    for constraint in facts
        .constraints
        .iter()
        .filter(|constraint| constraint.relation != 0)
    {
        match constraint.kind {
            ConstraintKind::ForeignKey => {
                let parts = writer.key_by_partitions(constraint);
                nodes.extend(parts.unwrap_or_else(|| vec![writer.constraint(constraint)]));
            }
            _ => nodes.push(writer.constraint(constraint)),
        }
    }
    let free = facts
        .indexes
        .iter()
        .filter(|index| index.constraint.is_none());
    nodes.extend(free.map(|index| writer.index(index)));
    nodes.extend(
        facts
            .triggers
            .iter()
            .map(|trigger| writer.trigger(trigger, refusals)),
    );
    for policy in &facts.policies {
        // Policies are made before the rows are there. The owner sees all rows, and others see what
        // they will see later.
        let mut node = writer.node(
            "pg_policy",
            policy.oid,
            Stage::Definition,
            6,
            vec![writer.policy(policy)],
        );
        node.may_wait = true;
        nodes.push(node);
    }
    for statistics in &facts.statistics {
        let mut sql = vec![statistics.definition.clone()];
        let name = writer.qualified(&statistics.name);
        sql.extend(
            statistics
                .target
                .map(|target| format!("ALTER STATISTICS {name} SET STATISTICS {target}")),
        );
        let mut node = writer.node("pg_statistic_ext", statistics.oid, Stage::Finish, 1, sql);
        node.may_wait = true;
        nodes.push(node);
    }
    nodes.extend(facts.rules.iter().map(|rule| writer.rule(rule)));
    nodes.extend(
        facts
            .relations
            .iter()
            .filter_map(|relation| writer.finish(relation)),
    );
    nodes.extend(writer.default_privileges());
    nodes.extend(grants::at_open(facts, target.schema));
    nodes
}

/// The facts, indexed by what each statement needs: a shard may have thousands of objects.
pub(super) struct Writer<'a> {
    pub(super) facts: &'a Facts,
    pub(super) target: &'a Target<'a>,
    names: BTreeMap<Address, Name>,
    comments: BTreeMap<&'a Address, Vec<&'a Comment>>,
    grants: BTreeMap<&'a Address, Vec<&'a Grant>>,
    /// The sequences of identity columns, by table.
    identities: BTreeMap<u32, Vec<&'a Sequence>>,
    /// By table or materialized view.
    indexes: BTreeMap<u32, Vec<&'a Index>>,
    /// Indexes of partitions, by the index that they are attached to.
    pub(super) attached: BTreeMap<u32, Vec<&'a Index>>,
    /// The index of each constraint.
    of_constraints: BTreeMap<u32, &'a Index>,
    pub(super) triggers: BTreeMap<u32, &'a Trigger>,
    /// Tables that others inherit.
    pub(super) inherited: BTreeSet<u32>,
    /// The names of each table's constraints.
    pub(super) constraint_names: BTreeSet<(u32, &'a str)>,
}

/// Groups items by their keys.
fn by<K: Ord, T>(items: impl Iterator<Item = (K, T)>) -> BTreeMap<K, Vec<T>> {
    let mut lists: BTreeMap<K, Vec<T>> = BTreeMap::new();
    for (key, item) in items {
        lists.entry(key).or_default().push(item);
    }
    lists
}

/// The items of a key, if there are any.
fn listed<'m, K: Ord, T>(lists: &'m BTreeMap<K, Vec<T>>, key: &K) -> impl Iterator<Item = &'m T> {
    lists.get(key).into_iter().flatten()
}

impl<'a> Writer<'a> {
    fn new(facts: &'a Facts, target: &'a Target<'a>) -> Writer<'a> {
        let identity = |sequence: &'a Sequence| {
            let owner = sequence.owned_by.as_ref().filter(|by| by.identity)?;
            Some((owner.relation, sequence))
        };
        Writer {
            facts,
            target,
            names: facts.names(),
            comments: by(facts.comments.iter().map(|comment| (&comment.on, comment))),
            grants: by(facts.grants.iter().map(|grant| (&grant.on, grant))),
            identities: by(facts.sequences.iter().filter_map(identity)),
            indexes: by(facts.indexes.iter().map(|index| (index.relation, index))),
            attached: by(facts
                .indexes
                .iter()
                .filter_map(|index| Some((index.parent?, index)))),
            of_constraints: facts
                .indexes
                .iter()
                .filter_map(|index| Some((index.constraint?, index)))
                .collect(),
            triggers: facts
                .triggers
                .iter()
                .map(|trigger| (trigger.oid, trigger))
                .collect(),
            inherited: facts
                .relations
                .iter()
                .flat_map(|one| &one.parents)
                .copied()
                .collect(),
            constraint_names: facts
                .constraints
                .iter()
                .map(|one| (one.relation, one.name.as_str()))
                .collect(),
        }
    }

    fn schema(&self) -> String {
        quote_ident(self.target.schema)
    }

    pub(super) fn qualified(&self, name: &str) -> String {
        format!("{}.{}", self.schema(), quote_ident(name))
    }

    pub(super) fn node(
        &self,
        class: &str,
        oid: u32,
        stage: Stage,
        rank: u8,
        mut sql: Vec<String>,
    ) -> Node {
        let address = Address::new(class, oid);
        sql.extend(self.comments_and_grants(&address));
        let what = self
            .names
            .get(&address)
            .map_or_else(|| class.to_owned(), |name| name.plain.clone());
        Node {
            address,
            stage,
            rank,
            what,
            sql,
            table: None,
            may_wait: false,
        }
    }

    /// Comments and grants on an object and on its columns, but for those that come at the open.
    fn comments_and_grants(&self, address: &Address) -> Vec<String> {
        let Some(name) = self.names.get(address) else {
            return Vec::new();
        };
        let of_schema = address.class == "pg_namespace";
        let qualified = match of_schema {
            true => self.schema(),
            // A cast is in no schema.
            false if name.keyword == "CAST" => name.quoted.clone(),
            false => format!("{}.{}", self.schema(), name.quoted),
        };
        let column = |number: i32| -> Option<String> {
            if address.class == "pg_class" {
                let relation = self.facts.relation(address.oid)?;
                return relation
                    .column(number)
                    .map(|column| quote_ident(&column.name));
            }
            let type_ = self
                .facts
                .types
                .iter()
                .find(|type_| type_.oid == address.oid)?;
            type_
                .attributes
                .iter()
                .find(|a| a.number == number)
                .map(|attribute| quote_ident(&attribute.name))
        };
        let mut sql = Vec::new();
        for comment in listed(&self.comments, &address) {
            let text = quote_literal(&comment.text);
            let on = match (&name.on, column(comment.column)) {
                (Some((keyword, on)), _) => {
                    format!(
                        "{} {} ON {keyword}{}.{on}",
                        name.keyword,
                        name.quoted,
                        self.schema()
                    )
                }
                (None, Some(column)) => format!("COLUMN {qualified}.{column}"),
                (None, None) => format!("{} {qualified}", name.keyword),
            };
            sql.push(format!("COMMENT ON {on} IS {text}"));
        }
        for grant in listed(&self.grants, &address).filter(|grant| !grants::attaches_code(grant)) {
            let grantee = grants::role(&grant.grantee);
            let columns = column(grant.column)
                .map(|column| format!(" ({column})"))
                .unwrap_or_default();
            // GRANT uses TABLE for views too.
            let keyword = match name.keyword {
                "VIEW" | "MATERIALIZED VIEW" | "FOREIGN TABLE" => "TABLE",
                "AGGREGATE" => "FUNCTION",
                keyword => keyword,
            };
            // For GRANT, an aggregate over rows has no argument, and one over an ordered set lists
            // all its arguments alike.
            let qualified = match name.keyword {
                "AGGREGATE" => qualified
                    .replace("(*)", "()")
                    .replace(" ORDER BY ", ", ")
                    .replace("(ORDER BY ", "("),
                _ => qualified.clone(),
            };
            let privilege = format!("{}{columns} ON {keyword} {qualified}", grant.privilege);
            sql.push(match (grant.revoked, grant.grantable) {
                (true, _) => format!("REVOKE {privilege} FROM {grantee}"),
                (false, true) => format!("GRANT {privilege} TO {grantee} WITH GRANT OPTION"),
                (false, false) => format!("GRANT {privilege} TO {grantee}"),
            });
        }
        sql
    }

    fn type_(&self, type_: &Type) -> Vec<String> {
        let name = self.qualified(&type_.name);
        let mut more = Vec::new();
        let collate = |collation: &Option<String>| match collation {
            Some(collation) => format!(" COLLATE {collation}"),
            None => String::new(),
        };
        let create = match type_.kind {
            TypeKind::Enum => {
                let labels: Vec<String> = type_
                    .labels
                    .iter()
                    .map(|label| quote_literal(label))
                    .collect();
                format!("CREATE TYPE {name} AS ENUM ({})", labels.join(", "))
            }
            TypeKind::Composite => {
                let attribute = |a: &Attribute| {
                    format!(
                        "{} {}{}",
                        quote_ident(&a.name),
                        a.type_,
                        collate(&a.collation)
                    )
                };
                let attributes: Vec<String> = type_.attributes.iter().map(attribute).collect();
                format!("CREATE TYPE {name} AS ({})", attributes.join(", "))
            }
            TypeKind::Domain => {
                let mut sql = format!(
                    "CREATE DOMAIN {name} AS {}",
                    type_.base.as_deref().unwrap_or_default()
                );
                sql += &collate(&type_.collation);
                if let Some(default) = &type_.default {
                    sql += &format!(" DEFAULT {default}");
                }
                if type_.not_null {
                    let named = type_
                        .chosen_not_null_name()
                        .filter(|_| self.target.version >= 170_000);
                    sql += &named
                        .map(|name| format!(" CONSTRAINT {}", quote_ident(name)))
                        .unwrap_or_default();
                    sql += " NOT NULL";
                }
                for check in self
                    .facts
                    .constraints
                    .iter()
                    .filter(|check| check.type_ == type_.oid)
                {
                    let constraint = format!(
                        "CONSTRAINT {} {}",
                        quote_ident(&check.name),
                        check.definition
                    );
                    more.push(format!("ALTER DOMAIN {name} ADD {constraint}"));
                    more.extend(
                        self.comments_and_grants(&Address::new("pg_constraint", check.oid)),
                    );
                }
                sql
            }
            TypeKind::Range => {
                let Some(range) = &type_.range else {
                    return Vec::new();
                };
                let mut parts = vec![format!("SUBTYPE = {}", range.subtype)];
                let multirange = range
                    .multirange
                    .as_ref()
                    .filter(|_| self.target.version >= 140000)
                    .map(|m| self.qualified(m));
                for (what, value) in [
                    ("SUBTYPE_OPCLASS", &range.operator_class),
                    ("COLLATION", &range.collation),
                    ("SUBTYPE_DIFF", &range.difference),
                    ("MULTIRANGE_TYPE_NAME", &multirange),
                ] {
                    parts.extend(value.as_ref().map(|value| format!("{what} = {value}")));
                }
                format!("CREATE TYPE {name} AS RANGE ({})", parts.join(", "))
            }
            // A base type is refused by name; there is no statement to make.
            TypeKind::Base => return Vec::new(),
        };
        let mut sql = vec![create];
        sql.append(&mut more);
        sql
    }

    fn function(&self, function: &Function) -> String {
        if let Some(aggregate) = &function.aggregate {
            return format!(
                "CREATE AGGREGATE {}{}",
                self.qualified(&function.name),
                aggregate.definition
            );
        }
        let keyword = if function.kind == "p" {
            "PROCEDURE"
        } else {
            "FUNCTION"
        };
        format!(
            "CREATE {keyword} {}{}",
            self.qualified(&function.name),
            function.definition.trim_end()
        )
    }

    fn view(&self, view: &Relation) -> String {
        let options = with(&view.options);
        let query = view
            .definition
            .as_deref()
            .unwrap_or_default()
            .trim_end()
            .trim_end_matches(';');
        format!(
            "CREATE VIEW {}{options} AS {query}",
            self.qualified(&view.name)
        )
    }

    /// Without rows: they follow once the tables have theirs.
    fn materialized_view(&self, view: &Relation) -> Vec<String> {
        let (name, options) = (self.qualified(&view.name), with(&options_of(view)));
        let method = match view.access_method.as_deref() {
            None | Some("heap") => String::new(),
            Some(method) => format!(" USING {}", quote_ident(method)),
        };
        let query = view
            .definition
            .as_deref()
            .unwrap_or_default()
            .trim_end()
            .trim_end_matches(';');
        let mut sql = vec![format!(
            "CREATE MATERIALIZED VIEW {name}{method}{options} AS {query} WITH NO DATA"
        )];
        sql.extend(self.storage(view));
        sql
    }

    fn table(&self, table: &Relation) -> Vec<String> {
        let name = self.qualified(&table.name);
        let (columns, inherits) = self.own_columns(table);
        let columns = columns.iter().map(|column| self.column(table, column));
        let columns: Vec<String> = columns.chain(self.own_not_nulls(table)).collect();
        let by = table
            .partition_key
            .as_ref()
            .map(|key| format!(" PARTITION BY {key}"))
            .unwrap_or_default();
        let method = match table.access_method.as_deref() {
            None => String::new(),
            // A partitioned table has an access method only if it was set explicitly.
            Some("heap") if by.is_empty() || self.target.version < 170_000 => String::new(),
            Some(method) => format!(" USING {}", quote_ident(method)),
        };
        let options = with(&options_of(table));
        let create = format!("CREATE {}TABLE {name}", unlogged(table.persistence));
        let mut sql = vec![format!(
            "{create} ({}){inherits}{by}{method}{options}",
            columns.join(", ")
        )];
        if table.row_security {
            sql.push(format!("ALTER TABLE {name} ENABLE ROW LEVEL SECURITY"));
        }
        // This holds for the owner too: the preflight has seen that the mover's role may bypass it.
        if table.force_row_security {
            sql.push(format!("ALTER TABLE {name} FORCE ROW LEVEL SECURITY"));
        }
        sql.extend(self.storage(table));
        sql.extend(
            table
                .of_type
                .as_ref()
                .map(|of_type| format!("ALTER TABLE {name} OF {of_type}")),
        );
        for sequence in listed(&self.identities, &table.oid) {
            // Since 15 an identity's sequence is created with the persistence of its table.
            if self.target.version >= 150_000 && sequence.persistence != table.persistence {
                let logged = if sequence.persistence == Persistence::Unlogged {
                    "UNLOGGED"
                } else {
                    "LOGGED"
                };
                sql.push(format!(
                    "ALTER SEQUENCE {} SET {logged}",
                    self.qualified(&sequence.name)
                ));
            }
            sql.extend(self.comments_and_grants(&Address::new("pg_class", sequence.oid)));
        }
        // Here, and for an index right after it: all tables of the target may be published. Then a
        // table refuses what the stream brings until it has its replica identity.
        if table.replica_identity == "f" {
            sql.push(format!("ALTER TABLE {name} REPLICA IDENTITY FULL"));
        }
        sql.extend(self.attach(table));
        sql.extend(self.inherit(table));
        sql
    }

    /// How the columns are stored, where it differs from their types' default.
    fn storage(&self, relation: &Relation) -> Vec<String> {
        let (keyword, name) = (relation.kind.keyword(), self.qualified(&relation.name));
        let mut sql = Vec::new();
        for column in &relation.columns {
            let alter = format!(
                "ALTER {keyword} {name} ALTER COLUMN {}",
                quote_ident(&column.name)
            );
            let storage = column.storage.as_deref().and_then(|storage| match storage {
                "p" => Some("PLAIN"),
                "m" => Some("MAIN"),
                "e" => Some("EXTERNAL"),
                "x" => Some("EXTENDED"),
                _ => None,
            });
            sql.extend(storage.map(|storage| format!("{alter} SET STORAGE {storage}")));
            let compression = column
                .compression
                .as_deref()
                .map(|c| if c == "l" { "lz4" } else { "pglz" });
            sql.extend(
                compression.map(|compression| format!("{alter} SET COMPRESSION {compression}")),
            );
            sql.extend(
                column
                    .statistics
                    .map(|target| format!("{alter} SET STATISTICS {target}")),
            );
            if !column.options.is_empty() {
                sql.push(format!("{alter} SET ({})", options_list(&column.options)));
            }
        }
        sql
    }

    fn column(&self, table: &Relation, column: &Column) -> String {
        let mut sql = format!("{} {}", quote_ident(&column.name), column.type_);
        if let Some(collation) = &column.collation {
            sql += &format!(" COLLATE {collation}");
        }
        let expression = column.default.as_deref().unwrap_or_default();
        match (column.generated.as_str(), column.identity.as_str()) {
            ("s", _) => sql += &format!(" GENERATED ALWAYS AS ({expression}) STORED"),
            ("v", _) => sql += &format!(" GENERATED ALWAYS AS ({expression}) VIRTUAL"),
            (_, identity @ ("a" | "d")) => {
                let when = if identity == "a" {
                    "ALWAYS"
                } else {
                    "BY DEFAULT"
                };
                let is_its = |by: &OwnedBy| by.column == column.name;
                let mut own = listed(&self.identities, &table.oid);
                let sequence = own.find(|sequence| sequence.owned_by.as_ref().is_some_and(is_its));
                sql += &format!(" GENERATED {when} AS IDENTITY");
                if let Some(sequence) = sequence {
                    sql += &format!(
                        " (SEQUENCE NAME {} {})",
                        self.qualified(&sequence.name),
                        parameters(sequence)
                    );
                }
            }
            _ => {}
        }
        if column.not_null {
            let inherited = column
                .not_null_name
                .as_deref()
                .filter(|_| column.not_null_inherited);
            match column.chosen_not_null_name(self.facts, table).or(inherited) {
                Some(name) if self.target.version >= 180000 => {
                    sql += &format!(" CONSTRAINT {} NOT NULL", quote_ident(name))
                }
                _ => sql += " NOT NULL",
            }
            if column.not_null_no_inherit {
                sql += " NO INHERIT";
            }
        }
        sql
    }

    /// Defaults are set when everything that they may call exists.
    fn defaults(&self, relation: &Relation) -> Vec<Node> {
        let plain = relation
            .columns
            .iter()
            .filter(|column| column.generated.is_empty());
        plain
            .filter_map(|column| {
                let (oid, default) = (column.default_oid?, column.default.as_deref()?);
                let (name, column) = (self.qualified(&relation.name), quote_ident(&column.name));
                let (keyword, only) = (relation.kind.keyword(), self.only(relation.oid));
                let sql = format!(
                    "ALTER {keyword} {only}{name} ALTER COLUMN {column} SET DEFAULT {default}"
                );
                let mut node = self.node("pg_attrdef", oid, Stage::Definition, 5, vec![sql]);
                node.may_wait = true;
                Some(node)
            })
            .collect()
    }

    fn sequence(&self, sequence: &Sequence) -> Vec<String> {
        let name = self.qualified(&sequence.name);
        let mut sql = vec![format!(
            "CREATE {}SEQUENCE {name} AS {} {}",
            unlogged(sequence.persistence),
            sequence.type_,
            parameters(sequence)
        )];
        sql.extend(sequence.owned_by.as_ref().map(|by| {
            let table = self.qualified(self.facts.relation_name(by.relation));
            format!(
                "ALTER SEQUENCE {name} OWNED BY {table}.{}",
                quote_ident(&by.column)
            )
        }));
        sql
    }

    fn constraint(&self, constraint: &Constraint) -> Node {
        let index = self.of_constraints.get(&constraint.oid).copied();
        let stage = match constraint.kind {
            ConstraintKind::Check => Stage::Check,
            ConstraintKind::ForeignKey => Stage::ForeignKey,
            _ if self.is_partitioned(constraint.relation) => Stage::Attached,
            // A row may have been copied twice, under the values that the other index names it by
            // before and after.
            ConstraintKind::PrimaryKey if self.is_named_by_another(constraint.relation, index) => {
                Stage::Index
            }
            ConstraintKind::PrimaryKey => Stage::PrimaryKey,
            ConstraintKind::Unique if index.is_some_and(|index| index.replica_identity) => {
                Stage::PrimaryKey
            }
            ConstraintKind::Unique | ConstraintKind::Exclusion => Stage::Index,
        };
        let table = self.qualified(self.facts.relation_name(constraint.relation));
        let only = if stage == Stage::Attached {
            "ONLY "
        } else {
            ""
        };
        let name = quote_ident(&constraint.name);
        let mut sql = vec![format!(
            "ALTER TABLE {only}{table} ADD CONSTRAINT {name} {}",
            constraint.definition
        )];
        if let Some(index) = index {
            sql.extend(self.attach_indexes(index));
            if !index.options.is_empty() {
                let name = self.qualified(&index.name);
                sql.push(format!(
                    "ALTER INDEX {name} SET ({})",
                    options_list(&index.options)
                ));
            }
            sql.extend(self.index_statistics(index));
            sql.extend(self.identity(index));
            sql.extend(self.comments_and_grants(&Address::new("pg_class", index.oid)));
        }
        let mut node = self.node("pg_constraint", constraint.oid, stage, 0, sql);
        node.table = Some(self.facts.relation_name(constraint.relation).to_owned());
        node.may_wait = true;
        node
    }

    /// Makes an index the replica identity of its table, if it is.
    fn identity(&self, index: &Index) -> Option<String> {
        let table = self.facts.relation(index.relation)?;
        let is_identity = index.replica_identity && table.replica_identity == "i";
        let (name, index) = (self.qualified(&table.name), quote_ident(&index.name));
        is_identity.then(|| format!("ALTER TABLE {name} REPLICA IDENTITY USING INDEX {index}"))
    }

    /// Whether another index than this one is the replica identity of its table.
    fn is_named_by_another(&self, relation: u32, index: Option<&Index>) -> bool {
        let identity = self
            .facts
            .relation(relation)
            .map(|relation| relation.replica_identity.as_str());
        identity == Some("i") && index.is_some_and(|index| !index.replica_identity)
    }

    fn index(&self, index: &Index) -> Node {
        let table = quote_ident(self.facts.relation_name(index.relation));
        let unique = if index.unique { "UNIQUE " } else { "" };
        let name = quote_ident(&index.name);
        let (only, schema) = (self.only(index.relation), self.schema());
        let mut sql = vec![format!(
            "CREATE {unique}INDEX {name} ON {only}{schema}.{table} {}",
            index.definition
        )];
        sql.extend(self.attach_indexes(index));
        sql.extend(self.index_statistics(index));
        sql.extend(self.identity(index));
        let stage = match index.replica_identity {
            _ if self.is_partitioned(index.relation) => Stage::Attached,
            // Changes find their rows by it.
            true => Stage::PrimaryKey,
            false => Stage::Index,
        };
        let mut node = self.node("pg_class", index.oid, stage, 1, sql);
        node.table = Some(self.facts.relation_name(index.relation).to_owned());
        node.may_wait = true;
        node
    }

    fn index_statistics(&self, index: &Index) -> Vec<String> {
        let name = self.qualified(&index.name);
        let set = |s: &IndexStatistics| {
            format!(
                "ALTER INDEX {name} ALTER COLUMN {} SET STATISTICS {}",
                s.column, s.target
            )
        };
        index.statistics.iter().map(set).collect()
    }

    fn trigger(&self, trigger: &Trigger, refusals: &mut Vec<Refusal>) -> Node {
        let table = self.qualified(self.facts.relation_name(trigger.relation));
        let is_clone = trigger.parent.is_some();
        let mut sql = if is_clone {
            Vec::new()
        } else {
            vec![trigger.definition.clone()]
        };
        let state = match trigger.enabled.as_str() {
            _ if is_clone && !self.differs_from_parent(trigger) => None,
            "O" if !is_clone => None,
            other => state_of(other),
        };
        if !["O", "D", "R", "A"].contains(&trigger.enabled.as_str()) {
            let (object, remedy) = (
                format!("trigger {}", trigger.name),
                "report this: pgshard does not know it",
            );
            refusals.push(Refusal::new(
                object,
                format!("is in state {}", trigger.enabled),
                remedy,
            ));
        }
        sql.extend(state.map(|state| {
            format!(
                "ALTER TABLE {table} {state} TRIGGER {}",
                quote_ident(&trigger.name)
            )
        }));
        let mut node = self.node("pg_trigger", trigger.oid, Stage::Trigger, 0, sql);
        node.may_wait = true;
        node
    }

    /// A rule is made when the target is opened: before that, it would act on what the stream
    /// brings.
    fn rule(&self, rule: &Rule) -> Node {
        let table = self.qualified(self.facts.relation_name(rule.relation));
        let mut sql = vec![rule.definition.trim_end().trim_end_matches(';').to_owned()];
        let state = state_of(&rule.enabled).filter(|_| rule.enabled != "O");
        sql.extend(state.map(|state| {
            format!(
                "ALTER TABLE {table} {state} RULE {}",
                quote_ident(&rule.name)
            )
        }));
        let mut node = self.node("pg_rewrite", rule.oid, Stage::Trigger, 1, sql);
        node.may_wait = true;
        node
    }

    fn simple(&self, one: &SimpleObject) -> Vec<String> {
        let keyword = one.kind.keyword();
        let name = match one.kind {
            SimpleKind::Operator => format!("{}.{}", self.schema(), one.name),
            SimpleKind::Cast => one.signature.clone(),
            _ => self.qualified(&one.name),
        };
        let mut definition = one.definition.clone();
        // If the other operator does not exist yet, this creates it as a mere name, and its own
        // statement completes it.
        for (what, other) in [("COMMUTATOR", &one.commutator), ("NEGATOR", &one.negator)] {
            if let (Some(other), Some(open)) = (other, definition.strip_suffix(')')) {
                definition = format!("{open}, {what} = OPERATOR({}.{other}))", self.schema());
            }
        }
        let default = if one.is_default { "DEFAULT " } else { "" };
        let create = format!("CREATE {default}{keyword} {name} {definition}");
        let mappings = one
            .mappings
            .iter()
            .map(|mapping| format!("ALTER {keyword} {name} ADD MAPPING {mapping}"));
        std::iter::once(create).chain(mappings).collect()
    }

    /// Default privileges come when all objects exist: those have their own privileges already.
    fn default_privileges(&self) -> Option<Node> {
        let grant = |privilege: &DefaultPrivilege| {
            let DefaultPrivilege {
                objects,
                grantee,
                privilege,
                grantable,
                ..
            } = privilege;
            let option = if *grantable { " WITH GRANT OPTION" } else { "" };
            let (schema, grantee) = (self.schema(), grants::role(grantee));
            let alter = format!("ALTER DEFAULT PRIVILEGES IN SCHEMA {schema}");
            format!("{alter} GRANT {privilege} ON {objects} TO {grantee}{option}")
        };
        let sql: Vec<String> = self.facts.default_privileges.iter().map(grant).collect();
        (!sql.is_empty()).then(|| Node {
            address: Address::new("pg_default_acl", self.facts.oid),
            stage: Stage::Finish,
            rank: 9,
            what: "default privileges".to_owned(),
            sql,
            table: None,
            may_wait: true,
        })
    }

    fn policy(&self, policy: &Policy) -> String {
        let command = match policy.command.as_str() {
            "r" => "SELECT",
            "a" => "INSERT",
            "w" => "UPDATE",
            "d" => "DELETE",
            _ => "ALL",
        };
        let kind = if policy.permissive {
            "PERMISSIVE"
        } else {
            "RESTRICTIVE"
        };
        let roles: Vec<String> = policy.roles.iter().map(grants::role).collect();
        let (name, table) = (
            quote_ident(&policy.name),
            self.qualified(self.facts.relation_name(policy.relation)),
        );
        let mut sql = format!(
            "CREATE POLICY {name} ON {table} AS {kind} FOR {command} TO {}",
            roles.join(", ")
        );
        for (what, expression) in [("USING", &policy.using), ("WITH CHECK", &policy.check)] {
            if let Some(expression) = expression {
                sql += &format!(" {what} ({expression})");
            }
        }
        sql
    }

    /// Marks that come last: CLUSTER, which needs the index, and a replica identity by which
    /// nothing can be changed.
    fn finish(&self, table: &Relation) -> Option<Node> {
        if !table.kind.is_stored() {
            return None;
        }
        let (keyword, name) = (table.kind.keyword(), self.qualified(&table.name));
        let mut sql = Vec::new();
        if table.replica_identity == "n" {
            sql.push(format!("ALTER TABLE {name} REPLICA IDENTITY NOTHING"));
        }
        for index in listed(&self.indexes, &table.oid) {
            let index_name = quote_ident(&index.name);
            if index.clustered {
                sql.push(format!("ALTER {keyword} {name} CLUSTER ON {index_name}"));
            }
        }
        let what = format!("{} {}", table.kind.plain(), table.name);
        // The table's own address is taken by its node. No other node has this one, and nothing
        // needs it.
        let address = Address::new("finish", table.oid);
        (!sql.is_empty()).then_some(Node {
            address,
            stage: Stage::Finish,
            rank: 0,
            what,
            sql,
            table: None,
            may_wait: true,
        })
    }
}

/// The words of `ALTER TABLE` that bring a trigger or a rule into a state.
fn state_of(enabled: &str) -> Option<&'static str> {
    match enabled {
        "O" => Some("ENABLE"),
        "D" => Some("DISABLE"),
        "R" => Some("ENABLE REPLICA"),
        "A" => Some("ENABLE ALWAYS"),
        _ => None,
    }
}

fn parameters(sequence: &Sequence) -> String {
    let Sequence {
        start,
        increment,
        minimum,
        maximum,
        cache,
        cycle,
        ..
    } = sequence;
    let cycle = if *cycle { "CYCLE" } else { "NO CYCLE" };
    format!(
        "START WITH {start} INCREMENT BY {increment} MINVALUE {minimum} MAXVALUE {maximum} CACHE \
            {cache} {cycle}"
    )
}

/// A relation's storage parameters, with those of its TOAST table.
fn options_of(relation: &Relation) -> Vec<String> {
    let toast = relation
        .toast_options
        .iter()
        .map(|option| format!("toast.{option}"));
    relation.options.iter().cloned().chain(toast).collect()
}

fn unlogged(persistence: Persistence) -> &'static str {
    if persistence == Persistence::Unlogged {
        "UNLOGGED "
    } else {
        ""
    }
}

fn with(options: &[String]) -> String {
    if options.is_empty() {
        String::new()
    } else {
        format!(" WITH ({})", options_list(options))
    }
}

/// `name=value` as `name='value'`: a value may be a list or a keyword of SQL.
fn options_list(options: &[String]) -> String {
    let quoted = options.iter().map(|option| match option.split_once('=') {
        Some((name, value)) => format!("{name} = {}", quote_literal(value)),
        None => option.clone(),
    });
    quoted.collect::<Vec<_>>().join(", ")
}
