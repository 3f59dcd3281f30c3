-- The functions of 0001 again, with two holes closed.
--
-- A server whose clock was past the 41 bits for a moment lost the IDs of a shard for good: the offset was raised before the
-- call was refused, and no rollback takes a sequence back. And resume_after() went wherever an ID said, be it of another
-- system. Now nothing is raised for a time that no ID can have, and resume_after() refuses what is far from the clock.
--
-- Every operator names its schema. An operator that somebody puts into a schema of the search path could otherwise be the
-- better match for its operands, and would run with the rights of whoever makes an ID.
--
--   {shard}.resume_after(id)              as before, but for IDs of up to a day ahead of the server's clock
--   {shard}.resume_after(id, ahead_max)   the same, with another limit. For the owner only.
--   {shard}.id_repair(last)               for a shard whose IDs are ten years or more ahead of the clock, because that was wrong:
--                                         they go on from the clock, and after the ID `last`. For the owner only.
--
-- What 0001 says of the layout, of freshness and of why no ID repeats holds here too.

-- Reading the bodies twice takes half of the time in which a shard is made.
SET LOCAL check_function_bodies = off;

-- Lets the offset grow until the last ticket is of the present millisecond. False if another session is at it, or if the clock says a
-- time of which there are no IDs.
--
-- The clock is read twice. The first reading is judged, where an IF can stand. The second is the one that counts, under the lock,
-- and may be a minute later at most: a clock that jumps between the two does no harm. The next call raises the rest.
CREATE OR REPLACE FUNCTION {shard}.id_raise_{shard_id}() RETURNS boolean LANGUAGE plpgsql VOLATILE
    SECURITY DEFINER AS $id_raise$
DECLARE
    ms bigint := pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::bigint
        OPERATOR(pg_catalog.-) ({epoch_ms});
BEGIN
    IF ms OPERATOR(pg_catalog.<) 0 OR ms OPERATOR(pg_catalog.>) 2199023251455 THEN
        RETURN false;
    END IF;
    RETURN CASE
        WHEN pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass) IS NULL
            OR pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass) IS NULL
            THEN false
        WHEN pg_catalog.pg_try_advisory_lock(1885825380, {shard_id}) THEN
            CASE WHEN pg_catalog.setval('{shard}.id_offset'::pg_catalog.regclass,
                pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass)
                -- Tickets go on being taken: what was behind a moment ago may have caught up.
                OPERATOR(pg_catalog.+) (GREATEST(0, LEAST(2199023251455, ms OPERATOR(pg_catalog.+) 60000,
                    pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::bigint
                        OPERATOR(pg_catalog.-) ({epoch_ms}))
                    OPERATOR(pg_catalog.-) ((pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
                    OPERATOR(pg_catalog.+) pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass))
                    OPERATOR(pg_catalog.>>) 10)) OPERATOR(pg_catalog.<<) 10)) IS NULL
                THEN pg_catalog.pg_advisory_unlock(1885825380, {shard_id})
            ELSE pg_catalog.pg_advisory_unlock(1885825380, {shard_id}) END
        ELSE false END;
END $id_raise$;

CREATE OR REPLACE FUNCTION {shard}.next_id() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $next_id$
DECLARE
    -- First the ticket, then the offset. Few and large expressions: each costs a tenth of the whole.
    h bigint := pg_catalog.nextval('{shard}.id_ticket'::pg_catalog.regclass)
        OPERATOR(pg_catalog.+) pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass);
BEGIN
    -- Nearly always: from two milliseconds behind the wall clock to a second ahead, and the ticket is fresh, which is looked
    -- at last. Two comparisons would read the clock twice.
    IF ((h OPERATOR(pg_catalog.+) (1024 OPERATOR(pg_catalog.*) ({epoch_ms}::bigint) OPERATOR(pg_catalog.+) 2047)
            OPERATOR(pg_catalog.-) (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1024000)::bigint)
            OPERATOR(pg_catalog.&) (-1048576)::bigint) OPERATOR(pg_catalog.=) 0
        AND (pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
            OPERATOR(pg_catalog.-) pg_catalog.currval('{shard}.id_ticket'::pg_catalog.regclass)) OPERATOR(pg_catalog.<) 128
    THEN
        -- From 2^40 ms on the shift reaches the sign bit and the bigint is negative; its fields still decode.
        RETURN ((h OPERATOR(pg_catalog.&) (-1024)::bigint) OPERATOR(pg_catalog.<<) 13)
            OPERATOR(pg_catalog.|) ({shard_id} OPERATOR(pg_catalog.<<) 10)::bigint
            OPERATOR(pg_catalog.|) (h OPERATOR(pg_catalog.&) 1023::bigint);
    END IF;

    -- Nearly always otherwise: the first ID for some milliseconds. The same, after the offset has grown.
    IF (h OPERATOR(pg_catalog.+) (1024 OPERATOR(pg_catalog.*) ({epoch_ms}::bigint) OPERATOR(pg_catalog.+) 2047))
            OPERATOR(pg_catalog.<) (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1024000)::bigint
        AND {shard}.id_raise_{shard_id}()
    THEN
        h := pg_catalog.currval('{shard}.id_ticket'::pg_catalog.regclass)
            OPERATOR(pg_catalog.+) pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass);
        IF ((h OPERATOR(pg_catalog.+) (1024 OPERATOR(pg_catalog.*) ({epoch_ms}::bigint) OPERATOR(pg_catalog.+) 2047)
                OPERATOR(pg_catalog.-) (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1024000)::bigint)
                OPERATOR(pg_catalog.&) (-1048576)::bigint) OPERATOR(pg_catalog.=) 0
            AND (pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
                OPERATOR(pg_catalog.-) pg_catalog.currval('{shard}.id_ticket'::pg_catalog.regclass)) OPERATOR(pg_catalog.<) 128
        THEN
            RETURN ((h OPERATOR(pg_catalog.&) (-1024)::bigint) OPERATOR(pg_catalog.<<) 13)
                OPERATOR(pg_catalog.|) ({shard_id} OPERATOR(pg_catalog.<<) 10)::bigint
                OPERATOR(pg_catalog.|) (h OPERATOR(pg_catalog.&) 1023::bigint);
        END IF;
    END IF;

    -- A block of its own: its variables cost nothing above.
    DECLARE
        ticket bigint := pg_catalog.currval('{shard}.id_ticket'::pg_catalog.regclass);
        ms bigint;
        lead bigint;
        tries int := 0;
    BEGIN
        LOOP
            IF (pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass) OPERATOR(pg_catalog.-) ticket)
                OPERATOR(pg_catalog.>=) 128
            THEN
                ticket := pg_catalog.nextval('{shard}.id_ticket'::pg_catalog.regclass);
            END IF;
            h := ticket OPERATOR(pg_catalog.+) pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass);
            ms := pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::bigint
                OPERATOR(pg_catalog.-) ({epoch_ms});
            IF h IS NULL THEN
                -- Null where the role may not read it, and where logical replication or a dump of the schema made it.
                IF pg_catalog.has_sequence_privilege('{shard}.id_offset'::pg_catalog.regclass, 'USAGE, SELECT') THEN
                    RAISE EXCEPTION USING
                        ERRCODE = 'object_not_in_prerequisite_state',
                        MESSAGE = 'the sequences of {shard}''s IDs were never called',
                        HINT = 'As after logical replication. `pgshard check` prints the statement that sets them.';
                END IF;
                RAISE EXCEPTION USING
                    ERRCODE = 'insufficient_privilege',
                    MESSAGE = 'the sequences of {shard}''s IDs cannot be read',
                    HINT = 'Grant USAGE on {shard}.id_ticket and {shard}.id_offset.';
            END IF;
            -- The last four seconds of 41 bits are not used: no burst then reaches the end between two looks at the clock.
            IF ms OPERATOR(pg_catalog.<) 0
                OR GREATEST(ms, h OPERATOR(pg_catalog.>>) 10) OPERATOR(pg_catalog.>) 2199023251455
            THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'datetime_field_overflow',
                    MESSAGE = CASE WHEN ms OPERATOR(pg_catalog.<) 0
                                   THEN 'the clock of this server is before the epoch of the cluster''s IDs'
                                   ELSE 'the 41 bits of the cluster''s IDs are used up' END,
                    DETAIL = pg_catalog.format('The clock says %s, the epoch is %s ms after 1970, the shard''s last ID is of %s ms after that.',
                        pg_catalog.clock_timestamp(), {epoch_ms}, h OPERATOR(pg_catalog.>>) 10),
                    HINT = CASE WHEN ms OPERATOR(pg_catalog.<) 0 OR ms OPERATOR(pg_catalog.>) 2199023251455
                                THEN 'Set the server''s clock right. If it is right, IDs of another epoch are another cluster.'
                                ELSE 'The clock was wrong when the last ID was made: {shard}.id_repair() sets the IDs right.' END;
            END IF;
            lead := (h OPERATOR(pg_catalog.>>) 10) OPERATOR(pg_catalog.-) ms;
            IF lead OPERATOR(pg_catalog.<) 0 THEN
                -- Whoever is here has a fresh ticket: a stale one would drag the clock ahead.
                IF {shard}.id_raise_{shard_id}() THEN
                    h := ticket OPERATOR(pg_catalog.+) pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass);
                ELSIF lead OPERATOR(pg_catalog.<) (-2)::bigint THEN
                    -- Another session is at it, which takes microseconds. Two milliseconds late would do meanwhile.
                    tries := tries OPERATOR(pg_catalog.+) 1;
                    IF tries OPERATOR(pg_catalog.>) 10000 THEN
                        RAISE EXCEPTION USING
                            ERRCODE = 'lock_not_available',
                            MESSAGE = 'another session has held the lock of {shard}''s ID clock for ten seconds',
                            DETAIL = 'It is the advisory lock (1885825380, {shard_id}), which is held for microseconds.',
                            HINT = 'Find the session in pg_locks (classid 1885825380, objid {shard_id}) and end it.';
                    END IF;
                    IF tries OPERATOR(pg_catalog.>) 100 THEN
                        PERFORM pg_catalog.pg_sleep(0.001);
                    END IF;
                    CONTINUE;
                END IF;
            ELSIF lead OPERATOR(pg_catalog.>=) 1024 AND lead OPERATOR(pg_catalog.<=) 2047 THEN
                -- A burst is a second ahead.
                PERFORM pg_catalog.pg_sleep((lead OPERATOR(pg_catalog.-) 1000)::pg_catalog.float8 OPERATOR(pg_catalog./) 1000::pg_catalog.float8);
            END IF;
            IF (pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass) OPERATOR(pg_catalog.-) ticket)
                OPERATOR(pg_catalog.<) 128
            THEN
                RETURN ((h OPERATOR(pg_catalog.&) (-1024)::bigint) OPERATOR(pg_catalog.<<) 13)
                    OPERATOR(pg_catalog.|) ({shard_id} OPERATOR(pg_catalog.<<) 10)::bigint
                    OPERATOR(pg_catalog.|) (h OPERATOR(pg_catalog.&) 1023::bigint);
            END IF;
        END LOOP;
    END;
END $next_id$;

CREATE OR REPLACE FUNCTION {shard}.next_ids(n int) RETURNS SETOF bigint LANGUAGE plpgsql VOLATILE ROWS 1000 AS $next_ids$
DECLARE
    first bigint;
    -- A lease moves the clock by 64 ms at most.
    size int;
    todo int := n;
BEGIN
    IF n IS NULL OR n OPERATOR(pg_catalog.<) 0 OR n OPERATOR(pg_catalog.>) 1000000 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('next_ids(%s): 0 to 1000000 IDs are reserved at once', n),
            HINT = 'Call it more than once.';
    END IF;
    WHILE todo OPERATOR(pg_catalog.>) 0 LOOP
        size := LEAST(todo, 65536);
        first := {shard}.id_lease_{shard_id}(size);
        RETURN QUERY SELECT ((h OPERATOR(pg_catalog.&) (-1024)::bigint) OPERATOR(pg_catalog.<<) 13)
                OPERATOR(pg_catalog.|) ({shard_id} OPERATOR(pg_catalog.<<) 10)::bigint
                OPERATOR(pg_catalog.|) (h OPERATOR(pg_catalog.&) 1023::bigint)
            FROM pg_catalog.generate_series(first, (first OPERATOR(pg_catalog.+) size) OPERATOR(pg_catalog.-) 1::bigint) AS h;
        todo := todo OPERATOR(pg_catalog.-) size;
    END LOOP;
END $next_ids$;

CREATE OR REPLACE FUNCTION {shard}.id_high_water() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $id_high_water$
BEGIN
    RETURN (((pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
        OPERATOR(pg_catalog.+) pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass))
            OPERATOR(pg_catalog.>>) 10) OPERATOR(pg_catalog.<<) 23)
        OPERATOR(pg_catalog.|) ({shard_id} OPERATOR(pg_catalog.<<) 10)::bigint OPERATOR(pg_catalog.|) 1023::bigint;
END $id_high_water$;

-- What is not used from here on goes through these two. Their operators are found in pg_catalog by the path, which costs too much
-- where IDs are made and nothing here.

-- Does nothing for NULL, the greatest ID of no rows.
CREATE FUNCTION {shard}.resume_after(id bigint, ahead_max interval) RETURNS void LANGUAGE plpgsql VOLATILE STRICT
    SET search_path = pg_catalog, pg_temp AS $resume_after$
DECLARE
    -- h where the next millisecond begins. An ID is unsigned: its time is what is left of the sign's copies.
    goal_ms bigint := ((id >> 23) & 2199023255551) + 1;
    goal bigint := goal_ms << 10;
    now_ms bigint := pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::bigint - ({epoch_ms});
    -- Takes the sequences' locks before the advisory lock, as id_raise does.
    h bigint := pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
        + pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass);
    tries int := 0;
BEGIN
    -- Asked before: an error of setval() would leave the lock behind. And no REVOKE, which would read all functions of
    -- this name, in thousands of schemas.
    IF NOT pg_catalog.has_sequence_privilege('{shard}.id_offset'::pg_catalog.regclass, 'UPDATE') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = 'resume_after() is for the owner of {shard}',
            HINT = 'Or grant UPDATE on {shard}.id_offset.';
    END IF;
    IF h - 128 >= goal THEN
        RETURN;
    END IF;
    IF goal_ms > 2199023251455 OR (goal_ms - now_ms) / 1000.0 > pg_catalog.date_part('epoch', ahead_max) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'numeric_value_out_of_range',
            MESSAGE = pg_catalog.format('resume_after(%s): this ID is of a time far ahead of this server''s clock', id),
            DETAIL = pg_catalog.format('It is of %s ms after the epoch; the clock is at %s ms, and the last ms of which there are IDs is 2199023251455.',
                goal_ms - 1, now_ms),
            HINT = 'Is it an ID of another system, or of another epoch? If it is right, say how far ahead it may be: '
                || 'resume_after(id, ''30 days'').';
    END IF;
    WHILE h - 128 < goal LOOP
        -- 256: every fresh ticket is at the goal then, and the offset grows by more than 128.
        IF (CASE WHEN pg_catalog.pg_try_advisory_lock(1885825380, {shard_id}) THEN
            CASE WHEN pg_catalog.setval('{shard}.id_offset'::pg_catalog.regclass,
                    GREATEST(pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass) + 128,
                        goal + 256 - pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass))) > 0
                THEN pg_catalog.pg_advisory_unlock(1885825380, {shard_id})
            ELSE pg_catalog.pg_advisory_unlock(1885825380, {shard_id}) END
            ELSE false END)
        THEN
            RETURN;
        END IF;
        tries := tries + 1;
        IF tries > 10000 THEN
            RAISE EXCEPTION USING
                ERRCODE = 'lock_not_available',
                MESSAGE = 'another session has held the lock of {shard}''s ID clock for ten seconds',
                HINT = 'Find the session in pg_locks (classid 1885825380, objid {shard_id}) and end it.';
        END IF;
        PERFORM pg_catalog.pg_sleep(0.001);
    END LOOP;
END $resume_after$;

CREATE OR REPLACE FUNCTION {shard}.resume_after(id bigint) RETURNS void LANGUAGE plpgsql VOLATILE STRICT AS $resume_after$
BEGIN
    PERFORM {shard}.resume_after(id, '1 day'::pg_catalog.interval);
END $resume_after$;

-- The only thing that lowers the offset. IDs that were made under the wrong clock stay where they are: ten years or more ahead, so
-- that those which are made from now on do not meet them before that. A session that reads the offset meanwhile makes an ID of either time.
-- `last`: the largest ID that was made under the right clock; null for none. The clock is used if it is later.
CREATE FUNCTION {shard}.id_repair(last bigint) RETURNS void LANGUAGE plpgsql VOLATILE
    SET search_path = pg_catalog, pg_temp AS $id_repair$
DECLARE
    now_ms bigint := pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::bigint - ({epoch_ms});
    h_ms bigint := (pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
        + pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass)) >> 10;
    -- A burst is two seconds ahead of the clock at most.
    goal_ms bigint := GREATEST(now_ms + 2048, coalesce(((last >> 23) & 2199023255551) + 1, 0));
    tries int := 0;
BEGIN
    IF NOT pg_catalog.has_sequence_privilege('{shard}.id_offset'::pg_catalog.regclass, 'UPDATE') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = 'id_repair() is for the owner of {shard}',
            HINT = 'Or grant UPDATE on {shard}.id_offset.';
    END IF;
    IF now_ms < 0 OR goal_ms > 2199023251455 OR goal_ms - now_ms > 86400000 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'numeric_value_out_of_range',
            MESSAGE = pg_catalog.format('id_repair(%s): this server''s clock and this ID do not fit each other', last),
            DETAIL = pg_catalog.format('The clock is at %s ms after the epoch, the ID''s time is %s ms.', now_ms, (last >> 23) & 2199023255551),
            HINT = 'Set the clock right, and take the largest ID that was made while it was.';
    END IF;
    -- 3652 days. What is less far ahead needs no repair: IDs go on from there, and lower ones would meet them one day.
    IF h_ms - goal_ms < 315532800000 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('id_repair(%s): the IDs of {shard} are not ten years ahead of the clock', last),
            DETAIL = pg_catalog.format('The clock is at %s ms after the epoch, the last ID''s time is %s ms.', now_ms, h_ms),
            HINT = 'Nothing needs to be done: IDs stay unique and go on from the time that they have reached.';
    END IF;
    LOOP
        IF (CASE WHEN pg_catalog.pg_try_advisory_lock(1885825380, {shard_id}) THEN
            CASE WHEN pg_catalog.setval('{shard}.id_offset'::pg_catalog.regclass,
                    GREATEST(0, (goal_ms << 10) + 256 - pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass))) >= 0
                THEN pg_catalog.pg_advisory_unlock(1885825380, {shard_id})
            ELSE pg_catalog.pg_advisory_unlock(1885825380, {shard_id}) END
            ELSE false END)
        THEN
            RETURN;
        END IF;
        tries := tries + 1;
        IF tries > 10000 THEN
            RAISE EXCEPTION USING
                ERRCODE = 'lock_not_available',
                MESSAGE = 'another session has held the lock of {shard}''s ID clock for ten seconds',
                HINT = 'Find the session in pg_locks (classid 1885825380, objid {shard_id}) and end it.';
        END IF;
        PERFORM pg_catalog.pg_sleep(0.001);
    END LOOP;
END $id_repair$;

RESET check_function_bodies;
