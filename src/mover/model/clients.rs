//! The writers: routers, which go where the hosts send them, and a client with plain SQL, which
//! does not.

use crate::mover::model::mutant::Mutant;
use crate::mover::model::world::{Direct, Host, Named, ROUTERS, Record, Router, Row, World};
use crate::mover::model::{Action, Protocol};

impl Protocol {
    pub(super) fn client_actions(&self, world: &World, actions: &mut Vec<Action>) {
        for n in 0..self.bounds.routers {
            if world.routers[n] != Router::Done {
                actions.push(Action::Router(n));
            }
        }
        if self.bounds.direct && world.direct != Direct::Done {
            actions.push(Action::Direct);
        }
    }

    /// One step of a router, or `None` if it can only wait.
    pub(super) fn router(&self, world: &World, n: usize) -> Option<World> {
        let mut after = *world;
        let (source, target) = (&world.source.live, &world.target.live);
        after.routers[n] = match world.routers[n] {
            Router::Ready {
                cached: Host::Source,
            } if source.named == Named::Shard => Router::Holding { on: Host::Source },
            // The statement reaches a table of the same name in `public`, and reports success.
            Router::Ready {
                cached: Host::Source,
            } if source.named == Named::Nothing => {
                after.seen.misplaced = true;
                Router::Done
            }
            // The signpost. `Recovery::after` reads the source's row, then `chase` the target's.
            Router::Ready {
                cached: Host::Source,
            } => match source.row {
                // `Verdict::Again`, immediately: the row is serving, so the next statement finds
                // the shard.
                Row::Serving => return None,
                // `Verdict::Wait`; once the deadline has passed, `Verdict::Expire`, which is
                // Action::Expire.
                Row::Fenced { .. } if self.mutant != Some(Mutant::DecisionOnBothSides) => {
                    return None;
                }
                Row::Fenced { .. } => Router::Opening { token: None },
                Row::Moved { .. } if target.serving => Router::Ready {
                    cached: Host::Target,
                },
                Row::Moved { token } if target.incoming.is_some() => Router::Opening { token },
                Row::Moved { .. } => return None,
            },
            Router::Ready {
                cached: Host::Target,
            } if target.serving => Router::Holding { on: Host::Target },
            Router::Ready {
                cached: Host::Target,
            } => return None,
            Router::Holding { on: Host::Source } => {
                self.commit_on_source(&mut after, n);
                Router::Done
            }
            Router::Holding { on: Host::Target } => {
                after.target.live.rows |= 1 << n;
                after.seen.misplaced |= !target.serving;
                Router::Done
            }
            // All that wait for the row's lock wait here.
            Router::Opening { .. } if world.locked_by.is_some() => return None,
            Router::Opening { token } => {
                if let Some(Some(opened)) = target.finish_open(token, self.mutant) {
                    after.target.live = opened;
                    after.target.flush();
                    after.seen.opened_by_router = true;
                }
                Router::Ready {
                    cached: Host::Source,
                }
            }
            Router::Done => return None,
        };
        Some(after)
    }

    /// One step of the client with plain SQL.
    pub(super) fn direct(&self, world: &World) -> Option<World> {
        let mut after = *world;
        let named = world.source.live.named;
        after.direct = match world.direct {
            Direct::Idle => Direct::Begun {
                saw: named == Named::Shard,
            },
            // PostgreSQL resolves a name when it locks, whatever its snapshot: what has the name at
            // that moment counts.
            Direct::Begun { saw } => {
                let reaches = if self.mutant == Some(Mutant::GateInSnapshot) {
                    saw
                } else {
                    named == Named::Shard
                };
                after.seen.misplaced |= !reaches && named == Named::Nothing;
                if reaches {
                    Direct::Holding
                } else {
                    Direct::Done
                }
            }
            Direct::Holding => {
                self.commit_on_source(&mut after, ROUTERS);
                Direct::Done
            }
            Direct::Done => return None,
        };
        Some(after)
    }

    /// A writer's COMMIT, which is acknowledged before it is on disk: `synchronous_commit = off`. A
    /// synchronous one is this and a flush right after it.
    fn commit_on_source(&self, after: &mut World, writer: usize) {
        let source = &mut after.source.live;
        match source.row {
            Row::Serving => {}
            Row::Fenced { attempt, .. } => {
                after.seen.after_marker |= source.markers & 1 << attempt != 0
            }
            Row::Moved { .. } => after.seen.misplaced = true,
        }
        source.log.push(Record::Write(writer as u8));
    }

    /// Whether a transaction on the source holds a lock with which it can write: what
    /// `pgshard.barrier` looks for.
    pub(super) fn is_held(world: &World) -> bool {
        let routers = world
            .routers
            .contains(&Router::Holding { on: Host::Source });
        routers || world.direct == Direct::Holding
    }

    /// What happens to the transactions that are open on a host when it crashes.
    pub(super) fn disconnect(world: &mut World, host: Host) {
        for router in &mut world.routers {
            if *router == (Router::Holding { on: host }) {
                *router = Router::Done;
            }
        }
        if host == Host::Source && matches!(world.direct, Direct::Begun { .. } | Direct::Holding) {
            world.direct = Direct::Done;
        }
    }
}
