"""Sharded models in Django's admin: a list shows one key's rows at a time, and every other page is
on the shard of its object.

    @admin.register(Photo)
    class PhotoAdmin(ShardedModelAdmin):
        list_display = ["id", "title"]
        search_fields = ["title"]

The list is empty until a key is named: in the search box, where the first word is taken for the
key, or in the address, `?user_id=31341`. In the latter case the search box searches that key's
rows, in the former what comes after the key does. `?shard=shard-31` lists all rows of a shard. A
value of a look-up may take the place of the key: `ada@example.com`, or `?email=ada@example.com`.

A field of `autocomplete_fields` offers the rows of the page's shard. Where that is not known yet,
the key is typed there too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.contrib.admin.widgets import AutocompleteSelect, AutocompleteSelectMultiple
from django.core.exceptions import ValidationError
from django.db.models.constants import LOOKUP_SEP

from ..errors import LegacyId, WrongId, WrongKey
from . import finding
from .cluster import alias, shard_of_alias, unsharded_host
from .lookups import ModelLookup, lookups_of_rows
from .reach import objects_meant
from .routing import alias_of_key, alias_of_named, is_legacy, where_of, within
from .sharded import (
    KEYS,
    OBJECT,
    has_shard_id,
    is_sharded,
    key_fields,
    pk_says_shard,
    reference_condition,
    shard_conditions,
)

_NOWHERE = alias(0)
"""Where pages are that query no rows: those of an object that cannot exist, and a list without a
key."""


_SHARD = "shard"
"""The parameter with a shard's alias in the address of a list, in that of a row with a primary key
that does not identify its shard, and in the one that an autocomplete field requests."""


class _OnShard:
    """A field that queries the rows of a shard."""

    where: str | None = None

    def get_url(self) -> str:
        """The address that it requests."""
        url: str = super().get_url()  # type: ignore[misc]
        return url if self.where is None else f"{url}?{_SHARD}={self.where}"


class _Select(_OnShard, AutocompleteSelect):
    """For one row."""


class _SelectMultiple(_OnShard, AutocompleteSelectMultiple):
    """For several rows."""


class _ShardedList(ChangeList):
    """A list of rows together with what their columns show of other models."""

    def apply_select_related(self, qs: Any) -> Any:
        """The same as Django's, which would join what is in another database: that is
        prefetched."""
        fields = {
            field.name: field for field in self.lookup_opts.fields if field.remote_field is not None
        }
        if self.list_select_related is True:
            wanted = [name for name, field in fields.items() if not field.null]
        else:
            wanted = [
                *(
                    self.list_select_related
                    or (name for name in self.list_display if name in fields)
                )
            ]
        elsewhere = [
            name for name in wanted if not self._is_here(fields.get(name.split(LOOKUP_SEP)[0]))
        ]
        here = [name for name in wanted if name not in elsewhere]
        qs = qs.select_related(*here) if here else qs
        return qs.prefetch_related(*elsewhere) if elsewhere else qs

    def get_filters_params(self, params: Any = None) -> Any:
        """The same as Django's; the shard in the address is no filter."""
        found = super().get_filters_params(params)
        found.pop(_SHARD, None)
        return found

    def url_for_result(self, result: Any) -> str:
        """The same as Django's, and the shard if the primary key does not identify it."""
        url: str = super().url_for_result(result)
        identifies = pk_says_shard(self.model) and not is_legacy(result.pk)
        return url if identifies else f"{url}?{_SHARD}={result._state.db}"

    def _is_here(self, field: Any) -> bool:
        return field is None or is_sharded(field.remote_field.model)


class ShardedModelAdmin(admin.ModelAdmin):
    """For a model with a key, or an ID of its shard, or both."""

    # No rows are counted before a shard is named.
    show_full_result_count = False

    def get_changelist(self, request: Any, **kwargs: Any) -> Any:
        """The class of the list."""
        return _ShardedList

    def get_search_fields(self, request: Any) -> Any:
        """The search fields of the class. If it has none, the key's, so that there is a box to type
        it in."""
        return super().get_search_fields(request) or [
            f"={field.attname}" for field in key_fields(self.model)
        ]

    def get_queryset(self, request: Any) -> Any:
        """The rows of the shard that the page is on; in a list, the rows of its key."""
        found = super().get_queryset(request)
        asked = self._asked(request)
        if asked is None:
            nowhere = getattr(request, "_pgshard_nowhere", False)
            return found.using(_NOWHERE).none() if nowhere else found
        where, key = asked
        if where is None:
            return found.using(_NOWHERE).none()
        return found.using(where).filter(
            **({} if key is None else {key_fields(self.model)[0].attname: key})
        )

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> Any:
        """The same as Django's, for what comes after the key if that was typed first."""
        asked = self._asked(request)
        if asked is not None and asked[1] is not None:
            search_term = " ".join(search_term.split()[1:])
        return super().get_search_results(request, queryset, search_term)

    def formfield_for_foreignkey(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        """The same as Django's; an autocomplete field queries the page's shard."""
        return super().formfield_for_foreignkey(
            db_field, request, **self._completing(_Select, db_field, request, kwargs)
        )

    def formfield_for_manytomany(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        """The same as Django's; an autocomplete field queries the page's shard."""
        kwargs = self._completing(_SelectMultiple, db_field, request, kwargs)
        return super().formfield_for_manytomany(db_field, request, **kwargs)

    def get_field_queryset(self, db: Any, db_field: Any, request: Any) -> Any:
        """The same as Django's. On an unsharded host the choices are the rows of the page's key,
        since those of its shard are not separate from others; none before the key is known."""
        found = super().get_field_queryset(db, db_field, request)
        target = db_field.remote_field.model
        by_hand = (*self.raw_id_fields, *self.get_autocomplete_fields(request))
        if unsharded_host() is None or not is_sharded(target) or db_field.name in by_hand:
            return found
        rows = target._default_manager.all() if found is None else found
        keys, owner = key_fields(target), getattr(request, "_pgshard_owner", None)
        if owner is None or len(keys) != 1:
            return rows.none()
        return rows.filter(**{keys[0].attname: owner})

    def _completing(
        self, widget: Any, field: Any, request: Any, kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        if "widget" in kwargs or field.name not in self.get_autocomplete_fields(request):
            return kwargs
        made = widget(field, self.admin_site, using=kwargs.get("using"))
        # On an unsharded host the key is typed there: its shards' rows are not separate.
        if is_sharded(field.remote_field.model) and unsharded_host() is None:
            made.where = getattr(request, "_pgshard_page", None)
        return {**kwargs, "widget": made}

    def get_preserved_filters(self, request: Any) -> Any:
        """The same as Django's, and the shard of the page where the primary key does not identify
        it: so the links of the page and what follows after saving have it."""
        kept = super().get_preserved_filters(request)
        where = request.GET.get(_SHARD)
        page = getattr(getattr(request, "resolver_match", None), "kwargs", {}).get("object_id", "")
        legacy = is_legacy(page)
        if (pk_says_shard(self.model) and not legacy) or shard_of_alias(where) is None:
            return kept
        return "&".join(filter(None, (kept, urlencode({_SHARD: where}))))

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """The rows of one key."""
        where, key = self._named(request)
        request._pgshard_list, request._pgshard_key = True, (where, key)
        if where is None:
            fields = [*key_fields(self.model), *(one.fields[0] for one in self._lookups())]
            names = " or ".join(str(field.verbose_name) for field in fields)
            wanted = {"title": f"Name a {names}: it says on which shard the rows are"}
            extra_context = {**wanted, **(extra_context or {})}
        return self._on(where, super().changelist_view, request, extra_context)

    def changeform_view(
        self, request: Any, object_id: Any = None, form_url: str = "", extra_context: Any = None
    ) -> Any:
        """An existing row, on its shard; a new one, on the shard of the key in the form or in the
        address."""
        # "Save as new" makes a row, maybe of another key, and Django does not look at the old one.
        is_new = object_id is None or (request.method == "POST" and "_saveasnew" in request.POST)
        where = self._of_form(request) if is_new else self._of_object(request, object_id)
        request._pgshard_page = where
        if unsharded_host() is not None:
            request._pgshard_owner = self._owner(request, None if is_new else object_id, where)
        return self._on(where, super().changeform_view, request, object_id, form_url, extra_context)

    def _owner(self, request: Any, object_id: str | None, where: str | None) -> Any:
        """The key of the page's object, or the one that was typed for a new one; None if it is not
        known."""
        fields = key_fields(self.model)
        if object_id is None:
            given = ((one, request.POST, request.GET) for one in fields[:1])
            texts = (
                (field, post.get(name, get.get(name)))
                for field, post, get in given
                for name in (field.name, field.attname)
            )
            return next((field.to_python(one) for field, one in texts if one), None)
        if where is None or not fields:
            return None
        try:
            rows = self.model._base_manager.using(where).filter(pk=unquote(object_id))
        except (ValidationError, ValueError):
            return None
        with objects_meant():
            return rows.values_list(fields[0].attname, flat=True).first()

    def delete_view(self, request: Any, object_id: str, extra_context: Any = None) -> Any:
        """On the row's shard."""
        where = self._of_object(request, object_id)
        return self._on(where, super().delete_view, request, object_id, extra_context)

    def history_view(self, request: Any, object_id: str, extra_context: Any = None) -> Any:
        """On the row's shard."""
        where = self._of_object(request, object_id)
        return self._on(where, super().history_view, request, object_id, extra_context)

    def _on(self, where: str | None, view: Callable[..., Any], *args: Any) -> Any:
        with within(where or _NOWHERE), objects_meant():
            response = view(*args)
            # The template also queries rows, for instance for choices.
            return (
                response.render()
                if hasattr(response, "render") and not response.is_rendered
                else response
            )

    def _asked(self, request: Any) -> tuple[str | None, Any] | None:
        """The shard that a list is for, and the key if it was typed; None for the page of an
        object."""
        if getattr(request, "_pgshard_list", False):
            named: tuple[str | None, Any] = request._pgshard_key
            return named
        page = getattr(request, "resolver_match", None)
        if page is None or page.url_name != "autocomplete":
            return None
        where = request.GET.get(_SHARD)
        return (
            (where, None)
            if shard_of_alias(where) is not None and unsharded_host() is None
            else self._typed(request.GET.get("term", ""))
        )

    def _named(self, request: Any) -> tuple[str | None, Any]:
        """The shard that a list is for, and the key if it was typed in the search box."""
        if shard_of_alias(request.GET.get(_SHARD)) is not None and unsharded_host() is None:
            return request.GET[_SHARD], None
        for name, text in request.GET.items():
            condition = shard_conditions(self.model).get(name)
            condition = condition or reference_condition(self.model, name)
            if condition is None or condition[1]:
                continue
            key = condition[0]
            where = self._of_id(text) if key is None else self._of_text(key, text)
            if where is not None:
                return where, None
        for lookup in self._lookups():
            for end in ("", "__exact", "__iexact"):
                text = request.GET.get(f"{lookup.names[0]}{end}")
                found = None if not text else finding.key_of(lookup, text)
                if found is not None:
                    return alias_of_key(found), None
        return self._typed(request.GET.get("q", ""))

    def _lookups(self) -> list[ModelLookup]:
        """The look-ups of one field that lead to the key of a list."""
        keys = [field.column for field in key_fields(self.model)[:1]]
        return [
            one
            for one in lookups_of_rows(self.model)
            if len(one.fields) == 1 and [one.definition().key] == keys
        ]

    def _typed(self, text: str) -> tuple[str | None, Any]:
        """The shard of the key that a text begins with, or of a value of a look-up, and the
        key."""
        typed = text.split()
        for field in key_fields(self.model)[:1] if typed else ():
            where = self._of_text(field, typed[0])
            if where is not None:
                return where, field.to_python(typed[0])
        for lookup in self._lookups() if typed else ():
            found = finding.key_of(lookup, typed[0])
            if found is not None:
                return alias_of_key(found), found
        return None, None

    def _of_form(self, request: Any) -> str | None:
        for field in key_fields(self.model):
            for name in (field.name, field.attname):
                where = self._of_text(field, request.POST.get(name, request.GET.get(name)))
                if where is not None:
                    return where
        return None

    def _of_text(self, field: Any, text: str | None) -> str | None:
        """The shard of a key that was typed; None if the text is not a key."""
        try:
            return None if not text or field is OBJECT else alias_of_key(field.to_python(text))
        except (ValidationError, WrongKey):
            return None

    def _of_id(self, text: str) -> str | None:
        """The shard of an ID in an address; None if the text is not an ID."""
        try:
            return alias_of_named(int(text))
        except (ValueError, WrongId):
            return None

    def _of_legacy(self, text: str) -> str | None:
        """The shard of the row with an ID from before the shards, which only an unsharded host
        finds by that alone."""
        try:
            row = self.model._base_manager.filter(pk=text).first()
        except LegacyId:
            return None
        return None if row is None else where_of(row)

    def _of_object(self, request: Any, object_id: str) -> str | None:
        """The shard of the object in a page's address. Where it is not known, there is none."""
        pk, text = self.model._meta.pk, unquote(object_id)
        if isinstance(pk, KEYS):
            where = self._of_text(pk, text)
        elif has_shard_id(self.model):
            where = self._of_id(text)
            named = request.GET.get(_SHARD)
            if where is None and is_legacy(text):
                where = named if shard_of_alias(named) is not None else self._of_legacy(text)
        else:
            named = request.GET.get(_SHARD)
            where = named if shard_of_alias(named) is not None else None
        request._pgshard_nowhere = where is None
        return where


__all__ = ["ShardedModelAdmin"]
