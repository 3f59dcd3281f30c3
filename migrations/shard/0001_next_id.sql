-- The IDs of a shard: every sharded table has `id bigint DEFAULT {shard}.next_id()`.
--
--   {shard}.next_id()            the next ID
--   {shard}.next_ids(n)          n IDs at once, ascending, 0 <= n <= 1000000: for bulk loads, or to know IDs before the rows
--   {shard}.id_high_water()      the largest ID (as unsigned 64 bits) that there can be so far
--   {shard}.resume_after(id)     from now on only IDs of later milliseconds than this one: after rows that were made
--                                elsewhere were loaded, while nobody else makes IDs. For the owner only.
--
-- Run by the role that owns the shard. A role that only writes needs USAGE on the schema and on the two sequences.
--
-- What may not break:
--   * the layout, 41 bits of milliseconds since the epoch, 13 bits of shard, 10 bits of sequence;
--   * no ID comes twice, whatever writers, clock, crashes and moves do, and each connection's IDs grow;
--   * the bodies are text that names the shard's final schema, so that a move can carry them before the schema has its
--     name;
--   * every name in them is qualified: they do the same under any search_path;
--   * the clock is read as pg_catalog.clock_timestamp(), nowhere otherwise: tests put a clock of their own in its place.
--
-- How: a logical clock h = ticket + offset, in units of 1/1024 ms, is the sum of two sequences, which no rollback turns
-- back. Its upper 41 bits are the ID's milliseconds, its lower 10 the ID's sequence. Each ID takes a ticket. The offset
-- only grows, by 128 or more at a time, under an advisory lock; when h is more than two milliseconds behind the wall
-- clock, it grows by whole milliseconds until h has caught up. Each growth costs several IDs, so two milliseconds are let pass.
--
-- Why no ID repeats: two IDs of one offset differ by their tickets. For two of different offsets, let R be the last
-- ticket there was when the later of them was set. The earlier ID's ticket is at most R, because it was taken before
-- the offset was read. The later ID's is above R - 128, because an ID is given only if fewer than 128 tickets were
-- taken since its own ("fresh"), which is looked at after the offset was read. So the tickets fall back by less than
-- 128 where the offset grows by 128 or more. A session that was stopped between ticket and offset finds its ticket no
-- longer fresh and takes another.
--
-- A burst of more than 1024 a millisecond makes IDs of the next second; beyond that it waits. A clock that was set back
-- by two seconds or more is not waited for: the shard stays on logical time until the clock has caught up.
--
-- {shard} is the shard's schema, quoted; {shard_id} its number; {epoch_ms} the cluster's epoch as Unix milliseconds.
-- 1885825380 is the class of the advisory locks ("pgid" in ASCII), its key the shard.

-- Reading the bodies twice takes half of the time in which a shard is made.
SET LOCAL check_function_bodies = off;

-- Both sequences have been called from the start, because pg_sequence_last_value() knows no value before. CACHE must
-- stay 1: tickets taken ahead would never be fresh.
CREATE SEQUENCE {shard}.id_ticket AS bigint MINVALUE 0 START 0;
CREATE SEQUENCE {shard}.id_offset AS bigint MINVALUE 0 START 0;
SELECT pg_catalog.setval('{shard}.id_ticket', 0), pg_catalog.setval('{shard}.id_offset', 0);

-- Lets the offset grow until the last ticket is of the present millisecond. False if another session is at it.
--
-- The shard's number is in its name because looking a function up reads all of its name, in thousands of schemas.
--
-- It has the owner's rights, because setval() takes more than USAGE. Instead of a search path of its own, which would cost
-- as much as all of the rest, its operators have their schema too. The advisory lock is taken and given back within one
-- expression, where no cancel and no timeout can come between. Nor can waiting for a sequence's lock: reading
-- both before has taken those until the end of the transaction. CASE, because it is the one expression whose order
-- PostgreSQL promises. The clock is read under the lock, and what is behind is counted from the last ticket: nobody drags
-- the offset ahead who was stopped in between. The end of the 41 bits, less four seconds, is as far as it goes.
CREATE FUNCTION {shard}.id_raise_{shard_id}() RETURNS boolean LANGUAGE plpgsql VOLATILE
    SECURITY DEFINER AS $id_raise$
BEGIN
    RETURN CASE
        WHEN pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass) IS NULL
            OR pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass) IS NULL
            THEN false
        WHEN pg_catalog.pg_try_advisory_lock(1885825380, {shard_id}) THEN
            CASE WHEN pg_catalog.setval('{shard}.id_offset'::pg_catalog.regclass,
                pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass)
                -- Tickets go on being taken: what was behind a moment ago may have caught up.
                OPERATOR(pg_catalog.+) (GREATEST(0, LEAST(2199023251455,
                    pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::bigint
                        OPERATOR(pg_catalog.-) ({epoch_ms}))
                    OPERATOR(pg_catalog.-) ((pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
                    OPERATOR(pg_catalog.+) pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass))
                    OPERATOR(pg_catalog.>>) 10)) OPERATOR(pg_catalog.<<) 10)) IS NULL
                THEN pg_catalog.pg_advisory_unlock(1885825380, {shard_id})
            ELSE pg_catalog.pg_advisory_unlock(1885825380, {shard_id}) END
        ELSE false END;
END $id_raise$;

CREATE FUNCTION {shard}.next_id() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $next_id$
DECLARE
    -- First the ticket, then the offset. Few and large expressions: each costs a tenth of the whole.
    h bigint := pg_catalog.nextval('{shard}.id_ticket'::pg_catalog.regclass)
        + pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass);
BEGIN
    -- Nearly always: from two milliseconds behind the wall clock to a second ahead, and the ticket is fresh, which is looked
    -- at last. BETWEEN would read the clock twice.
    IF (h + (1024 * ({epoch_ms}::bigint) + 2047)
            - (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1024000)::bigint) & -1048576 = 0
        AND pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
            - pg_catalog.currval('{shard}.id_ticket'::pg_catalog.regclass) < 128
    THEN
        -- From 2^40 ms on the shift reaches the sign bit and the bigint is negative; its fields still decode.
        RETURN ((h & -1024) << 13) | ({shard_id} << 10) | (h & 1023);
    END IF;

    -- Nearly always otherwise: the first ID for some milliseconds. The same, after the offset has grown.
    IF h + (1024 * ({epoch_ms}::bigint) + 2047) < (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1024000)::bigint
        AND {shard}.id_raise_{shard_id}()
    THEN
        h := pg_catalog.currval('{shard}.id_ticket'::pg_catalog.regclass)
            + pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass);
        IF (h + (1024 * ({epoch_ms}::bigint) + 2047)
                - (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1024000)::bigint) & -1048576 = 0
            AND pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
                - pg_catalog.currval('{shard}.id_ticket'::pg_catalog.regclass) < 128
        THEN
            RETURN ((h & -1024) << 13) | ({shard_id} << 10) | (h & 1023);
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
            IF pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass) - ticket >= 128 THEN
                ticket := pg_catalog.nextval('{shard}.id_ticket'::pg_catalog.regclass);
            END IF;
            h := ticket + pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass);
            ms := pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::bigint - ({epoch_ms});
            IF h IS NULL THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'insufficient_privilege',
                    MESSAGE = 'the sequences of {shard}''s IDs cannot be read',
                    HINT = 'Grant USAGE on {shard}.id_ticket and {shard}.id_offset.';
            END IF;
            -- The last four seconds of 41 bits are not used: no burst then reaches the end between two looks at the clock.
            IF ms < 0 OR GREATEST(ms, h >> 10) > 2199023255551 - 4096 THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'datetime_field_overflow',
                    MESSAGE = CASE WHEN ms < 0 THEN 'the clock of this server is before the epoch of the cluster''s IDs'
                                   ELSE 'the 41 bits of the cluster''s IDs are used up' END,
                    DETAIL = pg_catalog.format('The clock says %s, the epoch is %s ms after 1970, the shard''s last ID is of %s ms after that.',
                        pg_catalog.clock_timestamp(), {epoch_ms}, h >> 10),
                    HINT = CASE WHEN ms < 0 THEN 'Set the server''s clock right.' ELSE 'IDs of another epoch are another cluster.' END;
            END IF;
            lead := (h >> 10) - ms;
            IF lead < 0 THEN
                -- Whoever is here has a fresh ticket: a stale one would drag the clock ahead.
                IF {shard}.id_raise_{shard_id}() THEN
                    h := ticket + pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass);
                ELSIF lead < -2 THEN
                    -- Another session is at it, which takes microseconds. Two milliseconds late would do meanwhile.
                    tries := tries + 1;
                    IF tries > 10000 THEN
                        RAISE EXCEPTION USING
                            ERRCODE = 'lock_not_available',
                            MESSAGE = 'another session has held the lock of {shard}''s ID clock for ten seconds',
                            DETAIL = 'It is the advisory lock (1885825380, {shard_id}), which is held for microseconds.',
                            HINT = 'Find the session in pg_locks (classid 1885825380, objid {shard_id}) and end it.';
                    END IF;
                    IF tries > 100 THEN
                        PERFORM pg_catalog.pg_sleep(0.001);
                    END IF;
                    CONTINUE;
                END IF;
            ELSIF lead BETWEEN 1024 AND 2047 THEN
                -- A burst is a second ahead.
                PERFORM pg_catalog.pg_sleep((lead - 1000) / 1000.0);
            END IF;
            IF pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass) - ticket < 128 THEN
                RETURN ((h & -1024) << 13) | ({shard_id} << 10) | (h & 1023);
            END IF;
        END LOOP;
    END;
END $next_id$;

-- Takes n of h's values in a row and returns the first: the offset grows by n and more, and leaves them out.
--
-- Behind them come those of fresh tickets under the new offset, at least (tickets before) - 128 + (new offset); before
-- them those of the old offset, at most (tickets after) + (old offset). In between are n if no more than `slack` tickets
-- were taken while the offset was set; if more were, what was left out stays unused.
CREATE FUNCTION {shard}.id_lease_{shard_id}(n int) RETURNS bigint LANGUAGE plpgsql VOLATILE
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $id_lease$
DECLARE
    ms bigint;
    -- Tickets before, the new offset, tickets after; whether the lock was given back.
    seen bigint[] := ARRAY[pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass),
        pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass)];
    slack bigint := 32;
    tries int := 0;
BEGIN
    IF n IS NULL OR n < 1 OR n > 65536 THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'a lease is of 1 to 65536 IDs';
    END IF;
    LOOP
        ms := pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::bigint - ({epoch_ms});
        IF ms < 0 OR GREATEST(ms, (seen[1] + seen[2]) >> 10) > 2199023255551 - 4096 THEN
            -- It says what is wrong.
            PERFORM {shard}.next_id();
        END IF;
        seen := CASE WHEN pg_catalog.pg_try_advisory_lock(1885825380, {shard_id}) THEN
            -- An ARRAY is made from left to right, and nothing in it can fail or wait.
            CASE WHEN ((pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
                    + pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass)) >> 10) - ms
                    NOT BETWEEN 768 AND 2047
                THEN ARRAY[pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass),
                    pg_catalog.setval('{shard}.id_offset'::pg_catalog.regclass,
                        pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass)
                        + (GREATEST(0, ms - ((pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
                            + pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass)) >> 10)) << 10)
                        + n + 128 + slack),
                    pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass),
                    pg_catalog.pg_advisory_unlock(1885825380, {shard_id})::int]
                ELSE ARRAY[NULL, NULL, NULL, pg_catalog.pg_advisory_unlock(1885825380, {shard_id})::int] END
            END;
        IF seen[3] - seen[1] <= slack THEN
            RETURN seen[3] + seen[2] - n - 128 - slack + 1;
        END IF;
        tries := tries + 1;
        IF tries > 10000 THEN
            RAISE EXCEPTION USING
                ERRCODE = 'lock_not_available',
                MESSAGE = 'no IDs could be reserved on {shard}: too many sessions make IDs, or one holds the lock of its ID clock',
                DETAIL = 'It is the advisory lock (1885825380, {shard_id}), which is held for microseconds.',
                HINT = 'Try again; if it stays, find the session in pg_locks (classid 1885825380, objid {shard_id}).';
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

CREATE FUNCTION {shard}.next_ids(n int) RETURNS SETOF bigint LANGUAGE plpgsql VOLATILE ROWS 1000 AS $next_ids$
DECLARE
    first bigint;
    -- A lease moves the clock by 64 ms at most.
    size int;
    todo int := n;
BEGIN
    IF n IS NULL OR n < 0 OR n > 1000000 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('next_ids(%s): 0 to 1000000 IDs are reserved at once', n),
            HINT = 'Call it more than once.';
    END IF;
    WHILE todo > 0 LOOP
        size := LEAST(todo, 65536);
        first := {shard}.id_lease_{shard_id}(size);
        RETURN QUERY SELECT ((h & -1024) << 13) | ({shard_id} << 10) | (h & 1023)
            FROM pg_catalog.generate_series(first, first + size - 1) AS h;
        todo := todo - size;
    END LOOP;
END $next_ids$;

CREATE FUNCTION {shard}.id_high_water() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $id_high_water$
BEGIN
    RETURN (((pg_catalog.pg_sequence_last_value('{shard}.id_ticket'::pg_catalog.regclass)
        + pg_catalog.pg_sequence_last_value('{shard}.id_offset'::pg_catalog.regclass)) >> 10) << 23)
        | ({shard_id} << 10) | 1023;
END $id_high_water$;

-- Does nothing for NULL, the greatest ID of no rows.
CREATE FUNCTION {shard}.resume_after(id bigint) RETURNS void LANGUAGE plpgsql VOLATILE STRICT AS $resume_after$
DECLARE
    -- h where the next millisecond begins. An ID is unsigned: its time is what is left of the sign's copies.
    goal bigint := (((id >> 23) & 2199023255551) + 1) << 10;
    -- Takes the sequences' locks before the advisory lock, as above.
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

RESET check_function_bodies;
