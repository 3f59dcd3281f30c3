"""Which statement a claimer runs next: the protocol that makes a value unique over all shards, the
same as in src/lookups/claims.rs.

The row is the truth. The value's shard has one entry for each value: whose it is, or was. A claim
is the right to write the value into a row, once; of all claims on a value, only the one in its
entry can still be used. A claimer that meets an entry makes its claim unusable (*kill*), looks
whether the row has the value, and only then puts its own claim into the entry (*take*).

Nothing here runs a statement: the driver does what `next_step` says and reports what it has seen.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID


class Entry(NamedTuple):
    """An entry: the value belongs to `key`, or did, by `claim`."""

    key: str
    claim: UUID


class Nothing(NamedTuple):
    """Seen: nothing yet."""


class Met(NamedTuple):
    """Seen: the value has this entry, and the claimer's statement has not changed it."""

    entry: Entry


class Looked(NamedTuple):
    """Seen: what a first look at the shard of the entry's key gave, without a lock."""

    entry: Entry
    has_row: bool
    is_over: bool
    """The claim is used or void, or older than the grace period."""


class Killed(NamedTuple):
    """Seen: the entry's claim cannot be used any more; and whether the entry's key has the value,
    as seen after that."""

    entry: Entry
    has_row: bool


class Won(NamedTuple):
    """Seen: the entry has the claimer's own claim."""

    claim: UUID


Seen = Nothing | Met | Looked | Killed | Won
"""What a claimer has seen last."""


class Insert(NamedTuple):
    """Next: insert the entry with a new claim, unless there is one."""


class Look(NamedTuple):
    """Next: look at the shard of the entry's key; at once, or after a pause if that has been
    done."""

    entry: Entry


class Kill(NamedTuple):
    """Next: make the entry's claim unusable, and then look for the row."""

    entry: Entry


class Take(NamedTuple):
    """Next: exchange the entry's claim for a new one of one's own, if it still has this one."""

    entry: Entry


class Use(NamedTuple):
    """Next: use the claim, in the transaction that writes the row."""

    claim: UUID


class BelongsTo(NamedTuple):
    """Next: the value belongs to another key."""

    key: str


Next = Insert | Look | Kill | Take | Use | BelongsTo
"""What a claimer does next."""


def next_step(key: str, seen: Seen) -> Next:
    """What the claimer of a value for `key` does, having seen this.

    The look spares a kill where a row is there, and gives a claimer that is about to write the time
    to do so. It decides nothing else: the row may go and come until the claim is killed.
    """
    if isinstance(seen, Nothing):
        return Insert()
    if isinstance(seen, Met):
        return Look(seen.entry)
    if isinstance(seen, Won):
        return Use(seen.claim)
    if seen.has_row and seen.entry.key != key:
        return BelongsTo(seen.entry.key)
    if isinstance(seen, Looked):
        return Kill(seen.entry) if seen.is_over else Look(seen.entry)
    # Also if the entry is one's own: another process of the same owner may have the claim, and use
    # it after the row was given up.
    return Take(seen.entry)
