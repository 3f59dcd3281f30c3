"""Runs the protocol: what `next_step` says, until a value is claimed or belongs to another key."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from ..connection import NoAnswer
from ..directory import Directory
from ..errors import Busy, ClaimedTwice, LookupUnusable, Taken, WrongKey
from ..keys import key_of_text
from ..values import Definition, Value, hash_of, kind, shard_of_hash
from . import statements
from .answer import check, check_kinds, installed
from .claims import (
    BelongsTo,
    Entry,
    Insert,
    Kill,
    Killed,
    Look,
    Looked,
    Met,
    Next,
    Nothing,
    Seen,
    Take,
    Use,
    Won,
    next_step,
)
from .connections import InShard, LookupConnections, NoConnection

WAIT_MAX = 3.0
"""How many seconds the claims of a call may take in all. A batch has as many for each hundred
values that it has begun."""
GRACE = 2.0
"""How many seconds the holder of a claim has to use it before another claimer makes it unusable."""
_PAUSE = (0.010, 0.050)


@dataclass(frozen=True)
class ClaimRequest:
    """A value that is to be claimed for a key."""

    definition: Definition
    values: tuple[Value, ...]
    key: str
    """The key, as PostgreSQL casts it to text."""
    inserts: bool = field(default=False, compare=False)
    """Whether the row is inserted. Then the value is taken also if the key has a row with it, which
    the unique index of the shard would refuse."""
    hash: bytes = field(init=False)
    kinds: list[str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Raises `LookupUnusable` for another number of values than there are columns, and
        `ValueUnusable`."""
        definition, values = self.definition, self.values
        if len(values) != len(definition.columns):
            raise LookupUnusable(
                definition.name,
                f"its columns are {len(definition.columns)} columns, and the values given are"
                f" {len(values)} values",
            )
        object.__setattr__(self, "hash", hash_of(values, definition.fold))
        object.__setattr__(self, "kinds", [kind(value) for value in values])

    @property
    def order(self) -> tuple[bytes, str]:
        """The place in the order that all calls have: two that want the same values meet at the
        first."""
        return self.hash, self.definition.name

    def parameters(self) -> dict[str, Any]:
        """The parameters of the statements for one value."""
        return {
            "lookup": self.definition.name,
            "definition": self.definition.text(),
            "kinds": self.kinds,
            "hash": self.hash,
            "key": self.key,
        }


class Claim(NamedTuple):
    """The right to write a value into a row of its key, once."""

    request: ClaimRequest
    id: UUID | None
    """None on an unsharded host, where the table's own index keeps the values unique."""
    made_us: int
    """When it was made, in microseconds since 1970, by the clock of the value's host."""


class _Standing(NamedTuple):
    """What a call to the value's shard gave."""

    entry: Entry
    made_us: int
    age: float
    won: bool


Holder = Callable[[ClaimRequest, Entry], "tuple[bool, bool] | None"]
"""What a caller knows of an entry that is in the way, if anything: whether its key has the row, and
whether its claim is over."""


class Claimer:
    """Claims values for keys. All threads may use it."""

    def __init__(
        self,
        connections: LookupConnections,
        directory: Directory,
        shard_of_key: Callable[[object], int],
        grace: float,
    ) -> None:
        self._connections, self._directory = connections, directory
        self._shard_of_key, self._grace = shard_of_key, grace

    def value_shard(self, request: ClaimRequest) -> int:
        """The shard that has the value's entry."""
        return shard_of_hash(request.definition.name, request.hash, self._directory.shards)

    def key_shard(self, request: ClaimRequest, key: str) -> int:
        """The shard of a key that is written as text. Raises `LookupUnusable`."""
        try:
            return self._shard_of_key(key_of_text(self._directory.config.key, key))
        except WrongKey:
            problem = f'the key "{key}" cannot be used'
            raise LookupUnusable(request.definition.name, problem) from None

    def busy(self, request: ClaimRequest, entry: Entry | None = None) -> Busy:
        """The error for a value that another call has for now."""
        name, key = request.definition.name, None if entry is None else entry.key
        if key is None:
            return Busy(name, None, self.value_shard(request))
        return Busy(name, key, self.key_shard(request, key))

    def claim_all(
        self,
        requests: Sequence[ClaimRequest],
        holder: Holder | None = None,
        won: dict[tuple[bytes, str], Claim] | None = None,
    ) -> list[Claim]:
        """Claims these values, in one order for all calls. `won` gets the claims that were made,
        also if the call fails.

        Raises `Taken`, `Busy`, `ClaimedTwice`, `LookupUnusable`, and the same as
        `LookupConnections.run`.
        """
        ordered = in_order(requests)
        deadline = time.monotonic() + WAIT_MAX * (1 + len(ordered) // 100)
        won = {} if won is None else won
        if len(ordered) > 1:
            self._insert_many(ordered, deadline, won)
        for one in ordered:
            if one.order not in won:
                won[one.order] = self.claim(one, deadline, holder)
        return [won[one.order] for one in requests]

    def claim(self, request: ClaimRequest, deadline: float, holder: Holder | None = None) -> Claim:
        """Claims one value. `deadline`: of `time.monotonic`. Raises the same as `claim_all`."""
        try:
            return self._claim(request, deadline, holder)
        except (NoConnection, NoAnswer) as error:
            if time.monotonic() < deadline:
                raise
            raise self.busy(request) from error

    def _claim(self, request: ClaimRequest, deadline: float, holder: Holder | None) -> Claim:
        seen: Seen = Nothing()
        met: _Standing | None = None
        made = 0.0  # When the claim in the way was made, by the clock of this process.
        looked = False
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self.busy(request, met and met.entry)
            todo: Next = next_step(request.key, seen)
            if isinstance(todo, (Insert, Take)):
                standing = (
                    self._insert(request, left)
                    if isinstance(todo, Insert)
                    else self._take(request, todo.entry.claim, left)
                )
                if standing is None:
                    seen = Nothing()  # It was changed while the statement ran.
                elif standing.won:
                    won, seen = standing, Won(standing.entry.claim)
                else:
                    met, made, looked = standing, time.monotonic() - standing.age, False
                    seen = Met(standing.entry)
            elif isinstance(todo, Look):
                if looked:
                    time.sleep(min(random.uniform(*_PAUSE), left))
                looked = True
                known = holder(request, todo.entry) if holder is not None else None
                has_row, is_over = known or self._look(request, todo.entry, left)
                if has_row and request.inserts and todo.entry.key == request.key:
                    raise Taken(request.definition.name, request.key)
                grace_is_over = time.monotonic() - made > self._grace
                seen = Looked(todo.entry, has_row, is_over or grace_is_over)
            elif isinstance(todo, Kill):
                seen = Killed(todo.entry, self._kill(request, todo.entry, left))
            elif isinstance(todo, BelongsTo):
                raise Taken(request.definition.name, todo.key)
            else:
                assert isinstance(todo, Use), "the last of the steps"
                return Claim(request, won.entry.claim, won.made_us)

    def _insert_many(
        self,
        ordered: list[ClaimRequest],
        deadline: float,
        won: dict[tuple[bytes, str], Claim],
    ) -> None:
        """Inserts entries by one statement for each of the values' shards. `won` gets the claims of
        those that were new."""
        groups: dict[tuple[int, str, tuple[str, ...]], list[ClaimRequest]] = {}
        for one in ordered:
            where = self.value_shard(one), one.definition.name, tuple(one.kinds)
            groups.setdefault(where, []).append(one)
        for (shard, name, _), group in groups.items():
            if len(group) == 1:
                continue  # One statement that also finds what is there.
            left = max(deadline - time.monotonic(), 0.001)
            params = {
                **group[0].parameters(),
                "hashes": [one.hash for one in group],
                "keys": [one.key for one in group],
            }
            try:
                rows = self._rows(shard, group[0], statements.CLAIM_ALL, params, left)
            except (NoConnection, NoAnswer):
                rows = None
            if rows is None:
                continue  # They are claimed one by one, if there is time.
            check_kinds(group[0].definition, rows[0][1], group[0].kinds)
            by_hash = {one.hash: one for one in group}
            for _, _, hash, claim, made_us in rows:
                if hash is not None:
                    won[hash, name] = Claim(by_hash[hash], claim, made_us)

    def _insert(self, request: ClaimRequest, left: float) -> _Standing | None:
        return self._standing(request, statements.CLAIM, request.parameters(), left)

    def _take(self, request: ClaimRequest, claim: UUID, left: float) -> _Standing | None:
        """A take that fails returns the entry as it is by now, or nothing if that was not seen."""
        params = {**request.parameters(), "claim": claim}
        standing = self._standing(request, statements.TAKE, params, left)
        # The statement's snapshot may be older than what it ran into: it may still show the claim
        # that is not there any more.
        if standing is not None and not standing.won and standing.entry.claim == claim:
            return None
        return standing

    def _standing(
        self, request: ClaimRequest, sql: str, params: dict[str, Any], left: float
    ) -> _Standing | None:
        rows = self._rows(self.value_shard(request), request, sql, params, left)
        if rows is None:
            return None
        _, kinds, key, claim, made_us, age_ms, won = rows[0]
        check_kinds(request.definition, kinds, request.kinds)
        if key is None or claim is None:
            return None
        return _Standing(Entry(key, claim), made_us, max(age_ms, 0) / 1000, bool(won))

    def _rows(
        self, shard: int, request: ClaimRequest, sql: str, params: dict[str, Any], left: float
    ) -> list[Any] | None:
        """The rows of a statement in the value's shard. None if a statement in REPEATABLE READ has
        run into a newer entry."""
        try:
            with installed(self._directory, request.definition, shard):
                rows = self._connections.run(
                    shard, lambda at: at.execute(sql, params).fetchall(), left
                )
        except psycopg.errors.SerializationFailure:
            return None
        check(self._directory, request.definition, shard, rows)
        return rows

    def _look(self, request: ClaimRequest, entry: Entry, left: float) -> tuple[bool, bool]:
        """Whether the entry's key has the row, and whether its claim is spent."""
        shard = self.key_shard(request, entry.key)
        sql = statements.look(request.definition)
        params = look_parameters(request, entry)
        with installed(self._directory, request.definition, shard):
            rows = self._connections.run(shard, lambda at: at.execute(sql, params).fetchall(), left)
        return bool(rows[0][0]), bool(rows[0][1])

    def _kill(self, request: ClaimRequest, entry: Entry, left: float) -> bool:
        """Makes the entry's claim unusable, and then looks whether its key has the row. READ
        COMMITTED, so that the second statement sees what the first has waited for."""
        shard = self.key_shard(request, entry.key)
        params = look_parameters(request, entry)

        def work(at: InShard) -> bool:
            at.execute(statements.VOID, params)
            row = at.execute(statements.look_again(request.definition), params).fetchone()
            return bool(row and row[0])

        try:
            with installed(self._directory, request.definition, shard):
                return self._connections.run(
                    shard,
                    lambda at: at.transaction(statements.BEFORE_KILL, lambda: work(at)),
                    left,
                )
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            raise self.busy(request, entry) from error


def in_order(requests: Sequence[ClaimRequest]) -> list[ClaimRequest]:
    """Requests in the order that all calls have. Raises `ClaimedTwice`."""
    ordered = sorted(requests, key=lambda one: one.order)
    for one, other in itertools.pairwise(ordered):
        if one.order == other.order:
            name = one.definition.name
            raise ClaimedTwice(name, "the call claims one value twice")
    return ordered


def look_parameters(request: ClaimRequest, entry: Entry) -> dict[str, Any]:
    """The parameters of `statements.look`."""
    row = request.definition.row_parameters(entry.key, request.values)
    return {
        **row,
        "lookup": request.definition.name,
        "hash": request.hash,
        "claim": entry.claim,
    }
