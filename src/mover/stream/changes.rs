//! Which changes are applied, and how: the rule of the chunks.
//!
//! A change of transaction X to the row with key k is applied if, and only if, X is not visible in
//! the snapshot of the chunk that holds k. Invariant: it is applied strictly. An update or delete
//! that finds no row is an error, not a reason to insert, because it would mean that the rule was
//! broken before.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::mover::control::journal::Hold;
use crate::mover::control::session::Session;
use crate::mover::copy::chunks::{Chunks, Unseen};
use crate::mover::copy::snapshot::Snapshot;
use crate::mover::preflight::table::TableShape;
use crate::mover::protocol::error::Error;
use crate::pg::{quote_ident, quote_literal};
use crate::shard::ShardId;

use crate::mover::stream::apply::{Applier, Text};
use crate::mover::stream::fault::{Failure, Fault};
use crate::mover::stream::layout::{Layout, TargetColumn, Texts};
use crate::mover::stream::options::FollowerOptions;
use crate::mover::stream::wire::{Relation, Row, Value};

/// A shard that is followed.
#[derive(Clone, Debug)]
pub(crate) struct ShardStream {
    pub(crate) hold: Hold,
    /// Transactions with a commit record that begins before this position are at the target.
    pub(crate) applied: u64,
    /// The attempt of the marker that came last.
    pub(crate) marked: Option<i32>,
    /// The change that came after the marker, if one did.
    pub(crate) breach: Option<String>,
}

/// The tables of all shards, by their OIDs at the source.
pub(crate) type Tables = HashMap<u32, TableState>;

/// A table that the stream has changes of.
pub(crate) struct TableState {
    pub(crate) shard: ShardId,
    shape: TableShape,
    schema: String,
    columns: HashMap<String, TargetColumn>,
    /// `None`: the copy contains no change of the stream.
    chunks: Option<Chunks>,
    /// Transactions with this number or a later one are in no chunk.
    newest: u64,
    /// Known once the stream has described the table: or why that does not fit what the target was
    /// built from.
    layout: Option<Result<Arc<Layout>, String>>,
}

impl TableState {
    pub(crate) fn new(
        shard: ShardId,
        shape: TableShape,
        schema: String,
        columns: HashMap<String, TargetColumn>,
        chunks: Option<Chunks>,
    ) -> TableState {
        let newest = chunks.as_ref().map_or(0, Chunks::newest_xmax);
        TableState {
            shard,
            shape,
            schema,
            columns,
            chunks,
            newest,
            layout: None,
        }
    }

    /// Takes in the stream's description of the table, which holds from here on. One that does not
    /// fit ends nothing yet: it may be of a time before the table was altered and copied again, and
    /// then so are the changes behind it.
    pub(crate) fn describe(&mut self, relation: &Relation) {
        let columns = |name: &str| self.columns.get(name).cloned();
        self.layout = Some(Layout::new(
            self.shard,
            &self.shape,
            relation,
            &self.schema,
            columns,
        ));
    }

    /// The table's layout for a change of this transaction. `None` if there is none that fits, and
    /// the copy has all that the transaction did.
    fn layout(&self, xid: u64) -> Result<Option<&Arc<Layout>>, Failure> {
        match &self.layout {
            Some(Ok(layout)) => Ok(Some(layout)),
            Some(Err(_)) if matches!(self.unseen(xid), Unseen::None) => Ok(None),
            Some(Err(what)) => {
                let altered = Fault::Altered {
                    table: self.shape.name.clone(),
                    what: what.clone(),
                };
                Err(Failure::Shard(self.shard, altered))
            }
            None => Err(self.diverged("a change came before any description".to_owned())),
        }
    }

    /// What of the table's rows the copy has in a state from before the transaction.
    fn unseen(&self, xid: u64) -> Unseen {
        self.chunks
            .as_ref()
            .map_or(Unseen::All, |chunks| chunks.unseen_ranges(xid))
    }

    fn diverged(&self, what: String) -> Failure {
        Failure::Shard(
            self.shard,
            Fault::Diverged {
                table: self.shape.name.clone(),
                what,
            },
        )
    }

    /// [`TableState::layout`], with which the row must have been sent.
    fn layout_for(&self, row: &Row, xid: u64) -> Result<Option<Arc<Layout>>, Failure> {
        match self.layout(xid)? {
            Some(layout) if !layout.fits(row) => {
                Err(self.diverged("a row came that does not fit its description".to_owned()))
            }
            layout => Ok(layout.cloned()),
        }
    }

    /// Whether the copy contains already what the transaction did to the row with this key.
    fn sees(&self, key: &Texts, xid: u64) -> bool {
        let Some(chunks) = self.chunks.as_ref().filter(|_| xid < self.newest) else {
            return false;
        };
        let texts = key.iter().map(|text| {
            text.as_deref()
                .and_then(|text| std::str::from_utf8(text).ok())
        });
        let texts: Vec<Option<&str>> = texts.collect();
        chunks.sees(texts.first().copied().flatten(), &texts, xid)
    }

    /// Applies a new row. Returns false if the copy has it already.
    pub(crate) async fn insert(
        &self,
        applier: &mut Applier,
        xid: u64,
        new: Row,
    ) -> Result<bool, Failure> {
        let Some(layout) = self.layout_for(&new, xid)? else {
            return Ok(false);
        };
        if self.sees(&layout.key(&new), xid) {
            return Ok(false);
        }
        applier.insert(&layout, &new).await?;
        Ok(true)
    }

    /// Applies a deletion. Returns false if the copy was made after it.
    pub(crate) async fn delete(
        &self,
        applier: &mut Applier,
        xid: u64,
        old: &Row,
    ) -> Result<bool, Failure> {
        let Some(layout) = self.layout_for(old, xid)? else {
            return Ok(false);
        };
        if self.sees(&layout.key(old), xid) {
            return Ok(false);
        }
        applier.delete(&layout, layout.naming(old)).await?;
        Ok(true)
    }

    /// Applies an update. Returns false if the copy has it already.
    pub(crate) async fn update(
        &mut self,
        applier: &mut Applier,
        options: &FollowerOptions,
        xid: u64,
        old: Option<Row>,
        mut new: Row,
    ) -> Result<bool, Failure> {
        let Some(layout) = self.layout_for(&new, xid)? else {
            return Ok(false);
        };
        if let Some(old) = &old {
            self.layout_for(old, xid)?;
            // With REPLICA IDENTITY FULL the old row has the values that the new one leaves out,
            // even a key that is stored out of line.
            for (new, old) in new
                .iter_mut()
                .zip(old)
                .filter(|(new, _)| **new == Value::Unchanged)
            {
                if let Value::Text(_) = old {
                    *new = old.clone();
                }
            }
        }
        let from = old
            .as_ref()
            .map_or_else(|| layout.key(&new), |old| layout.key(old));
        let to = layout.key(&new);
        let moved = from != to;
        match (self.sees(&from, xid), self.sees(&to, xid)) {
            (true, true) => Ok(false),
            (false, false) => {
                let naming = if layout.has_key() {
                    from
                } else {
                    layout.naming(old.as_ref().unwrap_or(&new))
                };
                applier
                    .update(&layout, layout.changed(&new, moved), &new, naming)
                    .await?;
                Ok(true)
            }
            // The row has moved to a chunk that was copied after the transaction.
            (false, true) => {
                applier.delete(&layout, from).await?;
                Ok(true)
            }
            // The row has come from such a chunk.
            (true, false) if layout.lacks_values(&new) => {
                self.read_again(applier, options, &layout, xid, to).await?;
                Ok(true)
            }
            (true, false) => {
                applier.insert(&layout, &new).await?;
                Ok(true)
            }
        }
    }

    /// Applies a TRUNCATE. Returns false if no row from before it is at the target.
    pub(crate) async fn truncate(&self, applier: &mut Applier, xid: u64) -> Result<bool, Failure> {
        let Some(layout) = self.layout(xid)? else {
            return Ok(false);
        };
        let condition = match self.unseen(xid) {
            Unseen::None => return Ok(false),
            Unseen::All => "true".to_owned(),
            Unseen::Ranges { ranges, but } => {
                let column = self.shape.first_key_column();
                let ranges: Vec<String> = ranges
                    .iter()
                    .map(|range| format!("({})", range.condition(column)))
                    .collect();
                let keys: String = but
                    .iter()
                    .map(|key| format!(" AND NOT ({})", self.key_condition(key)))
                    .collect();
                format!("({}){keys}", ranges.join(" OR "))
            }
        };
        applier.delete_where(layout, &condition).await?;
        Ok(true)
    }

    fn key_condition(&self, key: &[Option<String>]) -> String {
        let equal = self
            .shape
            .key_columns()
            .zip(key)
            .map(|(column, text)| match text {
                Some(text) => format!("{} = {}", quote_ident(&column.name), quote_literal(text)),
                None => "false".to_owned(),
            });
        equal.collect::<Vec<_>>().join(" AND ")
    }

    /// Reads a row again. A change of its key has brought it into another chunk, and the stream
    /// does not have all of its values: so it is read from the source as a chunk of its own, and
    /// judged by that from now on.
    async fn read_again(
        &mut self,
        applier: &mut Applier,
        options: &FollowerOptions,
        layout: &Arc<Layout>,
        xid: u64,
        key: Texts,
    ) -> Result<(), Failure> {
        let source = options
            .hosts
            .open(&options.source)
            .await?
            .for_shard(self.shard);
        let (snapshot, values) = read_row(&source, layout, &self.shape, xid, &key).await?;
        applier.delete_if_there(layout, key.clone()).await?;
        if let Some(values) = values {
            applier.insert_values(layout, values).await?;
        }
        let key: Vec<Option<String>> = key
            .iter()
            .map(|text| {
                text.as_ref()
                    .map(|text| String::from_utf8_lossy(text).into_owned())
            })
            .collect();
        // Locks: a row of ours.
        let sql =
            "INSERT INTO pgshard.reread (move_id, shard_id, table_name, key, snapshot) VALUES ($1, \
                $2, $3, $4, $5)
            ON CONFLICT (move_id, shard_id, table_name, key) DO UPDATE SET snapshot = \
            excluded.snapshot";
        let json = serde_json::to_string(&key).unwrap_or_default();
        let id = *options.id.uuid();
        let shard = self.shard.as_i32();
        applier
            .run_control_statement(
                "keeping the snapshot of a row",
                sql,
                vec![
                    Box::new(id),
                    Box::new(shard),
                    Box::new(self.shape.name.clone()),
                    Box::new(json),
                    Box::new(snapshot.to_string()),
                ],
            )
            .await?;
        if let Some(chunks) = &mut self.chunks {
            chunks.add_reread(key, snapshot);
            self.newest = chunks.newest_xmax();
        }
        Ok(())
    }
}

/// How long a commit may be in the WAL without being visible: as long as a synchronous standby is
/// slow.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// Reads one row of the source, with the snapshot it was read under, which must see the
/// transaction. `None` if the row is gone by then.
///
/// Locks: ACCESS SHARE on the table, for a transaction of one row.
async fn read_row(
    source: &Session,
    layout: &Layout,
    shape: &TableShape,
    xid: u64,
    key: &Texts,
) -> Result<(Snapshot, Option<Texts>), Failure> {
    let what = "reading a row again";
    let until = Instant::now() + SEEN_WITHIN;
    let texts: Vec<Text> = key.iter().cloned().map(Text).collect();
    loop {
        let Some(name) = lock(source, layout.shard, shape.oid).await? else {
            let what = "the source has dropped it".to_owned();
            return Err(Failure::Shard(
                layout.shard,
                Fault::Altered {
                    table: layout.name.clone(),
                    what,
                },
            ));
        };
        let row = source
            .row(what, "SELECT pg_current_snapshot()::text", &[])
            .await?;
        let snapshot = Snapshot::parse(row.get(0)?).ok_or_else(|| Error::Stuck {
            shard: layout.shard,
            observed: "a snapshot that cannot be read".to_owned(),
        })?;
        if !snapshot.sees(xid) {
            source.batch(what, "ROLLBACK").await?;
            if Instant::now() >= until {
                let why = format!(
                    "transaction {xid} is in the stream, but not visible after {} s",
                    SEEN_WITHIN.as_secs()
                );
                return Err(Error::Unfollowed {
                    shard: Some(layout.shard),
                    why,
                }
                .into());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        }
        let params: Vec<&(dyn tokio_postgres::types::ToSql + Sync)> = texts
            .iter()
            .map(|text| text as &(dyn tokio_postgres::types::ToSql + Sync))
            .collect();
        let rows = source.rows(what, &layout.reread(&name), &params).await?;
        source.batch(what, "COMMIT").await?;
        source.flush("making the snapshot durable").await?;
        let values = rows
            .first()
            .map(|row| row.get::<_, Vec<Option<String>>>(0))
            .transpose()?;
        let bytes = |value: Option<String>| value.map(|value| value.into_bytes().into());
        let values = values.map(|values| values.into_iter().map(bytes).collect());
        return Ok((snapshot, values));
    }
}

/// Begins a transaction and locks the table before the snapshot is taken: a TRUNCATE between the
/// two would hide the row. Returns the present name of the table (the fence renames its schema);
/// `None` if it is gone.
async fn lock(source: &Session, shard: ShardId, oid: u32) -> Result<Option<String>, Failure> {
    let what = "locking a table to read a row again";
    for _ in 0..5 {
        let sql = "SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1";
        let rows = source.rows(what, sql, &[&oid]).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let name: String = row.get(0)?;
        let lock = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; LOCK TABLE {name} IN ACCESS SHARE \
                MODE"
        );
        if source.client.batch_execute(&lock).await.is_ok() {
            let same = source
                .row(
                    what,
                    "SELECT coalesce(to_regclass($1)::oid = $2, false)",
                    &[&name, &oid],
                )
                .await?;
            if same.get(0)? {
                return Ok(Some(name));
            }
        }
        source.batch(what, "ROLLBACK").await?;
    }
    Err(Error::Unfollowed {
        shard: Some(shard),
        why: "a table could not be locked to read a row again".to_owned(),
    }
    .into())
}
