//! Movers: the loop of `single.rs` with its real decision, `state::next`, and the effect of each
//! statement when it is answered, refused, or never answered.

use crate::mover::model::mutant::Mutant;
use crate::mover::model::world::{At, Incoming, Lease, Mover, Opening, Record, Row, Target, World};
use crate::mover::model::{Action, Protocol};
use crate::mover::protocol::desired::DesiredState;
use crate::mover::protocol::state;
use crate::mover::protocol::state::Mode;
use crate::mover::protocol::state::{
    ComparisonState, Goal, ObservedState, Own, Phase, Step, Stop, Stream, Until,
};

/// How often the operator starts the last mover again before the move counts as one that does not
/// end.
const RESTARTS_MAX: u8 = 4;

/// How a statement ended, if it did.
enum Ran {
    /// It waits for a lock.
    Waits,
    /// Done; this is next.
    Then(At),
    /// `Error::Superseded`, or an unknown outcome: observe again.
    Again,
    /// Any other error: the mover gives up.
    Fails,
    /// Like `Fails`, and the operator knows that the move can only be finished.
    TooLate,
}

impl Protocol {
    pub(super) fn mover_actions(&self, world: &World, actions: &mut Vec<Action>) {
        for m in 0..self.bounds.movers {
            let mover = world.movers[m];
            match mover.at {
                At::Asleep if world.movers[m - 1].at != At::Asleep => {
                    actions.extend([Goal::Finish, Goal::Abort].map(|goal| Action::Start(m, goal)));
                }
                At::Asleep | At::Ended | At::Crashed => {}
                at => {
                    actions.push(Action::Mover(m));
                    if matches!(at, At::Barrier { .. }) && Self::is_held(world)
                        || matches!(at, At::Behind { .. })
                    {
                        actions.push(Action::Blocked(m));
                    }
                    if matches!(at, At::Behind { looked: false, .. }) {
                        actions.push(Action::LookBehind(m));
                    }
                    if matches!(at, At::Decide { .. } | At::CommitOpen { .. })
                        && world.locked_by == Some(m as Lease)
                        && !self.is_reliable(m)
                    {
                        actions.push(Action::IdleTimeout(m));
                    }
                }
            }
            if mover.stream != Stream::Off && !matches!(mover.at, At::Ended | At::Crashed) {
                actions.push(Action::Apply(m));
            }
        }
    }

    pub(super) fn mover_faults(&self, world: &World, actions: &mut Vec<Action>) {
        for m in (0..self.bounds.movers).filter(|m| !self.is_reliable(*m)) {
            if matches!(world.movers[m].at, At::Asleep | At::Ended | At::Crashed) {
                continue;
            }
            if world.faults.mover_crashes > 0 {
                actions.push(Action::Crash(m));
            }
            if world.faults.stops > 0 {
                actions.push(Action::Stop(m));
            }
            if world.faults.lost_messages > 0 {
                actions.extend([Action::Unsent(m), Action::Unheard(m)]);
            }
        }
    }

    /// The last mover belongs to the operator who does not give up: it does not crash, and what it
    /// sends arrives.
    fn is_reliable(&self, m: usize) -> bool {
        m + 1 == self.bounds.movers
    }

    pub(super) fn start(&self, world: &World, m: usize, goal: Goal) -> World {
        let mut after = *world;
        after.movers[m] = Mover {
            at: At::TakeSource,
            goal,
            ..world.movers[m]
        };
        after
    }

    /// How far a mover goes at first: if online, the group's work comes in between.
    pub(super) fn first_until(&self) -> Until {
        match self.bounds.mode {
            Mode::Blocking => Until::End,
            Mode::Online => Until::Ready,
        }
    }

    pub(super) fn crash(&self, world: &World, m: usize) -> World {
        let mut after = *world;
        after.faults.mover_crashes -= 1;
        after.movers[m].at = At::Crashed;
        after.movers[m].stream = Stream::Off;
        self.roll_back(&mut after, m);
        after
    }

    /// The mover's connections break before its statement is sent.
    pub(super) fn unsent(&self, world: &World, m: usize) -> World {
        let mut after = *world;
        after.faults.lost_messages -= 1;
        self.broken(&mut after, m, world.movers[m].at);
        after
    }

    /// The connections break after the statement was run, before the answer.
    pub(super) fn unheard(&self, world: &World, m: usize) -> Option<World> {
        let mut after = self.mover(world, m)?;
        after.faults.lost_messages -= 1;
        self.broken(&mut after, m, world.movers[m].at);
        Some(after)
    }

    fn broken(&self, after: &mut World, m: usize, sent: At) {
        self.roll_back(after, m);
        let ran = match sent {
            At::Behind {
                attempt,
                token,
                stop,
                looked,
                open: Opening::Drained | Opening::Prepared,
            } => Ran::Then(At::Behind {
                attempt,
                token,
                stop,
                looked,
                open: Opening::Failed,
            }),
            // `Driver::reconnect`.
            At::OpenPrepared { .. }
            | At::Decide { .. }
            | At::CommitOpen { .. }
            | At::FinishOpen { .. } => Ran::Again,
            At::LeaveServing => {
                self.end(after, m, Goal::Abort);
                return;
            }
            _ => Ran::Fails,
        };
        self.went(after, m, ran);
    }

    /// Rolls back the open transaction on the target under this mover's connection.
    pub(super) fn roll_back(&self, world: &mut World, m: usize) {
        if world.locked_by == Some(m as Lease) {
            world.locked_by = None;
        }
    }

    /// The time for the barrier, or for the drain, is over: swap back, and try again later.
    pub(super) fn blocked(&self, world: &World, m: usize) -> Option<World> {
        let (At::Barrier { attempt, .. } | At::Behind { attempt, .. }) = world.movers[m].at else {
            return None;
        };
        let mut after = *world;
        self.roll_back(&mut after, m);
        after.movers[m].at = At::Unfence { attempt };
        Some(after)
    }

    /// The next statement of a mover; `None` if it waits.
    pub(super) fn mover(&self, world: &World, m: usize) -> Option<World> {
        let mut after = *world;
        let ran = self.statement(&mut after, m);
        if matches!(ran, Ran::Waits) {
            return None;
        }
        let at = world.movers[m].at;
        // A mover that takes over has no lease yet, one that shows the token needs none, and a
        // signpost next to the shard does nothing and is in the ledger.
        if !matches!(
            at,
            At::TakeSource | At::TakeTarget | At::FinishOpen { .. } | At::Signpost
        ) {
            let lease = m as Lease;
            let others = world
                .target
                .live
                .incoming
                .is_some_and(|incoming| incoming.lease != lease);
            after.seen.zombie |=
                after.source.live != world.source.live && world.source.live.journal.lease != lease;
            after.seen.zombie |= after.target.live != world.target.live && others;
        }
        // Sessions of movers commit synchronously, whatever the database's default.
        if self.mutant != Some(Mutant::AsynchronousControl)
            && after.source.live != world.source.live
            && !self.is_late(at)
        {
            after.source.flush();
        }
        self.went(&mut after, m, ran);
        Some(after)
    }

    /// Whether a mutant makes this commit asynchronous.
    fn is_late(&self, at: At) -> bool {
        match self.mutant {
            Some(Mutant::FailOverLosesFence) => matches!(at, At::Mark { .. } | At::Decide { .. }),
            Some(Mutant::StopAtWalPosition) => matches!(at, At::Mark { .. }),
            _ => false,
        }
    }

    fn went(&self, after: &mut World, m: usize, ran: Ran) {
        match ran {
            Ran::Waits => {}
            Ran::Then(at) => after.movers[m].at = at,
            Ran::Again => {
                self.roll_back(after, m);
                after.movers[m].at = At::Look;
            }
            Ran::Fails => {
                self.roll_back(after, m);
                after.movers[m].at = At::LeaveServing;
            }
            Ran::TooLate => self.end(after, m, Goal::Finish),
        }
    }

    /// The end of one run. The operator starts the last mover again, to abort, or to finish if it
    /// is too late for that.
    fn end(&self, after: &mut World, m: usize, next: Goal) {
        let mover = &mut after.movers[m];
        mover.stream = Stream::Off;
        mover.until = self.first_until();
        if self.is_reliable(m) && mover.restarts < RESTARTS_MAX {
            *mover = Mover {
                at: At::TakeSource,
                goal: next,
                restarts: mover.restarts + 1,
                ..*mover
            };
        } else {
            mover.at = At::Ended;
        }
    }

    fn statement(&self, after: &mut World, m: usize) -> Ran {
        let at = after.movers[m].at;
        // Statements on the row of pgshard.incoming wait for the holder of its lock.
        if after.locked_by.is_some_and(|by| by != m as Lease) && at_incoming(at) {
            return Ran::Waits;
        }
        let ran = self
            .looks(after, m)
            .or_else(|| self.prepares(after, m))
            .or_else(|| self.fences(after, m));
        let ran = ran
            .or_else(|| self.waits_behind(after, m))
            .or_else(|| self.copies(after, m));
        let ran = ran
            .or_else(|| self.opens(after, m))
            .or_else(|| self.takes_back(after, m));
        // It is asleep, has ended, or has crashed.
        ran.unwrap_or(Ran::Waits)
    }

    /// Takes the move over, and observes.
    fn looks(&self, after: &mut World, m: usize) -> Option<Ran> {
        let lease = m as Lease;
        let sql = self.functions();
        let (source, target) = (&mut after.source, &mut after.target);
        Some(match after.movers[m].at {
            At::TakeSource => {
                after.seen.taken_while_fenced |= matches!(source.live.row, Row::Fenced { .. });
                source.live = sql.take_over(&source.live, lease);
                Ran::Then(At::TakeTarget)
            }
            At::TakeTarget => {
                // The former mover's sessions are ended, and with them their open transactions.
                after.locked_by = None;
                if let Some(incoming) = &mut target.live.incoming {
                    incoming.lease = lease;
                }
                Ran::Then(At::Look)
            }
            At::Look if source.live.journal.lease != lease => Ran::Fails,
            At::Look => {
                let (phase, token) = (source.live.journal.phase, source.live.journal.token);
                Ran::Then(At::LookTarget {
                    phase,
                    row: source.live.row,
                    token,
                })
            }
            At::LookTarget { phase, row, token } => {
                let Mover {
                    goal,
                    until,
                    stop,
                    stream,
                    ..
                } = after.movers[m];
                let desired = if after.held {
                    DesiredState::Hold
                } else {
                    DesiredState::Run
                };
                self.decided(
                    Own {
                        goal,
                        until,
                        stop,
                        desired,
                        stream,
                    },
                    (phase, row, token),
                    &target.live,
                )
            }
            _ => return None,
        })
    }

    /// Builds the target, copies the rows, follows, and catches up.
    fn prepares(&self, after: &mut World, m: usize) -> Option<Ran> {
        let lease = m as Lease;
        let sql = self.functions();
        let (source, target) = (&mut after.source, &mut after.target);
        Some(match after.movers[m].at {
            At::Announce => then(
                At::Build,
                apply(&mut target.live, |t| t.announce(lease, self.mutant)),
            ),
            At::Build => {
                let next = if self.mutant == Some(Mutant::LedgerAfterCreation) {
                    At::Record
                } else {
                    At::Signpost
                };
                then(next, apply(&mut target.live, |t| t.build(lease)))
            }
            At::Record => {
                target.live.schema_in_ledger = true;
                Ran::Then(At::Signpost)
            }
            At::Signpost => then(
                At::Prepared,
                apply(&mut source.live, |s| sql.build_signpost(s)),
            ),
            At::Prepared => then(
                At::Look,
                apply(&mut source.live, |s| sql.advance(s, lease, Phase::Prepared)),
            ),

            // All chunks at once. What the snapshot saw is flushed on the source before the target
            // keeps it.
            At::Load if target.live.loaded => Ran::Then(At::Loaded),
            At::Load => {
                source.flush();
                let (rows, applied) = (source.live.log.writes(), source.live.log.length());
                let load = |t: &Target| {
                    t.under(lease).map(|_| Target {
                        loaded: true,
                        rows,
                        applied,
                        ..*t
                    })
                };
                then(At::Loaded, apply(&mut target.live, load))
            }
            At::Loaded => then(
                At::Look,
                apply(&mut source.live, |s| sql.advance(s, lease, Phase::Loaded)),
            ),
            // `Group::all`: a shard with a fence that is held back continues until it is ready, and
            // then with a driver of its own.
            At::Follow => {
                let mover = &mut after.movers[m];
                mover.until = if mover.stream == Stream::Off && after.held {
                    Until::Ready
                } else {
                    Until::End
                };
                // A mover that continues with a shard that was made ready knows the servers on
                // which it was compared.
                let compared = match mover.stream {
                    Stream::On { compared, .. } => compared,
                    Stream::Off => ComparisonState::No,
                };
                mover.stream = Stream::On {
                    compared,
                    looked: None,
                };
                Ran::Then(At::Look)
            }
            At::Wait if after.movers[m].stop == Stop::Asked => Ran::Fails,
            At::Wait if after.held => Ran::Waits,
            At::Wait => Ran::Then(At::Look),
            // Up to a watermark that is committed now.
            At::CatchUp => {
                source.flush();
                if target.live.applied >= source.durable.log.length() {
                    return Some(Ran::Then(At::CaughtUp));
                }
                let done = self.apply_next(after, lease);
                then(At::CatchUp, done)
            }
            At::CaughtUp => {
                let done = apply(&mut source.live, |s| sql.advance(s, lease, Phase::Ready));
                if let Stream::On { compared, .. } = &mut after.movers[m].stream {
                    *compared = ComparisonState::Yes;
                }
                then(At::Look, done)
            }
            _ => return None,
        })
    }

    /// What is prepared before the fence, the fence, and the marker behind it.
    fn fences(&self, after: &mut World, m: usize) -> Option<Ran> {
        let lease = m as Lease;
        let sql = self.functions();
        let (source, target) = (&mut after.source, &mut after.target);
        Some(match after.movers[m].at {
            // `ShardMove::preset`: sets the token by which the target may be opened, and that it is
            // ready for no attempt.
            At::Preset if after.fences >= self.bounds.fences => Ran::Fails,
            At::Preset => {
                after.fences += 1;
                let token = Some(after.fences);
                let keeps = self.mutant == Some(Mutant::MarkerOfEarlierAttempt);
                let preset = |t: &Target| {
                    let incoming = t.under(lease)?;
                    let ready = incoming.ready.filter(|_| keeps);
                    Some(Target {
                        incoming: Some(Incoming {
                            ready,
                            hash: token,
                            ..incoming
                        }),
                        ..*t
                    })
                };
                let done = apply(&mut target.live, preset);
                target.flush();
                then(At::Swap { token }, done)
            }
            At::Swap { token: None } if after.fences >= self.bounds.fences => Ran::Fails,
            At::Swap { token } => {
                let made = token.unwrap_or(after.fences + 1);
                match (sql.fence(&source.live, lease, made), self.bounds.mode) {
                    (Some(fenced), mode) => {
                        source.live = fenced;
                        after.fences = after.fences.max(made);
                        let attempt = fenced.journal.attempt;
                        Ran::Then(if mode == Mode::Online {
                            At::Barrier { attempt, token }
                        } else {
                            At::Look
                        })
                    }
                    // `Driver::rebuild`, whatever the reason.
                    (None, Mode::Blocking) => Ran::Then(At::Announce),
                    (None, Mode::Online) => Ran::Again,
                }
            }
            At::Barrier { attempt, token } => {
                let stop = source.live.log.length();
                let held = Self::is_held(after);
                if held && self.mutant == Some(Mutant::StopBeforeBarrier) {
                    return Some(Ran::Then(At::BarrierAfterStop {
                        attempt,
                        token,
                        stop,
                    }));
                }
                if held && self.mutant != Some(Mutant::FenceWithoutBarrier) {
                    return Some(Ran::Waits);
                }
                Ran::Then(At::Mark {
                    attempt,
                    token,
                    stop: None,
                })
            }
            At::BarrierAfterStop {
                attempt,
                token,
                stop,
            } => {
                if Self::is_held(after) {
                    return Some(Ran::Waits);
                }
                Ran::Then(At::Mark {
                    attempt,
                    token,
                    stop: Some(stop),
                })
            }
            At::Mark {
                attempt,
                token,
                stop,
            } => {
                let held = Self::is_held(after);
                if sql.mark(&mut after.source, attempt, lease).is_none() {
                    return Some(Ran::Again);
                }
                after.seen.marked_early |= held;
                let wal = after.source.durable.log.length();
                let stop = if self.mutant == Some(Mutant::StopAtWalPosition) {
                    Some(wal)
                } else {
                    stop
                };
                Ran::Then(match self.bounds.mode {
                    Mode::Blocking => At::Check {
                        attempt,
                        token,
                        stop,
                    },
                    Mode::Online => At::Behind {
                        attempt,
                        token,
                        stop,
                        looked: false,
                        open: Opening::Draining,
                    },
                })
            }
            _ => return None,
        })
    }

    /// Online: waits behind the fence for what the open needs.
    fn waits_behind(&self, after: &mut World, m: usize) -> Option<Ran> {
        let lease = m as Lease;
        let target = &mut after.target;
        Some(match after.movers[m].at {
            At::Behind {
                attempt,
                token,
                stop,
                looked,
                open,
            } => match open {
                Opening::Draining => self.drain(after, m, (attempt, token, stop, looked)),
                Opening::Drained => {
                    let may_open = target.live.may_open(lease, attempt);
                    if may_open {
                        after.locked_by = Some(lease);
                    }
                    let open = if may_open {
                        Opening::Prepared
                    } else {
                        Opening::Failed
                    };
                    Ran::Then(At::Behind {
                        attempt,
                        token,
                        stop,
                        looked,
                        open,
                    })
                }
                Opening::Failed if self.mutant == Some(Mutant::OpenCutsTheLookShort) => Ran::Again,
                Opening::Prepared | Opening::Failed if !looked => Ran::Waits,
                // `Follower::is_on`: a server was restarted behind the fence.
                Opening::Prepared if !after.movers[m].has_compared() => {
                    self.roll_back(after, m);
                    Ran::Then(At::Unfence { attempt })
                }
                Opening::Prepared if self.mutant == Some(Mutant::OpenBeforeDecide) => {
                    Ran::Then(At::CommitOpen { attempt })
                }
                Opening::Prepared => Ran::Then(At::Decide { attempt }),
                Opening::Failed => Ran::Again,
            },
            _ => return None,
        })
    }

    /// Blocking: examines, and copies behind the fence.
    fn copies(&self, after: &mut World, m: usize) -> Option<Ran> {
        let lease = m as Lease;
        // Its transaction there was ended by another session, or by a crash of the server.
        let ended = after.locked_by != Some(lease);
        let sql = self.functions();
        let (source, target) = (&mut after.source, &mut after.target);
        Some(match after.movers[m].at {
            // Finds that nothing but rows has changed behind the fence.
            At::Check {
                attempt,
                token,
                stop,
            } => {
                after.seen.checked |= token.map_or(0, |token| 1 << token);
                Ran::Then(At::Rows {
                    attempt,
                    token,
                    stop,
                })
            }
            At::Rows {
                attempt,
                token,
                stop,
            } => {
                if target.live.under(lease).is_none() {
                    return Some(Ran::Fails);
                }
                let copied = match stop {
                    Some(stop) => source.live.log.up_to(stop).writes(),
                    None => source.live.log.writes(),
                };
                after.locked_by = Some(lease);
                Ran::Then(At::Ready {
                    attempt,
                    token,
                    copied,
                })
            }
            At::Ready { .. } if ended => Ran::Fails,
            At::CommitOpen { .. } if ended => Ran::Again,
            At::Ready {
                attempt,
                token,
                copied,
            } => {
                after.locked_by = None;
                let ready = |t: &Target| {
                    t.ready(lease, attempt, token)
                        .map(|t| Target { rows: copied, ..t })
                };
                let done = apply(&mut target.live, ready);
                target.flush();
                then(At::Copied, done)
            }
            At::Copied => then(
                At::Look,
                apply(&mut source.live, |s| sql.advance(s, lease, Phase::Copied)),
            ),
            _ => return None,
        })
    }

    /// Decides, opens, and publishes the map.
    fn opens(&self, after: &mut World, m: usize) -> Option<Ran> {
        let lease = m as Lease;
        let sql = self.functions();
        let (source, target) = (&mut after.source, &mut after.target);
        Some(match after.movers[m].at {
            At::OpenPrepared { attempt } => {
                if !target.live.may_open(lease, attempt) {
                    return Some(Ran::Again);
                }
                after.locked_by = Some(lease);
                let swapped = self.mutant == Some(Mutant::OpenBeforeDecide);
                Ran::Then(if swapped {
                    At::CommitOpen { attempt }
                } else {
                    At::Decide { attempt }
                })
            }
            At::Decide { attempt } => {
                if sql.decide(source, attempt, lease).is_none() {
                    return Some(Ran::Again);
                }
                after.seen.decided = true;
                after.seen.unchecked |= source
                    .live
                    .journal
                    .token
                    .is_none_or(|token| after.seen.checked & 1 << token == 0);
                let swapped = self.mutant == Some(Mutant::OpenBeforeDecide);
                if swapped {
                    Ran::Again
                } else {
                    Ran::Then(At::CommitOpen { attempt })
                }
            }
            At::CommitOpen { attempt } => {
                after.locked_by = None;
                target.live = target.live.opened();
                let swapped = self.mutant == Some(Mutant::OpenBeforeDecide);
                Ran::Then(if swapped {
                    At::Decide { attempt }
                } else {
                    At::Look
                })
            }
            At::FinishOpen { token } => {
                let Some(outcome) = target.live.finish_open(token, self.mutant) else {
                    return Some(Ran::Again);
                };
                if let Some(opened) = outcome {
                    target.live = opened;
                    target.flush();
                }
                Ran::Then(At::Look)
            }
            // The connection is the one that has seen it open: it breaks if the target crashes.
            At::Publish if !target.live.serving => Ran::Again,
            At::Publish => {
                if self.mutant != Some(Mutant::PublishedBeforeDurable) {
                    target.flush();
                }
                then(
                    At::Look,
                    apply(&mut source.live, |s| sql.advance(s, lease, Phase::Kept)),
                )
            }
            _ => return None,
        })
    }

    /// Undoes a fence, or the whole move.
    fn takes_back(&self, after: &mut World, m: usize) -> Option<Ran> {
        let lease = m as Lease;
        let sql = self.functions();
        let (source, target) = (&mut after.source, &mut after.target);
        Some(match after.movers[m].at {
            At::Unfence { attempt } => {
                let _ = apply(&mut source.live, |s| sql.unfence(s, attempt, Some(lease)));
                Ran::Then(At::Look)
            }
            At::DiscardTarget => match target.live.incoming {
                Some(incoming)
                    if incoming.lease != lease
                        && self.mutant != Some(Mutant::CancelWithoutLease) =>
                {
                    Ran::Fails
                }
                Some(_) => {
                    target.live = target.live.discarded();
                    Ran::Then(At::DiscardSource)
                }
                None => Ran::Then(At::DiscardSource),
            },
            At::DiscardSource => {
                if source.live.journal.lease != lease
                    && self.mutant != Some(Mutant::CancelWithoutLease)
                {
                    return Some(Ran::Fails);
                }
                source.live = sql.drop_signpost(&source.live);
                Ran::Then(At::Aborted)
            }
            At::Aborted => then(
                At::Look,
                apply(&mut source.live, |s| sql.advance(s, lease, Phase::Aborted)),
            ),

            At::LeaveServing => {
                if let Row::Fenced {
                    attempt,
                    lease: holder,
                } = source.live.row
                    && holder == lease
                {
                    let _ = apply(&mut source.live, |s| sql.unfence(s, attempt, Some(lease)));
                }
                self.end(after, m, Goal::Abort);
                Ran::Then(after.movers[m].at)
            }
            _ => return None,
        })
    }

    /// `observe` and `state::next`: what the driver does with the hosts' answers.
    fn decided(
        &self,
        own: Own,
        (phase, row, token): (Phase, Row, Option<u8>),
        target: &Target,
    ) -> Ran {
        let attempt_of = i32::from;
        let source = match row {
            Row::Serving => state::Source::Serving,
            Row::Fenced { attempt, .. } => state::Source::Fenced {
                attempt: attempt_of(attempt),
            },
            Row::Moved { .. } => state::Source::Moved,
        };
        let shown = match row {
            Row::Moved { token } => token,
            Row::Serving | Row::Fenced { .. } => token,
        };
        let reuses = |ready: Option<u8>| match row {
            Row::Fenced { attempt, .. } if self.mutant == Some(Mutant::MarkerOfEarlierAttempt) => {
                ready.and(Some(attempt))
            }
            _ => ready,
        };
        let there = match target.incoming {
            _ if target.serving => state::Target::Opened,
            Some(incoming) => state::Target::Incoming {
                ready: reuses(incoming.ready).map(attempt_of),
            },
            None => state::Target::Nothing,
        };
        let observed = ObservedState {
            mode: self.bounds.mode,
            lease: state::Lease::Ours,
            phase,
            source,
            target: there,
        };
        let own = match (own.stream, source) {
            (Stream::On { .. }, state::Source::Fenced { attempt })
                if self.mutant == Some(Mutant::OpenCutsTheLookShort) =>
            {
                Own {
                    stream: Stream::On {
                        compared: ComparisonState::Yes,
                        looked: Some(attempt),
                    },
                    ..own
                }
            }
            _ => own,
        };
        let narrow = |attempt: i32| attempt as u8;
        Ran::Then(match state::next(own, observed) {
            Step::Prepare => At::Announce,
            // `group.rs` copies the rows, then starts the follower.
            Step::HandBack if phase == Phase::Prepared => At::Load,
            Step::HandBack => At::Follow,
            Step::CatchUp => At::CatchUp,
            Step::Wait { .. } => At::Wait,
            Step::CutOver => At::Preset,
            Step::Fence => At::Swap { token: None },
            Step::Copy { attempt } => At::Barrier {
                attempt: narrow(attempt),
                token,
            },
            // `Driver::fence_anew`: it is unknown what was prepared before that fence.
            Step::FenceAnew { attempt } | Step::Unfence { attempt } => At::Unfence {
                attempt: narrow(attempt),
            },
            Step::DecideAndOpen { attempt } => At::OpenPrepared {
                attempt: narrow(attempt),
            },
            Step::Open => At::FinishOpen { token: shown },
            Step::Publish => At::Publish,
            Step::Discard => At::DiscardTarget,
            Step::Done => At::Ended,
            Step::TooLate => return Ran::TooLate,
            Step::Interrupted | Step::LeaseLost | Step::Gone | Step::Stuck => return Ran::Fails,
        })
    }
}

/// The next statement if this one has done something; otherwise its mover gives up.
fn then(at: At, done: Option<()>) -> Ran {
    if done.is_some() {
        Ran::Then(at)
    } else {
        Ran::Fails
    }
}

/// Whether the statement locks the row of `pgshard.incoming` exclusively.
fn at_incoming(at: At) -> bool {
    matches!(
        at,
        At::Announce
            | At::Build
            | At::Rows { .. }
            | At::Preset
            | At::OpenPrepared { .. }
            | At::Behind {
                open: Opening::Drained,
                ..
            }
            | At::FinishOpen { .. }
            | At::DiscardTarget
    )
}

fn apply<T: Copy>(to: &mut T, change: impl FnOnce(&T) -> Option<T>) -> Option<()> {
    *to = change(to)?;
    Some(())
}

impl Protocol {
    /// The follower's next transaction.
    pub(super) fn follow(&self, world: &World, m: usize) -> Option<World> {
        let marker = matches!(
            world.source.durable.log.get(self.position(world)),
            Some(Record::Marker(_))
        );
        if marker && world.locked_by.is_some_and(|by| by != m as Lease) {
            return None;
        }
        let mut after = *world;
        self.apply_next(&mut after, m as Lease)?;
        Some(after)
    }

    /// Where the stream continues: after what is applied, unless the slot has forgotten that
    /// already.
    fn position(&self, world: &World) -> u8 {
        world.target.live.applied.max(world.confirmed)
    }

    /// One transaction of the stream, with its progress by compare-and-swap on lease and position.
    /// A marker's transaction also marks the target as ready for its attempt, and is synchronous.
    fn apply_next(&self, after: &mut World, lease: Lease) -> Option<()> {
        let at = self.position(after);
        let record = after.source.durable.log.get(at)?;
        let target = &mut after.target;
        let incoming = target.live.under(lease).filter(|_| target.live.loaded)?;
        target.live.applied = at + 1;
        match record {
            Record::Write(n) => target.live.rows |= 1 << n,
            Record::Marker(attempt) => {
                target.live.incoming = Some(Incoming {
                    ready: Some(attempt),
                    ..incoming
                });
                target.flush();
            }
        }
        Some(())
    }

    /// Waits until the follower has reached the marker of this attempt.
    fn drain(
        &self,
        after: &mut World,
        m: usize,
        (attempt, token, stop, looked): (u8, Option<u8>, Option<u8>, bool),
    ) -> Ran {
        let lease = m as Lease;
        let drained = Ran::Then(At::Behind {
            attempt,
            token,
            stop,
            looked,
            open: Opening::Drained,
        });
        let ready = after
            .target
            .live
            .under(lease)
            .and_then(|incoming| incoming.ready);
        let early = match stop {
            Some(stop) => self.position(after) >= stop,
            None => self.mutant == Some(Mutant::MarkerOfEarlierAttempt) && ready.is_some(),
        };
        if early {
            let said = apply(&mut after.target.live, |t| t.ready(lease, attempt, token));
            after.target.flush();
            return if said.is_some() { drained } else { Ran::Fails };
        }
        if ready == Some(attempt) {
            drained
        } else {
            Ran::Waits
        }
    }

    /// The examination behind the fence, which runs at the same time as the drain.
    pub(super) fn look_behind(&self, after: &mut World, m: usize) {
        let At::Behind {
            attempt,
            token,
            looked,
            ..
        } = &mut after.movers[m].at
        else {
            return;
        };
        *looked = true;
        after.seen.checked |= token.map_or(0, |token| 1 << token);
        let attempt = i32::from(*attempt);
        if let Stream::On { looked, .. } = &mut after.movers[m].stream {
            *looked = Some(attempt);
        }
    }
}
