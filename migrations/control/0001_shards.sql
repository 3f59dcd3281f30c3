-- The shards of a host: the tables that record which shards it has, and how a router reads them.
--
-- The steps of this folder make the schema pgshard. A host runs each of them once, in one
-- transaction, as the role that owns the shards' schemas. No superuser, no extension.
-- PostgreSQL 14 to 19.
--
-- Invariant: who serves a shard changes only by a compare-and-swap on one row of pgshard.shard, in
-- the functions of 0004_ownership.sql and 0006_repair.sql. A function that finds another row than
-- it was called for raises SH002 and changes nothing.
--
-- Locks: none that another session waits for; the step only creates.

CREATE SCHEMA pgshard;

-- One row: the settings of the cluster, equal on all of its hosts, and the name of this host in the
-- config.
CREATE TABLE pgshard.cluster (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    shards        integer NOT NULL CHECK (shards BETWEEN 1 AND 8192),
    epoch_ms      bigint  NOT NULL,
    schema_prefix text    NOT NULL,
    host_name     text    NOT NULL,
    -- How a key becomes a shard: docs/keys.md. On an unsharded host 'unsharded-' comes before it:
    -- a client that does not know such hosts sends nothing.
    key_kind      text    NOT NULL DEFAULT 'integer',
    created_at    timestamptz NOT NULL DEFAULT now(),
    legacy_below  bigint  NOT NULL DEFAULT 0           -- IDs below it are older than the shards
);

-- The steps of this folder that the host has run. `checksum`: SHA-256 of the step's text.
CREATE TABLE pgshard.control_migration (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- The state of a shard on this host. A shard without a row was never here.
--   serving: this host owns the shard since `epoch`.
--   fenced:  a signpost stands in the shard's place until `fence_deadline`, while move `move_id`
--            works on it in its attempt `attempt`.
--   moved:   `peer` owns the shard since `epoch`. A signpost stands here.
-- `opened_lsn`: the rows that a move brought were committed before this position, the writes of the
-- application after it.
CREATE TABLE pgshard.shard (
    shard_id       integer PRIMARY KEY CHECK (shard_id BETWEEN 0 AND 8191),
    schema_name    text    NOT NULL UNIQUE,
    state          text    NOT NULL CHECK (state IN ('serving', 'fenced', 'moved')),
    epoch          integer NOT NULL CHECK (epoch >= 1),
    peer           text,
    move_id        uuid,
    attempt        integer,
    lease          uuid,
    fence_deadline timestamptz,
    last_fence_at  timestamptz,
    open_token     uuid,
    opened_lsn     pg_lsn,
    CHECK (state <> 'moved' OR peer IS NOT NULL),
    CHECK (state <> 'fenced' OR (peer, move_id, attempt, lease, fence_deadline) IS NOT NULL)
);

-- On an unsharded host one row: it serves all shards of the cluster from the tables of one schema,
-- since `epoch`. Such a host has no rows in pgshard.shard. On other hosts the table is empty.
CREATE TABLE pgshard.whole (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    schema_name text    NOT NULL,
    state       text    NOT NULL CHECK (state IN ('serving')),
    epoch       integer NOT NULL CHECK (epoch >= 1)
);

-- The shards that a move is bringing to this host. They are not in pgshard.shard, so that an
-- aborted move leaves that table as it was.
-- `ready_attempt`: everything is in place for this attempt; only the open is missing.
-- `open_hash`: SHA-256 of the token that the source publishes when it has decided, and not before.
-- `stream_from`: of an online move, the position from which the source's changes are needed. A slot
-- that begins later would miss some.
-- `at_open`: statements that the open runs in the incoming schema: they create what must not exist
-- while changes are applied, such as triggers and foreign keys.
CREATE TABLE pgshard.incoming (
    shard_id      integer PRIMARY KEY,
    schema_name   text    NOT NULL,
    move_id       uuid    NOT NULL,
    lease         uuid    NOT NULL,
    source        text    NOT NULL,
    epoch         integer NOT NULL,
    ready_attempt integer,
    open_hash     text,
    stream_from   pg_lsn,
    at_open       text,
    created_at    timestamptz NOT NULL DEFAULT now()
);

-- What a router needs to know of one shard on this host, in one round trip; nulls where there is no
-- row. Times are intervals, so that the two clocks need not agree. An unsharded host answers for
-- all shards of the cluster from pgshard.whole.
--
-- Locks: none.
CREATE FUNCTION pgshard.look(p_shard integer, OUT state text, OUT epoch integer, OUT peer text,
    OUT deadline_in_ms double precision, OUT last_fence_ago_ms double precision,
    OUT open_token uuid, OUT incoming_epoch integer)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(s.state, w.state), coalesce(s.epoch, w.epoch), s.peer,
           extract(epoch FROM s.fence_deadline - clock_timestamp())::double precision * 1000,
           extract(epoch FROM clock_timestamp() - s.last_fence_at)::double precision * 1000,
           s.open_token, i.epoch
    FROM (VALUES (p_shard)) AS asked(shard_id)
    LEFT JOIN pgshard.shard s USING (shard_id)
    LEFT JOIN pgshard.incoming i USING (shard_id)
    LEFT JOIN pgshard.whole w ON s.shard_id IS NULL AND p_shard >= 0
        AND p_shard < (SELECT c.shards FROM pgshard.cluster c)
$$;
