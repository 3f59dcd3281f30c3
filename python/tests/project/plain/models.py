"""The models of `kinds` in one database."""

from functools import partial

from django.db import models
from kinds.models import declare


class Owner(models.Model):
    """The key of some models refers to it."""

    name = models.CharField(max_length=50)


MODELS = declare(
    "plain",
    models.Model,
    partial(models.BigIntegerField, db_index=True),
    lambda: models.ForeignKey(Owner, models.CASCADE, related_name="owned"),
)
globals().update(vars(MODELS))
