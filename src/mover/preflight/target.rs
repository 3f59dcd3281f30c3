//! What a schema needs from the host that it is moved to.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::mover::control::session::Session;
use crate::mover::definition::refusal::Refusal;
use crate::mover::protocol::error::Error;
use crate::pg::quote_ident;
use crate::schema::catalog::{Facts, Grantee, SimpleKind};

/// What is missing at the target for the schema of `facts`: types, functions and other outside
/// objects that it uses, and roles that have grants. It also finds what the target would add:
/// default privileges of the connecting role. Empty if there is nothing of the kind.
///
/// # Errors
/// When the server refuses.
///
/// # Cancel safety
/// Only reads.
pub(crate) async fn missing_at_target<C: GenericClient + Sync>(
    client: &C,
    facts: &Facts,
) -> Result<Vec<Refusal>, tokio_postgres::Error> {
    let required = required_objects(facts);
    let (kinds, names) = kinds_and_names(&required);
    let parameters: &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)] =
        &[(&kinds, Type::TEXT_ARRAY), (&names, Type::TEXT_ARRAY)];
    let rows = client
        .query_typed(include_str!("../definition/sql/missing.sql"), parameters)
        .await?;
    let mut refusals = Vec::new();
    for row in rows {
        // The number of what is missing, counted from 1.
        let at: i64 = row.try_get(0)?;
        let Some(required) = position(at, &required).map(|at| &required[at]) else {
            continue;
        };
        let remedy = match (&required.extension, required.kind.as_str()) {
            (Some(extension), _) => {
                format!(
                    "create it at the target with CREATE EXTENSION {extension}, in the same schema"
                )
            }
            (None, "role") => "create the role at the target, or revoke the grant".to_owned(),
            (None, _) => "create it at the target".to_owned(),
        };
        let reason = format!(
            "needs {} {}, which the target does not have",
            required.kind, required.name
        );
        refusals.push(Refusal::new(required.used_by.clone(), reason, remedy));
    }
    let defaults = "SELECT count(*) FROM pg_catalog.pg_default_acl
        WHERE defaclnamespace = 0 AND defaclrole = (SELECT oid FROM pg_catalog.pg_roles WHERE \
        rolname = current_user)";
    let defaults = client.query_typed(defaults, &[]).await?;
    let count: i64 = defaults.first().map_or(Ok(0), |row| row.try_get(0))?;
    if count > 0 {
        refusals.push(Refusal::new(
            "the connecting role",
            "has default privileges at the target, which would be added to the shard's objects",
            "remove them there with ALTER DEFAULT PRIVILEGES … REVOKE",
        ));
    }
    if let Some(forced) = facts
        .relations
        .iter()
        .find(|relation| relation.force_row_security)
    {
        let sql = "SELECT rolname::text, rolsuper OR rolbypassrls FROM pg_catalog.pg_roles WHERE \
            rolname = current_user";
        for row in client.query_typed(sql, &[]).await? {
            let (role, bypasses): (String, bool) = (row.try_get(0)?, row.try_get(1)?);
            if !bypasses {
                refusals.push(Refusal::new(
                    format!("table {}", forced.name),
                    format!(
                        "has row level security that is forced, so that rows could be hidden \
                        from {role}"
                    ),
                    format!(
                        "ALTER ROLE {role} BYPASSRLS, or ALTER TABLE … NO FORCE ROW LEVEL \
                        SECURITY at the source"
                    ),
                ));
            }
        }
    }
    refusals.sort();
    refusals.dedup();
    Ok(refusals)
}

/// The schemas with operators that a shard needs in which only the session's role and superusers
/// can create objects at its host.
///
/// Locks: none but ACCESS SHARE on catalogs.
pub(in crate::mover) async fn closed_schemas(
    session: &Session,
    facts: &Facts,
) -> Result<Vec<String>, Error> {
    let names: BTreeSet<&str> = facts
        .operators
        .iter()
        .map(|(_, schema)| schema.as_str())
        .collect();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<&str> = names.into_iter().collect();
    // Schema public belongs to pg_database_owner, which represents the owner of the database.
    let sql = "SELECT n.nspname::text FROM pg_namespace n
        WHERE n.nspname = ANY ($1) AND NOT EXISTS (
            SELECT FROM (
                SELECT n.nspowner
                UNION
                SELECT a.grantee FROM aclexplode(n.nspacl) a WHERE a.privilege_type = 'CREATE'
            ) AS m(role)
            LEFT JOIN pg_roles r ON r.oid = CASE m.role WHEN to_regrole('pg_database_owner')
                THEN (SELECT datdba FROM pg_database WHERE datname = current_database())
                ELSE m.role END
            WHERE r.rolname IS DISTINCT FROM current_user AND r.rolsuper IS NOT TRUE)
        ORDER BY 1";
    let rows = session
        .rows("reading who may make operators", sql, &[&names])
        .await?;
    rows.iter().map(|row| row.get(0)).collect()
}

/// Whether a role may connect (`None`) or use a schema at one host, with the name of the host's
/// database.
type Rights = BTreeMap<(String, Option<String>), (bool, String)>;

/// What roles with grants in the shard may do at the source but not at the target: connect, and use
/// the schemas that the shard's objects need.
pub(in crate::mover) async fn rights_missing(
    source: &Session,
    target: &Session,
    facts: &Facts,
) -> Result<Vec<Refusal>, Error> {
    let required = required_objects(facts);
    let (roles, objects): (Vec<_>, Vec<_>) = required
        .iter()
        .partition(|required| required.kind == "role");
    let names = |list: &[&RequiredObject]| {
        list.iter()
            .map(|required| required.name.clone())
            .collect::<Vec<_>>()
    };
    let (roles, objects) = (names(&roles), names(&objects));
    let (here, there) = tokio::try_join!(
        rights(source, &roles, &objects),
        rights(target, &roles, &objects)
    )?;
    let lost = there
        .into_iter()
        .filter(|(what, (may, _))| !may && here.get(what).is_some_and(|(may, _)| *may));
    Ok(lost
        .map(|((role, schema), (_, database))| {
            let (may, grant) = match schema {
                Some(schema) => (
                    format!("use schema {schema} on"),
                    format!("USAGE ON SCHEMA {}", quote_ident(&schema)),
                ),
                None => (
                    "connect to".to_owned(),
                    format!("CONNECT ON DATABASE {}", quote_ident(&database)),
                ),
            };
            let reason = format!("may {may} {}, but not at the target", source.host);
            Refusal::new(
                format!("role {role}"),
                reason,
                format!("GRANT {grant} TO {}", quote_ident(&role)),
            )
        })
        .collect())
}

/// Locks: none but ACCESS SHARE on catalogs.
async fn rights(session: &Session, roles: &[String], objects: &[String]) -> Result<Rights, Error> {
    let sql = "SELECT rolname::text, NULL::text, pg_catalog.has_database_privilege(oid, \
        pg_catalog.current_database(),
            'CONNECT'),
            pg_catalog.current_database()::text
        FROM pg_catalog.pg_roles WHERE rolname = ANY($1)
        UNION ALL
        SELECT r.rolname::text, n.nspname::text, pg_catalog.has_schema_privilege(r.oid, n.oid, \
        'USAGE'),
            pg_catalog.current_database()::text
        FROM pg_catalog.pg_roles r, pg_catalog.pg_namespace n
        WHERE r.rolname = ANY($1) AND EXISTS (SELECT FROM pg_catalog.unnest($2::text[]) AS o(name)
            WHERE pg_catalog.starts_with(o.name, pg_catalog.quote_ident(n.nspname) || '.'))";
    let rows = session
        .rows("reading the roles' rights", sql, &[&roles, &objects])
        .await?;
    rows.iter()
        .map(|row| Ok(((row.get(0)?, row.get(1)?), (row.get(2)?, row.get(3)?))))
        .collect()
}

/// The owners, at the target, of the objects that a shard needs from outside of it. An object that
/// another role has created there, by the name of something that is missing, would run as the role
/// that copies rows, builds indexes or writes.
///
/// Locks: none but ACCESS SHARE on catalogs.
pub(in crate::mover) async fn strangers_objects(
    source: &Session,
    target: &Session,
    facts: &Facts,
) -> Result<Vec<Refusal>, Error> {
    let required = required_objects(facts);
    let (here, there) = tokio::try_join!(owners(source, &required), owners(target, &required))?;
    let foreign = there
        .into_iter()
        .filter(|(_, owner)| !owner.trusted)
        .filter_map(|(at, owner)| {
            let same = here.get(&at).is_some_and(|here| here.name == owner.name);
            (!same).then(|| (&required[at], owner.name, here.get(&at)))
        });
    Ok(foreign
        .map(|(required, owner, here)| {
            let RequiredObject {
                kind,
                name,
                used_by,
                ..
            } = required;
            let whose = here.map_or_else(|| "no role".to_owned(), |here| here.name.clone());
            let reason = format!(
                "uses {kind} {name}, which belongs to {owner} at the target and to {whose} at {}: \
                    it would run as whoever writes",
                source.host
            );
            let remedy = "look at what it does there; give it to the same role on both hosts, or \
                create it anew";
            Refusal::new(used_by.clone(), reason, remedy)
        })
        .collect())
}

/// Types outside the shard with stored values that mean something else at the target, though they
/// have the same text: a row type with its attributes in another order, an enum with other labels.
///
/// Locks: none but ACCESS SHARE on catalogs.
pub(in crate::mover) async fn other_meanings(
    source: &Session,
    target: &Session,
    facts: &Facts,
) -> Result<Vec<Refusal>, Error> {
    let required = required_objects(facts);
    let (here, there) = tokio::try_join!(meanings(source, &required), meanings(target, &required))?;
    // What is missing at the target has been refused for that, or shows in the type that is made of
    // it.
    let both = here
        .into_iter()
        .filter_map(|(type_, ours)| there.get(&type_).map(|theirs| (type_, ours, theirs)));
    let differ = both.filter(|(_, ours, theirs)| ours != *theirs);
    Ok(differ
        .map(|((at, type_), ours, theirs)| {
            let reason = format!(
                "uses type {type_}, which has {ours} at {} and {theirs} at the target",
                source.host
            );
            let remedy =
                format!("make {type_} the same on both hosts: values would change what they mean");
            Refusal::new(required[at].used_by.clone(), reason, remedy)
        })
        .collect())
}

/// What the types among these mean on a host, and those that they are made of: by the place in the
/// list and the name.
///
/// Locks: none but ACCESS SHARE on catalogs.
async fn meanings(
    session: &Session,
    required: &[RequiredObject],
) -> Result<BTreeMap<(usize, String), String>, Error> {
    let (kinds, names) = kinds_and_names(required);
    let sql = include_str!("../definition/sql/meanings.sql");
    let mut meanings = BTreeMap::new();
    for row in &session
        .rows("reading what the types mean", sql, &[&kinds, &names])
        .await?
    {
        let at: i64 = row.get(0)?;
        let Some(at) = position(at, required) else {
            continue;
        };
        meanings.insert((at, row.get(1)?), row.get(2)?);
    }
    Ok(meanings)
}

/// The owner of something that a shard needs.
struct Owner {
    name: String,
    /// Whether the current role may trust what it does.
    trusted: bool,
}

/// The owners of what exists of these on a host, by their places in the list.
///
/// Locks: none but ACCESS SHARE on catalogs.
async fn owners(
    session: &Session,
    required: &[RequiredObject],
) -> Result<BTreeMap<usize, Owner>, Error> {
    let (kinds, names) = kinds_and_names(required);
    let sql = include_str!("../definition/sql/owners.sql");
    let rows = session
        .rows("reading their owners", sql, &[&kinds, &names])
        .await?;
    let mut owners = BTreeMap::new();
    for row in &rows {
        let at: i64 = row.get(0)?;
        let Some(at) = position(at, required) else {
            continue;
        };
        owners.insert(
            at,
            Owner {
                name: row.get(1)?,
                trusted: row.get(2)?,
            },
        );
    }
    Ok(owners)
}

struct RequiredObject {
    kind: String,
    name: String,
    used_by: String,
    extension: Option<String>,
}

/// The parameters of the queries for these objects.
fn kinds_and_names(required: &[RequiredObject]) -> (Vec<&str>, Vec<&str>) {
    let pairs = required
        .iter()
        .map(|one| (one.kind.as_str(), one.name.as_str()));
    pairs.unzip()
}

/// The place in the list of an object that a query numbers from 1.
fn position(number: i64, required: &[RequiredObject]) -> Option<usize> {
    let at = usize::try_from(number.checked_sub(1)?).ok()?;
    (at < required.len()).then_some(at)
}

fn required_objects(facts: &Facts) -> Vec<RequiredObject> {
    let mut required = Vec::new();
    let mut seen = BTreeSet::new();
    let mut want = |kind: &str, name: &str, used_by: String, extension: Option<String>| {
        if seen.insert((kind.to_owned(), name.to_owned())) {
            required.push(RequiredObject {
                kind: kind.to_owned(),
                name: name.to_owned(),
                used_by,
                extension,
            });
        }
    };
    for outside in &facts.outside {
        want(
            &outside.kind,
            &outside.identity,
            outside.used_by.clone(),
            outside.extension.clone(),
        );
    }
    let own: BTreeSet<&str> = facts
        .types
        .iter()
        .flat_map(|t| {
            [
                Some(&t.name),
                t.range.as_ref().and_then(|range| range.multirange.as_ref()),
            ]
        })
        .flatten()
        .chain(facts.relations.iter().map(|relation| &relation.name))
        .map(String::as_str)
        .collect();
    let collations: BTreeSet<&str> = facts
        .simple
        .iter()
        .filter(|one| one.kind == SimpleKind::Collation)
        .map(|one| one.name.as_str())
        .collect();
    // The catalogs quote a name where necessary.
    let plain = |name: &str| match name
        .strip_prefix('"')
        .and_then(|name| name.strip_suffix('"'))
    {
        Some(quoted) => quoted.replace("\"\"", "\""),
        None => name.to_owned(),
    };
    for relation in facts
        .relations
        .iter()
        .filter(|relation| relation.kind.is_stored())
    {
        for column in &relation.columns {
            let used_by = || format!("column {}.{}", relation.name, column.name);
            // The schema's own types are written without a schema; so are the built-in ones.
            if !own.contains(plain(column.type_name.trim_end_matches("[]")).as_str()) {
                want("type", &column.type_name, used_by(), None);
            }
            if let Some(collation) = column
                .collation
                .as_ref()
                .filter(|name| !collations.contains(plain(name).as_str()))
            {
                want("collation", collation, used_by(), None);
            }
        }
        if let Some(method) = &relation.access_method {
            want(
                "access method",
                method,
                format!("{} {}", relation.kind.plain(), relation.name),
                None,
            );
        }
    }
    let names = facts.names();
    for grant in &facts.grants {
        if let Grantee::Role { name } = &grant.grantee {
            let object = names
                .get(&grant.on)
                .map_or_else(|| "a grant".to_owned(), |object| object.plain.clone());
            want("role", name, object, None);
        }
    }
    for privilege in &facts.default_privileges {
        if let Grantee::Role { name } = &privilege.grantee {
            want(
                "role",
                name,
                "default privileges of the schema".to_owned(),
                None,
            );
        }
    }
    for policy in &facts.policies {
        for role in &policy.roles {
            if let Grantee::Role { name } = role {
                want(
                    "role",
                    name,
                    format!(
                        "policy {} on {}",
                        policy.name,
                        facts.relation_name(policy.relation)
                    ),
                    None,
                );
            }
        }
    }
    required
}
