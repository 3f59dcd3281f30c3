"""Writes of values of look-ups: they are claimed before the transaction that writes them, on
connections of their own, and the claims are used in it.

A claim whose transaction was rolled back may be used again. So a thread keeps its claims for a
while, and uses them again if the same value is written for the same key.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import psycopg
from django.db import DatabaseError, IntegrityError, OperationalError, connections, transaction

from ..errors import PgshardError
from ..lookups import Claim, ClaimRequest, look_inside, look_parameters
from ..lookups.claimer import WAIT_MAX, in_order
from ..lookups.claims import Entry
from .cluster import alias, shard_of_alias, unsharded_host
from .errors import Busy, NoClaim, Taken, translate_claims
from .lookups import ModelLookup, execute, lookups, lookups_of, lookups_of_rows, open_views
from .reach import objects_meant
from .routing import run_on

T = TypeVar("T")
_Key = tuple[str, bytes, str]

_KEPT_MAX = 4096
"""How many claims a thread keeps."""
_KEPT_FOR = 600.0
"""For how many seconds. The server refuses those of 15 minutes ago."""
_NOT_CLAIMED = "SH003"
_LOCK_MAX = "500ms"
"""How long a write waits for another transaction of its own thread."""
_SPENT = object()
"""In the place of a result: a claim could not be used, and nothing was written."""
_claimed: contextvars.ContextVar[bool] = contextvars.ContextVar("pgshard_claimed", default=False)


class _Kept(NamedTuple):
    claim: Claim
    since: float


class _Claims(threading.local):
    """The claims of a thread that may not be spent, oldest first."""

    def __init__(self) -> None:
        self.kept: dict[_Key, _Kept] = {}


_mine = _Claims()


def _key(request: ClaimRequest) -> _Key:
    return request.definition.name, request.hash, request.key


def _keep(claims: Iterable[Claim]) -> None:
    kept, now = _mine.kept, time.monotonic()
    # On an unsharded host there is nothing to use again.
    for one in (one for one in claims if one.id is not None):
        kept.pop(_key(one.request), None)
        kept[_key(one.request)] = _Kept(one, now)
    for key in list(kept)[: max(len(kept) - _KEPT_MAX, 0)]:
        del kept[key]


def _drop(requests: Iterable[ClaimRequest]) -> None:
    for one in requests:
        _mine.kept.pop(_key(one), None)


def claim(requests: Sequence[ClaimRequest], anew: bool = False) -> dict[_Key, Claim]:
    """Claims these values, unless this thread has claims that it may use again.

    Raises `Taken`, `Busy`, `IntegrityError` for a value that is there twice, and what
    `translate_claims` raises.
    """
    if unsharded_host() is not None:
        return _check(requests)
    now = time.monotonic()
    found: dict[_Key, Claim] = {}
    for one in [] if anew else requests:
        kept = _mine.kept.get(_key(one))
        if kept is not None and now - kept.since < _KEPT_FOR:
            found[_key(one)] = kept.claim
    rest = [one for one in requests if _key(one) not in found]
    if len({_key(one) for one in requests}) != len(requests):
        rest = list(requests)  # It is refused.
    won: dict[tuple[bytes, str], Claim] = {}
    try:
        if rest:
            with translate_claims():
                lookups().claimer.claim_all(rest, _holder, won)
    finally:
        _keep(won.values())
    found.update((_key(one.request), one) for one in won.values())
    return found


def _check(requests: Sequence[ClaimRequest]) -> dict[_Key, Claim]:
    """Checks values on an unsharded host, where nothing is claimed: that no other key has a row
    with one, a committed one or one of a transaction that this thread has open. That of the row's
    own shard sees what is committed, and what it has given up itself."""
    current, views = lookups(), open_views()
    by_alias: dict[str | None, list[ClaimRequest]] = {}
    with translate_claims():
        for one in in_order(requests):
            there = alias(current.claimer.key_shard(one, one.key))
            by_alias.setdefault(there if there in views else None, []).append(one)
        for where, group in by_alias.items():
            others = [view for name, view in views.items() if name != where]
            first = current.tables.committed(WAIT_MAX) if where is None else views[where]
            current.tables.claim_all(group, [first, *others])
    return {_key(one): Claim(one, None, 0) for one in requests}


def _taken(requests: Sequence[ClaimRequest]) -> Taken | None:
    """Which value is another key's by now, after the unsharded host has refused a duplicate."""
    try:
        with translate_claims():
            lookups().tables.claim_all(requests, [lookups().tables.committed(WAIT_MAX)])
    except Taken as taken:
        return taken
    except (DatabaseError, PgshardError):
        pass  # The host's own error is the answer.
    return None


def _holder(request: ClaimRequest, entry: Entry) -> tuple[bool, bool] | None:
    """What this thread knows of a claim in the way that is its own. Another connection would wait
    for the transaction that this thread has open."""
    mine = next((one.claim for one in _mine.kept.values() if one.claim.id == entry.claim), None)
    if mine is None:
        return None
    where = alias(lookups().claimer.key_shard(request, entry.key))
    connection = getattr(connections._connections, where, None)
    if connection is not None and connection.in_atomic_block:
        sql = look_inside(request.definition)
        has_row, is_used = execute(where, sql, look_parameters(request, entry))[0]
        if is_used and has_row and (request.inserts or entry.key != request.key):
            return True, True
        if is_used:
            raise lookups().claimer.busy(request, entry)
    # It is not going to be used.
    _drop([mine.request])
    return False, True


def write(
    using: str,
    requests: Sequence[ClaimRequest],
    work: Callable[[], T],
    claims: dict[_Key, Claim] | None = None,
) -> T:
    """Claims these values, unless it is given claims, and uses the claims in the transaction on
    this shard in which `work` runs: the open one, or one of its own.

    Raises the same as `claim`.
    """
    try:
        return _write(using, requests, work, claims)
    except IntegrityError as error:
        if unsharded_host() is None or not _is_duplicate(error):
            raise
        taken = _taken(requests)
        if taken is None:
            raise
        raise taken from error


def _is_duplicate(error: IntegrityError) -> bool:
    return isinstance(error.__cause__, psycopg.errors.UniqueViolation)


def _write(
    using: str,
    requests: Sequence[ClaimRequest],
    work: Callable[[], T],
    claims: dict[_Key, Claim] | None,
) -> T:
    for anew in (False, True):
        claims = claims or claim(requests, anew)
        held = [claims[_key(one)] for one in requests]
        if connections[using].in_atomic_block:
            outcome = _use_in_transaction(using, held, work)
        else:
            outcome = _in_own_transaction(using, held, work)
        if outcome is not _SPENT:
            result: T = outcome
            return result
        claims = None
    raise Busy(str(lookups().claimer.busy(requests[0])))


def _use(using: str, claims: Sequence[Claim]) -> bool:
    shard = shard_of_alias(using)
    assert shard is not None, "rows of sharded models are in shards"
    return lookups().use(shard, claims, lambda sql, params: execute(using, sql, params))


def _use_in_transaction(using: str, claims: Sequence[Claim], work: Callable[[], Any]) -> Any:
    # How it ends is not known here, so the claims are kept.
    _keep(claims)
    if not _use(using, claims):
        return _SPENT
    return _bounded(using, claims, work)


def _bounded(using: str, claims: Sequence[Claim], work: Callable[[], T]) -> T:
    """Runs `work` in the transaction that is open. Where another one of this thread, on the same
    unsharded host, has or had the value, PostgreSQL would wait for it for ever. So the wait has a
    limit then. Raises `Busy`."""
    if not claims or unsharded_host() is None or not open_views().keys() - {using}:
        return work()
    before = execute(using, "SELECT pg_catalog.current_setting('lock_timeout')", {})[0][0]
    limit = "SELECT pg_catalog.set_config('lock_timeout', %(limit)s, true)"
    execute(using, limit, {"limit": _LOCK_MAX})
    try:
        result = work()
    except OperationalError as error:
        if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
            raise Busy(str(lookups().claimer.busy(claims[0].request))) from error
        raise
    execute(using, limit, {"limit": before})
    return result


def _in_own_transaction(using: str, claims: Sequence[Claim], work: Callable[[], Any]) -> Any:
    def whole() -> Any:
        with transaction.atomic(using=using):
            if _use(using, claims):
                return _bounded(using, claims, work)
            transaction.set_rollback(True, using=using)
            return _SPENT

    _keep(claims)
    try:
        outcome = run_on(using, whole)
    except OperationalError as error:
        if isinstance(error.__cause__, psycopg.errors.SerializationFailure):
            return _SPENT  # In REPEATABLE READ: a claim was made unusable a moment ago.
        raise
    _drop(one.request for one in claims)
    return outcome


# ----------------------------------------------------------------------------------------
# objects


def note(instance: Any) -> None:
    """Notes the values of an object that was read or saved, so that saving it as it is claims
    nothing."""
    for lookup in lookups_of_rows(type(instance)):
        noted = instance._state.__dict__.setdefault("pgshard_noted", {})
        noted.pop(lookup.names, None)
        if all(name in instance.__dict__ for name in lookup.attributes):
            given = [instance.__dict__[name] for name in lookup.attributes]
            if not any(hasattr(one, "resolve_expression") for one in given):
                noted[lookup.names] = instance.pk, lookup.values(given)


def save(
    instance: Any,
    model: Any,
    using: str,
    names: Any,
    force_insert: bool,
    work: Callable[[], T],
) -> T:
    """Saves an object in the table of one model, by `work`, and claims the values that change.
    `names`: the fields that are saved, if not all. Raises the same as `claim`, and `NoClaim`."""
    touched = [
        one
        for one in lookups_of(model)
        if (names is None or one.is_among(names))
        and any(name in instance.__dict__ for name in one.attributes)
    ]
    if not touched:
        return work()
    if force_insert:
        requests = _requests(instance, touched, inserts=True)
        result = write(using, requests, work) if requests else work()
    else:
        result = _write_changes([instance], touched, using, work)
    note(instance)
    return result


def update_all(objs: Iterable[Any], names: list[str], using: str, work: Callable[[], T]) -> T:
    """Writes these fields of objects by `work`, and claims the values that change. Raises the same
    as `claim`, and `NoClaim`."""
    objs = list(objs)
    touched = [one for one in lookups_of_rows(type(objs[0])) if one.is_among(names)]

    def whole() -> T:
        with claimed():
            return work()

    result = _write_changes(objs, touched, using, whole)
    for one in objs:
        note(one)
    return result


def _write_objects(
    objs: list[Any], touched: Iterable[ModelLookup], using: str, work: Callable[[], T]
) -> T:
    """Writes objects by `work`, and claims their values."""
    requests = [each for one in objs for each in _requests(one, touched)]
    return write(using, requests, work) if requests else work()


def _write_changes(
    objs: list[Any], touched: list[ModelLookup], using: str, work: Callable[[], T]
) -> T:
    """Writes objects by `work`, and claims those of their values that change.

    In a transaction the rows are locked first. Outside of one, the values are claimed after all if
    a row has changed since it was read.
    """
    locks = connections[using].in_atomic_block
    kept = {lookup.names: _as_before(objs, lookup, using, locks) for lookup in touched}
    requests = [
        each
        for one in objs
        for each in _requests(one, [it for it in touched if id(one) not in kept[it.names]])
    ]
    try:
        return write(using, requests, work) if requests else work()
    except DatabaseError as error:
        is_refused = getattr(error.__cause__, "sqlstate", None) == _NOT_CLAIMED
        if locks or not is_refused or not any(kept.values()):
            raise
    return _write_objects(objs, touched, using, work)


def _as_before(objs: list[Any], lookup: ModelLookup, using: str, locks: bool) -> set[int]:
    """The `id()` of the objects with values that their rows have already. `locks`: they keep them
    until the transaction ends."""
    found, unsure = set(), {}
    for one in objs:
        values = lookup.values_of(one)
        noted = one._state.__dict__.get("pgshard_noted", {}).get(lookup.names)
        if one._state.adding or one.pk is None or values is None:
            continue
        if noted is None or locks:
            unsure[one._meta.pk.to_python(one.pk)] = one, values
        elif noted == (one.pk, values):
            found.add(id(one))
    if unsure:
        rows = lookup.model._base_manager.using(using).filter(pk__in=list(unsure))
        rows = rows.select_for_update(no_key=True, of=("self",)) if locks else rows
        with objects_meant():
            read = list(rows.order_by().values_list("pk", *lookup.names))
        for pk, *there in read:
            one, values = unsure[pk]
            if lookup.values(there) == values:
                found.add(id(one))
    return found


def _requests(
    instance: Any, touched: Iterable[ModelLookup], inserts: bool = False
) -> list[ClaimRequest]:
    found = []
    for one in touched:
        values = one.values_of(instance)
        if values is not None:
            found.append(_request(one, values, one.key(instance), inserts))
    return found


def _request(
    lookup: ModelLookup, values: tuple[Any, ...], key: Any, inserts: bool = False
) -> ClaimRequest:
    return lookups().request(lookup.definition().name, values, key, inserts)


# ----------------------------------------------------------------------------------------
# query sets


def create_all(
    objs: list[Any],
    by_shard: dict[str, list[Any]],
    create: Callable[[str, list[Any]], None],
    skips: bool,
) -> None:
    """Creates new objects, shard by shard, by `create`. All values are claimed before the first row
    is written. `skips`: objects with values that are taken are left out.

    Raises the same as `claim`.
    """
    requests = {id(one): _requests(one, lookups_of(type(one))) for one in objs}
    if skips:
        claims: dict[_Key, Claim] = {}
        for one in objs:
            wanted = requests[id(one)]
            try:
                if any(_key(each) in claims for each in wanted):
                    raise IntegrityError
                claims.update(claim(wanted))
            except IntegrityError:
                del requests[id(one)]
    else:
        claims = claim([each for one in objs for each in requests[id(one)]])
    for using, group in by_shard.items():
        free = [one for one in group if id(one) in requests]
        wanted = [each for one in free for each in requests[id(one)]]
        if free:
            write(using, wanted, lambda: create(using, free), claims)  # noqa: B023 # it runs now
            for one in free:
                note(one)


@contextmanager
def claimed() -> Iterator[None]:
    """Within it, updates write values that are claimed."""
    token = _claimed.set(True)
    try:
        yield
    finally:
        _claimed.reset(token)


def written(model: Any, names: Iterable[str]) -> list[ModelLookup]:
    """The look-ups whose values an update of these fields would write without a claim."""
    if _claimed.get():
        return []
    given = set(names)
    return [one for one in lookups_of_rows(model) if one.is_among(given)]


def update(
    rows: Any, touched: list[ModelLookup], given: dict[str, Any], work: Callable[[Any], int]
) -> int:
    """Updates one row of a shard by `work`, which takes a query set, and claims its new values.
    Raises the same as `claim`, and `NoClaim` for several rows."""
    wanted = [one for one in touched if _new_values(one, given) is not None]
    if not wanted:
        with claimed():
            return work(rows)
    found = list(rows.values_list("pk", flat=True)[:2])
    if len(found) > 1:
        names = ", ".join(name for one in wanted for name in one.names)
        raise NoClaim(
            f"{rows.model.__name__}.update would give several rows one value of a look-up: {names}"
        )
    with objects_meant():
        row = rows.model._base_manager.using(rows.db).filter(pk__in=found).first()
    if row is None:
        return 0
    requests = []
    for one in wanted:
        values = one.values(
            given.get(field.name, given.get(field.attname, getattr(row, field.attname)))
            for field in one.fields
        )
        if values is not None:
            requests.append(_request(one, values, one.key(row)))
    only = rows.filter(pk=row.pk)

    def whole() -> int:
        with claimed():
            return work(only)

    return write(rows.db, requests, whole) if requests else whole()


def _new_values(lookup: ModelLookup, given: dict[str, Any]) -> tuple[Any, ...] | None:
    """The new values among those given; None if one is NULL. Raises `NoClaim` for an expression."""
    present: list[Any] = []
    for field in lookup.fields:
        name = next((one for one in (field.name, field.attname) if one in given), None)
        if name is not None:
            value = given[name]
            if value is None:
                return None
            present.append(value)
            if hasattr(value, "resolve_expression"):
                lookup.values([value] * len(lookup.fields))
    return tuple(present)
