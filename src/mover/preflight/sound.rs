//! Rows that a source has in spite of its own definition: twice under a unique index, or against a
//! CHECK. Such an index is damaged, for example by a library that sorts text differently than
//! before; such a CHECK has a function that once returned something else. The target would refuse
//! the rows, and until then a damaged index may hide them from every query.
//!
//! Tables are read whole, without their indexes, so only those that are small are looked at, and
//! not for long. What is found later, by the target's index or CHECK, ends the move then.

use std::time::{Duration, Instant};

use crate::mover::control::session::Session;
use crate::mover::definition::refusal::Refusal;
use crate::mover::protocol::error::Error;
use crate::pg::quote_ident;

/// A larger table is not looked at: it takes seconds to read.
const TABLE_BYTES_MAX: i64 = 256 << 20;

/// How long the tables of one shard are looked at.
const SHARD_MAX: Duration = Duration::from_secs(20);

/// The check of one table: whether it has rows against an index or a CHECK.
struct Question {
    table: String,
    object: String,
    condition: String,
    reason: &'static str,
    remedy: String,
}

/// The unique indexes and CHECKs of a schema that some of its rows break.
///
/// Locks: ACCESS SHARE on each of its small tables, while it is read, in a snapshot of its own.
pub(crate) async fn unsound(source: &Session, schema: u32) -> Result<Vec<Refusal>, Error> {
    let what = "looking for rows that break unique indexes and CHECKs";
    let until = Instant::now() + SHARD_MAX;
    let mut refusals = Vec::new();
    let mut questions = indexes(source, schema).await?;
    questions.extend(checks(source, schema).await?);
    for question in questions {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let settings = format!(
            "BEGIN READ ONLY; SET LOCAL statement_timeout = {}; SET LOCAL enable_indexscan = off;
             SET LOCAL enable_indexonlyscan = off; SET LOCAL enable_bitmapscan = off",
            left.as_millis().max(1)
        );
        source.batch(what, &settings).await?;
        let sql = format!(
            "SELECT EXISTS (SELECT FROM ONLY {} AS t {})",
            question.table, question.condition
        );
        let answer = source.row(what, &sql, &[]).await;
        source.batch(what, "ROLLBACK").await?;
        match answer {
            Ok(row) if row.get(0)? => {
                let Question {
                    object,
                    reason,
                    remedy,
                    ..
                } = question;
                refusals.push(Refusal::new(object, reason, remedy));
            }
            Ok(_) => {}
            // It took too long, or a function fails: then it is not known.
            Err(error @ Error::Database { .. }) if !error.is_disconnect() => {
                tracing::debug!(%error, object = question.object, "not looked at");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(refusals)
}

/// Of columns with the operators and collations that GROUP BY takes for them.
///
/// Locks: ACCESS SHARE on catalogs, for one statement.
async fn indexes(source: &Session, schema: u32) -> Result<Vec<Question>, Error> {
    let sql = "SELECT n.nspname::text, t.relname::text, c.relname::text,
            ARRAY(SELECT a.attname::text FROM unnest(i.indkey) WITH ORDINALITY AS k(attnum, at)
                JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                WHERE k.at <= i.indnkeyatts ORDER BY k.at),
            coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false)
        FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        JOIN pg_class t ON t.oid = i.indrelid
        JOIN pg_namespace n ON n.oid = t.relnamespace
        WHERE t.relnamespace = $1 AND t.relkind = 'r' AND i.indisunique AND i.indisvalid
            AND i.indimmediate AND i.indexprs IS NULL AND i.indpred IS NULL
            AND pg_relation_size(t.oid) <= $2
            AND NOT EXISTS (
                SELECT FROM unnest(i.indkey, i.indclass, i.indcollation) WITH ORDINALITY
                    AS k(attnum, opclass, collation_oid, at)
                JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                LEFT JOIN pg_opclass o ON o.oid = k.opclass
                WHERE k.at <= i.indnkeyatts
                    AND (NOT o.opcdefault OR k.collation_oid <> a.attcollation))
        ORDER BY 2, 3";
    let what = "reading the unique indexes";
    let mut questions = Vec::new();
    for row in source.rows(what, sql, &[&schema, &TABLE_BYTES_MAX]).await? {
        let (namespace, table, index): (String, String, String) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        let columns: Vec<String> = row.get::<_, Vec<String>>(3)?;
        let columns: Vec<String> = columns
            .iter()
            .map(|column| format!("t.{}", quote_ident(column)))
            .collect();
        let there = match row.get(4)? {
            true => String::new(),
            false => {
                let present = columns.iter().map(|column| format!("{column} IS NOT NULL"));
                format!("WHERE {} ", present.collect::<Vec<_>>().join(" AND "))
            }
        };
        let grouped = columns.join(", ");
        let reindex = format!("{}.{}", quote_ident(&namespace), quote_ident(&index));
        questions.push(Question {
            table: format!("{}.{}", quote_ident(&namespace), quote_ident(&table)),
            object: format!("unique index {index} of table {table}"),
            condition: format!("{there}GROUP BY {grouped} HAVING count(*) > 1"),
            reason: "is damaged: rows with the same key are in the table twice",
            remedy: format!(
                "decide on the source which of the rows stay (SET enable_indexscan = off, \
                    enable_bitmapscan = off finds them), then REINDEX INDEX {reindex}; amcheck's \
                    bt_index_check says more about it"
            ),
        });
    }
    Ok(questions)
}

/// Locks: ACCESS SHARE on catalogs, for one statement, and on the tables, which pg_get_expr takes.
async fn checks(source: &Session, schema: u32) -> Result<Vec<Question>, Error> {
    let sql = "SELECT n.nspname::text, t.relname::text, c.conname::text,
            pg_get_expr(c.conbin, c.conrelid)
        FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid
        JOIN pg_namespace n ON n.oid = t.relnamespace
        WHERE t.relnamespace = $1 AND t.relkind = 'r' AND c.contype = 'c' AND c.convalidated
            AND coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true)
            AND pg_relation_size(t.oid) <= $2
        ORDER BY 2, 3";
    let what = "reading the CHECKs";
    let mut questions = Vec::new();
    for row in source.rows(what, sql, &[&schema, &TABLE_BYTES_MAX]).await? {
        let (namespace, table, name): (String, String, String) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        let Some(expression) = row.get::<_, Option<String>>(3)? else {
            continue;
        };
        questions.push(Question {
            table: format!("{}.{}", quote_ident(&namespace), quote_ident(&table)),
            object: format!("CHECK {name} of table {table}"),
            condition: format!("WHERE NOT ({expression})"),
            reason: "has rows that break it, which the target would refuse",
            remedy: format!(
                "correct the rows on the source: they are those WHERE NOT ({expression})"
            ),
        });
    }
    Ok(questions)
}
