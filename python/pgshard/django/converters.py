"""IDs in the addresses of pages."""

from __future__ import annotations

from ..errors import WrongId
from ..ids import shard_of_id
from .cluster import cluster


class ShardIdConverter:
    """`path("photos/<shardid:pk>", …)`: an ID that a shard of this cluster may have made. No other address is found, so that what
    a visitor typed never reaches a database."""

    # An ID has one way to be written.
    regex = "0|-?[1-9][0-9]{0,18}"

    def to_python(self, value: str) -> int:
        """The ID. Raises `ValueError` for a number that is none: Django looks for another page, and answers 404."""
        id = int(value)
        try:
            shard_of_id(id, cluster().shards)
        except WrongId as error:
            raise ValueError(str(error)) from error
        return id

    def to_url(self, value: int | str) -> str:
        """For Django's `reverse`. Raises `ValueError` for what is no number."""
        return str(int(value))
