"""Django's `dbshell`, for a shard too."""

from django.core.management.commands.dbshell import Command as DbShell

from ..database import AnyDatabase


class Command(AnyDatabase, DbShell):
    """As Django's."""
