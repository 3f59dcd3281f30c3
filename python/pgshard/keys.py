"""From a key to its shard: integers by remainder, texts and UUIDs by a hash (docs/keys.md).

Invariant: the shard of a key never changes, and is the same in every language.
`tests/vectors/keys.json` checks it.
"""

from __future__ import annotations

import enum
import hashlib
import operator
import re
import uuid

from .errors import WrongKey

SHARDS_MAX = 8192
"""How many shards a cluster can have at most: 13 bits of an ID hold the shard."""

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_HEX = "[0-9a-fA-F]"
_HYPHENATED = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_UUID = re.compile(
    rf"{_HEX}{{32}}|{_HYPHENATED}|\{{{_HYPHENATED}\}}|urn:uuid:{_HYPHENATED}", re.ASCII
)


INTEGER_MIN = -(1 << 127)
INTEGER_MAX = (1 << 128) - 1
"""The smallest and the largest integer key: what 128 bits hold, signed or unsigned."""


class KeyKind(enum.Enum):
    """What the keys of a cluster are. The value is the name in config and databases."""

    INTEGER = "integer"
    STRING = "string:sha256"
    UUID = "uuid:sha256"


def shard_of_key(kind: KeyKind, key: object, shards: int) -> int:
    """The shard of a key, in a cluster with `shards` shards.

    Keys are `int` (or anything with `__index__`), `str` or `uuid.UUID`, depending on the cluster's
    kind of keys; nothing is converted.

    Raises `WrongKey` for a value of another type, `bool` among them, and for an integer of more
    than 128 bits.
    """
    if kind is KeyKind.INTEGER and (
        type(key) is int or (not isinstance(key, bool) and hasattr(key, "__index__"))
    ):
        number = operator.index(key)
        if INTEGER_MIN <= number <= INTEGER_MAX:
            # Python's remainder is Euclidean for a positive N.
            return number % shards
    elif kind is KeyKind.STRING and isinstance(key, str):
        try:
            return _hash(key.encode()) % shards
        except UnicodeEncodeError:
            raise WrongKey(
                "the key is a text with a lone surrogate, which has no UTF-8 bytes to hash"
            ) from None
    elif kind is KeyKind.UUID and isinstance(key, uuid.UUID):
        return _hash(key.bytes) % shards
    raise WrongKey(f"{key!r} is no key of this cluster, whose keys are {kind.value}")


def key_of_text(kind: KeyKind, text: str) -> int | str | uuid.UUID:
    """The key that a text means, for instance on a command line.

    Raises `WrongKey` if the text is not a key of this kind.
    """
    if kind is KeyKind.STRING:
        return text
    if kind is KeyKind.INTEGER and _INTEGER.fullmatch(text):
        return int(text)
    if kind is KeyKind.UUID and _UUID.fullmatch(text):
        return uuid.UUID(text)
    raise WrongKey(f"{text!r} is no key of this cluster, whose keys are {kind.value}")


def _hash(data: bytes) -> int:
    # The first 60 bits, so that the number is positive in every language's 64-bit integer.
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big") >> 4
