//! Decides what a call does after a try. There is no I/O here: the caller observes the try, and
//! runs the step.
//!
//! Invariants: a statement that may write and may have run is not run again. A transaction in which
//! a statement met a signpost is not committed. A call reconnects once, prepares its statements
//! again once, and is run again after as many conflicts as its caller allows. A move and a
//! fail-over are followed until the time for them is over ([`super::recover`]).

use super::stale::MoveSignal;
use super::statements::Prepare;

/// What a call has tried already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TryHistory {
    /// How the next try prepares its statements.
    pub(super) prepare: Prepare,
    reconnected: bool,
    /// How many times it was run again after a conflict.
    pub(super) conflicts: u32,
    conflicts_max: u32,
}

impl TryHistory {
    /// Nothing yet. After conflicts, the call is run again `conflicts_max` times.
    pub(super) fn nothing(conflicts_max: u32) -> TryHistory {
        TryHistory {
            prepare: Prepare::Once,
            reconnected: false,
            conflicts: 0,
            conflicts_max,
        }
    }

    pub(super) fn record(&mut self, retry: Retry) {
        match retry {
            Retry::Reconnected => self.reconnected = true,
            Retry::PreparedAgain => self.prepare = Prepare::Again,
            Retry::AfterConflict => self.conflicts += 1,
            Retry::AfterMove | Retry::AfterFailover | Retry::Elsewhere => {}
        }
    }
}

/// What servers have replied since the try failed. `None` is a question that was not sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Answers {
    pub(super) role: Option<ServerRole>,
    pub(super) origin: Option<ErrorOrigin>,
}

/// What the server is that refused to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerRole {
    Primary,
    Standby,
}

/// What caused an error, by the shard's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorOrigin {
    /// The host has served the shard all the time.
    Application,
    /// A move has, or it cannot be found out.
    Move,
}

/// The next thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step<E> {
    /// Query a server. Then there is another step.
    Query(Query),
    /// Run the call again.
    Retry(Retry),
    /// The call is over.
    End(E),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Query {
    /// Whether the server is a standby.
    Role,
    /// What caused the error; nothing is waited for.
    Origin(MoveSignal),
    /// The same, and the move is followed until another try is worth it.
    Move(MoveSignal),
}

/// Why a call is run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// A move was followed.
    AfterMove,
    /// The pool's connection was dead already.
    Reconnected,
    /// The statement had been prepared for what has changed since.
    PreparedAgain,
    /// The server is a standby by now: on a new connection, after a pause.
    AfterFailover,
    /// Another transaction was in the way: after a pause.
    AfterConflict,
    /// A read left its standby, or a statement the connection that it shared: on a connection of
    /// its own to the primary, with the tries that a call has there.
    Elsewhere,
}

/// A statement that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FailedStatement {
    pub(super) connection: ConnectionKind,
    pub(super) link: Link,
    pub(super) fate: Fate,
    pub(super) effect: Effect,
    /// How its error may come from a move.
    pub(super) signal: Option<MoveSignal>,
    /// It had been prepared before, and may succeed if it is prepared again.
    pub(super) outdated: bool,
    /// The server refused to write, where the statement may.
    pub(super) refused_to_write: bool,
}

/// The connection that a statement was sent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionKind {
    /// One that the call has for itself.
    Own,
    /// One that other statements use at the same time.
    Shared {
        /// The error is another statement's, or comes from being together.
        blameless: bool,
    },
    /// A standby's.
    Standby {
        /// The statement took too long there, or was cancelled.
        cancelled: bool,
    },
}

/// What the failure has left of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Kept,
    Lost,
}

/// What became of a statement that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was not sent for execution.
    NotSent,
    /// The server has ended it with an error.
    Refused,
    /// There is no answer, or none that can be read.
    Unknown,
}

/// What a statement can leave behind when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Effect {
    /// It is not declared as read-only.
    pub(super) may_write: bool,
    /// The server undoes what it has ended. It does not for what can commit before its end.
    pub(super) repeatable: bool,
}

impl Effect {
    /// The effect of a statement that only reads.
    pub(super) const READS: Effect = Effect {
        may_write: false,
        repeatable: true,
    };
}

impl FailedStatement {
    /// BEGIN: it has no effect, and meets no signpost.
    pub(super) fn begin(link: Link) -> FailedStatement {
        FailedStatement {
            connection: ConnectionKind::Own,
            link,
            fate: Fate::NotSent,
            effect: Effect::READS,
            signal: None,
            outdated: false,
            refused_to_write: false,
        }
    }

    fn may_have_run(self) -> bool {
        self.effect.may_write
            && match self.fate {
                Fate::NotSent => false,
                Fate::Refused => !self.effect.repeatable,
                Fate::Unknown => true,
            }
    }
}

/// How a call ends with a statement that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatementEnd {
    ConnectionLost {
        may_have_run: bool,
    },
    /// With the error of the server or the driver.
    Refused {
        may_have_run: bool,
    },
    /// It met a move, and may have committed in part.
    NotRepeated,
}

/// The next step after a statement that failed.
pub(super) fn after_statement(
    tried: TryHistory,
    failed: FailedStatement,
    answers: Answers,
) -> Step<StatementEnd> {
    match failed.connection {
        ConnectionKind::Own => on_own_connection(tried, failed, answers),
        ConnectionKind::Shared { blameless } => on_shared_connection(failed, blameless),
        ConnectionKind::Standby { cancelled } => on_standby(failed, cancelled),
    }
}

fn on_own_connection(
    tried: TryHistory,
    failed: FailedStatement,
    answers: Answers,
) -> Step<StatementEnd> {
    let may_have_run = failed.may_have_run();
    let refused = Step::End(StatementEnd::Refused { may_have_run });
    let repeatable = failed.effect.repeatable;
    match (failed.link, failed.fate) {
        (Link::Lost, Fate::NotSent) if !tried.reconnected => {
            return Step::Retry(Retry::Reconnected);
        }
        (Link::Lost, _) => return Step::End(StatementEnd::ConnectionLost { may_have_run }),
        (Link::Kept, Fate::Unknown) => return refused,
        (Link::Kept, Fate::NotSent | Fate::Refused) => {}
    }
    if failed.refused_to_write && repeatable {
        match answers.role {
            None => return Step::Query(Query::Role),
            Some(ServerRole::Standby) => return Step::Retry(Retry::AfterFailover),
            Some(ServerRole::Primary) => {}
        }
    }
    let outdated = failed.outdated && repeatable && tried.prepare == Prepare::Once;
    match (failed.signal, answers.origin) {
        // What can commit before its end is not run again. Without a signpost, the error may be
        // the application's.
        (Some(MoveSignal::Ambiguous), None) if !repeatable => {
            Step::Query(Query::Origin(MoveSignal::Ambiguous))
        }
        (Some(MoveSignal::Ambiguous), Some(ErrorOrigin::Application)) if !repeatable => refused,
        (Some(_), _) if !repeatable => Step::End(StatementEnd::NotRepeated),
        (Some(signal), None) => Step::Query(Query::Move(signal)),
        (Some(_), Some(ErrorOrigin::Move)) => Step::Retry(Retry::AfterMove),
        (None, _) | (Some(_), Some(ErrorOrigin::Application)) if outdated => {
            Step::Retry(Retry::PreparedAgain)
        }
        (None, _) | (Some(_), Some(ErrorOrigin::Application)) => refused,
    }
}

/// A connection that is shared is given back before anything is waited for. So what another try can
/// change is run again elsewhere.
fn on_shared_connection(failed: FailedStatement, blameless: bool) -> Step<StatementEnd> {
    let may_have_run = failed.may_have_run();
    let elsewhere = blameless
        || failed.link == Link::Lost
        || failed.signal.is_some()
        || failed.outdated
        || failed.refused_to_write;
    match failed.link {
        _ if elsewhere && !may_have_run => Step::Retry(Retry::Elsewhere),
        Link::Lost => Step::End(StatementEnd::ConnectionLost { may_have_run }),
        Link::Kept => Step::End(StatementEnd::Refused { may_have_run }),
    }
}

/// An error of a standby is not final, unless another try would take as long.
fn on_standby(failed: FailedStatement, cancelled: bool) -> Step<StatementEnd> {
    if cancelled && failed.link == Link::Kept {
        return Step::End(StatementEnd::Refused {
            may_have_run: failed.may_have_run(),
        });
    }
    Step::Retry(Retry::Elsewhere)
}

/// A transaction when its closure has returned. If a statement in it failed or the closure gave an
/// error, it is rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReturnedClosure {
    /// The closure gave `Ok`.
    pub(super) succeeded: bool,
    /// A statement failed, and no ROLLBACK TO has undone it.
    pub(super) failed: bool,
    /// The connection is there.
    pub(super) connected: bool,
    /// The worst signal that a statement met.
    pub(super) signal: Option<MoveSignal>,
    /// A statement had been prepared before, and may succeed if it is prepared again.
    pub(super) outdated: bool,
    /// The server refused to write, where the transaction may.
    pub(super) refused_to_write: bool,
    /// The last statement that failed was in conflict with another transaction.
    pub(super) conflict: bool,
}

/// How a call ends with a closure that has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClosureEnd {
    /// With COMMIT.
    Commit,
    /// With the closure's error.
    Error,
    /// A statement had failed, although the closure gave `Ok`.
    TransactionFailed,
}

/// The next step after a closure has returned. What the closure met counts, not what it returned.
pub(super) fn after_closure(
    tried: TryHistory,
    closure: ReturnedClosure,
    answers: Answers,
) -> Step<ClosureEnd> {
    // Nothing that was read on a standby counts, even if a savepoint caught the refusal.
    if closure.refused_to_write && closure.connected {
        match answers.role {
            None => return Step::Query(Query::Role),
            Some(ServerRole::Standby) => return Step::Retry(Retry::AfterFailover),
            Some(ServerRole::Primary) => {}
        }
    }
    match (closure.signal, answers.origin) {
        (Some(signal), None) => return Step::Query(Query::Move(signal)),
        (Some(_), Some(ErrorOrigin::Move)) => return Step::Retry(Retry::AfterMove),
        (Some(_), Some(ErrorOrigin::Application))
            if closure.outdated && tried.prepare == Prepare::Once =>
        {
            return Step::Retry(Retry::PreparedAgain);
        }
        (Some(_), Some(ErrorOrigin::Application)) | (None, _) => {}
    }
    if !closure.succeeded {
        return if closure.conflict && tried.conflicts < tried.conflicts_max {
            Step::Retry(Retry::AfterConflict)
        } else {
            Step::End(ClosureEnd::Error)
        };
    }
    let met_signpost = closure.signal == Some(MoveSignal::Signpost);
    if closure.failed || !closure.connected || met_signpost {
        return Step::End(ClosureEnd::TransactionFailed);
    }
    Step::End(ClosureEnd::Commit)
}

/// A COMMIT that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FailedCommit {
    pub(super) report: CommitReport,
    /// How its error may come from a move: a deferred trigger may run into a signpost.
    pub(super) signal: Option<MoveSignal>,
}

/// What the server has reported about a COMMIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitReport {
    /// Nothing, or that a statement had ended the transaction, perhaps with COMMIT.
    Nothing,
    /// The transaction had failed before.
    FailedBefore,
    /// Another transaction was in the way.
    Conflict,
    /// It was refused for another reason, so nothing is committed.
    Refused,
}

/// How a call ends with a COMMIT that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitEnd {
    InDoubt,
    TransactionFailed,
    /// With the server's error.
    Refused,
}

/// The next step after COMMIT has failed.
pub(super) fn after_commit(
    tried: TryHistory,
    failed: FailedCommit,
    answers: Answers,
) -> Step<CommitEnd> {
    match (failed.report, failed.signal, answers.origin) {
        (CommitReport::Nothing, _, _) => Step::End(CommitEnd::InDoubt),
        (CommitReport::FailedBefore, _, _) => Step::End(CommitEnd::TransactionFailed),
        (CommitReport::Conflict, _, _) if tried.conflicts < tried.conflicts_max => {
            Step::Retry(Retry::AfterConflict)
        }
        (_, Some(signal), None) => Step::Query(Query::Move(signal)),
        (_, Some(_), Some(ErrorOrigin::Move)) => Step::Retry(Retry::AfterMove),
        (_, None, _) | (_, Some(_), Some(ErrorOrigin::Application)) => {
            Step::End(CommitEnd::Refused)
        }
    }
}

#[cfg(test)]
#[path = "next_tests.rs"]
mod tests;
