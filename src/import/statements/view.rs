//! Statements of `pg_stat_statements`, in whatever schema the extension is.

use tokio_postgres::Client;

use super::collect::StatementForms;
use crate::import::error::Error;
use crate::import::read;
use crate::pg::quote_ident;

/// How many statements are read, those that took most time first. The extension keeps 5000 by
/// default.
const STATEMENTS_MAX: u32 = 20_000;

/// Our own, as [`read::MARK`] ends them.
const OWN: &str = "%/* pgshard import assess */%";

/// Reads the statements of the database; `Ok(Err(…))` is why they are not known.
pub(super) async fn read(client: &Client) -> Result<Result<StatementForms, String>, Error> {
    let failed = |source| Error::postgres("pg_stat_statements", source);
    let find = "SELECT n.nspname, EXISTS (
            SELECT FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
            WHERE c.relnamespace = n.oid AND c.relname = 'pg_stat_statements'
                AND a.attname = 'total_exec_time')
        FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
        WHERE e.extname = 'pg_stat_statements'";
    let rows = read::texts(client, find).await.map_err(failed)?;
    let advice = "give --statements a log or a file with a statement on each line";
    let Some([Some(schema), Some(has_exec_time)]) = rows.first().map(Vec::as_slice) else {
        return Ok(Err(format!(
            "statements: the extension pg_stat_statements is not in this database; {advice}"
        )));
    };
    let time = if has_exec_time == "t" {
        "total_exec_time"
    } else {
        "total_time"
    };
    // The extension's functions must be found; its schema may be one in which others create.
    let sql = format!(
        "SELECT pg_catalog.left(s.query, 100000), s.calls, s.{time}
        FROM {}.pg_stat_statements s
        WHERE s.query NOT LIKE '{OWN}' AND s.query NOT LIKE 'DECLARE pgshard_%'
            AND s.dbid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
        ORDER BY s.{time} DESC LIMIT {STATEMENTS_MAX}",
        quote_ident(schema)
    );
    let rows = match read::texts(client, &sql).await {
        Ok(rows) => rows,
        Err(error) if error.as_db_error().is_some() => {
            let why = crate::pg::cause::chain(&error);
            return Ok(Err(format!(
                "statements: pg_stat_statements cannot be read ({why}); {advice}"
            )));
        }
        Err(error) => return Err(failed(error)),
    };
    let mut collected = StatementForms::default();
    for row in rows {
        let [Some(text), calls, time] = row.as_slice() else {
            continue;
        };
        let number =
            |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<f64>().ok());
        let calls = number(calls).unwrap_or_default().max(0.0) as u64;
        collected.add(text, calls, number(time).unwrap_or_default());
    }
    Ok(Ok(collected))
}
