"""What a look-up is about: its definition, the values, and their hash.

Invariant: no I/O; and the form of a value and its hash never change, and are the same in every
language, because an entry in a shard is found by them. `tests/vectors/lookups.json` checks it.
"""

from __future__ import annotations

import datetime
import enum
import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import ValueUnusable
from .keys import KeyKind, shard_of_key
from .template import escape, quote_name

Value = int | str | uuid.UUID | datetime.date
"""The value of one column."""

NAME_MAX = 40
"""The longest name of a look-up. It is a part of names in the shards."""

_INTEGER_MAX = (1 << 63) - 1
_UPPER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


class Fold(enum.Enum):
    """Which differences between two values do not count. The value is the name in the config and in
    the shards."""

    NONE = "none"
    """Every byte counts."""
    ASCII = "ascii"
    """A to Z are a to z. Letters beyond ASCII stay as they are."""


@dataclass(frozen=True)
class Definition:
    """A look-up: columns of a table with values that belong to one key each, over all shards."""

    name: str
    """The name in the config."""
    table: str
    """The table, which every shard has, without a schema and without quotes."""
    columns: tuple[str, ...]
    """The columns that are looked up, together."""
    key: str
    """The column with the sharding key, in the same row."""
    fold: Fold = Fold.NONE

    def text(self) -> str:
        """The definition as one text. Each shard has recorded it, and every statement compares it,
        so that a program with another config is refused."""
        columns = ", ".join(map(quote_name, self.columns))
        key, fold = quote_name(self.key), self.fold.value
        return f"{quote_name(self.table)} ({columns}) key {key} fold {fold}"

    def row_sql(self) -> str:
        """A SELECT of the rows with a key and values: the key's text is the parameter `key`, the
        values are `value_0` and so on."""
        wanted = [f"{_name(self.key)}::text = %(key)s"]
        for at, name in enumerate(self.columns):
            column = _name(name)
            if self.fold is Fold.ASCII:
                column = f'pg_catalog.lower({column} COLLATE "C")'
            wanted.append(f"{column} = %(value_{at})s")
        return f"SELECT FROM {{shard}}.{_name(self.table)} WHERE {' AND '.join(wanted)}"

    def row_parameters(self, key: str, values: Sequence[Value]) -> dict[str, Value]:
        """The parameters of `row_sql`."""
        found: dict[str, Value] = {
            f"value_{at}": form(value, self.fold) if isinstance(value, str) else value
            for at, value in enumerate(values)
        }
        return {"key": key, **found}


def _name(name: str) -> str:
    """A name in a template with parameters."""
    return escape(quote_name(name)).replace("%", "%%")


def kind(value: object) -> str:
    """What the shards call the type of a value. Raises `ValueUnusable` for one that no column of a
    look-up has."""
    if isinstance(value, bool):
        pass
    elif isinstance(value, int) and -_INTEGER_MAX - 1 <= value <= _INTEGER_MAX:
        return "integer"
    elif isinstance(value, str):
        return "text"
    elif isinstance(value, uuid.UUID):
        return "uuid"
    elif isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return "date"
    raise ValueUnusable(
        f"{value!r} cannot be looked up: values are integers of 64 bits, texts, UUIDs and dates"
    )


def form(value: Value, fold: Fold) -> str:
    """A value as text, as PostgreSQL's `to_jsonb` writes it, folded."""
    if isinstance(value, datetime.date):
        text = value.isoformat()
    elif isinstance(value, str):
        text = str.__str__(value)  # Of an enumeration, `str` returns another text than its value.
    else:
        text = str(int(value)) if isinstance(value, int) else str(value)
    # Only these 26: `str.lower` changes letters of all languages.
    return text.translate(_UPPER) if fold is Fold.ASCII else text


def hash_of(values: Sequence[Value], fold: Fold) -> bytes:
    """The SHA-256 of the values of a look-up's columns. Each is written as its length in bytes, a
    colon and its text, so that no two lists of values have the same form.

    Raises `ValueUnusable`.
    """
    hash = hashlib.sha256()
    for value in values:
        kind(value)
        try:
            data = form(value, fold).encode()
        except UnicodeEncodeError:
            raise ValueUnusable(
                "a text with a lone surrogate cannot be looked up: it has no UTF-8 bytes"
            ) from None
        hash.update(b"%d:" % len(data) + data)
    return hash.digest()


def shard_of_hash(name: str, hash: bytes, shards: int) -> int:
    """The shard that has the entry: by the look-up's name and the hash, as a text key."""
    return shard_of_key(KeyKind.STRING, f"{name}:{hash.hex()}", shards)
