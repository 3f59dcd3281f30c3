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
DECLARED, USED = re.findall(r"```python\n(.*?)```", PAGE.split("\n## In Django\n")[1], re.DOTALL)
exec(compile(DECLARED, "lookups.md", "exec"))


class Card(ShardedModel):
    """A card of a user, with a number for each day."""

    user_id = ShardKeyField()
    number = models.UUIDField()
    since = models.DateField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["number", "since"], name="card_number")]
        lookups = [Lookup("number", "since")]
