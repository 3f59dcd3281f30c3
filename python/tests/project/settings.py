"""A project on the cluster of PGSHARD_CONFIG; Django's own tables are in the database `default` of the first host's server."""

import os

from psycopg.conninfo import conninfo_to_dict

import pgshard.django
from pgshard import Config

SECRET_KEY = "test"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

_server = conninfo_to_dict(Config.load(Config.find()).hosts["db1"].server_conninfo())
_default = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": os.environ.get("PGSHARD_TEST_DEFAULT", "website"),
    "USER": "app",
    "HOST": _server["host"],
    "PORT": _server["port"],
}
DATABASES = pgshard.django.databases(default=_default)
DATABASE_ROUTERS = ["pgshard.django.ShardRouter"]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "debug_toolbar",
    "pgshard.django",
    "photos",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
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
ROOT_URLCONF = "photos.urls"
ALLOWED_HOSTS = ["*"]
TEST_RUNNER = "pgshard.django.test.ShardedTestRunner"
