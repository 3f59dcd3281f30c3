//! The rules: what holds in every world, how every move ends, and what must be possible.
//!
//! "Eventually" is checked in worlds in which nothing more happens: every run reaches one, because
//! no run goes in circles (a test shows that).

use stateright::Property;

use crate::mover::model::Protocol;
use crate::mover::model::world::{At, Direct, Host, Named, Router, Row, World};
use crate::mover::protocol::state::Phase;

pub(super) const SINGLE_OWNER: &str = "at most one host serves the shard";
pub(super) const NO_LOST_WRITE: &str = "the host that serves has every acknowledged write";
pub(super) const NO_MISPLACED_WRITE: &str =
    "no write is accepted by a host that does not own the shard";
pub(super) const FENCE_BEFORE_STOP: &str =
    "no writer is in flight at the marker, and none commits after it";
pub(super) const DECIDE_ONCE: &str = "what is decided stays decided";
pub(super) const OPEN_NEEDS_DECISION: &str = "the target serves only once the source has decided";
pub(super) const ROUTERS_FORWARD: &str =
    "a router is sent to the target only once it serves, or has served";
pub(super) const NO_RESURRECTION: &str = "a mover that was taken over changes nothing";
pub(super) const LEDGER_COVERS: &str = "what exists is in a ledger";
pub(super) const DROP_SAFE: &str = "the old copy is dropped only when the target serves durably";
pub(super) const LOOKED_BEHIND: &str =
    "nothing is decided before somebody has looked behind the fence";
pub(super) const NEVER_STRANDED: &str = "a shard that was given away has its rows at the target";
pub(super) const EVERY_MOVE_ENDS: &str = "every move ends, done or aborted";
pub(super) const WRITABLE_AGAIN: &str = "the shard is writable again";
pub(super) const NOTHING_LEFT: &str = "an ended move leaves nothing behind";

pub(super) fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always(SINGLE_OWNER, |_, w: &World| {
            !(w.source.live.row == Row::Serving && w.target.live.serving)
        }),
        Property::always(NO_LOST_WRITE, |_, w: &World| {
            !w.target.live.serving || lost(w) == 0
        }),
        Property::always(NO_MISPLACED_WRITE, |_, w: &World| !w.seen.misplaced),
        Property::always(FENCE_BEFORE_STOP, |_, w: &World| {
            !w.seen.marked_early && !w.seen.after_marker
        }),
        Property::always(DECIDE_ONCE, |_, w: &World| !w.seen.decided || is_moved(w)),
        Property::always(OPEN_NEEDS_DECISION, |_, w: &World| {
            !w.target.live.serving || is_moved(w)
        }),
        Property::always(ROUTERS_FORWARD, |_, w: &World| {
            w.target.live.serving || w.seen.unopened || !w.routers.iter().any(believes_target)
        }),
        Property::always(NO_RESURRECTION, |_, w: &World| !w.seen.zombie),
        Property::always(LEDGER_COVERS, |_, w: &World| is_covered(w)),
        Property::always(DROP_SAFE, |_, w: &World| {
            w.source.live.copy || w.target.durable.serving
        }),
        Property::always(LOOKED_BEHIND, |_, w: &World| !w.seen.unchecked),
        Property::always(NEVER_STRANDED, |_, w: &World| {
            !is_moved(w) || w.target.live.serving || is_openable(w)
        }),
        Property::always(EVERY_MOVE_ENDS, |model: &Protocol, w: &World| {
            has_ended(w) || !model.is_quiet(w)
        }),
        Property::always(WRITABLE_AGAIN, |model: &Protocol, w: &World| {
            is_writable(w) || !model.is_quiet(w)
        }),
        Property::always(NOTHING_LEFT, |model: &Protocol, w: &World| {
            is_clean(w) || !model.is_quiet(w)
        }),
        Property::sometimes("a move is completed", |_, w: &World| {
            w.source.live.journal.phase == Phase::Completed
        }),
        Property::sometimes("a move is aborted after a fence", |_, w: &World| {
            w.source.live.journal.phase == Phase::Aborted && w.fences > 0
        }),
    ]
}

/// The rules for a shard that may be fenced more than once.
pub(super) fn of_fences() -> Vec<Property<Protocol>> {
    vec![
        Property::sometimes(
            "a mover takes over while the shard is fenced, and the move is kept",
            |_, w: &World| w.seen.taken_while_fenced && w.source.live.journal.phase == Phase::Kept,
        ),
        Property::sometimes(
            "a fence ends by its deadline and a later one is decided",
            |_, w: &World| w.fences > 1 && is_moved(w),
        ),
    ]
}

/// The rules about the clients, which not all bounds include.
pub(super) fn of_routers() -> Vec<Property<Protocol>> {
    vec![
        Property::sometimes("a router is sent on by the signpost", |_, w: &World| {
            w.routers.iter().any(believes_target)
        }),
        Property::sometimes("a router opens the target", |_, w: &World| {
            w.seen.opened_by_router
        }),
    ]
}

fn lost(w: &World) -> u8 {
    w.source.live.log.writes() & !w.target.live.rows
}

fn is_moved(w: &World) -> bool {
    matches!(w.source.live.row, Row::Moved { .. })
}

fn believes_target(router: &Router) -> bool {
    matches!(
        router,
        Router::Ready {
            cached: Host::Target
        } | Router::Holding { on: Host::Target }
    )
}

fn is_covered(w: &World) -> bool {
    let (source, target) = (&w.source.live, &w.target.live);
    let signpost = !source.signpost || source.signpost_in_ledger || is_moved(w);
    signpost && (!target.schema || target.schema_in_ledger)
}

/// Whether the token that the source shows opens the target.
fn is_openable(w: &World) -> bool {
    let Row::Moved { token } = w.source.live.row else {
        return false;
    };
    w.target.live.incoming.is_some_and(|incoming| {
        incoming.ready.is_some() && incoming.hash == token && token.is_some()
    })
}

fn has_ended(w: &World) -> bool {
    w.source.live.journal.phase.is_ended()
        && w.movers
            .iter()
            .all(|m| matches!(m.at, At::Asleep | At::Ended | At::Crashed))
}

/// Whether one host serves, under the shard's name, and every client's write has succeeded.
fn is_writable(w: &World) -> bool {
    let here = w.source.live.row == Row::Serving && w.source.live.named == Named::Shard;
    let written = w
        .routers
        .iter()
        .all(|router| matches!(router, Router::Done | Router::Ready { .. }));
    here != w.target.live.serving && written && w.direct != Direct::Holding
}

fn is_clean(w: &World) -> bool {
    let (source, target) = (&w.source.live, &w.target.live);
    target.incoming.is_none()
        && !target.schema
        && (is_moved(w) || !source.signpost)
        && w.locked_by.is_none()
}
