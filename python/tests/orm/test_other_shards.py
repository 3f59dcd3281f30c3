"""Rows of another shard are never shown, whatever their primary keys are made of, and a transaction
is of the database that the program means."""

import uuid
import warnings
from functools import partial
from io import StringIO

import pytest

pytestmark = pytest.mark.usefixtures("db")

U, V, W = 3, 12, 19  # The last one's rows are on the first one's shard.


@pytest.fixture
def k(world):
    """The models of all kinds of keys, without rows. Each shard numbers its rows from one."""
    from django.apps import apps
    from django.db import connections
    from kinds import models

    from pgshard.django.sharded import is_sharded

    def clear():
        found = [model for model in apps.get_app_config("kinds").get_models() if is_sharded(model)]
        names = ", ".join(f"{{shard}}.{model._meta.db_table}" for model in found)
        for user in (U, V):
            with connections[f"shard-{user}"].cursor() as cursor:
                cursor.execute(f"TRUNCATE {names} RESTART IDENTITY CASCADE")
        models.Owner.objects.all()._raw_delete("default")

    clear()
    yield models
    clear()


def pairs(k):
    """Two rows of each kind with the same primary key on two shards."""
    same = uuid.UUID(int=7)
    nums = [k.Num.objects.create(user_id=user, name=f"num {user}") for user in (U, V)]
    uids = [k.Uid.objects.create(id=same, user_id=user, name=f"uid {user}") for user in (U, V)]
    givens = [k.Given.objects.create(id=7, user_id=user, name=f"given {user}") for user in (U, V)]
    assert all(a.pk == b.pk for a, b in (nums, uids, givens))
    return {"Num": nums, "Uid": uids, "Given": givens}


def test_rows_of_two_shards_with_the_same_primary_key_are_two_rows(k, p):
    from django.db.models import Prefetch, prefetch_related_objects

    for kind, (mine, others) in pairs(k).items():
        ref, one = getattr(k, f"Ref{kind}"), getattr(k, f"One{kind}")
        assert mine != others
        assert len({mine, others}) == 2
        assert others not in [mine]
        refs = [ref.objects.create(user_id=x.user_id, name=x.name, to=x) for x in (mine, others)]
        ones = [one.objects.create(user_id=x.user_id, name=x.name, to=x) for x in (mine, others)]
        assert refs[0].pk != refs[1].pk
        for x, its in zip((mine, others), refs):
            x.refresh_from_db()
            assert x.refs.get() == its
            assert ref.objects.filter(to=x).get() == its
            assert ref.objects.filter(to__in=[x]).get() == its
            assert ref.objects.for_key(x).get() == its
            assert type(its).objects.get(pk=its.pk).to == x
            its.many.add(x)
        for lookups in (
            ["refs__to", "one", f"bags{kind.lower()}"],
            [Prefetch("refs", ref.objects.select_related("to")), "one__to"],
        ):
            some = [type(x).objects.for_key(x.user_id).get() for x in (mine, others)]
            prefetch_related_objects(some, *lookups)
            for x, its, only in zip(some, refs, ones):
                assert list(x.refs.all()) == [its]
                assert x.refs.all()[0].to == x
                assert x.one == only
        found = [ref.objects.get(pk=its.pk) for its in refs]
        prefetch_related_objects(found, "to", "many")
        assert [its.to for its in found] == [mine, others]
        assert [list(its.many.all()) for its in found] == [[mine], [others]]
        # A query set that is on one of the shards.
        some = [type(x).objects.for_key(x.user_id).get() for x in (mine, others)]
        prefetch_related_objects(some, Prefetch("refs", ref.objects.for_key(V)))
        assert [list(x.refs.all()) for x in some] == [[], [refs[1]]]
        rows = type(mine).objects
        assert rows.for_key(U).contains(mine)
        assert not rows.for_key(U).contains(others)
        assert rows.contains(others)


def attempts(ref, one, own, its, mine, others):
    """Calls that would relate a row of the first shard to an object of another."""
    from django.db.models import Q

    def assign():
        own.to = others

    def late():
        made = ref(to=others, name="z")
        made.user_id = U
        made.save()

    rows = ref.objects
    return (
        assign,
        late,
        lambda: rows.create(user_id=U, name="z", to=others),
        lambda: one.objects.create(user_id=U, name="z", to=others),
        lambda: rows.bulk_create([ref(user_id=U, name="z", to=others)]),
        lambda: rows.get_or_create(user_id=U, name="z", to=others),
        lambda: rows.update_or_create(user_id=U, name="x", defaults={"to": others}),
        lambda: others.refs.create(user_id=U, name="z"),
        lambda: rows.filter(user_id=U).update(to=others),
        lambda: own.many.add(others),
        lambda: own.many.remove(others),
        lambda: own.many.set([others]),
        lambda: mine.refs.add(its),
        lambda: mine.refs.set([its]),
        lambda: list(rows.filter(user_id=U).exclude(to=others)),
        lambda: list(rows.filter(Q(to=others) | Q(name="x"), user_id=U)),
        lambda: list(rows.filter(user_id=U, to__in=[mine, others])),
        lambda: list(rows.filter(user_id=U).exclude(many=others)),
    )


def test_an_object_of_another_shard_is_refused_before_anything_is_sent(k, p):
    for kind, (mine, others) in pairs(k).items():
        ref, one = getattr(k, f"Ref{kind}"), getattr(k, f"One{kind}")
        own = ref.objects.create(user_id=U, name="x", to=mine)
        own.many.add(mine)
        its = ref.objects.create(user_id=V, name="y", to=others)

        for number, wrong in enumerate(attempts(ref, one, own, its, mine, others)):
            with pytest.raises(p.WrongShard):
                print(number, wrong())
        own.refresh_from_db()
        assert own.to == mine
        assert list(own.many.all()) == [mine]
        assert ref.objects.for_key(U).count() == ref.objects.for_key(V).count() == 1
        # What can have no row is empty, as with one database.
        for none in (
            ref.objects.filter(user_id=U, to=others),
            ref.objects.filter(user_id=U).filter(many=others),
            ref.objects.filter(to=others, user_id=U),
        ):
            assert not none.exists()
            assert none.update(name="w") == 0
            assert none.delete() == (0, {})


def test_generic_references_lead_to_the_row_of_the_same_shard(k, p):
    from django.db.models import prefetch_related_objects

    nums = pairs(k)["Num"]
    mades = [k.Made.objects.create(user_id=user, name="made") for user in (U, V)]
    remarks = [
        k.Remark.objects.create(user_id=x.user_id, name=x.name, about=x) for x in (*nums, *mades)
    ]
    assert [x.remarks.get() for x in (*nums, *mades)] == remarks
    found = [k.Remark.objects.get(pk=one.pk) for one in remarks]
    assert [one.about for one in found] == [*nums, *mades]
    found = [k.Remark.objects.get(pk=one.pk) for one in remarks]
    with p.shard_of(V):
        prefetch_related_objects(found, "about")
    assert [one.about for one in found] == [*nums, *mades]
    with pytest.raises(p.WrongShard):
        remarks[0].about = nums[1]
    with pytest.raises(p.WrongShard):
        k.Remark.objects.create(user_id=U, name="x", about=nums[1])
    # Its `remarks` would only look on its own shard.
    with pytest.raises(p.WrongShard):
        k.Remark.objects.create(user_id=U, name="x", about=mades[1])


def test_an_object_stands_for_its_own_shard_and_never_for_a_key(k, m, p):
    photos = [m.Photo.objects.create(user_id=user, title="x") for user in range(1, 40)]
    for photo in (*photos, k.Num.objects.create(user_id=V, name="x")):
        where = photo._state.db
        with p.shard_of(photo) as chosen:
            assert chosen == where
        assert p.run_in_shard(photo, p.routing.chosen) == where
        assert type(photo).objects.for_key(photo).db == where
        assert p.alias_of_key(photo) == where
        assert p.shard_of_key(photo) == p.shard_of_alias(where)
    assert p.alias_of_key(m.Photo(user_id=V)) == "shard-12"
    for wrong in (p.shard_of_key, m.Photo.objects.for_key, lambda one: p.run_in_shard(one, list)):
        with pytest.raises(p.NoShard, match="neither a key nor an ID"):
            wrong(m.Photo(title="x"))


# ----------------------------------------------------------------------------------- transactions


def test_atomic_without_a_name_is_of_the_chosen_shard(m, p):
    from django.db import connections, transaction

    def undone():
        m.Album.objects.create(user_id=U, name="kept")
        try:
            with transaction.atomic():
                m.Album.objects.create(user_id=U, name="undone")
                raise KeyError
        except KeyError:
            pass
        sid = transaction.savepoint()
        m.Album.objects.create(user_id=U, name="undone")
        transaction.savepoint_rollback(sid)
        with transaction.atomic():
            m.Album.objects.create(user_id=U, name="undone")
            transaction.set_rollback(True)
        assert transaction.get_connection() is connections["shard-3"]

    def names():
        return sorted(m.Album.objects.for_key(U).values_list("name", flat=True))

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        p.run_in_shard(U, undone)
    assert names() == ["kept"]

    def locked():
        with transaction.atomic():
            m.Album.objects.create(user_id=U, name="undone")
            list(m.Album.objects.select_for_update())
            raise KeyError

    with p.shard_of(U), pytest.raises(KeyError):
        locked()
    assert names() == ["kept"]
    assert transaction.get_connection() is connections["default"]
    with p.shard_of(U), transaction.atomic(using="default"):
        assert connections["default"].in_atomic_block
        assert not connections["shard-3"].in_atomic_block


def test_a_decorated_function_is_in_a_transaction_of_the_chosen_shard(m, p):
    from django.db import connections, transaction

    @transaction.atomic
    def bare(fail):
        where = transaction.get_connection()
        m.Album.objects.create(user_id=U, name="decorated")
        if fail:
            raise KeyError
        return where.alias, where.in_atomic_block

    def attempts(work):
        with pytest.raises(KeyError):
            work(True)
        assert not m.Album.objects.filter(user_id=U, name="decorated").exists()
        assert work(False) == ("shard-3", True)
        m.Album.objects.filter(user_id=U, name="decorated").delete()

    for work in (bare, transaction.atomic()(bare.__wrapped__)):
        p.run_in_shard(U, lambda work=work: attempts(work))
        with p.shard_of(U):
            attempts(work)
        with pytest.raises(KeyError), pytest.warns(p.UncoveredWriteWarning):
            work(True)
        m.Album.objects.filter(user_id=U, name="decorated").delete()

    @transaction.atomic(using="default")
    def named():
        return connections["default"].in_atomic_block, connections["shard-3"].in_atomic_block

    with p.shard_of(U):
        assert named() == (True, False)


def test_a_write_to_another_database_in_a_transaction_of_a_shard_is_reported(m, p):
    from django.db import connection, transaction
    from django.db.transaction import TransactionManagementError
    from django.test import override_settings

    write = partial(m.Category.objects.create, name="elsewhere")

    def outside():
        return write().delete()  # `work` is known to be of the shard.

    def within():
        with transaction.atomic():
            write()

    def named():
        with transaction.atomic(), transaction.atomic(using="default"):
            write().delete()

    with override_settings(PGSHARD_UNCOVERED_WRITES="error"):
        p.run_in_shard(U, outside)
        p.run_in_shard(U, named)
        for _ in range(2):
            with pytest.raises(TransactionManagementError, match="a write to default within"):
                p.run_in_shard(U, within)
        write().delete()
    assert connection.execute_wrappers == []
    with pytest.warns(p.UncoveredWriteWarning, match='atomic.using="default"') as said:
        p.run_in_shard(U, within)
    assert said[0].filename == __file__
    m.Category.objects.filter(name="elsewhere").delete()


def test_a_hook_without_a_name_runs_after_the_shard_has_committed(m, p):
    from django.db import connections, transaction

    seen = []

    def work(fail=False):
        m.Album.objects.create(user_id=U, name=f"hooked {fail}")
        transaction.on_commit(lambda: seen.append(connections["shard-3"].in_atomic_block))
        assert not seen[fail and 1 :]
        if fail:
            raise KeyError

    p.run_in_shard(U, work)
    assert seen == [False]
    with pytest.raises(KeyError):
        p.run_in_shard(U, lambda: work(fail=True))
    assert seen == [False]


def test_a_block_ends_where_it_began(m, p):
    from django.db import connections, transaction

    @transaction.atomic
    def recursive(keys):
        for key in keys:
            with p.shard_of(key):
                recursive(())
                m.Album.objects.create(user_id=key, name="recursive")

    def steps():
        with transaction.atomic():
            m.Album.objects.create(user_id=U, name="step")
            yield
            m.Album.objects.create(user_id=U, name="step 2")
            raise KeyError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recursive((U, V))
    assert m.Album.objects.filter(name="recursive").across_shards().count() == 2
    with p.shard_of(U):
        running = steps()
        next(running)
    with p.shard_of(V), pytest.raises(KeyError):
        # A generator goes on where another shard is chosen.
        next(running)
    assert not any(connections[f"shard-{key}"].in_atomic_block for key in (U, V))
    assert not connections["default"].in_atomic_block
    assert not m.Album.objects.for_key(U).filter(name__startswith="step").exists()


def test_a_write_to_a_shard_in_a_transaction_of_another_database_is_reported(m, p):
    from django.conf import settings
    from django.db import connections, transaction
    from django.db.transaction import TransactionManagementError
    from django.test import override_settings

    album = m.Album.objects.create(user_id=U, name="x")
    other = m.Album.objects.create(user_id=V, name="x")
    photo = m.Photo.objects.create(user_id=U, title="x")
    tag = m.Tag.objects.create(user_id=U, word="w")

    def raw():
        with connections["shard-3"].cursor() as cursor:
            cursor.execute("UPDATE {shard}.photos_album SET name = 'raw'")

    writes = (
        lambda: m.Album.objects.create(user_id=U, name="y"),
        album.save,
        lambda: m.Album.objects.filter(user_id=U).update(name="z"),
        lambda: m.Album.objects.get_or_create(user_id=U, name="w"),
        lambda: m.Album.objects.bulk_create([m.Album(user_id=U, name="v")]),
        lambda: photo.tags.add(tag),
        lambda: m.Photo.objects.filter(user_id=U).delete(),
        raw,
    )
    rows = list(m.Album.objects.for_key(U).values_list("name"))
    assert not hasattr(settings, "PGSHARD_UNCOVERED_WRITES")
    strict = override_settings(PGSHARD_UNCOVERED_WRITES="error")
    strict.enable()
    for write in writes:
        with (
            pytest.raises(TransactionManagementError, match=r"atomic\(\) of default"),
            transaction.atomic(),
        ):
            write()
        with (
            pytest.raises(TransactionManagementError, match=r"atomic\(\) of another shard"),
            transaction.atomic(using="shard-12"),
        ):
            write()
    with pytest.raises(TransactionManagementError, match=r"atomic\(\) of another shard"):
        p.run_in_shard(V, writes[0])
    assert list(m.Album.objects.for_key(U).values_list("name")) == rows
    assert photo.tags.count() == 0
    # What is meant is not reported.
    with transaction.atomic():
        p.run_in_shard(U, album.save)
        with transaction.atomic(using="shard-3"):
            album.save()
        list(m.Album.objects.for_key(V))
    with p.shard_of(U), transaction.atomic():
        album.save()
    album.save()
    strict.disable()
    with pytest.warns(p.UncoveredWriteWarning, match="run_in_shard") as said, transaction.atomic():
        other.save()
    assert said[0].filename == __file__
    copy = "COPY {shard}.photos_tag (user_id, word) FROM STDIN"
    cursor = connections["shard-3"].cursor()
    with pytest.warns(p.UncoveredWriteWarning) as said, transaction.atomic(), cursor.copy(copy):
        pass
    assert said[0].filename == __file__
    with (
        override_settings(PGSHARD_UNCOVERED_WRITES="allow"),
        warnings.catch_warnings(),
        transaction.atomic(),
    ):
        warnings.simplefilter("error")
        other.save()


# -------------------------------------------------------------------------- deletes and the checks


def test_deleting_an_owner_does_what_the_key_says(k, p):
    from django.db import transaction
    from django.db.models import CASCADE, DO_NOTHING, PROTECT, RESTRICT, ProtectedError
    from django.db.models.deletion import RestrictedError
    from django.db.models.signals import post_delete
    from django.test import override_settings

    relation = k.Owned._meta.get_field("owner").remote_field
    owners = [k.Owner.objects.create(pk=pk, name="x") for pk in (U, V)]
    for owner in owners:
        owner.owned.create(name="x")

    def rows():
        return k.Owned.objects.across_shards().count()

    try:
        for on_delete, error in ((PROTECT, ProtectedError), (RESTRICT, RestrictedError)):
            relation.on_delete = on_delete
            for wrong in (owners[0].delete, k.Owner.objects.all().delete):
                with pytest.raises(error):
                    wrong()
            assert (rows(), k.Owner.objects.count()) == (2, 2)
        relation.on_delete = CASCADE
        sent = []

        def note(sender, using, **_):
            sent.append((sender, using))

        post_delete.connect(note)
        assert owners[0].delete() == (2, {"kinds.Owner": 1, "kinds.Owned": 1})
        post_delete.disconnect(note)
        assert sent == [(k.Owned, "shard-3"), (k.Owner, "default")]
        assert (rows(), k.Owner.objects.count()) == (1, 1)
        # As the admin does it: the shard's transaction is meant.
        with override_settings(PGSHARD_UNCOVERED_WRITES="error"), transaction.atomic():
            assert k.Owner.objects.all().delete()[0] == 2
        assert rows() == 0
        relation.on_delete = DO_NOTHING
        owner = k.Owner.objects.create(pk=U, name="x")
        owner.owned.create(name="x")
        assert owner.delete() == (1, {"kinds.Owner": 1})
        assert rows() == 1
    finally:
        relation.on_delete = CASCADE


def test_the_admin_shows_what_goes_with_an_owner(k, p):
    from django.contrib.admin.utils import NestedObjects

    owner = k.Owner.objects.create(pk=V, name="x")
    owned = owner.owned.create(name="x")
    shown = NestedObjects(using="default")
    shown.collect([owner])
    assert shown.nested() == [owner, [owned]]


def test_checks_find_relations_that_could_lead_to_two_rows(k, p):
    from django.contrib.auth.models import User
    from django.core import checks
    from django.db import models
    from django.test.utils import isolate_apps

    from pgshard.django import ShardedModel, ShardKeyField, ShardKeyForeignKey
    from pgshard.django.checks import _check_plain, _check_sharded

    with isolate_apps("photos"):

        class Numbered(ShardedModel):
            id = models.BigAutoField(primary_key=True)
            user_id = ShardKeyField()

            class Meta:
                app_label = "photos"

        class Member(ShardedModel):
            id = None
            user_id = ShardKeyField(primary_key=True)

            class Meta:
                app_label = "photos"

        class Late(ShardedModel):
            many = models.ManyToManyField(Numbered, related_name="+")
            to = models.ForeignKey(Numbered, models.CASCADE, related_name="+")
            good = models.ForeignKey(Member, models.CASCADE, related_name="+")
            user_id = ShardKeyField()

            class Meta:
                app_label = "photos"

        class Sub(Numbered):
            class Meta:
                app_label = "photos"

        class Wrong(ShardedModel):
            user = ShardKeyForeignKey(Late, models.CASCADE, related_name="+")
            right = ShardKeyForeignKey(Member, models.CASCADE, related_name="+")
            owner = ShardKeyForeignKey(User, models.SET_DEFAULT, related_name="+")
            silent = ShardKeyForeignKey(User, related_name="+")

            class Meta:
                app_label = "photos"

        class Plain(models.Model):
            to = models.ForeignKey(
                Numbered, models.DO_NOTHING, db_constraint=False, related_name="+"
            )

            class Meta:
                app_label = "photos"

        def found(model, check):
            return [(one.id[-4:], one.obj.name) for one in check(model) if one.id > "pgshard.E010"]

        assert found(Late, _check_sharded) == [("E016", "to"), ("E016", "many")]
        assert found(Sub, _check_sharded) == found(Numbered, _check_sharded) == []
        assert found(Plain, _check_plain) == [("E016", "to")]
        said = {(one.id, one.obj.name) for one in _check_sharded(Wrong)}
        assert said == {
            ("pgshard.E017", "user"),
            ("pgshard.E011", "owner"),
            ("pgshard.W003", "silent"),
        }
        assert all(isinstance(one, checks.Error) for one in _check_sharded(Late))


def test_a_many_to_many_field_before_the_key_is_on_the_shard(k, p):
    from pgshard.django.managers import ShardedManager
    from pgshard.django.sharded import is_sharded

    through = k.RefMade.many.through
    assert is_sharded(k.RefMade)
    assert is_sharded(through)
    assert isinstance(through.objects, ShardedManager)
    made = k.Made.objects.create(user_id=V, name="x")
    ref = k.RefMade.objects.create(user_id=V, name="x")
    ref.many.add(made)
    assert through.objects.filter(made=made).get()._state.db == "shard-12"


# ------------------------------------------------------------------- SQL by hand, misplaced rows


def test_sql_that_names_a_table_without_a_schema_is_refused(m, p):
    from django.db import connections
    from django.db.models.expressions import RawSQL

    m.Album.objects.create(user_id=U, name="x")
    connection = connections["shard-3"]
    for wrong in (
        "SELECT * FROM photos_album",
        'SELECT * FROM {shard}.photos_photo p JOIN "photos_album" a ON true',
        "SELECT 'x' /* {shard}. */ FROM\n photos_category",
        "INSERT INTO photos_album(user_id, name) VALUES (3, 'y')",
        "UPDATE ONLY photos_album SET name = 'y'",
        "DELETE FROM photos_album",
        "TRUNCATE photos_album",
    ):
        with pytest.raises(p.NoShard, match="without a schema"), connection.cursor() as cursor:
            cursor.execute(wrong)
    for wrong in ("COPY photos_album TO STDOUT", "COPY photos_album (name) FROM STDIN"):
        with pytest.raises(p.NoShard), connection.cursor() as cursor, cursor.copy(wrong):
            pass
    with pytest.raises(p.NoShard), connection.cursor() as cursor:
        cursor.executemany("UPDATE photos_album SET name = %s", [("y",)])
    with pytest.raises(p.NoShard):
        list(m.Album.objects.using("shard-3").raw("SELECT * FROM photos_album"))
    for wrong, remedy in (("photos_album", "is the shard's"), ("photos_category", "by itself")):
        sql, rows = f"SELECT id FROM {wrong}", m.Album.objects.filter(user_id=U)
        for query in (
            rows.annotate(x=RawSQL(f"({sql} LIMIT 1)", [])),
            rows.filter(pk__in=RawSQL(sql, [])),
            rows.order_by(RawSQL(f"({sql} LIMIT 1)", [])),
            rows.extra(select={"x": f"{sql} LIMIT 1"}),
            rows.extra(where=[f"id IN ({sql})"]),
        ):
            with pytest.raises(p.NoShard, match=f"without a schema.*{remedy}"):
                list(query)
    own = RawSQL("SELECT id FROM {shard}.photos_album", [])
    assert m.Album.objects.filter(user_id=U, pk__in=own).count() == 1
    for right in (
        "SELECT name FROM {shard}.photos_album",
        "SELECT photos_album.name FROM {shard}.photos_album FOR UPDATE OF photos_album",
        "WITH photos_album AS (SELECT 'x') SELECT * FROM photos_album",
        "SELECT 'x' WHERE 'FROM photos_album' <> '' -- FROM photos_album",
    ):
        with connection.cursor() as cursor:
            cursor.execute(right)
            assert cursor.fetchone()[0] == "x"


def test_the_check_names_misplaced_rows_and_goes_on_where_it_ended(k, m, p, world, tmp_path):
    from django.core.management import CommandError, call_command
    from django.db import connections

    from pgshard.django import misplaced

    def command(*args):
        out = StringIO()
        try:
            call_command("shards", "check", *args, stdout=out)
        except CommandError as error:
            return error.returncode, out.getvalue().splitlines(), str(error)
        return 0, out.getvalue().splitlines(), ""

    for user in (U, V, W):
        for name in "abcde":
            m.Album.objects.create(user_id=user, name=name)
        k.Num.objects.create(user_id=user, name="x")
    assert command("photos.Album", "kinds.Num")[0] == 0
    assert command("--rows", "2")[1] == [
        f"All rows of {len(misplaced.checked_models([]))} tables are where they belong."
    ]
    with connections["shard-3"].cursor() as cursor:
        cursor.execute(
            "UPDATE {shard}.photos_album SET user_id = 28 WHERE name = 'c' AND user_id = 3"
        )
        cursor.execute("UPDATE {shard}.kinds_num SET user_id = 19 WHERE user_id = 3")
        cursor.execute(
            "INSERT INTO {shard}.photos_album (id, user_id, name) VALUES (%s, 3, 'z')",
            [m.Album.objects.filter(user_id=V).first().pk],
        )
    code, said, error = command("--rows", "2")
    assert code == 1
    assert "2 values" in error
    assert len(said) == 2
    assert sum("photos.Album" in line and "user_id 28 is of shard-12" in line for line in said) == 1
    assert sum("is on shard-3, and its id" in line for line in said) == 1

    # It ends within a table, and goes on after the range that was done.
    file = tmp_path / "progress.json"
    progress = misplaced.Progress(file)
    rows = misplaced.look(misplaced.checked_models(["photos.Album"]), 2, progress)
    first = next(rows)
    rows.close()
    again = misplaced.Progress(file)
    found = [first, *misplaced.look(misplaced.checked_models(["photos.Album"]), 2, again)]
    assert {one.where for one in found} == {"shard-3"}
    assert {(one.pk, one.column) for one in found} == {
        (int(line.split()[1]), line.split(" its ")[1].split()[0]) for line in said
    }
    assert command("--progress", str(file), "photos.Album")[0] == 1
    assert "is not sharded" in command("photos.Category")[2]
    assert "No installed app" in command("nothing.Here")[2]


def test_a_shard_refuses_rows_of_other_keys_by_its_constraints(k, m, p, world):
    from django.core.management import call_command
    from django.db import IntegrityError, connections

    before = set((world.folder / "migrations").iterdir())
    try:
        call_command("shards", "makesql", "ledger", "--key-checks", verbosity=0, stdout=StringIO())
        call_command("shards", "makesql", "photos", "--key-checks", stdout=StringIO())
        made = set((world.folder / "migrations").iterdir()) - before
        assert sum("_check" in file.name for file in made) == len(made) == 18
        world.run("migrate", "up")
        for user in (U, -3, V):
            m.Album.objects.create(user_id=user, name="x")
        with (
            pytest.raises(IntegrityError, match="photos_album_user_id_shard"),
            connections["shard-3"].cursor() as cursor,
        ):
            cursor.execute("UPDATE {shard}.photos_album SET user_id = 12")
        call_command("shards", "makesql", "--check", "--key-checks", "photos", stdout=StringIO())
        for host in ("db1", "db2"):
            names = "SELECT conrelid::regclass, conname FROM pg_constraint WHERE conname LIKE %s"
            with world.connect(host) as connection:
                found = connection.execute(names, ["%_shard"]).fetchall()
                assert found
                for table, name in found:
                    connection.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')
    finally:
        m.Album.objects.for_key(-3).delete()


def test_a_migration_that_was_edited_after_its_file_is_named(world, monkeypatch):
    from django.core.management import CommandError, call_command
    from django.db.models import IntegerField

    from pgshard.django import migrations

    path = next((world.folder / "migrations").glob("*_photos_0001_initial.sql"))
    (made,) = migrations.Project(()).make("photos", "0001_initial")
    assert not made.differs(path)
    call_command("shards", "makesql", "--check", stdout=StringIO())
    monkeypatch.setattr(IntegerField, "get_internal_type", lambda self: "SmallIntegerField")
    (edited,) = migrations.Project(()).make("photos", "0001_initial")
    assert edited.differs(path)
    with pytest.raises(CommandError, match=r"photos_0001_initial.*was edited after its file"):
        call_command("shards", "makesql", "--check", "photos", "0001_initial", stdout=StringIO())
    # Another version of Django may make other SQL.
    other = path.read_text().replace("-- By Django ", "-- By Django 1")
    copy = world.folder / "other.sql"
    copy.write_text(other)
    assert not edited.differs(copy)


def test_migrate_says_what_it_does_not_take_back(world):
    from django.core.management import call_command

    out = StringIO()
    try:
        call_command("migrate", "shop", "0003", stdout=out, fake=True)
        assert "was taken back" not in out.getvalue()  # It has no file.
        call_command("migrate", "shop", "0001", stdout=out, fake=True)
    finally:
        call_command("migrate", verbosity=0, fake=True)
    said = out.getvalue()
    assert "shop.0002_changes was taken back in this database only" in said
    assert "write a new migration" in said
