-- Migrations of the application, and how a migration keeps a move from beginning.
--
-- Invariant: a row of pgshard.shard_migration is written in the transaction that runs the
-- migration, if the migration runs in one. A shard that moves takes its rows with it.
--
-- Locks: none that another session waits for; the step only creates.

-- The migrations that each shard has run: the application's, and pgshard's own, whose names begin
-- with "pgshard:".
CREATE TABLE pgshard.shard_migration (
    shard_id   integer NOT NULL,
    name       text    NOT NULL,
    checksum   text    NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (shard_id, name)
);

-- The application's migrations that run once in each host's database, if they were run here.
CREATE TABLE pgshard.host_migration (
    name       text PRIMARY KEY,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- The shard migrations that began here and did not succeed, one for each shard: what `migrate
-- retry` runs again. `begun`: a statement that runs outside transactions may have left something
-- behind, which belongs to the migration. It is set before the statement, and cleared when the
-- remains are removed.
CREATE TABLE pgshard.migration_attempt (
    shard_id integer PRIMARY KEY,
    name     text    NOT NULL,
    checksum text    NOT NULL,
    begun    boolean NOT NULL,
    message  text,                                    -- the error; null: no answer came
    tried_at timestamptz NOT NULL DEFAULT now()
);

-- The state of a migration on this host: the shards served here that have it, those that lack it,
-- whether it is one that runs once in each host's database and has run, and the checksums of its
-- texts. Applications call it to wait for a migration; their role may not read the tables.
--
-- Locks: none.
CREATE FUNCTION pgshard.migrated(p_name text, OUT has integer[], OUT lacks integer[],
    OUT on_host boolean, OUT checksums text[])
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(s.shard_id) FILTER (WHERE m.name IS NOT NULL), '{}'),
           coalesce(array_agg(s.shard_id) FILTER (WHERE m.name IS NULL), '{}'),
           EXISTS (SELECT FROM pgshard.host_migration h WHERE h.name = p_name),
           ARRAY(SELECT DISTINCT r.checksum
                 FROM pgshard.shard_migration r JOIN pgshard.shard o USING (shard_id)
                 WHERE r.name = p_name AND o.state <> 'moved'
                 UNION SELECT h.checksum FROM pgshard.host_migration h WHERE h.name = p_name)
    FROM pgshard.shard s
    LEFT JOIN pgshard.shard_migration m ON m.shard_id = s.shard_id AND m.name = p_name
    WHERE s.state <> 'moved'
$$;

-- Keeps the shard served here, and every fence from beginning, until the end of the transaction
-- that runs a migration. Refuses a shard that a move has claimed, because that may have read the
-- shard's definition already. A move that claims it later reads the definition again: its fence
-- waits for this lock, and it notices changes made before the fence by their stamp.
--
-- Locks: the shard's row FOR SHARE, until the end of the transaction. A fence waits for it, within
-- its lock_timeout; heartbeats of a shard that is not fenced do not touch the row.
CREATE FUNCTION pgshard.hold_for_migration(p_shard integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM pgshard.shard WHERE shard_id = p_shard AND state = 'serving' FOR SHARE;
    IF NOT FOUND OR EXISTS (SELECT FROM pgshard.move
                            WHERE shard_id = p_shard
                              AND phase NOT IN ('kept', 'completed', 'aborted')) THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s is being moved', p_shard);
    END IF;
END $$;
