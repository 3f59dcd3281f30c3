SELECT pg_catalog.json_build_object(
    'oid', w.oid::bigint, 'name', w.rulename, 'relation', w.ev_class::bigint,
    'enabled', w.ev_enabled, 'definition', (
        -- The table's name without its schema, the rest as it is.
        SELECT CASE WHEN pg_catalog.starts_with(whole, head || qualified)
                    THEN head || plain
                        || pg_catalog.substr(whole, pg_catalog.length(head || qualified) + 1) END
        FROM (SELECT pg_catalog.pg_get_ruledef(w.oid) AS whole,
                     pg_catalog.format(E'CREATE RULE %I AS\n    ON %s TO ', w.rulename,
                            CASE w.ev_type WHEN '2' THEN 'UPDATE' WHEN '3' THEN 'INSERT'
                                WHEN '4' THEN 'DELETE' END) AS head,
                     pg_catalog.format('%I.%I', n.nspname, c.relname) AS qualified,
                     pg_catalog.quote_ident(c.relname) AS plain) AS deparsed))
FROM relation r,
    LATERAL (SELECT * FROM pg_catalog.pg_rewrite
        WHERE ev_class = r.oid AND rulename <> '_RETURN' OFFSET 0) w
JOIN pg_catalog.pg_class c ON c.oid = w.ev_class
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY c.relname, w.rulename
