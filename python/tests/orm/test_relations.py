"""Related rows are looked for on the shards where they are, whichever way the relation is followed."""

import pytest

pytestmark = pytest.mark.usefixtures("db")

U, V = 3, 12


@pytest.fixture
def m(world):
    from photos import models

    return models


@pytest.fixture
def p(world):
    import pgshard.django

    return pgshard.django


@pytest.fixture
def ledger(world):
    from ledger import models

    yield models
    models.Bill.objects.across_shards().run(lambda rows: rows.delete()).all()
    models.Pointer.objects.all().delete()
    models.Account.objects.all().delete()


@pytest.fixture
def users(world):
    """Four users, whose rows are on as many shards."""
    from django.contrib.auth.models import User

    yield [User.objects.create(username=f"relations {n}") for n in range(4)]
    User.objects.filter(username__startswith="relations ").delete()


def test_a_key_that_refers_to_another_column_than_the_primary_key(ledger, p):
    account = ledger.Account.objects.create(pk=5_000_000 + U, number=V)
    bill = ledger.Bill.objects.create(account=account, text="x")
    assert bill._state.db == "shard-12"
    assert account.bills.get() == bill
    for found in (
        ledger.Bill.objects.filter(account=account),
        ledger.Bill.objects.filter(account=V),
        ledger.Bill.objects.filter(account_id=V),
        ledger.Bill.objects.filter(account__number=V),
        ledger.Bill.objects.filter(account__in=[account]),
        ledger.Bill.objects.for_key(account),
        ledger.Bill.objects.for_key(V),
    ):
        assert found.get() == bill
    assert ledger.Bill.objects.get_or_create(account=account, text="x") == (bill, False)
    assert ledger.Bill.objects.filter(account=account).update(account=account) == 1
    with pytest.raises(p.WrongShard):
        ledger.Bill.objects.filter(account=account).update(account=ledger.Account.objects.create(number=U))
    # Not the key: it is another column of a table that is not there.
    with pytest.raises((p.NoShard, p.WrongShard)):
        ledger.Bill.objects.get(account__pk=account.pk)


# ----------------------------------------------------------------------------------------------------- lazy objects


def test_the_user_of_a_request_is_a_user(m, p, users):
    from django.contrib.admin.models import LogEntry
    from django.utils.functional import SimpleLazyObject

    def lazy():
        return SimpleLazyObject(lambda: type(users[0]).objects.get(pk=users[0].pk))

    note = m.Note.objects.create(user=lazy(), text="a")
    assert note._state.db == f"shard-{users[0].pk % 16}"
    made = m.Note(user=lazy(), text="b")
    made.save()
    made.user = lazy()
    made.save()
    assert m.Note.objects.filter(user=lazy()).count() == m.Note.objects.filter(user__in=[lazy()]).count() == 2
    assert m.Note.objects.get_or_create(user=lazy(), text="a") == (note, False)
    assert m.Note.objects.for_key(lazy()).count() == 2
    assert lazy().notes.count() == 2
    assert lazy().notes.create(text="c").user == users[0]
    assert LogEntry(user=lazy()).user == users[0]
    found = SimpleLazyObject(lambda: m.Photo.objects.create(user_id=U, title="x"))
    assert found.tags.count() == 0
    assert p.routing.alias_of_instance(found) == "shard-3"


# ------------------------------------------------------------------------------------------------------ other routers


def test_other_routers_say_where_rows_elsewhere_are(m, p, monkeypatch, users):
    from django.contrib.auth.models import User
    from django.db import router

    asked = []

    class Users:
        def db_for_read(self, model, **hints):
            asked.append((model, hints))
            return "default" if model is User else None

        db_for_write = db_for_read

    note = m.Note.objects.create(user=users[0])
    monkeypatch.setattr(router, "routers", [p.ShardRouter(), Users()])
    note = m.Note.objects.get(pk=note.pk)
    assert note.user == users[0]
    assert asked == [(User, {})]
    asked.clear()
    (note,) = m.Note.objects.for_key(users[0]).prefetch_related("user")
    assert note.user == users[0]
    assert (User, {}) in asked
