-- The records of moves: the journal of those away from this host, who works on them, and how far
-- those towards it are.
--
-- Invariant: a shard has at most one open move, by a unique index. What a move creates on a host is
-- recorded before or with its creation, so that a later mover can continue the move or clear up
-- after it. No row here decides who serves a shard.
--
-- Locks: none that another session waits for; the step only creates.

-- ------------------------------------------------------------------------------------ the source

-- The journal of the moves away from this host, a row for each shard. `epoch` is the shard's epoch
-- here; the target opens it at the next one.
CREATE TABLE pgshard.move (
    move_id     uuid    NOT NULL,
    shard_id    integer NOT NULL,
    source      text    NOT NULL,
    target      text    NOT NULL,
    mode        text    NOT NULL CHECK (mode IN ('blocking', 'online')),
    phase       text    NOT NULL CHECK (phase IN ('claimed', 'prepared', 'loaded', 'ready',
        'fenced', 'copied', 'decided', 'opened', 'kept', 'completed', 'aborted')),
    epoch       integer NOT NULL,
    attempt     integer NOT NULL DEFAULT 0,
    lease       uuid    NOT NULL,
    lease_until timestamptz NOT NULL,
    holder      text    NOT NULL,                     -- host and process of the mover, for people
    fingerprint text,                                 -- of the DDL that the target was built from
    open_token  uuid,
    back_of     uuid,                                 -- the move that this one rolls back
    -- Whether the move can be rolled back.
    back        text    NOT NULL DEFAULT 'prepared' CHECK (back IN ('prepared', 'forgone')),
    rows        bigint,
    bytes       bigint,
    timings     jsonb   NOT NULL DEFAULT '{}',        -- milliseconds by step
    last_error  text,
    -- What the operator asked of the mover, which reads it with each heartbeat. 'hold': do all but
    -- the fence, until `hold_until` or the next request. 'pause': neither copy nor fence.
    wanted      text NOT NULL DEFAULT 'go' CHECK (wanted IN ('go', 'hold', 'pause')),
    hold_until  timestamptz,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    -- The audit compares the source's rows behind the fence with the target's before its first
    -- write by the application. Null: the shard is not kept.
    audit       text CHECK (audit IN ('under way', 'audited', 'differs', 'not audited')),
    audited_at  timestamptz,
    -- What differs (table, keys, up to ten rows), and what was left out, with the reason.
    audit_found jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (move_id, shard_id)
);
-- One open move for each shard: a second claim fails on this index.
CREATE UNIQUE INDEX move_one_per_shard ON pgshard.move (shard_id)
    WHERE phase NOT IN ('kept', 'completed', 'aborted');

-- The movers at work on moves away from this host. A mover inserts its row before it claims or
-- takes over anything, renews it with each heartbeat, and deletes it at its end. pgshard.move has
-- the lease of each shard; this table has its holder, and what an operator asked of that.
CREATE TABLE pgshard.mover (
    lease       uuid PRIMARY KEY,
    move_id     uuid NOT NULL,
    target      text NOT NULL,                        -- a move has one mover for each target
    holder      text NOT NULL,                        -- host and process, for people
    work        text NOT NULL CHECK (work IN ('move', 'feed')), -- moves, or changes for old copies
    since       timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,
    asked       text CHECK (asked IN ('stop', 'abort')),
    asked_by    text,                                 -- host and process, for people
    asked_at    timestamptz
);

-- The rollback of shards that have moved away: their old copies receive the changes made on the new
-- host.
-- `stream`: the publication and the slot there.
-- `at_open`: what was removed from the old copy, as statements that restore it in the incoming
-- schema; null while nothing was. `fingerprint`: of what is left.
CREATE TABLE pgshard.back (
    move_id     uuid    NOT NULL,
    shard_id    integer NOT NULL,
    stream      text    NOT NULL,
    at_open     text,
    fingerprint text,
    taken_by    uuid,                                 -- the move that rolls back by this copy
    lost        text,                                 -- why no rollback is possible any more
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (move_id, shard_id)
);

-- What moves have created on this host and must drop later.
CREATE TABLE pgshard.ledger (
    kind       text    NOT NULL CHECK (kind IN ('incoming', 'signpost', 'left', 'old signpost',
        'publication', 'slot')),
    name       text    NOT NULL,
    move_id    uuid    NOT NULL,
    shard_id   integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, name)
);

-- A marker of each attempt: the last write to a fenced shard's host for that shard.
CREATE TABLE pgshard.marker (
    move_id  uuid    NOT NULL,
    shard_id integer NOT NULL,
    attempt  integer NOT NULL,
    made_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (move_id, shard_id, attempt)
);

-- A row shows the reader of a move's stream that everything committed before it has been sent.
CREATE TABLE pgshard.beacon (
    move_id uuid   NOT NULL,
    number  bigint NOT NULL,
    PRIMARY KEY (move_id, number)
);

-- Replica identities that moves have lent: a table without a primary key gets one while it is
-- published, because its UPDATE and DELETE would fail otherwise. `former` is what the table had.
--
-- A row is written in the transaction that alters the table; at a target, before the table exists.
-- It is deleted in the transaction that restores the identity, which happens only when the shard
-- has no open move and the table is in no publication of a move.
CREATE TABLE pgshard.lent_identity (
    shard_id   integer NOT NULL,
    table_name text    NOT NULL,
    move_id    uuid    NOT NULL,                      -- the last move that needed it
    former     text    NOT NULL CHECK (former IN ('d', 'n', 'i', 'f')), -- pg_class.relreplident
    former_index text  CHECK ((former = 'i') = (former_index IS NOT NULL)),
    lent_index text,                                  -- null: FULL
    lent_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (shard_id, table_name)
);

-- ------------------------------------------------------------------------------------ the target

-- How far the changes of an incoming shard are applied: all transactions that the source committed
-- at or before `applied_lsn`. It is written in the transaction that applies them, under the lease
-- of the mover that applies.
-- `breach`: a change that followed the shard's marker, which the fence should have prevented.
CREATE TABLE pgshard.progress (
    move_id     uuid    NOT NULL,
    shard_id    integer NOT NULL,
    lease       uuid    NOT NULL,
    applied_lsn pg_lsn  NOT NULL,
    breach      text,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (move_id, shard_id)
);

-- The chunks in which the rows of an incoming shard are copied: the rows whose first key column is
-- in [low, high), where null is open. `snapshot` is the source's snapshot of the copy, written with
-- the rows; null: not copied yet. Changes by transactions that it sees are in the chunk already;
-- all others are applied.
CREATE TABLE pgshard.chunk (
    move_id     uuid    NOT NULL,
    shard_id    integer NOT NULL,
    table_name  text    NOT NULL,
    number      integer NOT NULL,
    low         text,
    high        text,
    snapshot    text,
    rows        bigint,
    bytes       bigint,
    verified_at timestamptz,
    PRIMARY KEY (move_id, shard_id, table_name, number)
);

-- Single rows that were read from the source again, because the stream lacked some of their values.
-- `key` is the whole key as a JSON array of texts; `snapshot` is as of a chunk.
CREATE TABLE pgshard.reread (
    move_id    uuid    NOT NULL,
    shard_id   integer NOT NULL,
    table_name text    NOT NULL,
    key        text    NOT NULL,
    snapshot   text    NOT NULL,
    PRIMARY KEY (move_id, shard_id, table_name, key)
);
