"""What type checkers report for projects that use the package: the example, and a small one."""

import ast
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from world import VERSION

PYTHON = Path(__file__).parents[2]
EXAMPLE = PYTHON / "example"
SHOP = PYTHON / "tests" / "types"

pytestmark = pytest.mark.skipif(
    VERSION != "15", reason="once is enough: PostgreSQL's version makes no difference here"
)


def mypy(world, folder, settings, *packages, strict):
    """What mypy prints with the plugin of django-stubs."""
    config = world.folder / f"{settings}.ini"
    config.write_text(
        f"[mypy]\nstrict = {strict}\nplugins = mypy_django_plugin.main\n"
        f"cache_dir = {world.folder}/mypy\n"
        f"[mypy.plugins.django-stubs]\ndjango_settings_module = {settings}\n"
        "[mypy-rest_framework.*]\nignore_missing_imports = true\n"
    )
    path = os.pathsep.join(map(str, (PYTHON, folder)))
    env = {**os.environ, "PYTHONPATH": path, "MYPYPATH": str(PYTHON)}
    env.update(PGSHARD_CONFIG=str(world.path))
    line = [sys.executable, "-m", "mypy", "--config-file", config, *packages]
    done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def pyright(world, folder, *files, **rules):
    """The errors of pyright, which has no plugin, each with its file, line and rule."""
    config = world.folder / "pyrightconfig.json"
    wanted = {
        "include": [str(folder / file) for file in files],
        "extraPaths": [str(PYTHON), str(folder)],
        "typeCheckingMode": "standard",
        **rules,
    }
    config.write_text(json.dumps(wanted))
    line = [sys.executable, "-m", "basedpyright", "-p", config, "--outputjson"]
    done = subprocess.run(
        [*line, "--pythonpath", sys.executable], capture_output=True, text=True, cwd=world.folder
    )
    said = json.loads(done.stdout)
    assert said["summary"]["filesAnalyzed"] >= len(files)
    return [
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["rule"], one["message"])
        for one in said["generalDiagnostics"]
        if one["severity"] == "error"
    ]


def described(node):
    """The parameters of a function in a stub."""
    given = node.args
    stars = [one for one in (given.vararg, given.kwarg) if one is not None]
    names = [one.arg for one in (*given.args, *given.kwonlyargs, *stars)]
    return (
        names[1:]
        if any(ast.unparse(one) == "classmethod" for one in node.decorator_list)
        else names
    )


def test_the_stub_describes_what_exists(world):
    import pgshard.django

    stub = ast.parse((PYTHON / "pgshard" / "django" / "typed.pyi").read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    wanted = [(pgshard.django, node) for node in stub.body if isinstance(node, functions)]
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            model = getattr(pgshard.django, node.name)
            wanted += [(model, one) for one in node.body if isinstance(one, functions)]
    assert len(wanted) > 40
    for owner, node in wanted:
        there = inspect.signature(getattr(owner, node.name)).parameters
        if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in there.values()):
            assert sorted(described(node)) == sorted(there), node.name
    exported = {node.name for node in stub.body if hasattr(node, "name")}
    assert exported <= set(pgshard.django.__all__)


def test_mypy_accepts_the_example(world):
    assert "Success" in mypy(world, EXAMPLE, "website.settings", "photos", strict=False)


def test_mypy_knows_the_models_of_query_sets_and_refuses_wrong_arguments(world):
    said = mypy(world, SHOP, "shop.settings", "shop", strict=True)
    lines = [line.split(": ")[0] for line in said.splitlines() if ": error:" in line]
    assert sorted(set(lines)) == [f"shop/wrong.py:{line}" for line in (3, 4, 5)], said


def test_pyright_accepts_the_example(world):
    # Without a plugin, pyright does not know the names that Django adds to the models.
    found = pyright(
        world, EXAMPLE, "photos/models.py", "photos/actions.py", reportAttributeAccessIssue=False
    )
    assert found == []


def test_pyright_knows_the_models_of_query_sets_and_refuses_wrong_arguments(world):
    found = pyright(world, SHOP, "shop")
    assert {(file, line) for file, line, *_ in found} == {("wrong.py", n) for n in (3, 4, 5)}, found
