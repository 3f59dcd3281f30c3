"""Random query sets on an unsharded host, and the same by plain Django on the same tables: the
answer is equal, or the query is refused by name.

PGSHARD_TEST_PROGRAMS names for how many seconds they run, PGSHARD_TEST_SEED the seed of the first.
"""

import random
import time
from types import SimpleNamespace

import pytest
from one_database import PLAIN, OneDatabase, make_tables, register, used
from programs import SECONDS, SEED, refusals

from pgshard import ids

USERS = (3, 12, 19, 4, 35, 8)
WORDS = ("a", "B", "b", "Ä", "z", "a b", "é", "")


@pytest.fixture(scope="module")
def old(world):
    from django.db import connections
    from photos import models as m

    made = OneDatabase("")
    try:
        register(made)
        make_tables(m.Album, m.Tag, m.Photo)
        yield made
    finally:
        connections[PLAIN].close()
        made.close()


@pytest.fixture(scope="module")
def plain():
    """The models as they were before they were sharded, with the same tables."""
    from django.db import models
    from django.test.utils import isolate_apps

    def meta(table, **more):
        return type(
            "Meta", (), {"app_label": "photos", "db_table": table, "managed": False, **more}
        )

    with isolate_apps("photos"):

        class Album(models.Model):
            user_id = models.BigIntegerField()
            name = models.CharField(max_length=100)
            Meta = meta("photos_album", ordering=["name"])

        class Tag(models.Model):
            user_id = models.BigIntegerField()
            word = models.CharField(max_length=50)
            Meta = meta("photos_tag")

        class Photo(models.Model):
            user_id = models.BigIntegerField()
            album = models.ForeignKey(Album, models.CASCADE, null=True, related_name="photos")
            tags = models.ManyToManyField(Tag, related_name="photos")
            title = models.CharField(max_length=100)
            likes = models.IntegerField(default=0)
            Meta = meta("photos_photo")

        yield SimpleNamespace(Album=Album, Tag=Tag, Photo=Photo)


def sql(text):
    from django.db import connections

    with connections[PLAIN].cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchall() if cursor.description else None


TABLES = {
    "photos_album": ("id", "user_id", "name"),
    "photos_tag": ("id", "user_id", "word"),
    "photos_photo": ("id", "user_id", "album_id", "title", "likes"),
    "photos_photo_tags": ("photo_id", "tag_id"),
}


def fill(chance):
    """Rows of each user. A third has IDs from before the shards."""
    rows = {table: [] for table in TABLES}
    for user in USERS:

        def new(user=user):
            number = sum(map(len, rows.values())) + 1
            if chance.random() < 0.33:
                return number
            return ids.encode(1_000_000 + number, user % 16, number)

        made = {}
        for table in ("photos_album", "photos_tag"):
            made[table] = []
            for word in chance.sample(WORDS, 2):
                made[table].append(new())
                rows[table].append((made[table][-1], user, word))
        for _ in range(4):
            id, album = new(), chance.choice((None, *made["photos_album"]))
            rows["photos_photo"].append(
                (id, user, album, chance.choice(WORDS), chance.randrange(4))
            )
            for tag in chance.sample(made["photos_tag"], chance.randrange(3)):
                rows["photos_photo_tags"].append((id, tag))
    write(rows)


def write(rows):
    """Makes these the rows of the tables."""
    from django.db import connections

    sql("TRUNCATE photos_album, photos_tag, photos_photo CASCADE")
    with connections[PLAIN].cursor() as cursor:
        for table, names in TABLES.items():
            holes = ", ".join(["%s"] * len(names))
            text = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({holes})"
            cursor.executemany(text, rows[table])


def rows_left():
    return {
        table: sql(f"SELECT {', '.join(names)} FROM {table} ORDER BY 1, 2")
        for table, names in TABLES.items()
    }


def seen(value, depth=2):
    """An answer, also of what came with an object."""
    from django.db.models import Model

    if isinstance(value, Model):
        found = {
            name: one
            for name, one in sorted(value.__dict__.items())
            if not name.startswith("_") and name not in ("category_id", "made_at", "lower")
        }
        for name, one in sorted(value._state.fields_cache.items()) if depth else ():
            found[f"{name}!"] = seen(one, depth - 1)
        for name, rows in sorted(getattr(value, "_prefetched_objects_cache", {}).items()):
            found[f"{name}*"] = sorted((seen(one, 0) for one in rows), key=str)
        return found
    if isinstance(value, dict):
        return {name: seen(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [seen(one) for one in value]
    return value


class Query:
    """A query by chance: steps that make it from a model's rows, and an end that sends it."""

    def __init__(self, chance, ids):
        self.chance, self.ids, self.is_ordered = chance, ids, False
        self.text = []

    def key(self):
        return self.chance.choice((*USERS, 5))

    def condition(self):
        """A condition on photos."""
        from django.db.models import Q

        chance = self.chance
        key, other, id = self.key(), self.key(), chance.choice(self.ids)
        return chance.choice(
            (
                lambda: Q(user_id=key),
                lambda: Q(user_id=key),
                lambda: Q(user_id__in=[key, other]),
                lambda: Q(user_id__gt=key),
                lambda: Q(id=id),
                lambda: Q(pk__in=chance.sample(self.ids, 3)),
                lambda: Q(likes__gte=chance.randrange(4)),
                lambda: Q(title__icontains="a"),
                lambda: Q(album=None),
                lambda: Q(album__name__in=WORDS[:4]),
                lambda: Q(album__user_id=key),
                lambda: Q(tags__word="a", user_id=key),
                lambda: Q(user_id=key) | Q(user_id=other),
                lambda: Q(user_id=key) & ~Q(title="a"),
                lambda: ~Q(user_id=key),
                lambda: Q(user_id=key) ^ Q(likes=1),
            )
        )()

    def steps(self):
        chance, found = self.chance, []
        for _ in range(chance.randrange(4)):
            condition = self.condition()
            excludes = chance.random() < 0.15
            self.text.append(f"{'exclude' if excludes else 'filter'} {condition}")
            found.append(
                lambda m, rows, q=condition, e=excludes: rows.exclude(q) if e else rows.filter(q)
            )
        if chance.random() < 0.7:
            # The last one makes the order complete.
            by = [
                *chance.sample(["likes", "-likes", "title", "-title", "user_id", "album"], 2),
                "id",
            ]
            self.is_ordered = True
            self.text.append(f"by {by}")
            found.append(lambda m, rows: rows.order_by(*by))
        return found + [one for one in [self.shape()] if one is not None]

    def shape(self):
        from django.db.models import Avg, Count, Exists, F, Max, OuterRef, Subquery, Sum
        from django.db.models.functions import Lower

        shapes = {
            "related": lambda m, rows: rows.select_related("album"),
            "prefetched": lambda m, rows: rows.prefetch_related("tags", "album"),
            "deep": lambda m, rows: rows.prefetch_related("album__photos__tags"),
            "only": lambda m, rows: rows.only("title", "user_id"),
            "deferred": lambda m, rows: rows.only("title"),
            "values": lambda m, rows: rows.values("id", "title", "user_id"),
            "list": lambda m, rows: rows.values_list("user_id", "likes", "id"),
            "flat": lambda m, rows: rows.values_list("id", flat=True),
            "distinct": lambda m, rows: rows.order_by().values_list("user_id", "title").distinct(),
            "doubled": lambda m, rows: rows.annotate(n=F("likes") * 2, low=Lower("title")),
            "counted": lambda m, rows: rows.annotate(n=Count("tags")),
            "grouped": lambda m, rows: (
                rows.order_by("user_id")
                .values("user_id")
                .annotate(n=Count("id"), most=Max("likes"), a=Avg("likes"))
            ),
            "by title": lambda m, rows: (
                rows.order_by("title").values("title").annotate(s=Sum("likes"))
            ),
            "has": lambda m, rows: rows.annotate(
                has=Exists(m.Album.objects.filter(user_id=OuterRef("user_id")))
            ),
            "most": lambda m, rows: rows.annotate(
                most=Subquery(
                    m.Photo.objects.filter(album=OuterRef("album"))
                    .order_by("-likes")
                    .values("likes")[:1]
                )
            ),
            "in albums": lambda m, rows: rows.filter(
                album__in=m.Album.objects.filter(name__in=WORDS[:5])
            ),
        }
        name = self.chance.choice([None, None, *shapes])
        self.text.append(str(name))
        return shapes.get(name)

    def end(self):
        """How the query is sent: a function of the models, its rows, and the calls that differ."""
        from django.db.models import Avg, Count, F, Max, Min, Sum

        chance, n = self.chance, self.chance.randrange(1, 9)
        some = chance.sample(self.ids, 5)
        ends = {
            "rows": lambda at, rows: list(rows),
            "count": lambda at, rows: rows.count(),
            "exists": lambda at, rows: rows.exists(),
            "first": lambda at, rows: rows.first(),
            "slice": lambda at, rows: list(rows[1:n]),
            "aggregate": lambda at, rows: rows.aggregate(
                n=Count("id"), a=Avg("likes"), s=Sum("likes"), m=Max("title"), f=Min("title")
            ),
            "get": lambda at, rows: rows.get(likes=n % 4, user_id=USERS[n % 6]),
            "all": lambda at, rows: at.list(rows, n),
            "all counted": lambda at, rows: at.across(rows).count(),
            "all exist": lambda at, rows: at.across(rows).exists(),
            "all aggregated": lambda at, rows: at.across(rows).aggregate(
                n=Count("id"), a=Avg("likes"), s=Sum("likes"), m=Max("title"), f=Min("title")
            ),
            "first of all": lambda at, rows: at.across(rows).first(),
            "slice of all": lambda at, rows: list(at.across(rows)[1:n]),
            "each of all": lambda at, rows: at.each(rows, n),
            "one of all": lambda at, rows: at.across(rows).get(likes=n % 4, user_id=USERS[n % 6]),
            "by IDs": lambda at, rows: at.by_ids(rows, some),
            "update": lambda at, rows: rows.update(likes=F("likes") + 10),
            "update of all": lambda at, rows: at.run(rows, lambda some: some.update(likes=77)),
            "delete": lambda at, rows: rows.delete(),
            "delete of all": lambda at, rows: at.run(rows, lambda some: some.delete()),
        }
        name = chance.choice(list(ends))
        self.text.append(name)
        return name, ends[name]


class Here:
    """The calls on an unsharded host."""

    def across(self, rows):
        return rows.across_shards()

    def list(self, rows, n):
        return rows.across_shards().list(n)

    def each(self, rows, n):
        return list(rows.across_shards().iterator(chunk_size=n))

    def by_ids(self, rows, ids):
        return rows.by_ids(ids)

    def run(self, rows, work):
        result = rows.across_shards().run(work)
        assert list(result.all()) == [0], "once for the host"
        return result.values[0]


class There(Here):
    """The same of plain Django."""

    def across(self, rows):
        return rows

    def list(self, rows, n):
        return list(rows[:n])

    def each(self, rows, n):
        return list(rows if rows.query.order_by else rows.order_by("id"))

    def by_ids(self, rows, ids):
        found = {id_of(one): one for one in rows.order_by().filter(pk__in=ids)}
        return [found[id] for id in ids if id in found]

    def run(self, rows, work):
        return work(rows)


def id_of(row):
    if isinstance(row, dict):
        return row["id"]
    if isinstance(row, tuple):
        return row[-1]
    return getattr(row, "pk", row)


def answer(call):
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001
        return None, error


def compare(seed, m, plain, counts):
    """Sends a query both ways. Raises `AssertionError` with the difference."""
    from django.core.exceptions import ObjectDoesNotExist

    chance = random.Random(seed)
    query = Query(chance, [id for (id,) in sql("SELECT id FROM photos_photo ORDER BY id")])
    steps, (name, end) = query.steps(), query.end()
    writes = name.startswith(("update", "delete"))
    text = f"seed {seed}: {'; '.join(query.text)}"

    def made(models, rows):
        for step in steps:
            rows = step(models, rows)
        return rows

    before = rows_left() if writes else None
    found, error = answer(lambda: end(Here(), made(m, m.Photo.objects.all())))
    if error is not None and isinstance(error, (*refusals(), ValueError)):
        counts["refused"] = counts.get("refused", 0) + 1
        assert before is None or rows_left() == before, text
        return
    after = rows_left() if writes else None
    if writes:
        write(before)
    wanted, other = answer(
        lambda: end(There(), made(plain, plain.Photo.objects.using(PLAIN).all()))
    )
    if error is not None or other is not None:
        assert type(error).__name__ == type(other).__name__, f"{text}: {error!r}, plain {other!r}"
        assert isinstance(error, ObjectDoesNotExist) or "more than one" in str(error) or other, text
    elif writes:
        assert (seen(found), after) == (seen(wanted), rows_left()), text
    else:
        left, right = seen(found), seen(wanted)
        if isinstance(left, list) and not (query.is_ordered or name in ("each of all", "by IDs")):
            left, right = sorted(left, key=str), sorted(right, key=str)
            if name in ("all", "slice", "slice of all"):
                left, right = len(left), len(right)  # Which rows these are is open.
        if not (name == "first" and not query.is_ordered):
            assert left == right, f"{text}: {left}, plain {right}"
        check_places(found, text)
    if writes:
        write(before)
    counts["equal"] = counts.get("equal", 0) + 1


def check_places(found, text):
    """Each object knows the shard of its own key."""
    from django.db.models import Model

    for one in found if isinstance(found, list) else [found]:
        if isinstance(one, Model) and "user_id" in one.__dict__:
            assert one._state.db == f"shard-{one.user_id % 16}", text
            related = one._state.fields_cache.get("album")
            assert related is None or related._state.db == one._state.db, text


@pytest.mark.parametrize("unrouted", ["refuse", "log"])
def test_answers_are_those_of_plain_django(old, m, plain, unrouted):
    old.configure(f'unrouted = "{unrouted}"\n')
    counts, seed, end = {}, SEED, time.monotonic() + SECONDS / 2
    with used(old):
        while time.monotonic() < end:
            if seed % 40 == SEED % 40:
                fill(random.Random(seed))
            compare(seed, m, plain, counts)
            seed += 1
    print(f"seeds {SEED} to {seed - 1}: {counts}")
    assert counts["equal"]
    assert counts["refused"]
