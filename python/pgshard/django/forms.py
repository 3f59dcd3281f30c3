"""Django's forms of models, so that they find what is chosen of another shard before anything is
set or written."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from django.forms.models import (
    BaseModelForm,
    BaseModelFormSet,
    ModelChoiceField,
    ModelMultipleChoiceField,
)

from ..errors import WrongId, WrongKey
from .cluster import shard_of_alias
from .errors import NoShard, WrongShard
from .relations import key_of
from .routing import alias_of_instance, where_of
from .sharded import is_sharded

_POST_CLEAN = BaseModelForm._post_clean
_CHECK_VALUES = ModelMultipleChoiceField._check_values
_CONSTRUCT_FORM = BaseModelFormSet._construct_form


def strays(instance: Any, model: Any, values: dict[str, Any]) -> dict[str, Any]:
    """What these values refer to on another shard than that of the object, or of a new one with
    these values: for each field, the first row. Nothing, if that shard is not known."""
    where = where_it_will_be(instance, model, values)
    if where is None:
        return {}
    fields = (
        field
        for field in (*model._meta.fields, *model._meta.many_to_many)
        if field.remote_field is not None
    )
    found = {field.name: _stray(values.get(field.name), where) for field in fields}
    return {name: one for name, one in found.items() if one is not None}


def where_it_will_be(instance: Any, model: Any, values: dict[str, Any]) -> str | None:
    """The shard of an object, or of a new one with these values; None if it is not known."""
    is_one = isinstance(instance, Model)
    if is_one and shard_of_alias(instance._state.db) is not None:
        return where_of(instance)
    try:
        found: str | None = model._base_manager.all()._of_row(values)
        return found or (alias_of_instance(instance) if is_one else None)
    except (TypeError, ValueError, ValidationError, WrongId, WrongKey, WrongShard):
        return None  # Another check reports that.


def _stray(chosen: Any, where: str) -> Any:
    some = chosen if isinstance(chosen, (list, tuple, QuerySet)) else [chosen]
    rows = (one for one in some if isinstance(one, Model) and is_sharded(one.__class__))
    return next((one for one in rows if where_of(one) not in (None, where)), None)


def _post_clean(self: Any) -> None:
    """Looks whether what a form has chosen is on the shard of its object. Setting it would find
    that, or saving it, after the object itself was written."""
    model = self.instance.__class__
    for name, wrong in (
        strays(self.instance, model, self.cleaned_data).items() if is_sharded(model) else ()
    ):
        field = self.fields.get(name)
        if isinstance(field, ModelChoiceField):
            self.add_error(name, _no_choice(field, wrong.pk))
    _POST_CLEAN(self)


def _check_values(self: Any, value: Any) -> Any:
    """Finds no choices of several shards, which are of no list that was offered."""
    try:
        return _CHECK_VALUES(self, value)
    except NoShard:
        asked = self.queryset.filter(**{f"{self.to_field_name or 'pk'}__in": list(value)})
        if not getattr(asked.query, "pgshard_several", False):
            raise
        raise _no_choice(self, ", ".join(map(str, value))) from None


def _construct_form(self: Any, i: int, **kwargs: Any) -> Any:
    """The same as Django's. A new row of an inline form set gets the key of the object that it
    belongs to, as from a related manager."""
    form = _CONSTRUCT_FORM(self, i, **kwargs)
    owner = getattr(self, "instance", None)
    if isinstance(owner, Model) and is_sharded(self.model):
        key = key_of(owner, self.model, getattr(self, "fk", None))
        if key is not None and getattr(form.instance, key[0].attname) is None:
            setattr(form.instance, key[0].attname, key[1])
    return form


def _no_choice(field: Any, value: Any) -> ValidationError:
    return ValidationError(
        field.error_messages["invalid_choice"], code="invalid_choice", params={"value": value}
    )


def change_django() -> None:
    """Makes Django use all this."""
    BaseModelForm._post_clean, ModelMultipleChoiceField._check_values = _post_clean, _check_values
    BaseModelFormSet._construct_form = _construct_form
