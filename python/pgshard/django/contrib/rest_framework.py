"""IDs for browsers, through Django REST framework: they are texts, because JavaScript has no exact
integers beyond 2^53."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from django.db import transaction
from rest_framework import serializers

from ...errors import WrongId
from ..fields import ShardedBigAutoField
from ..forms import strays, where_it_will_be
from ..routing import alias_of_named, repeat_on, where_of
from ..sharded import is_sharded

T = TypeVar("T")

_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)


class ShardIdField(serializers.Field):
    """An ID that a shard has made: a text outside, an `int` inside. Clients may also send integers.

    For a reference: `PrimaryKeyRelatedField(queryset=…, pk_field=ShardIdField())`.
    """

    default_error_messages = {
        "invalid": "An ID is a text of digits.",
        "unknown": "There is no such ID.",
    }

    def to_internal_value(self, data: Any) -> int:
        """The ID as an integer. Raises `ValidationError` for a number that no shard of this cluster
        can have made."""
        if (
            isinstance(data, bool)
            or not isinstance(data, (int, str))
            or not _NUMBER.fullmatch(str(data))
        ):
            self.fail("invalid")
        try:
            alias_of_named(int(data))
        except WrongId:
            self.fail("unknown")
        return int(data)

    def to_representation(self, value: Any) -> str:
        """The ID as text."""
        return str(value)


class ShardedModelSerializer(serializers.ModelSerializer):
    """A `ModelSerializer` with IDs as texts, including those of references to sharded models."""

    serializer_field_mapping = {
        **serializers.ModelSerializer.serializer_field_mapping,
        ShardedBigAutoField: ShardIdField,
    }

    def build_relational_field(self, field_name: str, relation_info: Any) -> Any:
        """Django REST framework calls this."""
        made, kwargs = super().build_relational_field(field_name, relation_info)
        if issubclass(made, serializers.PrimaryKeyRelatedField) and isinstance(
            relation_info.related_model._meta.pk, ShardedBigAutoField
        ):
            kwargs["pk_field"] = ShardIdField()
        return made, kwargs


def install() -> None:
    """Makes the serializers of sharded models find what is of another shard before they write, and
    write all that they write in one transaction on the shard."""
    plain = serializers.ModelSerializer
    if plain.run_validation.__module__ == __name__:
        return  # Tests load the applications again.
    validate, create, update = plain.run_validation, plain.create, plain.update

    def run_validation(self: Any, data: Any = serializers.empty) -> Any:
        """The same as Django REST framework's. Raises `ValidationError` too for what is chosen of
        another shard: saving would find it after the row itself was written."""
        values = validate(self, data)
        if values and is_sharded(self.Meta.model):
            found = strays(self.instance, self.Meta.model, values)
            text = serializers.PrimaryKeyRelatedField.default_error_messages["does_not_exist"]
            chosen = {
                field.field_name: found[field.source]
                for field in self.fields.values()
                if field.source in found
            }
            if chosen:
                raise serializers.ValidationError(
                    {name: [text.format(pk_value=one.pk)] for name, one in chosen.items()}
                )
        return values

    def create_whole(self: Any, validated_data: Any) -> Any:
        """The same as Django REST framework's; the row and its relations are written together."""
        model = self.Meta.model
        where = where_it_will_be(None, model, validated_data) if is_sharded(model) else None
        # What is created takes its values out of the dictionary.
        return _together(where, lambda: create(self, dict(validated_data)))

    def update_whole(self: Any, instance: Any, validated_data: Any) -> Any:
        """The same as Django REST framework's; the row and its relations are written together."""
        where = where_of(instance) if is_sharded(instance.__class__) else None
        return _together(where, lambda: update(self, instance, dict(validated_data)))

    plain.run_validation, plain.create, plain.update = run_validation, create_whole, update_whole


def _together(where: str | None, write: Callable[[], T]) -> T:
    """Writes in a transaction on a shard; without a shard, as usual."""
    if where is None:
        return write()

    def whole() -> T:
        with transaction.atomic(using=where):
            return write()

    return repeat_on(where, whole)


install()
