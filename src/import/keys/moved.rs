//! The triggers' functions of tables that get another schema: they name tables with their schemas.

use std::collections::BTreeMap;

use super::prepared;
use super::record::{self, Record};
use super::triggers;
use crate::import::change::{ChangeError, ChangeRequest, Refusal, Session};
use crate::import::choices::TableName;
use crate::import::facts::Database;
use crate::pg::{ConnectOptions, quote_ident};

/// The statements that make the functions again for tables that get these schemas, by table. There
/// are none if `import keys` has made no function.
///
/// # Errors
/// If a table has its key by another path than the choices give it now.
pub(in crate::import) async fn functions(
    connect: &ConnectOptions,
    session: &Session,
    request: &ChangeRequest,
    schemas: &BTreeMap<u32, String>,
) -> Result<Vec<String>, ChangeError> {
    let records = record::read(session).await?;
    let sql = "SELECT json_build_array(p.proname, pg_has_role(p.proowner, 'USAGE'),
            pg_get_userbyid(p.proowner))
        FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = 'pgshard_import' ORDER BY p.proname";
    let what = "find the triggers' functions";
    let there: Vec<(String, bool, String)> = session.values(what, sql).await?;
    let has = |name: &String| there.iter().any(|(one, ..)| one == name);
    let with_function: Vec<&Record> = records
        .iter()
        .filter(|record| has(&triggers::fill_name(record.relation)))
        .collect();
    if with_function.is_empty() {
        return Ok(Vec::new());
    }
    // Each column as it was named then.
    let mut request = request.clone().tables(Vec::new());
    request.columns = columns(session, &records).await?;
    let prepared = prepared::prepare(connect, session, &request).await?;
    let mut statements = Vec::new();
    let mut refusals = Vec::new();
    if let Some((name, _, owner)) = there.iter().find(|(_, owned, _)| !owned) {
        refusals.push(Refusal::new(
            format!("pgshard_import.{name}"),
            format!("belongs to role {owner}, and names tables with their schema"),
            "run it as that role or a superuser",
        ));
    }
    for record in with_function {
        let table = prepared.tables.iter();
        let mut table = table.filter(|table| table.oid == record.relation);
        let Some(table) = table.next().filter(|table| table.way() == record.way) else {
            let known = prepared.database.tables.contains_key(&record.relation);
            if known {
                refusals.push(Refusal::new(
                    prepared.database.name(record.relation),
                    "has another key, or has it by another path, by a run of import keys",
                    "choose the same (--by), or take that run back (import keys --undo)",
                ));
            }
            continue;
        };
        let mut table = table.clone();
        let Some(mut parent) = table.parent.clone() else {
            continue;
        };
        table.sql = renamed(&prepared.database, table.oid, schemas, &table.sql);
        parent.sql = renamed(&prepared.database, parent.oid, schemas, &parent.sql);
        statements.extend(triggers::functions(&table, &parent));
    }
    if refusals.is_empty() {
        Ok(statements)
    } else {
        Err(ChangeError::Refused { refusals })
    }
}

/// The quoted name that a table will have.
fn renamed(
    database: &Database,
    table: u32,
    schemas: &BTreeMap<u32, String>,
    otherwise: &str,
) -> String {
    match (database.tables.get(&table), schemas.get(&table)) {
        (Some(facts), Some(schema)) => {
            format!("{}.{}", quote_ident(schema), quote_ident(&facts.name))
        }
        _ => otherwise.to_owned(),
    }
}

/// The key's columns that are recorded.
async fn columns(
    session: &Session,
    records: &[Record],
) -> Result<Vec<(TableName, String)>, ChangeError> {
    let sql = "SELECT json_build_array(c.oid::int8, n.nspname, c.relname) FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid IN (SELECT relation FROM pgshard_import.keys)";
    let named: Vec<(u32, String, String)> = session.values("find the tables", sql).await?;
    let column = |(oid, schema, table): (u32, String, String)| {
        let record = records.iter().find(|record| record.relation == oid)?;
        let schema = Some(schema);
        Some((TableName { schema, table }, record.key_column.clone()))
    };
    Ok(named.into_iter().filter_map(column).collect())
}
