//! The slots of one pool. Each has a connection that is idle or held, or has none yet.
//!
//! Invariant: a slot is either idle, held or empty. Only one that is held is waited for.

use std::collections::VecDeque;

/// The most calls that wait for the connection of one slot.
const WANTING_MAX: usize = 4;

/// The slots of one pool.
pub(super) struct PoolSlots<C, W> {
    /// By slot: its connection, while it is unused.
    idle: Box<[Option<C>]>,
    /// A bit for each slot that has an idle connection.
    idle_bits: Box<[u64]>,
    /// By slot: when its connection was given back, counted in such events.
    given_back: Box<[u64]>,
    /// How often a connection was given back.
    returns: u64,
    pub(super) idle_count: usize,
    /// Free slots without a connection. The one to be used next is on top.
    empty: Vec<usize>,
    /// How many slots have ever had a connection: those with the lowest numbers.
    opened: usize,
    /// How many slots are held.
    pub(super) used: usize,
    /// How many of these were granted without a connection, and have none yet.
    pub(super) opening: usize,
    /// Calls that wait for whatever comes first.
    pub(super) waiting: VecDeque<Waiter<W>>,
    pub(super) waiting_max: usize,
    /// By slot: its purpose while it is held.
    held_for: Box<[Option<Use>]>,
    /// By slot: calls that wait for its connection.
    wanting: Box<[VecDeque<Waiter<W>>]>,
    wanting_count: usize,
    pub(super) service: Service,
}

/// For what a slot is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// One statement. Most are over within a millisecond.
    Statement,
    /// A transaction, or what else may take as long as its caller likes. Also a statement that has
    /// turned out to be slow.
    Longer,
}

/// Which of a host's connections a call uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Lane {
    /// Those of the application's statements.
    #[default]
    Work,
    /// Those of claims, which must get through while every other connection waits for them.
    Claims,
}

/// How much a shard's favourite is worth to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Favourite {
    /// Nothing, as every connection keeps the statements of all shards: the call takes the idle
    /// connection that was used last, as its backend is the warmest.
    NotNeeded,
    /// The call takes it if it is idle.
    IfIdle,
    /// The call waits for it for a moment, where it would have to wait for some connection anyway,
    /// or nearly so.
    WaitBriefly,
}

/// What a call wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) shard: Option<usize>,
    pub(super) held_for: Use,
    pub(super) favourite: Favourite,
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
    pub(super) wish: Wish,
    /// Whether it has waited long enough for a connection of its own pool.
    pub(super) insists: bool,
    pub(super) tell: W,
}

/// A slot that is held from now on. Without a connection, its holder must open one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Grant<C> {
    pub(super) slot: usize,
    pub(super) connection: Option<C>,
    /// Whether the connection is the favourite of the call's shard.
    pub(super) is_favourite: bool,
}

impl<C, W> PoolSlots<C, W> {
    pub(super) fn new(size: usize, waiting_max: usize) -> PoolSlots<C, W> {
        PoolSlots {
            idle: std::iter::repeat_with(|| None).take(size).collect(),
            idle_bits: vec![0; size.div_ceil(64)].into(),
            given_back: vec![0; size].into(),
            returns: 0,
            idle_count: 0,
            empty: (0..size).rev().collect(),
            opened: 0,
            used: 0,
            opening: 0,
            waiting: VecDeque::new(),
            waiting_max,
            held_for: vec![None; size].into(),
            wanting: std::iter::repeat_with(VecDeque::new).take(size).collect(),
            wanting_count: 0,
            service: Service::Open,
        }
    }

    pub(super) fn connections(&self) -> usize {
        self.idle_count + self.used
    }

    /// How many calls wait.
    pub(super) fn waiting_count(&self) -> usize {
        self.waiting.len() + self.wanting_count
    }

    fn favourite(&self, shard: Option<usize>) -> usize {
        shard.map_or(0, |shard| shard % self.opened.max(1))
    }

    /// The first slot with an idle connection, from the favourite on and round.
    fn nearest(&self, favourite: usize) -> Option<usize> {
        if self.idle_count == 0 {
            return None;
        }
        let (first, bit) = (favourite / 64, favourite % 64);
        let words = self.idle_bits.len();
        let found = |word: usize, bits: u64| {
            (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize)
        };
        found(first, self.idle_bits[first] & (u64::MAX << bit)).or_else(|| {
            // This wraps around to the first word again: its lower bits come last.
            (1..=words)
                .map(|step| (first + step) % words)
                .find_map(|word| found(word, self.idle_bits[word]))
        })
    }

    /// The favourite, if a call should wait for it although another connection is idle: a statement
    /// has it, few calls wait for it, and with this call nearly every connection has one, so that
    /// calls will soon have to wait anyway.
    pub(super) fn worth_a_moment(&self, wish: Wish) -> Option<usize> {
        if wish.favourite != Favourite::WaitBriefly
            || self.idle_count == 0
            || self.service != Service::Open
        {
            return None;
        }
        let favourite = self.favourite(Some(wish.shard?));
        let calls = self.used + self.waiting_count() + 1;
        (calls * 8 >= self.connections() * 7
            && self.held_for[favourite] == Some(Use::Statement)
            && self.wanting[favourite].len() < WANTING_MAX)
            .then_some(favourite)
    }

    /// Has a call wait for the connection of a slot that is held.
    pub(super) fn want(&mut self, slot: usize, waiter: Waiter<W>) {
        self.wanting[slot].push_back(waiter);
        self.wanting_count += 1;
    }

    /// The ticket of the call that has waited longest for this slot's connection.
    pub(super) fn first_wanting(&self, slot: usize) -> Option<u64> {
        Some(self.wanting[slot].front()?.ticket)
    }

    /// Grants an idle connection to the call that has waited longest for it.
    pub(super) fn grant_wanted(&mut self, slot: usize) -> Option<(W, Grant<C>)> {
        let waiter = self.wanting[slot].pop_front()?;
        self.wanting_count -= 1;
        let connection = self.take_idle(slot);
        self.hold(slot, waiter.wish.held_for);
        Some((
            waiter.tell,
            Grant {
                slot,
                connection,
                is_favourite: true,
            },
        ))
    }

    /// The calls that wait for this slot wait for any, each in its place. Returns how many they
    /// are.
    pub(super) fn release(&mut self, slot: usize) -> usize {
        let released = std::mem::take(&mut self.wanting[slot]);
        let count = released.len();
        self.wanting_count -= count;
        for waiter in released {
            let at = self
                .waiting
                .partition_point(|other| other.ticket < waiter.ticket);
            self.waiting.insert(at, waiter);
        }
        count
    }

    /// The slot for which the call with this ticket waits.
    pub(super) fn wanted_by(&self, ticket: u64) -> Option<usize> {
        self.wanting
            .iter()
            .position(|wanting| wanting.iter().any(|waiter| waiter.ticket == ticket))
    }

    /// The call waits no more.
    pub(super) fn cancel_wanting(&mut self, slot: usize, ticket: u64) {
        let before = self.wanting[slot].len();
        self.wanting[slot].retain(|waiter| waiter.ticket != ticket);
        self.wanting_count -= before - self.wanting[slot].len();
    }

    /// Takes out the calls that wait for a slot of theirs.
    pub(super) fn dismiss_wanting(&mut self) -> Vec<Waiter<W>> {
        self.wanting_count = 0;
        self.wanting.iter_mut().flat_map(std::mem::take).collect()
    }

    /// No call starts to wait for this slot as long as its holder has it.
    pub(super) fn takes_longer(&mut self, slot: usize) {
        if let Some(held_for) = &mut self.held_for[slot] {
            *held_for = Use::Longer;
        }
    }

    fn hold(&mut self, slot: usize, held_for: Use) {
        self.used += 1;
        self.held_for[slot] = Some(held_for);
    }

    fn take_idle(&mut self, slot: usize) -> Option<C> {
        let connection = self.idle[slot].take()?;
        self.idle_bits[slot / 64] &= !(1 << (slot % 64));
        self.idle_count -= 1;
        Some(connection)
    }

    /// The slot with the idle connection that was given back last.
    fn last_used(&self) -> Option<usize> {
        let of_word = |(word, bits): (usize, &u64)| {
            let mut bits = *bits;
            std::iter::from_fn(move || {
                let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(word * 64 + bit)
            })
        };
        let idle = self.idle_bits.iter().enumerate().flat_map(of_word);
        idle.max_by_key(|slot| self.given_back[*slot])
    }

    fn put_idle(&mut self, slot: usize, connection: C) {
        self.returns += 1;
        self.given_back[slot] = self.returns;
        self.idle[slot] = Some(connection);
        self.idle_bits[slot / 64] |= 1 << (slot % 64);
        self.idle_count += 1;
    }

    /// Grants the idle connection that suits the call best.
    pub(super) fn grant_idle(&mut self, wish: Wish) -> Option<Grant<C>> {
        let favourite = self.favourite(wish.shard);
        let slot = match wish.favourite {
            Favourite::NotNeeded => self.last_used()?,
            Favourite::IfIdle | Favourite::WaitBriefly => self.nearest(favourite)?,
        };
        let connection = self.take_idle(slot);
        self.hold(slot, wish.held_for);
        Some(Grant {
            slot,
            connection,
            is_favourite: wish.shard.is_some() && slot == favourite,
        })
    }

    /// Grants a slot without a connection.
    pub(super) fn grant_empty(&mut self, wish: Wish) -> Option<Grant<C>> {
        let slot = self.empty.pop()?;
        self.opened = self.opened.max(slot + 1);
        self.hold(slot, wish.held_for);
        Some(Grant {
            slot,
            connection: None,
            is_favourite: false,
        })
    }

    /// The holder gives the slot back, with its connection if that can be used again.
    pub(super) fn give_back(&mut self, slot: usize, connection: Option<C>) {
        self.used -= 1;
        self.held_for[slot] = None;
        match connection {
            Some(connection) => self.put_idle(slot, connection),
            None => self.empty.push(slot),
        }
    }

    /// Takes the idle connections for which `ends` returns true.
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

    /// Takes the idle connection with the highest number, which is the least likely to be a
    /// favourite.
    pub(super) fn close_one(&mut self) -> Option<C> {
        let slot = (0..self.idle.len())
            .rev()
            .find(|slot| self.idle[*slot].is_some())?;
        self.empty.push(slot);
        self.take_idle(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_no_favourite_is_needed_the_connection_used_last_is_taken() {
        let mut slots = PoolSlots::<usize, ()>::new(130, 0);
        for slot in [5, 129, 64, 2] {
            slots.put_idle(slot, slot);
        }
        let wish = Wish {
            shard: Some(5),
            held_for: Use::Statement,
            favourite: Favourite::NotNeeded,
        };
        let mut taken = Vec::new();
        while let Some(grant) = slots.grant_idle(wish) {
            assert_eq!(grant.connection, Some(grant.slot));
            taken.push(grant.slot);
            // A short call, after which its connection is the last used again.
            if taken.len() == 2 {
                slots.give_back(grant.slot, grant.connection);
            }
        }
        assert_eq!(taken, [2, 64, 64, 129, 5]);
    }

    #[test]
    fn a_shards_choices_are_always_the_same() {
        let nearest = |idle: &[usize], opened, shard| {
            let mut slots = PoolSlots::<(), ()>::new(200, 0);
            slots.opened = opened;
            idle.iter().for_each(|slot| slots.put_idle(*slot, ()));
            slots.nearest(slots.favourite(Some(shard)))
        };
        assert_eq!(nearest(&[3, 2, 1, 0], 4, 5), Some(1));
        assert_eq!(nearest(&[0, 3], 4, 5), Some(3));
        assert_eq!(nearest(&[0], 4, 5), Some(0));
        assert_eq!(nearest(&[2, 0], 3, 8), Some(2));
        assert_eq!(nearest(&[], 3, 8), None);
        // Over more than a word, and around to what is before the favourite in its own.
        assert_eq!(nearest(&[70, 150], 200, 71), Some(150));
        assert_eq!(nearest(&[65, 70], 200, 71), Some(65));
        assert_eq!(nearest(&[199], 200, 0), Some(199));
    }
}
