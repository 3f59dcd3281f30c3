"""IDs: 41 bits of milliseconds since the cluster's epoch, 13 bits of shard, 10 bits of sequence.

All 64 bits are used: from 34.8 years after the epoch on, the `bigint` is negative, and still
decodes.
"""

from __future__ import annotations

import datetime
from typing import NamedTuple

from .errors import WrongId

MS_MAX = (1 << 41) - 1
"""The last millisecond that an ID can hold, 69.7 years after the epoch."""
SEQ_MAX = (1 << 10) - 1
"""The largest sequence number in an ID."""
SHARD_MAX = (1 << 13) - 1
"""The largest shard number in an ID."""

SHARD_BITS_END = 23
"""How many bits of an ID come after its milliseconds."""

_UNIX = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MS = datetime.timedelta(milliseconds=1)


class Id(NamedTuple):
    """The three fields of an ID."""

    ms: int
    """Milliseconds since the cluster's epoch."""
    shard: int
    """The shard that holds the row."""
    seq: int
    """The sequence number."""


def encode(ms: int, shard: int, sequence_value: int) -> int:
    """The ID as PostgreSQL's `bigint`. Only the lowest ten bits of the sequence value are kept.

    Raises `ValueError` when milliseconds or shard do not fit their bits, or the sequence value is
    negative.
    """
    if not 0 <= ms <= MS_MAX:
        raise ValueError(f"{ms} ms do not fit the 41 bits of an ID")
    if not 0 <= shard <= SHARD_MAX:
        raise ValueError(f"shard {shard} does not fit the 13 bits of an ID")
    if sequence_value < 0:
        raise ValueError(f"the sequence value {sequence_value} is negative")
    bits = ms << 23 | shard << 10 | sequence_value & SEQ_MAX
    return bits - (1 << 64) if bits >> 63 else bits


def decode(id: int) -> Id:
    """Takes an ID apart, as 64 unsigned bits whatever its sign.

    Raises `WrongId` for a number that is no `bigint`.
    """
    if not -(1 << 63) <= id < 1 << 63:
        raise WrongId(f"{id} is no ID: it has more than 64 bits")
    bits = id & 0xFFFF_FFFF_FFFF_FFFF
    return Id(bits >> 23, bits >> 10 & SHARD_MAX, bits & SEQ_MAX)


def shard_of_id(id: int, shards: int) -> int:
    """The shard of an ID, in a cluster with `shards` shards.

    Raises `WrongId` if the cluster has no such shard: the ID is refused, never mapped to another
    shard.
    """
    if not -(1 << 63) <= id < 1 << 63:
        decode(id)
    # The same as in `decode`, without the other two fields, because this runs for each query.
    shard = id >> 10 & SHARD_MAX
    if shard >= shards:
        raise WrongId(
            f"{id} is no ID of this cluster: it names shard {shard}, and there are {shards}, 0 to"
            f" {shards - 1}"
        )
    return shard


def time_of_id(id: int, epoch_ms: int) -> datetime.datetime:
    """When an ID was made, for an epoch in Unix milliseconds."""
    return _UNIX + _MS * (epoch_ms + decode(id).ms)


def ms_of_time(time: datetime.datetime, epoch_ms: int) -> int:
    """Milliseconds from the epoch to this time, rounded down.

    Raises `ValueError` for a time before the epoch or past the 41 bits, and for one without a zone.
    """
    if time.tzinfo is None:
        raise ValueError(f"{time} has no zone")
    ms = (time - _UNIX) // _MS - epoch_ms
    if not 0 <= ms <= MS_MAX:
        raise ValueError(
            f"{time} is {'before the epoch' if ms < 0 else 'past the last millisecond of 41 bits'}"
        )
    return ms
