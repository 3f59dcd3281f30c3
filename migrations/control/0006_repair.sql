-- Repair: what `pgshard moves repair` does on a host when hosts contradict each other about a
-- shard, as after a failover that lost commits; and what `pgshard host remove` does on the hosts
-- that refer to a removed one.
--
-- Invariant: each function is one compare-and-swap on the shard's row, and drops none of the
-- shard's rows. The epoch that it writes is later than the row's.
--
-- Lock order, as in 0004_ownership.sql: the shard's row, then the move's.
--
-- Locks of this step: none that another session waits for; it only creates.

-- Ends the open moves of a shard away from this host. Movers that held their leases can change
-- nothing any more.
--
-- Locks: the rows of these moves, until the end of the transaction.
CREATE FUNCTION pgshard.end_moves(p_shard integer, p_why text) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    WITH ended AS (
        UPDATE pgshard.move
        SET phase = 'aborted', lease = gen_random_uuid(), lease_until = clock_timestamp(),
            last_error = p_why, open_token = NULL, updated_at = clock_timestamp()
        WHERE shard_id = p_shard AND phase NOT IN ('kept', 'completed', 'aborted')
        RETURNING move_id)
    DELETE FROM pgshard.back b USING ended e WHERE b.move_id = e.move_id AND b.shard_id = p_shard
$$;

-- Stand down, on a host that serves a shard, or has it fenced, while another host owns it at a
-- later epoch: this host refuses the shard from now on, and its signpost leads to the owner. The
-- shard's schema becomes an old copy, kept by a move of its own in the journal that was not
-- audited, so that it is dropped only on request. Returns the name of the old copy.
--
-- Locks: the shard's row, its moves' rows and the tuples of pg_namespace, until the end of the
-- transaction; of tables only those of a signpost that no session uses. Transactions that have
-- locked the shard's tables continue in the old copy.
CREATE FUNCTION pgshard.stand_down(p_shard integer, p_epoch integer, p_peer text,
    p_peer_epoch integer, p_move uuid, p_holder text, p_why text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s        pgshard.shard%ROWTYPE;
    old_name text;
BEGIN
    PERFORM pgshard.commit_durably();
    SELECT * INTO s FROM pgshard.shard
    WHERE shard_id = p_shard AND state IN ('serving', 'fenced') AND epoch = p_epoch
      AND epoch < p_peer_epoch FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s is not served here at epoch %s any more', p_shard, p_epoch);
    END IF;
    old_name := s.schema_name || '__left_e' || s.epoch;
    PERFORM pgshard.end_moves(p_shard, p_why);
    IF s.state = 'serving' THEN
        -- The signpost of an open move may be of older tables.
        EXECUTE format('DROP SCHEMA IF EXISTS %I CASCADE', s.schema_name || '__signpost');
        DELETE FROM pgshard.ledger WHERE kind = 'signpost' AND shard_id = p_shard;
        PERFORM pgshard.build_signpost(p_shard, p_move);
        INSERT INTO pgshard.ledger (kind, name, move_id, shard_id)
        VALUES ('left', old_name, p_move, p_shard);
        EXECUTE format('ALTER SCHEMA %I RENAME TO %I', s.schema_name, old_name);
        EXECUTE format('ALTER SCHEMA %I RENAME TO %I', s.schema_name || '__signpost',
                       s.schema_name);
    ELSE
        UPDATE pgshard.ledger SET move_id = p_move WHERE kind = 'left' AND name = old_name;
    END IF;
    -- From now on the signpost belongs to the shard, as after a decision.
    DELETE FROM pgshard.ledger WHERE kind = 'signpost' AND shard_id = p_shard;
    UPDATE pgshard.shard
    SET state = 'moved', epoch = p_peer_epoch, peer = p_peer, move_id = p_move, attempt = NULL,
        lease = NULL, fence_deadline = NULL, open_token = NULL, last_fence_at = clock_timestamp()
    WHERE shard_id = p_shard;
    INSERT INTO pgshard.move (move_id, shard_id, source, target, mode, phase, epoch, lease,
        lease_until, holder, back, last_error, audit, audit_found)
    SELECT p_move, p_shard, c.host_name, p_peer, 'blocking', 'kept', s.epoch, gen_random_uuid(),
        clock_timestamp(), p_holder, 'forgone', p_why, 'not audited',
        jsonb_build_object('left_out', jsonb_build_array(
            jsonb_build_object('what', 'everything', 'why', p_why)))
    FROM pgshard.cluster c;
    RETURN old_name;
END $$;

-- Take back, on a host that has given a shard to one that lost it: the old copy becomes the shard
-- again, with what was removed from it, at an epoch later than all that are recorded. Its
-- sequences continue after the rows' values, including those of changes that the old copy received.
--
-- Locks: the shard's row, its moves' rows, the tuples of pg_namespace, and the old copy's tables,
-- which no session uses, until the end of the transaction.
CREATE FUNCTION pgshard.take_back(p_shard integer, p_epoch integer, p_left_epoch integer,
    p_new_epoch integer, p_why text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s        pgshard.shard%ROWTYPE;
    m        pgshard.move%ROWTYPE;
    i        pgshard.incoming%ROWTYPE;
    r        record;
    furthest numeric;
    at_last  bigint;
    old_name text;
BEGIN
    PERFORM pgshard.commit_durably();
    SELECT * INTO s FROM pgshard.shard
    WHERE shard_id = p_shard AND state = 'moved' AND epoch = p_epoch AND epoch < p_new_epoch
    FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s is not away from here at epoch %s any more', p_shard,
                             p_epoch);
    END IF;
    -- An incoming shard has the name that the old copy needs, and may be all that is left of it.
    SELECT * INTO i FROM pgshard.incoming WHERE shard_id = p_shard;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('the move %s is bringing shard %s here: end that first, '
                             'pgshard moves abort %s', i.move_id, p_shard, i.move_id);
    END IF;
    old_name := s.schema_name || '__left_e' || p_left_epoch;
    SELECT * INTO m FROM pgshard.move
    WHERE shard_id = p_shard AND epoch = p_left_epoch AND phase IN ('decided', 'opened', 'kept')
    ORDER BY updated_at DESC LIMIT 1 FOR UPDATE;
    INSERT INTO pgshard.incoming (shard_id, schema_name, move_id, lease, source, epoch, at_open)
    VALUES (p_shard, s.schema_name, coalesce(m.move_id, gen_random_uuid()), gen_random_uuid(),
            s.peer, p_new_epoch,
            (SELECT b.at_open FROM pgshard.back b
             WHERE b.move_id = m.move_id AND b.shard_id = p_shard))
    RETURNING * INTO i;
    DELETE FROM pgshard.ledger WHERE kind = 'left' AND name = old_name;
    EXECUTE format('ALTER SCHEMA %I RENAME TO %I', old_name, s.schema_name || '__incoming');
    PERFORM pgshard.open_incoming(i);
    PERFORM pgshard.end_moves(p_shard, p_why);
    UPDATE pgshard.move SET phase = 'aborted', last_error = p_why, updated_at = clock_timestamp()
    WHERE move_id = m.move_id AND shard_id = p_shard;
    DELETE FROM pgshard.back WHERE move_id = m.move_id AND shard_id = p_shard;
    DELETE FROM pgshard.progress WHERE move_id = m.move_id AND shard_id = p_shard;
    DELETE FROM pgshard.marker WHERE move_id = m.move_id AND shard_id = p_shard;
    FOR r IN
        SELECT q.seqrelid::regclass AS sequence, q.seqincrement > 0 AS grows, a.attname,
               d.refobjid::regclass AS relation
        FROM pg_depend d JOIN pg_sequence q ON q.seqrelid = d.objid
        JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
        JOIN pg_class c ON c.oid = d.refobjid
        WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
          AND d.deptype IN ('a', 'i')
          AND c.relnamespace = to_regnamespace(quote_ident(s.schema_name))::oid AND NOT q.seqcycle
    LOOP
        EXECUTE format('SELECT %s(%I)::numeric FROM %s',
                       CASE WHEN r.grows THEN 'max' ELSE 'min' END, r.attname, r.relation)
        INTO furthest;
        EXECUTE format('SELECT last_value FROM %s', r.sequence) INTO at_last;
        IF (r.grows AND furthest >= at_last) OR (NOT r.grows AND furthest <= at_last) THEN
            PERFORM setval(r.sequence, furthest::bigint);
        END IF;
    END LOOP;
END $$;

-- Open, on a host to which a move has brought all of a shard, when the source is given up and its
-- decision cannot be read any more.
--
-- Locks: the row of pgshard.incoming, then as pgshard.open_incoming, until the end of the
-- transaction.
CREATE FUNCTION pgshard.open_given_up(p_shard integer, p_move uuid, p_epoch integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i pgshard.incoming%ROWTYPE;
BEGIN
    SELECT * INTO i FROM pgshard.incoming
    WHERE shard_id = p_shard AND move_id = p_move AND epoch = p_epoch
      AND ready_attempt IS NOT NULL FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s is not ready here to be opened at epoch %s', p_shard,
                             p_epoch);
    END IF;
    PERFORM pgshard.open_incoming(i);
END $$;

-- Raise, on a host that serves a shard at an earlier epoch than others have recorded: it owns the
-- shard at a later one from now on.
--
-- Locks: the shard's row and its moves', until the end of the transaction.
CREATE FUNCTION pgshard.raise_epoch(p_shard integer, p_epoch integer, p_new_epoch integer,
    p_why text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgshard.commit_durably();
    UPDATE pgshard.shard SET epoch = p_new_epoch
    WHERE shard_id = p_shard AND state = 'serving' AND epoch = p_epoch AND epoch < p_new_epoch;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002', MESSAGE = (
            SELECT CASE WHEN state = 'fenced' AND epoch = p_epoch
                        THEN format('shard %s is closed here by a move: end that first, '
                                    'pgshard moves abort %s', p_shard, move_id)
                        ELSE format('shard %s is not served here at epoch %s any more', p_shard,
                                    p_epoch) END
            FROM (SELECT) AS one LEFT JOIN pgshard.shard ON shard_id = p_shard);
    END IF;
    PERFORM pgshard.end_moves(p_shard, p_why);
END $$;

-- Redirect, on a host whose shard has moved to one that leaves the cluster, and on from there: its
-- signpost leads to where the shard is, at a later epoch than the row's. Returns false if the row
-- is another one by now, because then a later change has been recorded.
--
-- Locks: the shard's row, until the end of the transaction.
CREATE FUNCTION pgshard.redirect(p_shard integer, p_gone text, p_peer text, p_epoch integer)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE pgshard.shard SET peer = p_peer, epoch = p_epoch, move_id = NULL, open_token = NULL
    WHERE shard_id = p_shard AND state = 'moved' AND peer = p_gone AND epoch < p_epoch;
    RETURN FOUND;
END $$;
