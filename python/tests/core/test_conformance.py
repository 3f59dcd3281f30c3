"""The kit for clients in other languages: its example passes, so does the package, and a client
that breaks a rule is found out."""

import json
import os
import subprocess
import sys

import pytest
from world import COMMAND, ROOT, VERSION, programs

REFERENCE = ROOT / "examples" / "conformance" / "client.py"

# By scene: which code of the reference client is broken, and how.
BROKEN = {
    "keys": ("return int(key) % shards", "return abs(int(key)) % shards"),
    "ids": ("bits >> 10 & 8191", "bits >> 10 & 4095"),
    "calm": ("{shard:04d}", "{shard:03d}"),
    "own-errors": ("return not (", "return None and ("),
    "unsharded": ("if there != (self.shards, self.key):", "if False:"),
    "moved-select": ('code == "SH001" or code[:2]', "code[:2]"),
    "moved-insert": ("if epoch > self.places[shard][1]:", "if False:"),
    "moved-upsert": ('in ("42", ', "in ("),
    "moved-constraint": ('in ("42", ', "in ("),
    "moved-group-by": ('in ("42", ', "in ("),
    "moved-transaction": ("again = transaction or", "again = not transaction and"),
    "old-map": ("if epoch > self.places[shard][1]:", "if True:"),
    "fence": ("if rounds > 1:", "if True:\n                    raise"),
    "fence-upsert": ('in ("42", ', "in ("),
    "fence-transaction": ("connection.transaction() if transaction else", ""),
    "dead-mover": ("look.overdue and", "False and"),
    "decided": ("unopened > 0.1", "unopened > 99"),
    "call": ("again = transaction or", "again = True or"),
    "lost": ("if found is None or found.closed:", "if found is None:"),
}


def serve(*client, only=()):
    """The kit's exit code, and its report."""
    wanted = [word for scene in only for word in ("--only", scene)]
    line = [COMMAND, "-q", "--json", "conformance", "serve", *wanted, "--", *map(str, client)]
    env = {**os.environ, "PGSHARD_PG_BIN": programs(VERSION), "PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run(line, env=env, stdout=subprocess.PIPE, text=True)
    return done.returncode, json.loads(done.stdout)


PACKAGE = ROOT / "python" / "tests" / "conformance_client.py"


def test_a_client_that_keeps_the_rules_passes():
    """Each PostgreSQL version tests one of the two clients, because one takes as long as twenty
    other tests."""
    client = PACKAGE if VERSION == "15" else REFERENCE
    code, report = serve(sys.executable, client)
    assert [(one["scene"], one["why"]) for one in report["scenes"] if not one["passed"]] == []
    assert {one["scene"] for one in report["scenes"]} == set(BROKEN)
    assert (code, report["passed"], report["failed"]) == (0, len(BROKEN), 0)


@pytest.mark.skipif(
    VERSION != "15", reason="once is enough: versions are tested by those that pass"
)
def test_a_client_that_breaks_a_rule_fails(tmp_path):
    """One process for each scene: it breaks the rule that the scene is about, and nothing else."""
    source = REFERENCE.read_text().replace("RETRY_FOR = 15.0", "RETRY_FOR = 3.0")
    for scene, (right, wrong) in BROKEN.items():
        assert right in source, scene
        (tmp_path / f"{scene}.py").write_text(source.replace(right, wrong))
    starter = tmp_path / "starter.py"
    starter.write_text(
        "import io, json, os, runpy, sys\n"
        "first = sys.stdin.readline()\n"
        "scene = json.loads(first)['scene']\n"
        "class Again:\n"
        "    def __iter__(self):\n"
        "        yield first\n"
        "        yield from iter(self.rest.readline, '')\n"
        "Again.rest, sys.stdin = sys.stdin, Again()\n"
        f"runpy.run_path({str(tmp_path)!r} + f'/{{scene}}.py', run_name='__main__')\n"
    )
    code, report = serve(sys.executable, starter)
    assert [one["scene"] for one in report["scenes"] if one["passed"]] == []
    assert (code, report["failed"]) == (1, len(BROKEN))


@pytest.mark.skipif(VERSION != "18", reason="once is enough: no server's version matters to it")
def test_a_client_that_does_not_answer_fails():
    code, report = serve("true", only=["calm", "keys"])
    assert code == 1
    assert [one["scene"] for one in report["scenes"]] == ["keys", "calm"]
    assert all("ended" in one["why"] or "listen" in one["why"] for one in report["scenes"])
    code, report = serve(sys.executable, "-c", "print('hello')", only=["keys"])
    assert (code, report["scenes"][0]["why"]) == (
        1,
        "an answer is a JSON object on one line, not hello",
    )
