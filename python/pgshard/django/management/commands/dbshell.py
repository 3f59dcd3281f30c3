"""Django's `dbshell`, which also accepts a shard."""

from django.core.management.commands.dbshell import Command as DbShell

from ..database import AnyDatabase


class Command(AnyDatabase, DbShell):
    """The same as Django's."""
