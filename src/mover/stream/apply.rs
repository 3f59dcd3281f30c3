//! Runs target transactions, one after the other. Statements are sent without waiting for the
//! answers of earlier ones, and rows of one table with the same operation are combined. Every
//! answer of a table's statement is checked before the commit is sent; the mover's own statements,
//! which come last, are checked by the server.
//!
//! Invariant: nothing is committed unless each statement hit exactly the rows that it was meant
//! for. (Rows of different tables may be changed in another order than at the source: foreign keys
//! and triggers do not exist while changes are applied.)

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::{MaybeDone, maybe_done};
use lru::LruCache;
use tokio_postgres::Statement;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};

use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::pg::cause;
use crate::shard::ShardId;

use crate::mover::stream::fault::{Failure, Fault};
use crate::mover::stream::layout::{Layout, MOST_AT_ONCE, Texts};
use crate::mover::stream::wire::Row;

/// The most statements that are prepared on the connection: thousands of shards have more tables
/// than a backend has memory for.
const STATEMENTS: NonZeroUsize = NonZeroUsize::new(1024).expect("it is not zero");

/// The most statements that are sent and not answered. They hold memory for their parameters, and
/// the server for its answers.
const IN_FLIGHT: usize = 512;

/// The same in bytes of parameters; rows that wait to be inserted may have as many.
const BYTES_IN_FLIGHT: usize = 4 << 20;

/// A value as a text, whatever the type is: the server reads it with the type's input function.
#[derive(Debug)]
pub(super) struct Text(pub(super) Option<Bytes>);

impl ToSql for Text {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        Ok(match &self.0 {
            Some(text) => {
                out.put_slice(text);
                IsNull::No
            }
            None => IsNull::Yes,
        })
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// What is done to a row of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    Insert,
    Update { columns: Vec<usize> },
    Delete,
}

impl Work {
    fn name(&self) -> &'static str {
        match self {
            Work::Insert => "insert",
            Work::Update { .. } => "update",
            Work::Delete => "delete",
        }
    }
}

/// Identifies a statement of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kind {
    work: Work,
    rows: usize,
}

/// Rows of one table that wait, all for the same operation, one after the other.
struct Waiting {
    layout: Arc<Layout>,
    work: Work,
    /// The parameters of each row, and the values that identify it.
    rows: Vec<(Texts, Texts)>,
    /// For updates and deletions: a row that comes twice must not be in one statement twice.
    named: HashSet<Texts>,
}

/// Whether rows are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Care {
    /// Many rows of a table in one statement.
    Together,
    /// One row in each statement: a statement for many has failed, perhaps because it processed
    /// them in another order.
    Singly,
}

/// What a statement is for, to describe it if it fails.
struct Purpose {
    /// `None` if the statement is not for one table.
    table: Option<Arc<Layout>>,
    what: &'static str,
    /// The values that identify the row, or the first of the rows.
    row: Texts,
}

impl Purpose {
    fn summary(&self) -> String {
        let texts = self.row.iter().map(|text| match text {
            Some(text) if text.len() <= 60 => String::from_utf8_lossy(text).into_owned(),
            Some(text) => format!("{}…", String::from_utf8_lossy(&text[..60])),
            None => "NULL".to_owned(),
        });
        format!(
            "{} of ({})",
            self.what,
            texts.collect::<Vec<_>>().join(", ")
        )
    }
}

type Outcome = Pin<Box<dyn Future<Output = Result<u64, tokio_postgres::Error>> + Send>>;

/// A statement with an answer that has not been checked.
struct Sent {
    purpose: Purpose,
    /// How many rows it must hit; `None` for any number.
    rows: Option<u64>,
    bytes: usize,
    /// Its result, once it was checked.
    outcome: MaybeDone<Outcome>,
}

/// A connection to the target, with its transaction.
pub(crate) struct Applier {
    pub(crate) session: Arc<Session>,
    statements: LruCache<(u32, Kind), Statement>,
    own: HashMap<&'static str, Statement>,
    sent: VecDeque<Sent>,
    sent_bytes: usize,
    /// The rows that are not sent yet, by table.
    waiting: BTreeMap<u32, Waiting>,
    waiting_bytes: usize,
    pub(crate) care: Care,
    open: bool,
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum CommitOutcome {
    Yes,
    /// A statement of the mover's own did not hit its rows, so nothing of the transaction was
    /// committed.
    No,
}

impl Applier {
    /// Prepares a session for applying.
    ///
    /// Statements are planned once, and always with the indexes, which tables that were just filled
    /// might not get otherwise. There is no lock timeout: an index that is being built at the
    /// target is no reason to give up the group.
    pub(crate) async fn new(session: Session, care: Care) -> Result<Applier, Error> {
        let sql = "SET lock_timeout = 0; SET plan_cache_mode = force_generic_plan; SET \
            enable_seqscan = off;
            SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off;
            SELECT set_config('synchronous_commit', 'on', false)
            WHERE current_setting('synchronous_commit') IN ('off', 'local')";
        session
            .batch("setting up the applying session", sql)
            .await?;
        Ok(Applier {
            session: Arc::new(session),
            statements: LruCache::new(STATEMENTS),
            own: HashMap::new(),
            sent: VecDeque::new(),
            sent_bytes: 0,
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            care,
            open: false,
        })
    }

    /// Inserts a new row.
    pub(crate) async fn insert(&mut self, layout: &Arc<Layout>, row: &Row) -> Result<(), Failure> {
        self.wait(layout, Work::Insert, layout.values(row), Texts::new())
            .await
    }

    /// Inserts a row, given all its values as texts.
    pub(crate) async fn insert_values(
        &mut self,
        layout: &Arc<Layout>,
        values: Texts,
    ) -> Result<(), Failure> {
        self.wait(layout, Work::Insert, values, Texts::new()).await
    }

    /// Sets the columns of the row that `naming` identifies to the values of `new`.
    pub(crate) async fn update(
        &mut self,
        layout: &Arc<Layout>,
        columns: Vec<usize>,
        new: &Row,
        naming: Texts,
    ) -> Result<(), Failure> {
        if columns.is_empty() {
            return Ok(());
        }
        let values = layout.values_of(new, &columns);
        self.wait(layout, Work::Update { columns }, values, naming)
            .await
    }

    /// Deletes the row, which must exist.
    pub(crate) async fn delete(
        &mut self,
        layout: &Arc<Layout>,
        naming: Texts,
    ) -> Result<(), Failure> {
        self.wait(layout, Work::Delete, Texts::new(), naming).await
    }

    /// Deletes the row if it exists.
    pub(crate) async fn delete_if_there(
        &mut self,
        layout: &Arc<Layout>,
        naming: Texts,
    ) -> Result<(), Failure> {
        self.flush(layout.oid).await?;
        let purpose = Purpose {
            table: Some(layout.clone()),
            what: "delete",
            row: naming.clone(),
        };
        self.table_statement(
            purpose,
            Kind {
                work: Work::Delete,
                rows: 1,
            },
            None,
            naming,
        )
        .await
    }

    /// Deletes all rows that match a condition.
    pub(crate) async fn delete_where(
        &mut self,
        layout: &Arc<Layout>,
        condition: &str,
    ) -> Result<(), Failure> {
        self.flush(layout.oid).await?;
        self.begin();
        let purpose = Purpose {
            table: Some(layout.clone()),
            what: "truncate",
            row: Vec::new(),
        };
        let (session, sql) = (self.session.clone(), layout.delete_where(condition));
        let outcome = async move { session.client.batch_execute(&sql).await.map(|()| 0) };
        self.send(purpose, None, 0, Box::pin(outcome));
        self.thin_out().await
    }

    /// Runs a statement of the mover's own in the transaction. One that must hit certain rows
    /// divides by zero if it does not: [`commit`](Applier::commit) does not wait for its answer.
    pub(crate) async fn run_control_statement(
        &mut self,
        what: &'static str,
        sql: &'static str,
        params: Vec<Box<dyn ToSql + Sync + Send>>,
    ) -> Result<(), Failure> {
        self.begin();
        let purpose = Purpose {
            table: None,
            what,
            row: Vec::new(),
        };
        let statement = match self.own.get(sql) {
            Some(statement) => statement.clone(),
            None => {
                let prepared = self.prepare(sql, &purpose).await?;
                self.own.insert(sql, prepared.clone());
                prepared
            }
        };
        let session = self.session.clone();
        let outcome = async move {
            let params: Vec<&(dyn ToSql + Sync)> = params
                .iter()
                .map(|param| &**param as &(dyn ToSql + Sync))
                .collect();
            session.client.execute(&statement, &params).await
        };
        self.send(purpose, None, 0, Box::pin(outcome));
        Ok(())
    }

    /// Waits for all answers.
    pub(crate) async fn settle(&mut self) -> Result<(), Failure> {
        self.flush_all().await?;
        while let Some(sent) = self.sent.pop_front() {
            self.answer(sent).await?;
        }
        Ok(())
    }

    /// Commits, after [`settle`](Applier::settle) and nothing but the mover's own statements since.
    /// The commit is sent behind those, so that a driver behind a fence waits for one answer: if
    /// one of them fails, the server turns it into a rollback.
    pub(crate) async fn commit(&mut self) -> Result<CommitOutcome, Failure> {
        if !self.open {
            return Ok(CommitOutcome::Yes);
        }
        let session = self.session.clone();
        let outcome = async move { session.client.batch_execute("COMMIT").await.map(|()| 0) };
        self.send(
            Purpose {
                table: None,
                what: "committing changes",
                row: Vec::new(),
            },
            None,
            0,
            Box::pin(outcome),
        );
        self.open = false;
        let mut committed = CommitOutcome::Yes;
        while let Some(mut sent) = self.sent.pop_front() {
            (&mut sent.outcome).await;
            // The errors after a failed statement only report that one has failed.
            if committed == CommitOutcome::Yes {
                committed = self.fits(sent)?;
            }
        }
        Ok(committed)
    }

    /// Whether an own statement that is answered has hit its rows.
    fn fits(&self, mut sent: Sent) -> Result<CommitOutcome, Failure> {
        match Pin::new(&mut sent.outcome)
            .take_output()
            .expect("an answer is looked at once")
        {
            Ok(_) => Ok(CommitOutcome::Yes),
            Err(error) if error.code() == Some(&SqlState::DIVISION_BY_ZERO) => {
                Ok(CommitOutcome::No)
            }
            Err(error) => Err(self.failure(&sent.purpose, error)),
        }
    }

    fn begin(&mut self) {
        if !self.open {
            self.open = true;
            let session = self.session.clone();
            let outcome = async move {
                // Deferrable constraints are checked at the end of the transaction, as at the
                // source.
                session
                    .client
                    .batch_execute("BEGIN; SET CONSTRAINTS ALL DEFERRED")
                    .await
                    .map(|()| 0)
            };
            self.send(
                Purpose {
                    table: None,
                    what: "beginning",
                    row: Vec::new(),
                },
                None,
                0,
                Box::pin(outcome),
            );
        }
    }

    async fn flush_all(&mut self) -> Result<(), Failure> {
        while let Some(oid) = self.waiting.keys().next().copied() {
            self.flush(oid).await?;
        }
        self.waiting_bytes = 0;
        Ok(())
    }

    /// Takes in what is to be done to a row. If rows of the table wait for another operation, those
    /// are sent first.
    async fn wait(
        &mut self,
        layout: &Arc<Layout>,
        work: Work,
        mut values: Texts,
        naming: Texts,
    ) -> Result<(), Failure> {
        self.begin();
        let others = self.waiting.get(&layout.oid);
        if others.is_some_and(|others| others.work != work || others.named.contains(&naming)) {
            self.flush(layout.oid).await?;
        }
        values.extend(naming.iter().cloned());
        self.waiting_bytes += values
            .iter()
            .flatten()
            .map(|text| text.len())
            .sum::<usize>();
        let waiting = self.waiting.entry(layout.oid).or_insert_with(|| Waiting {
            layout: layout.clone(),
            work,
            rows: Vec::new(),
            named: HashSet::new(),
        });
        if waiting.work != Work::Insert {
            waiting.named.insert(naming.clone());
        }
        waiting.rows.push((values, naming));
        let alone =
            self.care == Care::Singly || (waiting.work != Work::Insert && !layout.has_key());
        if alone || waiting.rows.len() >= MOST_AT_ONCE {
            self.flush(layout.oid).await?;
        }
        if self.waiting_bytes > BYTES_IN_FLIGHT {
            self.flush_all().await?;
        }
        Ok(())
    }

    /// Sends the rows of a table that wait.
    async fn flush(&mut self, oid: u32) -> Result<(), Failure> {
        let Some(Waiting {
            layout,
            work,
            mut rows,
            ..
        }) = self.waiting.remove(&oid)
        else {
            return Ok(());
        };
        while !rows.is_empty() {
            let rest = rows.split_off(layout.at_once(rows.len()));
            let row = rows
                .first()
                .map(|(values, naming)| if work == Work::Insert { values } else { naming });
            let row = row.cloned().unwrap_or_default();
            let purpose = Purpose {
                table: Some(layout.clone()),
                what: work.name(),
                row,
            };
            let kind = Kind {
                work: work.clone(),
                rows: rows.len(),
            };
            let count = rows.len() as u64;
            let values = rows.into_iter().flat_map(|(values, _)| values).collect();
            self.table_statement(purpose, kind, Some(count), values)
                .await?;
            rows = rest;
        }
        Ok(())
    }

    async fn table_statement(
        &mut self,
        purpose: Purpose,
        kind: Kind,
        rows: Option<u64>,
        values: Texts,
    ) -> Result<(), Failure> {
        self.begin();
        let layout = purpose
            .table
            .clone()
            .expect("a statement of a table has one");
        let statement = self.prepared(&layout, kind, &purpose).await?;
        let session = self.session.clone();
        let bytes = values.iter().flatten().map(|text| text.len()).sum();
        let outcome = async move {
            session
                .client
                .execute_raw(&statement, values.into_iter().map(Text).collect::<Vec<_>>())
                .await
        };
        self.send(purpose, rows, bytes, Box::pin(outcome));
        self.thin_out().await
    }

    async fn prepared(
        &mut self,
        layout: &Layout,
        kind: Kind,
        purpose: &Purpose,
    ) -> Result<Statement, Failure> {
        let key = (layout.oid, kind);
        if let Some(statement) = self.statements.get(&key) {
            return Ok(statement.clone());
        }
        let sql = match &key.1 {
            Kind {
                work: Work::Insert,
                rows,
            } => layout.insert(*rows),
            Kind {
                work: Work::Update { columns },
                rows,
            } => layout.update(columns, *rows),
            Kind {
                work: Work::Delete,
                rows,
            } => layout.delete(*rows),
        };
        let statement = self.prepare(&sql, purpose).await?;
        self.statements.put(key, statement.clone());
        Ok(statement)
    }

    async fn prepare(&mut self, sql: &str, purpose: &Purpose) -> Result<Statement, Failure> {
        let session = self.session.clone();
        match self.behind(session.client.prepare(sql)).await {
            Ok(statement) => Ok(statement),
            Err(error) => {
                // If an earlier statement has failed, that is the reason.
                while let Some(sent) = self.sent.pop_front() {
                    self.answer(sent).await?;
                }
                Err(self.failure(purpose, error))
            }
        }
    }

    /// Waits for the queries behind the statements that are on their way, and takes their answers
    /// during that time. A connection hands answers out in their order: one that arrives in several
    /// pieces, as a network may cut it, delays all behind it until it is taken.
    async fn behind<T>(&mut self, asked: impl Future<Output = T>) -> T {
        let mut asked = pin!(asked);
        poll_fn(|context| {
            for sent in &mut self.sent {
                if Pin::new(&mut sent.outcome).poll(context).is_pending() {
                    break;
                }
            }
            asked.as_mut().poll(context)
        })
        .await
    }

    /// Sends a statement: the first poll of an execution sends it, and later ones look for the
    /// answer.
    fn send(&mut self, purpose: Purpose, rows: Option<u64>, bytes: usize, outcome: Outcome) {
        let mut outcome = maybe_done(outcome);
        let _ = Pin::new(&mut outcome).poll(&mut Context::from_waker(Waker::noop()));
        self.sent_bytes += bytes;
        self.sent.push_back(Sent {
            purpose,
            rows,
            bytes,
            outcome,
        });
    }

    /// Waits for answers while too many are outstanding.
    async fn thin_out(&mut self) -> Result<(), Failure> {
        while self.sent.len() > IN_FLIGHT || self.sent_bytes > BYTES_IN_FLIGHT {
            let Some(sent) = self.sent.pop_front() else {
                break;
            };
            self.answer(sent).await?;
        }
        Ok(())
    }

    async fn answer(&mut self, mut sent: Sent) -> Result<(), Failure> {
        self.sent_bytes -= sent.bytes;
        (&mut sent.outcome).await;
        match Pin::new(&mut sent.outcome)
            .take_output()
            .expect("an answer is looked at once")
        {
            Ok(rows) => match (&sent.purpose.table, sent.rows) {
                (Some(layout), Some(expected)) if rows != expected => {
                    let what = format!(
                        "{} hit {rows} rows instead of {expected}",
                        sent.purpose.summary()
                    );
                    Err(diverged(layout.shard, layout, what))
                }
                _ => Ok(()),
            },
            Err(error) => Err(self.failure(&sent.purpose, error)),
        }
    }

    /// An error of a statement for a table is the shard's if it is about data or names; any other
    /// may be temporary.
    fn failure(&self, purpose: &Purpose, error: tokio_postgres::Error) -> Failure {
        if let (Some(layout), Some(refused)) = (&purpose.table, error.as_db_error())
            && ["22", "23", "42", "3F", "0A", "P0", "54", "44"]
                .iter()
                .any(|class| refused.code().code().starts_with(class))
        {
            let what = format!(
                "{} failed: {}",
                purpose.summary(),
                cause::server_message(refused)
            );
            return diverged(layout.shard, layout, what);
        }
        self.session.failed("applying changes", error).into()
    }
}

fn diverged(shard: ShardId, layout: &Layout, what: String) -> Failure {
    Failure::Shard(
        shard,
        Fault::Diverged {
            table: layout.name.clone(),
            what,
        },
    )
}
