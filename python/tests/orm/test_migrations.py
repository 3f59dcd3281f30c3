"""Migrations of sharded models become files that `pgshard` runs in every shard."""

import io
import re
import sys
from pathlib import Path

import pytest

U = 3


def command(*args, **options):
    from django.core.management import call_command

    out = io.StringIO()
    call_command(*args, stdout=out, **options)
    return out.getvalue()


def test_every_operation_came_to_what_the_models_say(world, db):
    from django.db import connections
    from shop.models import Product, Purchase, Receipt

    assert command("makemigrations", "--check", "--dry-run") == "No changes detected\n"
    assert command("shards", "makesql") == "No migration of a sharded model is without its file.\n"
    Purchase.objects.for_key(U).delete()
    Product.objects.for_key(U).delete()
    product = Product.objects.create(user_id=U, price="1.500", words=["a"])
    assert product.label == "it's {shard}"
    with connections["shard-3"].cursor() as cursor:
        cursor.execute(
            "INSERT INTO {shard}.shop_goods (user_id, words, note) VALUES (3, '[]', '') RETURNING"
            " label"
        )
        assert cursor.fetchone() == ("it's {shard}",), "not the schema"
        cursor.execute(
            "SELECT indexname FROM pg_indexes WHERE schemaname = 'shard_0003' AND tablename ="
            " 'shop_goods'"
        )
        names = {name for (name,) in cursor.fetchall()}
        assert {"product_upper", "product_price", "product_words", "product_label"} <= names
        assert not {"item_name", "product_name", "product_both"} & names
    purchase = Purchase.objects.create(user_id=U, first=product)
    purchase.products.add(product)
    Receipt.objects.create(user_id=U, purchase=purchase)
    assert (
        Receipt.objects.for_key(U).get(purchase__products__words__contains=["a"]).purchase.first
        == product
    )
    assert purchase.delete()[0] == 3
    Product.objects.for_key(U).delete()
    world.run("check", "--ddl")


def test_files_are_what_pgshard_wants(world):
    files = sorted(
        file for file in (world.folder / "migrations").iterdir() if "_ledger_" not in file.name
    )
    others = "_forum_|_kinds_|_members_|_lookup_|_badges_"
    files = [file for file in files if not re.search(others, file.name)]
    names = [file.name.split("_", 1)[1] for file in files]
    assert names == [
        "photos_0001_initial.sql",
        "shop_0001_initial.sql",
        "shop_0002_changes.sql",
        "shop_0003_concurrently.sql",
        "shop_0003_concurrently_2.sql",
        "shop_0003_concurrently_3.sql",
        "shop_0003_concurrently_4.sql",
    ]
    concurrently = files[3].read_text()
    assert concurrently.startswith("-- pgshard: no-transaction\n")
    assert 'CREATE INDEX CONCURRENTLY "product_both" ON {shard}."shop_goods"' in concurrently
    assert "DROP INDEX CONCURRENTLY IF EXISTS {shard}." in files[5].read_text()
    initial = files[0].read_text()
    assert '"photos_category" (' not in initial, "not sharded"
    assert "next_id()" in initial
    assert "What it says {{shard}}" in initial


def test_missing_files_and_pending_shards_are_said(world, monkeypatch):
    from pgshard.django.management.commands import migrate

    assert command("migrate", verbosity=1).rstrip().endswith("No migrations to apply.")
    files = sorted((world.folder / "migrations").iterdir())
    [file] = [file for file in files if file.name.endswith("_shop_0003_concurrently_4.sql")]
    # Other tests may have added files behind it.
    texts = {one: one.read_text() for one in files[files.index(file) :]}
    for one in texts:
        one.unlink()
    try:
        assert (
            "shop_0003_concurrently_4 has no file yet: run `manage.py shards makesql`"
            in command("migrate")
        )
        from django.core.management import CommandError

        with pytest.raises(CommandError, match="lacks shop_0003_concurrently_4"):
            command("shards", "makesql", "--check")
        assert "wrote" in command("shards", "makesql")
        assert file.read_text() == texts[file]
        extra = world.folder / "migrations" / "0099_more.sql"
        extra.write_text("COMMENT ON TABLE {shard}.photos_tag IS 'x';\n")
        assert "0099_more is pending in shards 0-15: `pgshard migrate up`" in command("migrate")
        extra.unlink()
    finally:
        for one, text in texts.items():
            one.write_text(text)
    monkeypatch.setattr(migrate.shutil, "which", lambda name: None)
    assert "not in PATH" in command("migrate")


REFUSED = {
    "python": ("migrations.RunPython(print)", "Python cannot be a file of SQL"),
    "sql": ("migrations.RunSQL('SELECT 1')", "is it for the shards"),
    "extension": ("TrigramExtension()", "an extension is made once per host"),
    "sharded": (
        "migrations.AddField('category', 'user_id', ShardKeyField(default=0))",
        "makes a model sharded that was not",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_a_file_is_refused_with_a_hint(world, name, tmp_path, monkeypatch):
    from django.core.management import CommandError
    from django.test import override_settings
    from photos.migrations import __path__ as photos

    operation, says = REFUSED[name]
    package = tmp_path / f"refused_{name}"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "0001_initial.py").write_text(
        Path(next(iter(photos)), "0001_initial.py").read_text()
    )
    imports = (
        "from django.contrib.postgres.operations import TrigramExtension\n"
        "from django.db import migrations\nfrom pgshard.django.fields import ShardKeyField\n"
    )
    migration = (
        "class Migration(migrations.Migration):\n    dependencies = [('photos', '0001_initial')]\n"
    )
    (package / "0002_refused.py").write_text(
        f"{imports}{migration}    operations = [{operation}]\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with override_settings(MIGRATION_MODULES={"photos": package.name}):
        with pytest.raises(CommandError, match=says) as error:
            command("shards", "makesql", "photos")
        assert "photos.0002_refused: photos:" in str(error.value)


CHECKS = """
from django.contrib.auth.models import User
from django.contrib.contenttypes.fields import GenericRelation
from django.db import models
from django.db.models.functions import Lower
from photos.models import Photo
from pgshard.django import ShardedManager, ShardedModel, ShardKeyField, ShardKeyForeignKey
from pgshard.django import ShardedBigAutoField

class Meta:
    app_label = "photos"

class NoBase(models.Model):
    id = ShardedBigAutoField(primary_key=True)
    Meta = Meta

class PlainManager(ShardedModel):
    user_id = ShardKeyField()
    things = models.Manager()
    Meta = Meta

class Words(models.QuerySet):
    pass

class PlainQuerySet(ShardedModel):
    user_id = ShardKeyField()
    things = ShardedManager.from_queryset(Words)()
    Meta = Meta

class NoKey(ShardedModel):
    id = models.BigAutoField(primary_key=True)
    other = ShardKeyField(null=True)
    Meta = Meta

class Constraint(ShardedModel):
    user_id = ShardKeyField()
    user = models.ForeignKey(User, models.CASCADE, related_name="+")
    owner = models.ForeignKey(User, models.CASCADE, related_name="+", db_constraint=False)
    friends = models.ManyToManyField(User, related_name="+")
    email = models.EmailField(unique=True)
    Meta = Meta

class FromOutside(models.Model):
    photo = models.ForeignKey(Photo, models.CASCADE, related_name="+")
    Meta = Meta

class Keyless(ShardedModel):
    id = None
    photo = models.OneToOneField(Photo, models.CASCADE, primary_key=True, related_name="+")
    Meta = Meta

class Word(ShardedModel):
    id = None
    word = models.CharField(max_length=5, primary_key=True)
    Meta = Meta

class Remedied(ShardedModel):
    id = None
    user_id = ShardKeyField()
    photo = models.OneToOneField(Photo, models.CASCADE, primary_key=True, related_name="+")
    Meta = Meta

class OfPhoto(ShardedModel):
    photo = models.ForeignKey(Photo, models.CASCADE, related_name="+")
    Meta = Meta

class Longer(OfPhoto):
    text = models.TextField()
    Meta = Meta

class Cascade(models.Model):
    photo = models.ForeignKey(Photo, models.CASCADE, related_name="+", db_constraint=False)
    photos = models.ManyToManyField(Photo, related_name="+")
    Meta = Meta

class Pointer(models.Model):
    photo = models.ForeignKey(Photo, models.DO_NOTHING, related_name="+", db_constraint=False)
    Meta = Meta

class Generic(ShardedModel):
    user_id = ShardKeyField()
    logged = GenericRelation("admin.LogEntry")
    Meta = Meta

class GenericFromOutside(models.Model):
    photos = GenericRelation("photos.Generic")
    Meta = Meta

class Unique(ShardedModel):
    user_id = ShardKeyField()
    photo = models.ForeignKey(Photo, models.CASCADE, related_name="+")
    slug = models.SlugField()
    lang = models.CharField(max_length=5)

    class Meta:
        app_label = "photos"
        unique_together = [("slug", "lang"), ("user_id", "slug")]
        constraints = [
            models.UniqueConstraint(fields=["lang"], name="unique_lang"),
            models.UniqueConstraint(Lower("slug"), name="unique_slug"),
            models.UniqueConstraint(Lower("slug"), "user_id", name="unique_slug_of_user"),
            models.UniqueConstraint(fields=["photo", "lang"], name="unique_lang_of_photo"),
        ]

class Fine(ShardedModel):
    user = ShardKeyForeignKey(User, related_name="+")
    Meta = Meta
"""


def test_system_checks_name_each_mistake(world):
    from django.apps import apps

    from pgshard.django import checks, sharded

    before = dict(apps.all_models["photos"])
    try:
        exec(CHECKS, {"__name__": "photos.mistakes"})
        # The models of `kinds` have the mistakes that the settings of the tests allow.
        found = [
            one
            for one in checks.check_models()
            if getattr(one.obj, "model", one.obj)._meta.app_label != "kinds"
        ]
    finally:
        apps.all_models["photos"].clear()
        apps.all_models["photos"].update(before)
        apps.clear_cache()
        sharded._forget()
    said = sorted(
        (one.id, getattr(one.obj, "__name__", None) or one.obj.model.__name__) for one in found
    )
    assert said == [
        ("pgshard.E003", "NoBase"),
        ("pgshard.E004", "PlainManager"),
        ("pgshard.E004", "PlainQuerySet"),
        ("pgshard.E005", "Keyless"),
        ("pgshard.E005", "Word"),
        ("pgshard.E006", "NoKey"),
        ("pgshard.E008", "Constraint"),
        ("pgshard.E009", "Constraint"),
        ("pgshard.E010", "FromOutside"),
        ("pgshard.E011", "Constraint"),
        ("pgshard.E012", "Cascade"),
        ("pgshard.E013", "Cascade"),
        ("pgshard.E014", "Generic"),
        ("pgshard.E015", "GenericFromOutside"),
        ("pgshard.W001", "Constraint"),
        ("pgshard.W001", "Unique"),
        ("pgshard.W001", "Unique"),
        ("pgshard.W001", "Unique"),
        ("pgshard.W003", "Fine"),
    ]
    assert all(one.hint for one in found)
    keyless = [f"{one.msg}: {one.hint}" for one in found if one.id == "pgshard.E005"]
    assert all("user_id = ShardKeyField()" in text for text in keyless)
    assert [name in text for text, name in zip(keyless, ("photo", "word"))] == [True, True]
    unique = [one.msg.rpartition(" the same ")[2] for one in found if one.id == "pgshard.W001"]
    assert unique == ["value", "slug, lang", "lang", "slug"]
    assert checks.check_settings() == []


def test_settings_are_checked(world, monkeypatch):
    from django.conf import settings
    from django.test import override_settings

    from pgshard.django import checks
    from pgshard.django.cluster import state

    monkeypatch.setattr(state, "cluster", None)
    with override_settings(DATABASE_ROUTERS=[]):
        assert [one.id for one in checks.check_settings()] == ["pgshard.E001", "pgshard.E002"]
    monkeypatch.undo()
    monkeypatch.setitem(settings.DATABASES["default"], "ATOMIC_REQUESTS", True)
    (warning,) = checks.check_settings()
    assert (warning.id, "of default covers no shard" in warning.msg) == ("pgshard.W002", True)


def test_a_config_with_mistakes_is_refused_by_the_settings(tmp_path):
    from django.core.exceptions import ImproperlyConfigured

    import pgshard.django

    path = tmp_path / "pgshard.toml"
    path.write_text("[cluster]\nshards = 9000\n")
    with pytest.raises(ImproperlyConfigured, match="shards must be 1 to 8192, not 9000") as error:
        pgshard.django.databases(path, default={})
    assert str(path) in str(error.value)
    with pytest.raises(ImproperlyConfigured, match="there is no such file"):
        pgshard.django.databases(tmp_path / "none.toml", default={})


def test_commands_show_where_shards_and_rows_are(world, db, capsys):
    from photos.models import Photo

    photo = Photo.objects.create(user_id=U, title="x")
    assert command("shards", "where", "--key", "3").startswith("shard-3 shard_0003 db")
    assert command("shards", "where", "--id", str(photo.pk)).startswith("shard-3 shard_0003 db")
    assert command("shards", "list").startswith("16 shards, map version")
    assert f'"pk": {photo.pk}' in command("shards", "dumpdata", "photos.Photo")
    assert command("shards", "run", "shop.jobs.fill") == "16 shards done, 0 failed\n"
    assert Photo.objects.get(pk=photo.pk).likes == 5
