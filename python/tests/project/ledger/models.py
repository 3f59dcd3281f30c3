"""Bills of accounts. Their key is a reference to a column that is not the primary key."""

from django.conf import settings
from django.db import models

from pgshard.django import ShardedModel, ShardKeyField, ShardKeyForeignKey, ShardKeyOneToOneField


class Account(models.Model):
    """Not sharded. Its number says the shard of what belongs to it."""

    number = models.BigIntegerField(unique=True)


class Bill(ShardedModel):
    """A bill of an account, which another account may have checked."""

    account = ShardKeyForeignKey(
        Account, models.DO_NOTHING, to_field="number", related_name="bills"
    )
    checker = models.ForeignKey(
        Account, models.DO_NOTHING, null=True, db_constraint=False, related_name="checked_bills"
    )
    previous = models.ForeignKey(
        "self", models.DO_NOTHING, null=True, db_constraint=False, related_name="next_bills"
    )
    text = models.CharField(max_length=50)
    sent_from = models.GenericIPAddressField(null=True)


class Pointer(models.Model):
    """Not sharded. It refers to a bill."""

    bill = models.ForeignKey(
        Bill, models.DO_NOTHING, null=True, db_constraint=False, related_name="+"
    )


class Profile(ShardedModel):
    """What a user says about themselves."""

    user = ShardKeyOneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, related_name="profile")
    text = models.CharField(max_length=100)


class Label(ShardedModel):
    """A word of a user."""

    user_id = ShardKeyField()
    word = models.CharField(max_length=50)


class Paper(ShardedModel):
    """A paper of a user, with values of many types."""

    user_id = ShardKeyField()
    name = models.CharField(max_length=50, null=True)
    count = models.IntegerField(null=True)
    amount = models.DecimalField(max_digits=20, decimal_places=4, null=True)
    weight = models.FloatField(null=True)
    lasted = models.DurationField(null=True)
    on = models.DateField(null=True)
    labels = models.ManyToManyField(Label, through="PaperLabel", related_name="papers")


class PaperLabel(ShardedModel):
    """Which label a paper has, in a table of the application's own."""

    user_id = ShardKeyField()
    paper = models.ForeignKey(Paper, models.CASCADE, related_name="+")
    label = models.ForeignKey(Label, models.CASCADE, related_name="+")
