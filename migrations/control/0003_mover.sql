-- Who works on moves away from this host at present. The journal says of each shard under which lease it is held; a row here
-- says who has that lease, since when, and what an operator has asked of him. A mover makes its row before it claims or takes
-- over anything, renews it with every heartbeat, and deletes it at its end.
--
-- Locks: none that anybody waits for: it only creates.

CREATE TABLE pgshard.mover (
    lease       uuid PRIMARY KEY,
    move_id     uuid NOT NULL,
    target      text NOT NULL,                        -- with move_id: the shards that go from here to one host have one mover
    holder      text NOT NULL,                        -- host and process, for people
    work        text NOT NULL CHECK (work IN ('move', 'feed')), -- bringing shards to their ends, or feeding old copies
    since       timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,
    asked       text CHECK (asked IN ('stop', 'abort')),
    asked_by    text,                                 -- host and process of whoever asked, for people
    asked_at    timestamptz
);
