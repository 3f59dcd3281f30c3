"""A website whose users are in one small database, and whose photos are in the shards of PGSHARD_CONFIG."""

import os
from pathlib import Path

import pgshard.django

FOLDER = Path(os.environ.get("EXAMPLE_FOLDER", Path(__file__).parents[1]))

SECRET_KEY = os.environ.get("EXAMPLE_SECRET_KEY", "only for the example")
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = pgshard.django.databases(
    default={"ENGINE": "django.db.backends.sqlite3", "NAME": FOLDER / "users.sqlite3"},
)
DATABASE_ROUTERS = ["pgshard.django.ShardRouter"]
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "pgshard.django", "photos"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
ROOT_URLCONF = "website.urls"
TEST_RUNNER = "pgshard.django.test.ShardedTestRunner"
