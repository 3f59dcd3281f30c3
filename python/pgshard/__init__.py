"""pgshard: thousands of logical shards in PostgreSQL, for Python.

The core depends on no framework: `Directory` knows where a shard is, and `Recovery` decides what to
do when a statement ran into a move. `pgshard.django` builds on both.
"""

from .config import Config
from .connect import connect
from .directory import Directory
from .errors import (
    Busy,
    ClaimedTwice,
    ClaimSpent,
    ConfigError,
    HostDiffers,
    HostUnreachable,
    LayoutChanged,
    LegacyId,
    LookUpFailed,
    LookupNotComplete,
    LookupUnusable,
    NotHere,
    PgshardError,
    ShardUnavailable,
    Taken,
    TooManyWaiting,
    UnknownHost,
    ValueUnusable,
    WrongId,
    WrongKey,
    WrongServer,
)
from .hosts import Host
from .ids import Id
from .keys import KeyKind
from .lookups import Lookups
from .map import Placement, ShardMap
from .recovery import Recovery, RecoveryContext
from .stale import MoveSignal, met

__version__ = "0.1.0"

__all__ = [
    "Busy",
    "ClaimSpent",
    "ClaimedTwice",
    "Config",
    "ConfigError",
    "Directory",
    "Host",
    "HostDiffers",
    "HostUnreachable",
    "Id",
    "KeyKind",
    "LayoutChanged",
    "LegacyId",
    "LookUpFailed",
    "LookupNotComplete",
    "LookupUnusable",
    "Lookups",
    "MoveSignal",
    "NotHere",
    "PgshardError",
    "Placement",
    "Recovery",
    "RecoveryContext",
    "ShardMap",
    "ShardUnavailable",
    "Taken",
    "TooManyWaiting",
    "UnknownHost",
    "ValueUnusable",
    "WrongId",
    "WrongKey",
    "WrongServer",
    "connect",
    "met",
]
