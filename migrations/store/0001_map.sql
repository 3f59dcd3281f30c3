-- The shard map of one cluster, in the control database: `[map] store = "postgres"`. Run once, in
-- one transaction, by the role that publishes. Any database will do, one of the hosts' or its own.
-- No superuser, no extension. PostgreSQL 13 to 18.
--
-- Invariant: the map is replaced only by pgshard_map.publish, and only by a caller that names the
-- version it replaces.
--
-- Locks of this step: none that another session waits for; it only creates.

CREATE SCHEMA pgshard_map;
GRANT USAGE ON SCHEMA pgshard_map TO PUBLIC;

CREATE TABLE pgshard_map.format (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version  integer NOT NULL
);
INSERT INTO pgshard_map.format (version) VALUES (1);
GRANT SELECT ON pgshard_map.format TO PUBLIC;

-- `placement`: the config's lists by host, {"db1": "0-2047", "db2": "2048-4095, 17@3"}.
-- `publication`: different for every map ever stored here. After a failover that lost a map, its
-- version may be used a second time, for another map.
CREATE TABLE pgshard_map.map (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version     bigint  NOT NULL CHECK (version >= 1),
    shards      integer NOT NULL CHECK (shards BETWEEN 1 AND 8192),
    placement   jsonb   NOT NULL,
    publication uuid    NOT NULL
);
GRANT SELECT ON pgshard_map.map TO PUBLIC;

-- The newest thousand maps, including the current one. For people: nothing is decided by it.
CREATE TABLE pgshard_map.history (
    version      bigint PRIMARY KEY,
    shards       integer NOT NULL,
    placement    jsonb   NOT NULL,
    published_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    role         text    NOT NULL DEFAULT session_user,
    publisher    text    NOT NULL,                     -- machine and process
    reason       text    NOT NULL
);
GRANT SELECT ON pgshard_map.history TO PUBLIC;

-- Replaces the map of version `a_expected`, or stores the first one if that is NULL. `was` is the
-- version found. Sessions that listen to pgshard_map are notified at commit.
--
-- Locks: the row of the map, until the end of the transaction; readers do not wait for it.
CREATE FUNCTION pgshard_map.publish(a_expected bigint, a_version bigint, a_shards integer,
    a_placement jsonb, a_publisher text, a_reason text, OUT published boolean, OUT was bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    published := false;
    IF a_expected IS NULL THEN
        INSERT INTO pgshard_map.map (version, shards, placement, publication)
            VALUES (a_version, a_shards, a_placement, pg_catalog.gen_random_uuid())
            ON CONFLICT DO NOTHING;
        published := FOUND;
    END IF;
    IF NOT published THEN
        SELECT m.version INTO was FROM pgshard_map.map m FOR UPDATE;
        IF a_expected IS NULL OR was IS DISTINCT FROM a_expected THEN
            RETURN;
        END IF;
        UPDATE pgshard_map.map SET version = a_version, shards = a_shards, placement = a_placement,
            publication = pg_catalog.gen_random_uuid();
        published := true;
    END IF;
    INSERT INTO pgshard_map.history (version, shards, placement, publisher, reason)
        VALUES (a_version, a_shards, a_placement, pg_catalog.left(a_publisher, 200),
            pg_catalog.left(a_reason, 1000))
        -- A version is used a second time after a failover that lost the first.
        ON CONFLICT (version) DO UPDATE SET shards = excluded.shards,
            placement = excluded.placement, published_at = excluded.published_at,
            role = excluded.role, publisher = excluded.publisher, reason = excluded.reason;
    DELETE FROM pgshard_map.history h
        WHERE h.version <= (SELECT o.version FROM pgshard_map.history o
            ORDER BY o.version DESC OFFSET 1000 LIMIT 1);
    PERFORM pg_catalog.pg_notify('pgshard_map', a_version::text);
END
$$;
