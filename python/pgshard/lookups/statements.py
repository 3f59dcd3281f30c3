"""The statements of the protocol, the same as in src/lookups/statements.rs. Each is a template of a
shard's schema, with psycopg's named parameters.

`CLAIM`, `TAKE`, `CLAIM_ALL` and the transaction of the kill commit with `synchronous_commit = on`
at least: the protocol relies on them, whatever the session's setting.
"""

from __future__ import annotations

from ..values import Definition

# Sets `synchronous_commit` for this transaction, unless it is `on` or more. It is true.
_DURABLY = (
    "pg_catalog.set_config('synchronous_commit', CASE WHEN"
    " pg_catalog.current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')"
    " THEN 'on' ELSE pg_catalog.current_setting('synchronous_commit') END, true) IS NOT NULL"
)
# What the shard knows of the look-up.
_KNOWN = (
    "known AS (SELECT l.name, l.kinds, l.definition, l.definition = %(definition)s::text AS same"
    " FROM {shard}.pgshard_lookup l WHERE l.name = %(lookup)s::text)"
)
_FITS = "k.same AND k.kinds = %(kinds)s::text[]"
_CLAIMED_US = "pg_catalog.floor(EXTRACT(EPOCH FROM {}claimed_at) * 1000000)::bigint AS claimed_us"
# What a claimer gets: the entry as it is now, and whether it is its own.
_ENTRY = (
    "SELECT k.definition, k.kinds, e.key, e.claim, e.claimed_us, e.age_ms, e.won"
    " FROM known k LEFT JOIN (SELECT c.*, true AS won FROM changed c UNION ALL SELECT x.key,"
    f" x.claim, {_CLAIMED_US.format('x.')},"
    " pg_catalog.floor(EXTRACT(EPOCH FROM (pg_catalog.clock_timestamp() - x.claimed_at)) *"
    " 1000)::bigint AS age_ms, false AS won FROM {shard}.pgshard_entry x"
    " WHERE x.lookup = %(lookup)s AND x.hash = %(hash)s::bytea"
    " AND NOT EXISTS (SELECT FROM changed)) e ON true"
)
_RETURNING = f"RETURNING key, claim, {_CLAIMED_US.format('')}, 0::bigint AS age_ms"
# Whether a claim is at most 15 minutes old.
_IS_YOUNG = (
    "u.made > 1000000 * EXTRACT(EPOCH FROM pg_catalog.clock_timestamp() - interval '15 minutes')"
)

CLAIM = (
    f"WITH {_KNOWN}, changed AS (INSERT INTO {{shard}}.pgshard_entry (lookup, hash, key, claim,"
    " claimed_at) SELECT k.name, %(hash)s::bytea, %(key)s::text, pg_catalog.gen_random_uuid(),"
    f" pg_catalog.clock_timestamp() FROM known k WHERE {_FITS} AND {_DURABLY}"
    f" ON CONFLICT DO NOTHING {_RETURNING}) {_ENTRY}"
)
"""Inserts the entry of a hash for a key with a new claim; or finds the one that is there."""

TAKE = (
    f"WITH {_KNOWN}, changed AS (UPDATE {{shard}}.pgshard_entry SET key = %(key)s::text,"
    " claim = pg_catalog.gen_random_uuid(), claimed_at = pg_catalog.clock_timestamp() FROM known k"
    " WHERE lookup = k.name AND hash = %(hash)s::bytea AND claim = %(claim)s::uuid"
    f" AND {_FITS} AND {_DURABLY} {_RETURNING}) {_ENTRY}"
)
"""Gives the entry to a key with a new claim, if it still has this claim."""

CLAIM_ALL = (
    f"WITH {_KNOWN}, changed AS (INSERT INTO {{shard}}.pgshard_entry (lookup, hash, key, claim,"
    " claimed_at) SELECT k.name, w.hash, w.key, pg_catalog.gen_random_uuid(),"
    " pg_catalog.clock_timestamp() FROM known k,"
    " ROWS FROM (pg_catalog.unnest(%(hashes)s::bytea[]), pg_catalog.unnest(%(keys)s::text[]))"
    f" AS w(hash, key) WHERE {_FITS} AND {_DURABLY} ORDER BY w.hash"
    f" ON CONFLICT DO NOTHING RETURNING hash, claim, {_CLAIMED_US.format('')})"
    " SELECT k.definition, k.kinds, c.hash, c.claim, c.claimed_us"
    " FROM known k LEFT JOIN changed c ON true"
)
"""Inserts the entries of hashes for keys with new claims, and returns those that were inserted."""

BEFORE_KILL = (
    "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE;"
    f" SELECT pg_catalog.set_config('lock_timeout', '500ms', true), {_DURABLY}"
)
"""Begins a transaction. Bounds how long `VOID` waits for a transaction that uses the claim, and
makes the commit durable."""

VOID = (
    "INSERT INTO {shard}.pgshard_claim (lookup, hash, claim, key, outcome, xact, at)"
    " VALUES (%(lookup)s::text, %(hash)s::bytea, %(claim)s::uuid, %(key)s::text, 'void',"
    " pg_catalog.pg_current_xact_id(), pg_catalog.clock_timestamp()) ON CONFLICT DO NOTHING"
)
"""Makes a claim unusable. Waits for a transaction in flight that uses it."""

USE = (
    f"WITH {_KNOWN}, wanted AS (SELECT * FROM ROWS FROM (pg_catalog.unnest(%(hashes)s::bytea[]),"
    " pg_catalog.unnest(%(claims)s::uuid[]), pg_catalog.unnest(%(keys)s::text[]),"
    " pg_catalog.unnest(%(made)s::bigint[])) AS u(hash, claim, key, made)),"
    " used AS (INSERT INTO {shard}.pgshard_claim (lookup, hash, claim, key, outcome, xact, at)"
    " SELECT k.name, u.hash, u.claim, u.key, 'used', pg_catalog.pg_current_xact_id(),"
    f" pg_catalog.clock_timestamp() FROM known k, wanted u WHERE k.same AND {_IS_YOUNG}"
    " ORDER BY u.hash ON CONFLICT DO NOTHING RETURNING true)"
    " SELECT k.definition, (SELECT count(*) FROM used) + (SELECT count(*) FROM wanted u"
    " JOIN {shard}.pgshard_claim c ON c.lookup = k.name AND c.hash = u.hash AND c.claim = u.claim"
    " WHERE c.outcome = 'used' AND c.xact = pg_catalog.pg_current_xact_id()"
    " AND c.at >= pg_catalog.now()) FROM known k"
)
"""Uses claims, unless they are spent or were made more than 15 minutes ago. Returns the shard's
definition, and how many of them this transaction has used, now or before."""

FIND = (
    "SELECT l.definition, l.kinds, l.state, e.hash, e.key FROM {shard}.pgshard_lookup l"
    " LEFT JOIN {shard}.pgshard_entry e ON e.lookup = l.name AND e.hash = ANY(%(hashes)s::bytea[])"
    " WHERE l.name = %(lookup)s::text"
)
"""The entries of hashes, and what the shard knows of the look-up."""


def look(definition: Definition) -> str:
    """Whether a key has a row with these values, and whether the claim is spent. Takes no lock."""
    return (
        f"SELECT EXISTS ({definition.row_sql()}), EXISTS (SELECT FROM {{shard}}.pgshard_claim c"
        " WHERE c.lookup = %(lookup)s::text AND c.hash = %(hash)s::bytea"
        " AND c.claim = %(claim)s::uuid)"
    )


def look_inside(definition: Definition) -> str:
    """Whether a key has a row with these values, and whether this transaction has used the
    claim."""
    return (
        f"SELECT EXISTS ({definition.row_sql()}), EXISTS (SELECT FROM {{shard}}.pgshard_claim c"
        " WHERE c.lookup = %(lookup)s::text AND c.hash = %(hash)s::bytea"
        " AND c.claim = %(claim)s::uuid AND c.outcome = 'used'"
        " AND c.xact = pg_catalog.pg_current_xact_id_if_assigned()"
        " AND c.at >= pg_catalog.now())"
    )


def look_again(definition: Definition) -> str:
    """Whether a key has a row with these values."""
    return f"SELECT EXISTS ({definition.row_sql()})"
