"""The package as a wheel: the same for all machines, with its types, and nothing else."""

import shutil
import subprocess
import sys
import zipfile

from world import ROOT


def test_the_wheel_is_pure_and_has_the_package_only(tmp_path):
    copy = tmp_path / "python"
    copy.mkdir()
    shutil.copytree(
        ROOT / "python" / "pgshard", copy / "pgshard", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / "python" / name, copy)
    line = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    done = subprocess.run(
        [*line, "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path), str(copy)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == "pgshard-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    assert {name.split("/")[0] for name in names} == {"pgshard", "pgshard-0.1.0.dist-info"}
    sources = {str(path.relative_to(copy)) for path in (copy / "pgshard").rglob("*.py")}
    assert sources | {"pgshard/py.typed"} <= names
