"""Django's `inspectdb`, for a shard too."""

from django.core.management.commands.inspectdb import Command as InspectDb

from ..database import AnyDatabase


class Command(AnyDatabase, InspectDb):
    """As Django's."""
