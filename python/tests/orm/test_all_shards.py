"""Aggregates, slices and iteration over all shards are those of one database with all rows; and the
variants for asynchronous code."""

import asyncio
import datetime
import itertools
import random
from decimal import Decimal

import pytest
from asgiref.sync import sync_to_async
from django.db.models import Avg, Count, F, Max, Min, Q, Sum

pytestmark = pytest.mark.usefixtures("db")


@pytest.fixture
def papers(world):
    from ledger.models import Paper

    Paper.objects.across_shards().run(lambda rows: rows.all().delete()).all()
    yield Paper
    Paper.objects.across_shards().run(lambda rows: rows.all().delete()).all()


@pytest.fixture
def oracle(world):
    """A table with all rows, in the default database."""
    from django.db import connection, models

    class Whole(models.Model):
        user_id = models.BigIntegerField()
        name = models.CharField(max_length=50, null=True)
        count = models.IntegerField(null=True)
        amount = models.DecimalField(max_digits=20, decimal_places=4, null=True)
        weight = models.FloatField(null=True)
        lasted = models.DurationField(null=True)
        on = models.DateField(null=True)

        class Meta:
            app_label = "plain"

    with connection.schema_editor() as editor:
        editor.create_model(Whole)
    yield Whole
    with connection.schema_editor() as editor:
        editor.delete_model(Whole)
    Whole._meta.apps.all_models["plain"].pop("whole")
    Whole._meta.apps.clear_cache()


NAMES = ["a", "B", "ä", "Z", "a b", "ab", "é", None]


def fill(papers, oracle, chance, users=30, each=4):
    """The same rows in the shards and in one table."""
    rows = []
    for user, _ in itertools.product(range(users), range(chance.randint(1, each))):
        row = dict(
            user_id=user,
            name=chance.choice(NAMES),
            count=chance.choice([None, -3, 0, 5, 10**9]),
            amount=chance.choice([None, Decimal("0.1"), Decimal("-7.0001"), Decimal(10) ** 12]),
            weight=chance.choice([None, 0.5, -2.25, 1e9, float("nan")]),
            lasted=chance.choice([None, datetime.timedelta(seconds=3, microseconds=1)]),
            on=chance.choice([None, datetime.date(2026, 1, chance.randint(1, 9))]),
        )
        rows.append(papers.objects.create(**row))
        oracle.objects.create(id=rows[-1].pk, **row)
    return rows


def same(one, other):
    return one == other or (one != one and other != other)


def test_aggregates_are_those_of_one_database(papers, oracle):
    chance = random.Random(7)
    wanted = {"rows": Count("*"), "keys": Count("user_id", distinct=True)}
    for name in ("count", "amount", "lasted", "weight", "on", "name"):
        wanted |= {f"n_{name}": Count(name), f"min_{name}": Min(name), f"max_{name}": Max(name)}
        if name not in ("on", "name"):
            wanted |= {f"sum_{name}": Sum(name), f"avg_{name}": Avg(name)}
    few = Q(count__gt=0)
    wanted |= {
        "some": Avg("amount", filter=few),
        "none": Sum("count", filter=Q(count=99), default=-1),
        "double": Sum(F("count") * 2),
    }

    def compare():
        ours = papers.objects.across_shards().aggregate(**wanted)
        theirs = oracle.objects.aggregate(**wanted)
        assert ours.keys() == theirs.keys()
        different = {n: (ours[n], theirs[n]) for n in wanted if not same(ours[n], theirs[n])}
        assert different == {}
        assert {n: type(v) for n, v in ours.items()} == {n: type(v) for n, v in theirs.items()}

    compare()
    fill(papers, oracle, chance)
    compare()
    assert papers.objects.across_shards().aggregate(Count("id")) == {
        "id__count": oracle.objects.count()
    }


@pytest.mark.parametrize(
    "wanted",
    [
        Count("name", distinct=True),
        Sum("count", distinct=True),
        Sum("count") / Count("id"),
        Sum("count") + 1,
    ],
)
def test_an_aggregate_that_shards_cannot_compute_is_refused(papers, wanted):
    with pytest.raises(ValueError, match="across shards"):
        papers.objects.across_shards().aggregate(wanted=wanted)


def test_an_aggregate_of_a_slice_or_of_groups_is_refused(papers):
    with pytest.raises(ValueError, match="slice"):
        papers.objects.all()[:5].across_shards().aggregate(Count("id"))
    with pytest.raises(ValueError, match="groups"):
        papers.objects.values("name").annotate(n=Count("id")).across_shards().aggregate(Max("n"))


ORDERS = [
    (),
    ("count",),
    ("-count", "on"),
    ("name",),
    ("-name", "count"),
    ("weight", "-on"),
    ("-weight",),
    ("amount",),
    ("-id",),
    ("lasted", "-user_id"),
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [1, 40, 2000])
def test_iteration_has_each_row_once_in_the_order_of_one_database(papers, oracle, order, size):
    fill(papers, oracle, random.Random(f"{order}"))
    ours = list(papers.objects.order_by(*order).across_shards().iterator(chunk_size=size))
    theirs = list(oracle.objects.order_by(*order))
    assert sorted(row.pk for row in ours) == sorted(row.pk for row in theirs)
    names = [name.lstrip("-") for name in order]

    def seen(rows):
        return [str([getattr(row, name) for name in names]) for row in rows]

    assert seen(ours) == seen(theirs)


def test_iteration_goes_backwards_over_values_and_annotations(papers, oracle):
    fill(papers, oracle, random.Random(3))
    for rows in (
        lambda model: model.objects.order_by("count", "id").reverse(),
        lambda model: model.objects.annotate(double=F("count") * 2).order_by("-double", "id"),
        lambda model: model.objects.filter(count__gt=0).order_by("-on", "id"),
    ):
        ours = [row.pk for row in rows(papers).across_shards().iterator(chunk_size=10)]
        assert ours == [row.pk for row in rows(oracle)]
    pairs = papers.objects.order_by("count", "id").values_list("id", "count").across_shards()
    assert list(pairs) == list(oracle.objects.order_by("count", "id").values_list("id", "count"))


def test_iteration_holds_a_few_rows_of_each_shard(papers, oracle, monkeypatch):
    from pgshard.django import across

    fill(papers, oracle, random.Random(5), users=16, each=20)
    most = 0

    def merge(rows, by, ranks, plain=across.merge):
        nonlocal most
        most = max(most, len(rows))
        return plain(rows, by, ranks)

    monkeypatch.setattr(across, "merge", merge)
    assert len(list(papers.objects.order_by("count").across_shards().iterator(64))) > 100
    assert 64 <= most <= 64 * 1.5


def test_slices_are_those_of_one_database(papers, oracle):
    fill(papers, oracle, random.Random(11))
    ours = papers.objects.order_by("-id").across_shards()
    theirs = [row.pk for row in oracle.objects.order_by("-id")]
    assert [row.pk for row in ours[:5]] == theirs[:5]
    assert [row.pk for row in ours[7:12]] == theirs[7:12]
    assert ours[3].pk == theirs[3]
    with pytest.raises(IndexError):
        ours[10_000]
    for wrong in (slice(5, None), slice(0, 9, 2), slice(-1, 3), -1, "x"):
        with pytest.raises(ValueError, match="across shards"):
            ours[wrong]


def test_what_cannot_be_continued_is_refused(papers):
    for rows, words in (
        (papers.objects.all()[:5], "slice"),
        (papers.objects.values("count").order_by("count"), "add id"),
        (papers.objects.order_by("?"), "cannot be merged"),
        (papers.objects.order_by("user_id").distinct("user_id"), "distinct"),
    ):
        with pytest.raises(ValueError, match=words):
            iter(rows.across_shards()).__next__()
    with pytest.raises(ValueError, match="chunk_size"):
        next(papers.objects.across_shards().iterator(0))


def test_asynchronous_variants_give_the_same(papers, oracle):
    from pgshard.django import arun_in_shard, release

    rows = fill(papers, oracle, random.Random(2))
    every = papers.objects.order_by("-id").across_shards()

    async def work():
        ids = [row.pk for row in rows]
        assert [row.pk for row in await papers.objects.aby_ids(ids[:9])] == ids[:9]
        assert [row.pk for row in await papers.objects.filter().aby_ids(ids[:9])] == ids[:9]
        assert [row.pk async for row in every] == sorted(ids, reverse=True)
        assert [row.pk async for row in every.aiterator(3)] == sorted(ids, reverse=True)
        assert await every.acount() == len(ids)
        assert await every.aexists()
        assert await every.aaggregate(n=Count("id")) == {"n": len(ids)}
        assert [row.pk for row in await every.alist(3)] == sorted(ids, reverse=True)[:3]
        gathered = await every.arun(lambda found: found.count())
        assert sum(gathered.all().values()) == len(ids)
        await sync_to_async(release)()

    asyncio.run(work())

    async def write():
        def both():
            papers.objects.create(user_id=5, name="new")
            raise LookupError

        with pytest.raises(LookupError):
            await arun_in_shard(5, both)
        left = await arun_in_shard(5, lambda: papers.objects.filter(name="new").count())
        await sync_to_async(release)()
        return left

    assert asyncio.run(write()) == 0
