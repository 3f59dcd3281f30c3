//! A few rounds of fail-overs in the middle of moves, which `script/test-failover` plays for hours.

#[path = "../failover/case.rs"]
mod case;
#[path = "../failover/round.rs"]
mod round;
#[path = "../failover/writers.rs"]
mod writers;

use crate::router::pooler;
use crate::support;

use case::{Case, Former, Gap, Mover, Names, Phase, Slots, Way};
use round::Round;

on_each_version! {
    /// No acknowledged row is lost except those that only a former primary had.
    async fn rounds(version) {
        for seed in if version == 15 { [2, 16] } else { [2, 4] } {
            Round::play(Case::of(seed, version)).await;
        }
    }

    /// Commits wait for `*`, and the former primary goes on after its standby was promoted: it
    /// acknowledges nothing, although the mover still streams from it.
    async fn whoever_streams(version) {
        let case = Case::of(0, version);
        let (phase, gap, former, mover) = (Phase::Held, Gap::None, Former::Thawed, Mover::Lives);
        let (names, way, slots) = (Names::Any, Way::Addresses, Slots::None);
        Round::play(Case {
            phase,
            hosts: vec![0],
            gap,
            former,
            mover,
            names,
            way,
            slots,
            ..case
        })
        .await;
    }

    /// Routers go through PgBouncer in transaction mode, and on 18 the standbys synchronize slots.
    async fn through_a_pooler(version) {
        let case = Case::of(0, version);
        let (phase, gap, former, mover) =
            (Phase::Held, Gap::SincePhase, Former::Thawed, Mover::Lives);
        let slots = if version < 17 {
            Slots::None
        } else {
            Slots::Synchronized
        };
        let way = Way::PgBouncer;
        Round::play(Case {
            phase,
            hosts: vec![0, 1],
            gap,
            former,
            mover,
            way,
            slots,
            ..case
        })
        .await;
    }
}
