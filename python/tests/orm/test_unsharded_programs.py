"""The random programs on an unsharded host, where each answer is that of one database or a
refusal: with IDs of shards and with such from before them, and with queries without a key refused
and run."""

import os

import pytest
from one_database import PLAIN, OneDatabase, make_tables, register, used
from programs import OneDatabase as OnOneDatabase
from programs import find_differences

from . import test_programs, test_query_programs

PROGRAMS = (test_programs.RelationProgram, test_query_programs.QueryProgram)


@pytest.fixture(scope="module")
def old(world):
    from django.contrib.contenttypes.models import ContentType
    from django.db import connections
    from kinds import models as kinds

    from pgshard.django.sharded import has_shard_id

    made = OneDatabase("")
    try:
        register(made)
        models = [one for one in vars(kinds.MODELS).values() if not one._meta.proxy]
        # Other tests add models with generic references.
        make_tables(ContentType, *models)
        for model in models:
            if has_shard_id(model) and model._meta.pk.name == "id":
                names = [field.attname for field in model._meta.local_fields]
                key = next((name for name in ("user_id", "owner_id") if name in names), None)
                table = model._meta.db_table
                made.wide_ids(table, **({"of": "to_id"} if key is None else {"key": key}))
        yield made
    finally:
        connections[PLAIN].close()
        made.close()


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("unrouted", ["refuse", "log"])
def test_answers_are_those_of_one_database(old, program, unrouted):
    """Each second program has IDs from before the shards."""

    def begin(seed):
        with old.connect("db1") as connection:
            how = "ENABLE" if seed % 2 else "DISABLE"
            rows = connection.execute(
                "SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname = 'wide'"
            )
            for (table,) in rows.fetchall():
                connection.execute(f"ALTER TABLE {table} {how} TRIGGER wide")

    old.configure(f'unrouted = "{unrouted}"\n')
    with used(old):
        counts = find_differences(program, OnOneDatabase, begin)
    assert counts["programs"]
    assert counts["refusals"] or os.environ.get("PGSHARD_TEST_SEED")
