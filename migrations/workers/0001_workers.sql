-- Worker numbers of snowflake generators, leased. Run once, in one database that all generators reach. PostgreSQL 13 to 18.
--
-- What may not break: ceiling_ms of a worker never falls, and a grant begins after the one before it. The milliseconds in
-- the IDs of two holders of one number are apart by that alone, whatever the clocks of holders and server say and however
-- long a holder was stopped. expires_at only decides when a number may go to somebody else.

CREATE SCHEMA pgshard_workers;

CREATE TABLE pgshard_workers.version (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version  integer NOT NULL
);
INSERT INTO pgshard_workers.version (version) VALUES (1);

-- `space`: the IDs that must differ from each other. `ceiling_ms`: no ID has a later millisecond (Unix).
CREATE TABLE pgshard_workers.lease (
    space      text    NOT NULL,
    worker     integer NOT NULL CHECK (worker BETWEEN 0 AND 1023),
    token      uuid    NOT NULL,
    ceiling_ms bigint  NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (space, worker)
);

CREATE FUNCTION pgshard_workers.flushed() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- A grant that a crash takes back would be given again.
    IF pg_catalog.current_setting('synchronous_commit') = 'off' THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

-- The free number whose last holder stopped longest ago; NULL when all are held.
CREATE FUNCTION pgshard_workers.acquire(a_space text, a_token uuid, a_now_ms bigint, a_length_ms bigint,
    a_keep_ms bigint, OUT worker integer, OUT floor_ms bigint, OUT ceiling_ms bigint)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgshard_workers.flushed();
    -- One at a time: two would choose the same number. 1885827944 is "pgsh".
    PERFORM pg_catalog.pg_advisory_xact_lock(1885827944, pg_catalog.hashtext(a_space));
    SELECT n.number, coalesce(held.ceiling_ms + 1, 0) INTO worker, floor_ms
        FROM pg_catalog.generate_series(0, 1023) AS n (number)
        LEFT JOIN pgshard_workers.lease held ON held.space = a_space AND held.worker = n.number
        WHERE held.worker IS NULL OR held.expires_at < pg_catalog.clock_timestamp()
        ORDER BY coalesce(held.ceiling_ms, -1), n.number LIMIT 1;
    IF worker IS NULL THEN
        RETURN;
    END IF;
    ceiling_ms := greatest(a_now_ms, floor_ms) + a_length_ms;
    INSERT INTO pgshard_workers.lease AS l (space, worker, token, ceiling_ms, expires_at)
        VALUES (a_space, acquire.worker, a_token, acquire.ceiling_ms,
            pg_catalog.clock_timestamp() + a_keep_ms * interval '1 millisecond')
        ON CONFLICT ON CONSTRAINT lease_pkey DO UPDATE
        SET token = excluded.token, ceiling_ms = excluded.ceiling_ms, expires_at = excluded.expires_at;
END
$$;

-- The new ceiling; NULL when the number is somebody else's by now.
CREATE FUNCTION pgshard_workers.renew(a_space text, a_worker integer, a_token uuid, a_now_ms bigint,
    a_length_ms bigint, a_keep_ms bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    ceiling bigint;
BEGIN
    PERFORM pgshard_workers.flushed();
    UPDATE pgshard_workers.lease SET ceiling_ms = greatest(ceiling_ms, a_now_ms + a_length_ms),
            expires_at = pg_catalog.clock_timestamp() + a_keep_ms * interval '1 millisecond'
        WHERE space = a_space AND worker = a_worker AND token = a_token RETURNING ceiling_ms INTO ceiling;
    RETURN ceiling;
END
$$;
