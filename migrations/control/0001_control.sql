-- The control schema: what a host knows about itself and its shards. Run once per host, in one transaction, by the role
-- that owns the shard schemas. No superuser, no extension. PostgreSQL 13 to 18.
--
-- What may not break: every change of who serves a shard is a compare-and-swap on one row of pgshard.shard (or
-- pgshard.incoming), in one of the functions below and nowhere else. A function that finds the row otherwise raises SH002
-- and changes nothing.

CREATE SCHEMA pgshard;
GRANT USAGE ON SCHEMA pgshard TO PUBLIC;

-- What may never differ between the hosts of a cluster, and the name that the config gives this one.
CREATE TABLE pgshard.cluster (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    shards        integer NOT NULL CHECK (shards BETWEEN 1 AND 8192),
    epoch_ms      bigint  NOT NULL,
    schema_prefix text    NOT NULL,
    host_name     text    NOT NULL,
    key_kind      text    NOT NULL DEFAULT 'integer',  -- how a key becomes a shard: docs/keys.md
    created_at    timestamptz NOT NULL DEFAULT now()
);
GRANT SELECT ON pgshard.cluster TO PUBLIC;

-- The control migrations that were run here.
CREATE TABLE pgshard.control_migration (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- The truth about a shard on this host. No row: the shard was never here.
--   serving: this host owns the shard since `epoch`.
--   fenced:  a signpost stands where the shard was; move `move_id` in its attempt `attempt` is at work, until fence_deadline.
--   moved:   `peer` owns the shard since `epoch`. A signpost stands here.
-- `opened_lsn`: what a move brought was committed before it, what the application wrote here was committed after it.
CREATE TABLE pgshard.shard (
    shard_id       integer PRIMARY KEY CHECK (shard_id BETWEEN 0 AND 8191),
    schema_name    text    NOT NULL UNIQUE,
    state          text    NOT NULL CHECK (state IN ('serving', 'fenced', 'moved')),
    epoch          integer NOT NULL CHECK (epoch >= 1),
    peer           text,
    move_id        uuid,
    attempt        integer,
    lease          uuid,
    fence_deadline timestamptz,
    last_fence_at  timestamptz,
    open_token     uuid,
    opened_lsn     pg_lsn,
    CHECK (state <> 'moved' OR peer IS NOT NULL),
    CHECK (state <> 'fenced' OR (peer, move_id, attempt, lease, fence_deadline) IS NOT NULL)
);
GRANT SELECT ON pgshard.shard TO PUBLIC;

-- The shards that a move is bringing here. Beside pgshard.shard, so that an abort leaves what stood there.
-- `ready_attempt`: everything is in place for the attempt with this number; only the open is missing.
-- `open_hash`: the SHA-256 of the token that the source gives away when, and only when, it has decided.
-- `stream_from`: online, where the changes begin that are wanted of the source, since the first row was copied. A slot that
-- begins later has left some out.
-- `at_open`: statements that the open runs, in the schema under its incoming name: what must not be there while changes are
-- applied, as triggers and foreign keys.
CREATE TABLE pgshard.incoming (
    shard_id      integer PRIMARY KEY,
    schema_name   text    NOT NULL,
    move_id       uuid    NOT NULL,
    lease         uuid    NOT NULL,
    source        text    NOT NULL,
    epoch         integer NOT NULL,
    ready_attempt integer,
    open_hash     text,
    stream_from   pg_lsn,
    at_open       text,
    created_at    timestamptz NOT NULL DEFAULT now()
);

-- How far the changes of a shard that comes online are applied here: all transactions of the source whose commit is at or
-- before `applied_lsn`, written in the transaction that applies them. Under the lease of the mover that applies.
-- `breach`: a change to the shard that came after its marker, which no fence should have let through.
CREATE TABLE pgshard.progress (
    move_id     uuid    NOT NULL,
    shard_id    integer NOT NULL,
    lease       uuid    NOT NULL,
    applied_lsn pg_lsn  NOT NULL,
    breach      text,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (move_id, shard_id)
);

-- The pieces in which the rows of a shard that comes online are copied: the rows whose first key column is in [low, high);
-- null is open. `snapshot` is the source's when the piece was copied, written together with the rows; null: not copied yet.
-- A change of a transaction that this snapshot sees is in the piece already, any other is applied.
CREATE TABLE pgshard.chunk (
    move_id     uuid    NOT NULL,
    shard_id    integer NOT NULL,
    table_name  text    NOT NULL,
    number      integer NOT NULL,
    low         text,
    high        text,
    snapshot    text,
    rows        bigint,
    bytes       bigint,
    verified_at timestamptz,
    PRIMARY KEY (move_id, shard_id, table_name, number)
);

-- Single rows that were read from the source once more, because the stream did not carry all of their values. `key` is the
-- whole key as a JSON array of texts; `snapshot` as for a piece, of which this is one.
CREATE TABLE pgshard.reread (
    move_id    uuid    NOT NULL,
    shard_id   integer NOT NULL,
    table_name text    NOT NULL,
    key        text    NOT NULL,
    snapshot   text    NOT NULL,
    PRIMARY KEY (move_id, shard_id, table_name, key)
);

-- The journal of the moves away from this host, a row a shard.
CREATE TABLE pgshard.move (
    move_id     uuid    NOT NULL,
    shard_id    integer NOT NULL,
    source      text    NOT NULL,
    target      text    NOT NULL,
    mode        text    NOT NULL CHECK (mode IN ('blocking', 'online')),
    phase       text    NOT NULL CHECK (phase IN ('claimed', 'prepared', 'loaded', 'ready', 'fenced', 'copied', 'decided',
                                                  'opened', 'kept', 'completed', 'aborted')),
    epoch       integer NOT NULL,                     -- the epoch that the shard has here; epoch + 1 at the target
    attempt     integer NOT NULL DEFAULT 0,
    lease       uuid    NOT NULL,
    lease_until timestamptz NOT NULL,
    holder      text    NOT NULL,                     -- who holds the lease, for people
    fingerprint text,                                 -- of the shard's DDL as the target was built from it
    open_token  uuid,
    back_of     uuid,                                 -- the move that this one takes back
    back        text    NOT NULL DEFAULT 'prepared' CHECK (back IN ('prepared', 'forgone')), -- whether it can be taken back
    rows        bigint,
    bytes       bigint,
    timings     jsonb   NOT NULL DEFAULT '{}',        -- milliseconds by step
    last_error  text,
    -- What an operator wants of the mover, which asks with every heartbeat: 'go'; 'hold': do all but the fence, until
    -- `hold_until` or until told otherwise; 'pause': neither copy nor fence.
    wanted      text NOT NULL DEFAULT 'go' CHECK (wanted IN ('go', 'hold', 'pause')),
    hold_until  timestamptz,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (move_id, shard_id)
);
-- One move per shard: a second claim finds this index, not a race.
CREATE UNIQUE INDEX move_one_per_shard ON pgshard.move (shard_id) WHERE phase NOT IN ('kept', 'completed', 'aborted');

-- The way back of shards that a move takes away from here: the old copy can be fed with what the new host changes.
-- `stream`: publication and slot there. `at_open`: what was taken off the old copy, as the statements that restore it in the
-- schema under its incoming name; null while nothing was. `fingerprint`: of what is left then.
CREATE TABLE pgshard.back (
    move_id     uuid    NOT NULL,
    shard_id    integer NOT NULL,
    stream      text    NOT NULL,
    at_open     text,
    fingerprint text,
    taken_by    uuid,                                 -- the move that has taken the old copy for the way back
    lost        text,                                 -- why there is no way back any more
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (move_id, shard_id)
);

-- What moves have created on this host and somebody must drop one day. A row is written before, or with, its object.
CREATE TABLE pgshard.ledger (
    kind       text    NOT NULL CHECK (kind IN ('incoming', 'signpost', 'left', 'old signpost', 'publication', 'slot')),
    name       text    NOT NULL,
    move_id    uuid    NOT NULL,
    shard_id   integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, name)
);

-- A marker of each attempt: the last thing that a fenced shard's host writes for it.
CREATE TABLE pgshard.marker (
    move_id  uuid    NOT NULL,
    shard_id integer NOT NULL,
    attempt  integer NOT NULL,
    made_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (move_id, shard_id, attempt)
);

-- A row that says to whoever reads the stream of a move: all that was committed before this one has been sent.
CREATE TABLE pgshard.beacon (
    move_id uuid   NOT NULL,
    number  bigint NOT NULL,
    PRIMARY KEY (move_id, number)
);

-- The application's shard migrations, and ours (names starting with "pgshard:"), per shard. Moves carry the rows along.
CREATE TABLE pgshard.shard_migration (
    shard_id   integer NOT NULL,
    name       text    NOT NULL,
    checksum   text    NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (shard_id, name)
);

-- The application's once-per-host migrations that were run here.
CREATE TABLE pgshard.host_migration (
    name       text PRIMARY KEY,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- The shard migrations that were begun here and did not succeed, one a shard: what `migrate retry` tries again.
-- `begun`: a statement that runs outside of transactions may have left something, and whatever is there of it is ours.
-- Written before the statement, cleared with what it left.
CREATE TABLE pgshard.migration_attempt (
    shard_id integer PRIMARY KEY,
    name     text    NOT NULL,
    checksum text    NOT NULL,
    begun    boolean NOT NULL,
    message  text,                                    -- why it failed; null: it was not heard of again
    tried_at timestamptz NOT NULL DEFAULT now()
);

-- ------------------------------------------------------------------------------------------------ what anybody may ask

-- All that a router needs to know of one shard here, in one round trip; nulls where there is no row. Times are
-- differences, so that the clocks of the two sides need not agree.
CREATE FUNCTION pgshard.look(p_shard integer, OUT state text, OUT epoch integer, OUT peer text,
    OUT deadline_in_ms double precision, OUT last_fence_ago_ms double precision, OUT open_token uuid,
    OUT incoming_epoch integer)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.state, s.epoch, s.peer,
           extract(epoch FROM s.fence_deadline - clock_timestamp())::double precision * 1000,
           extract(epoch FROM clock_timestamp() - s.last_fence_at)::double precision * 1000,
           s.open_token, i.epoch
    FROM (VALUES (p_shard)) AS asked(shard_id)
    LEFT JOIN pgshard.shard s USING (shard_id)
    LEFT JOIN pgshard.incoming i USING (shard_id)
$$;

-- ------------------------------------------------------------------------------------------------------- the signpost

-- What every part of a signpost does: raise SH001 and say where to ask. Reads one row; takes no lock that anybody waits for.
CREATE FUNCTION pgshard.signpost_raise(p_shard integer) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s pgshard.shard%ROWTYPE;
BEGIN
    SELECT * INTO s FROM pgshard.shard WHERE shard_id = p_shard;
    RAISE EXCEPTION USING
        ERRCODE = 'SH001',
        MESSAGE = format('shard %s is %s', p_shard,
                         CASE s.state WHEN 'moved' THEN 'on ' || s.peer ELSE 'being moved to ' || coalesce(s.peer, '?') END),
        -- A REPEATABLE READ transaction that is older than the fence reads "serving" here, and so does a statement that met
        -- the signpost just before it went away. For both the truth is to wait a little and ask again: fenced.
        DETAIL = json_build_object('shard', p_shard, 'state', CASE s.state WHEN 'moved' THEN 'moved' ELSE 'fenced' END,
                                   'host', s.peer, 'epoch', s.epoch)::text,
        HINT = 'Retry; pgshard''s router does so by itself.';
END $$;

-- The rows of a signpost's views. Their columns come from the call's column list, not from constants, which the planner
-- would fold away and answer "no rows".
CREATE FUNCTION pgshard.signpost_rows(p_shard integer) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgshard.signpost_raise(p_shard);
END $$;

CREATE FUNCTION pgshard.signpost_write() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgshard.signpost_raise(TG_ARGV[0]::integer);
    RETURN NULL;
END $$;

-- Builds <schema>__signpost for a shard that is served here: a view for every relation, a function for every function, with
-- the shard's grants. Nothing in it uses a type of the shard's schema (text stands for it): dropping the old copy must not
-- take the signpost along. It belongs to the owner of the control schema. Returns how many objects it made.
--
-- Locks: creates only, in a schema of its own that nobody knows; ACCESS SHARE on catalogs. Run before the pause.
CREATE FUNCTION pgshard.build_signpost(p_shard integer, p_move uuid) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s      pgshard.shard%ROWTYPE;
    inside oid;
    post   text;
    bound  text;
    keeper oid := (SELECT nspowner FROM pg_namespace WHERE nspname = 'pgshard');
    r      record;
    made   integer := 0;
BEGIN
    SELECT * INTO s FROM pgshard.shard WHERE shard_id = p_shard AND state = 'serving';
    inside := to_regnamespace(quote_ident(s.schema_name))::oid;
    IF inside IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002', MESSAGE = format('shard %s is not served here, or its schema is gone', p_shard);
    END IF;
    -- Whoever may rename a schema is its owner or a member of the owner. pgshard.expire_fence does it as the owner of the
    -- control schema: without the right, the fence of a dead mover would stand for ever.
    IF NOT pg_has_role(keeper, (SELECT nspowner FROM pg_namespace WHERE oid = inside), 'USAGE') THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('the owner of the schema pgshard, %s, may not rename schema %s', keeper::regrole, s.schema_name),
            HINT = format('GRANT %s TO %s', (SELECT nspowner::regrole FROM pg_namespace WHERE oid = inside), keeper::regrole);
    END IF;
    -- A BEGIN ATOMIC body holds OIDs, and a call of it by a prepared statement or a cached plan looks at no table on the way: in
    -- a transaction that is older than the swap it would write to the old copy, long after the barrier. Bodies that are text
    -- resolve their names when they lock.
    SELECT p.oid::regprocedure::text INTO bound
    FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
    JOIN pg_class c ON d.refclassid = 'pg_class'::regclass AND c.oid = d.refobjid
    WHERE p.pronamespace = inside AND p.provolatile = 'v' AND c.relnamespace = inside AND c.relkind <> 'S'
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s: %s is bound to a table by BEGIN ATOMIC and would write past the fence', p_shard, bound),
            HINT = 'Give it a body that is text (AS ''...''), or make it STABLE if it only reads.';
    END IF;
    post := s.schema_name || '__signpost';
    INSERT INTO pgshard.ledger (kind, name, move_id, shard_id) VALUES ('signpost', post, p_move, p_shard);
    EXECUTE format('CREATE SCHEMA %I AUTHORIZATION %s', post, keeper::regrole);

    FOR r IN
        SELECT c.relname,
               coalesce(string_agg(format('%I %s', a.attname,
                            CASE WHEN t.typnamespace = inside THEN 'text' ELSE format_type(a.atttypid, -1) END),
                        ', ' ORDER BY a.attnum) FILTER (WHERE a.attname IS NOT NULL), 'pgshard_signpost text') AS columns
        FROM pg_class c
        LEFT JOIN (pg_attribute a JOIN pg_type t ON t.oid = a.atttypid)
               ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE c.relnamespace = inside AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
        GROUP BY c.oid, c.relname
    LOOP
        -- The subquery is never run. It is there for LOCK TABLE, which locks what a view reads too, if the view's owner may:
        -- on a catalog he may not. A LOCK that succeeds on a signpost would be forgotten when the fence is swapped back.
        EXECUTE format('CREATE VIEW %I.%I AS SELECT * FROM pgshard.signpost_rows('
                       'coalesce((SELECT %3$s FROM pg_catalog.pg_ts_template WHERE false), %3$s)) AS t(%4$s)',
                       post, r.relname, p_shard, r.columns);
        EXECUTE format('CREATE TRIGGER signpost INSTEAD OF INSERT OR UPDATE OR DELETE ON %I.%I '
                       'FOR EACH ROW EXECUTE FUNCTION pgshard.signpost_write(%L)', post, r.relname, p_shard);
        made := made + 1;
    END LOOP;

    -- Every function, with the names, modes and defaults of its arguments, for one without a stand-in would let a call by
    -- search_path through to a function of that name elsewhere. Two that differ in the shard's types only have one. Without
    -- are those that nobody calls by name (triggers) and those with arguments that only C knows.
    FOR r IN
        SELECT DISTINCT ON (p.proname, takes.types)
               p.proname, p.prokind, p.proretset, takes.arguments,
               CASE WHEN ret.typnamespace = inside THEN 'text' ELSE format_type(p.prorettype, NULL) END AS returns
        FROM pg_proc p JOIN pg_type ret ON ret.oid = p.prorettype, LATERAL (
            SELECT coalesce(string_agg(
                       CASE a.mode WHEN 'v' THEN 'VARIADIC ' WHEN 'o' THEN 'OUT ' WHEN 't' THEN 'OUT ' WHEN 'b' THEN 'INOUT '
                            ELSE '' END
                       || CASE WHEN a.name <> '' THEN quote_ident(a.name) || ' ' ELSE '' END || a.type
                       || CASE WHEN a.takes AND a.n > p.pronargs - p.pronargdefaults THEN ' DEFAULT NULL' ELSE '' END,
                       ', ' ORDER BY a.place), '') AS arguments,
                   coalesce(string_agg(a.type, ', ' ORDER BY a.place) FILTER (WHERE a.takes), '') AS types,
                   bool_or(a.foreign_to_plpgsql) AS foreign_to_plpgsql
            FROM (
                SELECT u.mode, u.name, u.place, coalesce(u.mode, 'i') NOT IN ('o', 't') AS takes,
                       count(*) FILTER (WHERE coalesce(u.mode, 'i') NOT IN ('o', 't')) OVER (ORDER BY u.place) AS n,
                       CASE WHEN t.typnamespace <> inside THEN format_type(u.type, NULL)
                            WHEN u.mode = 'v' THEN 'text[]' ELSE 'text' END AS type,
                       t.typtype = 'p' AND t.typname !~ '^any.' AND t.typname <> 'record' AS foreign_to_plpgsql
                FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargmodes, p.proargnames)
                     WITH ORDINALITY AS u(type, mode, name, place)
                JOIN pg_type t ON t.oid = u.type) AS a) AS takes
        WHERE p.pronamespace = inside AND ret.typname NOT IN ('trigger', 'event_trigger', 'internal', 'cstring')
          AND takes.foreign_to_plpgsql IS NOT TRUE
        ORDER BY p.proname, takes.types, p.pronargdefaults DESC
    LOOP
        EXECUTE format('CREATE %s %I.%I(%s) %s LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L',
                       CASE r.prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END, post, r.proname, r.arguments,
                       CASE r.prokind WHEN 'p' THEN '' ELSE
                           'RETURNS ' || CASE WHEN r.proretset THEN 'SETOF ' ELSE '' END || r.returns END,
                       format('BEGIN PERFORM pgshard.signpost_raise(%s); END', p_shard));
        made := made + 1;
    END LOOP;

    -- Whoever could reach the shard must reach the signpost: a "permission denied" would hide that the shard has moved.
    FOR r IN
        SELECT format('GRANT USAGE ON SCHEMA %I TO %s', post,
                      CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE acl.grantee::regrole::text END) AS statement
        FROM pg_namespace n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) AS acl
        WHERE n.oid = inside AND acl.privilege_type = 'USAGE'
        UNION
        SELECT format('GRANT %s ON %I.%I TO %s',
                      CASE acl.privilege_type WHEN 'USAGE' THEN 'SELECT' ELSE acl.privilege_type END, post, c.relname,
                      CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE acl.grantee::regrole::text END)
        FROM pg_class c
        LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attacl IS NOT NULL AND NOT a.attisdropped,
        LATERAL (SELECT * FROM aclexplode(coalesce(c.relacl, acldefault('r', c.relowner)))
                 UNION SELECT * FROM aclexplode(a.attacl)) AS acl
        WHERE c.relnamespace = inside AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
          AND acl.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE', 'USAGE')
    LOOP
        EXECUTE r.statement;
    END LOOP;
    EXECUTE format('GRANT EXECUTE ON ALL ROUTINES IN SCHEMA %I TO PUBLIC', post);
    -- A table made on a signpost would be lost with it. Default privileges may have let others in than its owner.
    FOR r IN
        SELECT DISTINCT CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE acl.grantee::regrole::text END AS grantee
        FROM pg_namespace n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) AS acl
        WHERE n.nspname = post AND acl.privilege_type = 'CREATE'
    LOOP
        EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM %s CASCADE', post, r.grantee);
    END LOOP;
    RETURN made;
END $$;

-- ---------------------------------------------------------------------------------------------------------- the fence

-- Swap. From its COMMIT on no new statement reaches the shard's tables by name: the pause starts.
-- Returns the attempt's number and the OID of the old copy's schema.
--
-- Locks: ROW EXCLUSIVE on pgshard.shard and pgshard.move and their two rows, in this order, and the two tuples of pg_namespace, all for
-- this one transaction. None on any table of the shard, so it queues behind nobody and nobody behind it.
CREATE FUNCTION pgshard.fence(p_shard integer, p_move uuid, p_lease uuid, p_token uuid, p_deadline_ms integer,
    OUT attempt integer, OUT left_oid oid)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    m pgshard.move%ROWTYPE;
    s pgshard.shard%ROWTYPE;
    old_name text;
    uncovered text;
BEGIN
    -- The shard's row first, then the move's, here and everywhere: whoever ends a fence knows the shard only.
    PERFORM FROM pgshard.shard WHERE shard_id = p_shard FOR NO KEY UPDATE;
    UPDATE pgshard.move AS j
    SET attempt = j.attempt + 1, phase = 'fenced', open_token = p_token, updated_at = clock_timestamp()
    WHERE j.move_id = p_move AND j.shard_id = p_shard AND j.lease = p_lease
      AND j.phase = CASE j.mode WHEN 'online' THEN 'ready' ELSE 'prepared' END
    RETURNING * INTO m;
    IF NOT FOUND OR p_token IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002', MESSAGE = format('shard %s: the move %s is not ours to fence', p_shard, p_move);
    END IF;
    UPDATE pgshard.shard AS t
    SET state = 'fenced', peer = m.target, move_id = p_move, attempt = m.attempt, lease = p_lease,
        fence_deadline = clock_timestamp() + p_deadline_ms * interval '1 ms', last_fence_at = clock_timestamp()
    WHERE t.shard_id = p_shard AND t.state = 'serving' AND t.epoch = m.epoch
    RETURNING * INTO s;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002', MESSAGE = format('shard %s is not served here at epoch %s', p_shard, m.epoch);
    END IF;
    old_name := s.schema_name || '__left_e' || s.epoch;
    left_oid := to_regnamespace(quote_ident(s.schema_name))::oid;
    -- A relation that came after its signpost would fall through to one of its name elsewhere in a search_path. (By
    -- pg_depend, which has an index by schema; pg_class has none.)
    SELECT c.relname INTO uncovered
    FROM pg_depend d JOIN pg_class c ON c.oid = d.objid
    WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_namespace'::regclass AND d.refobjid = left_oid
      AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
      AND NOT EXISTS (SELECT FROM pg_class v
                      WHERE v.relname = c.relname
                        AND v.relnamespace = to_regnamespace(quote_ident(s.schema_name || '__signpost'))::oid)
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s: %I.%I came after the signpost was built', p_shard, s.schema_name, uncovered),
            HINT = 'Its tables were changed during the move: abort it and start again.';
    END IF;
    INSERT INTO pgshard.ledger (kind, name, move_id, shard_id) VALUES ('left', old_name, p_move, p_shard);
    EXECUTE format('ALTER SCHEMA %I RENAME TO %I', s.schema_name, old_name);
    EXECUTE format('ALTER SCHEMA %I RENAME TO %I', s.schema_name || '__signpost', s.schema_name);
    attempt := m.attempt;
END $$;

-- Who still holds, or waits for, a lock on the old copy with which it could write. No row: nobody can any more, and whoever
-- comes later meets the signpost (the swap's invalidations were sent before its COMMIT returned). The schema's relations
-- are read again at every call, by its OID. An autovacuum's or ANALYZE's SHARE UPDATE EXCLUSIVE is passed over, and so are
-- the SIREAD marks of SERIALIZABLE readers, which stay for long after their end.
--
-- Call it under READ COMMITTED: an older snapshot does not show the relations that were made meanwhile.
--
-- Locks: none but ACCESS SHARE on catalogs; pg_locks holds the lock manager's partitions for microseconds.
CREATE FUNCTION pgshard.barrier(p_left oid,
    OUT pid integer, OUT mode text, OUT relation text, OUT seconds double precision, OUT query text)
RETURNS SETOF record LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.pid, l.mode, coalesce(c.relname, 'the schema')::text,
           extract(epoch FROM clock_timestamp() - a.xact_start)::double precision, left(a.query, 200)
    FROM pg_locks l
    -- Not indexes: whoever writes to one has its table locked, except VACUUM.
    -- OFFSET 0 makes it a look-up by OID for each lock, instead of a scan of what may be a hundred thousand relations.
    LEFT JOIN LATERAL (SELECT oid, relname, relnamespace, relkind FROM pg_class
                       WHERE l.locktype = 'relation' AND oid = l.relation OFFSET 0) c
           ON c.relnamespace = p_left AND c.relkind NOT IN ('i', 'I')
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.pid IS DISTINCT FROM pg_backend_pid()
      AND (c.oid IS NOT NULL AND l.mode NOT IN ('AccessShareLock', 'SIReadLock')
           OR l.locktype = 'object' AND l.classid = 'pg_namespace'::regclass AND l.objid = p_left)
      -- A prepared transaction has no pid, hence not IN, which would be null and pass it over.
      AND NOT (l.mode = 'ShareUpdateExclusiveLock' AND EXISTS (
               SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = l.pid
               UNION ALL SELECT FROM pg_stat_progress_analyze z WHERE z.pid = l.pid))
$$;

-- Marker. Proves that the fence still stands for this attempt, and makes every commit before it durable: this one is
-- synchronous, whatever the writers' were.
--
-- Locks: the row of pgshard.shard, for this one transaction.
CREATE FUNCTION pgshard.mark(p_shard integer, p_move uuid, p_attempt integer, p_lease uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgshard.commit_durably();
    PERFORM FROM pgshard.shard
    WHERE shard_id = p_shard AND state = 'fenced' AND move_id = p_move AND attempt = p_attempt AND lease = p_lease FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002', MESSAGE = format('shard %s: the fence of attempt %s is gone', p_shard, p_attempt);
    END IF;
    INSERT INTO pgshard.marker (move_id, shard_id, attempt) VALUES (p_move, p_shard, p_attempt) ON CONFLICT DO NOTHING;
END $$;

-- The commit of this transaction waits for the disk, and for the synchronous standbys if there are any.
CREATE FUNCTION pgshard.commit_durably() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- For a migration: the shard stays served here, and no fence begins, until the end of the transaction. Refuses a shard that a
-- move has claimed: the move could have read its definition already. One that is claimed from now on reads it again, since a
-- fence comes after us and what is altered before one is noticed by its stamp.
--
-- Locks: the shard's row FOR SHARE, until the end of the transaction. A fence waits for it, within its lock_timeout;
-- heartbeats of a shard that is not fenced do not touch the row.
CREATE FUNCTION pgshard.hold_for_migration(p_shard integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM pgshard.shard WHERE shard_id = p_shard AND state = 'serving' FOR SHARE;
    IF NOT FOUND OR EXISTS (SELECT FROM pgshard.move
                            WHERE shard_id = p_shard AND phase NOT IN ('kept', 'completed', 'aborted')) THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002', MESSAGE = format('shard %s is being moved', p_shard);
    END IF;
END $$;

-- Keeps a fence and its move's lease alive. False: the lease is somebody else's now, stop.
--
-- Locks: the shard's row if it is fenced, and the move's, for this one transaction. Not the row of a shard that is served:
-- a migration may hold that for longer than a lease lasts.
CREATE FUNCTION pgshard.heartbeat(p_shard integer, p_move uuid, p_lease uuid, p_lease_ms integer, p_deadline_ms integer)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fenced boolean;
BEGIN
    -- The lock order of pgshard.fence: the other way round, a heartbeat and a decide of one mover wait for each other.
    PERFORM FROM pgshard.shard WHERE shard_id = p_shard AND state = 'fenced' FOR NO KEY UPDATE;
    fenced := FOUND;
    UPDATE pgshard.move SET lease_until = clock_timestamp() + p_lease_ms * interval '1 ms'
    WHERE move_id = p_move AND shard_id = p_shard AND lease = p_lease;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- A fence that came in between has just set its deadline.
    IF NOT fenced THEN
        RETURN true;
    END IF;
    UPDATE pgshard.shard SET fence_deadline = clock_timestamp() + p_deadline_ms * interval '1 ms'
    WHERE shard_id = p_shard AND state = 'fenced' AND move_id = p_move AND lease = p_lease;
    RETURN true;
END $$;

-- The inverse of the swap, for this move and attempt only: the source serves again. A mover names its lease too, so that
-- one that was taken over does not end the fence of the one that took over; pgshard.expire_fence has none.
--
-- Locks: as pgshard.fence.
CREATE FUNCTION pgshard.unfence(p_shard integer, p_move uuid, p_attempt integer, p_lease uuid DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s pgshard.shard%ROWTYPE;
BEGIN
    -- What was seen to be served again may have been cleared away at the target.
    PERFORM pgshard.commit_durably();
    UPDATE pgshard.shard
    SET state = 'serving', peer = NULL, move_id = NULL, attempt = NULL, lease = NULL, fence_deadline = NULL,
        last_fence_at = clock_timestamp()
    WHERE shard_id = p_shard AND state = 'fenced' AND move_id = p_move AND attempt = p_attempt
      AND (p_lease IS NULL OR lease = p_lease)
    RETURNING * INTO s;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002', MESSAGE = format('shard %s: the fence of attempt %s is gone', p_shard, p_attempt);
    END IF;
    EXECUTE format('ALTER SCHEMA %I RENAME TO %I', s.schema_name, s.schema_name || '__signpost');
    EXECUTE format('ALTER SCHEMA %I RENAME TO %I', s.schema_name || '__left_e' || s.epoch, s.schema_name);
    DELETE FROM pgshard.ledger WHERE kind = 'left' AND name = s.schema_name || '__left_e' || s.epoch;
    UPDATE pgshard.move
    SET phase = CASE mode WHEN 'online' THEN 'ready' ELSE 'prepared' END, open_token = NULL, updated_at = clock_timestamp()
    WHERE move_id = p_move AND shard_id = p_shard;
END $$;

-- For anybody: a fence whose mover let its deadline pass is swapped back. True if this call did it.
--
-- Locks: once the deadline has passed, the shard's row, until the end of the transaction; then as pgshard.unfence.
CREATE FUNCTION pgshard.expire_fence(p_shard integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s pgshard.shard%ROWTYPE;
BEGIN
    -- Looked at without the lock first: thousands of waiting routers must not queue up before the mover's decide, nor a
    -- transaction that asked too early keep the row to its end.
    PERFORM FROM pgshard.shard WHERE shard_id = p_shard AND state = 'fenced' AND fence_deadline <= clock_timestamp();
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT * INTO s FROM pgshard.shard WHERE shard_id = p_shard FOR UPDATE;
    -- The clock is read after the lock was got: a heartbeat that we waited for counts.
    IF s.state IS DISTINCT FROM 'fenced' OR s.fence_deadline > clock_timestamp() THEN
        RETURN false;
    END IF;
    PERFORM pgshard.unfence(p_shard, s.move_id, s.attempt);
    RETURN true;
END $$;

-- ---------------------------------------------------------------------------------------------------- decide and open

-- Decide, on the source: the commit point of a move. Before it a move can only be undone, after it only finished.
--
-- Locks: the shard's row and the move's, for this one transaction.
CREATE FUNCTION pgshard.decide(p_shard integer, p_move uuid, p_attempt integer, p_lease uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgshard.commit_durably();
    UPDATE pgshard.shard AS t
    SET state = 'moved', epoch = t.epoch + 1, fence_deadline = NULL,
        open_token = (SELECT m.open_token FROM pgshard.move m WHERE m.move_id = p_move AND m.shard_id = p_shard)
    WHERE t.shard_id = p_shard AND t.state = 'fenced' AND t.move_id = p_move AND t.attempt = p_attempt AND t.lease = p_lease
      AND EXISTS (SELECT FROM pgshard.marker k
                  WHERE k.move_id = p_move AND k.shard_id = p_shard AND k.attempt = p_attempt);
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002', MESSAGE = format('shard %s: the fence of attempt %s is gone', p_shard, p_attempt);
    END IF;
    UPDATE pgshard.move SET phase = 'decided', updated_at = clock_timestamp() WHERE move_id = p_move AND shard_id = p_shard;
    -- From here on the signpost is no move's but the shard's: it stands for as long as the shard is elsewhere.
    DELETE FROM pgshard.ledger WHERE kind = 'signpost' AND shard_id = p_shard;
END $$;

-- Open, on the target: the incoming shard becomes the one that is served. Not for callers: pgshard.open and
-- pgshard.finish_open have checked that they may.
--
-- Locks: the shard's row, and the tuples of pg_namespace that are renamed, until the end of the transaction.
CREATE FUNCTION pgshard.open_incoming(i pgshard.incoming) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s   pgshard.shard%ROWTYPE;
    old text;
BEGIN
    PERFORM pgshard.commit_durably();
    SELECT * INTO s FROM pgshard.shard WHERE shard_id = i.shard_id FOR UPDATE;
    IF FOUND AND (s.state <> 'moved' OR s.epoch >= i.epoch) THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s is %s here at epoch %s, not to be opened at %s', i.shard_id, s.state, s.epoch, i.epoch);
    END IF;
    IF FOUND THEN
        -- The signpost of an earlier move away. Renamed, not dropped: a rename waits for nobody.
        old := i.schema_name || '__signpost_e' || s.epoch;
        INSERT INTO pgshard.ledger (kind, name, move_id, shard_id) VALUES ('old signpost', old, i.move_id, i.shard_id);
        EXECUTE format('ALTER SCHEMA %I RENAME TO %I', i.schema_name, old);
    END IF;
    IF i.at_open IS NOT NULL THEN
        PERFORM set_config('search_path', format('%I, pg_catalog, pg_temp', i.schema_name || '__incoming'), true);
        PERFORM set_config('check_function_bodies', 'off', true);
        EXECUTE i.at_open;
        PERFORM set_config('search_path', 'pg_catalog, pg_temp', true);
    END IF;
    EXECUTE format('ALTER SCHEMA %I RENAME TO %I', i.schema_name || '__incoming', i.schema_name);
    DELETE FROM pgshard.ledger WHERE kind = 'incoming' AND name = i.schema_name || '__incoming';
    DELETE FROM pgshard.incoming WHERE shard_id = i.shard_id;
    -- All that the mover applied here is committed, and nobody else could write yet: a stream that begins at this position
    -- has the application's changes and none of the mover's.
    INSERT INTO pgshard.shard (shard_id, schema_name, state, epoch, last_fence_at, opened_lsn)
    VALUES (i.shard_id, i.schema_name, 'serving', i.epoch, clock_timestamp(), pg_current_wal_insert_lsn())
    ON CONFLICT (shard_id) DO UPDATE
    SET state = 'serving', epoch = excluded.epoch, peer = NULL, move_id = NULL, attempt = NULL, lease = NULL,
        fence_deadline = NULL, open_token = NULL, last_fence_at = excluded.last_fence_at, opened_lsn = excluded.opened_lsn;
END $$;

-- Open by the mover, which commits it only once the source has decided.
CREATE FUNCTION pgshard.open(p_shard integer, p_move uuid, p_attempt integer, p_lease uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i pgshard.incoming%ROWTYPE;
BEGIN
    SELECT * INTO i FROM pgshard.incoming
    WHERE shard_id = p_shard AND move_id = p_move AND lease = p_lease AND ready_attempt = p_attempt FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002', MESSAGE = format('shard %s is not ready here for attempt %s', p_shard, p_attempt);
    END IF;
    PERFORM pgshard.open_incoming(i);
END $$;

-- Open by anybody who can show that the source has decided: the token is given away only by pgshard.decide. True if this
-- call did it, false if there was nothing to open.
CREATE FUNCTION pgshard.finish_open(p_shard integer, p_token uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i pgshard.incoming%ROWTYPE;
BEGIN
    SELECT * INTO i FROM pgshard.incoming WHERE shard_id = p_shard FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Whatever is null here is no token: neither the caller's nor that of a move that is not ready.
    IF (i.ready_attempt IS NOT NULL AND i.open_hash = encode(sha256(convert_to(p_token::text, 'UTF8')), 'hex')) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002', MESSAGE = format('shard %s: this is not the token of its move', p_shard);
    END IF;
    PERFORM pgshard.open_incoming(i);
    RETURN true;
END $$;

REVOKE ALL ON FUNCTION pgshard.build_signpost(integer, uuid),
    pgshard.fence(integer, uuid, uuid, uuid, integer), pgshard.barrier(oid), pgshard.mark(integer, uuid, integer, uuid),
    pgshard.hold_for_migration(integer), pgshard.heartbeat(integer, uuid, uuid, integer, integer), pgshard.unfence(integer, uuid, integer, uuid),
    pgshard.decide(integer, uuid, integer, uuid), pgshard.open_incoming(pgshard.incoming),
    pgshard.open(integer, uuid, integer, uuid) FROM PUBLIC;

-- Said, because default privileges may have taken it from PUBLIC: a router's role has no other rights here.
GRANT EXECUTE ON FUNCTION pgshard.look(integer), pgshard.signpost_raise(integer), pgshard.signpost_rows(integer),
    pgshard.signpost_write(), pgshard.expire_fence(integer), pgshard.finish_open(integer, uuid) TO PUBLIC;
