"""Look-ups: from a value to its key, unique over all shards.

    lookups = Lookups(RecoveryContext(Directory.open("pgshard.toml")))
    user = lookups.find("emails", "ada@example.com")

`Lookups.find` finds the key of a value, `Lookups.claim` claims values for a key, before the
transaction that writes them. On an unsharded host nothing is claimed: its table is the look-up
(`unsharded`).

Invariant: of all claims on a value only the one in its entry can still be used, so an entry leads
to every committed row (docs/model.md). The rules are those of src/lookups.
"""

from .claimer import Claim, ClaimRequest, look_parameters
from .lookups import Claims, Lookups
from .statements import look_inside
from .unsharded import Execute

__all__ = [
    "Claim",
    "ClaimRequest",
    "Claims",
    "Execute",
    "Lookups",
    "look_inside",
    "look_parameters",
]
