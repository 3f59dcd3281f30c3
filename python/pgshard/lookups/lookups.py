"""The look-ups of a cluster: finding keys by values, and claiming values for a key."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import psycopg

from ..errors import ClaimSpent, LookupNotComplete, LookupUnusable, WrongKey
from ..keys import key_of_text
from ..recovery import RecoveryContext
from ..template import render
from ..values import Definition, Value, hash_of, kind, shard_of_hash
from . import statements
from .answer import check, check_kinds, installed
from .claimer import GRACE, WAIT_MAX, Claim, Claimer, ClaimRequest
from .connections import LookupConnections
from .unsharded import Execute, Tables

Key = int | str | uuid.UUID
"""A sharding key."""
Values = Value | Sequence[Value]
"""The value of a look-up, or those of its columns if it has more than one."""


class Claims:
    """Values that are claimed for one key. The transaction that writes them uses the claims first,
    once. If it is not committed, nothing needs to be undone."""

    def __init__(self, lookups: Lookups, shard: int, claims: list[Claim]) -> None:
        self._lookups, self._claims = lookups, claims
        self.shard = shard
        """The shard of the key."""

    def use(self, connection: psycopg.Connection[Any]) -> None:
        """Uses the claims in the transaction that is open on this connection to the shard's host.

        Raises `ClaimSpent` if one cannot be used any more: roll the transaction back, and claim
        again. Raises `LookupUnusable` if the shard does not know the look-up as the config has it,
        `LayoutChanged`, and `psycopg.Error`, as any statement that meets a move.
        """
        schema = self._lookups.directory.schema(self.shard)

        def execute(sql: str, params: dict[str, Any]) -> list[Any]:
            return connection.execute(render(sql, schema), params).fetchall()

        try:
            used = self._lookups.use(self.shard, self._claims, execute)
        except psycopg.errors.SerializationFailure as error:
            # In REPEATABLE READ: it was made unusable a moment ago.
            raise ClaimSpent("a claim was made unusable: roll back, and claim again") from error
        if not used:
            raise ClaimSpent("a claim is spent, or older than 15 minutes: roll back, claim again")


class Lookups:
    """The look-ups of a cluster. All threads of a process may use it."""

    def __init__(
        self,
        recovery_context: RecoveryContext,
        *,
        shard_of_key: Callable[[object], int] | None = None,
        grace: float = GRACE,
    ) -> None:
        """`shard_of_key`: for tests, where keys have other shards. `grace`: how many seconds a
        claim may wait to be used before another call may take the value."""
        self.directory = recovery_context.directory
        """Where the shards are."""
        self._connections = LookupConnections(recovery_context)
        self.claimer = Claimer(
            self._connections,
            self.directory,
            shard_of_key or self.directory.shard_of_key,
            grace,
        )
        """What claims values."""
        self.tables = Tables(self._connections, self.directory)
        """The tables of an unsharded host, where nothing is claimed."""

    def definition(self, name: str) -> Definition:
        """The definition of a look-up. Raises `LookupUnusable` if the config has none of this
        name."""
        found = self.directory.config.lookups.get(name)
        if found is None:
            problem = "the config does not define it: add [lookups.NAME]"
            raise LookupUnusable(name, problem)
        return found

    def find(self, name: str, values: Values) -> Key | None:
        """The key that a value belongs to, or did: read the row by the key *and* the value. None
        means that no key has a committed row with it.

        Raises `LookupNotComplete` until `pgshard lookups build` has made it complete;
        `LookupUnusable` if a shard does not have it as the config does, the table of an unsharded
        host has no unique index over the columns, or values of other types are given;
        `LayoutChanged`; `ValueUnusable`; `psycopg.Error`; and the same as `Recovery.after`.
        """
        return next(iter(self.find_all(name, [values])))

    def find_all(
        self, name: str, values: Iterable[Values], views: Sequence[Execute] = ()
    ) -> list[Key | None]:
        """The keys of several values, by one statement for each of the values' shards; on an
        unsharded host by one of the table. `views`: transactions of the caller on an unsharded
        host, the rows of which count, too. Raises the same as `find`."""
        definition = self.definition(name)
        given = [_columns(one) for one in values]
        hashes = [hash_of(one, definition.fold) for one in given]
        if self.tables.host is not None:
            views = [*views, self.tables.committed(WAIT_MAX)]
            keys = self.tables.keys(views, definition, given)
            return [self._key(definition, one) for one in keys]
        groups: dict[tuple[int, tuple[str, ...]], set[bytes]] = {}
        for one, hash in zip(given, hashes):
            shard = shard_of_hash(name, hash, self.directory.shards)
            groups.setdefault((shard, tuple(map(kind, one))), set()).add(hash)
        found: dict[bytes, str] = {}
        for (shard, kinds), wanted in groups.items():
            found.update(self._find_in(definition, shard, list(kinds), sorted(wanted)))
        return [self._key(definition, found.get(hash)) for hash in hashes]

    def _find_in(
        self, definition: Definition, shard: int, kinds: list[str], hashes: list[bytes]
    ) -> dict[bytes, str]:
        params = {"lookup": definition.name, "hashes": hashes}
        with installed(self.directory, definition, shard):
            rows = self._connections.run(
                shard, lambda at: at.execute(statements.FIND, params).fetchall(), WAIT_MAX
            )
        check(self.directory, definition, shard, rows)
        check_kinds(definition, rows[0][1], kinds)
        state = rows[0][2]
        if state != "complete":
            build = f"run `pgshard lookups build {definition.name}`"
            if state == "recording":
                build += (
                    ", then the migration of `pgshard lookups migration"
                    f" {definition.name} --step enforce`, and build again"
                )
            what = "recording" if state == "recording" else "not complete"
            problem = f"it is {what}, so a value without an entry may belong to a key: {build}"
            raise LookupNotComplete(definition.name, problem)
        return {hash: key for _, _, _, hash, key in rows if hash is not None}

    def _key(self, definition: Definition, text: str | None) -> Key | None:
        try:
            return None if text is None else key_of_text(self.directory.config.key, text)
        except WrongKey:
            raise LookupUnusable(definition.name, f'the key "{text}" cannot be used') from None

    def claim(self, key: Key, values: Mapping[str, Values]) -> Claims:
        """Claims values for a key, each by the look-up that is named before it. The row must have
        this key; a trigger in the shard refuses it otherwise. Claiming takes three seconds at most.
        On an unsharded host the values are only checked: a row that another transaction writes
        afterwards makes the INSERT fail with `psycopg.errors.UniqueViolation`.

            claims = lookups.claim(user, {"emails": email})
            with connection.transaction():
                claims.use(connection)
                connection.execute(INSERT, [user, email])

        Raises `Taken` if another key has a row with one of the values; `Busy` if another call
        claims one at the same time and does not end in time; `WrongKey`; and the same as `find`.
        """
        shard = self.directory.shard_of_key(key)
        requests = [self.request(name, one, key) for name, one in values.items()]
        if self.tables.host is None:
            return Claims(self, shard, self.claimer.claim_all(requests))
        views = [self.tables.committed(WAIT_MAX)]
        return Claims(self, shard, self.tables.claim_all(requests, views))

    def request(self, name: str, values: Values, key: Key, inserts: bool = False) -> ClaimRequest:
        """What to claim. `inserts`: for a row that is inserted. Raises `LookupUnusable` and
        `ValueUnusable`."""
        return ClaimRequest(self.definition(name), _columns(values), str(key), inserts)

    def use(
        self,
        shard: int,
        claims: Sequence[Claim],
        execute: Callable[[str, dict[str, Any]], list[Any]],
    ) -> bool:
        """Uses claims in the transaction that writes their rows in this shard. `execute` runs a
        template of a statement there. False if one is spent or too old: then the transaction must
        not write the rows.

        Raises `LookupUnusable`, `LayoutChanged` for the claims of an unsharded host that has the
        shard no longer, and what `execute` raises.
        """
        if any(one.id is None for one in claims):
            self.tables.check_layout(shard)
        claims = [one for one in claims if one.id is not None]
        groups: dict[str, list[Claim]] = {}
        for one in claims:
            groups.setdefault(one.request.definition.name, []).append(one)
        for group in groups.values():
            definition = group[0].request.definition
            params = {
                "lookup": definition.name,
                "definition": definition.text(),
                "hashes": [one.request.hash for one in group],
                "claims": [one.id for one in group],
                "keys": [one.request.key for one in group],
                "made": [one.made_us for one in group],
            }
            rows = execute(statements.USE, params)
            check(self.directory, definition, shard, rows)
            if rows[0][1] != len(group):
                return False
        return True

    def close(self) -> None:
        """Closes the connections that nobody uses."""
        self._connections.close()


def _columns(values: Values) -> tuple[Value, ...]:
    if isinstance(values, Sequence) and not isinstance(values, str):
        return tuple(values)
    return (values,)
