//! What happens in a round, made from its seed.

use std::fmt;

use fastrand::Rng;

/// How far the move of shard 0 from db1 to db2 is when a host fails over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// There is no move.
    Between,
    /// It is at a failpoint of an online move.
    Online(&'static str),
    /// It is at a failpoint of a blocking move.
    Blocking(&'static str),
    /// It waits before its fence.
    Held,
    /// It is kept, and its old copy is fed.
    Fed,
    /// It is at a failpoint of the rollback of a kept move.
    Rollback(&'static str),
}

const ONLINE: [&str; 11] = [
    "after claim",
    "after slot",
    "after loaded",
    "after caught up",
    "after swap",
    "after marker",
    "after drain",
    "after open prepared",
    "after decide",
    "after open",
    "after publish",
];
const BLOCKING: [&str; 5] = [
    "after prepare",
    "after swap",
    "after copied",
    "after decide",
    "after open",
];
const ROLLBACK: [&str; 6] = [
    "after claim",
    "after adopt",
    "after swap",
    "after drain",
    "after decide",
    "after open",
];

/// How much of what its primary acknowledged the promoted standby has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gap {
    /// All of it: the standby is synchronous.
    None,
    /// All but the last moments.
    Moments,
    /// It was cut off when the move had reached its phase.
    SincePhase,
    /// It was cut off before the move began.
    SinceBefore,
}

/// What happens to the server that was the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Former {
    Gone,
    /// It is frozen while its standby is promoted, then continues.
    Thawed,
    /// It is started again as it was.
    StartedAgain,
    /// It was stopped cleanly: a planned switchover.
    SwitchedOver,
}

/// What happens to the mover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mover {
    /// It survives the fail-over, and continues.
    Lives,
    Dies,
}

/// The standbys that commits wait for, if these are synchronous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// The standby by its name.
    Standby,
    /// `*`: any standby that streams.
    Any,
}

/// How routers reach the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By the addresses of both servers.
    Addresses,
    /// Through a PgBouncer in transaction mode, which leads to the promoted standby from its
    /// promotion on.
    PgBouncer,
}

/// What standbys have of the slots of their primaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slots {
    None,
    /// From 17 on: those that were made with `failover`; their readers wait for the standby.
    Synchronized,
}

/// One round.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) version: u32,
    pub(crate) phase: Phase,
    /// Which hosts fail over, counted from 0.
    pub(crate) hosts: Vec<usize>,
    pub(crate) gap: Gap,
    pub(crate) former: Former,
    pub(crate) mover: Mover,
    pub(crate) names: Names,
    pub(crate) way: Way,
    pub(crate) slots: Slots,
}

fn one<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.usize(0..all.len())]
}

/// From this seed on, rounds are clean switchovers, in each phase in turn.
const SWITCHOVERS: u64 = 1_000_000;

impl Case {
    pub(crate) fn of(seed: u64, version: u32) -> Case {
        match seed.checked_sub(SWITCHOVERS) {
            Some(at) => Case::switchover(seed, version, usize::try_from(at).unwrap_or(0)),
            None => Case::failover(seed, version),
        }
    }

    /// Each phase with its source, then each with its target, then with both, with a mover that
    /// lives; then the same with one that dies.
    fn switchover(seed: u64, version: u32, at: usize) -> Case {
        let phases: Vec<Phase> = [Phase::Between, Phase::Held, Phase::Fed]
            .into_iter()
            .chain(ONLINE.map(Phase::Online))
            .chain(BLOCKING.map(Phase::Blocking))
            .chain(ROLLBACK.map(Phase::Rollback))
            .collect();
        let hosts = [&[0][..], &[1], &[0, 1]][at / phases.len() % 3].to_vec();
        let mover = [Mover::Lives, Mover::Dies][at / phases.len() / 3 % 2];
        Case {
            seed,
            version,
            phase: phases[at % phases.len()],
            hosts,
            gap: Gap::Moments,
            former: Former::SwitchedOver,
            mover,
            names: Names::Standby,
            way: Way::Addresses,
            slots: match version < 17 {
                true => Slots::None,
                false => Slots::Synchronized,
            },
        }
    }

    fn failover(seed: u64, version: u32) -> Case {
        let rng = &mut Rng::with_seed(seed.wrapping_mul(31));
        let phase = match rng.u8(0..12) {
            0 => Phase::Between,
            1..=4 => Phase::Online(one(rng, &ONLINE)),
            5 | 6 => Phase::Blocking(one(rng, &BLOCKING)),
            7 => Phase::Held,
            8 | 9 => Phase::Fed,
            _ => Phase::Rollback(one(rng, &ROLLBACK)),
        };
        let hosts = one(rng, &[&[0][..], &[1], &[0, 1]]).to_vec();
        let gap = one(
            rng,
            &[
                Gap::None,
                Gap::Moments,
                Gap::SincePhase,
                Gap::SincePhase,
                Gap::SinceBefore,
            ],
        );
        let former = one(
            rng,
            &[
                Former::Gone,
                Former::Gone,
                Former::Thawed,
                Former::StartedAgain,
            ],
        );
        let mover = one(rng, &[Mover::Lives, Mover::Dies]);
        let names = one(rng, &[Names::Standby, Names::Any]);
        let way = one(rng, &[Way::Addresses, Way::Addresses, Way::PgBouncer]);
        let slots = one(rng, &[Slots::None, Slots::Synchronized]);
        let slots = if version < 17 { Slots::None } else { slots };
        Case {
            seed,
            version,
            phase,
            hosts,
            gap,
            former,
            mover,
            names,
            way,
            slots,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self
            .hosts
            .iter()
            .map(|host| format!("db{}", host + 1))
            .collect();
        let (phase, gap, former, mover) = (self.phase, self.gap, self.former, self.mover);
        let (seed, version, hosts) = (self.seed, self.version, hosts.join(" and "));
        write!(
            f,
            "--seed {seed} --version {version}: {phase:?}, {hosts}, gap {gap:?}, former \
                {former:?}, mover {mover:?}, \
             names {:?}, way {:?}, slots {:?}",
            self.names, self.way, self.slots
        )
    }
}
