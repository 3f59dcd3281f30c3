//! Whether a connection that is waited on is alive.
//!
//! A server may work on a statement for hours and send nothing. A connection that has lost its
//! other side, or that a firewall or a proxy has forgotten, is silent too. The kernel notices only
//! where the peer's kernel does not answer. So after a long wait another connection checks whether
//! the server is at work on this one.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};

use super::options::ConnectOptions;

/// What the guards of a connection note.
#[derive(Default)]
pub(super) struct Vitals {
    /// Answers that were requested and have not ended. Negative for no longer than two threads
    /// need.
    awaited: AtomicU64,
    ended: AtomicU64,
    progress: AtomicU64,
    /// Whether the server has sent anything at all.
    heard: AtomicBool,
    /// The last look for something to read found nothing.
    starving: AtomicBool,
    /// The last write was not taken.
    choking: AtomicBool,
    /// The process that serves the connection; 0: not known.
    pid: AtomicI32,
    /// Whether a transaction was open when the server was last ready for a statement.
    in_transaction: AtomicBool,
}

impl Vitals {
    pub(super) fn note_request(&self) {
        self.awaited.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn answered(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn progress(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Only where messages are looked at.
    pub(super) fn starves(&self, looked_at: bool, starving: bool) {
        if looked_at {
            self.starving.store(starving, Ordering::Relaxed);
        }
    }

    /// The same for sending.
    pub(super) fn chokes(&self, looked_at: bool, choking: bool) {
        if looked_at {
            self.choking.store(choking, Ordering::Relaxed);
        }
    }

    pub(super) fn is_served_by(&self, pid: i32) {
        self.pid.store(pid, Ordering::Relaxed);
    }

    /// The server is ready for a statement: `I` idle, `T` in a transaction, `E` in one that failed.
    pub(super) fn is_ready(&self, status: u8) {
        self.in_transaction.store(status != b'I', Ordering::Relaxed);
    }

    pub(super) fn is_in_transaction(&self) -> bool {
        self.in_transaction.load(Ordering::Relaxed)
    }

    pub(super) fn hears(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    pub(super) fn answer_count(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Whether an answer has not ended.
    pub(super) fn is_awaiting(&self) -> bool {
        self.awaited.load(Ordering::Relaxed) > self.ended.load(Ordering::Relaxed)
    }

    /// Whether the server has to send next. Not where rows are there that were not read yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.is_awaiting() && self.starving.load(Ordering::Relaxed)
            || self.choking.load(Ordering::Relaxed)
    }
}

/// What the server's answer means for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// It is at work, or that cannot be known.
    Busy,
    /// It waits for us, as we do for it.
    Idle,
    /// The process that served the connection has ended.
    Ended,
    /// The server does not answer.
    Silent,
}

/// What a process does, as the server shows it to the role that it works for.
const WHAT_IT_DOES: &str = "SELECT state, wait_event_type FROM pg_catalog.pg_stat_activity \
    WHERE pid OPERATOR(pg_catalog.=) $1";

/// This many looks must find that a connection is dead. An answer may be on its way at the time of
/// one.
pub(super) const LOOKS: u32 = 2;

/// How long a connection may be silent while its server has the next word.
pub(crate) struct Patience {
    /// Before the first check.
    pub(crate) idle: Duration,
    /// Between two questions.
    pub(crate) interval: Duration,
}

impl ConnectOptions {
    /// What the options for the kernel's own keepalives mean for it; `None` with `keepalives=0`.
    pub(crate) fn patience(&self) -> Option<Patience> {
        let interval = self
            .config
            .get_keepalives_interval()
            .unwrap_or(Duration::from_secs(10));
        self.config.get_keepalives().then(|| Patience {
            idle: self.config.get_keepalives_idle(),
            interval,
        })
    }
}

/// Looks after one connection.
pub(super) struct Watch {
    pub(super) options: ConnectOptions,
    pub(super) index: usize,
    pub(super) vitals: Arc<Vitals>,
}

impl Watch {
    /// Returns when the connection is dead, with the reason. `keepalives_idle` is how long nothing
    /// may come before the first check, `keepalives_interval` how often it is repeated then, and
    /// with `keepalives=0` there is none.
    pub(super) async fn given_up(self) -> String {
        let Some(Patience { idle, interval }) = self.options.patience() else {
            return std::future::pending().await;
        };
        let (mut seen, mut since, mut looks) = (self.vitals.answer_count(), Instant::now(), 0);
        loop {
            tokio::time::sleep(interval.min(idle)).await;
            let now = self.vitals.answer_count();
            if now != seen || !self.vitals.is_waiting() {
                (seen, since, looks) = (now, Instant::now(), 0);
            }
            if since.elapsed() < idle {
                continue;
            }
            let sign = check_progress(
                self.options.clone(),
                self.index,
                self.vitals.pid.load(Ordering::Relaxed),
            )
            .await;
            looks = if sign == Sign::Busy { 0 } else { looks + 1 };
            if looks >= LOOKS && self.vitals.answer_count() == seen {
                let seconds = since.elapsed().as_secs();
                return format!(
                    "nothing came on it for {seconds} s, and {}",
                    match sign {
                        Sign::Ended => "the server has no such session any more",
                        Sign::Silent => "the server takes no other connection either",
                        _ => "the server says that it waits for us",
                    }
                );
            }
        }
    }
}

/// Checks over another connection what the process does. In a box, since it opens a connection,
/// which a watch belongs to.
pub(super) fn check_progress(
    options: ConnectOptions,
    index: usize,
    pid: i32,
) -> Pin<Box<dyn Future<Output = Sign> + Send>> {
    Box::pin(async move {
        let connection = match options.reach_unwatched(index, "pgshard watch").await {
            Ok(connection) => connection,
            Err(error) if error.is_unreachable() => return Sign::Silent,
            // It answers, but not this: it may have no place for another connection.
            Err(_) => return Sign::Busy,
        };
        if pid == 0 {
            return Sign::Busy;
        }
        let params: [(&(dyn ToSql + Sync), Type); 1] = [(&pid, Type::INT4)];
        let asked = connection.query_typed(WHAT_IT_DOES, &params);
        let rows = match tokio::time::timeout(options.connect_timeout(), asked).await {
            Ok(Ok(rows)) => rows,
            Ok(Err(error)) if error.as_db_error().is_some() => return Sign::Busy,
            _ => return Sign::Silent,
        };
        let Some(row) = rows.first() else {
            return Sign::Ended;
        };
        let text = |column: usize| row.try_get::<_, Option<String>>(column).ok().flatten();
        match (text(0).as_deref(), text(1).as_deref()) {
            (Some("active"), Some("Client" | "Activity")) => Sign::Idle,
            (Some(state), _) if state.starts_with("idle") => Sign::Idle,
            _ => Sign::Busy,
        }
    })
}
