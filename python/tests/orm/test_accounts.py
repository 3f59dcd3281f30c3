"""The users of docs/django-recipes.md: a profile on shards next to Django's user, and a user model
on shards. Each is a project that is made as the page says, with tests of its own."""

import re
import shutil
import subprocess
import sys

import pytest
from manual import RECIPES, WALK, Shell, section, typed
from world import COMMAND

FORM = "{{ form }}"
MAIL = "http://{{ domain }}{% url 'password_reset_confirm' uidb64=uid token=token %}"
URLS = """
from django.http import JsonResponse
from django.urls import include, path


def whoami(request):
    return JsonResponse({"id": request.user.pk})


urlpatterns = [path("whoami", whoami)]
"""
PROFILE_URLS = """
from django.contrib.auth.views import LoginView
from django.views.generic import UpdateView
from photos.accounts import SignUpView
from photos.models import Profile


class ProfileView(UpdateView):
    fields = ["name", "email"]
    template_name = "form.html"
    success_url = "/"

    def get_object(self):
        return Profile.objects.get(user=self.request.user)


urlpatterns += [
    path("sign-up", SignUpView.as_view()),
    path("login", LoginView.as_view(template_name="form.html", next_page="/")),
    path("profile", ProfileView.as_view()),
]
"""
ACCOUNT_URLS = """
urlpatterns += [path("", include("django.contrib.auth.urls"))]
"""
STAFF_URLS = """
from accounts.models import Account
from django.contrib import admin
from django.urls import path
from pgshard.django.admin import ShardedModelAdmin


@admin.register(Account)
class AccountAdmin(ShardedModelAdmin):
    fields = ["email", "is_active"]


urlpatterns = [path("admin/", admin.site.urls)]
"""
SETTINGS = """
TEMPLATES[0]["DIRS"] = [BASE_DIR]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
LOGIN_REDIRECT_URL = "/whoami"
PGSHARD_UNCOVERED_WRITES = "error"
"""
PROFILE_SETTINGS = 'AUTHENTICATION_BACKENDS = ["photos.accounts.EmailBackend"]\n'
STAFF_SETTINGS = """
from website.settings import *
AUTH_USER_MODEL = "auth.User"
INSTALLED_APPS = [*INSTALLED_APPS, "django.contrib.admin"]
ROOT_URLCONF = "website.staff_urls"
"""
LOOKUP = """
python manage.py makemigrations accounts photos
python manage.py shards makesql
pgshard lookups migration emails > pgshard-dev/migrations/0100_emails.sql
pgshard migrate up
pgshard lookups build emails
python manage.py migrate --settings website.staff
"""
POSTS = """
from django.conf import settings
from django.db import models

from pgshard.django import ShardedModel, ShardKeyForeignKey


class Post(ShardedModel):
    user = ShardKeyForeignKey(settings.AUTH_USER_MODEL, models.CASCADE)
    text = models.TextField()
"""


class Site(Shell):
    """A project that the blocks of a page make."""

    def make(self, shards: int, blocks: str) -> None:
        self.env["PGSHARD"] = COMMAND
        guide = re.findall(r"```sh\n(.*?)```", section("From an empty folder"), re.DOTALL)
        self.run(guide[0].replace("--shards 64", f"--shards {shards}") + blocks)
        self.env["PGSHARD_CONFIG"] = str(self.folder / "pgshard-dev" / "pgshard.toml")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def settings(self, text: str) -> None:
        with (self.folder / "website" / "settings.py").open("a") as settings:
            settings.write(text)

    def test(self, file: str, number: int, *more: str) -> None:
        """Runs a file of tests with Django's runner: as many as this must succeed."""
        shutil.copy(WALK / f"{file}.py", self.folder)
        done = self.python("manage.py", "test", "--noinput", *more, file)
        assert f"Ran {number} tests" in done, done
        assert "OK" in done, done

    def python(self, *line: str, fails: bool = False) -> str:
        done = subprocess.run(
            [sys.executable, *line],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr


def number_of(file: str) -> int:
    return len(re.findall(r"^    def test_", (WALK / f"{file}.py").read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def profiles(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("profiles"))
    try:
        guide = re.findall(r"```sh\n(.*?)```", section("From an empty folder"), re.DOTALL)
        site.make(100, "".join(guide[1:3]) + typed(section("Unique everywhere", RECIPES)))
        site.write("website/urls.py", URLS + PROFILE_URLS)
        site.write("form.html", FORM)
        site.settings(SETTINGS + PROFILE_SETTINGS)
        yield site
    finally:
        site.down()


def test_a_profile_on_shards_has_a_name_and_an_address_next_to_djangos_user(profiles):
    profiles.test("profile_tests", number_of("profile_tests"))


def test_a_thousand_rows_on_a_hundred_shards_are_created_as_a_whole_or_not_at_all(profiles):
    shutil.copy(WALK / "batch.py", profiles.folder)
    profiles.python("manage.py", "shell", "-c", "import batch")


def test_a_user_model_on_shards_does_what_djangos_does(tmp_path):
    site = Site(tmp_path)
    try:
        site.make(8, typed(section("A user model on shards", RECIPES)))
        site.write("website/urls.py", URLS + ACCOUNT_URLS)
        for name in re.findall(r"\S+", TEMPLATES):
            site.write(f"registration/{name}.html", FORM)
        site.write("registration/password_reset_email.html", MAIL)
        site.settings(SETTINGS)
        site.write("website/staff.py", STAFF_SETTINGS)
        site.write("website/staff_urls.py", STAFF_URLS)
        site.write("photos/models.py", POSTS)
        site.run(LOOKUP)
        site.test("account_tests", number_of("account_tests"))
        # Not only in tests: with the real shards.
        site.env["DJANGO_SUPERUSER_PASSWORD"] = "a long secret"
        site.python("manage.py", "createsuperuser", "--noinput", "--email", "root@example.com")
        site.python("manage.py", "shell", "-c", REAL)
        # The admin, with its own settings.
        staff = ("--settings", "website.staff")
        site.python("manage.py", "createsuperuser", "--noinput", *staff, *STAFF)
        site.test("staff_tests", number_of("staff_tests"), *staff)
        # With the user model on shards, checks name what cannot be.
        site.settings('INSTALLED_APPS += ["django.contrib.admin"]\n')
        refused = site.python("manage.py", "check", fails=True)
        assert "admin.LogEntry.user: (pgshard.E010)" in refused
    finally:
        site.down()


TEMPLATES = """login logged_out password_change_form password_change_done password_reset_form
password_reset_done password_reset_confirm password_reset_complete"""
STAFF = ("--username", "staff", "--email", "staff@example.com")
REAL = """
from django.contrib.auth import authenticate
from accounts.models import Account
assert authenticate(email="root@example.com", password="a long secret").is_superuser
assert Account.objects.across_shards().count() == 1
"""
