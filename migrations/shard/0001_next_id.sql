-- The IDs of a shard: every sharded table has `id bigint DEFAULT {shard}.next_id()`.
--
--   {shard}.next_id()                     the next ID
--   {shard}.next_ids(n)                   n IDs at once, ascending, 0 <= n <= 1000000
--   {shard}.id_high_water()               no ID so far is larger (as unsigned 64 bits)
--   {shard}.resume_after(id)              after rows made elsewhere were loaded: later IDs are of
--                                         later milliseconds than this one, which may be up to a
--                                         day ahead of the server's clock
--   {shard}.resume_after(id, ahead_max)   the same, with another limit
--   {shard}.id_repair(last)               for a shard whose IDs are ten years or more ahead of the
--                                         clock, because that was wrong: they continue from the
--                                         clock, and after the ID `last`
--
-- Run by the role that owns the shard. The last three are for the owner only. A role that only
-- writes needs USAGE on the schema and on the two sequences.
--
-- {shard} is the shard's schema, quoted; {shard_id} its number; {epoch_ms} the cluster's epoch in
-- Unix milliseconds. 1885825380 ("pgid" in ASCII) is the class of the advisory locks; the key is
-- the shard's number.
--
-- Invariants:
--   * the layout: 41 bits of milliseconds since the epoch, 13 bits of shard, 10 bits of sequence;
--   * no ID repeats, whatever writers, clock, crashes and moves do, and the IDs of each connection
--     grow;
--   * the bodies are text that names the shard's final schema, so that a move can copy them before
--     the schema has that name;
--   * every name in them is qualified, operators too: they do the same under any search_path, and
--     an operator in a schema of the search_path cannot run with the rights of the caller;
--   * the clock is read as pg_catalog.clock_timestamp() and in no other way: tests replace it;
--   * nothing is raised for a time that no ID can have: no rollback takes a sequence back.
--
-- How it works: a logical clock h = ticket + offset, in units of 1/1024 ms, is the sum of two
-- sequences. Its upper 41 bits are the ID's milliseconds, its lower 10 the ID's sequence. Each ID
-- takes a ticket. The offset only grows, by 128 or more at a time, under an advisory lock: when h
-- is more than two milliseconds behind the wall clock, it grows by whole milliseconds until h has
-- caught up. Each growth costs as much as several IDs, hence the two milliseconds.
--
-- Why no ID repeats: two IDs of one offset differ by their tickets. For two of different offsets,
-- let R be the last ticket taken when the later offset was set. The ticket of the earlier ID is at
-- most R, because it was taken before its offset was read. The ticket of the later ID is above
-- R - 128, because an ID is returned only if its ticket is fresh: fewer than 128 tickets were taken
-- since, checked after the offset was read. So the tickets fall back by less than 128 where the
-- offset grows by 128 or more. A session that was stopped between ticket and offset finds its
-- ticket stale and takes another.
--
-- A burst of more than 1024 IDs in a millisecond makes IDs of the next second; beyond that it
-- waits. After the clock was set back by two seconds or more, the shard continues on logical time
-- until the clock has caught up.
--
-- Locks of this step: none that another session waits for; it only creates.

-- Checking the bodies takes half of the time in which a shard is created.
SET LOCAL check_function_bodies = off;

-- Both sequences are called at creation, because pg_sequence_last_value() returns null before that.
-- CACHE must stay 1: tickets taken ahead would never be fresh.
CREATE SEQUENCE {shard}.id_ticket AS bigint MINVALUE 0 START 0;
CREATE SEQUENCE {shard}.id_offset AS bigint MINVALUE 0 START 0;
SELECT pg_catalog.setval('{shard}.id_ticket', 0), pg_catalog.setval('{shard}.id_offset', 0);

-- Raises the offset until the last ticket is of the present millisecond. False if another session
-- is doing so, or if the clock shows a time that no ID can have.
--
-- The shard's number is in its name: a look-up of a function reads all functions of that name, in
-- thousands of schemas.
--
-- It has the owner's rights, because setval() needs more than USAGE. A search_path of its own would
-- cost as much as everything else. CASE is the one expression whose order PostgreSQL promises. The
-- clock is read again under the lock, and the distance is measured from the last ticket: a session
-- that was stopped in between cannot raise the offset too far. The two readings may be a minute
-- apart; a clock that jumps further is followed by the next call. The last four seconds of the 41
-- bits are not used.
--
-- Locks: the two sequences (ROW EXCLUSIVE and less), until the end of the transaction; the shard's
-- advisory lock, without waiting, for microseconds. That is taken and released within one
-- expression, where no cancel and no timeout can interrupt; nor can a wait for a sequence's lock,
-- because both have been read before.
CREATE FUNCTION {shard}.id_raise_{shard_id}() RETURNS boolean LANGUAGE plpgsql VOLATILE
    SECURITY DEFINER AS $id_raise$
DECLARE
    ms bigint := pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
            OPERATOR(pg_catalog.*) 1000)::bigint
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
                -- Other sessions keep taking tickets: the distance may have closed meanwhile.
                OPERATOR(pg_catalog.+) (GREATEST(0,
                    LEAST(2199023251455, ms OPERATOR(pg_catalog.+) 60000,
                        pg_catalog.floor(
                            pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
                            OPERATOR(pg_catalog.*) 1000)::bigint
                        OPERATOR(pg_catalog.-) ({epoch_ms}))
                    OPERATOR(pg_catalog.-) ((
                        pg_catalog.pg_sequence_last_value(
                            '{shard}.id_ticket'::pg_catalog.regclass)
                        OPERATOR(pg_catalog.+) pg_catalog.pg_sequence_last_value(
                            '{shard}.id_offset'::pg_catalog.regclass))
                        OPERATOR(pg_catalog.>>) 10))
                    OPERATOR(pg_catalog.<<) 10)) IS NULL
                THEN pg_catalog.pg_advisory_unlock(1885825380, {shard_id})
            ELSE pg_catalog.pg_advisory_unlock(1885825380, {shard_id}) END
        ELSE false END;
END $id_raise$;

-- The next ID.
--
-- Locks: the two sequences (ROW EXCLUSIVE and less), until the end of the transaction; sometimes
-- the shard's advisory lock, as id_raise.
CREATE FUNCTION {shard}.next_id() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $next_id$
DECLARE
    -- First the ticket, then the offset. Few and large expressions, because each costs a tenth of
    -- the whole.
    h bigint := pg_catalog.nextval('{shard}.id_ticket'::pg_catalog.regclass)
        OPERATOR(pg_catalog.+)
            pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass);
BEGIN
    -- Nearly always, h is from two milliseconds behind the wall clock to a second ahead, and the
    -- ticket is fresh, which is checked last. Two comparisons would read the clock twice.
    IF ((h OPERATOR(pg_catalog.+)
            (1024 OPERATOR(pg_catalog.*) ({epoch_ms}::bigint) OPERATOR(pg_catalog.+) 2047)
            OPERATOR(pg_catalog.-)
            (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
                OPERATOR(pg_catalog.*) 1024000)::bigint)
            OPERATOR(pg_catalog.&) (-1048576)::bigint) OPERATOR(pg_catalog.=) 0
        AND (pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
            OPERATOR(pg_catalog.-) pg_catalog.currval('{shard}.id_ticket'::pg_catalog.regclass))
            OPERATOR(pg_catalog.<) 128
    THEN
        -- From 2^40 ms on, the shift reaches the sign bit and the bigint is negative; its fields
        -- still decode.
        RETURN ((h OPERATOR(pg_catalog.&) (-1024)::bigint) OPERATOR(pg_catalog.<<) 13)
            OPERATOR(pg_catalog.|) ({shard_id} OPERATOR(pg_catalog.<<) 10)::bigint
            OPERATOR(pg_catalog.|) (h OPERATOR(pg_catalog.&) 1023::bigint);
    END IF;

    -- Nearly always otherwise, this is the first ID for some milliseconds. The same, after the
    -- offset was raised.
    IF (h OPERATOR(pg_catalog.+)
            (1024 OPERATOR(pg_catalog.*) ({epoch_ms}::bigint) OPERATOR(pg_catalog.+) 2047))
            OPERATOR(pg_catalog.<)
            (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
                OPERATOR(pg_catalog.*) 1024000)::bigint
        AND {shard}.id_raise_{shard_id}()
    THEN
        h := pg_catalog.currval('{shard}.id_ticket'::pg_catalog.regclass)
            OPERATOR(pg_catalog.+)
                pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass);
        IF ((h OPERATOR(pg_catalog.+)
                (1024 OPERATOR(pg_catalog.*) ({epoch_ms}::bigint) OPERATOR(pg_catalog.+) 2047)
                OPERATOR(pg_catalog.-)
                (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
                    OPERATOR(pg_catalog.*) 1024000)::bigint)
                OPERATOR(pg_catalog.&) (-1048576)::bigint) OPERATOR(pg_catalog.=) 0
            AND (pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
                OPERATOR(pg_catalog.-)
                    pg_catalog.currval('{shard}.id_ticket'::pg_catalog.regclass))
                OPERATOR(pg_catalog.<) 128
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
            IF (pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
                    OPERATOR(pg_catalog.-) ticket)
                OPERATOR(pg_catalog.>=) 128
            THEN
                ticket := pg_catalog.nextval('{shard}.id_ticket'::pg_catalog.regclass);
            END IF;
            h := ticket OPERATOR(pg_catalog.+)
                pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass);
            ms := pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
                    OPERATOR(pg_catalog.*) 1000)::bigint
                OPERATOR(pg_catalog.-) ({epoch_ms});
            IF h IS NULL THEN
                -- Null if the role may not read the offset, and if logical replication or a dump
                -- of the schema created the sequence.
                IF pg_catalog.has_sequence_privilege('{shard}.id_offset'::pg_catalog.regclass,
                    'USAGE, SELECT') THEN
                    RAISE EXCEPTION USING
                        ERRCODE = 'object_not_in_prerequisite_state',
                        MESSAGE = 'the sequences of {shard}''s IDs were never called',
                        HINT = 'As after logical replication. `pgshard check` prints the statement '
                            'that sets them.';
                END IF;
                RAISE EXCEPTION USING
                    ERRCODE = 'insufficient_privilege',
                    MESSAGE = 'the sequences of {shard}''s IDs cannot be read',
                    HINT = 'Grant USAGE on {shard}.id_ticket and {shard}.id_offset.';
            END IF;
            -- The last four seconds of the 41 bits are not used: no burst can then reach the end
            -- between two readings of the clock.
            IF ms OPERATOR(pg_catalog.<) 0
                OR GREATEST(ms, h OPERATOR(pg_catalog.>>) 10)
                    OPERATOR(pg_catalog.>) 2199023251455
            THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'datetime_field_overflow',
                    MESSAGE = CASE WHEN ms OPERATOR(pg_catalog.<) 0
                                   THEN 'the clock of this server is before the epoch of the '
                                       'cluster''s IDs'
                                   ELSE 'the 41 bits of the cluster''s IDs are used up' END,
                    DETAIL = pg_catalog.format('The clock says %s, the epoch is %s ms after 1970, '
                        'the shard''s last ID is of %s ms after that.',
                        pg_catalog.clock_timestamp(), {epoch_ms}, h OPERATOR(pg_catalog.>>) 10),
                    HINT = CASE WHEN ms OPERATOR(pg_catalog.<) 0
                                    OR ms OPERATOR(pg_catalog.>) 2199023251455
                                THEN 'Set the server''s clock right. If it is right, IDs of '
                                    'another epoch are another cluster.'
                                ELSE 'The clock was wrong when the last ID was made: '
                                    '{shard}.id_repair() sets the IDs right.' END;
            END IF;
            lead := (h OPERATOR(pg_catalog.>>) 10) OPERATOR(pg_catalog.-) ms;
            IF lead OPERATOR(pg_catalog.<) 0 THEN
                -- The ticket is fresh here: a stale one would raise the offset too far.
                IF {shard}.id_raise_{shard_id}() THEN
                    h := ticket OPERATOR(pg_catalog.+)
                        pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass);
                ELSIF lead OPERATOR(pg_catalog.<) (-2)::bigint THEN
                    -- Another session raises it, which takes microseconds. An ID of two
                    -- milliseconds ago would do.
                    tries := tries OPERATOR(pg_catalog.+) 1;
                    IF tries OPERATOR(pg_catalog.>) 10000 THEN
                        RAISE EXCEPTION USING
                            ERRCODE = 'lock_not_available',
                            MESSAGE = 'another session has held the lock of {shard}''s ID clock '
                                'for ten seconds',
                            DETAIL = 'It is the advisory lock (1885825380, {shard_id}), which is '
                                'held for microseconds.',
                            HINT = 'Find the session in pg_locks (classid 1885825380, '
                                'objid {shard_id}) and end it.';
                    END IF;
                    IF tries OPERATOR(pg_catalog.>) 100 THEN
                        PERFORM pg_catalog.pg_sleep(0.001);
                    END IF;
                    CONTINUE;
                END IF;
            ELSIF lead OPERATOR(pg_catalog.>=) 1024 AND lead OPERATOR(pg_catalog.<=) 2047 THEN
                -- A burst is a second ahead.
                PERFORM pg_catalog.pg_sleep(
                    (lead OPERATOR(pg_catalog.-) 1000)::pg_catalog.float8
                    OPERATOR(pg_catalog./) 1000::pg_catalog.float8);
            END IF;
            IF (pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
                    OPERATOR(pg_catalog.-) ticket)
                OPERATOR(pg_catalog.<) 128
            THEN
                RETURN ((h OPERATOR(pg_catalog.&) (-1024)::bigint) OPERATOR(pg_catalog.<<) 13)
                    OPERATOR(pg_catalog.|) ({shard_id} OPERATOR(pg_catalog.<<) 10)::bigint
                    OPERATOR(pg_catalog.|) (h OPERATOR(pg_catalog.&) 1023::bigint);
            END IF;
        END LOOP;
    END;
END $next_id$;

-- Reserves n successive values of h and returns the first: the offset grows by more than n, and
-- skips them.
--
-- Later values are those of fresh tickets under the new offset, at least (tickets before) - 128 +
-- (new offset); earlier ones are those of the old offset, at most (tickets after) + (old offset).
-- Between them are n values if no more than `slack` tickets were taken while the offset was set; if
-- more were, the skipped values stay unused.
--
-- Its operators are found in pg_catalog by its search_path, which costs too much for single IDs.
--
-- Locks: as id_raise.
CREATE FUNCTION {shard}.id_lease_{shard_id}(n int) RETURNS bigint LANGUAGE plpgsql VOLATILE
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $id_lease$
DECLARE
    ms bigint;
    -- Tickets before, the new offset, tickets after; whether the lock was released.
    seen bigint[] := ARRAY[
        pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass),
        pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass)];
    slack bigint := 32;
    tries int := 0;
BEGIN
    IF n IS NULL OR n < 1 OR n > 65536 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'a lease is of 1 to 65536 IDs';
    END IF;
    LOOP
        ms := pg_catalog.floor(
                pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::bigint
            - ({epoch_ms});
        IF ms < 0 OR GREATEST(ms, (seen[1] + seen[2]) >> 10) > 2199023255551 - 4096 THEN
            -- It raises the error.
            PERFORM {shard}.next_id();
        END IF;
        seen := CASE WHEN pg_catalog.pg_try_advisory_lock(1885825380, {shard_id}) THEN
            -- An ARRAY is evaluated from left to right, and nothing in it can fail or wait.
            CASE WHEN ((pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
                    + pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass))
                    >> 10) - ms
                    NOT BETWEEN 768 AND 2047
                THEN ARRAY[
                    pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass),
                    pg_catalog.setval('{shard}.id_offset'::pg_catalog.regclass,
                        pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass)
                        + (GREATEST(0, ms - ((pg_catalog.pg_sequence_last_value(
                                '{shard}.id_ticket'::pg_catalog.regclass)
                            + pg_catalog.pg_sequence_last_value(
                                '{shard}.id_offset'::pg_catalog.regclass)) >> 10)) << 10)
                        + n + 128 + slack),
                    pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass),
                    pg_catalog.pg_advisory_unlock(1885825380, {shard_id})::int]
                ELSE ARRAY[NULL, NULL, NULL,
                    pg_catalog.pg_advisory_unlock(1885825380, {shard_id})::int] END
            END;
        IF seen[3] - seen[1] <= slack THEN
            RETURN seen[3] + seen[2] - n - 128 - slack + 1;
        END IF;
        tries := tries + 1;
        IF tries > 10000 THEN
            RAISE EXCEPTION USING
                ERRCODE = 'lock_not_available',
                MESSAGE = 'no IDs could be reserved on {shard}: too many sessions make IDs, or '
                    'one holds the lock of its ID clock',
                DETAIL = 'It is the advisory lock (1885825380, {shard_id}), which is held for '
                    'microseconds.',
                HINT = 'Try again; if it stays, find the session in pg_locks '
                    '(classid 1885825380, objid {shard_id}).';
        END IF;
        IF seen IS NULL THEN
            IF tries > 100 THEN
                PERFORM pg_catalog.pg_sleep(0.001);
            END IF;
        ELSIF seen[1] IS NULL THEN
            -- Bursts are nearly a second ahead.
            PERFORM pg_catalog.pg_sleep(0.01);
        ELSE
            slack := LEAST(slack * 16, 8192);
        END IF;
        seen := ARRAY[pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass),
            pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass)];
    END LOOP;
END $id_lease$;

-- n IDs at once: for bulk loads, or to know IDs before the rows exist.
--
-- Locks: as id_lease.
CREATE FUNCTION {shard}.next_ids(n int) RETURNS SETOF bigint LANGUAGE plpgsql VOLATILE ROWS 1000
    AS $next_ids$
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
            FROM pg_catalog.generate_series(first,
                (first OPERATOR(pg_catalog.+) size) OPERATOR(pg_catalog.-) 1::bigint) AS h;
        todo := todo OPERATOR(pg_catalog.-) size;
    END LOOP;
END $next_ids$;

-- The largest ID (as unsigned 64 bits) that can exist so far.
--
-- Locks: the two sequences (ACCESS SHARE or ROW SHARE), until the end of the transaction.
CREATE FUNCTION {shard}.id_high_water() RETURNS bigint LANGUAGE plpgsql VOLATILE
    AS $id_high_water$
BEGIN
    RETURN (((pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
        OPERATOR(pg_catalog.+)
            pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass))
            OPERATOR(pg_catalog.>>) 10) OPERATOR(pg_catalog.<<) 23)
        OPERATOR(pg_catalog.|) ({shard_id} OPERATOR(pg_catalog.<<) 10)::bigint
        OPERATOR(pg_catalog.|) 1023::bigint;
END $id_high_water$;

-- Raises the offset until all later IDs are of later milliseconds than `id`. Returns without effect
-- for null, the largest ID of no rows. Call it while no other session makes IDs.
--
-- Locks: as id_raise, but it waits for the advisory lock, ten seconds at most.
CREATE FUNCTION {shard}.resume_after(id bigint, ahead_max interval) RETURNS void
    LANGUAGE plpgsql VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $resume_after$
DECLARE
    -- h where the next millisecond begins. An ID is unsigned: the mask removes the copies of the
    -- sign.
    goal_ms bigint := ((id >> 23) & 2199023255551) + 1;
    goal bigint := goal_ms << 10;
    now_ms bigint := pg_catalog.floor(
            pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::bigint
        - ({epoch_ms});
    -- Takes the sequences' locks before the advisory lock, as id_raise does.
    h bigint := pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
        + pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass);
    tries int := 0;
BEGIN
    -- Checked first: an error of setval() would leave the advisory lock behind. There is no REVOKE,
    -- because that would read all functions of this name, in thousands of schemas.
    IF NOT pg_catalog.has_sequence_privilege('{shard}.id_offset'::pg_catalog.regclass, 'UPDATE')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = 'resume_after() is for the owner of {shard}',
            HINT = 'Or grant UPDATE on {shard}.id_offset.';
    END IF;
    IF h - 128 >= goal THEN
        RETURN;
    END IF;
    IF goal_ms > 2199023251455
        OR (goal_ms - now_ms) / 1000.0 > pg_catalog.date_part('epoch', ahead_max) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'numeric_value_out_of_range',
            MESSAGE = pg_catalog.format('resume_after(%s): this ID is of a time far ahead of this '
                'server''s clock', id),
            DETAIL = pg_catalog.format('It is of %s ms after the epoch; the clock is at %s ms, '
                'and the last ms of which there are IDs is 2199023251455.',
                goal_ms - 1, now_ms),
            HINT = 'Is it an ID of another system, or of another epoch? If it is right, say how '
                'far ahead it may be: '
                || 'resume_after(id, ''30 days'').';
    END IF;
    WHILE h - 128 < goal LOOP
        -- 256: then every fresh ticket is past the goal, and the offset grows by more than 128.
        IF (CASE WHEN pg_catalog.pg_try_advisory_lock(1885825380, {shard_id}) THEN
            CASE WHEN pg_catalog.setval('{shard}.id_offset'::pg_catalog.regclass,
                    GREATEST(
                        pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass)
                            + 128,
                        goal + 256 - pg_catalog.pg_sequence_last_value(
                            '{shard}.id_ticket'::pg_catalog.regclass))) > 0
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
                MESSAGE = 'another session has held the lock of {shard}''s ID clock for ten '
                    'seconds',
                HINT = 'Find the session in pg_locks (classid 1885825380, objid {shard_id}) and '
                    'end it.';
        END IF;
        PERFORM pg_catalog.pg_sleep(0.001);
    END LOOP;
END $resume_after$;

-- The same for IDs of up to a day ahead of the server's clock.
--
-- Locks: the same.
CREATE FUNCTION {shard}.resume_after(id bigint) RETURNS void LANGUAGE plpgsql VOLATILE STRICT
    AS $resume_after$
BEGIN
    PERFORM {shard}.resume_after(id, '1 day'::pg_catalog.interval);
END $resume_after$;

-- Lowers the offset, which no other function does. IDs made under the wrong clock keep their place,
-- ten years or more ahead, so that new ones do not reach them before that. A session that reads the
-- offset during the call makes an ID of either time. `last` is the largest ID that was made under
-- the right clock; null: none. The clock is used if it is later.
--
-- Locks: as resume_after.
CREATE FUNCTION {shard}.id_repair(last bigint) RETURNS void LANGUAGE plpgsql VOLATILE
    SET search_path = pg_catalog, pg_temp AS $id_repair$
DECLARE
    now_ms bigint := pg_catalog.floor(
            pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::bigint
        - ({epoch_ms});
    h_ms bigint := (pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
        + pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass)) >> 10;
    -- A burst is two seconds ahead of the clock at most.
    goal_ms bigint := GREATEST(now_ms + 2048, coalesce(((last >> 23) & 2199023255551) + 1, 0));
    tries int := 0;
BEGIN
    IF NOT pg_catalog.has_sequence_privilege('{shard}.id_offset'::pg_catalog.regclass, 'UPDATE')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = 'id_repair() is for the owner of {shard}',
            HINT = 'Or grant UPDATE on {shard}.id_offset.';
    END IF;
    IF now_ms < 0 OR goal_ms > 2199023251455 OR goal_ms - now_ms > 86400000 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'numeric_value_out_of_range',
            MESSAGE = pg_catalog.format('id_repair(%s): this server''s clock and this ID do not '
                'fit each other', last),
            DETAIL = pg_catalog.format('The clock is at %s ms after the epoch, the ID''s time is '
                '%s ms.', now_ms, (last >> 23) & 2199023255551),
            HINT = 'Set the clock right, and take the largest ID that was made while it was.';
    END IF;
    -- 3652 days. IDs that are less far ahead need no repair: they continue from there, and lower
    -- ones would reach them one day.
    IF h_ms - goal_ms < 315532800000 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = pg_catalog.format('id_repair(%s): the IDs of {shard} are not ten years '
                'ahead of the clock', last),
            DETAIL = pg_catalog.format('The clock is at %s ms after the epoch, the last ID''s '
                'time is %s ms.', now_ms, h_ms),
            HINT = 'Nothing needs to be done: IDs stay unique and go on from the time that they '
                'have reached.';
    END IF;
    LOOP
        IF (CASE WHEN pg_catalog.pg_try_advisory_lock(1885825380, {shard_id}) THEN
            CASE WHEN pg_catalog.setval('{shard}.id_offset'::pg_catalog.regclass,
                    GREATEST(0, (goal_ms << 10) + 256
                        - pg_catalog.pg_sequence_last_value(
                            '{shard}.id_ticket'::pg_catalog.regclass))) >= 0
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
                MESSAGE = 'another session has held the lock of {shard}''s ID clock for ten '
                    'seconds',
                HINT = 'Find the session in pg_locks (classid 1885825380, objid {shard_id}) and '
                    'end it.';
        END IF;
        PERFORM pg_catalog.pg_sleep(0.001);
    END LOOP;
END $id_repair$;

RESET check_function_bodies;
