"""For pytest-django: makes the tests' shards after its databases, and drops them before its
databases.

@pytest.mark.django_db(databases="__all__")
def test_photo(): …
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Iterator[None]:
    """Runs after pytest-django has made its databases."""
    outcome = yield
    if fixturedef.argname != "django_db_setup" or outcome.excinfo is not None:  # type: ignore[attr-defined]
        return
    from .cluster import state

    if state.cluster is None:
        return
    from .test import begin, end

    # Each process of pytest-xdist has its own shards.
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    keep = bool(request.config.getoption("reuse_db", False)) and not request.config.getoption(
        "create_db", False
    )
    made = begin(keepdb=keep, suffix=f"_{worker}" if worker else "")
    fixturedef.addfinalizer(lambda: end(made))
