"""The models of `kinds` in one database."""

from functools import partial

from django.contrib.contenttypes.fields import GenericForeignKey
from django.contrib.contenttypes.models import ContentType
from django.db import models
from kinds.models import Open, declare


class Owner(models.Model):
    """The key of some models refers to it."""

    name = models.CharField(max_length=50)


class Fan(models.Model):
    """Some models have a many-to-many field to it."""

    name = models.CharField(max_length=50)


class Mark(models.Model):
    """It refers to any object."""

    name = models.CharField(max_length=50)
    content_type = models.ForeignKey(ContentType, models.CASCADE, related_name="+")
    object_id = models.BigIntegerField()
    about = GenericForeignKey()


class OpenManager(Open, models.Manager):
    pass


MODELS = declare(
    "plain",
    models.Model,
    partial(models.BigIntegerField, db_index=True),
    lambda: models.ForeignKey(Owner, models.CASCADE, related_name="owned"),
    Fan,
    OpenManager,
)
globals().update(vars(MODELS))
