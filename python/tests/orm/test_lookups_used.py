"""Look-ups in what projects do besides saving and finding rows: values of all kinds, the admin,
fixtures, asynchronous code, subqueries; and a look-up that is introduced to a table in use. One
UNIQUE constraint of PostgreSQL says what is right."""

import asyncio
import contextlib
import enum
import json
import pickle
import threading
import uuid

import pytest
from django.db import models
from lookup_fixtures import db, email, integrity, key, mm, next_key, other

__all__ = ["db", "email", "key", "mm", "other"]

pytestmark = pytest.mark.usefixtures("db")


class Word(str, enum.Enum):
    """Not `models.TextChoices`: its `str` is not the value."""

    RED = "red"


@contextlib.contextmanager
def older(monkeypatch, model):
    """Within it, the model has no look-ups, as in an application that does not claim yet."""
    from pgshard.django.lookups import lookups_of_rows

    lookups_of_rows(model)
    with monkeypatch.context() as patch:
        patch.setattr(model, "_pgshard_lookups", ())
        patch.setattr(model, "_pgshard_row_lookups", ())
        yield


def test_an_older_application_writes_until_the_look_up_enforces(world, mm, p, monkeypatch):
    from django.core.exceptions import ValidationError
    from django.db import DatabaseError

    from pgshard import LookupNotComplete

    def badge(code, **more):
        return mm.Badge.objects.create(user_id=next_key(), code=f"{code} {word}", **more)

    word = uuid.uuid4().hex
    with older(monkeypatch, mm.Badge):
        first, same = badge("first"), badge("same")
        badge("same").delete()
        same.code = f"changed {word}"
        same.save()
    new = badge("new")
    with integrity():
        badge("new")
    for code in ("first", "changed", "new", "nobody"):
        rows = mm.Badge.objects.filter(code=f"{code} {word}")
        for find in (rows.get, rows.exists, rows.count, lambda rows=rows: rows.update(code="x")):
            with pytest.raises(LookupNotComplete, match=r"badges.*recording.*--step enforce"):
                find()
    with pytest.raises(LookupNotComplete):
        mm.Badge.objects.get_or_create(code=f"first {word}", defaults={"user_id": next_key()})
    # A form leaves it to the server, of other shards; the row's own shard has the constraint.
    mm.Badge(user_id=next_key(), code=f"first {word}").full_clean()
    with pytest.raises(ValidationError, match="already exists"):
        mm.Badge(user_id=first.user_id, code=f"first {word}").full_clean()
    assert mm.Badge.objects.filter(user_id=first.user_id, code=f"first {word}").get() == first

    # After a build, nobody else claims what the older application has written.
    world.run("lookups", "build", "badges")
    with integrity():
        badge("first")
    with older(monkeypatch, mm.Badge):
        late = badge("late")
    status = json.loads(world.run("lookups", "status", "--json", may_fail=True).stdout)
    assert status["lookups"]["badges"]["state"] == "recording"
    assert status["lookups"]["badges"]["recorded"] == 1
    world.run("lookups", "build", "badges")
    text = world.run("lookups", "migration", "badges", "--step", "enforce").stdout
    folder = world.folder / "migrations"
    last = max(int(file.name.partition("_")[0]) for file in folder.iterdir())
    (folder / f"{last + 1:04d}_badges_enforced.sql").write_text(text)
    world.run("migrate", "up")
    with older(monkeypatch, mm.Badge), pytest.raises(DatabaseError, match="was not claimed"):
        badge("too late")
    world.run("lookups", "build", "badges")
    for row in (first, same, new, late):
        assert mm.Badge.objects.get(code=row.code) == row
    assert not mm.Badge.objects.filter(code=f"same {word}").exists()
    with pytest.raises(ValidationError, match="already exists"):
        mm.Badge(user_id=next_key(), code=f"first {word}").full_clean()
    assert mm.Badge.objects.get_or_create(code=late.code) == (late, False)


VALUES = [
    "",
    " ",
    "a",
    "a ",
    " a",
    "A",
    "é",
    "e\u0301",
    "É",
    "ß",
    "ss",
    "ﬁ",
    "fi",
    "İ",
    "ı",
    "🙂",
    "%_\\",
    "'\"",
    "{shard}",
    "%s",
    "line\nbreak",
    "\t",
    "\u200b",
    "x" * 300,
    "1",
    "01",
    "NULL",
]


def test_texts_are_as_different_as_for_unique(world, mm):
    mark = uuid.uuid4().hex
    values = [one + mark for one in VALUES] + [mark + one for one in VALUES]
    with world.connect("db1") as judge:
        judge.execute("CREATE TEMPORARY TABLE judge (code text UNIQUE)")
        different = sum(
            judge.execute("INSERT INTO judge VALUES (%s) ON CONFLICT DO NOTHING", [one]).rowcount
            for one in values
        )
    rows = {}
    for one in values:
        row, created = mm.Coupon.objects.get_or_create(code=one, defaults={"user_id": next_key()})
        assert created == (one not in rows)
        rows[one] = row
    assert len(rows) == different
    for one, row in rows.items():
        assert mm.Coupon.objects.get(code=one) == row
        with integrity():
            mm.Coupon.objects.create(user_id=next_key(), code=one)
    found = mm.Coupon.objects.filter(code__in=[*values, *values])
    assert {row.code for row in found} == set(rows)
    assert found.count() == len(rows)


def test_a_text_of_any_length_is_a_value_if_the_constraint_takes_it(mm, key, other):
    from django.db import DatabaseError

    long = uuid.uuid4().hex * 3000
    coupon = mm.Coupon.objects.create(user_id=key, code=long)
    assert mm.Coupon.objects.get(code=long) == coupon
    with integrity():
        mm.Coupon.objects.create(user_id=other, code=long)
    # The server's own index has a limit.
    text = "".join(uuid.uuid4().hex for _ in range(1000))
    with pytest.raises(DatabaseError, match="index row"):
        mm.Coupon.objects.create(user_id=key, code=text)
    assert not mm.Coupon.objects.filter(code=text).exists()


def test_nulls_belong_to_nobody(mm, p, key, other):
    first, second = (mm.Coupon.objects.create(user_id=one) for one in (key, other))
    for lookup in ({"code": None}, {"code__isnull": True}, {"code__exact": None}):
        with pytest.raises(p.NoShard):
            mm.Coupon.objects.filter(**lookup).exists()
    assert mm.Coupon.objects.filter(code=None, user_id=key).get() == first
    second.number = 5_000_000 + key
    second.save()
    mm.Coupon.objects.filter(number=second.number).update(number=None)
    first.number = second.number
    first.save()
    assert mm.Coupon.objects.get(number=first.number) == first


def test_what_is_a_text_or_a_number_in_django_is_one_here(mm, p, key):
    from django.db import DataError, models
    from django.utils.safestring import mark_safe
    from django.utils.translation import gettext_lazy

    class Choice(models.TextChoices):
        BLUE = "blue"

    for value in (Word.RED, Choice.BLUE, mark_safe("safe"), gettext_lazy("lazy")):
        coupon, _ = mm.Coupon.objects.get_or_create(code=value, defaults={"user_id": next_key()})
        for one in (value, "".join(value)):
            assert mm.Coupon.objects.get(code=one) == coupon
            assert list(mm.Coupon.objects.filter(code__in=[one])) == [coupon]
            with integrity():
                mm.Coupon.objects.create(user_id=next_key(), code=one)
    number = 7_000_000 + key
    coupon = mm.Coupon.objects.create(user_id=key, number=str(number))
    for one in (number, str(number), float(number)):
        assert mm.Coupon.objects.get(number=one) == coupon
    with pytest.raises(ValueError, match="expected a number"):
        mm.Coupon.objects.filter(number="x")
    assert not mm.Coupon.objects.filter(number=2**63).exists()
    with pytest.raises(TypeError, match="integers of 64 bits"):
        mm.Coupon.objects.create(user_id=key, number=2**63)
    with pytest.raises((ValueError, DataError), match="NUL"):
        mm.Coupon.objects.create(user_id=key, code="a\0")


def test_lists_of_thousands_of_values_of_any_iterable(mm, email):
    names = [f"{number}.{email}" for number in range(5000)]
    some = [mm.Member(id=next_key(), email=one) for one in names[::250]]
    mm.Member.objects.bulk_create(some)
    for values in (names, names + names, set(names), dict.fromkeys(names), iter(names)):
        rows = mm.Member.objects.filter(email__in=values)
        assert sorted(row.id for row in rows) == [one.id for one in some]
    rows = mm.Member.objects.filter(email__in=dict.fromkeys(names).keys())
    assert (rows.count(), rows.exists()) == (20, True)
    assert len(mm.Member.objects.in_bulk(names + names, field_name="email")) == 20
    assert not mm.Member.objects.filter(email__in=[]).exists()


def test_iexact_is_about_a_to_z_wherever_the_row_is(mm, p):
    word = uuid.uuid4().hex
    rows = {}
    for number in range(4):
        one = next_key()
        # The first two are on one shard.
        for user, each in ((one, "Éva"), (one + 16_000_000, "éva"), (one + 1, "EVA")):
            value = f"{each} {number} {word}"
            rows[value] = mm.Handle.objects.create(user_id=user, word=value)
    for value, row in rows.items():
        written = value.swapcase() if value.startswith("EVA") else value.replace("va", "VA")
        found = mm.Handle.objects.filter(word__iexact=written)
        assert [one.word for one in found] == [value], written
        assert found.get() == row
        assert mm.Handle.objects.get_or_create(word__iexact=written) == (row, False)
    with pytest.raises(p.NoShard):
        mm.Member.objects.get(email__iexact="ada@example.com")


def test_iexact_uses_the_index_of_the_look_up(mm, key):
    from django.db import connections, transaction

    handle = mm.Handle.objects.create(user_id=key, word=uuid.uuid4().hex)
    rows = mm.Handle.objects.filter(word__iexact=handle.word.upper())
    with transaction.atomic(using=handle._state.db):
        with connections[handle._state.db].cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
        assert "pgshard_lookup_words" in rows.explain()


def test_parts_of_objects_are_saved_as_a_whole_one_is(mm, key, email, other):
    mm.Member.objects.create(id=key, email=email, name="Ada")
    mm.Member.objects.create(id=other, email=f"o{email}")
    for partly in (
        mm.Member.objects.only("name").get(id=key),
        mm.Member.objects.defer("email").get(id=key),
    ):
        partly.email = f"o{email}"
        with integrity():
            partly.save()
        partly.email = f"x{email}"
        partly.save()
        assert mm.Member.objects.get(email=f"x{email}").name == "Ada"
        partly = mm.Member.objects.only("name").get(email=f"x{email}")
        assert partly.email == f"x{email}"
        partly.email = email
        partly.save(update_fields={"email"})
        assert mm.Member.objects.get(email=email).id == key
    read = mm.Member.objects.get(id=key)
    mm.Member.objects.filter(id=key).update(email=f"y{email}")
    read.refresh_from_db(fields=["email"])
    assert read.email == f"y{email}"
    read.save()
    read.email = "not saved"
    read.refresh_from_db()
    read.save(update_fields=["email", "name"])
    assert mm.Member.objects.get(email=f"y{email}") == read


class LowerField(models.TextField):
    """A text that is saved in small letters."""

    def pre_save(self, instance, add):
        value = getattr(instance, self.attname)
        return value if value is None else value.lower()


def test_a_field_that_changes_its_value_when_it_is_saved_claims_that_value(
    mm, key, other, email, monkeypatch
):
    from django.core.exceptions import ValidationError

    monkeypatch.setattr(mm.Coupon._meta.get_field("code"), "__class__", LowerField)
    coupon = mm.Coupon.objects.create(user_id=key, code=f"A{email}")
    assert mm.Coupon.objects.get(code=f"a{email}") == coupon
    with integrity():
        mm.Coupon.objects.create(user_id=other, code=f"A{email}")
    with pytest.raises(ValidationError, match="already exists"):
        mm.Coupon(user_id=other, code=f"A{email}").full_clean()
    mm.Coupon.objects.bulk_create([mm.Coupon(user_id=other, code=f"B{email}")])
    coupon.code = f"B{email}"
    with integrity():
        coupon.save()
    coupon.code = f"C{email}"
    coupon.save()
    coupon.save()
    assert mm.Coupon.objects.get(code=f"c{email}") == coupon


def test_a_copy_of_a_row_is_another_row(mm, key, other, email):
    member = mm.Member.objects.create(id=key, email=email)
    member.pk, member._state.adding, member._state.db = other, True, None
    with integrity():
        member.save()
    member.email = f"x{email}"
    member.save()
    assert [mm.Member.objects.get(email=one).id for one in (email, member.email)] == [key, other]


def test_a_proxy_is_the_model(mm, key, other, email):
    member = mm.SameMember.objects.create(id=key, email=email)
    assert mm.Member.objects.get(email=email).id == key
    assert mm.SameMember.objects.get(email=email) == member
    for model in (mm.Member, mm.SameMember):
        with integrity():
            model.objects.create(id=other, email=email)
    member.email = f"x{email}"
    member.save()
    assert mm.SameMember.objects.filter(email=f"x{email}").update(email=f"y{email}") == 1
    assert mm.Member.objects.get(email=f"y{email}").id == key


def test_two_look_ups_of_a_row_are_claimed_together(mm, key, other, email):
    number = 9_000_000 + key
    first = mm.Coupon.objects.create(user_id=key, number=number, code=email)
    with integrity() as taken:
        mm.Coupon.objects.create(user_id=other, number=number + 10_000_000, code=email)
    assert taken.value.lookup == "codes"
    with integrity() as taken:
        mm.Coupon.objects.create(user_id=other, number=number, code=f"x{email}")
    assert taken.value.lookup == "numbers"
    # What was claimed before the conflict is free.
    second = mm.Coupon.objects.create(
        user_id=next_key(), number=number + 10_000_000, code=f"x{email}"
    )
    assert mm.Coupon.objects.get(number=number, code=email) == first
    assert not mm.Coupon.objects.filter(number=number, code=second.code).exists()
    assert mm.Coupon.objects.filter(number=number).filter(code=email).get() == first
    first.number, first.code = None, None
    first.save()
    second.number, second.code = number, email
    second.save()
    assert mm.Coupon.objects.get(code=email) == mm.Coupon.objects.get(number=number) == second


def test_a_second_row_of_a_key_cannot_have_the_keys_value(mm, key, email):
    from django.db import IntegrityError

    first = mm.Subscriber.objects.create(user_id=key, email=email)
    for write in (
        lambda: mm.Subscriber.objects.create(user_id=key, email=email),
        lambda: mm.Subscriber(user_id=key, email=email).save(),
        lambda: mm.Subscriber.objects.bulk_create([mm.Subscriber(user_id=key, email=email)]),
    ):
        with pytest.raises(IntegrityError):
            write()
    second = mm.Subscriber.objects.create(user_id=key, email=f"x{email}")
    second.email = email
    with pytest.raises(IntegrityError):
        second.save()
    with pytest.raises(IntegrityError):
        mm.Subscriber.objects.filter(pk=second.pk).update(email=email)
    assert mm.Subscriber.objects.get(email=email) == first
    first.save()
    first.delete()
    second.save()
    assert mm.Subscriber.objects.get(email=email) == second


def test_rows_are_locked_and_changed_in_a_transaction(mm, p, key, other, email):
    from django.db import IntegrityError, transaction

    mm.Member.objects.create(id=key, email=email)
    mm.Member.objects.create(id=other, email=f"o{email}")
    done = []

    def work():
        member = mm.Member.objects.select_for_update().get(email=email)
        member.email = f"o{email}"
        with pytest.raises(IntegrityError), transaction.atomic():
            member.save()
        member.email = f"x{email}"
        member.save()
        with pytest.raises(IntegrityError), transaction.atomic():
            mm.Member.objects.filter(email=f"x{email}").update(email=f"o{email}")
        transaction.on_commit(lambda: done.append(mm.Member.objects.get(email=f"x{email}").id))
        row, created = mm.Member.objects.update_or_create(
            id=key, defaults={"name": "Ada", "email": f"y{email}"}
        )
        row.email = f"x{email}"
        row.save()
        return created

    assert p.run_in_shard(key, work) is False
    assert done == [key]
    assert mm.Member.objects.get(email=f"x{email}").name == "Ada"
    assert not mm.Member.objects.filter(email__in=[email, f"y{email}"]).exists()


def test_rows_that_are_there_are_updated_by_bulk_create(mm, key, other, email):
    mm.Member.objects.create(id=key, email=email)
    mm.Member.objects.create(id=other, email=f"o{email}")
    how = {"update_conflicts": True, "unique_fields": ["id"], "update_fields": ["email", "name"]}
    third = next_key()
    rows = [mm.Member(id=key, email=f"x{email}", name="x"), mm.Member(id=third, email=email)]
    # The first row's former value is given up in the same call, in another transaction.
    with integrity():
        mm.Member.objects.bulk_create(rows, **how)
    rows[1].email = f"t{email}"
    mm.Member.objects.bulk_create(rows, batch_size=1, **how)
    assert mm.Member.objects.get(email=f"x{email}").id == key
    assert mm.Member.objects.get(email=f"t{email}").id == third
    assert not mm.Member.objects.filter(email=email).exists()
    with integrity():
        mm.Member.objects.bulk_create([mm.Member(id=key, email=f"o{email}")], **how)
    mm.Member.objects.bulk_create([mm.Member(id=other, email=email)], **how)
    assert mm.Member.objects.get(email=email).id == other


def test_asynchronous_code_writes_and_finds(mm, key, other, email):
    from asgiref.sync import sync_to_async

    from pgshard.django import release

    async def work():
        create = mm.Member.objects.acreate
        member = await create(id=key, email=email)
        with integrity():
            await create(id=other, email=email)
        assert await mm.Member.objects.aget(email=email) == member
        assert await mm.Member.objects.filter(email=email).aexists()
        found = await mm.Member.objects.aget_or_create(email=email, defaults={"id": other})
        assert found == (member, False)
        second, created = await mm.Member.objects.aupdate_or_create(
            email=f"x{email}", defaults={"id": other}
        )
        assert created
        second.email = email
        with integrity():
            await second.asave()
        rows = mm.Member.objects.filter(email__in=[email, f"x{email}"])
        assert {row.id async for row in rows} == {key, other}
        await member.adelete()
        await second.asave()
        found = await mm.Member.objects.aget(email=email)
        await sync_to_async(release)()
        return found

    assert asyncio.run(work()).id == other


def test_fixtures_are_loaded_with_claims(mm, p, key, other, email, tmp_path):
    from django.core.management import call_command
    from django.db import IntegrityError

    def load(*rows):
        path = tmp_path / "rows.json"
        for pk, value in rows:
            row = {"model": "members.member", "pk": pk, "fields": {"email": value, "name": "f"}}
            path.write_text(json.dumps([row]))
            call_command("loaddata", str(path), database=p.alias_of_key(pk), verbosity=0)

    for _ in range(2):
        load((key, email), (other, f"x{email}"))
        assert mm.Member.objects.get(email=email).id == key
    load((key, f"y{email}"))
    with pytest.raises(IntegrityError, match="belongs to key"):
        load((key, f"x{email}"))
    assert [mm.Member.objects.get(email=f"{one}{email}").id for one in "yx"] == [key, other]


def test_a_query_set_is_pickled_with_its_value(mm, key, email):
    member = mm.Member.objects.create(id=key, email=email)
    rows = mm.Member.objects.filter(email=email)
    again = mm.Member.objects.all()
    again.query = pickle.loads(pickle.dumps(rows.query))
    assert again.get() == member
    assert list(pickle.loads(pickle.dumps(rows))) == [member]


def test_a_part_of_a_query_does_not_look_on_another_shard(mm, p, key, other, email):
    from django.db.models import Exists, OuterRef

    mm.Member.objects.create(id=key, email=email)
    mm.Member.objects.create(id=other, email=f"x{email}")
    rows = mm.Member.objects.filter(email=email)
    asked = [
        lambda: mm.Member.objects.filter(id=other).filter(Exists(rows)).exists(),
        lambda: mm.Member.objects.filter(id=other).annotate(has=Exists(rows)).get(),
        lambda: mm.Member.objects.filter(id=other, email__in=rows.values("email")).exists(),
    ]
    for ask in asked:
        with pytest.raises(p.NoShard):
            ask()
        with p.shard_of(other), pytest.raises(p.NoShard, match="about rows on shard-"):
            ask()
        # Its own shard, and what no row has.
        with p.shard_of(other):
            mine = mm.Member.objects.filter(email=f"x{email}")
            assert mm.Member.objects.filter(id=other).filter(Exists(mine)).exists()
            none = mm.Member.objects.filter(email=f"n{email}")
            assert not mm.Member.objects.filter(id=other).filter(Exists(none)).exists()
    tied = mm.Member.objects.filter(email=email, id=OuterRef("id"))
    assert mm.Member.objects.filter(id=key).filter(Exists(tied)).exists()
    with p.shard_of(other):
        assert not mm.Member.objects.filter(id=other).filter(Exists(tied)).exists()


def test_aggregates_and_single_rows_of_a_value(mm, p, key, other, email):
    from django.db.models import Count, Max

    mm.Member.objects.create(id=key, email=email, name="a")
    mm.Member.objects.create(id=other, email=f"x{email}", name="b")
    rows = mm.Member.objects.filter(email=email)
    assert rows.aggregate(n=Count("id"), last=Max("name")) == {"n": 1, "last": "a"}
    assert (rows.earliest("name"), rows.latest("name")) == (rows.first(), rows.last())
    assert list(rows.iterator()) == list(rows.reverse()) == list(rows[:1]) == list(rows.distinct())
    assert rows.contains(rows.get())
    assert not rows.contains(mm.Member.objects.get(id=other))
    both = mm.Member.objects.filter(email__in=[email, f"x{email}"])
    assert [row.id for row in both.order_by("-name")] == [other, key]
    assert list(both.order_by("name").values_list("name", flat=True)) == ["a", "b"]
    assert next(iter(both.order_by("name").reverse())).id == other
    assert len(both) == 2
    with pytest.raises(mm.Member.MultipleObjectsReturned):
        both.get()
    for refused in (lambda: both.aggregate(n=Count("id")), lambda: list(both.iterator())):
        with pytest.raises(p.NoShard, match="on 2 shards"):
            refused()


@pytest.fixture
def client(world):
    from django.contrib.auth.models import User
    from django.test import Client

    root, _ = User.objects.get_or_create(username="root", is_staff=True, is_superuser=True)
    made = Client()
    made.force_login(root)
    return made


MEMBERS = "/admin/members/member/"


def test_the_admin_shows_a_value_that_is_taken(mm, client, key, other, email):
    mm.Member.objects.create(id=key, email=email)
    member = mm.Member.objects.create(id=other, email=f"x{email}")
    taken = "Member with this Email already exists."
    new = next_key()
    for address, data in (("add/", {"id": new}), (f"{other}/change/", {"id": other})):
        answer = client.post(f"{MEMBERS}{address}", {**data, "email": email, "name": "a"})
        assert taken in answer.content.decode()
        data |= {"email": f"{data['id']}{email}", "name": "a"}
        assert client.post(f"{MEMBERS}{address}", data).status_code == 302
    assert mm.Member.objects.get(email=email).id == key
    assert mm.Member.objects.get(email=f"{new}{email}").id == new
    assert mm.Member.objects.get(email=f"{other}{email}") == member


def test_the_admin_lists_the_row_of_a_value(mm, client, key, other, email):
    member = mm.Member.objects.create(id=key, email=email, name="Ada")
    mm.Member.objects.create(id=other, email=f"x{email}")

    def listed(**asked):
        shown = client.get(MEMBERS, asked).context_data["cl"]
        return list(shown.result_list)

    for asked in ({"q": email}, {"email": email}, {"email__exact": email}, {"q": str(key)}):
        assert listed(**asked) == [member]
    for asked in ({"q": f"n{email}"}, {"email": f"n{email}"}, {}):
        assert listed(**asked) == []
    assert b"Name a id or email: it says on which shard" in client.get(MEMBERS).content
    # A value that the row had before leads to no row.
    mm.Member.objects.filter(id=key).update(email=None)
    assert listed(q=email) == listed(email=email) == []


def test_a_form_set_finds_a_value_that_it_has_twice(mm, key, other, email):
    from django.forms import modelformset_factory

    forms = modelformset_factory(mm.Member, fields=["id", "email", "name"], extra=2)
    first, second = next_key(), next_key()

    def filled(one, two):
        data = {"form-TOTAL_FORMS": 2, "form-INITIAL_FORMS": 0}
        for at, (pk, value) in enumerate(((first, one), (second, two))):
            data |= {f"form-{at}-id": pk, f"form-{at}-email": value, f"form-{at}-name": "x"}
        return forms(data, queryset=mm.Member.objects.none())

    twice = filled(email, email)
    assert not twice.is_valid()
    assert "duplicate data for email" in str(twice.non_form_errors())
    good = filled(email, f"x{email}")
    assert good.is_valid(), good.errors
    good.save()
    assert mm.Member.objects.get(email=f"x{email}").id == second


def test_constraints_of_look_ups_are_errors_of_forms_and_serializers_once(mm, key, email):
    import datetime

    from django.forms import modelform_factory
    from rest_framework import serializers

    day, number = datetime.date(2026, 11, 29), uuid.uuid4()
    mm.Card.objects.create(user_id=key, number=number, since=day)
    mm.Coupon.objects.create(user_id=key, code=email)
    card, coupon = {"number": number, "since": day}, {"code": email}
    cards = "Card with this Number and Since already exists."
    coupons = "Coupon with this Code already exists."
    for user_id in (key, next_key()):
        for model, given, where, message in (
            (mm.Card, card, "__all__", cards),
            (mm.Coupon, coupon, "code", coupons),
        ):
            fields = ["user_id", *given]
            form = modelform_factory(model, fields=fields)({"user_id": user_id, **given})
            assert form.errors == {where: [message]}
            meta = type("Meta", (), {"model": model, "fields": fields})
            made = type("Made", (serializers.ModelSerializer,), {"Meta": meta})
            assert not made(data={"user_id": user_id, **given}).is_valid()
            other = {name: uuid.uuid4() if name == "number" else day for name in given}
            other = other if model is mm.Card else {"code": f"x{email}"}
            assert made(data={"user_id": user_id, **other}).is_valid()
            assert modelform_factory(model, fields=fields)({"user_id": user_id, **other}).is_valid()


def test_a_value_is_looked_up_once_for_each_query(mm, key, email, monkeypatch):
    from pgshard import Lookups

    calls, find_all = [], Lookups.find_all
    monkeypatch.setattr(
        Lookups, "find_all", lambda self, *args: [calls.append(args), find_all(self, *args)][1]
    )
    member = mm.Member.objects.create(id=key, email=email)
    rows = mm.Member.objects.filter(email=email)
    for query in (
        lambda: mm.Member.objects.get(email=email),
        rows.get,
        rows.first,
        rows.last,
        rows.exists,
        rows.count,
        lambda: list(rows.all()),
        lambda: list(rows.iterator()),
        lambda: rows.values_list("id", flat=True)[0],
        lambda: rows.update(name="x"),
        lambda: rows.contains(member),
        lambda: mm.Member.objects.get_or_create(email=email),
        rows.delete,
    ):
        calls.clear()
        query()
        assert len(calls) <= 1, query


def test_a_value_of_another_threads_open_transaction_is_waited_for(mm, p, key, other, email):
    from django.db import transaction

    began, end, errors = threading.Event(), threading.Event(), []

    def hold():
        from pgshard.django import release

        try:
            with transaction.atomic(using=p.alias_of_key(key)):
                mm.Member.objects.create(id=key, email=email)
                began.set()
                end.wait(10)
                raise RuntimeError
        except RuntimeError:
            pass
        except Exception as error:  # noqa: BLE001 # the test shows any error
            errors.append(error)
        finally:
            began.set()
            release()

    thread = threading.Thread(target=hold)
    thread.start()
    began.wait(10)
    threading.Timer(0.5, end.set).start()
    member = mm.Member.objects.create(id=other, email=email)
    thread.join()
    assert errors == []
    assert mm.Member.objects.get(email=email) == member


def test_checks_refuse_what_a_look_up_cannot_keep(mm, monkeypatch):
    from django.db import models

    from pgshard.django import checks

    def ids(constraint):
        monkeypatch.setattr(mm.Member._meta, "constraints", [constraint])
        monkeypatch.setattr(mm.Member._meta.get_field("email"), "unique", False)
        monkeypatch.delitem(mm.Member._meta.__dict__, "total_unique_constraints", raising=False)
        return [one.id for one in checks._check_lookups(mm.Member)]

    def unique(**more):
        return models.UniqueConstraint(fields=["email"], name="x", **more)

    try:
        assert ids(unique()) == []
        assert ids(unique(include=["name"])) == []
        for more in (
            {"condition": models.Q(name="x")},
            {"nulls_distinct": False},
            {"deferrable": models.Deferrable.DEFERRED},
        ):
            assert ids(unique(**more)) == ["pgshard.E021"], more
        monkeypatch.setattr(mm.Member._meta.get_field("email"), "generated", True, raising=False)
        assert ids(unique()) == ["pgshard.E022"]
    finally:
        mm.Member._meta.__dict__.pop("total_unique_constraints", None)
