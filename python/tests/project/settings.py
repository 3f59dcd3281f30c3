"""The example's settings for another application, with its own tables in a database on the first
host's server."""

import os
import runpy
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

import pgshard.django
from pgshard import Config

_example = runpy.run_path(str(Path(__file__).parents[2] / "example" / "website" / "settings.py"))
globals().update({name: value for name, value in _example.items() if name.isupper()})

_server = conninfo_to_dict(Config.load(Config.find()).hosts["db1"].server_conninfo())
DATABASES = pgshard.django.databases(
    default={
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("PGSHARD_TEST_DEFAULT", "website"),
        "USER": "app",
        "HOST": _server["host"],
        "PORT": _server["port"],
    }
)
INSTALLED_APPS = [
    *_example["INSTALLED_APPS"],
    "django.contrib.postgres",
    "debug_toolbar",
    "shop",
    "ledger",
    "forum",
    "kinds",
    "plain",
    "members",
]
# The application `kinds` has relations that these refuse: the errors at run time are tested, too.
# models.E032: `kinds` and `plain` are the same models in two databases, with the same constraints.
SILENCED_SYSTEM_CHECKS = ["pgshard.E016", "models.E032"]
ROOT_URLCONF = "photos.urls"
# Tests set it in this way.
if "PGSHARD_TEST_SHARDS" in os.environ:
    PGSHARD_TEST_SHARDS = int(os.environ["PGSHARD_TEST_SHARDS"])
