"""docs/django.md is true: what it tells one to type is typed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from world import COMMAND, ROOT, VERSION, programs


@pytest.mark.skipif(VERSION != "15", reason="once is enough: versions are tested elsewhere")
def test_from_an_empty_folder_to_a_move(tmp_path):
    page = (ROOT / "docs" / "django.md").read_text(encoding="utf-8")
    section = page.split("## From an empty folder")[1].split("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 6
    # The writer ends even where a command before its end fails.
    script, down = "trap 'touch moved' EXIT\n" + "".join(blocks[:-1]), blocks[-1]
    # The servers run as another user, who must be let through.
    for folder in (tmp_path, *tmp_path.parents):
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o755)
    path = os.pathsep.join([str(Path(COMMAND).parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "python"), "PGSHARD_PG_BIN": programs(VERSION)}
    for name in ("DJANGO_SETTINGS_MODULE", "PGSHARD_CONFIG"):
        env.pop(name, None)
    try:
        done = subprocess.run(["bash", "-euxc", script], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        subprocess.run(["bash", "-euxc", down], cwd=tmp_path, env=env, check=True, capture_output=True)
    said = done.stdout
    assert "photos written, no error" in said
    assert "Traceback" not in done.stderr
    places = re.findall(r"shard-45 shard_0045 (db\d)", said)
    assert len(places) == 2
    assert places[0] != places[1]
