"""IDs for browsers, through Django REST framework: they are texts, because JavaScript has no exact integers beyond 2^53."""

from __future__ import annotations

import re
from typing import Any

from rest_framework import serializers

from ...errors import WrongId
from ...ids import shard_of_id
from ..cluster import cluster
from ..fields import ShardedBigAutoField

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
        """The ID as an integer. Raises `ValidationError` for a number that no shard of this cluster can have made."""
        if isinstance(data, bool) or not isinstance(data, (int, str)) or not _NUMBER.fullmatch(str(data)):
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
    """A `ModelSerializer` whose IDs are texts, including those of references to sharded models."""

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
