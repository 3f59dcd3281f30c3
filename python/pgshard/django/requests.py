"""Requests begin without a chosen shard: not with that of a test which calls the view, nor with one
that a generator of an earlier request has left in the thread."""

from __future__ import annotations

from typing import Any

from django.core.handlers.base import BaseHandler

from .routing import within

_GET_RESPONSE, _GET_RESPONSE_ASYNC = BaseHandler.get_response, BaseHandler.get_response_async


def _get_response(self: Any, request: Any) -> Any:
    with within(None):
        return _GET_RESPONSE(self, request)


async def _get_response_async(self: Any, request: Any) -> Any:
    with within(None):
        return await _GET_RESPONSE_ASYNC(self, request)


def change_django() -> None:
    """Makes Django use all this."""
    BaseHandler.get_response = _get_response
    BaseHandler.get_response_async = _get_response_async
