-- What this host knows of the others: which server each of them is, and which shards it had.
--
-- Invariant: nothing here decides who serves a shard. The records tell a host's own server from
-- another one under its name, and the shards of a host that lost its database.
--
-- Locks: none that another session waits for; the step only creates.

-- Which server each host of the cluster is, as recorded on this host. It identifies a former
-- primary, or a server of another cluster, that answers under a host's name.
--
-- `generation`: 1 since bootstrap, and one more each time an operator accepted another server for
-- the host; the highest one is valid. `timeline`: the highest at which the server was seen. The
-- timeline of a row only grows.
CREATE TABLE pgshard.identity (
    host_name         text    NOT NULL,
    generation        integer NOT NULL CHECK (generation >= 1),
    system_identifier bigint  NOT NULL,
    timeline          bigint  NOT NULL,
    seen_at           timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (host_name, generation)
);

-- The record of the cluster: every host that was bootstrapped, with the shards and epochs that it
-- had, written as in the map. Each host has all of it, so that the others can name the shards of a
-- host that lost its database or is missing in a config. `bootstrap` and `host remove` write it at
-- their end, under bootstrap's lock on every host. A move does not: a later epoch in pgshard.shard
-- counts more.
CREATE TABLE pgshard.known_host (
    host_name text PRIMARY KEY,
    shards    text NOT NULL,                          -- such as '0-127, 130@2'
    noted_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
