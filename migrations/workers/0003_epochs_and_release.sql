-- The epoch of a space is recorded, clocks are compared, and numbers are given back.
--
-- Two generators with two epochs put one millisecond of the clock into different IDs, and different milliseconds into
-- one: what the ceilings keep apart is not apart any more. A clock that is years ahead makes IDs of that time, and
-- leaves a ceiling there.

-- From which Unix millisecond the IDs of a space count: what the first generator said.
CREATE TABLE pgshard_workers.space (
    space    text   PRIMARY KEY,
    epoch_ms bigint NOT NULL
);

-- `floor_ms`: the first millisecond that the holder may use.
ALTER TABLE pgshard_workers.lease ADD COLUMN floor_ms bigint NOT NULL DEFAULT 0;

-- By how much a generator's clock is ahead of this server's (behind: negative) if that is more than ten seconds; else
-- NULL.
CREATE FUNCTION pgshard_workers.clock_off_ms(a_now_ms bigint) RETURNS bigint
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN abs(a_now_ms - here.ms) > 10000 THEN a_now_ms - here.ms END
        -- When the request came: what this server was busy with meanwhile is no fault of the clock.
        FROM (SELECT floor(date_part('epoch', statement_timestamp()) * 1000)::bigint AS ms) AS here
$$;

-- The free number whose last holder stopped longest ago, or the one that this token was granted already: its holder did
-- not hear of it. Without a number it says why: `wait_ms` while none is granted, `clock_off_ms` for a wrong clock,
-- `known_epoch_ms` for another epoch; else all are held, or were used by a clock that was ahead.
--
-- Locks: the row of pgshard_workers.home, until the end of the transaction: two at once would choose the same number.
CREATE FUNCTION pgshard_workers.acquire(a_space text, a_token uuid, a_now_ms bigint, a_length_ms bigint,
    a_keep_ms bigint, a_epoch_ms bigint, OUT worker integer, OUT floor_ms bigint, OUT ceiling_ms bigint, OUT wait_ms bigint,
    OUT clock_off_ms bigint, OUT known_epoch_ms bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known pgshard_workers.home;
    place record;
    hold_ms bigint;
BEGIN
    PERFORM pgshard_workers.flushed();
    -- A program of before says no epoch, and its clock is not looked at.
    IF a_epoch_ms IS NOT NULL THEN
        clock_off_ms := pgshard_workers.clock_off_ms(a_now_ms);
        IF clock_off_ms IS NOT NULL THEN
            RETURN;
        END IF;
        INSERT INTO pgshard_workers.space AS s (space, epoch_ms) VALUES (a_space, a_epoch_ms) ON CONFLICT DO NOTHING;
        SELECT s.epoch_ms INTO known_epoch_ms FROM pgshard_workers.space s WHERE s.space = a_space AND s.epoch_ms <> a_epoch_ms;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    SELECT * INTO STRICT known FROM pgshard_workers.home FOR UPDATE;
    SELECT * INTO place FROM pgshard_workers.here();
    known.longest_ms := greatest(known.longest_ms, a_length_ms);
    IF (known.system_id, known.timeline) IS DISTINCT FROM (place.system_id, place.timeline) THEN
        known.hold_until := greatest(known.hold_until, clock_timestamp() + known.longest_ms * interval '1 millisecond');
    ELSIF known.started <> place.started THEN
        -- Nothing was granted since the server started, and what was granted before has ended so long after that.
        known.hold_until := greatest(known.hold_until, place.started + known.longest_ms * interval '1 millisecond');
    END IF;
    UPDATE pgshard_workers.home h SET (system_id, timeline, started, longest_ms, hold_until)
            = (place.system_id, place.timeline, place.started, known.longest_ms, known.hold_until)
        WHERE (h.system_id, h.timeline, h.started, h.longest_ms, h.hold_until)
            IS DISTINCT FROM (place.system_id, place.timeline, place.started, known.longest_ms, known.hold_until);
    IF known.hold_until > clock_timestamp() THEN
        wait_ms := ceil(date_part('epoch', known.hold_until - clock_timestamp()) * 1000);
        RETURN;
    END IF;
    hold_ms := coalesce(ceil(date_part('epoch', nullif(known.hold_until, '-infinity')) * 1000)::bigint, 0);
    UPDATE pgshard_workers.lease l SET ceiling_ms = greatest(l.ceiling_ms, a_now_ms + a_length_ms),
            expires_at = clock_timestamp() + a_keep_ms * interval '1 millisecond'
        WHERE l.space = a_space AND l.token = a_token AND l.expires_at >= clock_timestamp()
        RETURNING l.worker, greatest(l.floor_ms, hold_ms), l.ceiling_ms INTO acquire.worker, acquire.floor_ms, acquire.ceiling_ms;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT n.number, greatest(coalesce(held.ceiling_ms + 1, 0), hold_ms)
        INTO worker, floor_ms
        FROM generate_series(0, 1023) AS n (number)
        LEFT JOIN pgshard_workers.lease held ON held.space = a_space AND held.worker = n.number
        -- Whoever gets one whose time is yet to come has no ID before that.
        WHERE held.worker IS NULL OR (held.expires_at < clock_timestamp() AND held.ceiling_ms <= a_now_ms + 1000)
        ORDER BY coalesce(held.ceiling_ms, -1), n.number LIMIT 1;
    IF worker IS NULL THEN
        RETURN;
    END IF;
    ceiling_ms := greatest(a_now_ms, floor_ms) + a_length_ms;
    INSERT INTO pgshard_workers.lease AS l (space, worker, token, floor_ms, ceiling_ms, expires_at)
        VALUES (a_space, acquire.worker, a_token, acquire.floor_ms, acquire.ceiling_ms,
            clock_timestamp() + a_keep_ms * interval '1 millisecond')
        ON CONFLICT ON CONSTRAINT lease_pkey DO UPDATE
        SET token = excluded.token, floor_ms = excluded.floor_ms, ceiling_ms = excluded.ceiling_ms, expires_at = excluded.expires_at;
END
$$;

-- For programs of before.
CREATE OR REPLACE FUNCTION pgshard_workers.acquire(a_space text, a_token uuid, a_now_ms bigint, a_length_ms bigint,
    a_keep_ms bigint, OUT worker integer, OUT floor_ms bigint, OUT ceiling_ms bigint, OUT wait_ms bigint)
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.worker, a.floor_ms, a.ceiling_ms, a.wait_ms
        FROM pgshard_workers.acquire(a_space, a_token, a_now_ms, a_length_ms, a_keep_ms, NULL) AS a
$$;

-- renew(), unless the clock is wrong.
CREATE FUNCTION pgshard_workers.keep(a_space text, a_worker integer, a_token uuid, a_now_ms bigint,
    a_length_ms bigint, a_keep_ms bigint, OUT ceiling_ms bigint, OUT clock_off_ms bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    clock_off_ms := pgshard_workers.clock_off_ms(a_now_ms);
    IF clock_off_ms IS NULL THEN
        ceiling_ms := pgshard_workers.renew(a_space, a_worker, a_token, a_now_ms, a_length_ms, a_keep_ms);
    END IF;
END
$$;

-- The holder gives its number back, and says what the last millisecond is that it used: the next holder begins after
-- that. The only way by which a ceiling falls.
CREATE FUNCTION pgshard_workers.release(a_space text, a_worker integer, a_token uuid, a_last_ms bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgshard_workers.flushed();
    UPDATE pgshard_workers.lease l SET expires_at = clock_timestamp(), token = gen_random_uuid(),
            ceiling_ms = greatest(l.floor_ms - 1, least(l.ceiling_ms, a_last_ms))
        WHERE l.space = a_space AND l.worker = a_worker AND l.token = a_token AND l.expires_at >= clock_timestamp();
    RETURN FOUND;
END
$$;

-- An operator takes a number back. Its holder, should there be one, goes on until its lease ends; the next begins after
-- that.
CREATE FUNCTION pgshard_workers.take_back(a_space text, a_worker integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgshard_workers.flushed();
    UPDATE pgshard_workers.lease l SET expires_at = clock_timestamp(), token = gen_random_uuid()
        WHERE l.space = a_space AND l.worker = a_worker AND l.expires_at >= clock_timestamp();
    RETURN FOUND;
END
$$;

UPDATE pgshard_workers.version SET version = 3;
