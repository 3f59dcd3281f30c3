-- Who serves a shard: the fence on the source, the decision, and the open on the target.
--
-- A move calls, on the source, fence (the pause begins), barrier until no writer is left, mark, and
-- decide; then, on the target, open. Until it has decided, unfence or expire_fence give the shard
-- back. After it, any router that has the token can open the target by finish_open.
--
-- Invariant: at most one host serves a shard. Each function is one compare-and-swap on the shard's
-- row in pgshard.shard or pgshard.incoming; if the row is not as expected, it raises SH002 and
-- changes nothing. pgshard.decide is the only commit point: it needs the fence and the marker of
-- the same attempt, and what the target opens by is published only by it.
--
-- Lock order, everywhere: the shard's row, then the move's. A caller that ends a fence knows only
-- the shard.
--
-- Locks of this step: none that another session waits for; it only creates.

-- Makes the commit of this transaction wait for the disk, and for the synchronous standbys if there
-- are any.
--
-- Locks: none.
CREATE FUNCTION pgshard.commit_durably() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- ------------------------------------------------------------------------------------- the fence

-- Fence, on the source: swaps the shard's schema for its signpost. From its COMMIT on, no new
-- statement reaches the shard's tables by name: the pause begins. Returns the attempt's number and
-- the OID of the old copy's schema.
--
-- Locks: ROW EXCLUSIVE on pgshard.shard and pgshard.move, their two rows, and the two tuples of
-- pg_namespace, until the end of the transaction. It locks no table of the shard, so it does not
-- queue behind other sessions, nor they behind it.
CREATE FUNCTION pgshard.fence(p_shard integer, p_move uuid, p_lease uuid, p_token uuid,
    p_deadline_ms integer, OUT attempt integer, OUT left_oid oid)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    m pgshard.move%ROWTYPE;
    s pgshard.shard%ROWTYPE;
    old_name text;
    uncovered text;
BEGIN
    PERFORM FROM pgshard.shard WHERE shard_id = p_shard FOR NO KEY UPDATE;
    UPDATE pgshard.move AS j
    SET attempt = j.attempt + 1, phase = 'fenced', open_token = p_token,
        updated_at = clock_timestamp()
    WHERE j.move_id = p_move AND j.shard_id = p_shard AND j.lease = p_lease
      AND j.phase = CASE j.mode WHEN 'online' THEN 'ready' ELSE 'prepared' END
    RETURNING * INTO m;
    IF NOT FOUND OR p_token IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s: the move %s is not ours to fence', p_shard, p_move);
    END IF;
    UPDATE pgshard.shard AS t
    SET state = 'fenced', peer = m.target, move_id = p_move, attempt = m.attempt, lease = p_lease,
        fence_deadline = clock_timestamp() + p_deadline_ms * interval '1 ms',
        last_fence_at = clock_timestamp()
    WHERE t.shard_id = p_shard AND t.state = 'serving' AND t.epoch = m.epoch
    RETURNING * INTO s;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s is not served here at epoch %s', p_shard, m.epoch);
    END IF;
    old_name := s.schema_name || '__left_e' || s.epoch;
    left_oid := to_regnamespace(quote_ident(s.schema_name))::oid;
    -- A name that has no stand-in in the signpost would resolve to a relation of that name
    -- elsewhere in a search_path. (By pg_depend, which has an index by schema; pg_class has none.)
    SELECT c.relname INTO uncovered
    FROM pg_depend d JOIN pg_class c ON c.oid = d.objid
    WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_namespace'::regclass
      AND d.refobjid = left_oid
      AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
      AND NOT EXISTS (SELECT FROM pg_class v
                      WHERE v.relname = c.relname
                        AND v.relnamespace
                            = to_regnamespace(quote_ident(s.schema_name || '__signpost'))::oid)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s: %I.%I came after the signpost was built', p_shard,
                             s.schema_name, uncovered),
            HINT = 'Its tables were changed during the move: abort it and start again.';
    END IF;
    INSERT INTO pgshard.ledger (kind, name, move_id, shard_id)
    VALUES ('left', old_name, p_move, p_shard);
    EXECUTE format('ALTER SCHEMA %I RENAME TO %I', s.schema_name, old_name);
    EXECUTE format('ALTER SCHEMA %I RENAME TO %I', s.schema_name || '__signpost', s.schema_name);
    attempt := m.attempt;
END $$;

-- Barrier, on the source: the sessions that still hold, or wait for, a lock on the old copy with
-- which they could write. No row means that no session can write any more: later statements meet
-- the signpost, because the swap's invalidations were sent before its COMMIT returned. Each call
-- reads the schema's relations again, by its OID. It ignores the SHARE UPDATE EXCLUSIVE of
-- autovacuum and ANALYZE, and the SIREAD locks of SERIALIZABLE readers, which outlive them.
--
-- Call it under READ COMMITTED: an older snapshot lacks relations created since.
--
-- Locks: ACCESS SHARE on catalogs, until the end of the transaction; the lock manager's partitions
-- for microseconds, for pg_locks.
CREATE FUNCTION pgshard.barrier(p_left oid, OUT pid integer, OUT mode text, OUT relation text,
    OUT seconds double precision, OUT query text)
RETURNS SETOF record LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.pid, l.mode, coalesce(c.relname, 'the schema')::text,
           extract(epoch FROM clock_timestamp() - a.xact_start)::double precision,
           left(a.query, 200)
    FROM pg_locks l
    -- Not indexes: a session that writes to one has its table locked, except VACUUM.
    -- OFFSET 0 makes it a look-up by OID for each lock, instead of a scan of pg_class.
    LEFT JOIN LATERAL (SELECT oid, relname, relnamespace, relkind FROM pg_class
                       WHERE l.locktype = 'relation' AND oid = l.relation OFFSET 0) c
           ON c.relnamespace = p_left AND c.relkind NOT IN ('i', 'I')
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.pid IS DISTINCT FROM pg_backend_pid()
      AND (c.oid IS NOT NULL AND l.mode NOT IN ('AccessShareLock', 'SIReadLock')
           OR l.locktype = 'object' AND l.classid = 'pg_namespace'::regclass AND l.objid = p_left)
      -- A prepared transaction has no pid. With NOT IN it would be ignored.
      AND NOT (l.mode = 'ShareUpdateExclusiveLock' AND EXISTS (
               SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = l.pid
               UNION ALL SELECT FROM pg_stat_progress_analyze z WHERE z.pid = l.pid))
$$;

-- Mark, on the source: proves that the fence of this attempt still stands, and makes every commit
-- before it durable. Its own commit is synchronous, whatever those of the writers were.
--
-- Locks: the row of pgshard.shard, until the end of the transaction.
CREATE FUNCTION pgshard.mark(p_shard integer, p_move uuid, p_attempt integer, p_lease uuid)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgshard.commit_durably();
    PERFORM FROM pgshard.shard
    WHERE shard_id = p_shard AND state = 'fenced' AND move_id = p_move AND attempt = p_attempt
      AND lease = p_lease FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s: the fence of attempt %s is gone', p_shard, p_attempt);
    END IF;
    INSERT INTO pgshard.marker (move_id, shard_id, attempt) VALUES (p_move, p_shard, p_attempt)
    ON CONFLICT DO NOTHING;
END $$;

-- Heartbeat, on the source: keeps a fence and its move's lease alive. False: the lease belongs to
-- another mover, and the caller must stop.
--
-- Locks: the shard's row if it is fenced, and the move's, until the end of the transaction. Not the
-- row of a shard that is served: a migration may hold that for longer than a lease lasts.
CREATE FUNCTION pgshard.heartbeat(p_shard integer, p_move uuid, p_lease uuid, p_lease_ms integer,
    p_deadline_ms integer)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fenced boolean;
BEGIN
    -- In the lock order: otherwise a heartbeat and a decide of one mover wait for each other.
    PERFORM FROM pgshard.shard WHERE shard_id = p_shard AND state = 'fenced' FOR NO KEY UPDATE;
    fenced := FOUND;
    UPDATE pgshard.move SET lease_until = clock_timestamp() + p_lease_ms * interval '1 ms'
    WHERE move_id = p_move AND shard_id = p_shard AND lease = p_lease;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- A fence that began in between has just set its deadline.
    IF NOT fenced THEN
        RETURN true;
    END IF;
    UPDATE pgshard.shard SET fence_deadline = clock_timestamp() + p_deadline_ms * interval '1 ms'
    WHERE shard_id = p_shard AND state = 'fenced' AND move_id = p_move AND lease = p_lease;
    RETURN true;
END $$;

-- Unfence, on the source: swaps the shard back, for this move and attempt only, and the source
-- serves again. A mover passes its lease too, so that it does not end the fence of a mover that
-- took over; pgshard.expire_fence has none.
--
-- Locks: as pgshard.fence, until the end of the transaction.
CREATE FUNCTION pgshard.unfence(p_shard integer, p_move uuid, p_attempt integer,
    p_lease uuid DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s pgshard.shard%ROWTYPE;
BEGIN
    -- The target may be cleared up as soon as the shard is seen to be served again.
    PERFORM pgshard.commit_durably();
    UPDATE pgshard.shard
    SET state = 'serving', peer = NULL, move_id = NULL, attempt = NULL, lease = NULL,
        fence_deadline = NULL, last_fence_at = clock_timestamp()
    WHERE shard_id = p_shard AND state = 'fenced' AND move_id = p_move AND attempt = p_attempt
      AND (p_lease IS NULL OR lease = p_lease)
    RETURNING * INTO s;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s: the fence of attempt %s is gone', p_shard, p_attempt);
    END IF;
    EXECUTE format('ALTER SCHEMA %I RENAME TO %I', s.schema_name, s.schema_name || '__signpost');
    EXECUTE format('ALTER SCHEMA %I RENAME TO %I', s.schema_name || '__left_e' || s.epoch,
                   s.schema_name);
    DELETE FROM pgshard.ledger
    WHERE kind = 'left' AND name = s.schema_name || '__left_e' || s.epoch;
    UPDATE pgshard.move
    SET phase = CASE mode WHEN 'online' THEN 'ready' ELSE 'prepared' END, open_token = NULL,
        updated_at = clock_timestamp()
    WHERE move_id = p_move AND shard_id = p_shard;
END $$;

-- Expire, on the source: swaps back a fence whose mover let its deadline pass. Any router may call
-- it. True if this call did it.
--
-- Locks: none before the deadline. After it, the shard's row, then as pgshard.unfence, until the
-- end of the transaction.
CREATE FUNCTION pgshard.expire_fence(p_shard integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s pgshard.shard%ROWTYPE;
BEGIN
    -- First without a lock: thousands of waiting routers must not queue before the mover's decide,
    -- nor may a transaction that called too early keep the row until its end.
    PERFORM FROM pgshard.shard
    WHERE shard_id = p_shard AND state = 'fenced' AND fence_deadline <= clock_timestamp();
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT * INTO s FROM pgshard.shard WHERE shard_id = p_shard FOR UPDATE;
    -- The clock is read after the lock is granted: a heartbeat that we waited for counts.
    IF s.state IS DISTINCT FROM 'fenced' OR s.fence_deadline > clock_timestamp() THEN
        RETURN false;
    END IF;
    PERFORM pgshard.unfence(p_shard, s.move_id, s.attempt);
    RETURN true;
END $$;

-- ------------------------------------------------------------------------------- decide and open

-- Decide, on the source: the commit point of a move. Before it a move can only be undone, after it
-- only finished.
--
-- Locks: the shard's row and the move's, until the end of the transaction.
CREATE FUNCTION pgshard.decide(p_shard integer, p_move uuid, p_attempt integer, p_lease uuid)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgshard.commit_durably();
    UPDATE pgshard.shard AS t
    SET state = 'moved', epoch = t.epoch + 1, fence_deadline = NULL,
        open_token = (SELECT m.open_token FROM pgshard.move m
                      WHERE m.move_id = p_move AND m.shard_id = p_shard)
    WHERE t.shard_id = p_shard AND t.state = 'fenced' AND t.move_id = p_move
      AND t.attempt = p_attempt AND t.lease = p_lease
      AND EXISTS (SELECT FROM pgshard.marker k
                  WHERE k.move_id = p_move AND k.shard_id = p_shard AND k.attempt = p_attempt);
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s: the fence of attempt %s is gone', p_shard, p_attempt);
    END IF;
    UPDATE pgshard.move SET phase = 'decided', updated_at = clock_timestamp()
    WHERE move_id = p_move AND shard_id = p_shard;
    -- From now on the signpost belongs to the shard: it stands for as long as the shard is
    -- elsewhere.
    DELETE FROM pgshard.ledger WHERE kind = 'signpost' AND shard_id = p_shard;
END $$;

-- Open, on the target: the incoming shard becomes the one that is served. Only for functions that
-- have checked that it may be opened: pgshard.open, pgshard.finish_open and those of repair.
--
-- Locks: the shard's row, the tuples of pg_namespace that are renamed, and what the statements of
-- at_open take on tables that no session uses yet, until the end of the transaction.
CREATE FUNCTION pgshard.open_incoming(i pgshard.incoming) RETURNS void
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
            MESSAGE = format('shard %s is %s here at epoch %s, not to be opened at %s', i.shard_id,
                             s.state, s.epoch, i.epoch);
    END IF;
    IF FOUND THEN
        -- The signpost of an earlier move away. A rename waits for no session; a drop would.
        old := i.schema_name || '__signpost_e' || s.epoch;
        INSERT INTO pgshard.ledger (kind, name, move_id, shard_id)
        VALUES ('old signpost', old, i.move_id, i.shard_id);
        EXECUTE format('ALTER SCHEMA %I RENAME TO %I', i.schema_name, old);
    END IF;
    IF i.at_open IS NOT NULL THEN
        -- An autovacuum is cancelled once a session has waited for its table for deadlock_timeout.
        -- With a shorter lock_timeout, such as a router's that does not wait for rows, each try
        -- would fail for as long as the autovacuum lasts.
        needed := current_setting('deadlock_timeout')::interval + interval '1 s';
        IF current_setting('lock_timeout')::interval > interval '0'
            AND current_setting('lock_timeout')::interval < needed THEN
            PERFORM set_config('lock_timeout',
                               (extract(epoch FROM needed) * 1000)::integer::text, true);
        END IF;
        PERFORM set_config('search_path',
                           format('%I, pg_catalog, pg_temp', i.schema_name || '__incoming'), true);
        PERFORM set_config('check_function_bodies', 'off', true);
        EXECUTE i.at_open;
        PERFORM set_config('search_path', 'pg_catalog, pg_temp', true);
    END IF;
    EXECUTE format('ALTER SCHEMA %I RENAME TO %I', i.schema_name || '__incoming', i.schema_name);
    DELETE FROM pgshard.ledger WHERE kind = 'incoming' AND name = i.schema_name || '__incoming';
    DELETE FROM pgshard.incoming WHERE shard_id = i.shard_id;
    -- The mover's writes are committed, and the application could not write yet: a stream from this
    -- position has all of the application's changes and none of the mover's.
    INSERT INTO pgshard.shard (shard_id, schema_name, state, epoch, last_fence_at, opened_lsn)
    VALUES (i.shard_id, i.schema_name, 'serving', i.epoch, clock_timestamp(),
            pg_current_wal_insert_lsn())
    ON CONFLICT (shard_id) DO UPDATE
    SET state = 'serving', epoch = excluded.epoch, peer = NULL, move_id = NULL, attempt = NULL,
        lease = NULL, fence_deadline = NULL, open_token = NULL,
        last_fence_at = excluded.last_fence_at, opened_lsn = excluded.opened_lsn;
END $$;

-- Opens for the mover, which commits it only after the source has decided.
--
-- Locks: the row of pgshard.incoming, then as pgshard.open_incoming, until the end of the
-- transaction.
CREATE FUNCTION pgshard.open(p_shard integer, p_move uuid, p_attempt integer, p_lease uuid)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i pgshard.incoming%ROWTYPE;
BEGIN
    SELECT * INTO i FROM pgshard.incoming
    WHERE shard_id = p_shard AND move_id = p_move AND lease = p_lease
      AND ready_attempt = p_attempt FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s is not ready here for attempt %s', p_shard, p_attempt);
    END IF;
    PERFORM pgshard.open_incoming(i);
END $$;

-- Opens for a router that has the token, which proves that the source has decided. True if this
-- call did it, false if there was nothing to open.
--
-- Locks: as pgshard.open.
CREATE FUNCTION pgshard.finish_open(p_shard integer, p_token uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i pgshard.incoming%ROWTYPE;
BEGIN
    SELECT * INTO i FROM pgshard.incoming WHERE shard_id = p_shard FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- A null is no token: neither the caller's nor that of a move that is not ready.
    IF (i.ready_attempt IS NOT NULL
        AND i.open_hash = encode(sha256(convert_to(p_token::text, 'UTF8')), 'hex'))
        IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s: this is not the token of its move', p_shard);
    END IF;
    PERFORM pgshard.open_incoming(i);
    RETURN true;
END $$;
