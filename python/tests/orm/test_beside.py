"""What Django developers use besides the ORM: what works on shards, and the error if something does
not."""

import json
import os
import subprocess
import sys

import pytest
from world import ROOT

pytestmark = pytest.mark.usefixtures("db")

U, V = 3, 12


# ------------------------------------------------------------------------------
# REST framework


@pytest.fixture
def api(m):
    from django.test import RequestFactory
    from rest_framework import serializers, viewsets

    class PhotoSerializer(serializers.ModelSerializer):
        id = serializers.CharField(read_only=True)

        class Meta:
            model = m.Photo
            fields = ["id", "user_id", "title", "tags"]
            extra_kwargs = {"tags": {"read_only": True}}

    class Photos(viewsets.ModelViewSet):
        queryset = m.Photo.objects.all()
        serializer_class = PhotoSerializer

        def get_queryset(self):
            user = self.request.query_params.get("user_id")
            return (
                super().get_queryset()
                if user is None
                else super().get_queryset().filter(user_id=user)
            )

    def call(method, action, data=None, query="", **where):
        request = RequestFactory().generic(
            method,
            f"/{query}",
            "" if data is None else json.dumps(data),
            content_type="application/json",
        )
        answer = Photos.as_view({method.lower(): action})(request, **where)
        return answer.status_code, answer.data

    return call


def test_rest_framework_finds_rows_by_key_and_by_id(m, api):
    status, made = api("POST", "create", {"user_id": U, "title": "Prague"})
    assert (status, made["title"]) == (201, "Prague")
    photo = m.Photo.objects.get(pk=int(made["id"]))
    photo.tags.add(m.Tag.objects.create(user_id=U, word="w"))
    assert api("PATCH", "partial_update", {"title": "Brno"}, pk=made["id"])[1]["title"] == "Brno"
    status, read = api("GET", "retrieve", pk=made["id"])
    assert (status, read["id"], read["tags"]) == (200, made["id"], [photo.tags.get().pk])
    m.Photo.objects.create(user_id=V, title="of another")
    assert [row["title"] for row in api("GET", "list", query=f"?user_id={U}")[1]] == ["Brno"]
    assert api("GET", "retrieve", pk=str(2**62))[0] == 404
    assert api("DELETE", "destroy", pk=made["id"])[0] == 204
    assert not m.Photo.objects.for_key(U).exists()


def test_rest_framework_without_a_shard_is_refused(m, p, api):
    with pytest.raises(p.NoShard, match="Photo is sharded and the query names no shard"):
        api("GET", "list")


def test_a_validator_of_what_is_unique_needs_the_key(m, p):
    from rest_framework import serializers, validators

    class Named(serializers.Serializer):
        name = serializers.CharField(validators=[validators.UniqueValidator(m.Album.objects.all())])

    class Together(serializers.ModelSerializer):
        class Meta:
            model = m.Album
            fields = ["user_id", "name"]

    m.Album.objects.create(user_id=U, name="x")
    with pytest.raises(p.NoShard, match="Album"):
        Named(data={"name": "x"}).is_valid()
    with p.shard_of(U):
        assert not Named(data={"name": "x"}).is_valid()
    # The model's constraint contains the key.
    assert not Together(data={"user_id": U, "name": "x"}).is_valid()
    assert Together(data={"user_id": V, "name": "x"}).is_valid()


def test_rest_framework_gives_ids_as_texts_and_takes_them(m):
    from rest_framework import serializers

    from pgshard.django.contrib.rest_framework import ShardedModelSerializer, ShardIdField

    class Photo(ShardedModelSerializer):
        class Meta:
            model = m.Photo
            fields = ["id", "user_id", "title", "album", "tags", "category"]

    album = m.Album.objects.create(user_id=U, name="x")
    tags = [m.Tag.objects.create(user_id=U, word=word) for word in "ab"]
    sent = {
        "user_id": U,
        "title": "Prague",
        "album": str(album.pk),
        "tags": [str(tag.pk) for tag in tags],
    }
    asked = Photo(data=sent)
    assert asked.is_valid(), asked.errors
    photo = asked.save()
    assert (photo.album, set(photo.tags.all())) == (album, set(tags))
    shown = Photo(m.Photo.objects.get(pk=photo.pk)).data
    assert shown == {"id": str(photo.pk), **sent, "category": None}

    field = ShardIdField()
    assert field.run_validation(str(album.pk)) == field.run_validation(album.pk) == album.pk
    for wrong in ("", "x", "1.5", 1.5, True, None, str(2**70), [1]):
        with pytest.raises(serializers.ValidationError):
            field.run_validation(wrong)
    with pytest.raises(serializers.ValidationError, match="no such ID"):
        # An ID of shard 16, which does not exist.
        field.run_validation(str(16 << 10))


def test_a_path_takes_the_ids_of_this_cluster_only(m):
    from django.http import JsonResponse
    from django.test import RequestFactory, override_settings
    from django.urls import Resolver404, path, resolve, reverse

    def show(request, pk):
        return JsonResponse({"title": m.Photo.objects.get(pk=pk).title})

    class pages:
        urlpatterns = [path("photos/<shardid:pk>", show, name="photo")]

    photo = m.Photo.objects.create(user_id=V, title="Prague")
    with override_settings(ROOT_URLCONF=pages):
        where = reverse("photo", kwargs={"pk": photo.pk})
        assert where == reverse("photo", kwargs={"pk": str(photo.pk)}) == f"/photos/{photo.pk}"
        found = resolve(where)
        assert found.kwargs == {"pk": photo.pk}
        assert json.loads(found.func(RequestFactory().get(where), **found.kwargs).content) == {
            "title": "Prague"
        }
        # 35 years after the epoch IDs are negative: the time uses the upper bits.
        late = (-1 << 23) + (5 << 10)
        assert resolve(f"/photos/{late}").kwargs == {"pk": late}
        for wrong in ("x", "", "007", "+7", "1.0", "9" * 19, "1" * 20, str(16 << 10), "٣"):
            with pytest.raises(Resolver404):
                resolve(f"/photos/{wrong}")


# ------------------------------------------------------------------------------
# admin


@pytest.fixture
def admin(m):
    """Django's own pages for photos, asked as a superuser."""
    from django.contrib import admin
    from django.contrib.auth.models import User
    from django.http import HttpRequest
    from django.test import RequestFactory

    class PhotoAdmin(admin.ModelAdmin):
        fields = ["user_id", "title", "likes"]
        show_full_result_count = False

        def log_addition(self, *args):
            """The log of the admin is not installed."""

        log_change = log_deletions = log_addition

        def message_user(self, *args, **more):
            """Messages are not installed either."""

        def response_add(self, request, obj, *args):
            return obj

        def response_change(self, request, obj):
            return obj

    class Site(admin.AdminSite):
        def each_context(self, request):
            return {}

    made = PhotoAdmin(m.Photo, Site())

    def call(view, data=None, **where):
        request: HttpRequest = (
            RequestFactory().get("/") if data is None else RequestFactory().post("/", data)
        )
        request._dont_enforce_csrf_checks = True
        request.user = User(username="root", is_staff=True, is_superuser=True)
        return getattr(made, view)(request, **where)

    return call


def test_the_admin_needs_a_shard(m, p, admin):
    """The admin asks for the database of a write without naming a row, so the shard is set around
    the call."""
    photo = m.Photo.objects.create(user_id=U, title="x")
    changed = {"user_id": U, "title": "y", "likes": 1}
    for wrong in (
        lambda: admin("changelist_view"),
        lambda: admin("add_view", changed),
        lambda: admin("change_view", changed, object_id=str(photo.pk)),
    ):
        with pytest.raises(p.NoShard, match="Photo is sharded"):
            wrong()
    assert list(m.Photo.objects.for_key(U).values_list("title", flat=True)) == ["x"], (
        "nothing was written"
    )
    with p.shard_of(U):
        assert admin("change_view", changed, object_id=str(photo.pk)).title == "y"
        assert admin("add_view", changed)._state.db == "shard-3"
        assert [row.title for row in admin("changelist_view").context_data["cl"].result_list] == [
            "y",
            "y",
        ]
    with p.shard_of(V):
        # A row still goes where it belongs.
        assert admin("add_view", changed)._state.db == "shard-3"
    assert not m.Photo.objects.for_key(V).exists()


# ------------------------------------------------------------------------------
# debug toolbar


def test_the_debug_toolbars_panel_sees_shards(m, p):
    from debug_toolbar.toolbar import DebugToolbar
    from django.http import HttpResponse
    from django.test import RequestFactory

    from pgshard.django.backend import pools
    from pgshard.django.contrib.debug_toolbar import ShardedSQLPanel

    def made():
        answer = lambda request: HttpResponse()  # noqa: E731
        return ShardedSQLPanel(DebugToolbar(RequestFactory().get("/"), answer), answer)

    pools.close_all()
    m.Photo.objects.bulk_create([m.Photo(user_id=U, title=f"{n:03d}") for n in range(30)])
    panel = made()
    # One alias was used before, and one is made now.
    assert "shard-3" in pools.slots().touched
    assert "shard-12" not in pools.slots().touched
    panel.enable_instrumentation()
    try:
        assert m.Photo.objects.for_key(V).count() == 0
        m.Photo.objects.create(user_id=U, title="x")
        assert len(list(m.Photo.objects.filter(user_id=U).iterator(chunk_size=7))) == 31
        assert m.Category.objects.count() == 0
    finally:
        panel.disable_instrumentation()
    assert [query["alias"] for query in panel._queries] == [
        "shard-12",
        "shard-3",
        "shard-3",
        "default",
    ]
    assert '"shard_0012"."photos_photo"' in panel._queries[0]["sql"]
    m.Photo.objects.for_key(U).count()
    assert len(panel._queries) == 4
    # The next request, and one with the toolbar.
    pools.release()
    assert m.Photo.objects.for_key(U).count() == 31
    assert len(panel._queries) == 4
    pools.release()
    again = made()
    again.enable_instrumentation()
    try:
        assert m.Photo.objects.for_key(U).count() == 31
    finally:
        again.disable_instrumentation()
    assert (len(again._queries), len(panel._queries)) == (1, 4)


# ------------------------------------------------------------------------------
# content types


def test_a_generic_foreign_key_of_a_sharded_model_leads_to_its_row(m, p):
    from django.contrib.contenttypes.fields import GenericForeignKey
    from django.contrib.contenttypes.models import ContentType
    from django.core import checks
    from django.db import models
    from django.test.utils import isolate_apps

    photo = m.Photo.objects.create(user_id=V, title="x")
    with isolate_apps("photos"):

        class Comment(p.ShardedModel):
            user_id = p.ShardKeyField()
            content_type = models.ForeignKey(
                ContentType, models.DO_NOTHING, db_constraint=False, related_name="+"
            )
            object_id = models.BigIntegerField()
            about = GenericForeignKey()

            class Meta:
                app_label = "photos"

        class Constrained(p.ShardedModel):
            user_id = p.ShardKeyField()
            content_type = models.ForeignKey(ContentType, models.CASCADE, related_name="+")

            class Meta:
                app_label = "photos"

    from pgshard.django.checks import _check_sharded

    assert [one.id for one in _check_sharded(Comment) if one.level >= checks.ERROR] == []
    (error,) = (one for one in _check_sharded(Constrained) if one.level >= checks.ERROR)
    assert (error.id, "ContentType is not in the shards" in error.msg) == ("pgshard.E008", True)
    kind = ContentType.objects.get_for_model(photo)
    for comment in (
        Comment(user_id=U, content_type_id=kind.pk, object_id=photo.pk),
        Comment(user_id=U, about=photo),
    ):
        comment._state.db = "shard-3"
        assert (comment.about, comment.content_type, comment.object_id) == (photo, kind, photo.pk)


# ------------------------------------------------------------------------------
# many shards

MANY = """
import os, resource, sys, time
import django
from django.conf import settings
began = time.monotonic()
import pgshard.django
databases = pgshard.django.databases(sys.argv[1],
    default={"ENGINE": "django.db.backends.postgresql", "NAME": "x"})
settings.configure(DATABASES=databases, DATABASE_ROUTERS=["pgshard.django.ShardRouter"],
    INSTALLED_APPS=["pgshard.django"], DEFAULT_AUTO_FIELD="django.db.models.BigAutoField")
django.setup()
from django.core import checks
from django.db import connections
assert checks.run_checks() == []
assert list(connections) == ["default"]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for shard in range(4096):
    connections[f"shard-{shard}"]
from pgshard.django.backend import pools
print(len(pools.slots().touched), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_4096_shards_are_one_alias_to_checks_and_bounded_in_memory(tmp_path):
    path = tmp_path / "pgshard.toml"
    head = (
        '[cluster]\nshards = 4096\nepoch = "2011-01-01T00:00:00Z"\n[hosts.db1]\nurl ='
        ' "postgres://app@127.0.0.1:1/app"\n'
    )
    path.write_text(f'{head}[map]\nversion = 1\n[map.placement]\ndb1 = "0-4095"\n')
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DJANGO", "PGSHARD"))
    }
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(path)],
        env={**env, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    kept, kib = map(int, done.stdout.split())
    assert kept <= 1024
    assert kib < 16 * 1024
