-- Worker numbers of snowflake generators, leased. Run once, in one database that all generators
-- reach. No superuser, no extension. PostgreSQL 13 to 18.
--
-- Invariant: a grant begins after the ceiling of the one before it, and a ceiling falls only when
-- its holder releases the number. So the milliseconds in the IDs of two holders of one number
-- differ, whatever the clocks of holders and server show and however long a holder was stopped.
-- `expires_at` only decides when a number may be granted again.
--
-- A table that went back in time grants no number to a second holder. After a base backup was
-- restored, a standby was promoted that lacks the last rows, or the table was created again
-- elsewhere, numbers are held of which the table has no row. The last milliseconds of their holders
-- are at most the longest lease away. So when the table may have gone back, no number is granted
-- for that long, and later grants begin after it. Renewals continue; those of leases that have
-- ended do not, because another holder may have followed.
--
-- Two generators with different epochs put one millisecond of the clock into different IDs, and
-- different milliseconds into one, which defeats the ceilings. Hence a space has one epoch. A clock
-- that is years ahead would leave a ceiling there, hence clocks are compared.
--
-- Locks of this step: none that another session waits for; it only creates.

CREATE SCHEMA pgshard_workers;

CREATE TABLE pgshard_workers.version (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version  integer NOT NULL
);
INSERT INTO pgshard_workers.version (version) VALUES (1);

-- `space`: the IDs that must differ from each other. `floor_ms` and `ceiling_ms`: the first and the
-- last Unix millisecond of the holder's IDs.
CREATE TABLE pgshard_workers.lease (
    space      text    NOT NULL,
    worker     integer NOT NULL CHECK (worker BETWEEN 0 AND 1023),
    token      uuid    NOT NULL,
    ceiling_ms bigint  NOT NULL,
    expires_at timestamptz NOT NULL,
    floor_ms   bigint  NOT NULL DEFAULT 0,
    PRIMARY KEY (space, worker)
);

-- The Unix millisecond from which the IDs of a space count, as its first generator passed it.
CREATE TABLE pgshard_workers.space (
    space    text   PRIMARY KEY,
    epoch_ms bigint NOT NULL
);

-- `system_id`, `timeline`, `started`: the server at the last grant. A restored server has another
-- start, a promoted one another timeline, a copy of the rows another system.
-- `longest_ms`: the longest lease requested.
-- `hold_until`: no number is granted before, and none of an earlier millisecond.
CREATE TABLE pgshard_workers.home (
    only_row   boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    system_id  bigint      NOT NULL,
    timeline   text        NOT NULL,
    started    timestamptz NOT NULL,
    longest_ms bigint      NOT NULL CHECK (longest_ms >= 0),
    hold_until timestamptz NOT NULL
);

-- The server that has the table now.
--
-- Locks: none.
CREATE FUNCTION pgshard_workers.here(OUT system_id bigint, OUT timeline text,
    OUT started timestamptz)
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT (pg_control_system()).system_identifier,
        left(pg_walfile_name(pg_current_wal_lsn()), 8), pg_postmaster_start_time()
$$;

INSERT INTO pgshard_workers.home (system_id, timeline, started, longest_ms, hold_until)
    SELECT h.system_id, h.timeline, h.started, 0, '-infinity' FROM pgshard_workers.here() AS h;

-- Refuses to delete leases: a number without a row is free.
--
-- Locks: none.
CREATE FUNCTION pgshard_workers.kept() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'leases of worker numbers are kept for ever: a number without its row would '
        'be granted beside its holder'
        USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'To move the table see docs/ids.md; `pgshard workers hold` makes a table safe '
                'that went back in time.';
END
$$;
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pgshard_workers.lease
    EXECUTE FUNCTION pgshard_workers.kept();

-- Makes the commit of this transaction wait for the disk: a grant that a crash undid would be
-- granted again.
--
-- Locks: none.
CREATE FUNCTION pgshard_workers.flushed() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF pg_catalog.current_setting('synchronous_commit') = 'off' THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

-- By how much a generator's clock is ahead of this server's (behind: negative), if that is more
-- than ten seconds; else NULL.
--
-- Locks: none.
CREATE FUNCTION pgshard_workers.clock_off_ms(a_now_ms bigint) RETURNS bigint
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN abs(a_now_ms - here.ms) > 10000 THEN a_now_ms - here.ms END
        -- The time at which the request came: a busy server is no fault of the clock.
        FROM (SELECT floor(date_part('epoch', statement_timestamp()) * 1000)::bigint AS ms) AS here
$$;

-- For an operator who knows that the table went back in time, or that generators still lease from
-- another one: grants no number for `a_length_ms`. NULL: for the longest lease requested, and 120
-- seconds at least, four times what generators request by default. Returns the end of the hold.
--
-- Locks: the row of pgshard_workers.home, until the end of the transaction; acquire waits for it.
CREATE FUNCTION pgshard_workers.hold(a_length_ms bigint) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    until timestamptz;
BEGIN
    PERFORM pgshard_workers.flushed();
    UPDATE pgshard_workers.home SET hold_until = greatest(hold_until, clock_timestamp()
            + coalesce(a_length_ms, greatest(longest_ms, 120000)) * interval '1 millisecond')
        RETURNING hold_until INTO until;
    RETURN until;
END
$$;

-- Grants the free number whose last holder stopped longest ago, or the one that this token has been
-- granted already, if its holder did not receive the answer. Without a number it returns the
-- reason: `wait_ms` while none is granted, `clock_off_ms` for a wrong clock, `known_epoch_ms` for
-- another epoch. Otherwise all are held, or were used by a clock that was ahead. If `a_epoch_ms` is
-- NULL, neither clock nor epoch is compared.
--
-- Locks: the row of pgshard_workers.home, until the end of the transaction: two sessions at the
-- same time would choose the same number.
CREATE FUNCTION pgshard_workers.acquire(a_space text, a_token uuid, a_now_ms bigint,
    a_length_ms bigint, a_keep_ms bigint, a_epoch_ms bigint, OUT worker integer,
    OUT floor_ms bigint, OUT ceiling_ms bigint, OUT wait_ms bigint, OUT clock_off_ms bigint,
    OUT known_epoch_ms bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known pgshard_workers.home;
    place record;
    hold_ms bigint;
BEGIN
    PERFORM pgshard_workers.flushed();
    IF a_epoch_ms IS NOT NULL THEN
        clock_off_ms := pgshard_workers.clock_off_ms(a_now_ms);
        IF clock_off_ms IS NOT NULL THEN
            RETURN;
        END IF;
        INSERT INTO pgshard_workers.space AS s (space, epoch_ms) VALUES (a_space, a_epoch_ms)
            ON CONFLICT DO NOTHING;
        SELECT s.epoch_ms INTO known_epoch_ms FROM pgshard_workers.space s
            WHERE s.space = a_space AND s.epoch_ms <> a_epoch_ms;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    SELECT * INTO STRICT known FROM pgshard_workers.home FOR UPDATE;
    SELECT * INTO place FROM pgshard_workers.here();
    known.longest_ms := greatest(known.longest_ms, a_length_ms);
    IF (known.system_id, known.timeline) IS DISTINCT FROM (place.system_id, place.timeline) THEN
        known.hold_until := greatest(known.hold_until,
            clock_timestamp() + known.longest_ms * interval '1 millisecond');
    ELSIF known.started <> place.started THEN
        -- Nothing was granted since the server started, and earlier grants end within this time.
        known.hold_until := greatest(known.hold_until,
            place.started + known.longest_ms * interval '1 millisecond');
    END IF;
    UPDATE pgshard_workers.home h SET (system_id, timeline, started, longest_ms, hold_until)
            = (place.system_id, place.timeline, place.started, known.longest_ms, known.hold_until)
        WHERE (h.system_id, h.timeline, h.started, h.longest_ms, h.hold_until) IS DISTINCT FROM
            (place.system_id, place.timeline, place.started, known.longest_ms, known.hold_until);
    IF known.hold_until > clock_timestamp() THEN
        wait_ms := ceil(date_part('epoch', known.hold_until - clock_timestamp()) * 1000);
        RETURN;
    END IF;
    hold_ms := coalesce(
        ceil(date_part('epoch', nullif(known.hold_until, '-infinity')) * 1000)::bigint, 0);
    UPDATE pgshard_workers.lease l SET ceiling_ms = greatest(l.ceiling_ms, a_now_ms + a_length_ms),
            expires_at = clock_timestamp() + a_keep_ms * interval '1 millisecond'
        WHERE l.space = a_space AND l.token = a_token AND l.expires_at >= clock_timestamp()
        RETURNING l.worker, greatest(l.floor_ms, hold_ms), l.ceiling_ms
        INTO acquire.worker, acquire.floor_ms, acquire.ceiling_ms;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT n.number, greatest(coalesce(held.ceiling_ms + 1, 0), hold_ms)
        INTO worker, floor_ms
        FROM generate_series(0, 1023) AS n (number)
        LEFT JOIN pgshard_workers.lease held ON held.space = a_space AND held.worker = n.number
        -- A holder could make no ID before a ceiling that is in the future.
        WHERE held.worker IS NULL
            OR (held.expires_at < clock_timestamp() AND held.ceiling_ms <= a_now_ms + 1000)
        ORDER BY coalesce(held.ceiling_ms, -1), n.number LIMIT 1;
    IF worker IS NULL THEN
        RETURN;
    END IF;
    ceiling_ms := greatest(a_now_ms, floor_ms) + a_length_ms;
    INSERT INTO pgshard_workers.lease AS l (space, worker, token, floor_ms, ceiling_ms, expires_at)
        VALUES (a_space, acquire.worker, a_token, acquire.floor_ms, acquire.ceiling_ms,
            clock_timestamp() + a_keep_ms * interval '1 millisecond')
        ON CONFLICT ON CONSTRAINT lease_pkey DO UPDATE
        SET token = excluded.token, floor_ms = excluded.floor_ms, ceiling_ms = excluded.ceiling_ms,
            expires_at = excluded.expires_at;
END
$$;

-- Renews a lease, whatever the clock of its holder. Returns the new ceiling; NULL if the number has
-- or may have another holder by now.
--
-- Locks: the row of the lease, until the end of the transaction.
CREATE FUNCTION pgshard_workers.renew(a_space text, a_worker integer, a_token uuid,
    a_now_ms bigint, a_length_ms bigint, a_keep_ms bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ceiling bigint;
    went_back boolean;
BEGIN
    PERFORM pgshard_workers.flushed();
    SELECT (m.system_id, m.timeline) IS DISTINCT FROM (h.system_id, h.timeline)
            -- A longer hold than after a mere restart of the server.
            OR m.hold_until > greatest(clock_timestamp(),
                h.started + m.longest_ms * interval '1 millisecond')
        INTO STRICT went_back FROM pgshard_workers.home m CROSS JOIN pgshard_workers.here() h;
    UPDATE pgshard_workers.lease SET ceiling_ms = greatest(ceiling_ms, a_now_ms + a_length_ms),
            expires_at = clock_timestamp() + a_keep_ms * interval '1 millisecond'
        WHERE space = a_space AND worker = a_worker AND token = a_token
            AND (NOT went_back OR expires_at >= clock_timestamp())
        RETURNING ceiling_ms INTO ceiling;
    RETURN ceiling;
END
$$;

-- Renews a lease, unless the clock of its holder is wrong.
--
-- Locks: as renew.
CREATE FUNCTION pgshard_workers.keep(a_space text, a_worker integer, a_token uuid,
    a_now_ms bigint, a_length_ms bigint, a_keep_ms bigint, OUT ceiling_ms bigint,
    OUT clock_off_ms bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    clock_off_ms := pgshard_workers.clock_off_ms(a_now_ms);
    IF clock_off_ms IS NULL THEN
        ceiling_ms := pgshard_workers.renew(a_space, a_worker, a_token, a_now_ms, a_length_ms,
            a_keep_ms);
    END IF;
END
$$;

-- The holder releases its number, and passes the last millisecond that it used: the next holder
-- begins after that. Nothing else lowers a ceiling.
--
-- Locks: the row of the lease, until the end of the transaction.
CREATE FUNCTION pgshard_workers.release(a_space text, a_worker integer, a_token uuid,
    a_last_ms bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgshard_workers.flushed();
    UPDATE pgshard_workers.lease l SET expires_at = clock_timestamp(), token = gen_random_uuid(),
            ceiling_ms = greatest(l.floor_ms - 1, least(l.ceiling_ms, a_last_ms))
        WHERE l.space = a_space AND l.worker = a_worker AND l.token = a_token
            AND l.expires_at >= clock_timestamp();
    RETURN FOUND;
END
$$;

-- An operator releases a number. Its holder, if it still runs, continues until its lease ends; the
-- next one begins after that.
--
-- Locks: the row of the lease, until the end of the transaction.
CREATE FUNCTION pgshard_workers.take_back(a_space text, a_worker integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgshard_workers.flushed();
    UPDATE pgshard_workers.lease l SET expires_at = clock_timestamp(), token = gen_random_uuid()
        WHERE l.space = a_space AND l.worker = a_worker AND l.expires_at >= clock_timestamp();
    RETURN FOUND;
END
$$;
