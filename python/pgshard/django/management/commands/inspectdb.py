"""Django's `inspectdb`, which also accepts a shard."""

from django.core.management.commands.inspectdb import Command as InspectDb

from ..database import AnyDatabase


class Command(AnyDatabase, InspectDb):
    """The same as Django's."""
