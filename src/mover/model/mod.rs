//! The protocol of a move as a model that is explored exhaustively: two or three movers, two
//! routers, a client that bypasses them, crashes between any two statements, lost messages. The
//! very `state::next` that the driver runs decides what a mover does next. `docs/model.md` lists
//! what is modelled and what is not.
//!
//! Each transition is one statement or transaction of the mover (`movers`), the router (`clients`)
//! or a function of `migrations/control/0004_ownership.sql` (`source`, `target`). The rules are in
//! `properties`, and the wrong variants that they must find in `mutant`. Six questions have small
//! models of their own: which change counts (`chunks`), when a table is published (`publish`), what
//! a slot may forget (`positions`), what a rollback finds (`reverse`), who may take a move over
//! (`operators`), what the audit sees (`audit`).

mod audit;
mod chunks;
mod clients;
mod movers;
mod mutant;
mod operators;
mod positions;
mod properties;
mod publish;
mod reverse;
mod source;
mod target;
mod tests;
mod world;

use stateright::{Model, Property};

use crate::mover::model::mutant::Mutant;
use crate::mover::model::source::Functions;
use crate::mover::model::world::{
    At, Direct, Faults, Host, Journal, Log, MOVERS, Mover, Named, ROUTERS, Router, Row, Seen,
    Source, Stored, Target, World,
};
use crate::mover::protocol::state::Mode;
use crate::mover::protocol::state::{Goal, Phase, Stop, Stream};

/// How much is explored.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    mode: Mode,
    /// Two: one that may fail in every way, and the operator's, which does not. Three: two may
    /// fail.
    movers: usize,
    /// Each has one write.
    routers: usize,
    /// Whether there is a client with plain SQL.
    direct: bool,
    /// The most fences of the shard; a mover that needs another one gives up.
    fences: u8,
    /// Whether the operator holds the fence back at first.
    held: bool,
    faults: Faults,
}

/// The model.
#[derive(Clone, Copy, Debug)]
struct Protocol {
    bounds: Bounds,
    mutant: Option<Mutant>,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Mover m runs its next statement.
    Mover(usize),
    /// Mover m is started: takeover.
    Start(usize, Goal),
    /// Mover m has examined the shard behind its fence, and found that only rows have changed.
    LookBehind(usize),
    /// The barrier of mover m, or its drain, is out of time.
    Blocked(usize),
    /// The target ends the transaction that mover m has left open.
    IdleTimeout(usize),
    /// The follower of mover m applies a transaction.
    Apply(usize),
    /// The follower confirms to the slot how far the target is.
    Confirm,
    /// The next step of a router.
    Router(usize),
    /// The next step of the client with plain SQL.
    Direct,
    /// Any process ends a fence past its deadline.
    Expire,
    /// `moves gc` on what an ended move has left on the target, and on the source.
    SweepTarget,
    SweepSource,
    /// `moves complete`.
    Complete,
    /// A host writes what was committed asynchronously to disk, and to its standbys.
    Flush(Host),
    /// `moves continue`: the fence is no longer held back.
    Continue,
    /// An operator stops mover m.
    Stop(usize),
    // Faults.
    Crash(usize),
    Unsent(usize),
    Unheard(usize),
    HostCrash(Host),
}

impl Protocol {
    fn functions(&self) -> Functions {
        Functions {
            mode: self.bounds.mode,
            mutant: self.mutant,
        }
    }

    /// What may happen if nothing goes wrong.
    fn steps(&self, world: &World, actions: &mut Vec<Action>) {
        self.mover_actions(world, actions);
        self.client_actions(world, actions);
        let (source, target) = (&world.source.live, &world.target.live);
        if matches!(source.row, Row::Fenced { .. }) {
            actions.push(Action::Expire);
        }
        if world.confirmed < self.confirmable(world) && self.bounds.faults.target_crashes > 0 {
            actions.push(Action::Confirm);
        }
        if source.journal.phase.is_ended() {
            if target.incoming.is_some() && world.locked_by.is_none() {
                actions.push(Action::SweepTarget);
            }
            if source.signpost_in_ledger && source.row == Row::Serving {
                actions.push(Action::SweepSource);
            }
        }
        if source.journal.phase == Phase::Kept && target.serving {
            actions.push(Action::Complete);
        }
        if world.source.live != world.source.durable {
            actions.push(Action::Flush(Host::Source));
        }
        if world.target.live != world.target.durable {
            actions.push(Action::Flush(Host::Target));
        }
        if world.held {
            actions.push(Action::Continue);
        }
    }

    fn faults(&self, world: &World, actions: &mut Vec<Action>) {
        self.mover_faults(world, actions);
        if world.faults.source_crashes > 0 {
            actions.push(Action::HostCrash(Host::Source));
        }
        if world.faults.target_crashes > 0 {
            actions.push(Action::HostCrash(Host::Target));
        }
    }

    /// The position up to which the slot may forget: what is durable at the target.
    fn confirmable(&self, world: &World) -> u8 {
        match self.mutant {
            Some(Mutant::SlotBeforeDurability) => world.target.live.applied,
            _ => world.target.durable.applied,
        }
    }

    fn happen(&self, world: &World, action: Action) -> Option<World> {
        let mut after = *world;
        match action {
            Action::Mover(m) => after = self.mover(world, m)?,
            Action::Start(m, goal) => after = self.start(world, m, goal),
            Action::LookBehind(m) => self.look_behind(&mut after, m),
            Action::Continue => after.held = false,
            Action::Stop(m) => {
                after.faults.stops -= 1;
                after.movers[m].stop = Stop::Asked;
            }
            Action::Blocked(m) => after = self.blocked(world, m)?,
            Action::IdleTimeout(m) => self.roll_back(&mut after, m),
            Action::Apply(m) => after = self.follow(world, m)?,
            Action::Confirm => after.confirmed = self.confirmable(world),
            Action::Router(n) => after = self.router(world, n)?,
            Action::Direct => after = self.direct(world)?,
            Action::Expire => {
                after.source.live = self.functions().expire_fence(&world.source.live)?;
                if self.mutant != Some(Mutant::AsynchronousControl) {
                    after.source.flush();
                }
            }
            Action::SweepTarget => after.target.live = world.target.live.discarded(),
            Action::SweepSource => {
                after.source.live = self.functions().drop_signpost(&world.source.live)
            }
            Action::Complete => {
                after.source.live.copy = false;
                after.source.live.journal.phase = Phase::Completed;
            }
            Action::Flush(Host::Source) => after.source.flush(),
            Action::Flush(Host::Target) => after.target.flush(),
            Action::Crash(m) => after = self.crash(world, m),
            Action::Unsent(m) => after = self.unsent(world, m),
            Action::Unheard(m) => after = self.unheard(world, m)?,
            Action::HostCrash(Host::Source) => {
                after.faults.source_crashes -= 1;
                after.source.crash();
                Self::disconnect(&mut after, Host::Source);
                after.movers.iter_mut().for_each(Mover::is_on_other_servers);
            }
            Action::HostCrash(Host::Target) => {
                after.faults.target_crashes -= 1;
                after.seen.unopened |= after.target.live.serving && !after.target.durable.serving;
                after.target.crash();
                after.locked_by = None;
                Self::disconnect(&mut after, Host::Target);
                after.movers.iter_mut().for_each(Mover::is_on_other_servers);
            }
        }
        // If a host never crashes, the model need not track what it would lose.
        if self.bounds.faults.source_crashes == 0 {
            after.source.flush();
        }
        if self.bounds.faults.target_crashes == 0 {
            after.target.flush();
        }
        (after != *world).then_some(after)
    }

    /// Whether nothing more happens unless something goes wrong.
    fn is_quiet(&self, world: &World) -> bool {
        let mut actions = Vec::new();
        self.steps(world, &mut actions);
        !actions
            .into_iter()
            .any(|action| self.happen(world, action).is_some())
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    /// The first mover has claimed the shard, or the move was resumed immediately to abort it.
    fn init_states(&self) -> Vec<World> {
        let journal = Journal {
            phase: Phase::Claimed,
            attempt: 0,
            lease: 0,
            token: None,
        };
        let asleep = Mover {
            at: At::Asleep,
            goal: Goal::Finish,
            until: self.first_until(),
            stop: Stop::No,
            stream: Stream::Off,
            restarts: 0,
        };
        let mut movers = [asleep; MOVERS];
        movers[0].at = At::Look;
        let world = World {
            source: Stored::new(Source {
                row: Row::Serving,
                named: Named::Shard,
                journal,
                markers: 0,
                log: Log::EMPTY,
                signpost: false,
                signpost_in_ledger: false,
                copy: true,
            }),
            target: Stored::new(Target {
                incoming: None,
                schema: false,
                schema_in_ledger: false,
                loaded: false,
                rows: 0,
                applied: 0,
                serving: false,
            }),
            held: self.bounds.held,
            locked_by: None,
            confirmed: 0,
            fences: 0,
            movers,
            routers: [Router::Ready {
                cached: Host::Source,
            }; ROUTERS],
            direct: Direct::Idle,
            faults: self.bounds.faults,
            seen: Seen::default(),
        };
        let mut aborting = world;
        aborting.movers[0].goal = Goal::Abort;
        vec![world, aborting]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.steps(world, actions);
        self.faults(world, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        self.happen(world, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = properties::all();
        if self.bounds.fences > 1 {
            all.extend(properties::of_fences());
        }
        if self.bounds.routers > 0 {
            all.extend(properties::of_routers());
        }
        all
    }
}
