-- What this host knows of the others, and what anybody may ask about migrations.
--
-- Locks: none that anybody waits for: it only creates.

-- The record of the cluster: every host that has been bootstrapped, and the shards that each had, with their epochs, written as in
-- the map. Each host has the whole of it, so that the others can say what was on one that has lost its database, or that a config does
-- not name. bootstrap writes it when it ends, and `host remove`, both under bootstrap's lock on every host. A move does not: what
-- pgshard.shard says of a shard at a later epoch counts more.
CREATE TABLE pgshard.known_host (
    host_name text PRIMARY KEY,
    shards    text NOT NULL,                          -- such as '0-127, 130@2'
    noted_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- How far a migration is here: the shards that this host serves and that have it, those that lack it, whether it is one that runs once
-- in each host's database and has, and the checksums that its texts had.
--
-- For applications that wait for a migration before they start; their role may read neither table.
CREATE FUNCTION pgshard.migrated(p_name text, OUT has integer[], OUT lacks integer[], OUT on_host boolean,
    OUT checksums text[])
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(s.shard_id) FILTER (WHERE m.name IS NOT NULL), '{}'),
           coalesce(array_agg(s.shard_id) FILTER (WHERE m.name IS NULL), '{}'),
           EXISTS (SELECT FROM pgshard.host_migration h WHERE h.name = p_name),
           ARRAY(SELECT DISTINCT r.checksum FROM pgshard.shard_migration r JOIN pgshard.shard o USING (shard_id)
                 WHERE r.name = p_name AND o.state <> 'moved'
                 UNION SELECT h.checksum FROM pgshard.host_migration h WHERE h.name = p_name)
    FROM pgshard.shard s LEFT JOIN pgshard.shard_migration m ON m.shard_id = s.shard_id AND m.name = p_name
    WHERE s.state <> 'moved'
$$;
