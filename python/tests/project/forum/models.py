"""Threads of users, with the kinds of models that older projects have: generic relations, a key or
a word as primary key."""

from django.conf import settings
from django.contrib.contenttypes.fields import GenericForeignKey, GenericRelation
from django.contrib.contenttypes.models import ContentType
from django.db import models

from pgshard.django import ShardedModel, ShardKeyField, ShardKeyForeignKey


class Remark(ShardedModel):
    """A remark about anything of the same user."""

    user_id = ShardKeyField()
    content_type = models.ForeignKey(
        ContentType, models.DO_NOTHING, db_constraint=False, related_name="+"
    )
    object_id = models.BigIntegerField()
    about = GenericForeignKey()
    text = models.CharField(max_length=50)


class Label(ShardedModel):
    """A word for threads."""

    user_id = ShardKeyField()
    word = models.CharField(max_length=50)


class Thread(ShardedModel):
    """A thread of a user."""

    user = ShardKeyForeignKey(settings.AUTH_USER_MODEL, models.DO_NOTHING, related_name="threads")
    title = models.CharField(max_length=50)
    labels = models.ManyToManyField(Label, related_name="threads")
    remarks = GenericRelation(Remark)


class Vote(ShardedModel):
    """What somebody thinks of a thread. It is the thread's owner's."""

    user = ShardKeyForeignKey(settings.AUTH_USER_MODEL, models.DO_NOTHING, related_name="+")
    thread = models.ForeignKey(Thread, models.CASCADE, related_name="votes")
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.DO_NOTHING, db_constraint=False, related_name="+"
    )


class Post(ShardedModel):
    """A post in a thread. It has no key, its thread says where it is."""

    thread = models.ForeignKey(Thread, models.CASCADE, related_name="posts")
    text = models.CharField(max_length=50, default="")


class Member(ShardedModel):
    """What a user is here. The key is the primary key."""

    id = None
    user_id = ShardKeyField(primary_key=True)
    nick = models.CharField(max_length=50)


class Choice(ShardedModel):
    """What a user has chosen. The primary key says no shard."""

    id = None
    code = models.CharField(max_length=50, primary_key=True)
    user_id = ShardKeyField()
    value = models.CharField(max_length=50, default="")


class Seat(ShardedModel):
    """A numbered seat of a user. The primary key has two columns."""

    id = None
    pk = models.CompositePrimaryKey("user_id", "number")
    user_id = ShardKeyField()
    number = models.IntegerField()
    name = models.CharField(max_length=50, default="")


class Pin(models.Model):
    """Not sharded. It refers to a thread."""

    thread = models.ForeignKey(Thread, models.DO_NOTHING, db_constraint=False, related_name="+")
