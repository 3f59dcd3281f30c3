"""Settings for Django's own tests on the shards of PGSHARD_CONFIG."""

import django

import pgshard.django
from pgshard.django.cluster import state

SECRET_KEY = "test"
USE_TZ = False
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# What the tests of each version expect.
DEFAULT_AUTO_FIELD = (
    "django.db.models.AutoField" if django.VERSION < (6,) else "django.db.models.BigAutoField"
)

pgshard.django.databases(default={})
state.visible = ("default", "other")
DATABASES = {name: {"ENGINE": "shard_backend", "NAME": name} for name in state.visible}
