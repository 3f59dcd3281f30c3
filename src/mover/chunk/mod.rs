//! The copy of a shard that stays open: in pieces by key, each as of a snapshot of its own, and exact all the same.
//!
//! A slot of the source exists before the first piece is copied, so that every change since is in its stream. A piece keeps the
//! snapshot it was read under, and a change of transaction X to the row with key k is applied if, and only if, X is not
//! visible in the snapshot of the piece that holds k ([`chunks`]). So no snapshot is held for longer than one
//! piece takes, pieces can be copied in any order, at any time, by any number of workers, and again after a crash.
//!
//! [`table`] reads what tables there are and judges which of them can be moved like this;
//! [`snapshot`] and [`key`] are what the rule is made of.
//!
//! # What may not break
//! 1. The lock on a table is taken before the snapshot: a TRUNCATE between the two would empty a piece whose snapshot does
//!    not see it.
//! 2. A piece's rows and its snapshot are written by one transaction of the target, which proves the lease.
//! 3. Bounds never change once the first piece of a table is copied.

pub(crate) mod chunks;
pub(crate) mod key;
pub(crate) mod snapshot;
pub(crate) mod table;
