"""IDs for browsers, through Django REST framework: they are texts, because JavaScript has no exact
integers beyond 2^53."""

from __future__ import annotations

import re
from typing import Any

from rest_framework import serializers

from ...errors import WrongId
from ...ids import shard_of_id
from ..cluster import cluster
from ..fields import ShardedBigAutoField
from ..forms import strays
from ..sharded import is_sharded

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
            shard_of_id(int(data), cluster().shards)
        except WrongId:
            self.fail("unknown")
        return int(data)

    def to_representation(self, value: Any) -> str:
        """The ID as text."""
        return str(value)


class ShardedModelSerializer(serializers.ModelSerializer):
    """A `ModelSerializer` whose IDs are texts, including those of references to sharded models.
    Where the shard of its row is known, rows of other shards do not exist for it."""

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

    def run_validation(self, data: Any = serializers.empty) -> Any:
        """Django REST framework calls this. Raises `ValidationError` too for what is chosen of
        another shard: saving would find it after the row itself was written."""
        values = super().run_validation(data)
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
