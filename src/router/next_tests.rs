//! Tests of the decision, over everything that can be observed.

use std::fmt;

use proptest::prelude::*;

use super::*;

const BOOLS: [bool; 2] = [false, true];
const SIGNALS: [Option<MoveSignal>; 3] = [
    None,
    Some(MoveSignal::Signpost),
    Some(MoveSignal::Ambiguous),
];
const ROLES: [ServerRole; 2] = [ServerRole::Primary, ServerRole::Standby];
const ORIGINS: [ErrorOrigin; 2] = [ErrorOrigin::Application, ErrorOrigin::Move];

const FIRST: TryHistory = TryHistory {
    prepare: Prepare::Once,
    reconnected: false,
    conflicts: 0,
    conflicts_max: 1,
};
const LAST: TryHistory = TryHistory {
    prepare: Prepare::Again,
    reconnected: true,
    conflicts: 1,
    conflicts_max: 1,
};

/// A write that the server has refused for a reason of its own.
const WRITE: FailedStatement = FailedStatement {
    connection: ConnectionKind::Own,
    link: Link::Kept,
    fate: Fate::Refused,
    effect: Effect {
        may_write: true,
        repeatable: true,
    },
    signal: None,
    outdated: false,
    refused_to_write: false,
};
const READ: FailedStatement = FailedStatement {
    effect: Effect::READS,
    ..WRITE
};
/// As CALL.
const PARTIAL: FailedStatement = FailedStatement {
    effect: Effect {
        may_write: true,
        repeatable: false,
    },
    ..WRITE
};
const DONE: ReturnedClosure = ReturnedClosure {
    succeeded: true,
    failed: false,
    connected: true,
    signal: None,
    outdated: false,
    refused_to_write: false,
    conflict: false,
};
const ROLLED_BACK: ReturnedClosure = ReturnedClosure {
    succeeded: false,
    ..DONE
};

fn sent_on(failed: FailedStatement, connection: ConnectionKind) -> FailedStatement {
    FailedStatement {
        connection,
        ..failed
    }
}

fn lost(failed: FailedStatement, fate: Fate) -> FailedStatement {
    FailedStatement {
        link: Link::Lost,
        fate,
        ..failed
    }
}

fn with_fate(failed: FailedStatement, fate: Fate) -> FailedStatement {
    FailedStatement { fate, ..failed }
}

fn met(failed: FailedStatement, signal: MoveSignal) -> FailedStatement {
    FailedStatement {
        signal: Some(signal),
        ..failed
    }
}

fn outdated(failed: FailedStatement) -> FailedStatement {
    FailedStatement {
        outdated: true,
        ..failed
    }
}

fn refused_to_write(failed: FailedStatement) -> FailedStatement {
    FailedStatement {
        refused_to_write: true,
        ..failed
    }
}

const NONE: Answers = Answers {
    role: None,
    origin: None,
};
const PRIMARY: Answers = Answers {
    role: Some(ServerRole::Primary),
    ..NONE
};
const STANDBY: Answers = Answers {
    role: Some(ServerRole::Standby),
    ..NONE
};
const APPLICATION: Answers = Answers {
    origin: Some(ErrorOrigin::Application),
    ..NONE
};
const MOVED: Answers = Answers {
    origin: Some(ErrorOrigin::Move),
    ..NONE
};

type Cases<'a, T, E> = (TryHistory, Answers, &'a [(T, Step<E>)]);

/// Checks what is decided in each of these cases, by what was tried and answered before.
fn check<T, E>(next: impl Fn(TryHistory, T, Answers) -> Step<E>, cases: &[Cases<'_, T, E>])
where
    T: Copy + fmt::Debug,
    E: Copy + fmt::Debug + PartialEq,
{
    for (tried, answers, cases) in cases {
        for (seen, expected) in *cases {
            let step = next(*tried, *seen, *answers);
            assert_eq!(step, *expected, "{tried:?} {seen:?} {answers:?}");
        }
    }
}

#[test]
fn what_comes_after_a_statement() {
    use Fate::{NotSent, Unknown};
    use MoveSignal::{Ambiguous, Signpost};
    let refused = |may_have_run| Step::End(StatementEnd::Refused { may_have_run });
    let gone = |may_have_run| Step::End(StatementEnd::ConnectionLost { may_have_run });
    let not_repeated = Step::End(StatementEnd::NotRepeated);
    let again = Step::Retry;
    let query = Step::Query;
    let shared = |failed| sent_on(failed, ConnectionKind::Shared { blameless: false });
    let blameless = |failed| sent_on(failed, ConnectionKind::Shared { blameless: true });
    let standby = |failed| sent_on(failed, ConnectionKind::Standby { cancelled: false });
    let cancelled = |failed| sent_on(failed, ConnectionKind::Standby { cancelled: true });
    let elsewhere = again(Retry::Elsewhere);
    let on_own_connection: &[(TryHistory, Answers, &[_])] = &[
        (
            FIRST,
            NONE,
            &[
                // The connection was dead already, or is lost with the statement.
                (lost(WRITE, NotSent), again(Retry::Reconnected)),
                (
                    FailedStatement::begin(Link::Lost),
                    again(Retry::Reconnected),
                ),
                (lost(WRITE, Unknown), gone(true)),
                (lost(READ, Unknown), gone(false)),
                (lost(PARTIAL, Unknown), gone(true)),
                // The answer cannot be read.
                (with_fate(WRITE, Unknown), refused(true)),
                (with_fate(READ, Unknown), refused(false)),
                // The application's error.
                (WRITE, refused(false)),
                (PARTIAL, refused(true)),
                (with_fate(PARTIAL, NotSent), refused(false)),
                (FailedStatement::begin(Link::Kept), refused(false)),
                // The server refused to write, or the statement had been prepared before.
                (refused_to_write(WRITE), query(Query::Role)),
                (refused_to_write(PARTIAL), refused(true)),
                (outdated(WRITE), again(Retry::PreparedAgain)),
                (outdated(PARTIAL), refused(true)),
                // It met a move, or may have.
                (met(WRITE, Signpost), query(Query::Move(Signpost))),
                (
                    met(outdated(WRITE), Ambiguous),
                    query(Query::Move(Ambiguous)),
                ),
                // What can commit before its end is not run again.
                (met(PARTIAL, Signpost), not_repeated),
                (met(PARTIAL, Ambiguous), query(Query::Origin(Ambiguous))),
            ],
        ),
        (
            LAST,
            NONE,
            &[
                (lost(WRITE, NotSent), gone(false)),
                (FailedStatement::begin(Link::Lost), gone(false)),
                (outdated(WRITE), refused(false)),
                (met(READ, Ambiguous), query(Query::Move(Ambiguous))),
            ],
        ),
        (
            FIRST,
            STANDBY,
            &[(refused_to_write(WRITE), again(Retry::AfterFailover))],
        ),
        (FIRST, PRIMARY, &[(refused_to_write(WRITE), refused(false))]),
        (
            FIRST,
            APPLICATION,
            &[
                (met(WRITE, Ambiguous), refused(false)),
                (met(outdated(WRITE), Ambiguous), again(Retry::PreparedAgain)),
                (met(PARTIAL, Ambiguous), refused(true)),
                (met(READ, Signpost), refused(false)),
            ],
        ),
        (
            LAST,
            APPLICATION,
            &[(met(outdated(WRITE), Ambiguous), refused(false))],
        ),
        (
            LAST,
            MOVED,
            &[
                (met(WRITE, Signpost), again(Retry::AfterMove)),
                (met(outdated(READ), Ambiguous), again(Retry::AfterMove)),
                (met(PARTIAL, Ambiguous), not_repeated),
            ],
        ),
    ];
    check(after_statement, on_own_connection);
    let on_another: &[(FailedStatement, Step<StatementEnd>)] = &[
        // On a connection that is shared, nothing is waited for.
        (shared(lost(WRITE, NotSent)), elsewhere),
        (shared(lost(READ, Unknown)), elsewhere),
        (shared(lost(WRITE, Unknown)), gone(true)),
        (shared(met(WRITE, Signpost)), elsewhere),
        (shared(met(WRITE, Ambiguous)), elsewhere),
        (shared(outdated(WRITE)), elsewhere),
        (shared(refused_to_write(WRITE)), elsewhere),
        (shared(WRITE), refused(false)),
        (shared(with_fate(WRITE, Unknown)), refused(true)),
        (blameless(WRITE), elsewhere),
        // A standby's error is not final.
        (standby(lost(READ, Unknown)), elsewhere),
        (standby(READ), elsewhere),
        (standby(met(READ, Signpost)), elsewhere),
        (cancelled(READ), refused(false)),
        (cancelled(lost(READ, Unknown)), elsewhere),
    ];
    check(
        after_statement,
        &[(FIRST, NONE, on_another), (LAST, NONE, on_another)],
    );
}

#[test]
fn what_comes_after_a_closure() {
    use MoveSignal::{Ambiguous, Signpost};
    let end = Step::End;
    let again = Step::Retry;
    let query = Step::Query;
    let met = |closure, signal| ReturnedClosure {
        signal: Some(signal),
        ..closure
    };
    let outdated = |closure| ReturnedClosure {
        outdated: true,
        ..closure
    };
    let in_conflict = |closure| ReturnedClosure {
        conflict: true,
        ..closure
    };
    let alone = |closure| ReturnedClosure {
        connected: false,
        ..closure
    };
    let failed = ReturnedClosure {
        failed: true,
        ..DONE
    };
    let read_only = ReturnedClosure {
        refused_to_write: true,
        ..DONE
    };
    check(
        after_closure,
        &[
            (
                FIRST,
                NONE,
                &[
                    (DONE, end(ClosureEnd::Commit)),
                    (ROLLED_BACK, end(ClosureEnd::Error)),
                    (failed, end(ClosureEnd::TransactionFailed)),
                    (alone(DONE), end(ClosureEnd::TransactionFailed)),
                    // Without a signal, nothing is prepared again.
                    (outdated(ROLLED_BACK), end(ClosureEnd::Error)),
                    // It met a move, or may have.
                    (met(DONE, Ambiguous), query(Query::Move(Ambiguous))),
                    (met(ROLLED_BACK, Signpost), query(Query::Move(Signpost))),
                    // Another transaction was in the way.
                    (in_conflict(ROLLED_BACK), again(Retry::AfterConflict)),
                    (in_conflict(DONE), end(ClosureEnd::Commit)),
                    (
                        met(in_conflict(ROLLED_BACK), Ambiguous),
                        query(Query::Move(Ambiguous)),
                    ),
                    // The server refused to write, which a savepoint may have caught.
                    (read_only, query(Query::Role)),
                    (alone(read_only), end(ClosureEnd::TransactionFailed)),
                ],
            ),
            (
                LAST,
                NONE,
                &[(in_conflict(ROLLED_BACK), end(ClosureEnd::Error))],
            ),
            (FIRST, STANDBY, &[(read_only, again(Retry::AfterFailover))]),
            (FIRST, PRIMARY, &[(read_only, end(ClosureEnd::Commit))]),
            (
                FIRST,
                APPLICATION,
                &[
                    (met(DONE, Ambiguous), end(ClosureEnd::Commit)),
                    (met(DONE, Signpost), end(ClosureEnd::TransactionFailed)),
                    (met(ROLLED_BACK, Signpost), end(ClosureEnd::Error)),
                    (met(outdated(DONE), Ambiguous), again(Retry::PreparedAgain)),
                    (
                        met(in_conflict(ROLLED_BACK), Ambiguous),
                        again(Retry::AfterConflict),
                    ),
                ],
            ),
            (
                LAST,
                APPLICATION,
                &[(met(outdated(DONE), Ambiguous), end(ClosureEnd::Commit))],
            ),
            (
                LAST,
                MOVED,
                &[
                    (met(DONE, Signpost), again(Retry::AfterMove)),
                    (met(ROLLED_BACK, Ambiguous), again(Retry::AfterMove)),
                ],
            ),
        ],
    );
}

#[test]
fn what_comes_after_a_commit() {
    use MoveSignal::Signpost;
    let end = Step::End;
    let report = |report| FailedCommit {
        report,
        signal: None,
    };
    let in_doubt = report(CommitReport::Nothing);
    let failed = report(CommitReport::FailedBefore);
    let conflict = report(CommitReport::Conflict);
    let refused = report(CommitReport::Refused);
    let met = FailedCommit {
        signal: Some(Signpost),
        ..refused
    };
    check(
        after_commit,
        &[
            (
                FIRST,
                NONE,
                &[
                    (in_doubt, end(CommitEnd::InDoubt)),
                    (failed, end(CommitEnd::TransactionFailed)),
                    (conflict, Step::Retry(Retry::AfterConflict)),
                    (refused, end(CommitEnd::Refused)),
                    (met, Step::Query(Query::Move(Signpost))),
                ],
            ),
            (LAST, NONE, &[(conflict, end(CommitEnd::Refused))]),
            (LAST, MOVED, &[(met, Step::Retry(Retry::AfterMove))]),
            (FIRST, APPLICATION, &[(met, end(CommitEnd::Refused))]),
        ],
    );
}

/// Every combination of two lists.
fn product<A: Copy, B: Copy>(first: &[A], second: &[B]) -> Vec<(A, B)> {
    let pairs = first
        .iter()
        .flat_map(|a| second.iter().map(move |b| (*a, *b)));
    pairs.collect()
}

/// Everything that can be observed of a statement. A standby runs only what is declared as a read,
/// and no connection is shared by what can commit before its end.
fn statements() -> Vec<FailedStatement> {
    let effects = product(&BOOLS, &BOOLS).into_iter();
    let effects: Vec<Effect> = effects
        .map(|(may_write, repeatable)| Effect {
            may_write,
            repeatable,
        })
        .collect();
    let mut sent = product(&[ConnectionKind::Own], &effects);
    for flag in BOOLS {
        let shared = ConnectionKind::Shared { blameless: flag };
        let whole = effects.iter().filter(|effect| effect.repeatable);
        sent.extend(whole.map(|effect| (shared, *effect)));
        sent.push((ConnectionKind::Standby { cancelled: flag }, Effect::READS));
    }
    let fates = [
        (Link::Kept, Fate::NotSent),
        (Link::Kept, Fate::Refused),
        (Link::Kept, Fate::Unknown),
        (Link::Lost, Fate::NotSent),
        (Link::Lost, Fate::Unknown),
    ];
    let errors = product(&product(&SIGNALS, &BOOLS), &BOOLS);
    let all = product(&product(&sent, &fates), &errors).into_iter();
    all.map(|(((connection, effect), (link, fate)), error)| {
        let ((signal, outdated), refused_to_write) = error;
        FailedStatement {
            connection,
            link,
            fate,
            effect,
            signal,
            outdated,
            refused_to_write,
        }
    })
    .collect()
}

fn closures() -> Vec<ReturnedClosure> {
    let pairs = product(&BOOLS, &BOOLS);
    let all = product(&product(&product(&pairs, &pairs), &pairs), &SIGNALS).into_iter();
    all.map(
        |((((succeeded, failed), (connected, outdated)), last), signal)| {
            let (refused_to_write, conflict) = last;
            ReturnedClosure {
                succeeded,
                failed,
                connected,
                signal,
                outdated,
                refused_to_write,
                conflict,
            }
        },
    )
    .collect()
}

fn commits() -> Vec<FailedCommit> {
    let reports = [
        CommitReport::Nothing,
        CommitReport::FailedBefore,
        CommitReport::Conflict,
        CommitReport::Refused,
    ];
    let all = product(&reports, &SIGNALS).into_iter();
    all.map(|(report, signal)| FailedCommit { report, signal })
        .collect()
}

/// What was tried, and what servers will reply.
fn contexts() -> Vec<(TryHistory, (ServerRole, ErrorOrigin))> {
    product(&[FIRST, LAST], &product(&ROLES, &ORIGINS))
}

/// Decides as often as there is something to query. Returns the step after that, and what was
/// queried.
fn decided<E>(
    (role, origin): (ServerRole, ErrorOrigin),
    next: impl Fn(Answers) -> Step<E>,
) -> (Step<E>, Vec<Query>) {
    let mut answers = Answers::default();
    let mut queries = Vec::new();
    loop {
        match next(answers) {
            Step::Query(query) => {
                match query {
                    Query::Role => assert_eq!(answers.role.replace(role), None),
                    Query::Origin(_) | Query::Move(_) => {
                        assert_eq!(answers.origin.replace(origin), None);
                    }
                }
                queries.push(query);
            }
            step => return (step, queries),
        }
    }
}

#[test]
fn a_write_that_may_have_run_is_not_sent_again() {
    for (failed, (tried, replies)) in product(&statements(), &contexts()) {
        let next = |answers| after_statement(tried, failed, answers);
        let (step, queries) = decided(replies, next);
        let Effect {
            may_write,
            repeatable,
        } = failed.effect;
        let may_have_run =
            failed.fate == Fate::Unknown || failed.fate == Fate::Refused && !repeatable;
        let case = format!("{failed:?} {tried:?} {replies:?}");
        if may_have_run && may_write {
            assert!(matches!(step, Step::End(_)), "{case}: {step:?}");
            let waits = queries.iter().any(|query| matches!(query, Query::Move(_)));
            assert!(!waits, "{case}");
        }
        // The error reports it, and only for a statement that may write.
        if let Step::End(
            StatementEnd::ConnectionLost { may_have_run: said }
            | StatementEnd::Refused { may_have_run: said },
        ) = step
        {
            assert_eq!(said, may_have_run && may_write, "{case}");
        }
    }
}

#[test]
fn a_read_and_a_write_that_has_not_run_take_the_same_steps() {
    for (failed, (tried, replies)) in product(&statements(), &contexts()) {
        let repeatable = failed.effect.repeatable;
        let runs = |may_write| {
            let effect = Effect {
                may_write,
                repeatable,
            };
            let failed = FailedStatement { effect, ..failed };
            decided(replies, |answers| after_statement(tried, failed, answers))
        };
        if repeatable && failed.fate != Fate::Unknown {
            assert_eq!(runs(true), runs(false), "{failed:?}");
        }
    }
}

#[test]
fn an_error_that_a_move_can_have_caused_is_the_applications_only_by_the_hosts_word() {
    for (failed, (tried, (role, _))) in product(&statements(), &contexts()) {
        if (failed.connection, failed.link) != (ConnectionKind::Own, Link::Kept)
            || failed.fate == Fate::Unknown
            || failed.signal.is_none()
        {
            continue;
        }
        let next = |answers| after_statement(tried, failed, answers);
        let (step, _) = decided((role, ErrorOrigin::Move), next);
        let is_refused = matches!(step, Step::End(StatementEnd::Refused { .. }));
        assert!(!is_refused, "{failed:?} {tried:?} {role:?}");
    }
}

#[test]
fn only_a_whole_transaction_on_a_host_that_served_the_shard_is_committed() {
    for (closure, (tried, (role, origin))) in product(&closures(), &contexts()) {
        let next = |answers| after_closure(tried, closure, answers);
        let (step, _) = decided((role, origin), next);
        let whole = closure.succeeded && !closure.failed && closure.connected;
        let served = match closure.signal {
            None => true,
            Some(MoveSignal::Signpost) => false,
            Some(MoveSignal::Ambiguous) => origin == ErrorOrigin::Application,
        };
        let writable = !closure.refused_to_write || role == ServerRole::Primary;
        if step == Step::End(ClosureEnd::Commit) {
            assert!(
                whole && served && writable,
                "{closure:?} {role:?} {origin:?}"
            );
        }
    }
}

#[test]
fn a_commit_without_a_report_is_not_sent_again() {
    for (failed, (tried, replies)) in product(&commits(), &contexts()) {
        let next = |answers| after_commit(tried, failed, answers);
        let (step, queries) = decided(replies, next);
        if failed.report == CommitReport::Nothing {
            assert_eq!((step, queries), (Step::End(CommitEnd::InDoubt), vec![]));
        }
    }
}

/// What one try of a call gives.
#[derive(Clone, Copy, Debug)]
enum Seen {
    Statement(FailedStatement),
    Closure(ReturnedClosure),
    Commit(FailedCommit),
}

fn seen() -> impl Strategy<Value = Seen> {
    prop_oneof![
        prop::sample::select(statements()).prop_map(Seen::Statement),
        prop::sample::select(closures()).prop_map(Seen::Closure),
        prop::sample::select(commits()).prop_map(Seen::Commit),
    ]
}

fn retry<E>((step, _): (Step<E>, Vec<Query>)) -> Option<Retry> {
    match step {
        Step::Retry(retry) => Some(retry),
        Step::End(_) => None,
        Step::Query(_) => panic!("what is queried is answered"),
    }
}

proptest! {
    /// A call whose tries fail in any way, one after the other. What it repeats without a bound of
    /// its own has followed a move or a fail-over, and waits for both within its time.
    #[test]
    fn each_kind_of_retry_is_bounded(
        tries in prop::collection::vec(
            (seen(), prop::sample::select(&ROLES[..]), prop::sample::select(&ORIGINS[..])),
            1..60
        ),
        conflicts_max in 0u32..4
    ) {
        let mut tried = TryHistory::nothing(conflicts_max);
        let mut retries = Vec::new();
        for (seen, role, origin) in tries {
            let with = (role, origin);
            let again = match seen {
                Seen::Statement(failed) => {
                    retry(decided(with, |answers| after_statement(tried, failed, answers)))
                }
                Seen::Closure(closure) => {
                    retry(decided(with, |answers| after_closure(tried, closure, answers)))
                }
                Seen::Commit(failed) => {
                    retry(decided(with, |answers| after_commit(tried, failed, answers)))
                }
            };
            if let Some(again) = again {
                tried.record(again);
                retries.push(again);
            }
        }
        let count = |kind| retries.iter().filter(|retry| **retry == kind).count();
        prop_assert!(count(Retry::Reconnected) <= 1);
        prop_assert!(count(Retry::PreparedAgain) <= 1);
        prop_assert!(count(Retry::AfterConflict) <= conflicts_max as usize);
    }
}
