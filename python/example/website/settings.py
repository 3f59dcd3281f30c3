"""A website whose users are in one small database, and whose photos are in the shards of
PGSHARD_CONFIG."""

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
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "rest_framework",
    "pgshard.django",
    "photos",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "/static/"
REST_FRAMEWORK = {"DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"]}
ROOT_URLCONF = "website.urls"
TEST_RUNNER = "pgshard.django.test.ShardedTestRunner"
