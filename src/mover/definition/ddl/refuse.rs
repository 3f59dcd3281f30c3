//! What cannot be carried faithfully, and what an operator should know.

use std::collections::BTreeSet;

use crate::mover::definition::ddl::inheritance::{self, Attachment};
use crate::mover::definition::ddl::stage::Target;
use crate::mover::definition::refusal::Refusal;
use crate::schema::catalog::{
    Address, ConstraintKind, Facts, Function, Grantee, Persistence, Relation, RelationKind,
    SimpleKind, SimpleObject, TypeKind,
};

/// All reasons to refuse the schema, and the notes.
pub(super) fn examine(facts: &Facts, target: &Target<'_>) -> (Vec<Refusal>, Vec<String>) {
    let mut examined = Examination {
        facts,
        target,
        refusals: Vec::new(),
        notes: Vec::new(),
    };
    examined.owners();
    examined.makers();
    examined.hidden();
    examined.unknown();
    examined.relations();
    examined.columns();
    examined.indexes_and_constraints();
    examined.functions();
    examined.statistics();
    examined.types();
    examined.collations();
    examined.default_privileges();
    examined.others();
    examined.comments_and_grants();
    examined.bodies_that_name_the_shard();
    examined.bodies_that_need_the_search_path();
    (examined.refusals, examined.notes)
}

struct Examination<'a> {
    facts: &'a Facts,
    target: &'a Target<'a>,
    refusals: Vec<Refusal>,
    notes: Vec<String>,
}

impl Examination<'_> {
    fn refuse(
        &mut self,
        object: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.refusals.push(Refusal::new(object, reason, remedy));
    }

    /// Refuses what a target older than `version` does not know.
    fn since(&mut self, version: u32, object: &str, what: &str) {
        if self.target.version < version * 10000 {
            let reason = format!(
                "has {what}, which PostgreSQL {} does not know",
                self.target.version / 10000
            );
            self.refuse(
                object,
                reason,
                format!("choose a target of version {version} or later"),
            );
        }
    }

    fn owners(&mut self) {
        let facts = self.facts;
        let names = facts.names();
        let mut owned = vec![(Address::new("pg_namespace", facts.oid), &facts.owner)];
        owned.extend(
            facts
                .relations
                .iter()
                .map(|r| (Address::new("pg_class", r.oid), &r.owner)),
        );
        owned.extend(
            facts
                .sequences
                .iter()
                .map(|s| (Address::new("pg_class", s.oid), &s.owner)),
        );
        owned.extend(
            facts
                .functions
                .iter()
                .map(|f| (Address::new("pg_proc", f.oid), &f.owner)),
        );
        owned.extend(
            facts
                .statistics
                .iter()
                .map(|s| (Address::new("pg_statistic_ext", s.oid), &s.owner)),
        );
        let simple = |one: &'_ SimpleObject| Address::new(one.kind.class(), one.oid);
        owned.extend(
            facts
                .simple
                .iter()
                .filter_map(|one| Some((simple(one), one.owner.as_ref()?))),
        );
        owned.extend(
            facts
                .types
                .iter()
                .map(|t| (Address::new("pg_type", t.oid), &t.owner)),
        );
        for (address, owner) in owned {
            if *owner != facts.reader {
                let object = names
                    .get(&address)
                    .map_or_else(String::new, |name| name.plain.clone());
                let reason = format!(
                    "belongs to {owner}, but pgshard connects as {}",
                    facts.reader
                );
                self.refuse(
                    object,
                    reason,
                    format!("make {} its owner, or connect as {owner}", facts.reader),
                );
            }
        }
    }

    /// Refuses a schema in which another role may make objects, or has made some: they would be
    /// found before PostgreSQL's own, and would run as the role that carries the schema.
    fn makers(&mut self) {
        let facts = self.facts;
        for role in facts.makers.iter().filter(|role| **role != facts.owner) {
            let reason = format!(
                "lets {role} make objects in it, which could run as {}",
                facts.reader
            );
            let remedy = format!(
                "REVOKE CREATE ON SCHEMA {} FROM {role}, and own what it has made",
                facts.schema
            );
            self.refuse("schema", reason, remedy);
        }
    }

    /// Refuses an operator that hides one by which PostgreSQL itself finds the texts of views and
    /// rules: what was read may be another view's.
    fn hidden(&mut self) {
        if self.facts.hides_equality {
            self.refuse(
                "operator =",
                "of oid or name hides PostgreSQL's own, by which the server finds a view's text",
                "drop it, or give it another name",
            );
        }
    }

    /// Refuses what has a property that no version known to us has. It would be left out, or made
    /// as something else.
    fn unknown(&mut self) {
        let facts = self.facts;
        let mut found: Vec<(String, &str, &str)> = Vec::new();
        for relation in &facts.relations {
            let object = format!("{} {}", relation.kind.plain(), relation.name);
            let identity = relation.replica_identity.as_str();
            found.push((object, "replica identity", known(identity, "dnfi")));
            for column in &relation.columns {
                let object = format!("column {}.{}", relation.name, column.name);
                let (storage, compression) = (&column.storage, &column.compression);
                found.extend([
                    (object.clone(), "generation", known(&column.generated, "sv")),
                    (object.clone(), "identity", known(&column.identity, "ad")),
                    (
                        object.clone(),
                        "storage",
                        known(storage.as_deref().unwrap_or_default(), "pmex"),
                    ),
                    (
                        object,
                        "compression",
                        known(compression.as_deref().unwrap_or_default(), "pl"),
                    ),
                ]);
            }
        }
        for policy in &facts.policies {
            let object = format!(
                "policy {} on {}",
                policy.name,
                facts.relation_name(policy.relation)
            );
            found.push((object, "command", known(&policy.command, "rawd*")));
        }
        let triggers = facts
            .triggers
            .iter()
            .map(|one| ("trigger", &one.name, &one.enabled));
        let rules = facts
            .rules
            .iter()
            .map(|one| ("rule", &one.name, &one.enabled));
        for (kind, name, state) in triggers.chain(rules) {
            found.push((format!("{kind} {name}"), "state", known(state, "ODRA")));
        }
        for (object, what, value) in found.into_iter().filter(|(.., value)| !value.is_empty()) {
            self.refuse(
                object,
                format!("has the {what} {value:?}, which this release of pgshard does not know"),
                "move it with a later release of pgshard, or alter it",
            );
        }
    }

    fn relations(&mut self) {
        for relation in &self.facts.relations {
            let object = format!("{} {}", relation.kind.plain(), relation.name);
            match relation.kind {
                RelationKind::Table
                | RelationKind::View
                | RelationKind::MaterializedView
                | RelationKind::PartitionedTable => {}
                RelationKind::ForeignTable => {
                    self.refuse(
                        &object,
                        "is not carried",
                        "drop it and create it after the move",
                    );
                    continue;
                }
            }
            if relation.heirs_outside
                || relation
                    .parents
                    .iter()
                    .any(|parent| self.facts.relation(*parent).is_none())
            {
                let remedy = "separate them with ALTER TABLE … NO INHERIT";
                self.refuse(
                    &object,
                    "inherits a table of another schema, or is inherited by one",
                    remedy,
                );
            }
            if inheritance::made(self.facts, relation) == Attachment::Emancipated {
                self.notes.push(format!(
                    "{object} has columns of its own before inherited ones: at the target the \
                        inherited ones become its own, too, and stay when they are dropped from \
                        the parent."
                ));
            }
            self.inherited_not_nulls(&object, relation);
            self.partition(&object, relation);
            if relation.force_row_security && !self.facts.reader_bypasses {
                let reader = &self.facts.reader;
                self.refuse(
                    &object,
                    format!(
                        "has row level security that is forced, so that rows could be hidden \
                        from {reader}"
                    ),
                    format!(
                        "ALTER ROLE {reader} BYPASSRLS, or ALTER TABLE … NO FORCE ROW LEVEL \
                        SECURITY"
                    ),
                );
            }
            if relation
                .options
                .iter()
                .any(|option| option.starts_with("security_invoker"))
            {
                self.since(15, &object, "security_invoker");
            }
            if let Some(tablespace) = &relation.tablespace {
                self.notes.push(format!(
                    "{object} is in tablespace {tablespace}; at the target it is put into the \
                        default one."
                ));
            }
        }
        for sequence in &self.facts.sequences {
            let object = format!("sequence {}", sequence.name);
            if sequence.persistence == Persistence::Unlogged {
                self.since(15, &object, "no log (UNLOGGED)");
            }
            if sequence
                .owned_by
                .as_ref()
                .is_some_and(|by| self.facts.relation(by.relation).is_none())
            {
                self.refuse(
                    &object,
                    "is owned by a column outside the schema",
                    "detach it with ALTER SEQUENCE … OWNED BY NONE",
                );
            }
        }
    }

    /// Refuses a column that can be null although a parent's cannot, which no statement creates
    /// again; and reports NOT NULLs that the child gets for its own, or loses.
    fn inherited_not_nulls(&mut self, object: &str, relation: &Relation) {
        for (parent, column) in inheritance::nullable(self.facts, relation) {
            self.refuse(
                format!("column {}.{column}", relation.name),
                format!("can be null, although that of {parent}, which it inherits, cannot"),
                format!(
                    "ALTER TABLE {} ALTER COLUMN {column} SET NOT NULL, or DROP it from {parent}",
                    relation.name
                ),
            );
        }
        if inheritance::owns_not_nulls(self.facts, relation) {
            self.notes.push(format!(
                "{object} has a NOT NULL only from what it inherits: at the target it becomes its \
                    own, too, and stays when it is dropped from the parent."
            ));
        }
        if self.target.version < 180_000
            && relation
                .columns
                .iter()
                .any(|column| column.has_own_not_null(self.facts, relation))
        {
            self.notes.push(format!(
                "{object} has a NOT NULL of its own besides that of what it inherits: versions \
                    before 18 do not tell them apart."
            ));
        }
    }

    /// Refuses what cannot be made at the target of a partitioned table or a partition.
    fn partition(&mut self, object: &str, relation: &Relation) {
        if relation.hashes_oids {
            self.refuse(
                object,
                "is partitioned by the hash of an enum or a row type, which differs from host to \
                    host",
                "partition it by list or range, or by the hash of a plain type",
            );
        }
        if relation
            .partition
            .as_ref()
            .is_some_and(|partition| partition.detaching)
        {
            let remedy = "finish it with ALTER TABLE … DETACH PARTITION … FINALIZE";
            self.refuse(
                object,
                "is a partition whose DETACH … CONCURRENTLY was not finished",
                remedy,
            );
        }
        let is_partitioned = relation.kind == RelationKind::PartitionedTable;
        if is_partitioned
            && relation
                .access_method
                .as_deref()
                .is_some_and(|method| method != "heap")
        {
            self.since(17, object, "an access method although it is partitioned");
        }
        for column in relation
            .columns
            .iter()
            .filter(|column| !column.identity.is_empty())
        {
            let object = format!("column {}.{}", relation.name, column.name);
            if relation.partition.is_some() && self.target.version >= 170_000 {
                self.refuse(
                    object,
                    "is an identity of a partition's own, which PostgreSQL 17 and later refuse",
                    "ALTER TABLE … ALTER COLUMN … DROP IDENTITY, and SET DEFAULT nextval(…)",
                );
            } else if is_partitioned
                && self.target.version < 170_000
                && self.facts.version >= 170_000
            {
                self.notes.push(format!(
                    "{object}: before PostgreSQL 17, an INSERT directly into a partition gets no \
                        value of this \
                     identity."
                ));
            }
        }
    }

    fn columns(&mut self) {
        for relation in self
            .facts
            .relations
            .iter()
            .filter(|relation| relation.kind.is_table())
        {
            for column in &relation.columns {
                let object = format!("column {}.{}", relation.name, column.name);
                if !column.not_null_validated {
                    self.refuse(
                        &object,
                        "has a NOT NULL that is not valid",
                        "validate it with ALTER TABLE … VALIDATE CONSTRAINT",
                    );
                }
                if column.generated == "v" {
                    self.since(18, &object, "a virtual generated column");
                }
                let computed = column
                    .default
                    .as_deref()
                    .filter(|_| !column.generated.is_empty());
                if computed.is_some_and(|expression| mentions(expression, "tableoid")) {
                    let remedy = "compute it without tableoid, or keep the table's name as text";
                    self.refuse(
                        &object,
                        "is computed from tableoid, which is an OID of this host",
                        remedy,
                    );
                }
                if column.compression.is_some() {
                    self.since(14, &object, "a compression method");
                }
                if column.not_null_no_inherit {
                    self.since(18, &object, "a NOT NULL that is NO INHERIT");
                }
                let named = column.chosen_not_null_name(self.facts, relation);
                if column.not_null_comment.is_some() {
                    self.refuse(
                        &object,
                        "has a comment on its NOT NULL",
                        "remove the comment",
                    );
                } else if self.target.version < 180000
                    && let Some(name) = named
                {
                    self.notes.push(format!(
                        "{object}: its NOT NULL loses the name {name}, as versions before 18 keep \
                            none."
                    ));
                }
                if is_reg(&column.type_name) {
                    let reason = format!(
                        "is of type {}, whose values are OIDs of this host",
                        column.type_name
                    );
                    self.refuse(&object, reason, "keep names as text");
                }
            }
        }
    }

    fn indexes_and_constraints(&mut self) {
        let names = self.facts.names();
        for index in &self.facts.indexes {
            let object = format!("index {}", index.name);
            // An index of a partitioned table is as valid as those that are attached to it.
            let table = self.facts.relation(index.relation);
            if !index.valid
                && table.is_none_or(|table| table.kind != RelationKind::PartitionedTable)
            {
                self.refuse(
                    &object,
                    "is not valid: CREATE INDEX or REINDEX CONCURRENTLY is building it, or was \
                        stopped before its end",
                    "wait if pg_stat_progress_create_index shows it; otherwise `pgshard migrate \
                        retry` if a migration was building it, or drop or REINDEX it",
                );
            }
            if index.constraint.is_none() && index.definition.contains(" NULLS NOT DISTINCT") {
                self.since(15, &object, "NULLS NOT DISTINCT");
            }
            if let Some(tablespace) = &index.tablespace {
                self.notes.push(format!(
                    "{object} is in tablespace {tablespace}; at the target it is put into the \
                        default one."
                ));
            }
        }
        for constraint in &self.facts.constraints {
            let object = names
                .get(&Address::new("pg_constraint", constraint.oid))
                .map_or_else(String::new, |name| name.plain.clone());
            let definition = &constraint.definition;
            let table = self.facts.relation(constraint.relation);
            if table.is_some_and(|table| table.kind == RelationKind::PartitionedTable) {
                match constraint.kind {
                    ConstraintKind::Exclusion => {
                        self.since(17, &object, "an exclusion over a partitioned table")
                    }
                    ConstraintKind::ForeignKey if !constraint.validated => {
                        self.since(
                            18,
                            &object,
                            "a foreign key of a partitioned table that is not valid",
                        );
                    }
                    _ => {}
                }
            }
            if !constraint.refers_inside {
                let remedy = "drop it: a shard must be closed, or writes could pass its fence";
                self.refuse(&object, "refers to a table outside the schema", remedy);
            }
            if constraint.type_ != 0 && !constraint.validated {
                // A domain checks a value whenever one is made of a text, of whatever age it is.
                let domain = self
                    .facts
                    .types
                    .iter()
                    .find(|one| one.oid == constraint.type_)
                    .map_or("…", |one| &one.name);
                let remedy = format!(
                    "ALTER DOMAIN {domain} VALIDATE CONSTRAINT {}",
                    constraint.name
                );
                self.refuse(
                    &object,
                    "is a domain's and not valid: values that do not fulfil it cannot be copied",
                    remedy,
                );
            }
            if definition.ends_with(" NOT ENFORCED") {
                self.since(18, &object, "NOT ENFORCED");
            }
            match constraint.kind {
                ConstraintKind::PrimaryKey | ConstraintKind::Unique => {
                    if definition.contains(" WITHOUT OVERLAPS)") {
                        self.since(18, &object, "WITHOUT OVERLAPS");
                    }
                    if definition.starts_with("UNIQUE NULLS NOT DISTINCT") {
                        self.since(15, &object, "NULLS NOT DISTINCT");
                    }
                }
                ConstraintKind::ForeignKey => {
                    if definition.contains(", PERIOD ") {
                        self.since(18, &object, "PERIOD");
                    }
                    if definition.contains("ON DELETE SET NULL (")
                        || definition.contains("ON DELETE SET DEFAULT (")
                    {
                        self.since(15, &object, "a list of columns to set");
                    }
                }
                ConstraintKind::Exclusion | ConstraintKind::Check => {}
            }
        }
    }

    fn functions(&mut self) {
        for function in &self.facts.functions {
            let object = format!("function {}({})", function.name, function.arguments);
            let by_hand = "drop it and let an administrator create it after the move";
            match function.kind.as_str() {
                "f" | "p" => {}
                "a" => continue,
                _ => self.refuse(
                    &object,
                    "is a window function, which is not carried",
                    by_hand,
                ),
            }
            if !function.trusted {
                let reason = format!(
                    "is written in {}, which only a superuser may use",
                    function.language
                );
                self.refuse(&object, reason, by_hand);
            }
            if function.leakproof || function.support {
                let what = if function.leakproof {
                    "LEAKPROOF"
                } else {
                    "a SUPPORT function"
                };
                self.refuse(
                    &object,
                    format!("has {what}, which only a superuser may set"),
                    "remove the setting",
                );
            }
            if function.bound {
                self.since(14, &object, "a body in SQL standard form");
            }
        }
    }

    fn statistics(&mut self) {
        for statistics in &self.facts.statistics {
            let columns = statistics.definition.split(" ON ").nth(1);
            if columns.is_some_and(|columns| columns.contains('(')) {
                self.since(
                    14,
                    &format!("statistics {}", statistics.name),
                    "expressions",
                );
            }
        }
    }

    fn types(&mut self) {
        for type_ in &self.facts.types {
            let object = format!("type {}", type_.name);
            let parts = type_
                .base
                .iter()
                .chain(type_.attributes.iter().map(|attribute| &attribute.type_));
            if let Some(part) = parts.into_iter().find(|part| is_reg(part)) {
                let reason = format!("is made of {part}, whose values are OIDs of this host");
                self.refuse(&object, reason, "keep names as text");
            }
            if let Some(name) = type_
                .chosen_not_null_name()
                .filter(|_| self.target.version < 170_000)
            {
                self.notes.push(format!(
                    "{object}: its NOT NULL loses the name {name}, as versions before 17 keep none \
                        of a domain's."
                ));
            }
            if type_.kind == TypeKind::Base {
                self.refuse(
                    &object,
                    "is a base type, which only a superuser can make",
                    "move it to a schema of its own",
                );
            }
            if type_.range.as_ref().is_some_and(|range| range.canonical) {
                self.refuse(
                    &object,
                    "has a canonical function, which only a superuser can make",
                    "move it to a schema of its own",
                );
            }
        }
    }

    fn collations(&mut self) {
        for text in self
            .facts
            .simple
            .iter()
            .filter(|text| text.kind == SimpleKind::Collation)
        {
            let object = format!("collation {}", text.name);
            if text.definition.contains(", RULES = ") {
                self.since(16, &object, "rules of its own");
            }
            if text.definition.starts_with("(PROVIDER = builtin") {
                self.since(17, &object, "the builtin provider");
            }
        }
    }

    fn default_privileges(&mut self) {
        let facts = self.facts;
        for privilege in &facts.default_privileges {
            if privilege.role != facts.reader {
                let reason = format!("has default privileges for what {} makes", privilege.role);
                let remedy = format!(
                    "revoke them: ALTER DEFAULT PRIVILEGES FOR ROLE {} … REVOKE",
                    privilege.role
                );
                self.refuse("schema", reason, remedy);
            }
            if privilege.privilege == "MAINTAIN" {
                self.since(17, "schema", "MAINTAIN granted by default");
            }
        }
    }

    fn others(&mut self) {
        for other in &self.facts.others {
            if other.kind.starts_with("publication") {
                self.notes
                    .push(format!("{}: a publication is not carried.", other.object));
                continue;
            }
            let verb = if other.kind == "security label" {
                "has"
            } else {
                "is"
            };
            let remedy = match other.kind.as_str() {
                "extension member" | "extension" => "keep the extension in a schema of its own",
                "extension dependent" => "remove it with ALTER … NO DEPENDS ON EXTENSION",
                "security label" => "remove it with SECURITY LABEL … IS NULL",
                kind if kind.contains(" of unknown kind ") => {
                    "move it with a later release of pgshard, or drop it"
                }
                _ => "drop it and create it after the move",
            };
            let reason = format!("{verb} {}, which is not carried", article(&other.kind));
            self.refuse(&other.object, reason, remedy);
        }
    }

    fn comments_and_grants(&mut self) {
        let names = self.facts.names();
        for comment in self
            .facts
            .comments
            .iter()
            .filter(|comment| !names.contains_key(&comment.on))
        {
            let object = format!(
                "comment {:?} on an object of {}",
                comment.text, comment.on.class
            );
            self.refuse(
                object,
                "is on something that has no statement of its own",
                "remove the comment",
            );
        }
        for grant in &self.facts.grants {
            let object = names
                .get(&grant.on)
                .map_or_else(|| grant.on.class.clone(), |name| name.plain.clone());
            if !names.contains_key(&grant.on) {
                self.refuse(&object, "has a grant that cannot be carried", "revoke it");
            }
            if let Some(grantor) = &grant.grantor {
                let reason = format!(
                    "has a {} that was granted by {grantor}, not by the owner",
                    grant.privilege
                );
                self.refuse(&object, reason, "grant it as the owner");
            }
            // Rows are copied, and keys and indexes made, as the owner.
            let dispensable =
                ["UPDATE", "DELETE", "TRUNCATE", "MAINTAIN"].contains(&grant.privilege.as_str());
            if grant.revoked && grant.grantee == Grantee::Owner && !dispensable {
                let remedy = "grant it to the owner again";
                let reason = format!(
                    "does not give its owner {}, which a move needs",
                    grant.privilege
                );
                self.refuse(&object, reason, remedy);
            }
            if grant.privilege == "MAINTAIN" {
                self.since(17, &object, "MAINTAIN granted");
            }
        }
    }

    /// Refuses functions that run while rows are copied and indexes are built, if their text names
    /// the shard. At that time the name still belongs to another schema, or to none.
    fn bodies_that_name_the_shard(&mut self) {
        let facts = self.facts;
        let names = facts.names();
        let filled = read_when_filled(facts);
        let evaluated = |address: &Address| match address.class.as_str() {
            "pg_class" => {
                facts.sequences.iter().all(|s| s.oid != address.oid)
                    && facts
                        .relation(address.oid)
                        .is_none_or(|r| r.kind.is_table() || filled.contains(&r.oid))
            }
            "pg_type" => true,
            "pg_constraint" => true,
            _ => false,
        };
        let function = |address: &Address| {
            facts
                .functions
                .iter()
                .find(|f| address.class == "pg_proc" && f.oid == address.oid)
        };
        for (user, used) in &facts.edges {
            let Some(first) = function(used).filter(|_| evaluated(user)) else {
                continue;
            };
            for reached in reached_from(facts, first) {
                let text = std::iter::once(&reached.body).chain(&reached.settings);
                let named = [self.target.final_schema, facts.schema.as_str()];
                if !text
                    .clone()
                    .any(|text| named.iter().any(|name| mentions(text, name)))
                    || reached.bound
                {
                    continue;
                }
                let object = names
                    .get(user)
                    .map_or_else(String::new, |name| name.plain.clone());
                let reason = format!(
                    "runs function {}({}) while rows are copied, and its text names {}",
                    reached.name, reached.arguments, self.target.final_schema
                );
                self.refusals.push(Refusal::new(
                    object,
                    reason,
                    "write the function so that it does not name the schema",
                ));
            }
        }
    }

    /// Refuses functions that compute values, and find others of the shard by the search_path. Rows
    /// are copied and changes applied with a path that has PostgreSQL's own schema only. With the
    /// shard's in it the mover's own statements would find what the shard has made, and what else
    /// the application has in its path is unknown. PostgreSQL itself builds indexes with such a
    /// path from 17 on.
    fn bodies_that_need_the_search_path(&mut self) {
        let facts = self.facts;
        let names = facts.names();
        let computes = |address: &Address| match address.class.as_str() {
            "pg_class" => {
                let is_table = facts
                    .relation(address.oid)
                    .is_some_and(|relation| relation.kind.is_table());
                is_table || facts.indexes.iter().any(|index| index.oid == address.oid)
            }
            class => class == "pg_type" || class == "pg_constraint",
        };
        let function = |address: &Address| {
            facts
                .functions
                .iter()
                .find(|f| address.class == "pg_proc" && f.oid == address.oid)
        };
        for (user, used) in &facts.edges {
            let Some(first) = function(used).filter(|_| computes(user)) else {
                continue;
            };
            for reached in reached_from(facts, first) {
                let has_path = reached
                    .settings
                    .iter()
                    .any(|setting| setting.starts_with("search_path="));
                let called = facts
                    .functions
                    .iter()
                    .find(|other| calls(&reached.body, &other.name));
                let Some(called) = called.filter(|_| !reached.bound && !has_path) else {
                    continue;
                };
                let object = names
                    .get(user)
                    .map_or_else(String::new, |name| name.plain.clone());
                let reason = format!(
                    "runs function {}({}) while rows are copied, which finds {}({}) by the \
                        search_path",
                    reached.name, reached.arguments, called.name, called.arguments
                );
                let remedy = "give it a body in SQL (RETURN …), which is bound to what it calls; \
                    or put both into one";
                self.refusals.push(Refusal::new(object, reason, remedy));
            }
        }
    }
}

/// The materialized views, and the views that are read while those are filled.
fn read_when_filled(facts: &Facts) -> BTreeSet<u32> {
    let is = |oid: u32, kind| {
        facts
            .relation(oid)
            .is_some_and(|relation| relation.kind == kind)
    };
    let materialized = facts
        .relations
        .iter()
        .filter(|one| one.kind == RelationKind::MaterializedView);
    let mut read: BTreeSet<u32> = materialized.map(|one| one.oid).collect();
    let mut next: Vec<u32> = read.iter().copied().collect();
    while let Some(reader) = next.pop() {
        let of_reader = facts
            .edges
            .iter()
            .filter(|(from, _)| from.class == "pg_class" && from.oid == reader);
        let views =
            of_reader.filter(|(_, to)| to.class == "pg_class" && is(to.oid, RelationKind::View));
        next.extend(
            views
                .map(|(_, to)| to.oid)
                .filter(|oid| read.insert(*oid))
                .collect::<Vec<_>>(),
        );
    }
    read
}

/// The function and every function of the schema that it may call: those it is bound to, and those
/// that its text names.
fn reached_from<'f>(facts: &'f Facts, first: &'f Function) -> Vec<&'f Function> {
    let mut reached = vec![first];
    let mut seen = BTreeSet::from([first.oid]);
    let mut at = 0;
    while let Some(&function) = reached.get(at) {
        at += 1;
        let from = Address::new("pg_proc", function.oid);
        for next in &facts.functions {
            let bound = facts
                .edges
                .iter()
                .any(|(a, b)| *a == from && b.class == "pg_proc" && b.oid == next.oid);
            if (bound || mentions(&function.body, &next.name)) && seen.insert(next.oid) {
                reached.push(next);
            }
        }
    }
    reached
}

/// Whether a type, or an array of it, is one of the `reg…` types. Their values are OIDs of this
/// host.
fn is_reg(type_name: &str) -> bool {
    let kinds = [
        "class",
        "type",
        "proc",
        "procedure",
        "oper",
        "operator",
        "role",
        "namespace",
        "config",
        "dictionary",
        "collation",
        "database",
    ];
    let plain = type_name.trim_end_matches("[]");
    // It is qualified where a table of the shard hides it.
    let plain = plain.strip_prefix("pg_catalog.").unwrap_or(plain);
    plain
        .strip_prefix("reg")
        .is_some_and(|kind| kinds.contains(&kind))
}

/// The value of a catalog's column, unless it is one of these letters: then nothing.
fn known<'v>(value: &'v str, letters: &str) -> &'v str {
    let mut all = value.chars();
    match (all.next(), all.next()) {
        (Some(letter), None) if letters.contains(letter) => "",
        _ => value,
    }
}

fn article(kind: &str) -> String {
    let vowel = kind.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {kind}", if vowel { "an" } else { "a" })
}

/// Whether the text contains the name as a word, in any case.
fn mentions(text: &str, name: &str) -> bool {
    let (text, name) = (text.to_lowercase(), name.to_lowercase());
    let word = |c: char| c == '_' || c == '$' || c.is_alphanumeric();
    !name.is_empty()
        && text.match_indices(&name).any(|(at, found)| {
            let (before, after) = (
                text[..at].chars().next_back(),
                text[at + found.len()..].chars().next(),
            );
            !before.is_some_and(word) && !after.is_some_and(word)
        })
}

/// Whether the text calls a function of this name, without saying in which schema.
fn calls(text: &str, name: &str) -> bool {
    let (text, name) = (text.to_lowercase(), name.to_lowercase());
    let word = |c: char| c == '_' || c == '$' || c == '.' || c.is_alphanumeric();
    !name.is_empty()
        && text.match_indices(&name).any(|(at, found)| {
            let (before, after) = (&text[..at], &text[at + found.len()..]);
            let before = before.strip_suffix('"').unwrap_or(before).trim_end();
            let after = after.strip_prefix('"').unwrap_or(after).trim_start();
            let is_word = text[..at].chars().next_back().is_some_and(word);
            !is_word && !before.ends_with('.') && after.starts_with('(')
        })
}

#[cfg(test)]
mod tests {
    use super::{calls, is_reg, mentions};

    #[test]
    fn calls_of_functions() {
        for (text, expected) in [
            ("BEGIN RETURN h($1); END", true),
            ("select \"h\" (1)", true),
            ("SELECT H (1)", true),
            ("select public.h(1)", false),
            ("select public.\"h\"(1)", false),
            ("select oh(1), h_(2), h", false),
            ("h", false),
        ] {
            assert_eq!(calls(text, "h"), expected, "{text}");
        }
    }

    #[test]
    fn types_that_hold_oids() {
        for (name, expected) in [
            ("regclass", true),
            ("regtype[]", true),
            ("pg_catalog.regtype", true),
            ("region", false),
            ("s.regclass", false),
        ] {
            assert_eq!(is_reg(name), expected, "{name}");
        }
    }

    #[test]
    fn a_name_is_found_as_a_whole_word() {
        for (text, name, expected) in [
            ("select nextval('shard_0007.s')", "shard_0007", true),
            ("select \"SHARD_0007\".f()", "shard_0007", true),
            ("select shard_00071.f()", "shard_0007", false),
            ("select xshard_0007.f()", "shard_0007", false),
            ("shard_0007", "shard_0007", true),
            ("", "shard_0007", false),
            ("anything", "", false),
        ] {
            assert_eq!(mentions(text, name), expected, "{name} in {text}");
        }
    }
}
