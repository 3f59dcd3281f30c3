//! The relations that move, and what the border depends on that no assessment reads.

use std::collections::BTreeSet;

use serde::Deserialize;
use tokio_postgres::Client;

use crate::import::error::Error;
use crate::import::facts::Server;
use crate::import::read;
use crate::pg::{quote_ident, quote_literal};

/// A table or partition that is to move, with what moves with it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Relation {
    pub(super) oid: u32,
    /// The table that it is a partition of, or itself.
    pub(super) root: u32,
    pub(super) schema: String,
    pub(super) name: String,
    /// `r`, `p` or `f`.
    pub(super) kind: String,
    pub(super) owner: String,
    /// Whether this role has the owner's rights.
    pub(super) owned: bool,
    /// The sequences that its columns own.
    pub(super) sequences: Vec<u32>,
    /// Its extended statistics.
    pub(super) statistics: Vec<Statistics>,
}

/// Extended statistics.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Statistics {
    pub(super) schema: String,
    pub(super) name: String,
    pub(super) owner: String,
    pub(super) owned: bool,
}

impl Relation {
    /// Its quoted name.
    pub(super) fn sql(&self) -> String {
        format!("{}.{}", quote_ident(&self.schema), quote_ident(&self.name))
    }
}

/// A function with a body that is text.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Function {
    /// Its name with its schema, and its arguments.
    pub(super) name: String,
    pub(super) body: String,
    /// Its own `search_path`.
    pub(super) path: Option<String>,
}

/// A foreign key that writes.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Cascade {
    pub(super) name: String,
    pub(super) table: u32,
    pub(super) target: u32,
}

/// A policy that reads another table.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PolicyUse {
    pub(super) name: String,
    pub(super) table: u32,
    pub(super) reads: u32,
}

/// What the border depends on.
#[derive(Clone, Debug)]
pub(super) struct Outside {
    pub(super) functions: Vec<Function>,
    pub(super) cascades: Vec<Cascade>,
    pub(super) policies: Vec<PolicyUse>,
    /// The publications of all tables of the former schema.
    pub(super) publications: Vec<String>,
    /// The roles with default privileges in the former schema.
    pub(super) default_privileges: Vec<String>,
    /// Names of the new schema that something of the moving tables has as well.
    pub(super) clashes: Vec<String>,
}

/// The tables with their partitions, by name.
pub(super) async fn relations(
    client: &Client,
    tables: &BTreeSet<u32>,
) -> Result<Vec<Relation>, Error> {
    let sql = include_str!("../sql/separate.sql").replace("{oids}", &listed(tables));
    read::facts(client, "the tables to move", &sql).await
}

fn listed(oids: &BTreeSet<u32>) -> String {
    let oids: Vec<String> = oids.iter().map(u32::to_string).collect();
    format!("{{{}}}", oids.join(","))
}

/// Reads the rest.
pub(super) async fn read(
    client: &Client,
    server: &Server,
    old: &str,
    new: &str,
    moving: &BTreeSet<u32>,
) -> Result<Outside, Error> {
    let functions = "SELECT json_build_object('name', p.oid::regprocedure::text, 'body', p.prosrc,
            'path', (SELECT substr(c, 13) FROM unnest(p.proconfig) c
                WHERE c LIKE 'search\\_path=%'))
        FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        JOIN pg_language l ON l.oid = p.prolang
        WHERE n.nspname NOT IN ('pg_catalog', 'information_schema')
            AND n.nspname !~ '^pg_' AND n.nspname !~ '^pgshard(_|$)'
            AND l.lanname NOT IN ('c', 'internal')
            AND p.prosrc <> '' AND NOT EXISTS (SELECT FROM pg_depend d
                WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
        ORDER BY p.oid::regprocedure::text COLLATE \"C\"";
    let cascades = "SELECT json_build_object('name', conname, 'table', conrelid::int8,
            'target', confrelid::int8)
        FROM pg_constraint WHERE contype = 'f' AND conparentid = 0
            AND (confdeltype IN ('c', 'n', 'd') OR confupdtype IN ('c', 'n', 'd'))
        ORDER BY conrelid, conname";
    let policies = "SELECT DISTINCT ON (p.oid, d.refobjid) json_build_object('name', p.polname,
            'table', p.polrelid::int8, 'reads', d.refobjid::int8)
        FROM pg_policy p JOIN pg_depend d ON d.classid = 'pg_policy'::regclass AND d.objid = p.oid
            AND d.refclassid = 'pg_class'::regclass AND d.refobjid <> p.polrelid
        JOIN pg_class c ON c.oid = d.refobjid AND c.relkind IN ('r', 'p', 'f')";
    let old = quote_literal(old);
    let publications = format!(
        "SELECT to_json(p.pubname) FROM pg_publication_namespace s
        JOIN pg_publication p ON p.oid = s.pnpubid JOIN pg_namespace n ON n.oid = s.pnnspid
        WHERE n.nspname = {old} ORDER BY p.pubname"
    );
    let defaults = format!(
        "SELECT DISTINCT ON (d.defaclrole) to_json(pg_get_userbyid(d.defaclrole))
        FROM pg_default_acl d JOIN pg_namespace n ON n.oid = d.defaclnamespace
        WHERE n.nspname = {old}"
    );
    let clashes = clashes_sql(&listed(moving), new);
    Ok(Outside {
        functions: read::facts(client, "the functions", functions).await?,
        cascades: read::facts(client, "the foreign keys", cascades).await?,
        policies: read::facts(client, "the policies", policies).await?,
        publications: if server.version < 150_000 {
            Vec::new()
        } else {
            read::facts(client, "the publications", &publications).await?
        },
        default_privileges: read::facts(client, "default privileges", &defaults).await?,
        clashes: read::facts(client, "names of tables", &clashes).await?,
    })
}

/// The names in a schema that tables with their indexes and sequences would have there, too.
pub(super) fn clashes_sql(moving: &str, schema: &str) -> String {
    format!(
        "SELECT to_json(c.relname) FROM pg_class c WHERE c.relname IN (
            SELECT m.relname FROM pg_class m WHERE m.oid = ANY ('{moving}'::oid[])
                OR m.oid IN (SELECT indexrelid FROM pg_index
                    WHERE indrelid = ANY ('{moving}'::oid[]))
                OR m.oid IN (SELECT objid FROM pg_depend WHERE classid = 'pg_class'::regclass
                    AND refclassid = 'pg_class'::regclass AND deptype IN ('a', 'i')
                    AND refobjid = ANY ('{moving}'::oid[])))
            AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = {})
        ORDER BY c.relname",
        quote_literal(schema)
    )
}
