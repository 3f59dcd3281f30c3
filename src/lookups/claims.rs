//! Which statement a claimer runs next: the protocol that makes a value unique over all shards.
//!
//! The row is the truth. The value's shard has one entry for each value: the key that it belongs
//! to, or did. A claim is the right to write the value into a row, once; of all claims on a value,
//! only the one in its entry can still be used. A claimer that meets an entry makes its claim
//! unusable (*kill*), looks whether the row has the value, and only then puts its own claim into
//! the entry (*take*).
//!
//! Nothing here runs a statement. The driver does what [`next`] returns and reports what it has
//! seen; the model runs the same function.

/// An entry: the value belongs to `key`, or did, by `claim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Entry<Key, Claim> {
    pub(crate) key: Key,
    pub(crate) claim: Claim,
}

/// The state that a claimer has seen last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Seen<Key, Claim> {
    /// Nothing yet.
    Nothing,
    /// The value has this entry, and the claimer's statement has not changed it.
    Met(Entry<Key, Claim>),
    /// A first look at the shard of the entry's key, without a lock.
    Looked {
        entry: Entry<Key, Claim>,
        has_row: bool,
        /// The claim is used or void, or older than the grace period.
        is_over: bool,
    },
    /// The entry's claim cannot be used any more; and whether the entry's key has the value, as
    /// seen after that.
    Killed {
        entry: Entry<Key, Claim>,
        has_row: bool,
    },
    /// The entry has the claimer's own claim.
    Won(Claim),
}

/// The next step of a claimer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Next<Key, Claim> {
    /// Insert the entry with a new claim, unless there is one.
    Claim,
    /// Look at the shard of the entry's key; immediately, or after a pause if that has been done.
    Look(Entry<Key, Claim>),
    /// Make the entry's claim unusable, and then look for the row.
    Kill(Entry<Key, Claim>),
    /// Exchange the entry's claim for a new one of one's own, if it still has this one.
    Take(Entry<Key, Claim>),
    /// Use the claim, in the transaction that writes the row.
    Use(Claim),
    /// The value belongs to another key.
    Taken(Key),
}

/// What the claimer of a value for `key` does, having seen this.
///
/// The look spares a kill where a row is there, and gives a claimer that is about to write the time
/// to do so. It decides nothing else: the row may go and come until the claim is killed.
pub(crate) fn next<Key, Claim>(key: Key, seen: Seen<Key, Claim>) -> Next<Key, Claim>
where
    Key: Clone + Eq,
    Claim: Copy,
{
    match seen {
        Seen::Nothing => Next::Claim,
        Seen::Met(entry) => Next::Look(entry),
        Seen::Looked { entry, has_row, .. } | Seen::Killed { entry, has_row }
            if has_row && entry.key != key =>
        {
            Next::Taken(entry.key)
        }
        Seen::Looked { entry, is_over, .. } if is_over => Next::Kill(entry),
        Seen::Looked { entry, .. } => Next::Look(entry),
        // Also if the entry is one's own: another process of the same owner may have the claim, and
        // use it after the row was given up.
        Seen::Killed { entry, .. } => Next::Take(entry),
        Seen::Won(claim) => Next::Use(claim),
    }
}
