"""The Django application."""

from __future__ import annotations

import sys
from typing import Any

from django.apps import AppConfig, apps
from django.core.signals import request_finished
from django.urls import converters


class PgshardConfig(AppConfig):
    """Gives connections back at the end of a request or a task, and registers the checks and the
    path converter `shardid`."""

    name = "pgshard.django"
    label = "pgshard"
    verbose_name = "pgshard"

    def ready(self) -> None:
        """Django calls this."""
        from . import checks as checks
        from .backend.pools import release, request_ended
        from .converters import ShardIdConverter

        if "shardid" not in converters.get_converters():
            converters.register_converter(ShardIdConverter, "shardid")

        if apps.is_installed("django.contrib.contenttypes"):
            from .contrib import contenttypes

            contenttypes.install()

        if apps.is_installed("rest_framework"):
            from .contrib import rest_framework as rest_framework

        request_finished.connect(request_ended, dispatch_uid="pgshard release")
        celery: Any = sys.modules.get("celery")
        if celery is not None:
            from celery import signals

            signals.task_postrun.connect(release, weak=False, dispatch_uid="pgshard release")
