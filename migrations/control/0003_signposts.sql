-- The signpost: a schema that stands in a shard's place while the shard is fenced or has moved. It
-- has a view for every relation of the shard and a function for every function. Each of them raises
-- SH001, with the host that has the shard (docs/signposts.md).
--
-- Invariant: a statement that reaches a signpost reads no row and writes none. Its rights are those
-- of the shard, so that it answers SH001 where the shard would have answered with rows.
--
-- Locks: none that another session waits for; the step only creates.

-- Raises SH001. All parts of a signpost call it.
--
-- Locks: none; it reads one row.
CREATE FUNCTION pgshard.signpost_raise(p_shard integer) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s pgshard.shard%ROWTYPE;
BEGIN
    SELECT * INTO s FROM pgshard.shard WHERE shard_id = p_shard;
    RAISE EXCEPTION USING
        ERRCODE = 'SH001',
        MESSAGE = format('shard %s is %s', p_shard,
                         CASE s.state WHEN 'moved' THEN 'on ' || s.peer
                              ELSE 'being moved to ' || coalesce(s.peer, '?') END),
        -- A REPEATABLE READ transaction that is older than the fence reads "serving" here, and so
        -- does a statement that met the signpost just before it was removed. Both should wait a
        -- little and look again, as for a fence.
        DETAIL = json_build_object('shard', p_shard,
                                   'state', CASE s.state WHEN 'moved' THEN 'moved'
                                                 ELSE 'fenced' END,
                                   'host', s.peer, 'epoch', s.epoch)::text,
        HINT = 'Retry; pgshard''s router does so by itself.';
END $$;

-- The rows of a signpost's views. Their columns come from the call's column list: the planner would
-- evaluate constants itself and return no rows.
--
-- Locks: none; it reads one row.
CREATE FUNCTION pgshard.signpost_rows(p_shard integer) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgshard.signpost_raise(p_shard);
END $$;

-- The trigger of a signpost's views.
--
-- Locks: none; it reads one row.
CREATE FUNCTION pgshard.signpost_write() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgshard.signpost_raise(TG_ARGV[0]::integer);
    RETURN NULL;
END $$;

-- Builds <schema>__signpost for a shard that is served here. Nothing in it uses a type of the
-- shard's schema, which text replaces: dropping the old copy must not drop the signpost. It belongs
-- to the owner of the control schema. Returns the number of objects created.
--
-- Locks: ACCESS SHARE on catalogs, until the end of the transaction. It only creates, in a schema
-- of its own that no session uses. Run before the pause.
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
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s is not served here, or its schema is gone', p_shard);
    END IF;
    -- Only the owner of a schema, or a member of that role, may rename it. pgshard.expire_fence
    -- does so as the owner of the control schema: without the right, the fence of a mover that died
    -- would never end.
    IF NOT pg_has_role(keeper, (SELECT nspowner FROM pg_namespace WHERE oid = inside), 'USAGE') THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('the owner of the schema pgshard, %s, may not rename schema %s',
                             keeper::regrole, s.schema_name),
            HINT = format('GRANT %s TO %s',
                          (SELECT nspowner::regrole FROM pg_namespace WHERE oid = inside),
                          keeper::regrole);
    END IF;
    -- A BEGIN ATOMIC body holds OIDs, so a call of it by a prepared statement or a cached plan
    -- resolves no table name: in a transaction that is older than the swap it would write to the
    -- old copy, long after the barrier. Bodies that are text resolve names when they lock.
    SELECT p.oid::regprocedure::text INTO bound
    FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
    JOIN pg_class c ON d.refclassid = 'pg_class'::regclass AND c.oid = d.refobjid
    WHERE p.pronamespace = inside AND p.provolatile = 'v' AND c.relnamespace = inside
      AND c.relkind <> 'S'
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'SH002',
            MESSAGE = format('shard %s: %s is bound to a table by BEGIN ATOMIC and would write '
                             'past the fence', p_shard, bound),
            HINT = 'Give it a body that is text (AS ''...''), or make it STABLE if it only reads.';
    END IF;
    post := s.schema_name || '__signpost';
    INSERT INTO pgshard.ledger (kind, name, move_id, shard_id)
    VALUES ('signpost', post, p_move, p_shard);
    EXECUTE format('CREATE SCHEMA %I AUTHORIZATION %s', post, keeper::regrole);

    FOR r IN
        SELECT c.relname,
               coalesce(string_agg(format('%I %s', a.attname,
                            CASE WHEN t.typnamespace = inside THEN 'text'
                                 ELSE format_type(a.atttypid, -1) END),
                        ', ' ORDER BY a.attnum) FILTER (WHERE a.attname IS NOT NULL),
                        'pgshard_signpost text') AS columns
        FROM pg_class c
        LEFT JOIN (pg_attribute a JOIN pg_type t ON t.oid = a.atttypid)
               ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE c.relnamespace = inside AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
        GROUP BY c.oid, c.relname
    LOOP
        -- The subquery is never run. It is there for LOCK TABLE, which locks what a view reads too,
        -- if the view's owner may: on a catalog that role may not. A LOCK that succeeded on a
        -- signpost would be lost when the fence is swapped back.
        EXECUTE format('CREATE VIEW %I.%I AS SELECT * FROM pgshard.signpost_rows('
                       'coalesce((SELECT %3$s FROM pg_catalog.pg_ts_template WHERE false), %3$s)) '
                       'AS t(%4$s)',
                       post, r.relname, p_shard, r.columns);
        EXECUTE format('CREATE TRIGGER signpost INSTEAD OF INSERT OR UPDATE OR DELETE ON %I.%I '
                       'FOR EACH ROW EXECUTE FUNCTION pgshard.signpost_write(%L)',
                       post, r.relname, p_shard);
        made := made + 1;
    END LOOP;

    -- Every function, with the names, modes and defaults of its arguments: without a stand-in, a
    -- call by search_path would reach a function of that name elsewhere. Functions that differ only
    -- in the shard's types share one. None is built for triggers, which are not called by name, nor
    -- for functions with arguments that only C knows.
    FOR r IN
        SELECT DISTINCT ON (p.proname, takes.types)
               p.proname, p.prokind, p.proretset, takes.arguments,
               CASE WHEN ret.typnamespace = inside THEN 'text'
                    ELSE format_type(p.prorettype, NULL) END AS returns
        FROM pg_proc p JOIN pg_type ret ON ret.oid = p.prorettype, LATERAL (
            SELECT coalesce(string_agg(
                       CASE a.mode WHEN 'v' THEN 'VARIADIC ' WHEN 'o' THEN 'OUT '
                            WHEN 't' THEN 'OUT ' WHEN 'b' THEN 'INOUT ' ELSE '' END
                       || CASE WHEN a.name <> '' THEN quote_ident(a.name) || ' ' ELSE '' END
                       || a.type
                       || CASE WHEN a.takes AND a.n > p.pronargs - p.pronargdefaults
                               THEN ' DEFAULT NULL' ELSE '' END,
                       ', ' ORDER BY a.place), '') AS arguments,
                   coalesce(string_agg(a.type, ', ' ORDER BY a.place)
                            FILTER (WHERE a.takes), '') AS types,
                   bool_or(a.foreign_to_plpgsql) AS foreign_to_plpgsql
            FROM (
                SELECT u.mode, u.name, u.place, coalesce(u.mode, 'i') NOT IN ('o', 't') AS takes,
                       count(*) FILTER (WHERE coalesce(u.mode, 'i') NOT IN ('o', 't'))
                           OVER (ORDER BY u.place) AS n,
                       CASE WHEN t.typnamespace <> inside THEN format_type(u.type, NULL)
                            WHEN u.mode = 'v' THEN 'text[]' ELSE 'text' END AS type,
                       t.typtype = 'p' AND t.typname !~ '^any.' AND t.typname <> 'record'
                           AS foreign_to_plpgsql
                FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargmodes,
                            p.proargnames)
                     WITH ORDINALITY AS u(type, mode, name, place)
                JOIN pg_type t ON t.oid = u.type) AS a) AS takes
        WHERE p.pronamespace = inside
          AND ret.typname NOT IN ('trigger', 'event_trigger', 'internal', 'cstring')
          AND takes.foreign_to_plpgsql IS NOT TRUE
        ORDER BY p.proname, takes.types, p.pronargdefaults DESC
    LOOP
        EXECUTE format('CREATE %s %I.%I(%s) %s LANGUAGE plpgsql SECURITY DEFINER '
                       'SET search_path = pg_catalog, pg_temp AS %L',
                       CASE r.prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END,
                       post, r.proname, r.arguments,
                       CASE r.prokind WHEN 'p' THEN '' ELSE
                           'RETURNS ' || CASE WHEN r.proretset THEN 'SETOF ' ELSE '' END
                           || r.returns END,
                       format('BEGIN PERFORM pgshard.signpost_raise(%s); END', p_shard));
        made := made + 1;
    END LOOP;

    -- The shard's grants: "permission denied" would hide that the shard has moved.
    FOR r IN
        SELECT format('GRANT USAGE ON SCHEMA %I TO %s', post,
                      CASE acl.grantee WHEN 0 THEN 'PUBLIC'
                           ELSE acl.grantee::regrole::text END) AS statement
        FROM pg_namespace n,
             aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) AS acl
        WHERE n.oid = inside AND acl.privilege_type = 'USAGE'
        UNION
        SELECT format('GRANT %s ON %I.%I TO %s',
                      CASE acl.privilege_type WHEN 'USAGE' THEN 'SELECT'
                           ELSE acl.privilege_type END,
                      post, c.relname,
                      CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE acl.grantee::regrole::text END)
        FROM pg_class c
        LEFT JOIN pg_attribute a
               ON a.attrelid = c.oid AND a.attacl IS NOT NULL AND NOT a.attisdropped,
        LATERAL (SELECT * FROM aclexplode(coalesce(c.relacl, acldefault('r', c.relowner)))
                 UNION SELECT * FROM aclexplode(a.attacl)) AS acl
        WHERE c.relnamespace = inside AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
          AND acl.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE', 'USAGE')
    LOOP
        EXECUTE r.statement;
    END LOOP;
    EXECUTE format('GRANT EXECUTE ON ALL ROUTINES IN SCHEMA %I TO PUBLIC', post);
    -- A table created on a signpost would be lost with it. Default privileges may have granted
    -- CREATE to others than the owner.
    FOR r IN
        SELECT DISTINCT CASE acl.grantee WHEN 0 THEN 'PUBLIC'
                             ELSE acl.grantee::regrole::text END AS grantee
        FROM pg_namespace n,
             aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) AS acl
        WHERE n.nspname = post AND acl.privilege_type = 'CREATE'
    LOOP
        EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM %s CASCADE', post, r.grantee);
    END LOOP;
    RETURN made;
END $$;
