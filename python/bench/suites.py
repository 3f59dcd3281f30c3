"""How long a test suite takes on shards, compared with the same suite without them.

    PGSHARD_CONFIG=pgshard-dev/pgshard.toml python bench/suites.py

The project is made in a temporary folder: models, views, and tests as most are, of which a few
flush. Both suites run in turn, with kept databases, on the server of the first host. Prints the
ratio of the medians.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from pgshard import Config

PACKAGE = Path(__file__).parents[1]
TURNS = 5

SETTINGS = """
import os
import pgshard.django
SECRET_KEY = "x"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DEFAULT = {default}
SHARDED = os.environ["SHARDED"] == "yes"
DEFAULT["TEST"] = {{"NAME": "test_suite_sharded" if SHARDED else "test_suite_plain"}}
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
MIDDLEWARE = ["django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
ROOT_URLCONF = "suite.urls"
if SHARDED:
    DATABASES = pgshard.django.databases({config!r}, default=DEFAULT)
    DATABASE_ROUTERS = ["pgshard.django.ShardRouter"]
    TEST_RUNNER = "pgshard.django.test.ShardedTestRunner"
    INSTALLED_APPS += ["pgshard.django"]
else:
    DATABASES = {{"default": DEFAULT}}
INSTALLED_APPS += ["suite"]
"""

MODELS = """
from django.conf import settings
from django.db import models
if settings.SHARDED:
    from pgshard.django import ShardedModel as Base, ShardKeyForeignKey as Key
else:
    Base = models.Model
    def Key(to, on_delete): return models.ForeignKey(to, on_delete)
class Album(Base):
    user = Key(settings.AUTH_USER_MODEL, models.CASCADE)
    name = models.CharField(max_length=50)
class Tag(Base):
    user = Key(settings.AUTH_USER_MODEL, models.CASCADE)
    word = models.CharField(max_length=50)
class Photo(Base):
    user = Key(settings.AUTH_USER_MODEL, models.CASCADE)
    album = models.ForeignKey(Album, models.CASCADE, related_name="photos")
    tags = models.ManyToManyField(Tag, related_name="photos")
    title = models.CharField(max_length=50)
"""

URLS = """
from django.http import JsonResponse
from django.urls import path
from suite.models import Photo
def titles(request):
    rows = Photo.objects.filter(user=request.user.pk).select_related("album")
    return JsonResponse({"titles": [[photo.title, photo.album.name] for photo in rows]})
urlpatterns = [path("titles", titles)]
"""

TESTS = """
from django.contrib.auth.models import User
from django.test import TestCase, TransactionTestCase
from suite.models import Album, Photo, Tag
class Work:
    def make(self, name):
        user = User.objects.create_user(name, password="x")
        album = Album.objects.create(user=user, name="a")
        tag = Tag.objects.create(user=user, word="w")
        for number in range(3):
            photo = Photo.objects.create(user=user, album=album, title=str(number))
            photo.tags.add(tag)
        return user
    def look(self, user):
        self.client.force_login(user)
        self.assertEqual(len(self.client.get("/titles").json()["titles"]), 3)
        photo = Photo.objects.filter(user=user).prefetch_related("tags").first()
        photo.title = "new"
        photo.save()
        self.assertEqual(photo.tags.get().word, "w")
class Usual(Work, TestCase):
    @classmethod
    def setUpTestData(cls): cls.one = cls.make(cls, "one")
    def work(self):
        self.look(self.make("two"))
        self.look(self.one)
for number in range(60):
    setattr(Usual, f"test_{number}", Usual.work)
class Flushed(Work, TransactionTestCase):
    def work(self): self.look(self.make("three"))
for number in range(6):
    setattr(Flushed, f"test_{number}", Flushed.work)
"""


def main():
    config = Config.load(Config.find())
    server = conninfo_to_dict(next(iter(config.hosts.values())).server_conninfo())
    default = {"ENGINE": "django.db.backends.postgresql", "NAME": server["dbname"]}
    default |= {
        key.upper(): server[key] for key in ("user", "host", "port", "password") if key in server
    }
    if "passfile" in server:
        default["OPTIONS"] = {"passfile": server["passfile"]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "suite" / "migrations").mkdir(parents=True)
        (folder / "migrations").mkdir()
        for file in ("suite/__init__.py", "suite/migrations/__init__.py"):
            (folder / file).touch()
        toml = folder / "pgshard.toml"
        text = re.sub(r"(?m)^migrations = .*\n", "", config.path.read_text())
        toml.write_text(text.replace("[cluster]", '[cluster]\nmigrations = "migrations"', 1))
        settings = SETTINGS.format(default=default, config=str(toml))
        for file, text in (
            ("settings", settings),
            ("models", MODELS),
            ("urls", URLS),
            ("tests", TESTS),
        ):
            (folder / "suite" / f"{file}.py").write_text(text)
        env = {**os.environ, "PYTHONPATH": f"{PACKAGE}{os.pathsep}{folder}"}
        env["DJANGO_SETTINGS_MODULE"] = "suite.settings"

        def django(sharded, *args):
            line = [sys.executable, "-m", "django", *args]
            done = subprocess.run(
                line, cwd=folder, env={**env, "SHARDED": sharded}, capture_output=True, text=True
            )
            assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
            return done.stderr

        seconds = {"yes": [], "no": []}
        whole = {"yes": [], "no": []}
        migrations = folder / "suite" / "migrations"
        for turn in range(TURNS + 2):
            for sharded in ("yes", "no"):
                for old in migrations.glob("0*"):
                    old.unlink()
                django(sharded, "makemigrations", "suite")
                if sharded == "yes" and not turn:
                    django(sharded, "shards", "makesql")
                    # Another project's databases may be there.
                    django(sharded, "test", "--noinput", "suite.tests.Flushed.test_0")
                # The first turn makes its databases and the last one drops them: neither counts.
                keep = ["--keepdb"] if turn < TURNS + 1 else []
                said = django(sharded, "test", *keep, "--timing", "--noinput", "suite")
                ran = float(re.search(r"Ran \d+ tests in ([\d.]+)s", said)[1])
                total = float(re.search(r"Total run took ([\d.]+)s", said)[1])
                if 0 < turn <= TURNS:
                    seconds[sharded].append(ran)
                    whole[sharded].append(total)
                print(
                    f"{'on shards' if sharded == 'yes' else 'without'}: {ran} s, {total} s in all"
                )
        for what, times in (("tests", seconds), ("tests and databases", whole)):
            ratio = statistics.median(times["yes"]) / statistics.median(times["no"])
            print(f"{what}: {ratio:.2f} times as long on shards")


if __name__ == "__main__":
    main()
