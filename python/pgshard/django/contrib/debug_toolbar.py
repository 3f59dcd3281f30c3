"""The SQL panel of django-debug-toolbar, with the statements on shards. In the settings it replaces
the toolbar's own panel:

    DEBUG_TOOLBAR_PANELS = [… "pgshard.django.contrib.debug_toolbar.ShardedSQLPanel" …]

The toolbar wraps all databases when a request begins, but does not find the aliases of shards: this
panel wraps them when they are made.
"""

from __future__ import annotations

from typing import Any

from asgiref.local import Local
from debug_toolbar.panels.sql import tracking
from debug_toolbar.panels.sql.panel import SQLPanel
from django.db import connections

from ..backend.base import alias_created
from ..backend.pools import slots

_current = Local(thread_critical=True)


class ShardedSQLPanel(SQLPanel):
    """The toolbar's panel, which also sees shards."""

    panel_id = SQLPanel.__name__
    template = SQLPanel.template

    def enable_instrumentation(self) -> None:
        """Records statements from now on, in this thread."""
        super().enable_instrumentation()
        _current.panel = self
        for alias in slots().touched:
            wrapper = getattr(connections._connections, alias, None)
            if wrapper is not None:
                _watch(wrapper, self)

    def disable_instrumentation(self) -> None:
        """Stops recording."""
        super().disable_instrumentation()
        _current.panel = None
        for alias in slots().touched:
            wrapper = getattr(connections._connections, alias, None)
            if wrapper is not None:
                wrapper._djdt_logger = None


def _watch(wrapper: Any, panel: ShardedSQLPanel) -> None:
    if not hasattr(wrapper, "_djdt_cursor"):
        tracking.wrap_cursor(wrapper)
        if not hasattr(wrapper, "_djdt_cursor"):
            return  # In a test that forbids databases.
        wrapper.chunked_cursor = lambda: _chunked(wrapper)
    wrapper._djdt_logger = panel


def _chunked(wrapper: Any) -> Any:
    """The same as the toolbar's, but the new cursor takes over the connection that the other one
    had for itself."""
    logger, cursor = wrapper._djdt_logger, wrapper._djdt_chunked_cursor()
    if logger is None or isinstance(cursor, tracking.DjDTCursorWrapperMixin):
        return cursor
    mixin = (
        tracking.NormalCursorMixin if tracking.allow_sql.get() else tracking.ExceptionCursorMixin
    )
    watched = tracking.patch_cursor_wrapper_with_mixin(cursor.__class__, mixin)(
        cursor.cursor, wrapper, logger
    )
    watched.server_side_name, watched.stream, watched.pid = (
        cursor.server_side_name,
        cursor.stream,
        cursor.pid,
    )
    cursor.stream = None
    return watched


def _created(wrapper: Any, **_: Any) -> None:
    panel = getattr(_current, "panel", None)
    if panel is not None:
        _watch(wrapper, panel)


alias_created.connect(_created, dispatch_uid="pgshard debug toolbar", weak=False)
