"""The shard map: which host has which shard, and since which epoch; and its notation
`"0-2047, 17@3"`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .errors import ConfigError

EPOCH_MAX = (1 << 31) - 1
"""The largest epoch of a shard: it is an `integer` in the control schema."""

_HOST = re.compile(r"[A-Za-z0-9_-]{1,63}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,1000}", re.ASCII)

LISTED_MAX = 4 * 8192
"""The most shards that a list names, each counted each time. A few bytes can name all of them
again: a writer to the database of a map could otherwise fill its readers' memory."""

PROBLEMS_MAX = 100
"""How many mistakes of a list are reported."""


class Placement(NamedTuple):
    """Where a shard lives."""

    host: str
    """The host that serves it."""
    epoch: int
    """How often it was placed. Of two statements about a shard, the one with the larger epoch is
    right."""


class Range(NamedTuple):
    """Shards `first` to `last`, all with one epoch."""

    first: int
    last: int
    epoch: int


def is_host_name(name: str) -> bool:
    """Whether a text can be a host's name: 1 to 63 of A-Z, a-z, 0-9, _ and -."""
    return _HOST.fullmatch(name) is not None


def parse_ranges(text: str, shards: int) -> tuple[list[Range], list[str]]:
    """Reads a list such as `"0-2047, 17@3"`. Returns its ranges, and what is wrong with it, a
    hundred things at most."""
    ranges: list[Range] = []
    problems: list[str] = []
    listed = 0
    if not text.strip():
        return ranges, problems
    for item in text.split(","):
        found = _parse_item(item.strip(), shards)
        if isinstance(found, Range):
            listed += found.last - found.first + 1
            if listed > LISTED_MAX:
                problems.append(f"a list of more than {LISTED_MAX} shards: there are 8192 at most")
                break
            ranges.append(found)
        else:
            problems.append(found)
        if len(problems) == PROBLEMS_MAX:
            break
    return ranges, problems


def _parse_item(item: str, shards: int) -> Range | str:
    if not item:
        return "there is no range before this comma"
    span, at, epoch_text = item.partition("@")
    epoch = 1
    if at:
        epoch_text = epoch_text.strip()
        number = _number(epoch_text)
        if number is None or not 1 <= number <= EPOCH_MAX:
            return f'"{epoch_text}" is not an epoch: a number from 1 on'
        epoch = number
    first_text, dash, last_text = span.strip().partition("-")
    first = _number(first_text.strip())
    last = _number(last_text.strip()) if dash else first
    if first is None or last is None:
        return f'"{item}" is not a range such as 7 or 0-255'
    if first > last:
        return f"the range {first}-{last} runs backwards: write {last}-{first}"
    if last >= shards:
        missing = first if first >= shards else last
        return f"shard {missing} does not exist: the cluster has {shards} shards, 0 to {shards - 1}"
    return Range(first, last, epoch)


def _number(text: str) -> int | None:
    if not _NUMBER.fullmatch(text):
        return None
    # Numbers with more digits than a u64 has are past every limit; Python refuses to read thousands
    # of digits.
    return int(text) if len(text) <= 20 else 1 << 64


def print_shards(shards: Iterable[int]) -> str:
    """Shards as the shortest list of ranges: `0-255, 300`."""
    return print_ranges((shard, 1) for shard in shards)


def print_ranges(shards: Iterable[tuple[int, int]]) -> str:
    """Shards and their epochs as the shortest list of ranges; an epoch of 1 is left out."""
    runs: list[Range] = []
    for shard, epoch in shards:
        if runs and runs[-1].last + 1 == shard and runs[-1].epoch == epoch:
            runs[-1] = runs[-1]._replace(last=shard)
        else:
            runs.append(Range(shard, shard, epoch))
    return ", ".join(_print(run) for run in runs)


def _print(run: Range) -> str:
    span = str(run.first) if run.first == run.last else f"{run.first}-{run.last}"
    return span if run.epoch == 1 else f"{span}@{run.epoch}"


@dataclass(frozen=True)
class ShardMap:
    """All placements of a cluster at one version. It is immutable; `ShardMap.of` makes and checks
    it."""

    version: int
    """How often a map has been published. A map with a larger version is newer."""
    hosts: tuple[str, ...]
    """By shard: the name of its host."""
    epochs: tuple[int, ...]
    """By shard: the epoch of its placement."""
    placements: tuple[Placement, ...] = field(init=False, repr=False, compare=False)
    """By shard: both, because each statement needs one pair."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "placements", tuple(map(Placement, self.hosts, self.epochs)))

    @property
    def shards(self) -> int:
        """N, the number of shards."""
        return len(self.hosts)

    def placement(self, shard: int) -> Placement:
        """The host and the epoch of a shard."""
        return self.placements[shard]

    def ranges(self, host: str) -> str:
        """A host's shards in the notation of the config."""
        return print_ranges(
            (shard, self.epochs[shard]) for shard, on in enumerate(self.hosts) if on == host
        )

    @staticmethod
    def of(version: int, shards: int, lists: Mapping[str, str], place: str) -> ShardMap:
        """The map from these lists, by host. `place` is where the lists are, for messages.

        Raises `ConfigError` with everything that is wrong: a shard on no host or on two, and text
        that cannot be read.
        """
        problems: list[str] = []
        hosts: list[str | None] = [None] * shards
        epochs = [0] * shards
        twice: dict[tuple[str, str], list[int]] = {}
        complete = True
        for host, text in lists.items():
            ranges, wrong = parse_ranges(text, shards)
            shown = text if len(text) < 200 else f"{text[:200]}…"
            problems += [f'{host} = "{shown}": {problem}' for problem in wrong]
            complete = complete and not wrong
            if len(problems) > PROBLEMS_MAX or sum(map(len, twice.values())) > LISTED_MAX:
                break
            for first, last, epoch in ranges:
                for shard in range(first, last + 1):
                    already = hosts[shard]
                    if already is not None:
                        twice.setdefault((already, host), []).append(shard)
                    else:
                        hosts[shard], epochs[shard] = host, epoch
        for (first_host, second_host), some in twice.items():
            where = (
                f"on {first_host} and on {second_host}"
                if first_host != second_host
                else f"both on {first_host}"
            )
            problems.append(
                f"{_plural(some)} placed twice, {where}: take them out of one of the two lists"
            )
        # If a list could not be read, the gap may be an illusion.
        missing = [shard for shard, host in enumerate(hosts) if host is None]
        if complete and missing:
            problems.append(f"{_plural(missing)} on no host: add them to the list of one")
        if problems:
            raise ConfigError(place, problems)
        return ShardMap(version, tuple(host for host in hosts if host is not None), tuple(epochs))


def _plural(shards: list[int]) -> str:
    text = print_shards(sorted(set(shards)))
    return f"shard {text} is" if len(set(shards)) == 1 else f"shards {text} are"
