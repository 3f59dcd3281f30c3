//! Decides which connection a call gets, and which calls wait: the slots of all pools that share a
//! limit on connections.
//!
//! A pool has a slot for each connection that it may have. While each connection can keep the
//! prepared statements of all shards, a call gets the idle connection that was used last. Otherwise
//! each shard has a favourite among the open connections, so that its statements are prepared there
//! and not on all. A call gets the favourite if it is idle, else the next idle connection by
//! number, so that a shard's second choice is always the same too. A connection is opened only when
//! all are busy, and only a few at the same time.
//!
//! Where the prepared statements of a connection are too few for all shards, a call prefers its
//! favourite: the connection that has already prepared its statement. It waits for it while that
//! connection and nearly all others are busy ([`Slots::request_slot`]). The caller of this module
//! bounds that wait ([`Slots::accept_any`]).
//!
//! A call waits for whatever comes first: a connection of its pool that is given back, or leave to
//! open another one. When the limit is reached, a connection of another pool is closed for it only
//! if that pool has more than its share, or has no use for it.
//!
//! Invariant: there are never more connections than slots, nor more than the limit. A call waits
//! only if it cannot be served, or for its favourite. Calls that wait for a pool, or for the same
//! favourite, are served in the order of their requests. A connection that several calls wait for
//! goes to the earliest of them, whatever it waits for.
//!
//! This module does no I/O, has no clock and drops nothing. It returns the connections that the
//! caller must close and the calls that it must wake.

use std::collections::VecDeque;

use super::pool_slots::{Grant, PoolSlots, Service, Waiter, Wish};

/// The most connections of a pool that are opened at the same time. Each costs the server a process
/// and a proof of the password, some milliseconds in all, in which a connection that is there
/// serves several calls: so the calls of a burst wait for whatever comes first. When a host comes
/// back, all routers open connections at once.
const OPENING_MAX: usize = 4;

/// The slots of pools that share a limit. `C` is a connection, `W` wakes a waiter.
pub(super) struct Slots<C, W> {
    /// The most connections of all pools together.
    limit: usize,
    /// Connections of all pools: idle, in use, being opened or being ended.
    connections: usize,
    waiting: usize,
    pools: Vec<PoolSlots<C, W>>,
    /// Numbers of pools that were taken out.
    unused: Vec<usize>,
    /// The next waiter's ticket.
    ticket: u64,
}

/// The answer to a request for a slot.
pub(super) enum SlotAnswer<C> {
    Granted(Grant<C>),
    /// The call must wait. With the ticket it can escalate, or cancel.
    Waits(u64),
    /// The call waits for its favourite. With the ticket it can want another after all, or cancel.
    WaitsForFavourite(u64),
    /// As many wait as may.
    Full,
    Closed,
}

/// The consequences of a change: the calls to wake, and the connections to close.
#[must_use = "somebody waits for it"]
pub(super) struct Effects<C, W> {
    pub(super) grants: Vec<(W, Grant<C>)>,
    pub(super) closed: Vec<C>,
}

/// How many connections a pool has, and how many calls wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) idle: usize,
    pub(super) used: usize,
    pub(super) waiting: usize,
}

/// Where the connection for a waiter comes from.
enum Source {
    /// An idle connection of its pool.
    Own,
    /// The limit allows one more to be opened.
    Open,
    /// An idle connection of this other pool is closed for it.
    Other(usize),
}

impl<C, W> Effects<C, W> {
    fn none() -> Effects<C, W> {
        Effects {
            grants: Vec::new(),
            closed: Vec::new(),
        }
    }
}

impl<C, W> Slots<C, W> {
    /// There is no pool yet. The limit is at least one connection.
    pub(super) fn new(limit: usize) -> Slots<C, W> {
        Slots {
            limit: limit.max(1),
            connections: 0,
            waiting: 0,
            pools: Vec::new(),
            unused: Vec::new(),
            ticket: 0,
        }
    }

    /// Adds a pool of `size` slots, at least one, and returns its number.
    pub(super) fn add(&mut self, size: usize, waiting_max: usize) -> usize {
        let slots = PoolSlots::new(size.max(1), waiting_max);
        if let Some(number) = self.unused.pop() {
            self.pools[number] = slots;
            return number;
        }
        self.pools.push(slots);
        self.pools.len() - 1
    }

    /// Takes out a pool of which no slot is held.
    pub(super) fn remove(&mut self, pool: usize) -> Effects<C, W> {
        let effects = self.close_idle(pool, |_| true);
        self.pools[pool] = PoolSlots::new(0, 0);
        self.unused.push(pool);
        effects
    }

    pub(super) fn counts(&self, pool: usize) -> Counts {
        let pool = &self.pools[pool];
        Counts {
            idle: pool.idle_count,
            used: pool.used,
            waiting: pool.waiting_count(),
        }
    }

    /// Whether it is the limit, and not the pool's size, that keeps it from opening a connection.
    pub(super) fn is_limited(&self, pool: usize) -> bool {
        self.pools[pool].has_empty() && self.connections >= self.limit
    }

    /// Requests a slot. If the call must wait, the result of `tell` is used to wake it.
    pub(super) fn request_slot(
        &mut self,
        pool: usize,
        wish: Wish,
        tell: impl FnOnce() -> W,
    ) -> (SlotAnswer<C>, Effects<C, W>) {
        let mut effects = Effects::none();
        if self.pools[pool].service == Service::Closed {
            return (SlotAnswer::Closed, effects);
        }
        let ticket = self.ticket;
        if let Some(favourite) = self.pools[pool].worth_a_moment(wish) {
            self.pools[pool].want(
                favourite,
                Waiter {
                    ticket,
                    wish,
                    insists: false,
                    tell: tell(),
                },
            );
            self.ticket += 1;
            return (SlotAnswer::WaitsForFavourite(ticket), effects);
        }
        if let Some(source) = self.source(pool, false)
            && let Some(grant) = self.grant(pool, wish, source, &mut effects)
        {
            return (SlotAnswer::Granted(grant), effects);
        }
        let slots = &mut self.pools[pool];
        if slots.waiting.len() >= slots.waiting_max {
            return (SlotAnswer::Full, effects);
        }
        slots.waiting.push_back(Waiter {
            ticket,
            wish,
            insists: false,
            tell: tell(),
        });
        self.ticket += 1;
        self.waiting += 1;
        (SlotAnswer::Waits(ticket), effects)
    }

    /// Grants an idle connection of the pool, if there is one and the call should not wait for its
    /// favourite.
    pub(super) fn ask_if_idle(&mut self, pool: usize, wish: Wish) -> Option<Grant<C>> {
        let slots = &mut self.pools[pool];
        if slots.worth_a_moment(wish).is_some() {
            None
        } else {
            slots.grant_idle(wish)
        }
    }

    /// Grants an idle connection, or an empty slot if the limit allows it. Closes no other
    /// connection, and the call does not wait.
    pub(super) fn ask_if_free(&mut self, pool: usize, wish: Wish) -> Option<Grant<C>> {
        match self.source(pool, false)? {
            _ if self.pools[pool].service != Service::Open => None,
            Source::Other(_) => None,
            source => self.grant(pool, wish, source, &mut Effects::none()),
        }
    }

    /// The call with this ticket has waited long enough for its own pool: it also takes what
    /// another pool has no use for.
    pub(super) fn escalate(&mut self, pool: usize, ticket: u64) -> Effects<C, W> {
        if let Some(waiter) = self.pools[pool]
            .waiting
            .iter_mut()
            .find(|waiter| waiter.ticket == ticket)
        {
            waiter.insists = true;
        }
        self.settle()
    }

    /// The call with this ticket has waited long enough for its favourite, and so have all others
    /// that wait for the same connection. From now on they accept any connection, and no other call
    /// starts to wait for this one until its current call is done.
    pub(super) fn accept_any(&mut self, pool: usize, ticket: u64) -> Effects<C, W> {
        if let Some(slot) = self.pools[pool].wanted_by(ticket) {
            self.pools[pool].takes_longer(slot);
            self.waiting += self.pools[pool].release(slot);
        }
        self.settle()
    }

    /// The call waits no more. False when it was granted a slot before, which it must give back.
    pub(super) fn cancel(&mut self, pool: usize, ticket: u64) -> bool {
        let slots = &mut self.pools[pool];
        if let Some(at) = slots
            .waiting
            .iter()
            .position(|waiter| waiter.ticket == ticket)
        {
            slots.waiting.remove(at);
            self.waiting -= 1;
            return true;
        }
        let wanted = slots.wanted_by(ticket);
        if let Some(slot) = wanted {
            slots.cancel_wanting(slot, ticket);
        }
        wanted.is_some()
    }

    /// A slot that was granted without a connection has one, or will have none.
    pub(super) fn opened(&mut self, pool: usize) -> Effects<C, W> {
        self.pools[pool].opening -= 1;
        self.settle()
    }

    /// Takes a slot back, with its connection if that can be used again.
    pub(super) fn give_back(
        &mut self,
        pool: usize,
        slot: usize,
        connection: Option<C>,
    ) -> Effects<C, W> {
        let slots = &mut self.pools[pool];
        let (asked, wanted) = (
            slots.waiting.front().map(|waiter| waiter.ticket),
            slots.first_wanting(slot),
        );
        let (kept, closed) = match connection {
            Some(connection) if slots.service != Service::Open && asked.or(wanted).is_none() => {
                (None, Some(connection))
            }
            connection => (connection, None),
        };
        let is_kept = kept.is_some();
        slots.give_back(slot, kept);
        let mut grants = Vec::new();
        if !is_kept {
            self.connections -= 1;
            self.waiting += slots.release(slot);
        } else if wanted.is_some_and(|wanted| asked.is_none_or(|asked| wanted < asked)) {
            grants.extend(slots.grant_wanted(slot));
        }
        let mut effects = self.settle();
        effects.grants.extend(grants);
        effects.closed.extend(closed);
        effects
    }

    /// Closes the idle connections of a pool for which `ends` returns true.
    pub(super) fn close_idle(&mut self, pool: usize, ends: impl Fn(&C) -> bool) -> Effects<C, W> {
        let closed = self.pools[pool].close_idle(ends);
        self.connections -= closed.len();
        let mut effects = self.settle();
        effects.closed.extend(closed);
        effects
    }

    /// Limits the pool to `service` from now on. Also returns the waiters that are sent away.
    pub(super) fn end(&mut self, pool: usize, service: Service) -> (Effects<C, W>, Vec<W>) {
        let slots = &mut self.pools[pool];
        slots.service = service;
        let dismissed = match service {
            Service::Open | Service::Retired => VecDeque::new(),
            Service::Closed => std::mem::take(&mut slots.waiting),
        };
        self.waiting -= dismissed.len();
        let slots = &mut self.pools[pool];
        let wanting = if service == Service::Closed {
            slots.dismiss_wanting()
        } else {
            Vec::new()
        };
        let dismissed = dismissed
            .into_iter()
            .chain(wanting)
            .map(|waiter| waiter.tell)
            .collect();
        (self.close_idle(pool, |_| true), dismissed)
    }

    /// Serves every waiter that can be served.
    fn settle(&mut self) -> Effects<C, W> {
        let mut effects = Effects::none();
        while self.waiting > 0 {
            let Some((pool, source)) = self.next() else {
                break;
            };
            let Some(waiter) = self.pools[pool].waiting.pop_front() else {
                break;
            };
            self.waiting -= 1;
            let Some(grant) = self.grant(pool, waiter.wish, source, &mut effects) else {
                break;
            };
            effects.grants.push((waiter.tell, grant));
        }
        effects
    }

    /// The pool that has the first waiter to be served next, and the source of the connection.
    /// Pools that get an additional connection come first; otherwise the pool that closes a
    /// connection for them would use it for its own waiters every time. Among these, the earliest
    /// request wins.
    fn next(&self) -> Option<(usize, Source)> {
        let heads = self.pools.iter().enumerate().filter_map(|(pool, slots)| {
            let head = slots.waiting.front()?;
            Some((pool, head.ticket, self.source(pool, head.insists)?))
        });
        let next = heads.min_by_key(|(_, ticket, source)| (matches!(source, Source::Own), *ticket));
        next.map(|(pool, _, source)| (pool, source))
    }

    /// Where the connection for a pool's first waiter can come from now.
    fn source(&self, pool: usize, insists: bool) -> Option<Source> {
        let own = &self.pools[pool];
        if own.idle_count > 0 {
            return Some(Source::Own);
        }
        if !own.has_empty() || own.opening >= OPENING_MAX {
            return None;
        }
        if self.connections < self.limit {
            return Some(Source::Open);
        }
        let mine = own.connections();
        let spares = |other: &PoolSlots<C, W>| {
            let below_share = mine + 1 < other.connections();
            let no_use = other.waiting.is_empty() && (mine == 0 || insists);
            other.idle_count > 0 && (below_share || no_use || (mine == 0 && insists))
        };
        let others = self
            .pools
            .iter()
            .enumerate()
            .filter(|(number, other)| *number != pool && spares(other));
        let most = others.max_by_key(|(_, other)| (other.idle_count, other.connections()));
        most.map(|(number, _)| Source::Other(number))
    }

    fn grant(
        &mut self,
        pool: usize,
        wish: Wish,
        source: Source,
        effects: &mut Effects<C, W>,
    ) -> Option<Grant<C>> {
        match source {
            Source::Own => return self.pools[pool].grant_idle(wish),
            Source::Open => self.connections += 1,
            Source::Other(other) => effects.closed.extend(self.pools[other].close_one()),
        }
        let slots = &mut self.pools[pool];
        slots.opening += 1;
        slots.grant_empty(wish)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use proptest::prelude::*;

    use super::*;
    use crate::router::pool_slots::{Favourite, Use};

    const ANY: Wish = Wish {
        shard: None,
        held_for: Use::Longer,
        favourite: Favourite::IfIdle,
    };

    /// What a statement on this shard wants while its connections keep too few statements.
    fn statement(shard: usize) -> Wish {
        Wish {
            shard: Some(shard),
            held_for: Use::Statement,
            favourite: Favourite::WaitBriefly,
        }
    }

    fn granted(asked: SlotAnswer<u32>) -> Grant<u32> {
        match asked {
            SlotAnswer::Granted(grant) => grant,
            _ => panic!("nothing is granted"),
        }
    }

    fn ticket(asked: SlotAnswer<u32>) -> u64 {
        match asked {
            SlotAnswer::Waits(ticket) => ticket,
            _ => panic!("nobody waits"),
        }
    }

    /// Two pools with all connections in use, by as many callers as the limit allows: neither
    /// closes one for the other.
    #[test]
    fn pools_with_their_share_are_left_alone() {
        let mut slots = Slots::<u32, u32>::new(4);
        let (first, second) = (slots.add(4, 9), slots.add(4, 9));
        for connection in 0..4 {
            let pool = if connection < 2 { first } else { second };
            let grant = granted(slots.request_slot(pool, ANY, || 0).0);
            assert_eq!(
                grant,
                Grant {
                    slot: (connection % 2) as usize,
                    connection: None,
                    is_favourite: false
                }
            );
        }
        let waits = ticket(slots.request_slot(first, ANY, || 7).0);
        // The other pool has one to spare for now, and will want it again.
        let effects = slots.give_back(second, 0, Some(2));
        assert!(effects.grants.is_empty() && effects.closed.is_empty());
        let effects = slots.give_back(first, 1, Some(1));
        assert_eq!(
            effects.grants,
            [(
                7,
                Grant {
                    slot: 1,
                    connection: Some(1),
                    is_favourite: false
                }
            )]
        );
        assert!(!slots.cancel(first, waits), "it was granted");
        // A call that waits for long takes it all the same.
        let waits = ticket(slots.request_slot(first, ANY, || 8).0);
        let effects = slots.escalate(first, waits);
        assert_eq!(
            (effects.grants, effects.closed),
            (
                vec![(
                    8,
                    Grant {
                        slot: 2,
                        connection: None,
                        is_favourite: false
                    }
                )],
                vec![2]
            )
        );
        assert_eq!(
            slots.counts(second),
            Counts {
                idle: 0,
                used: 1,
                waiting: 0
            }
        );
        // The second pool is below its share, so it gets the next connection that the first
        // returns, although a call waits there.
        ticket(slots.request_slot(first, ANY, || 9).0);
        ticket(slots.request_slot(second, ANY, || 10).0);
        let effects = slots.give_back(first, 0, Some(0));
        assert_eq!(
            (effects.grants, effects.closed),
            (
                vec![(
                    10,
                    Grant {
                        slot: 0,
                        connection: None,
                        is_favourite: false
                    }
                )],
                vec![0]
            )
        );
    }

    #[test]
    fn only_a_few_connections_are_opened_at_the_same_time() {
        let mut slots = Slots::<u32, u32>::new(16);
        let pool = slots.add(16, 99);
        let opening: Vec<_> = (0..OPENING_MAX)
            .map(|_| granted(slots.request_slot(pool, ANY, || 0).0))
            .collect();
        ticket(slots.request_slot(pool, ANY, || 1).0);
        ticket(slots.request_slot(pool, ANY, || 2).0);
        // The first connection is there, so another may be opened; once it is given back, it serves
        // the next.
        let effects = slots.opened(pool);
        assert_eq!((effects.grants.len(), effects.grants[0].0), (1, 1));
        assert_eq!(effects.grants[0].1.connection, None);
        let effects = slots.give_back(pool, opening[0].slot, Some(7));
        assert_eq!(
            effects.grants,
            [(
                2,
                Grant {
                    slot: opening[0].slot,
                    connection: Some(7),
                    is_favourite: false
                }
            )]
        );
    }

    #[test]
    fn a_pool_without_connections_takes_an_idle_one_at_once() {
        let mut slots = Slots::<u32, u32>::new(1);
        let (first, second) = (slots.add(4, 9), slots.add(4, 9));
        let held = granted(slots.request_slot(first, ANY, || 0).0);
        ticket(slots.request_slot(second, ANY, || 5).0);
        assert!(slots.is_limited(second));
        let effects = slots.give_back(first, held.slot, Some(1));
        assert_eq!(
            (effects.grants, effects.closed),
            (
                vec![(
                    5,
                    Grant {
                        slot: 0,
                        connection: None,
                        is_favourite: false
                    }
                )],
                vec![1]
            )
        );
    }

    #[test]
    fn a_pool_that_ends_keeps_nothing() {
        let mut slots = Slots::<u32, u32>::new(9);
        let pool = slots.add(1, 1);
        let held = granted(slots.request_slot(pool, ANY, || 0).0);
        ticket(slots.request_slot(pool, ANY, || 5).0);
        assert!(matches!(
            slots.request_slot(pool, ANY, || 6).0,
            SlotAnswer::Full
        ));
        let (effects, dismissed) = slots.end(pool, Service::Retired);
        assert!(effects.closed.is_empty() && dismissed.is_empty());
        // A call that waits already gets what there is.
        let effects = slots.give_back(pool, held.slot, Some(1));
        assert_eq!(
            effects.grants,
            [(
                5,
                Grant {
                    slot: 0,
                    connection: Some(1),
                    is_favourite: false
                }
            )]
        );
        assert_eq!(slots.give_back(pool, 0, Some(1)).closed, [1]);
        let held = granted(slots.request_slot(pool, ANY, || 0).0);
        ticket(slots.request_slot(pool, ANY, || 8).0);
        assert_eq!(slots.end(pool, Service::Closed).1, [8]);
        assert!(
            matches!(slots.request_slot(pool, ANY, || 0).0, SlotAnswer::Closed)
                && slots.ask_if_free(pool, ANY).is_none()
        );
        assert_eq!(slots.give_back(pool, held.slot, Some(2)).closed, [2]);
        let _ = slots.remove(pool);
        assert_eq!((slots.add(3, 0), slots.connections), (pool, 0));
    }

    const LIMIT: usize = 5;
    const SIZES: [usize; 3] = [1, 3, 4];
    const WAITING_MAX: usize = 4;

    /// A pool of eight connections, each the favourite of the shard of its number. Those of shards
    /// 0 to 6 are held.
    fn seven_of_eight_are_held(held_for: Use) -> (Slots<u32, u32>, usize) {
        let mut slots = Slots::new(8);
        let pool = slots.add(8, 9);
        for connection in 0..8 {
            let grant = granted(slots.request_slot(pool, ANY, || 0).0);
            assert_eq!((grant.slot, grant.connection), (connection as usize, None));
            assert!(slots.opened(pool).grants.is_empty());
        }
        for slot in 0..8 {
            let _ = slots.give_back(pool, slot, Some(slot as u32));
        }
        for shard in 0..7 {
            let wish = Wish {
                held_for,
                ..statement(shard)
            };
            let grant = Grant {
                slot: shard,
                connection: Some(shard as u32),
                is_favourite: true,
            };
            assert_eq!(slots.ask_if_idle(pool, wish), Some(grant));
        }
        (slots, pool)
    }

    #[test]
    fn a_favourite_is_worth_a_moment() {
        let (mut slots, pool) = seven_of_eight_are_held(Use::Statement);
        let [first, second, third, _] = [1, 2, 3, 4].map(|caller| {
            assert_eq!(slots.ask_if_idle(pool, statement(8)), None);
            match slots.request_slot(pool, statement(8), || caller).0 {
                SlotAnswer::WaitsForFavourite(ticket) => ticket,
                _ => panic!("{caller} does not wait for the favourite"),
            }
        });
        assert_eq!(
            slots.counts(pool),
            Counts {
                idle: 1,
                used: 7,
                waiting: 4
            }
        );
        // Four wait for it, so a fifth takes what there is.
        let grant = granted(slots.request_slot(pool, statement(0), || 5).0);
        assert_eq!(
            grant,
            Grant {
                slot: 7,
                connection: Some(7),
                is_favourite: false
            }
        );
        assert!(slots.give_back(pool, 7, Some(7)).grants.is_empty());
        assert!(slots.cancel(pool, second));
        let effects = slots.give_back(pool, 0, Some(0));
        assert_eq!(
            effects.grants,
            [(
                1,
                Grant {
                    slot: 0,
                    connection: Some(0),
                    is_favourite: true
                }
            )]
        );
        assert!(!slots.cancel(pool, first));
        // One call has waited long enough: it takes any connection, and so do the calls behind it.
        let effects = slots.accept_any(pool, third);
        assert_eq!(
            effects.grants,
            [(
                3,
                Grant {
                    slot: 7,
                    connection: Some(7),
                    is_favourite: false
                }
            )]
        );
        let effects = slots.give_back(pool, 1, Some(1));
        assert_eq!(
            effects.grants,
            [(
                4,
                Grant {
                    slot: 1,
                    connection: Some(1),
                    is_favourite: false
                }
            )]
        );
        // No call starts to wait for it.
        let _ = slots.give_back(pool, 2, Some(2));
        assert_eq!(
            granted(slots.request_slot(pool, statement(0), || 6).0).slot,
            2
        );
    }

    #[test]
    fn a_favourite_is_not_always_worth_it() {
        let (mut slots, pool) = seven_of_eight_are_held(Use::Longer);
        assert_eq!(
            slots
                .ask_if_idle(pool, statement(0))
                .map(|grant| grant.slot),
            Some(7),
            "a transaction has it"
        );
        let (mut slots, pool) = seven_of_eight_are_held(Use::Statement);
        let indifferent = Wish {
            favourite: Favourite::IfIdle,
            ..statement(0)
        };
        assert_eq!(
            slots.ask_if_idle(pool, indifferent).map(|grant| grant.slot),
            Some(7)
        );
        let (mut slots, pool) = seven_of_eight_are_held(Use::Statement);
        for slot in [5, 6] {
            let _ = slots.give_back(pool, slot, Some(slot as u32));
        }
        assert_eq!(
            slots
                .ask_if_idle(pool, statement(0))
                .map(|grant| grant.slot),
            Some(5),
            "three of eight are idle"
        );
    }

    /// A connection that is returned goes to the earliest request, whatever that waits for.
    #[test]
    fn who_wants_the_favourite_waits_in_turn() {
        let (mut slots, pool) = seven_of_eight_are_held(Use::Statement);
        assert!(matches!(
            slots.request_slot(pool, statement(0), || 1).0,
            SlotAnswer::WaitsForFavourite(_)
        ));
        granted(slots.request_slot(pool, ANY, || 0).0);
        ticket(slots.request_slot(pool, ANY, || 2).0);
        let grants = slots.give_back(pool, 0, Some(0)).grants;
        assert_eq!(
            grants,
            [(
                1,
                Grant {
                    slot: 0,
                    connection: Some(0),
                    is_favourite: true
                }
            )]
        );
        let grants = slots.give_back(pool, 0, Some(0)).grants;
        assert_eq!(
            grants,
            [(
                2,
                Grant {
                    slot: 0,
                    connection: Some(0),
                    is_favourite: false
                }
            )]
        );
        // Behind one that waits for any.
        ticket(slots.request_slot(pool, ANY, || 3).0);
        slots.pools[pool].want(
            1,
            Waiter {
                ticket: 99,
                wish: statement(1),
                insists: false,
                tell: 4,
            },
        );
        let grants = slots.give_back(pool, 1, Some(1)).grants;
        assert_eq!(
            grants,
            [(
                3,
                Grant {
                    slot: 1,
                    connection: Some(1),
                    is_favourite: false
                }
            )]
        );
        let grants = slots.give_back(pool, 1, Some(1)).grants;
        assert_eq!(
            grants,
            [(
                4,
                Grant {
                    slot: 1,
                    connection: Some(1),
                    is_favourite: true
                }
            )]
        );
    }

    /// If a connection dies, or its pool is closed, the calls that wait for it are not lost.
    #[test]
    fn a_favourite_that_ends_is_not_waited_for() {
        let mut slots = Slots::<u32, u32>::new(2);
        let pool = slots.add(2, 9);
        for shard in [0, 1] {
            granted(slots.request_slot(pool, statement(shard), || 0).0);
        }
        let _ = slots.give_back(pool, 1, Some(1));
        slots.pools[pool].want(
            0,
            Waiter {
                ticket: 7,
                wish: statement(0),
                insists: false,
                tell: 7,
            },
        );
        let effects = slots.give_back(pool, 0, None);
        assert_eq!(
            effects.grants,
            [(
                7,
                Grant {
                    slot: 1,
                    connection: Some(1),
                    is_favourite: false
                }
            )]
        );
        slots.pools[pool].want(
            1,
            Waiter {
                ticket: 8,
                wish: statement(1),
                insists: false,
                tell: 8,
            },
        );
        assert_eq!(slots.end(pool, Service::Closed).1, [8]);
        assert_eq!(slots.counts(pool).waiting, 0);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Ask(usize, usize),
        /// For a statement, where the connections keep too few.
        AskForFavourite(usize, usize),
        /// A call that waits for its favourite has waited for a moment.
        Unwant(usize),
        AskIfFree(usize),
        /// One of the slots that are held; with its connection, or because that died or was never
        /// opened.
        GiveBack(usize, bool),
        /// A call that waits, or was just granted a slot and has not come for it.
        Leave(usize),
        Insist(usize),
        CloseIdle(usize, u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let pool = 0..SIZES.len();
        prop_oneof![
            3 => (pool.clone(), 0..20_usize).prop_map(|(pool, shard)| Step::Ask(pool, shard)),
            6 => (pool.clone(), 0..20_usize)
                .prop_map(|(pool, shard)| Step::AskForFavourite(pool, shard)),
            1 => any::<usize>().prop_map(Step::Unwant),
            1 => pool.clone().prop_map(Step::AskIfFree),
            6 => (any::<usize>(), prop::bool::weighted(0.8))
                .prop_map(|(at, alive)| Step::GiveBack(at, alive)),
            2 => any::<usize>().prop_map(Step::Leave),
            1 => any::<usize>().prop_map(Step::Insist),
            1 => (pool, 0..3_u32).prop_map(|(pool, rest)| Step::CloseIdle(pool, rest)),
        ]
    }

    /// Callers of pools that share a limit, each with a number.
    struct Callers {
        slots: Slots<u32, (usize, u64)>,
        /// Pool and slot, with the connection.
        held: Vec<(usize, usize, u32)>,
        /// By number: the caller's pool and ticket.
        waiting: BTreeMap<u64, (usize, u64)>,
        /// Callers that were given a slot and have not used it yet.
        told: Vec<(usize, Grant<u32>)>,
        caller: u64,
        connection: u32,
        closed: HashSet<u32>,
    }

    impl Callers {
        fn new() -> Callers {
            let mut slots = Slots::new(LIMIT);
            SIZES
                .iter()
                .enumerate()
                .for_each(|(pool, size)| assert_eq!(slots.add(*size, WAITING_MAX), pool));
            let (held, waiting, told) = (Vec::new(), BTreeMap::new(), Vec::new());
            Callers {
                slots,
                held,
                waiting,
                told,
                caller: 0,
                connection: 0,
                closed: HashSet::new(),
            }
        }

        fn take(&mut self, pool: usize, grant: Grant<u32>) {
            let connection = grant.connection.unwrap_or_else(|| {
                self.connection += 1;
                self.connection
            });
            assert!(
                !self.closed.contains(&connection),
                "a closed connection was granted"
            );
            self.held.push((pool, grant.slot, connection));
            if grant.connection.is_none() {
                let effects = self.slots.opened(pool);
                self.follow(effects);
            }
        }

        fn follow(&mut self, effects: Effects<u32, (usize, u64)>) {
            for ((pool, caller), grant) in effects.grants {
                self.waiting.remove(&caller).expect("he waited");
                let pool_slots = &self.slots.pools[pool];
                let earlier = self.waiting.iter().find(|(other, (its_pool, ticket))| {
                    let wanted = pool_slots.wanted_by(*ticket);
                    *its_pool == pool
                        && **other < caller
                        && wanted.is_none_or(|slot| slot == grant.slot)
                });
                assert_eq!(earlier, None, "{caller} of pool {pool} was served before");
                self.told.push((pool, grant));
            }
            for connection in effects.closed {
                assert!(self.closed.insert(connection), "closed twice");
            }
        }

        fn ask(&mut self, pool: usize, wish: Wish) {
            let caller = self.caller;
            self.caller += 1;
            let (asked, effects) = self.slots.request_slot(pool, wish, || (pool, caller));
            self.follow(effects);
            match asked {
                SlotAnswer::Granted(grant) => self.take(pool, grant),
                SlotAnswer::Waits(ticket) | SlotAnswer::WaitsForFavourite(ticket) => {
                    assert!(self.waiting.insert(caller, (pool, ticket)).is_none());
                }
                SlotAnswer::Full => assert!(self.slots.counts(pool).waiting >= WAITING_MAX),
                SlotAnswer::Closed => panic!("no pool is closed"),
            }
        }

        fn run(&mut self, step: Step) {
            match step {
                Step::Ask(pool, shard) => {
                    self.ask(
                        pool,
                        Wish {
                            shard: Some(shard),
                            ..ANY
                        },
                    );
                }
                Step::AskForFavourite(pool, shard) => {
                    // As the pool does it.
                    match self.slots.ask_if_idle(pool, statement(shard)) {
                        Some(grant) => self.take(pool, grant),
                        None => self.ask(pool, statement(shard)),
                    }
                }
                Step::Unwant(at) if !self.waiting.is_empty() => {
                    let (pool, ticket) = *self
                        .waiting
                        .values()
                        .nth(at % self.waiting.len())
                        .expect("one of them");
                    let effects = self.slots.accept_any(pool, ticket);
                    assert_eq!(self.slots.pools[pool].wanted_by(ticket), None);
                    self.follow(effects);
                }
                Step::AskIfFree(pool) => {
                    if let Some(grant) = self.slots.ask_if_free(pool, ANY) {
                        self.take(pool, grant);
                    }
                }
                Step::GiveBack(at, alive) if !self.held.is_empty() => {
                    let (pool, slot, connection) = self.held.swap_remove(at % self.held.len());
                    if !alive {
                        self.closed.insert(connection);
                    }
                    let effects = self
                        .slots
                        .give_back(pool, slot, alive.then_some(connection));
                    self.follow(effects);
                }
                Step::Leave(at) if !self.told.is_empty() && at % 2 == 0 => {
                    let (pool, grant) = self.told.swap_remove(at / 2 % self.told.len());
                    if grant.connection.is_none() {
                        let effects = self.slots.opened(pool);
                        self.follow(effects);
                    }
                    let effects = self.slots.give_back(pool, grant.slot, grant.connection);
                    self.follow(effects);
                }
                Step::Leave(at) if !self.waiting.is_empty() => {
                    let caller = *self
                        .waiting
                        .keys()
                        .nth(at % self.waiting.len())
                        .expect("one of them");
                    let (pool, ticket) = self.waiting.remove(&caller).expect("it is there");
                    assert!(self.slots.cancel(pool, ticket));
                }
                Step::Insist(at) if !self.waiting.is_empty() => {
                    let (pool, ticket) = *self
                        .waiting
                        .values()
                        .nth(at % self.waiting.len())
                        .expect("one of them");
                    let effects = self.slots.escalate(pool, ticket);
                    self.follow(effects);
                }
                Step::CloseIdle(pool, rest) => {
                    let effects = self
                        .slots
                        .close_idle(pool, |connection| connection % 3 == rest);
                    self.follow(effects);
                }
                Step::GiveBack(..) | Step::Leave(_) | Step::Insist(_) | Step::Unwant(_) => {}
            }
            // Most come for their slot at once.
            while self.told.len() > 2 {
                let (pool, grant) = self.told.remove(0);
                self.take(pool, grant);
            }
        }

        fn check(&self) {
            let all: Vec<Counts> = (0..SIZES.len())
                .map(|pool| self.slots.counts(pool))
                .collect();
            let connections = |counts: &Counts| counts.idle + counts.used;
            let sum: usize = all.iter().map(connections).sum();
            assert!(
                sum <= LIMIT && sum == self.slots.connections,
                "{sum} connections"
            );
            for (pool, counts) in all.iter().enumerate() {
                assert!(connections(counts) <= SIZES[pool], "{counts:?}");
                let held = self
                    .held
                    .iter()
                    .map(|(its_pool, slot, _)| (*its_pool, *slot));
                let told = self
                    .told
                    .iter()
                    .map(|(its_pool, grant)| (*its_pool, grant.slot));
                let held: Vec<usize> = held
                    .chain(told)
                    .filter(|(its_pool, _)| *its_pool == pool)
                    .map(|(_, slot)| slot)
                    .collect();
                assert_eq!(held.len(), counts.used);
                assert_eq!(
                    held.iter().collect::<HashSet<_>>().len(),
                    held.len(),
                    "a slot is held twice"
                );
                if self.slots.pools[pool].waiting.is_empty() {
                    continue;
                }
                assert_eq!(counts.idle, 0, "somebody waits while a connection is idle");
                if connections(counts) < SIZES[pool] {
                    assert_eq!(
                        sum, LIMIT,
                        "somebody waits while another connection may be opened"
                    );
                    for other in all.iter().filter(|other| other.idle > 0) {
                        let few = connections(counts);
                        assert!(
                            few > 0 && few + 1 >= connections(other),
                            "{other:?} is not closed for {counts:?}"
                        );
                    }
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Calls request, return, give up and lose connections in any order.
        #[test]
        fn slots_are_shared_in_order(steps in prop::collection::vec(step(), 1..120)) {
            let mut callers = Callers::new();
            for step in steps {
                callers.run(step);
                callers.check();
            }
            // Once everything is returned, no call waits.
            while !callers.told.is_empty() || !callers.held.is_empty() {
                while let Some((pool, grant)) = callers.told.pop() {
                    callers.take(pool, grant);
                }
                callers.run(Step::GiveBack(0, true));
                callers.check();
            }
            prop_assert!(callers.waiting.is_empty(), "{:?}", callers.waiting);
        }
    }
}
