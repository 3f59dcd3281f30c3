"""Runs the blocks of documents, as their readers type them."""

import os
import re
import subprocess
import sys
from pathlib import Path

from world import COMMAND, ROOT, VERSION, programs

RECIPES = "django-recipes.md"
WALK = ROOT / "python" / "tests" / "walk"


def section(title, name="django.md"):
    """The text below a heading of a page."""
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    return page.split(f"\n## {title}")[1].split("\n## ")[0]


class Shell:
    """A folder, and the commands that are run there."""

    def __init__(self, folder):
        self.folder = folder
        # The servers run as another user, who must be able to enter.
        for one in (folder, *folder.parents):
            if one.is_relative_to("/tmp") and one != Path("/tmp"):
                one.chmod(0o755)
        path = os.pathsep.join(
            [str(Path(COMMAND).parent), str(Path(sys.executable).parent), os.environ["PATH"]]
        )
        self.env = {
            **os.environ,
            "PATH": path,
            "PYTHONPATH": str(ROOT / "python"),
            "PGSHARD_PG_BIN": programs(VERSION),
        }
        for name in ("DJANGO_SETTINGS_MODULE", "PGSHARD_CONFIG"):
            self.env.pop(name, None)

    def run(self, script):
        """Runs a script to its end, or to the first command that fails; that fails the test."""
        line = ["bash", "-euxc", script]
        done = subprocess.run(line, cwd=self.folder, env=self.env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def start(self, *line):
        """Starts a program, which goes on."""
        return subprocess.Popen(line, cwd=self.folder, env=self.env)

    def down(self):
        """Ends the servers."""
        subprocess.run(
            [COMMAND, "dev", "down", "--yes"],
            cwd=self.folder,
            env=self.env,
            check=True,
            capture_output=True,
        )


def typed(text):
    """The blocks of a text as one script: blocks in Python become files, or are appended to one."""
    script = ""
    for language, block in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL):
        if language == "python":
            name, end, body = re.fullmatch(
                r"# (\S+?)(, at its end)?\n(.*)", block, re.DOTALL
            ).groups()
            block = f"cat {'>>' if end else '>'} {name} <<'END'\n{body}END\n"
        script += block
    return script
