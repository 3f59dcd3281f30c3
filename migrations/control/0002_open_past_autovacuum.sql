-- The open waits for an autovacuum of its tables for as long as it takes to make it end.
--
-- Locks: the function's row in pg_proc, for this one transaction.

-- Open, on the target: the incoming shard becomes the one that is served. Not for callers: pgshard.open and
-- pgshard.finish_open have checked that they may.
--
-- Locks: the shard's row, the tuples of pg_namespace that are renamed, and what the statements of at_open take on tables that
-- nobody uses yet, until the end of the transaction.
CREATE OR REPLACE FUNCTION pgshard.open_incoming(i pgshard.incoming) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s   pgshard.shard%ROWTYPE;
    old text;
    needed interval;
BEGIN
    PERFORM pgshard.commit_durably();
    SELECT * INTO s FROM pgshard.shard WHERE shard_id = i.shard_id FOR UPDATE;
    IF FOUND AND (s.state <> 'moved' OR s.epoch >= i.epoch) THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s is %s here at epoch %s, not to be opened at %s', i.shard_id, s.state, s.epoch, i.epoch);
    END IF;
    IF FOUND THEN
        -- The signpost of an earlier move away. Renamed, not dropped: a rename waits for nobody.
        old := i.schema_name || '__signpost_e' || s.epoch;
        INSERT INTO pgshard.ledger (kind, name, move_id, shard_id) VALUES ('old signpost', old, i.move_id, i.shard_id);
        EXECUTE format('ALTER SCHEMA %I RENAME TO %I', i.schema_name, old);
    END IF;
    IF i.at_open IS NOT NULL THEN
        -- An autovacuum ends for whoever has waited for its table for deadlock_timeout. Who gives up earlier, as a router does
        -- that would not wait for a row, finds it there each time, for as long as it takes.
        needed := current_setting('deadlock_timeout')::interval + interval '1 s';
        IF current_setting('lock_timeout')::interval > interval '0' AND current_setting('lock_timeout')::interval < needed THEN
            PERFORM set_config('lock_timeout', (extract(epoch FROM needed) * 1000)::integer::text, true);
        END IF;
        PERFORM set_config('search_path', format('%I, pg_catalog, pg_temp', i.schema_name || '__incoming'), true);
        PERFORM set_config('check_function_bodies', 'off', true);
        EXECUTE i.at_open;
        PERFORM set_config('search_path', 'pg_catalog, pg_temp', true);
    END IF;
    EXECUTE format('ALTER SCHEMA %I RENAME TO %I', i.schema_name || '__incoming', i.schema_name);
    DELETE FROM pgshard.ledger WHERE kind = 'incoming' AND name = i.schema_name || '__incoming';
    DELETE FROM pgshard.incoming WHERE shard_id = i.shard_id;
    -- All that the mover applied here is committed, and nobody else could write yet: a stream that begins at this position
    -- has the application's changes and none of the mover's.
    INSERT INTO pgshard.shard (shard_id, schema_name, state, epoch, last_fence_at, opened_lsn)
    VALUES (i.shard_id, i.schema_name, 'serving', i.epoch, clock_timestamp(), pg_current_wal_insert_lsn())
    ON CONFLICT (shard_id) DO UPDATE
    SET state = 'serving', epoch = excluded.epoch, peer = NULL, move_id = NULL, attempt = NULL, lease = NULL,
        fence_deadline = NULL, open_token = NULL, last_fence_at = excluded.last_fence_at, opened_lsn = excluded.opened_lsn;
END $$;
