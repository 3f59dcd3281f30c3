SELECT json_build_object(
    'oid', g.oid::bigint, 'name', g.tgname, 'relation', g.tgrelid::bigint, 'enabled', g.tgenabled,
    'definition', (
        -- The table's name without its schema, the rest as it is.
        SELECT CASE WHEN starts_with(whole, head) AND strpos(whole, qualified) > length(head)
                    THEN overlay(whole PLACING plain FROM strpos(whole, qualified) FOR length(qualified)) END
        FROM (SELECT pg_get_triggerdef(g.oid) AS whole,
                     format('CREATE %sTRIGGER %I', CASE WHEN g.tgconstraint <> 0 THEN 'CONSTRAINT ' ELSE '' END, g.tgname) AS head,
                     format(' ON %I.%I ', n.nspname, c.relname) AS qualified, format(' ON %I ', c.relname) AS plain) AS deparsed))
FROM relation r, LATERAL (SELECT * FROM pg_catalog.pg_trigger WHERE tgrelid = r.oid AND NOT tgisinternal OFFSET 0) g
JOIN pg_class c ON c.oid = g.tgrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY c.relname, g.tgname
