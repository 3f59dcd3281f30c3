"""Sharded models in Django's admin: a list shows one key's rows at a time, and every other page is on the shard of its object.

    @admin.register(Photo)
    class PhotoAdmin(ShardedModelAdmin):
        list_display = ["id", "title"]
        search_fields = ["title"]

The list is empty until a key is named: in the search box, where the first word is taken for the key, or in the address,
`?user_id=31341`. In the latter case the search box searches that key's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import ValidationError

from ..errors import WrongId, WrongKey
from .cluster import alias
from .routing import alias_of_id, alias_of_key, within
from .sharded import has_shard_id, key_fields

_NOWHERE = alias(0)
"""Where pages are that ask for no rows: those of an object that cannot exist, and a list without a key."""


class ShardedModelAdmin(admin.ModelAdmin):
    """For a model with a key, or an ID of its shard, or both."""

    # No rows are counted before somebody names a shard.
    show_full_result_count = False

    def get_search_fields(self, request: Any) -> Any:
        """The search fields of the class. If it has none, the key's, so that there is a box to type it in."""
        return super().get_search_fields(request) or [f"={field.attname}" for field in key_fields(self.model)]

    def get_queryset(self, request: Any) -> Any:
        """The rows of the shard that the page is on; in a list, the rows of its key."""
        found = super().get_queryset(request)
        if not getattr(request, "_pgshard_list", False):
            return found
        where, key = request._pgshard_key
        if where is None:
            return found.using(_NOWHERE).none()
        return found.using(where).filter(**({} if key is None else {key_fields(self.model)[0].attname: key}))

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> Any:
        """The same as Django's, unless the search term was the key."""
        if getattr(request, "_pgshard_list", False) and request._pgshard_key[1] is not None:
            return queryset, False
        return super().get_search_results(request, queryset, search_term)

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """The rows of one key."""
        where, key = self._named(request)
        request._pgshard_list, request._pgshard_key = True, (where, key)
        if where is None:
            names = " or ".join(field.verbose_name for field in key_fields(self.model))
            wanted = {"title": f"Name a {names}: it says on which shard the rows are"}
            extra_context = {**wanted, **(extra_context or {})}
        return self._on(where, super().changelist_view, request, extra_context)

    def changeform_view(
        self, request: Any, object_id: Any = None, form_url: str = "", extra_context: Any = None
    ) -> Any:
        """An existing row, on its shard; a new one, on the shard of the key in the form or in the address."""
        where = self._of_object(object_id) if object_id is not None else self._of_form(request)
        return self._on(where, super().changeform_view, request, object_id, form_url, extra_context)

    def delete_view(self, request: Any, object_id: str, extra_context: Any = None) -> Any:
        """On the row's shard."""
        return self._on(self._of_object(object_id), super().delete_view, request, object_id, extra_context)

    def history_view(self, request: Any, object_id: str, extra_context: Any = None) -> Any:
        """On the row's shard."""
        return self._on(self._of_object(object_id), super().history_view, request, object_id, extra_context)

    def _on(self, where: str | None, view: Callable[..., Any], *args: Any) -> Any:
        with within(where or _NOWHERE):
            response = view(*args)
            # The template also asks for rows, for instance for choices.
            return response.render() if hasattr(response, "render") and not response.is_rendered else response

    def _named(self, request: Any) -> tuple[str | None, Any]:
        """The shard that a list is for, and the key if it was typed in the search box."""
        for field in key_fields(self.model):
            for name in (field.attname, field.name, f"{field.attname}__exact", f"{field.name}__exact"):
                where = self._of_text(field, request.GET.get(name))
                if where is not None:
                    return where, None
        typed = request.GET.get("q", "").split()
        for field in key_fields(self.model)[:1] if typed else ():
            where = self._of_text(field, typed[0])
            if where is not None:
                return where, field.to_python(typed[0])
        return None, None

    def _of_form(self, request: Any) -> str | None:
        for field in key_fields(self.model):
            for name in (field.name, field.attname):
                where = self._of_text(field, request.POST.get(name, request.GET.get(name)))
                if where is not None:
                    return where
        return None

    def _of_text(self, field: Any, text: str | None) -> str | None:
        """The shard of a key that somebody typed; None if the text is not a key."""
        try:
            return None if not text else alias_of_key(field.to_python(text))
        except (ValidationError, WrongKey):
            return None

    def _of_object(self, object_id: str) -> str | None:
        """The shard of the object in a page's address."""
        if not has_shard_id(self.model):
            return None
        try:
            return alias_of_id(int(unquote(object_id)))
        except (ValueError, WrongId):
            return None


__all__ = ["ShardedModelAdmin"]
