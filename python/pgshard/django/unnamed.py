"""How Django's transactions find out that no database was named. A bare `@transaction.atomic` names
`default`, as if the application had done so."""

from __future__ import annotations

from typing import Any

from django.db import DEFAULT_DB_ALIAS


class Unnamed(str):
    """The alias of the default database, where no database was named."""

    __slots__ = ()


def change_django() -> None:
    """Makes Django use it. The settings call this, because a decorator is applied when its module
    is imported."""
    from django.db import transaction

    module: Any = transaction
    module.DEFAULT_DB_ALIAS = Unnamed(DEFAULT_DB_ALIAS)
