"""Models with values that are unique over all shards."""

import re
from pathlib import Path

from django.db import models

from pgshard.django import Lookup, ShardedModel, ShardKeyField


class Member(ShardedModel):
    """A member, who has the key of its own, and an address."""

    id = ShardKeyField(primary_key=True)
    email = models.EmailField(unique=True, null=True)
    name = models.CharField(max_length=50, default="")

    class Meta:
        lookups = [Lookup("email")]


class Handle(ShardedModel):
    """A name of a user, in which A to Z are a to z."""

    user_id = ShardKeyField()
    word = models.CharField(max_length=50)

    class Meta:
        lookups = [Lookup("word")]


# Subscriber: the model of the documentation.
PAGE = (Path(__file__).parents[4] / "docs" / "lookups.md").read_text(encoding="utf-8")
SECTION = PAGE.split("\n## In Django\n")[1].split("\n## ")[0]
DECLARED, USED = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
exec(compile(DECLARED, "lookups.md", "exec"))


class Coupon(ShardedModel):
    """What a user has, with two look-ups: one of them of a text of any length."""

    user_id = ShardKeyField()
    number = models.BigIntegerField(unique=True, null=True)
    code = models.TextField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["code"], name="coupon_code")]
        lookups = [Lookup("number"), Lookup("code")]


class SameMember(Member):
    """The same rows."""

    class Meta:
        proxy = True


class Badge(ShardedModel):
    """A badge of a user. Its look-up records what an older application writes."""

    user_id = ShardKeyField()
    code = models.CharField(max_length=50, unique=True)

    class Meta:
        lookups = [Lookup("code")]


class Card(ShardedModel):
    """A card of a user, with a number for each day."""

    user_id = ShardKeyField()
    number = models.UUIDField()
    since = models.DateField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["number", "since"], name="card_number")]
        lookups = [Lookup("number", "since")]
