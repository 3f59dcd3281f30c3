-- Replica identities that a move has lent: a table whose rows no stream can name (it has no primary key) gets one for
-- the time of an online move, for its UPDATE and DELETE would fail once it is published.
--
-- A row is written in the transaction that alters the table; at a target it is there before the table is. It says what
-- the table had before, and what it has got. Whoever takes an identity back deletes the row in the transaction that
-- alters the table, and only where no move of the shard is under way and no publication of a move has the table.
--
-- Locks: none that anybody waits for: it only creates.
CREATE TABLE pgshard.lent_identity (
    shard_id   integer NOT NULL,
    table_name text    NOT NULL,
    move_id    uuid    NOT NULL,                      -- the last move that needed it
    former     text    NOT NULL CHECK (former IN ('d', 'n', 'i', 'f')), -- as pg_class.relreplident has it
    former_index text  CHECK ((former = 'i') = (former_index IS NOT NULL)),
    lent_index text,                                  -- null: FULL
    lent_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (shard_id, table_name)
);
