SELECT pg_catalog.json_build_object(
    'oid', g.oid::bigint, 'name', g.tgname, 'relation', g.tgrelid::bigint, 'enabled', g.tgenabled,
    'parent', nullif(g.tgparentid::bigint, 0),
    'definition', (
        -- The table's name without its schema, the rest as it is.
        SELECT CASE WHEN pg_catalog.starts_with(whole, head)
            AND pg_catalog.strpos(whole, qualified) > pg_catalog.length(head)
                    THEN overlay(whole PLACING plain
                        FROM pg_catalog.strpos(whole, qualified)
                            FOR pg_catalog.length(qualified)) END
        FROM (SELECT pg_catalog.pg_get_triggerdef(g.oid) AS whole,
                     pg_catalog.format('CREATE %sTRIGGER %I',
                         CASE WHEN g.tgconstraint <> 0 THEN 'CONSTRAINT ' ELSE '' END,
                         g.tgname) AS head,
                     pg_catalog.format(' ON %I.%I ', n.nspname, c.relname) AS qualified,
                     pg_catalog.format(' ON %I ', c.relname) AS plain) AS deparsed))
FROM relation r, LATERAL (SELECT * FROM pg_catalog.pg_trigger WHERE tgrelid = r.oid
    -- Before 15 the trigger that a partition has of its parent's is called internal, as those of
    -- foreign keys are.
    AND (NOT tgisinternal OR tgparentid <> 0 AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_constraint k
        WHERE k.oid = tgconstraint AND k.contype <> 't')) OFFSET 0) g
JOIN pg_catalog.pg_class c ON c.oid = g.tgrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY c.relname, g.tgname
