//! One call of an application: its time limit, its span and its count, however the call ends.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::error::Error;
use super::host::Host;
use super::outcome::Outcome;
use super::target::Target;
use crate::map::HostName;

/// Makes the span of a call. The empty fields are filled when the call ends. The names with dots
/// are OpenTelemetry's for database clients, the others are ours.
macro_rules! call_span {
    ($name:literal, $shard:expr) => {
        tracing::debug_span!(
            $name,
            "otel.kind" = "client",
            "otel.status_code" = tracing::field::Empty,
            "db.system.name" = "postgresql",
            "db.response.status_code" = tracing::field::Empty,
            "error.type" = tracing::field::Empty,
            shard = %$shard,
            host = tracing::field::Empty,
            outcome = tracing::field::Empty,
            retries = tracing::field::Empty,
        )
    };
}
pub(super) use call_span;

pub(super) struct Call<'r> {
    target: Target<'r>,
    began: Instant,
    span: Span,
    /// Whether what was sent may take effect on the server.
    sent: AtomicBool,
    tries: AtomicU32,
    /// The host that gave the answer. Where it is not known, the call counts for the host that
    /// serves the shard.
    answered_by: OnceLock<Arc<Host>>,
    ended: bool,
}

/// What is known of a call that failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallFailure {
    pub(super) outcome: Outcome,
    /// The SQLSTATE.
    code: Option<[u8; 5]>,
}

impl CallFailure {
    pub(super) fn new(outcome: Outcome) -> CallFailure {
        CallFailure {
            outcome,
            code: None,
        }
    }

    /// Whether it is a conflict with another transaction.
    pub(super) fn is_conflict(self) -> bool {
        self.code
            .is_some_and(|code| [*b"40001", *b"40P01"].contains(&code))
    }

    pub(super) fn of(error: &Error) -> CallFailure {
        let code = error
            .code()
            .and_then(|code| code.code().as_bytes().try_into().ok());
        CallFailure {
            outcome: Outcome::of(error),
            code,
        }
    }
}

impl<'r> Call<'r> {
    pub(super) fn new(target: Target<'r>, span: Span) -> Call<'r> {
        Call {
            target,
            began: Instant::now(),
            span,
            sent: AtomicBool::new(false),
            tries: AtomicU32::new(0),
            answered_by: OnceLock::new(),
            ended: false,
        }
    }

    /// Runs a call to its end, or to its time limit. The work is pinned by the caller: each future
    /// that it is handed to as a value would contain it once more.
    pub(super) async fn limited<T, E: From<Error>>(
        &self,
        work: Pin<&mut impl Future<Output = Result<T, E>>>,
    ) -> Result<T, E> {
        let Some(limit) = self.target.limit else {
            return self.spanned(work).await;
        };
        match tokio::time::timeout(limit, self.spanned(work)).await {
            Ok(answer) => answer,
            Err(_) => Err(E::from(
                self.target
                    .timed_out(limit, self.sent.load(Ordering::Relaxed)),
            )),
        }
    }

    /// Without a span there is nothing to enter and to leave.
    async fn spanned<T>(&self, work: Pin<&mut impl Future<Output = T>>) -> T {
        if self.span.is_disabled() {
            work.await
        } else {
            work.instrument(self.span.clone()).await
        }
    }

    /// Records how the call ended; `fault` classifies an error.
    pub(super) fn ended<T, E>(
        mut self,
        result: &Result<T, E>,
        fault: impl FnOnce(&E) -> CallFailure,
    ) {
        self.end(result.as_ref().err().map(fault));
    }

    /// Counts another try.
    pub(super) fn tries(&self) {
        self.tries.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes which host gave the answer.
    pub(super) fn answered_by(&self, host: Arc<Host>) {
        let _ = self.answered_by.set(host);
    }

    /// The host that gave the answer.
    pub(super) fn host_name(&self) -> Option<HostName> {
        self.answered_by.get().map(|host| host.name.clone())
    }

    /// Records whether what is on its way may take effect. If the call reaches its limit, its error
    /// reports that to the caller.
    pub(super) fn may_take_effect(&self, may: bool) {
        self.sent.store(may, Ordering::Relaxed);
    }

    fn end(&mut self, fault: Option<CallFailure>) {
        self.ended = true;
        let outcome = fault.map_or(Outcome::Ok, |fault| fault.outcome);
        let took = self.began.elapsed();
        let host = match self.answered_by.get() {
            Some(host) => {
                host.metrics.request(&host.name, took, outcome);
                if self.span.is_disabled() {
                    None
                } else {
                    Some(host.name.clone())
                }
            }
            None => self.target.router.count(self.target.shard, took, outcome),
        };
        if self.span.is_disabled() {
            return;
        }
        if let Some(host) = host {
            self.span.record("host", tracing::field::display(host));
        }
        self.span.record("outcome", outcome.as_str());
        self.span.record(
            "retries",
            self.tries.load(Ordering::Relaxed).saturating_sub(1),
        );
        let code = fault.and_then(|fault| fault.code);
        let code = code
            .as_ref()
            .and_then(|code| std::str::from_utf8(code).ok());
        if let Some(code) = code {
            self.span.record("db.response.status_code", code);
        }
        if outcome != Outcome::Ok {
            self.span.record("otel.status_code", "ERROR");
            self.span
                .record("error.type", code.unwrap_or(outcome.as_str()));
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.end(Some(CallFailure::new(Outcome::Dropped)));
        }
    }
}
