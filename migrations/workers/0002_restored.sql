-- A table of leases that went back in time gives no number to a second holder.
--
-- After a base backup was restored, a standby was promoted that lacks the last rows, or the table was made anew elsewhere, numbers
-- are held of which the table knows nothing. Their holders' last milliseconds are at most the longest lease away. So whenever
-- the table may have gone back, no number is granted for that long, and those that are granted afterwards begin after it.
-- Renewals go on; of a table that was restored or promoted only those of leases that have not ended, since another holder may
-- have followed on one that has.

-- `system_id`, `timeline`, `started`: where the table was when a number was granted last. A restored server has another start, a
-- promoted one another timeline, a copy of the rows another system. `longest_ms`: the longest lease that was asked for.
-- `hold_until`: no number is granted before, and none of an earlier millisecond.
CREATE TABLE pgshard_workers.home (
    only_row   boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    system_id  bigint      NOT NULL,
    timeline   text        NOT NULL,
    started    timestamptz NOT NULL,
    longest_ms bigint      NOT NULL CHECK (longest_ms >= 0),
    hold_until timestamptz NOT NULL
);

-- Where this table is.
CREATE FUNCTION pgshard_workers.here(OUT system_id bigint, OUT timeline text, OUT started timestamptz)
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT (pg_control_system()).system_identifier, left(pg_walfile_name(pg_current_wal_lsn()), 8), pg_postmaster_start_time()
$$;

INSERT INTO pgshard_workers.home (system_id, timeline, started, longest_ms, hold_until)
    SELECT h.system_id, h.timeline, h.started, 0, '-infinity' FROM pgshard_workers.here() AS h;

-- A row that is gone is a number that is held by nobody: never delete one.
CREATE FUNCTION pgshard_workers.kept() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'leases of worker numbers are kept for ever: a number without its row would be granted beside its holder'
        USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'To move the table see docs/ids.md; `pgshard workers hold` makes a table safe that went back in time.';
END
$$;
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pgshard_workers.lease EXECUTE FUNCTION pgshard_workers.kept();

-- For an operator who knows that the table went back in time, or that generators still lease from another one: no number is
-- granted for so long; unless it is said, for the longest lease, and 120 seconds at least: four times what generators ask for
-- unless they are told otherwise. Returns until when.
CREATE FUNCTION pgshard_workers.hold(a_length_ms bigint) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    until timestamptz;
BEGIN
    PERFORM pgshard_workers.flushed();
    UPDATE pgshard_workers.home SET hold_until =
            greatest(hold_until, clock_timestamp() + coalesce(a_length_ms, greatest(longest_ms, 120000)) * interval '1 millisecond')
        RETURNING hold_until INTO until;
    RETURN until;
END
$$;

-- The free number whose last holder stopped longest ago; NULL when all are held, or with `wait_ms` while none is granted.
--
-- Locks: the row of pgshard_workers.home, until the end of the transaction: two at once would choose the same number.
DROP FUNCTION pgshard_workers.acquire(text, uuid, bigint, bigint, bigint);
CREATE FUNCTION pgshard_workers.acquire(a_space text, a_token uuid, a_now_ms bigint, a_length_ms bigint,
    a_keep_ms bigint, OUT worker integer, OUT floor_ms bigint, OUT ceiling_ms bigint, OUT wait_ms bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known pgshard_workers.home;
    place record;
BEGIN
    PERFORM pgshard_workers.flushed();
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
    SELECT n.number, greatest(coalesce(held.ceiling_ms + 1, 0), ceil(date_part('epoch', nullif(known.hold_until, '-infinity')) * 1000)::bigint)
        INTO worker, floor_ms
        FROM generate_series(0, 1023) AS n (number)
        LEFT JOIN pgshard_workers.lease held ON held.space = a_space AND held.worker = n.number
        WHERE held.worker IS NULL OR held.expires_at < clock_timestamp()
        ORDER BY coalesce(held.ceiling_ms, -1), n.number LIMIT 1;
    IF worker IS NULL THEN
        RETURN;
    END IF;
    ceiling_ms := greatest(a_now_ms, floor_ms) + a_length_ms;
    INSERT INTO pgshard_workers.lease AS l (space, worker, token, ceiling_ms, expires_at)
        VALUES (a_space, acquire.worker, a_token, acquire.ceiling_ms,
            clock_timestamp() + a_keep_ms * interval '1 millisecond')
        ON CONFLICT ON CONSTRAINT lease_pkey DO UPDATE
        SET token = excluded.token, ceiling_ms = excluded.ceiling_ms, expires_at = excluded.expires_at;
END
$$;

-- The new ceiling; NULL when the number is somebody else's by now, or may be.
CREATE OR REPLACE FUNCTION pgshard_workers.renew(a_space text, a_worker integer, a_token uuid, a_now_ms bigint,
    a_length_ms bigint, a_keep_ms bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ceiling bigint;
    went_back boolean;
BEGIN
    PERFORM pgshard_workers.flushed();
    SELECT (m.system_id, m.timeline) IS DISTINCT FROM (h.system_id, h.timeline)
            -- A hold that is more than that of a server which only started again.
            OR m.hold_until > greatest(clock_timestamp(), h.started + m.longest_ms * interval '1 millisecond')
        INTO STRICT went_back FROM pgshard_workers.home m CROSS JOIN pgshard_workers.here() h;
    UPDATE pgshard_workers.lease SET ceiling_ms = greatest(ceiling_ms, a_now_ms + a_length_ms),
            expires_at = clock_timestamp() + a_keep_ms * interval '1 millisecond'
        WHERE space = a_space AND worker = a_worker AND token = a_token AND (NOT went_back OR expires_at >= clock_timestamp())
        RETURNING ceiling_ms INTO ceiling;
    RETURN ceiling;
END
$$;

UPDATE pgshard_workers.version SET version = 2;
