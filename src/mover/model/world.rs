//! The world that the model explores: what two hosts hold in memory and on disk, and the position
//! of every actor.
//!
//! It is small and `Copy`: millions of worlds are distinguished by their hashes. What a host would
//! lose if it crashed is the difference between the two halves of [`Stored`].

use crate::mover::protocol::state::{ComparisonState, Goal, Phase, Stop, Stream, Until};

/// A mover's number; its lease is the same.
pub(super) type Lease = u8;

/// The most movers of a world.
pub(super) const MOVERS: usize = 3;

/// The most routers of a world. The write of router n is the bit n, that of the bypassing client
/// the bit after those.
pub(super) const ROUTERS: usize = 2;

/// A server's committed state (`live`), and the part of it that is on disk, and on the standbys
/// that may be promoted (`durable`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stored<T> {
    pub(super) live: T,
    pub(super) durable: T,
}

impl<T: Copy> Stored<T> {
    pub(super) fn new(both: T) -> Stored<T> {
        Stored {
            live: both,
            durable: both,
        }
    }

    /// The effect of a synchronous commit: everything that was committed before is on disk, too.
    pub(super) fn flush(&mut self) {
        self.durable = self.live;
    }

    /// A crash, or the promotion of a standby.
    pub(super) fn crash(&mut self) {
        self.live = self.durable;
    }
}

/// `pgshard.shard` on the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Row {
    Serving,
    Fenced { attempt: u8, lease: Lease },
    Moved { token: Option<u8> },
}

/// What has the shard's name on the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Named {
    Shard,
    Signpost,
    /// The shard was renamed away and nothing took its place. Only mutants do this.
    Nothing,
}

/// The move's row in `pgshard.move`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Journal {
    pub(super) phase: Phase,
    pub(super) attempt: u8,
    pub(super) lease: Lease,
    /// `open_token`.
    pub(super) token: Option<u8>,
}

/// One commit of the source, as its WAL carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Record {
    Write(u8),
    Marker(u8),
}

/// The commits of the source that matter to the stream, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Log {
    length: u8,
    records: [Record; 8],
}

impl Log {
    pub(super) const EMPTY: Log = Log {
        length: 0,
        records: [Record::Write(0); 8],
    };

    pub(super) fn push(&mut self, record: Record) {
        self.records[usize::from(self.length)] = record;
        self.length += 1;
    }

    pub(super) fn length(&self) -> u8 {
        self.length
    }

    /// Its first records, this many.
    pub(super) fn up_to(&self, length: u8) -> Log {
        Log {
            length: length.min(self.length),
            ..*self
        }
    }

    pub(super) fn get(&self, at: u8) -> Option<Record> {
        (at < self.length).then(|| self.records[usize::from(at)])
    }

    /// The writes in it, as bits: what the shard's tables hold on the source.
    pub(super) fn writes(&self) -> u8 {
        let records = self.records.iter().take(usize::from(self.length));
        records.fold(0, |bits, record| match record {
            Record::Write(n) => bits | 1 << n,
            Record::Marker(_) => bits,
        })
    }
}

/// The source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Source {
    pub(super) row: Row,
    pub(super) named: Named,
    pub(super) journal: Journal,
    /// `pgshard.marker`, as bits by attempt.
    pub(super) markers: u8,
    pub(super) log: Log,
    /// Whether the signpost was built: next to the shard, or in its place.
    pub(super) signpost: bool,
    /// Its row in `pgshard.ledger`.
    pub(super) signpost_in_ledger: bool,
    /// Whether the rows of the shard exist, under whatever name.
    pub(super) copy: bool,
}

/// `pgshard.incoming` on the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Incoming {
    pub(super) lease: Lease,
    pub(super) ready: Option<u8>,
    /// The token that `open_hash` is the hash of.
    pub(super) hash: Option<u8>,
}

/// The target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Target {
    pub(super) incoming: Option<Incoming>,
    /// The schema `__incoming`.
    pub(super) schema: bool,
    /// Its row in `pgshard.ledger`.
    pub(super) schema_in_ledger: bool,
    /// Online: whether the rows were copied.
    pub(super) loaded: bool,
    /// The writes that its tables hold, as bits.
    pub(super) rows: u8,
    /// `progress.applied_lsn`: how many records of the source's log are applied.
    pub(super) applied: u8,
    /// The row in `pgshard.shard` is serving, and the schema has its final name: one transaction
    /// does both.
    pub(super) serving: bool,
}

/// The statement that a mover sends next. Anything may happen between any two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum At {
    /// It has not been started.
    Asleep,
    /// Takeover: the lease on the source, then that on the target.
    TakeSource,
    TakeTarget,
    /// The loop's head: journal and row of the source.
    Look,
    /// … and those of the target: then `state::next` is called.
    LookTarget {
        phase: Phase,
        row: Row,
        token: Option<u8>,
    },
    // Prepare.
    Announce,
    Build,
    Record,
    Signpost,
    Prepared,
    // Online only: copy the rows, then apply everything up to now.
    Load,
    Loaded,
    /// The follower is started.
    Follow,
    CatchUp,
    CaughtUp,
    Preset,
    /// The operator holds the fence back.
    Wait,
    // Fence. Online, the token was made before.
    Swap {
        token: Option<u8>,
    },
    Barrier {
        attempt: u8,
        token: Option<u8>,
    },
    /// Only mutants: the stop position is known before the barrier.
    BarrierAfterStop {
        attempt: u8,
        token: Option<u8>,
        stop: u8,
    },
    /// `stop`: where the drain ends, if it does not end at the marker. Only mutants have one.
    Mark {
        attempt: u8,
        token: Option<u8>,
        stop: Option<u8>,
    },
    /// Online, behind the marker: the last changes and the prepared open on one side, the
    /// examination of what may not have changed on the other, in any order. Both end before
    /// anything is decided.
    Behind {
        attempt: u8,
        token: Option<u8>,
        stop: Option<u8>,
        looked: bool,
        open: Opening,
    },
    /// Blocking: the examination before the rows are read.
    Check {
        attempt: u8,
        token: Option<u8>,
        stop: Option<u8>,
    },
    // Copy, blocking: one transaction on the target.
    Rows {
        attempt: u8,
        token: Option<u8>,
        stop: Option<u8>,
    },
    Ready {
        attempt: u8,
        token: Option<u8>,
        copied: u8,
    },
    Copied,
    // Decide and open.
    OpenPrepared {
        attempt: u8,
    },
    Decide {
        attempt: u8,
    },
    CommitOpen {
        attempt: u8,
    },
    FinishOpen {
        token: Option<u8>,
    },
    Publish,
    // Undoing a fence, or the whole move.
    Unfence {
        attempt: u8,
    },
    DiscardTarget,
    DiscardSource,
    Aborted,
    /// After an error: take back a fence of ours, then end.
    LeaveServing,
    Ended,
    Crashed,
}

/// How far the opening side is behind the marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Opening {
    Draining,
    Drained,
    Prepared,
    /// Refused, or its connection broke. Whether that ends the attempt is decided after the
    /// examination.
    Failed,
}

/// A mover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mover {
    pub(super) at: At,
    pub(super) goal: Goal,
    pub(super) until: Until,
    pub(super) stop: Stop,
    /// Whether its follower runs.
    pub(super) stream: Stream,
    /// How often the operator has started it again. Only the last mover is started again.
    pub(super) restarts: u8,
}

impl Mover {
    /// Whether source and target were compared on the servers that run now.
    pub(super) fn has_compared(&self) -> bool {
        matches!(
            self.stream,
            Stream::On {
                compared: ComparisonState::Yes,
                ..
            }
        )
    }

    /// A server was restarted, or another was promoted.
    pub(super) fn is_on_other_servers(&mut self) {
        if let Stream::On { compared, .. } = &mut self.stream {
            *compared = ComparisonState::No;
        }
    }
}

/// A host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Host {
    Source,
    Target,
}

/// A router with one write to make. It answers the application only when that is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Router {
    /// Sends the statement to the host that its cache names.
    Ready { cached: Host },
    /// The statement has its lock on the shard's table.
    Holding { on: Host },
    /// The source gave it the token; its `finish_open` is on its way.
    Opening { token: Option<u8> },
    /// It has committed, or its connection broke while the outcome was unknown.
    Done,
}

/// A client with plain SQL to the source and a transaction that may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Direct {
    Idle,
    /// BEGIN, and a snapshot in which the shard was there (`saw`) or a signpost was.
    Begun {
        saw: bool,
    },
    Holding,
    Done,
}

/// What may still go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    pub(super) mover_crashes: u8,
    /// How many movers are stopped.
    pub(super) stops: u8,
    pub(super) source_crashes: u8,
    pub(super) target_crashes: u8,
    pub(super) lost_messages: u8,
}

/// What no property can read from the hosts afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    /// A write was committed on a host that did not own the shard.
    pub(super) misplaced: bool,
    /// A write was committed on the source after the marker of the attempt that is fenced.
    pub(super) after_marker: bool,
    /// A marker was committed while a writer was in flight.
    pub(super) marked_early: bool,
    /// A mover changed something that another had taken over.
    pub(super) zombie: bool,
    /// The source has decided.
    pub(super) decided: bool,
    /// The tokens for which the definitions and sequences behind the fence were examined, as bits.
    pub(super) checked: u8,
    /// It has decided for a fence, and no mover had examined the shard behind it.
    pub(super) unchecked: bool,
    /// A takeover happened while the shard was fenced.
    pub(super) taken_while_fenced: bool,
    /// A crash of the target has lost its open.
    pub(super) unopened: bool,
    /// A router has opened the target.
    pub(super) opened_by_router: bool,
}

/// Everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) source: Stored<Source>,
    pub(super) target: Stored<Target>,
    /// Whether the operator holds the fence back.
    pub(super) held: bool,
    /// The mover that holds the row of `pgshard.incoming` in an open transaction on the target.
    pub(super) locked_by: Option<Lease>,
    /// The position up to which the slot may forget.
    pub(super) confirmed: u8,
    /// How many tokens were made, one for each fence. A crash of the source may undo an attempt's
    /// number, never a token.
    pub(super) fences: u8,
    pub(super) movers: [Mover; MOVERS],
    pub(super) routers: [Router; ROUTERS],
    pub(super) direct: Direct,
    pub(super) faults: Faults,
    pub(super) seen: Seen,
}
