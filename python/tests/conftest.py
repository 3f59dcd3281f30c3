"""For all tests: lets them import the modules in this folder."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

SLOW = Path(__file__).parents[2] / "tests" / "slow.txt"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves three quarters of the slow tests to other turns of script/test."""
    turn = os.environ.get("PGSHARD_TEST_TURN", "both")
    if turn == "both":
        return
    named = [line for line in SLOW.read_text().splitlines() if line.startswith("tests/")]
    left = {name for at, name in enumerate(named) if (at + int(turn) // 2) % 4}
    rest = [item for item in items if item.nodeid.partition("[")[0] not in left]
    config.hook.pytest_deselected(items=[item for item in items if item not in rest])
    items[:] = rest
