"""Django's `flush`, which also accepts a shard."""

from django.core.management.commands.flush import Command as Flush

from ..database import AnyDatabase


class Command(AnyDatabase, Flush):
    """The same as Django's."""
