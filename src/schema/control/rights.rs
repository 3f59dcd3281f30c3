//! The rights that each role needs, and which roles may look up shards on a host.
//!
//! A role with USAGE on the schema of a shard counts as a router's role. The catalogs are the only
//! record of that. A role that may look up shards on one host may do so on all others too, so that
//! hosts without shards also answer it. Monitoring roles are separate from those ([`monitors`]).
//!
//! Invariant: on its own initiative, this module gives a role no more than the right to look up
//! shards, and to remove a fence that has expired; and to a role that may read
//! `pgshard.control_migration`, what else a monitor reads. Rights on the tables of shards are given
//! by the application's migrations.

use std::collections::BTreeSet;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::monitors::{self, Monitors, monitors};
use crate::pg::decoding::RDS_REPLICATION;
use crate::pg::{do_block, quote_ident, quote_literal};

/// What a role is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// Owns the control schema and the shards: the role of the config.
    Owner,
    /// The same, and moves shards while they are open.
    Mover,
    /// Reads and writes rows, through a router.
    Router,
    /// Reads rows, through a router.
    Reader,
    /// Monitors: reads what the hosts report of shards and moves, and no row.
    Monitor,
}

/// Where the hosts run: what an administrator may grant there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Service {
    /// A self-managed server, which has a superuser as its administrator.
    #[default]
    Plain,
    /// Amazon RDS or Aurora: no role has REPLICATION, but members of `rds_replication` may use
    /// slots.
    Rds,
    /// Google Cloud SQL: a `cloudsqlsuperuser` gives REPLICATION.
    CloudSql,
    /// Azure Database, Flexible Server: `azure_pg_admin` gives REPLICATION.
    Azure,
}

/// Which role runs statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Grantor {
    /// An administrator of the server: a superuser, or what a service has in its place.
    Administrator,
    /// The role that owns the control schema, once there is one.
    Owner,
}

/// Statements to be run together by one role. Running them again changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grants {
    /// Which role runs them.
    pub grantor: Grantor,
    /// The same in words, and where.
    pub by: &'static str,
    /// The statements, without a semicolon at their ends.
    pub statements: Vec<String>,
}

/// The statements that give a role the least that it needs, in the order in which to run them, on
/// every host.
pub fn rights(purpose: Purpose, role: &str, service: Service) -> Vec<Grants> {
    let administrator = |statements| Grants {
        grantor: Grantor::Administrator,
        by: match service {
            Service::Plain => "an administrator, in the database of each host",
            Service::Rds => "the master user (rds_superuser), in the database of each host",
            Service::CloudSql => "a cloudsqlsuperuser, in the database of each host",
            Service::Azure => "a member of azure_pg_admin, in the database of each host",
        },
        statements,
    };
    let owner = |statements| Grants {
        grantor: Grantor::Owner,
        by: "the role that owns the control schema, in the database of each host, after `pgshard \
            bootstrap`",
        statements,
    };
    let mut first = vec![create(role)];
    match purpose {
        Purpose::Owner => {
            first.push(on_database(role, "CONNECT, CREATE"));
            vec![administrator(first)]
        }
        Purpose::Mover => {
            first.extend([
                on_database(role, "CONNECT, CREATE"),
                replication(role, service),
                bypass_policies(role),
            ]);
            vec![administrator(first)]
        }
        Purpose::Router | Purpose::Reader => {
            first.push(on_database(role, "CONNECT"));
            let mut then = of_router(role);
            then.push(on_shards(purpose, role));
            vec![administrator(first), owner(then)]
        }
        Purpose::Monitor => {
            first.extend([on_database(role, "CONNECT"), monitors::of_server(role)]);
            vec![administrator(first), owner(monitors::of_monitor(role))]
        }
    }
}

/// The text of a shard migration that gives the role what it needs in each shard, so that later
/// shards have it too. `None` for roles that own the shards, or need nothing in them.
pub fn shard_migration(purpose: Purpose, role: &str) -> Option<String> {
    let grantee = quote_ident(role).replace("{shard}", "{{shard}}");
    let grants = of_shard(purpose)
        .iter()
        .map(|(right, what)| format!("GRANT {right} ON {what} {{shard}} TO {grantee};\n"));
    let text: String = grants.collect();
    (!text.is_empty()).then_some(text)
}

/// What a role needs in a shard: the rights, and on what.
fn of_shard(purpose: Purpose) -> &'static [(&'static str, &'static str)] {
    match purpose {
        Purpose::Owner | Purpose::Mover | Purpose::Monitor => &[],
        Purpose::Router => &[
            ("USAGE", "SCHEMA"),
            ("SELECT, INSERT, UPDATE, DELETE", "ALL TABLES IN SCHEMA"),
            // For next_id(), and for identity columns.
            ("USAGE", "ALL SEQUENCES IN SCHEMA"),
        ],
        Purpose::Reader => &[("USAGE", "SCHEMA"), ("SELECT", "ALL TABLES IN SCHEMA")],
    }
}

fn on_shards(purpose: Purpose, role: &str) -> String {
    let mut body = "DECLARE\n    shard text;\nBEGIN\n    FOR shard IN SELECT s.schema_name FROM \
        pgshard.shard s WHERE \
                    s.state = 'serving' ORDER BY s.shard_id LOOP\n"
        .to_owned();
    for (right, what) in of_shard(purpose) {
        let grant = quote_literal(&format!("GRANT {right} ON {what} %I TO %I"));
        let role = quote_literal(role);
        body.push_str(&format!(
            "        EXECUTE pg_catalog.format({grant}, shard, {role});\n"
        ));
    }
    body.push_str("    END LOOP;\nEND");
    do_block(&body)
}

fn create(role: &str) -> String {
    let (name, text) = (quote_ident(role), quote_literal(role));
    do_block(&format!(
        "BEGIN\n    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {text}) \
            THEN\n        CREATE ROLE \
         {name} LOGIN;\n    END IF;\nEND"
    ))
}

/// Grants rights on the current database, since its name differs from host to host.
fn on_database(role: &str, rights: &str) -> String {
    let role = quote_literal(role);
    do_block(&format!(
        "BEGIN\n    EXECUTE pg_catalog.format('GRANT {rights} ON DATABASE %I TO %I', \
            pg_catalog.current_database(), \
         {role});\nEND"
    ))
}

/// An online move needs it for its slot and its stream.
fn replication(role: &str, service: Service) -> String {
    match service {
        Service::Rds => format!("GRANT {RDS_REPLICATION} TO {}", quote_ident(role)),
        _ => format!("ALTER ROLE {} REPLICATION", quote_ident(role)),
    }
}

/// Where FORCE ROW LEVEL SECURITY filters for the owner too: the mover must copy all rows.
fn bypass_policies(role: &str) -> String {
    let name = quote_ident(role);
    do_block(&format!(
        "BEGIN\n    IF EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON \
            n.oid = \
         c.relnamespace\n{pad}WHERE c.relforcerowsecurity AND n.nspname ~ '[0-9]{{4}}$') \
         THEN\n        ALTER ROLE \
         {name} BYPASSRLS;\n    END IF;\nEND",
        pad = " ".repeat(15),
    ))
}

/// A word, quoted for a shell where it needs quotes.
pub(in crate::schema) fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    match !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// The tables that routers read.
pub(in crate::schema) const TABLES: [&str; 3] = ["cluster", "identity", "whole"];

/// The functions that routers call, with the types of their arguments.
pub(in crate::schema) const FUNCTIONS: [(&str, &str); 4] = [
    ("look", "integer"),
    ("expire_fence", "integer"),
    ("finish_open", "integer, uuid"),
    ("migrated", "text"),
];

/// Represents PUBLIC among names of roles. No role can have this name.
const PUBLIC: &str = "public";

/// The statements that give a role what a router needs of the control schema. Running them again
/// changes nothing.
pub(in crate::schema) fn of_router(role: &str) -> Vec<String> {
    let grantee = if role == PUBLIC {
        "PUBLIC".to_owned()
    } else {
        quote_ident(role)
    };
    let tables: Vec<String> = TABLES
        .iter()
        .map(|table| format!("pgshard.{table}"))
        .collect();
    let functions: Vec<String> = FUNCTIONS
        .iter()
        .map(|(name, takes)| format!("pgshard.{name}({takes})"))
        .collect();
    vec![
        format!("GRANT USAGE ON SCHEMA pgshard TO {grantee}"),
        format!("GRANT SELECT ON TABLE {} TO {grantee}", tables.join(", ")),
        format!(
            "GRANT EXECUTE ON FUNCTION {} TO {grantee}",
            functions.join(", ")
        ),
    ]
}

/// The roles of a host's routers, and what they lack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::schema) struct Routers {
    /// All roles that may use the schema of a shard, or may already look up shards.
    pub(in crate::schema) all: BTreeSet<String>,
    /// Those of them that lack a right that a router needs.
    pub(in crate::schema) lacking: BTreeSet<String>,
}

impl Routers {
    /// The roles that may also look up shards on other hosts. PUBLIC is left out: its rights on a
    /// shard move along with the shard.
    pub(in crate::schema) fn elsewhere(&self) -> impl Iterator<Item = &String> {
        self.all.iter().filter(|role| *role != PUBLIC)
    }
}

/// The kind of users that is read.
pub(crate) enum Users<'a> {
    /// The schemas of all shards of the host.
    OfShards,
    /// This schema.
    Of(&'a str),
}

/// The names of roles, each with whether it lacks a right. $1: a schema, or NULL for the schemas of
/// all shards; $2: further roles, of which those that do not exist are left out.
///
/// A right that a role has by a group or by PUBLIC is not lacking. The predefined roles that may
/// use every schema count if they have members.
///
/// Locks: none.
fn sql() -> String {
    let names = |names: &[&str]| {
        names
            .iter()
            .map(|name| quote_literal(name))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let functions: Vec<&str> = FUNCTIONS.iter().map(|(name, _)| *name).collect();
    format!(
        "WITH routers AS (
            SELECT CASE a.grantee WHEN 0 THEN '{PUBLIC}' ELSE r.rolname::text END AS role
            FROM pg_catalog.pg_namespace n CROSS JOIN LATERAL pg_catalog.aclexplode(
                coalesce(n.nspacl, pg_catalog.acldefault('n', n.nspowner))) AS a
            LEFT JOIN pg_catalog.pg_roles r ON r.oid = a.grantee
            WHERE a.privilege_type = 'USAGE'
                AND a.grantee <> (SELECT k.nspowner FROM pg_catalog.pg_namespace k WHERE k.nspname \
                = 'pgshard')
                AND CASE WHEN $1::pg_catalog.text IS NOT NULL THEN n.nspname = $1
                    ELSE n.nspname IN (SELECT s.schema_name FROM pgshard.shard s UNION ALL SELECT \
                    w.schema_name FROM pgshard.whole w)
                        OR n.nspname = 'pgshard' AND a.grantee <> 0 AND a.grantee NOT IN \
                        ({monitors}) END
            UNION SELECT r.rolname::text FROM pg_catalog.pg_roles r
            WHERE r.rolname = ANY ($2::pg_catalog.text[])
                OR r.rolname IN ('pg_read_all_data', 'pg_write_all_data')
                    AND EXISTS (SELECT FROM pg_catalog.pg_auth_members m WHERE m.roleid = r.oid))
        SELECT role, NOT pg_catalog.has_schema_privilege(role, n.oid, 'USAGE')
            OR EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND \
            c.relname IN ({tables})
                       AND NOT pg_catalog.has_table_privilege(role, c.oid, 'SELECT'))
            OR EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.pronamespace = n.oid AND p.proname \
            IN ({functions})
                       AND NOT pg_catalog.has_function_privilege(role, p.oid, 'EXECUTE'))
        FROM routers CROSS JOIN pg_catalog.pg_namespace n WHERE n.nspname = 'pgshard' AND role IS \
        NOT NULL",
        tables = names(&TABLES),
        functions = names(&functions),
        monitors = monitors::oids(),
    )
}

/// Reads the routers' roles.
pub(in crate::schema) async fn routers(
    client: &Client,
    users: &Users<'_>,
    others: &BTreeSet<String>,
) -> Result<Routers, tokio_postgres::Error> {
    let schema = match users {
        Users::OfShards => None,
        Users::Of(schema) => Some(*schema),
    };
    let others: Vec<&String> = others.iter().collect();
    let rows = client
        .query_typed(
            &sql(),
            &[(&schema, Type::TEXT), (&others, Type::TEXT_ARRAY)],
        )
        .await?;
    let mut routers = Routers::default();
    for row in rows {
        let role: String = row.try_get(0)?;
        if row.try_get(1)? {
            routers.lacking.insert(role.clone());
        }
        routers.all.insert(role);
    }
    Ok(routers)
}

/// Keeps others from granting at the same time.
const ALONE: &str = "LOCK TABLE pgshard.control_migration IN SHARE ROW EXCLUSIVE MODE";

/// Gives the rights that a router needs to the roles that may use these schemas, and to those of
/// `others` that exist. Returns the names of those that lacked a right. To be called in a
/// transaction.
///
/// Locks: where a role lacks something, SHARE ROW EXCLUSIVE on pgshard.control_migration until the
/// end of the transaction, since two at once would alter the same rows of catalogs, and one would
/// fail; nothing else locks that table.
pub(crate) async fn admit(
    client: &Client,
    users: Users<'_>,
    others: &BTreeSet<String>,
) -> Result<BTreeSet<String>, tokio_postgres::Error> {
    if routers(client, &users, others).await?.lacking.is_empty() {
        return Ok(BTreeSet::new());
    }
    client.batch_execute(ALONE).await?;
    let lacking = routers(client, &users, others).await?.lacking;
    for statement in lacking.iter().flat_map(|role| of_router(role)) {
        client.batch_execute(&statement).await?;
    }
    Ok(lacking)
}

/// The roles that the hosts of a cluster know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::schema) struct Roles {
    pub(in crate::schema) routers: BTreeSet<String>,
    pub(in crate::schema) monitors: BTreeSet<String>,
}

impl Roles {
    /// Whether a host knows all of them, and none lacks a right there that its owner can give.
    pub(in crate::schema) fn are_let_in(&self, routers: &Routers, monitors: &Monitors) -> bool {
        let nobody_lacks = routers.lacking.is_empty() && monitors.lacking.is_empty();
        nobody_lacks
            && self.routers.is_subset(&routers.all)
            && self.monitors.is_subset(&monitors.all)
    }
}

/// Gives what they need of the control schema to the roles of routers and of monitors: to those of
/// this host, and those of `others` that exist. Returns the names of those that lacked something.
/// To be called in a transaction.
///
/// Locks: as [`admit`].
pub(in crate::schema) async fn admit_all(
    client: &Client,
    others: &Roles,
) -> Result<BTreeSet<String>, tokio_postgres::Error> {
    let mut admitted = admit(client, Users::OfShards, &others.routers).await?;
    if monitors(client, &others.monitors).await?.lacking.is_empty() {
        return Ok(admitted);
    }
    client.batch_execute(ALONE).await?;
    let lacking = monitors(client, &others.monitors).await?.lacking;
    for statement in lacking.iter().flat_map(|role| monitors::of_monitor(role)) {
        client.batch_execute(&statement).await?;
    }
    admitted.extend(lacking);
    Ok(admitted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_shell() {
        let rows = [
            ("web", "web"),
            ("-x", "'-x'"),
            ("", "''"),
            ("a b", "'a b'"),
            ("o'hara; rm", r"'o'\''hara; rm'"),
        ];
        for (word, expected) in rows {
            assert_eq!(shell_word(word), expected);
        }
    }

    #[test]
    fn a_migration_keeps_braces_of_a_name() {
        let text = shard_migration(Purpose::Reader, "we{shard}b").unwrap();
        let first = crate::pg::Template::new(&text).render("shard_0001");
        assert_eq!(
            first.lines().next().unwrap(),
            r#"GRANT USAGE ON SCHEMA shard_0001 TO "we{shard}b";"#
        );
        assert_eq!(shard_migration(Purpose::Owner, "app"), None);
    }

    #[test]
    fn a_name_ends_no_body() {
        for statement in rights(Purpose::Router, "a $rights$ b", Service::Plain)
            .into_iter()
            .flat_map(|part| part.statements)
        {
            assert!(!statement.starts_with("DO $"), "{statement}");
        }
    }
}
