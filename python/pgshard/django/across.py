"""A query on every shard: what each of them has, put together as if they were one."""

from __future__ import annotations

import builtins
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar

from asgiref.sync import sync_to_async

from .aggregates import parts, together
from .cluster import AllRows, cluster, shard_of_alias, unsharded_host
from .errors import LayoutChanged
from .everywhere import all_rows
from .gather import Gathered, gather
from .merge import By, check_any, check_rows, later, merge, order, quotient_on, ranks_on, row_pk

T = TypeVar("T")


class _Places(NamedTuple):
    """Where a query for all shards goes."""

    shards: Sequence[int]
    """The shards; of an unsharded host one in the place of all: shard 0, or the one on which the
    thread has a transaction."""
    is_whole: bool
    """Whether an unsharded host has all rows, so that one statement is for all shards."""

    def on(self, rows: Any, where: str) -> Any:
        """A query set on one of these."""
        made = rows._on(AllRows(where) if self.is_whole else where)
        # `reach` refuses it if the shard is on an unsharded host by then.
        made.query.pgshard_is_of_each = not self.is_whole
        return made

    def gather(self, work: Callable[[str], T], width: int, timeout: float | None) -> Gathered[T]:
        """Calls `work` for each of these. Raises `LayoutChanged` if the shards have left an
        unsharded host, or are on one by now."""
        result = gather(self.shards, work, width=width, timeout=timeout)
        for error in result.errors.values():
            if isinstance(error, LayoutChanged):
                raise error
        return result


class AcrossShards:
    """A query on every shard, which has not been sent yet. On an unsharded host it is one statement
    for all of them, in the name of shard 0, or of the one on which the thread has a
    transaction."""

    def __init__(
        self,
        queryset: Any,
        width: int,
        timeout: float | None,
        shards: Sequence[int] | None = None,
    ) -> None:
        """`shards`: those that are queried, if not all."""
        if queryset.query.is_sliced and queryset.query.low_mark:
            raise ValueError(
                "an offset within each shard means nothing across them: filter by the order's last"
                " value"
            )
        self._queryset, self._width, self._timeout = queryset, width, timeout
        self._shards = range(cluster().shards) if shards is None else shards

    def _places(self) -> _Places:
        if unsharded_host() is not None:
            where = shard_of_alias(all_rows())
            assert where is not None, "it is the alias of a shard"
            return _Places([where], is_whole=True)
        return _Places(self._shards, is_whole=False)

    def _run(self, places: _Places, work: Callable[[Any], T]) -> Gathered[T]:
        one = lambda where: work(places.on(self._queryset, where))  # noqa: E731
        return places.gather(one, self._width, self._timeout)

    def run(self, work: Callable[[Any], T]) -> Gathered[T]:
        """Calls `work` with each shard's query set, in a thread of its own, and gathers results and
        errors."""
        return self._run(self._places(), work)

    async def arun(self, work: Callable[[Any], T]) -> Gathered[T]:
        """`run`, for asynchronous code; `work` itself is not."""
        return await sync_to_async(self.run)(work)

    def count(self) -> int:
        """How many rows there are on all shards. Raises `Partial`, and `ValueError` if shards have
        rows in common that would be one."""
        check_rows(self._queryset)
        return self._at_most(sum(self.run(lambda rows: rows.count()).all().values()))

    def exists(self) -> bool:
        """Whether any shard has a row. Raises `Partial` if none was found and a shard failed, and
        `ValueError` if it depends on several shards which rows are left out."""
        check_any(self._queryset)
        result = self.run(lambda rows: rows.exists())
        return any(result.values.values()) or bool(sum(result.all().values()))

    def aggregate(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The same as Django's, of the rows of all shards: `Count`, `Sum`, `Min`, `Max` and `Avg`.
        The smallest and largest of texts, and averages, cost a statement more.

        Raises `Partial`, and `ValueError` for other aggregates, for distinct values that two shards
        may have, and for a slice.
        """
        if self._queryset.query.is_sliced:
            raise ValueError("each shard would have a slice of its own: aggregate without a slice")
        check_rows(self._queryset)
        wanted = parts(self._queryset, args, kwargs)
        asked = {name: one for part in wanted for name, one in part.asked.items()}
        end, places = self._end(), self._places()
        if places.is_whole:
            (found,) = (
                self._run(places, lambda rows: rows.aggregate(*args, **kwargs)).all().values()
            )
            return dict(found)
        compute = lambda found: found.aggregate(**asked)  # noqa: E731
        rows = [*self._run(places, compute).all().values()] if asked else []
        server = _Server(places.shards, end)
        return {part.name: together(part, rows, server) for part in wanted}

    def list(self, limit: int, *, partial: bool = False) -> builtins.list[Any]:
        """At most `limit` objects, in the query's order; each shard is queried for as many. An
        order by texts costs one more statement.

        Raises `Partial` if a shard failed; with `partial=True`, returns what the others have
        instead. Raises `ValueError` if the order is known to the shards only, or if the rows would
        be others: groups and duplicates of several shards.
        """
        check_rows(self._queryset)
        by, limit = order(self._queryset), self._at_most(limit)
        end, places = self._end(), self._places()
        result = self._run(places, lambda rows: builtins.list(rows[:limit]))
        if not partial:
            result.all()
        shards = [shard for shard in sorted(result.values) if result.values[shard]]
        found = [row for shard in shards for row in result.values[shard]]
        if len(shards) <= 1:
            return found  # They are in their order.
        return merge(found, by, _Server(shards, end).ranks)[:limit]

    def first(self) -> Any:
        """The first object in the query's order, or if it has none in that of the IDs; None if
        there is none. Raises the same as `list`."""
        rows = self._queryset if self._queryset.ordered else self._queryset.order_by("pk")
        return next(
            iter(rows.across_shards(width=self._width, timeout=self._timeout).list(1)), None
        )

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """The one object of all shards that matches. Raises `DoesNotExist` or
        `MultipleObjectsReturned`, and the same as `list`."""
        rows = self._queryset.filter(*args, **kwargs)
        found = rows.across_shards(width=self._width, timeout=self._timeout).list(2)
        if len(found) == 1:
            return found[0]
        model = self._queryset.model
        if found:
            raise model.MultipleObjectsReturned(f"get() found more than one {model.__name__}")
        raise model.DoesNotExist(f"{model.__name__} matching query does not exist.")

    def __getitem__(self, wanted: Any) -> Any:
        """A slice, as a list, or one object, in the query's order; each shard is queried for all
        rows up to its end. Raises the same as `list`, `IndexError` if there is no such object, and
        `ValueError` for a slice without an end."""
        if not isinstance(wanted, slice):
            if not isinstance(wanted, int) or wanted < 0:
                raise ValueError("an index across shards is a number from 0, and no negative one")
            return self.list(wanted + 1)[wanted]
        start, stop = wanted.start or 0, wanted.stop
        if stop is None or wanted.step is not None or start < 0 or stop < 0:
            raise ValueError(
                "a slice across shards has an end, no step and no negative number: to read all"
                " rows, iterate"
            )
        return self.list(stop)[start:]

    def __iter__(self) -> Iterator[Any]:
        return self.iterator()

    def iterator(self, chunk_size: int = 2000) -> Iterator[Any]:
        """All rows, in the query's order, or if it has none in that of the shards and their IDs.
        About `chunk_size` rows are in memory at a time, and at least two of each shard.

        Each shard is queried for some rows at a time, those after the last one it returned. So what
        is written during the iteration may be seen or not, and no row comes twice unless its place
        in the order changes. Raises the same as `list`, and `ValueError` for a slice or if `values`
        leaves the primary key out.
        """
        for rows in self._chunks(chunk_size):
            yield from rows

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for row in self.aiterator():
            yield row

    async def aiterator(self, chunk_size: int = 2000) -> AsyncIterator[Any]:
        """`iterator`, for asynchronous code."""
        chunks = self._chunks(chunk_size)
        following = sync_to_async(lambda: next(chunks, None))
        while (rows := await following()) is not None:
            for row in rows:
                yield row

    async def acount(self) -> int:
        """`count`, for asynchronous code."""
        return await sync_to_async(self.count)()

    async def aexists(self) -> bool:
        """`exists`, for asynchronous code."""
        return await sync_to_async(self.exists)()

    async def aaggregate(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """`aggregate`, for asynchronous code."""
        return await sync_to_async(self.aggregate)(*args, **kwargs)

    async def alist(self, limit: int, *, partial: bool = False) -> Any:
        """`list`, for asynchronous code."""
        return await sync_to_async(self.list)(limit, partial=partial)

    async def afirst(self) -> Any:
        """`first`, for asynchronous code."""
        return await sync_to_async(self.first)()

    async def aget(self, *args: Any, **kwargs: Any) -> Any:
        """`get`, for asynchronous code."""
        return await sync_to_async(self.get)(*args, **kwargs)

    def _chunks(self, chunk_size: int) -> Iterator[Any]:
        """The rows in their order, in lists. Raises `ValueError`."""
        query = self._queryset.query
        if chunk_size < 1:
            raise ValueError(f"chunk_size must be 1 or more, not {chunk_size}")
        if query.is_sliced:
            raise ValueError("a slice is short: take .list(), or iterate without it")
        if query.distinct_fields or query.combinator:
            raise ValueError("distinct(…) by fields and union cannot be continued: take .list()")
        check_rows(self._queryset)
        by, pk = order(self._queryset), row_pk(self._queryset)
        given = [f"{'-' if one.descending else ''}{one.name}" for one in by]
        rows = self._queryset.order_by(*given, "pk")
        rows.query.standard_ordering = True
        places = self._places()
        if by:
            return self._merged(places, rows, by, pk, chunk_size)
        return self._in_turn(places, rows, pk, chunk_size)

    def _in_turn(
        self, places: _Places, rows: Any, pk: Callable[[Any], Any], size: int
    ) -> Iterator[builtins.list[Any]]:
        """The rows of one shard after those of another."""
        end = self._end()
        for shard in places.shards:
            last: Any = None
            while last is None or len(last) == size:
                one = places._replace(shards=[shard])
                last = _next(one, rows, {shard: last and last[-1]}, [], pk, size, end)[shard]
                if last:
                    yield last

    def _merged(
        self,
        places: _Places,
        rows: Any,
        by: builtins.list[By],
        pk: Callable[[Any], Any],
        chunk_size: int,
    ) -> Iterator[builtins.list[Any]]:
        """The rows of all shards in their order. A few rows of each shard are held. As long as no
        shard that may have more has run out, the first row held is the next."""
        end, shards = self._end(), places.shards
        size = max(1, chunk_size // len(shards))
        held: dict[int, builtins.list[Any]] = {shard: [] for shard in shards}
        last: dict[int, Any] = {}
        more = set(shards)
        pairs = [one._replace(get=_of_second(one.get)) for one in by]
        while True:
            # Those that have few left are queried too, since they would end the next round soon.
            few = [shard for shard in sorted(more) if len(held[shard]) <= size // 2]
            some = places._replace(shards=few)
            for shard, new in _next(some, rows, last, by, pk, size, end, self._width).items():
                held[shard] += new
                if new:
                    last[shard] = new[-1]
                if len(new) < size:
                    more.discard(shard)
            full = [shard for shard in shards if held[shard]]
            if not full:
                return
            if len(full) == 1:
                # They are in their order.
                yield held[full[0]]
                held[full[0]] = []
                continue
            found = [(shard, row) for shard in full for row in held[shard]]
            ready = []
            for shard, row in merge(found, pairs, _Server(full, end).ranks):
                ready.append(row)
                del held[shard][0]
                if not held[shard] and shard in more:
                    break
            yield ready

    def _end(self) -> float | None:
        return None if self._timeout is None else time.monotonic() + self._timeout

    def _at_most(self, count: int) -> int:
        """This many, or as many as a slice of the query leaves."""
        most = self._queryset.query.high_mark
        return count if most is None else min(count, most)


def _of_second(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda pair: get(pair[1])


def _next(
    places: _Places,
    rows: Any,
    last: Mapping[int, Any],
    by: list[By],
    pk: Callable[[Any], Any],
    size: int,
    end: float | None,
    width: int = 1,
) -> Mapping[int, list[Any]]:
    """The next rows of each of these shards, at most `size`, after its last one. Raises
    `Partial`."""

    def work(where: str) -> list[Any]:
        shard = shard_of_alias(where)
        assert shard is not None, "gather gives aliases of shards"
        here, row = places.on(rows, where), last.get(shard)
        return list((here if row is None else later(here, by, row, pk(row)))[:size])

    return places.gather(work, width, _left(end)).all()


def _left(end: float | None) -> float | None:
    return None if end is None else max(end - time.monotonic(), 0)


class _Server:
    """The first of these shards that answers."""

    def __init__(self, shards: Sequence[int], end: float | None) -> None:
        self._shards, self._end = shards, end

    def ranks(self, field: Any, texts: list[str]) -> Mapping[str, int]:
        """The rank of each text in the order of the field's column."""
        if len(self._shards) == 1:
            return dict.fromkeys(texts, 0)  # They are in their order.
        return self._ask(lambda where: ranks_on(where, field, texts))

    def divide(self, total: Decimal, count: int) -> Decimal:
        """A quotient with as many digits as an average has."""
        return self._ask(lambda where: quotient_on(where, total, count))

    def _ask(self, work: Callable[[str], T]) -> T:
        asked: Gathered[T] = Gathered()
        for shard in self._shards:
            asked = gather([shard], work, timeout=_left(self._end))
            if asked.values:
                break
        return next(iter(asked.all().values()))
