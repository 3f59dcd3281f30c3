-- The ticket server of one host: sequences by name, each with this host's own residue. Run once on
-- each host, in one transaction, by the role that takes the tickets. No superuser, no extension.
-- PostgreSQL 13 to 18.
--
-- Invariant: a residue of a name belongs to one host. It is recorded on every host of the name
-- before the first ticket is given, and stays recorded when the host is lost.
--
-- Locks of this step: none that another session waits for; it only creates.

CREATE SCHEMA pgshard_tickets;

CREATE TABLE pgshard_tickets.version (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version  integer NOT NULL
);
INSERT INTO pgshard_tickets.version (version) VALUES (1);

-- The names. A host gives `run` tickets in a row, then skips those of the other residues: ticket /
-- run modulo stride is the residue.
-- `series`: one random number for all hosts of a name. Two databases that were set up separately
-- have two, and their tickets may be the same.
-- `max`: for columns narrower than bigint, the same on all hosts. The sequence of each host ends at
-- the last count whose ticket is not above it; the column is there for messages, and for hosts that
-- are added later.
CREATE TABLE pgshard_tickets.series (
    name   text    PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_]{0,39}$'),
    series uuid    NOT NULL,
    stride integer NOT NULL CHECK (stride BETWEEN 1 AND 1024),
    run    integer NOT NULL CHECK (run BETWEEN 1 AND 1048576),
    max    bigint  CHECK (max > 0)
);

-- The host of each residue: the same rows on every host.
CREATE TABLE pgshard_tickets.claim (
    name       text    NOT NULL REFERENCES pgshard_tickets.series,
    residue    integer NOT NULL CHECK (residue >= 0),
    host_name  text    NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (name, residue),
    UNIQUE (name, host_name)
);

-- What this host gives: the sequence pgshard_tickets.ticket_NAME counts them.
CREATE TABLE pgshard_tickets.ticket (
    name      text    PRIMARY KEY REFERENCES pgshard_tickets.series,
    residue   integer NOT NULL,
    host_name text    NOT NULL,
    FOREIGN KEY (name, residue) REFERENCES pgshard_tickets.claim
);

-- Takes n tickets, and returns whose they are. A rollback does not give them back. A series with a
-- maximum gives fewer than n when fewer are left, and fails with SQLSTATE 2200H when none is. The
-- block around nextval() costs a subtransaction, so series without a maximum do without it.
--
-- nextval() writes WAL for 32 values at a time. A value in between relies on the record of another
-- transaction, which may not be on disk yet: after a crash at that moment, the value would be given
-- again. The message gives the commit something of its own to flush, and everything before it is
-- flushed with it.
--
-- Locks: ROW EXCLUSIVE on the sequence and ACCESS SHARE on the tables, until the end of the
-- transaction; `pgshard tickets create` waits for it when it sets a maximum.
CREATE FUNCTION pgshard_tickets.take(ticket_name text, n integer, OUT series uuid,
    OUT stride integer, OUT run integer, OUT residue integer, OUT host_name text,
    OUT tickets bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    max   bigint;
    count bigint;
BEGIN
    IF n IS NULL OR n NOT BETWEEN 1 AND 100000 THEN
        RAISE EXCEPTION 'tickets are taken 1 to 100000 at a time, not %', n USING ERRCODE = '22023';
    END IF;
    SELECT s.series, s.stride, s.run, s.max, t.residue, t.host_name
        INTO series, stride, run, max, residue, host_name
        FROM pgshard_tickets.ticket t JOIN pgshard_tickets.series s ON s.name = t.name
        WHERE t.name = ticket_name;
    IF series IS NULL THEN
        RETURN;
    END IF;
    IF pg_catalog.current_setting('synchronous_commit') = 'off' THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM pg_catalog.pg_logical_emit_message(true, 'pgshard_tickets', '');
    IF max IS NULL THEN
        tickets := ARRAY(SELECT (taken.count / run * stride + residue) * run + taken.count % run
            FROM (SELECT pg_catalog.nextval(('pgshard_tickets.ticket_' || ticket_name)::regclass)
                    AS count
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
            RAISE EXCEPTION 'tickets % end at %, and host % has given all of its own',
                ticket_name, max, host_name
                USING ERRCODE = '2200H', HINT = 'Where the column holds larger numbers, raise the '
                    'maximum: '
                    || 'pgshard tickets create ' || ticket_name || ' --max N';
        END IF;
    END;
END
$$;
