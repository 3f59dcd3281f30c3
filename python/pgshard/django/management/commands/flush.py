"""Django's `flush`, for a shard too."""

from django.core.management.commands.flush import Command as Flush

from ..database import AnyDatabase


class Command(AnyDatabase, Flush):
    """As Django's."""
