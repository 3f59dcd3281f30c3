"""Django's `loaddata`, for a shard too."""

from django.core.management.commands.loaddata import Command as LoadData

from ..database import AnyDatabase


class Command(AnyDatabase, LoadData):
    """As Django's."""
