"""Bills of accounts. Their key is a reference to a column that is not the primary key."""

from django.db import models

from pgshard.django import ShardedModel, ShardKeyForeignKey


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
