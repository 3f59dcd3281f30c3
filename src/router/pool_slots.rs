//! The slots of one pool. Each has a connection that is idle or held, or has none yet.
//!
//! Invariant: a slot is either idle, held or empty.

use std::collections::VecDeque;

/// The slots of one pool.
pub(super) struct PoolSlots<C, W> {
    /// By slot: its connection, while nobody uses it.
    idle: Box<[Option<C>]>,
    /// A bit for each slot that has an idle connection.
    idle_bits: Box<[u64]>,
    pub(super) idle_count: usize,
    /// Slots that nobody holds and that have no connection. The one to be used next is on top.
    empty: Vec<usize>,
    /// How many slots have ever had a connection: those with the lowest numbers.
    opened: usize,
    /// How many slots are held.
    pub(super) used: usize,
    /// How many of these were granted without a connection, and have none yet.
    pub(super) opening: usize,
    pub(super) waiting: VecDeque<Waiter<W>>,
    pub(super) waiting_max: usize,
    pub(super) service: Service,
}

/// What a pool still does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    Open,
    /// It serves calls that still come, and keeps no connection for which no call waits.
    Retired,
    /// It serves no call.
    Closed,
}

pub(super) struct Waiter<W> {
    pub(super) ticket: u64,
    pub(super) shard: Option<usize>,
    /// Whether it has waited long enough for a connection of its own pool.
    pub(super) insists: bool,
    pub(super) tell: W,
}

/// A slot that is held from now on. Without a connection, its holder must open one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Grant<C> {
    pub(super) slot: usize,
    pub(super) connection: Option<C>,
}

impl<C, W> PoolSlots<C, W> {
    pub(super) fn new(size: usize, waiting_max: usize) -> PoolSlots<C, W> {
        PoolSlots {
            idle: std::iter::repeat_with(|| None).take(size).collect(),
            idle_bits: vec![0; size.div_ceil(64)].into(),
            idle_count: 0,
            empty: (0..size).rev().collect(),
            opened: 0,
            used: 0,
            opening: 0,
            waiting: VecDeque::new(),
            waiting_max,
            service: Service::Open,
        }
    }

    pub(super) fn connections(&self) -> usize {
        self.idle_count + self.used
    }

    /// The first slot with an idle connection, from the shard's favourite on and round.
    fn nearest(&self, shard: Option<usize>) -> Option<usize> {
        if self.idle_count == 0 {
            return None;
        }
        let favourite = shard.map_or(0, |shard| shard % self.opened.max(1));
        let (first, bit) = (favourite / 64, favourite % 64);
        let words = self.idle_bits.len();
        let found = |word: usize, bits: u64| (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize);
        found(first, self.idle_bits[first] & (u64::MAX << bit)).or_else(|| {
            // This goes round to the first word again, whose lower bits come last.
            (1..=words).map(|step| (first + step) % words).find_map(|word| found(word, self.idle_bits[word]))
        })
    }

    fn take_idle(&mut self, slot: usize) -> Option<C> {
        let connection = self.idle[slot].take()?;
        self.idle_bits[slot / 64] &= !(1 << (slot % 64));
        self.idle_count -= 1;
        Some(connection)
    }

    fn put_idle(&mut self, slot: usize, connection: C) {
        self.idle[slot] = Some(connection);
        self.idle_bits[slot / 64] |= 1 << (slot % 64);
        self.idle_count += 1;
    }

    /// Grants the nearest idle connection.
    pub(super) fn grant_idle(&mut self, shard: Option<usize>) -> Option<Grant<C>> {
        let slot = self.nearest(shard)?;
        let connection = self.take_idle(slot);
        self.used += 1;
        Some(Grant { slot, connection })
    }

    /// Grants a slot without a connection.
    pub(super) fn grant_empty(&mut self) -> Option<Grant<C>> {
        let slot = self.empty.pop()?;
        self.opened = self.opened.max(slot + 1);
        self.used += 1;
        Some(Grant { slot, connection: None })
    }

    /// The holder gives the slot back, with its connection if that can be used again.
    pub(super) fn give_back(&mut self, slot: usize, connection: Option<C>) {
        self.used -= 1;
        match connection {
            Some(connection) => self.put_idle(slot, connection),
            None => self.empty.push(slot),
        }
    }

    /// Takes the idle connections for which `ends` says so.
    pub(super) fn close_idle(&mut self, ends: impl Fn(&C) -> bool) -> Vec<C> {
        let mut closed = Vec::new();
        for slot in 0..self.idle.len() {
            if self.idle[slot].as_ref().is_some_and(&ends) {
                closed.extend(self.take_idle(slot));
                self.empty.push(slot);
            }
        }
        closed
    }

    /// Whether another connection could be opened, as far as the pool's size goes.
    pub(super) fn has_empty(&self) -> bool {
        !self.empty.is_empty()
    }

    /// Takes the idle connection with the highest number, which is the least likely to be a favourite.
    pub(super) fn close_one(&mut self) -> Option<C> {
        let slot = (0..self.idle.len()).rev().find(|slot| self.idle[*slot].is_some())?;
        self.empty.push(slot);
        self.take_idle(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shards_choices_are_always_the_same() {
        let nearest = |idle: &[usize], opened, shard| {
            let mut slots = PoolSlots::<(), ()>::new(200, 0);
            slots.opened = opened;
            idle.iter().for_each(|slot| slots.put_idle(*slot, ()));
            slots.nearest(Some(shard))
        };
        assert_eq!(nearest(&[3, 2, 1, 0], 4, 5), Some(1));
        assert_eq!(nearest(&[0, 3], 4, 5), Some(3));
        assert_eq!(nearest(&[0], 4, 5), Some(0));
        assert_eq!(nearest(&[2, 0], 3, 8), Some(2));
        assert_eq!(nearest(&[], 3, 8), None);
        // Over more than a word, and round to what stands before the favourite in its own.
        assert_eq!(nearest(&[70, 150], 200, 71), Some(150));
        assert_eq!(nearest(&[65, 70], 200, 71), Some(65));
        assert_eq!(nearest(&[199], 200, 0), Some(199));
    }
}
