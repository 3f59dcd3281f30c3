-- A series may have a maximum, for columns that are narrower than bigint. The sequence of each host ends at the last count
-- whose ticket is not above it; `series.max` is the same on all hosts, and is there for messages and for hosts that begin
-- later.
--
-- Locks: ACCESS EXCLUSIVE on pgshard_tickets.series until the commit, without a rewrite; callers of take() wait that long.

SET LOCAL lock_timeout = '2s';

ALTER TABLE pgshard_tickets.series ADD COLUMN IF NOT EXISTS max bigint CHECK (max > 0);

-- As before, except that a series with a maximum gives fewer tickets than n when fewer are left, and fails with SQLSTATE
-- 2200H when none is. The block around nextval() costs a subtransaction, so series without a maximum do without it.
CREATE OR REPLACE FUNCTION pgshard_tickets.take(ticket_name text, n integer, OUT series uuid, OUT stride integer,
    OUT run integer, OUT residue integer, OUT host_name text, OUT tickets bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    max   bigint;
    count bigint;
BEGIN
    IF n IS NULL OR n NOT BETWEEN 1 AND 100000 THEN
        RAISE EXCEPTION 'tickets are taken 1 to 100000 at a time, not %', n USING ERRCODE = '22023';
    END IF;
    SELECT s.series, s.stride, s.run, s.max, t.residue, t.host_name INTO series, stride, run, max, residue, host_name
        FROM pgshard_tickets.ticket t JOIN pgshard_tickets.series s ON s.name = t.name WHERE t.name = ticket_name;
    IF series IS NULL THEN
        RETURN;
    END IF;
    IF pg_catalog.current_setting('synchronous_commit') = 'off' THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM pg_catalog.pg_logical_emit_message(true, 'pgshard_tickets', '');
    IF max IS NULL THEN
        tickets := ARRAY(SELECT (taken.count / run * stride + residue) * run + taken.count % run
            FROM (SELECT pg_catalog.nextval(('pgshard_tickets.ticket_' || ticket_name)::regclass) AS count
                FROM pg_catalog.generate_series(1, n)) AS taken);
        RETURN;
    END IF;
    tickets := '{}';
    BEGIN
        FOR i IN 1..n LOOP
            count := pg_catalog.nextval(('pgshard_tickets.ticket_' || ticket_name)::regclass);
            tickets := tickets || ((count / run * stride + residue) * run + count % run);
        END LOOP;
    EXCEPTION WHEN sequence_generator_limit_exceeded THEN
        IF tickets = '{}' THEN
            RAISE EXCEPTION 'tickets % end at %, and host % has given all of its own', ticket_name, max, host_name
                USING ERRCODE = '2200H', HINT = 'Where the column holds larger numbers, raise the maximum: '
                    || 'pgshard tickets create ' || ticket_name || ' --max N';
        END IF;
    END;
END
$$;

UPDATE pgshard_tickets.version SET version = 3;
