"""The argument `--database` of Django's commands, which takes what an iteration over all databases shows: here the shards too."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.db import connections


class AnyDatabase:
    """For a command of Django's that works on one shard as on any database."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """As Django's."""
        parent: Any = super()
        parent.add_arguments(parser)
        for action in parser._actions:
            if "--database" in action.option_strings:
                # Its iteration, for the help, shows the real ones; and it contains the shards.
                action.choices = connections.settings
