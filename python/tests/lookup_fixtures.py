"""What tests of look-ups in Django share."""

import itertools
import uuid

import pytest

_keys = itertools.count(1)


def next_key():
    """A key that no test has had."""
    return next(_keys)


@pytest.fixture
def db(world):
    """At the end the thread holds nothing."""
    yield world
    from pgshard.django.backend import pools

    pools.release()
    assert {pool.in_use for pool in pools._pools.by_host.values()} <= {0}


@pytest.fixture
def mm(world):
    from members import models

    return models


@pytest.fixture
def key():
    return next_key()


@pytest.fixture
def other():
    return next_key()


@pytest.fixture
def email():
    return f"{uuid.uuid4()}@example.com"


def integrity():
    from django.db import IntegrityError

    return pytest.raises(IntegrityError, match="belongs to key")
