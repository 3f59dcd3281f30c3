//! What is there, read before each step.

use std::collections::{BTreeMap, BTreeSet};

use super::border::Border;
use super::outside::{self, Outside, Relation};
use super::path::{Need, Schemas};
use super::record::{self, Grant, Record};
use super::request::{PathChange, SeparateRequest};
use super::sessions;
use super::settings::{self, Path};
use crate::import::change::{Blocker, ChangeError, ChangeRequest, Session};
use crate::import::decide::Decisions;
use crate::import::decided;
use crate::import::facts::Database;
use crate::import::obstacle::Kind;
use crate::import::read::{self, Added};
use crate::import::statements;
use crate::pg::{ConnectOptions, quote_literal};

/// A database, and how far its tables are separated.
pub(super) struct Prepared {
    pub(super) database: Database,
    pub(super) decisions: Decisions,
    pub(super) outside: Outside,
    pub(super) record: Option<Record>,
    /// The former schema and the new one.
    pub(super) old: String,
    pub(super) new: String,
    /// Whether the new schema is there.
    pub(super) exists: bool,
    /// Whether something is in it.
    pub(super) is_used: bool,
    /// The rights on the former schema that the new one does not have.
    pub(super) grants: Vec<Grant>,
    /// The imported tables with their partitions.
    pub(super) relations: Vec<Relation>,
    pub(super) paths: Vec<Path>,
    /// Sessions that began before the path was set; all, if it is not.
    pub(super) sessions: Vec<Blocker>,
    search_path: PathChange,
    /// How many statements name a schema, with one of them, if that was read.
    statements: Vec<String>,
    /// Roles with sessions that show no time of beginning.
    pub(super) hidden: Vec<String>,
}

/// The names of a request as they are now: what it finds in the former schema may have moved.
pub(super) async fn named_now(
    session: &Session,
    request: &ChangeRequest,
    record: Option<&Record>,
) -> Result<ChangeRequest, ChangeError> {
    let mut request = request.clone();
    let Some(record) = record else {
        return Ok(request);
    };
    let sql = format!(
        "SELECT to_json(c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = {} AND c.relkind IN ('r', 'p')",
        quote_literal(&record.new_schema)
    );
    let moved: Vec<String> = session.values("find the tables", &sql).await?;
    let rename = |schema: &mut Option<String>, table: &String| {
        if schema.as_ref() == Some(&record.old_schema) && moved.contains(table) {
            *schema = Some(record.new_schema.clone());
        }
    };
    let choices = &mut request.choices;
    rename(&mut request.key.schema, &request.key.table);
    for name in choices.stays.iter_mut().chain(&mut choices.references) {
        rename(&mut name.schema, &name.table);
    }
    for name in &mut choices.by {
        rename(&mut name.schema, &name.table);
    }
    Ok(request)
}

/// Reads everything, in a session that only reads and in the one that has the lock.
pub(super) async fn prepare(
    connect: &ConnectOptions,
    session: &Session,
    request: &SeparateRequest,
) -> Result<Prepared, ChangeError> {
    let record = record::read(session).await?;
    let names = named_now(session, &request.change, record.as_ref()).await?;
    let connection = read::open(connect).await?;
    let client = connection.client();
    let read = decided::read(client, &names.key, &names.choices, Added::Shown);
    let (database, decisions) = read.await?;
    let key_table = database.tables.get(&database.key.table);
    let key_schema = key_table.map_or_else(String::new, |table| table.schema.clone());
    let old = record
        .as_ref()
        .map_or(key_schema, |record| record.old_schema.clone());
    let new = request.schema.clone();
    let imported = decisions.iter();
    let imported = imported.filter(|(_, decision)| decision.is_imported());
    let imported: BTreeSet<u32> = imported.map(|(oid, _)| *oid).collect();
    let relations = outside::relations(client, &imported).await?;
    let moving = relations.iter().filter(|relation| relation.schema != new);
    let moving: BTreeSet<u32> = moving.map(|relation| relation.oid).collect();
    let outside = outside::read(client, &database.server, &old, &new, &moving).await?;
    connection.finish().await;
    let schemas = Schemas {
        old: &old,
        new: &new,
    };
    let paths = settings::paths(session, &database.server.role, schemas).await?;
    let state = SchemaState::read(session, &new).await?;
    let began = record
        .as_ref()
        .and_then(|record| record.paths_at.as_deref());
    let sessions = sessions::before(session, began, &imported).await?;
    let hidden = sessions::hidden(session).await?;
    Ok(Prepared {
        grants: missing_grants(session, &old, &new).await?,
        database,
        decisions,
        outside,
        record,
        old,
        new,
        exists: state.exists,
        is_used: state.is_used,
        relations,
        paths,
        sessions,
        search_path: request.search_path,
        statements: Vec::new(),
        hidden,
    })
}

/// Whether a schema is there, and something in it.
struct SchemaState {
    exists: bool,
    is_used: bool,
}

impl SchemaState {
    async fn read(session: &Session, schema: &str) -> Result<SchemaState, ChangeError> {
        let sql = format!(
            "SELECT to_json(EXISTS (SELECT FROM pg_depend d
                WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid
                    AND NOT (d.classid = 'pg_class'::regclass AND EXISTS (SELECT FROM pg_class c
                        WHERE c.oid = d.objid AND c.relkind = 'v'))))
            FROM pg_namespace n WHERE n.nspname = {}",
            quote_literal(schema)
        );
        let found: Option<bool> = session.value("find the schema", &sql).await?;
        Ok(SchemaState {
            exists: found.is_some(),
            is_used: found == Some(true),
        })
    }
}

/// The rights on a schema that another does not have.
async fn missing_grants(
    session: &Session,
    old: &str,
    new: &str,
) -> Result<Vec<Grant>, ChangeError> {
    let sql = format!(
        "SELECT json_build_object('role', r.rolname, 'privilege', a.privilege_type,
            'grantable', bool_or(a.is_grantable))
        FROM pg_namespace n CROSS JOIN
            aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
        LEFT JOIN pg_roles r ON r.oid = a.grantee
        WHERE n.nspname = {} AND (a.grantee = 0 OR r.oid IS NOT NULL)
            AND a.grantee <> coalesce((SELECT nspowner FROM pg_namespace WHERE nspname = {1}),
                (SELECT oid FROM pg_roles WHERE rolname = current_user))
            AND NOT EXISTS (SELECT FROM pg_namespace m CROSS JOIN
                    aclexplode(coalesce(m.nspacl, acldefault('n', m.nspowner))) b
                WHERE m.nspname = {1} AND b.grantee = a.grantee
                    AND b.privilege_type = a.privilege_type
                    AND (b.is_grantable OR NOT a.is_grantable))
        GROUP BY r.rolname, a.privilege_type
        ORDER BY r.rolname COLLATE \"C\" NULLS FIRST, a.privilege_type",
        quote_literal(old),
        quote_literal(new)
    );
    session.values("read the rights on the schema", &sql).await
}

impl Prepared {
    pub(super) fn border(&self) -> Border<'_> {
        Border {
            database: &self.database,
            decisions: &self.decisions,
            outside: &self.outside,
            schemas: Schemas {
                old: &self.old,
                new: &self.new,
            },
        }
    }

    /// The relations that have to move.
    pub(super) fn moving(&self) -> Vec<&Relation> {
        let relations = self.relations.iter();
        relations.filter(|one| one.schema != self.new).collect()
    }

    /// Whether `search_path` is set here.
    pub(super) fn sets_path(&self) -> bool {
        self.search_path == PathChange::Set
    }

    /// The paths that have to be set.
    pub(super) fn paths_to_set(&self) -> impl Iterator<Item = &Path> {
        let paths = self.paths.iter().filter(|_| self.sets_path());
        paths.filter(|path| matches!(path.need, Need::Path(_)))
    }

    /// Reads what statements are known to name a schema: for the warnings.
    pub(super) async fn read_statements(
        &mut self,
        connect: &ConnectOptions,
    ) -> Result<(), ChangeError> {
        if self.moving().is_empty() {
            return Ok(());
        }
        let connection = read::open(connect).await?;
        let (client, database) = (connection.client(), &self.database);
        let judged = statements::read_and_judge(client, database, &self.decisions, None).await?;
        connection.finish().await;
        let found = judged.map(|(_, found)| found).unwrap_or_default();
        let found = found.into_iter();
        let found = found.filter(|one| one.kind == Kind::StatementsWithSchema);
        self.statements = found
            .map(|one| format!("{}, {}", one.object, one.detail))
            .collect();
        Ok(())
    }

    /// What to know.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = self.border().warnings();
        let found = self.statements.iter();
        warnings.extend(found.map(|text| format!("statements name the schema of tables: {text}")));
        if !self.sets_path() && !self.moving().is_empty() {
            warnings.push(format!(
                "search_path is left to you: each session must have {} in it, before {}",
                self.new, self.old
            ));
        }
        if self.sets_path() {
            let from = self.paths.first().filter(|path| path.former.is_none());
            let hides = self.paths.iter().any(|path| {
                path.role.as_ref() == Some(&self.database.server.role) && path.role.is_some()
            });
            if from.is_some_and(|path| path.statement("").is_some()) && hides {
                warnings.push(
                    "this role has a search_path of its own: that of the server is taken for \
                     PostgreSQL's default"
                        .to_owned(),
                );
            }
        }
        warnings
    }
}

/// The schemas that tables will have, by table.
pub(super) fn schemas_of(relations: &[&Relation], schema: &str) -> BTreeMap<u32, String> {
    let relations = relations.iter();
    relations.map(|one| (one.oid, schema.to_owned())).collect()
}
