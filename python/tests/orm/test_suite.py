"""Django's own tests of the ORM, on shards: only the tests that are known to fail do."""

import os
import re
import subprocess
import sys
from pathlib import Path

import django
import pytest
from world import ROOT, VERSION, World

SUITE = Path(__file__).parents[1] / "suite"
SOURCE = os.environ.get("PGSHARD_TEST_DJANGO")
"""The source distribution of the installed Django, which `script/test-python --suite` downloads."""
APPS = """
    aggregation aggregation_regress annotations basic bulk_create composite_pk constraints
        custom_pk db_functions defer delete
    delete_regress distinct_on_fields expressions expressions_case expressions_window
        extra_regress field_defaults
    filtered_relation foreign_object from_db_value generic_relations get_or_create introspection
        known_related_objects lookup
    m2m_recursive m2m_regress m2m_through many_to_many many_to_one model_fields model_inheritance
        null_queries one_to_one
    ordering prefetch_related proxy_models queries raw_query select_for_update select_related
        timezones transactions update
    xor_lookups
"""


@pytest.mark.skipif(SOURCE is None, reason="takes minutes: script/test-python --suite")
def test_djangos_own_tests_pass_on_a_shard():
    # Tests of collations need those of ICU, which some servers were built without.
    assert VERSION == "15", "script/test-python --suite runs it on PostgreSQL 15"
    world = World(shards=2)
    try:
        world.run("bootstrap")
        for host in ("db1", "db2"):
            with world.superuser(host) as connection:
                connection.execute("CREATE EXTENSION pgcrypto SCHEMA public")
        path = os.pathsep.join([str(ROOT / "python"), str(SUITE)])
        env = {**os.environ, "PGSHARD_CONFIG": str(world.path), "PYTHONPATH": path}
        env.pop("DJANGO_SETTINGS_MODULE", None)
        done = subprocess.run(
            [
                sys.executable,
                "runtests.py",
                "--settings=suite_settings",
                "--parallel=1",
                "--noinput",
                "-v2",
                *APPS.split(),
            ],
            cwd=Path(SOURCE, "tests"),
            env=env,
            capture_output=True,
            text=True,
        )
    finally:
        world.close()
    ran = set(re.findall(r"^\w+ \(([\w.]+)\)", done.stderr, re.MULTILINE))
    failed = set(re.findall(r"^(?:ERROR|FAIL): \w+ \(([\w.]+)\)", done.stderr, re.MULTILINE))
    assert len(ran) > 3000, done.stdout + done.stderr
    lines = (SUITE / "expected.txt").read_text(encoding="utf-8").splitlines()
    words = [line.split() for line in lines if line and not line.startswith("#")]
    here = "{}.{}".format(*django.VERSION)
    expected = {name for name, *versions in words if not versions or here in versions} & ran
    assert failed - expected == set(), done.stderr
    assert expected - failed == set(), "these pass by now: take them out of expected.txt"
