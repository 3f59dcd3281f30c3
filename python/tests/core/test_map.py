"""A map that somebody else has written: it is refused in little time and memory."""

import pytest

from pgshard import ConfigError
from pgshard.map import LISTED_MAX, PROBLEMS_MAX, ShardMap, parse_ranges


@pytest.mark.parametrize("item", ["0-8191,", "7@2,"])
def test_a_list_is_as_long_as_it_can_be(item):
    ranges, problems = parse_ranges(item * 1_000_000, 8192)
    assert sum(last - first + 1 for first, last, _ in ranges) <= LISTED_MAX
    assert problems == ["a list of more than 32768 shards: there are 8192 at most"]


def test_a_hundred_mistakes_are_enough():
    assert len(parse_ranges("," * 1_000_000, 8192)[1]) == PROBLEMS_MAX
    assert parse_ranges("9" * 100_000, 8192)[1]


def test_many_hosts_with_all_shards():
    with pytest.raises(ConfigError) as refused:
        ShardMap.of(1, 8192, {f"h{n}": "0-8191" for n in range(100_000)}, "the map")
    assert len(str(refused.value)) < 1_000_000
    with pytest.raises(ConfigError) as refused:
        ShardMap.of(1, 8192, {f"h{n}": "x," * 100_000 for n in range(1_000)}, "the map")
    assert len(str(refused.value)) < 1_000_000
