//! Watermarks: rows that are written at the source, to see in the stream that everything committed
//! before them has come through.

use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::MoveId;

/// A watermark is deleted by a writer of another one this much later, in microseconds: a minute. A
/// waiting reader gets it from the stream, where it is kept.
const WATERMARK_KEPT_US: i64 = 60_000_000;

/// Writes a watermark at the source, durably. Returns its number.
///
/// Locks: a row of its own, and rows of earlier ones that no other session is deleting.
pub(crate) async fn write_watermark(source: &Session, id: MoveId) -> Result<i64, Error> {
    let what = "writing a watermark";
    // If two sessions write watermarks within the same microsecond, one of them must try again.
    loop {
        source.batch(what, "BEGIN").await?;
        source
            .row(what, "SELECT pgshard.commit_durably()", &[])
            .await?;
        let sql = "INSERT INTO pgshard.beacon (move_id, number)
            VALUES ($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) ON CONFLICT DO \
            NOTHING
            RETURNING number";
        let rows = source.rows(what, sql, &[id.uuid()]).await?;
        let number = rows.first().map(|row| row.get::<_, i64>(0)).transpose()?;
        if let Some(number) = number {
            let sql = "DELETE FROM pgshard.beacon WHERE move_id = $1 AND number = ANY (ARRAY(
                SELECT number FROM pgshard.beacon WHERE move_id = $1 AND number < $2 LIMIT 100 FOR
                UPDATE SKIP LOCKED))";
            source
                .execute(what, sql, &[id.uuid(), &(number - WATERMARK_KEPT_US)])
                .await?;
        }
        source.batch(what, "COMMIT").await?;
        if let Some(number) = number {
            return Ok(number);
        }
    }
}
