"""IDs in the addresses of pages."""

from __future__ import annotations

from ..errors import WrongId
from .routing import alias_of_named


class ShardIdConverter:
    """`path("photos/<shardid:pk>", …)`: an ID that a shard of this cluster may have made, or one
    from before the shards. Any other address matches no page, so no such number from a visitor
    reaches a database."""

    # Each ID can be written in one way only.
    regex = "0|-?[1-9][0-9]{0,18}"

    def to_python(self, value: str) -> int:
        """The ID. Raises `ValueError` for a number that cannot be an ID: Django then looks for
        another page, and answers 404."""
        id = int(value)
        try:
            alias_of_named(id)
        except WrongId as error:
            raise ValueError(str(error)) from error
        return id

    def to_url(self, value: int | str) -> str:
        """Django's `reverse` calls this. Raises `ValueError` if the value is not a number."""
        return str(int(value))
