//! Takes back what was done, by the record: the tables first, which both paths lead to, then the
//! paths, then the schema.

use super::moving;
use super::outside::{self, Relation};
use super::path;
use super::prepared::{self, schemas_of};
use super::record::{self, Record, SetPath};
use super::refuse;
use super::request::SeparateRequest;
use super::settings;
use super::steps;
use crate::import::change::{
    ChangeError, ChangeEvent, Observer, Refusal, Session, StepKind, record as records,
};
use crate::import::keys::moved;
use crate::import::read;
use crate::pg::{ConnectOptions, quote_ident, quote_literal};

/// Takes everything back, and returns the tables that have moved.
pub(super) async fn undo(
    connect: &ConnectOptions,
    session: &Session,
    request: &SeparateRequest,
    observer: Observer<'_>,
) -> Result<Vec<String>, ChangeError> {
    let Some(known) = record::read(session).await? else {
        records::drop_if_empty(session, record::TABLE).await?;
        return Ok(Vec::new());
    };
    if known.new_schema != request.schema {
        let refusal = Refusal::new(
            format!("schema {}", known.new_schema),
            "is the one that the run began with",
            "name it (--schema)",
        );
        let refusals = vec![refusal];
        return Err(ChangeError::Refused { refusals });
    }
    let relations = inside(connect, session, &known).await?;
    let relations: Vec<&Relation> = relations.iter().collect();
    let database = session.value("find the database", "SELECT to_json(current_database())");
    let database: String = database.await?.unwrap_or_default();
    let restored = restored(session, &known, &database).await?;
    refuse_what_stays(session, &known, &relations, &restored).await?;
    let step = |object: &str| {
        observer(ChangeEvent::Step {
            object: object.to_owned(),
            step: StepKind::Undo,
        });
    };
    if !relations.is_empty() {
        step(&known.new_schema);
        let names = prepared::named_now(session, &request.change, Some(&known)).await?;
        let old = &known.old_schema;
        let schemas = schemas_of(&relations, old);
        let functions = moved::functions(connect, session, &names, &schemas).await?;
        let sql = moving::sql(&relations, &known.new_schema, old, &functions);
        let what = "move the tables back";
        moving::move_at_once(session, what, &relations, &sql, observer).await?;
    }
    if !known.paths.is_empty() {
        step("search_path");
        let mut sql: Vec<String> = restored.iter().map(|one| one.sql.clone()).collect();
        sql.push("UPDATE pgshard_import.separate SET paths = '[]', paths_at = NULL".to_owned());
        // It locks nothing of the application's. The session's own path ends with the transaction.
        let sql = format!("BEGIN; {}; COMMIT", sql.join("; "));
        session.execute("restore search_path", &sql).await?;
    }
    step(&known.new_schema);
    let mut sql = if known.makes_schema {
        let schema = quote_ident(&known.new_schema);
        vec![format!("DROP SCHEMA IF EXISTS {schema}")]
    } else {
        steps::revoke(&known.new_schema, &known.grants)
    };
    sql.push("DELETE FROM pgshard_import.separate".to_owned());
    let sql = format!("BEGIN; {}; COMMIT", sql.join("; "));
    session.execute("drop the schema", &sql).await?;
    records::drop_if_empty(session, record::TABLE).await?;
    Ok(relations.iter().map(|one| one.name.clone()).collect())
}

/// The tables of the new schema: nothing was there before.
async fn inside(
    connect: &ConnectOptions,
    session: &Session,
    known: &Record,
) -> Result<Vec<Relation>, ChangeError> {
    let sql = format!(
        "SELECT to_json(c.oid::int8) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = {} AND c.relkind IN ('r', 'p') AND NOT c.relispartition",
        quote_literal(&known.new_schema)
    );
    let roots: Vec<u32> = session.values("find the tables", &sql).await?;
    let connection = read::open(connect).await?;
    let roots = roots.into_iter().collect();
    let mut relations = outside::relations(connection.client(), &roots).await?;
    connection.finish().await;
    relations.retain(|one| one.schema == known.new_schema);
    Ok(relations)
}

/// A setting that comes back.
struct Restored {
    role: Option<String>,
    /// `ALTER ROLE …`, for people.
    shown: String,
    /// What is done.
    sql: String,
}

/// The settings as they were, exactly; those that were changed since lose the schema.
async fn restored(
    session: &Session,
    known: &Record,
    database: &str,
) -> Result<Vec<Restored>, ChangeError> {
    let settings = settings::read(session).await?;
    let mut all = Vec::new();
    for set in &known.paths {
        let current = settings
            .iter()
            .find(|one| one.in_database && one.role == set.role);
        let Some(current) = current else {
            continue;
        };
        let current = path::parse(&current.path);
        let alter = settings::alter(set.role.as_deref(), database);
        let (shown, sql) = if current == set.path {
            back(set, &alter)
        } else if current.contains(&known.new_schema) {
            let left = current.into_iter().filter(|one| *one != known.new_schema);
            let left: Vec<String> = left.collect();
            let sql = settings::statement(set.role.as_deref(), database, &left);
            (sql.clone(), sql)
        } else {
            continue;
        };
        all.push(Restored {
            role: set.role.clone(),
            shown,
            sql,
        });
    }
    Ok(all)
}

/// Sets a path to the very text that it was.
fn back(set: &SetPath, alter: &str) -> (String, String) {
    match &set.former {
        None => {
            let sql = format!("{alter} RESET search_path");
            (sql.clone(), sql)
        }
        Some(former) => (
            format!(
                "{alter} SET search_path = {}",
                path::sql(&path::parse(former))
            ),
            format!(
                "SELECT set_config('search_path', {}, true); {alter} SET search_path FROM CURRENT",
                quote_literal(former)
            ),
        ),
    }
}

/// A schema from which an unsharded host serves its shards.
async fn served(session: &Session, schema: &str) -> Result<Option<Refusal>, ChangeError> {
    let what = "find what serves the schema";
    let there = "SELECT to_json(to_regclass('pgshard.whole') IS NOT NULL)";
    if session.value::<bool>(what, there).await? != Some(true) {
        return Ok(None);
    }
    let sql = format!(
        "SELECT to_json(true) FROM pgshard.whole WHERE schema_name = {}",
        quote_literal(schema)
    );
    let serves: Option<bool> = session.value(what, &sql).await?;
    Ok(serves.map(|_| {
        Refusal::new(
            format!("schema {schema}"),
            "serves the shards of an unsharded host",
            "end the programs that use it, then DROP SCHEMA pgshard CASCADE",
        )
    }))
}

/// Refuses what cannot be taken back, before anything is changed.
async fn refuse_what_stays(
    session: &Session,
    known: &Record,
    relations: &[&Relation],
    restored: &[Restored],
) -> Result<(), ChangeError> {
    let mut refusals = Vec::new();
    refusals.extend(served(session, &known.new_schema).await?);
    let old = quote_ident(&known.old_schema);
    let sql = format!(
        "SELECT to_json(pg_describe_object(d.classid, d.objid, 0)) FROM pg_depend d
        WHERE d.refclassid = 'pg_namespace'::regclass AND d.deptype = 'n'
            AND d.refobjid = (SELECT oid FROM pg_namespace WHERE nspname = {})
            AND d.classid <> 'pg_statistic_ext'::regclass
            AND NOT (d.classid = 'pg_class'::regclass AND EXISTS (SELECT FROM pg_class c
                WHERE c.oid = d.objid AND (c.relkind IN ('r', 'p') OR c.relkind = 'S' AND EXISTS
                    (SELECT FROM pg_depend o WHERE o.classid = 'pg_class'::regclass
                        AND o.objid = c.oid AND o.deptype IN ('a', 'i')
                        AND o.refclassid = 'pg_class'::regclass))))
        ORDER BY d.classid, d.objid",
        quote_literal(&known.new_schema)
    );
    let others: Vec<String> = session.values("find what is in the schema", &sql).await?;
    refusals.extend(others.into_iter().map(|object| {
        let remedy = format!("ALTER … SET SCHEMA {old}, or drop it");
        let reason = format!("is in schema {}, and not of this command", known.new_schema);
        Refusal::new(object, reason, remedy)
    }));
    let sql = format!(
        "SELECT to_json(has_schema_privilege(oid, 'CREATE')) FROM pg_namespace WHERE nspname = {}",
        quote_literal(&known.old_schema)
    );
    let may_create: Option<bool> = session.value("read the rights on the schema", &sql).await?;
    if may_create != Some(true) && !relations.is_empty() {
        refusals.push(Refusal::new(
            format!("schema {}", known.old_schema),
            "is gone, or this role may create nothing there",
            format!("CREATE SCHEMA {old}, or GRANT CREATE ON it to this role"),
        ));
    }
    for relation in relations.iter().filter(|one| !one.owned) {
        refusals.push(Refusal::new(
            format!("{}.{}", relation.schema, relation.name),
            format!("belongs to role {}", relation.owner),
            "run it as that role or a superuser",
        ));
    }
    let oids: Vec<String> = relations.iter().map(|one| one.oid.to_string()).collect();
    let clashes = outside::clashes_sql(&format!("{{{}}}", oids.join(",")), &known.old_schema);
    let clashes: Vec<String> = session.values("find names of tables", &clashes).await?;
    refusals.extend(clashes.into_iter().map(|name| {
        let object = format!("{}.{name}", known.old_schema);
        Refusal::new(
            object,
            "has the name of something that moves there",
            "rename one of them",
        )
    }));
    for one in restored {
        if !settings::may_run(session, &one.shown).await? {
            refusals.push(refuse::may_not_set(one.role.as_deref(), &one.shown));
        }
    }
    if refusals.is_empty() {
        Ok(())
    } else {
        Err(ChangeError::Refused { refusals })
    }
}
