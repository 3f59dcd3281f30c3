-- The functions that run while rows are copied, indexes built and views filled, and whose bodies
-- are text that is read under the search_path of whoever calls them: what $1 (a schema) computes
-- by, and what that calls, as far as it is bound.
SELECT pg_catalog.pg_describe_object(x.user_class, x.user_oid, 0),
    (pg_catalog.pg_identify_object('pg_catalog.pg_proc'::pg_catalog.regclass, p.oid, 0)).identity,
    p.prosrc, n.oid = $1, CASE p.prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END, p.oid
FROM (
    WITH RECURSIVE evaluated (class, oid) AS (
        SELECT p.class::pg_catalog.oid, p.oid FROM part p
        WHERE p.class = 'pg_catalog.pg_attrdef'::pg_catalog.regclass
            AND p.home_class = 'pg_catalog.pg_class'::pg_catalog.regclass
            OR p.class = 'pg_catalog.pg_constraint'::pg_catalog.regclass
        UNION
        SELECT 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid, i.indexrelid
        FROM relation r, LATERAL (SELECT indexrelid FROM pg_catalog.pg_index
            WHERE indrelid = r.oid OFFSET 0) i
        UNION
        SELECT 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid, r.oid
        FROM relation r
        WHERE EXISTS (SELECT FROM pg_catalog.pg_partitioned_table WHERE partrelid = r.oid)
        UNION
        SELECT 'pg_catalog.pg_rewrite'::pg_catalog.regclass::pg_catalog.oid, w.oid
        FROM relation r, LATERAL (SELECT relkind FROM pg_catalog.pg_class
            WHERE oid = r.oid OFFSET 0) c,
            LATERAL (SELECT oid FROM pg_catalog.pg_rewrite WHERE ev_class = r.oid OFFSET 0) w
        WHERE c.relkind = 'm'
    ), reached (user_class, user_oid, class, oid) AS (
        SELECT class, oid, class, oid FROM evaluated
        UNION
        SELECT r.user_class, r.user_oid, next.class, next.oid
        FROM reached r, LATERAL (
            SELECT d.refclassid, d.refobjid FROM pg_catalog.pg_depend d
            WHERE d.classid = r.class AND d.objid = r.oid AND d.refobjid >= 16384
                AND d.refclassid IN (
                    'pg_catalog.pg_proc'::pg_catalog.regclass,
                    'pg_catalog.pg_operator'::pg_catalog.regclass,
                    'pg_catalog.pg_opclass'::pg_catalog.regclass)
            UNION ALL
            SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass, s.amproc::pg_catalog.oid
            FROM pg_catalog.pg_opclass c JOIN pg_catalog.pg_amproc s ON s.amprocfamily = c.opcfamily
            WHERE r.class = 'pg_catalog.pg_opclass'::pg_catalog.regclass AND c.oid = r.oid
                AND s.amproc::pg_catalog.oid >= 16384
            UNION ALL
            -- A view that a materialized one reads.
            SELECT 'pg_catalog.pg_rewrite'::pg_catalog.regclass, w.oid
            FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_class v ON v.oid = d.refobjid
                AND v.relkind = 'v'
            JOIN pg_catalog.pg_rewrite w ON w.ev_class = v.oid
            WHERE r.class = 'pg_catalog.pg_rewrite'::pg_catalog.regclass AND d.classid = r.class
                AND d.objid = r.oid
                AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
            OFFSET 0) AS next (class, oid)
        -- A function with a search_path of its own passes it on to what it calls.
        WHERE NOT (r.class = 'pg_catalog.pg_proc'::pg_catalog.regclass AND EXISTS (
            SELECT FROM pg_catalog.pg_proc f, pg_catalog.unnest(f.proconfig) AS s (setting)
            WHERE f.oid = r.oid AND pg_catalog.starts_with(s.setting, 'search_path=')))
    )
    SELECT user_class, user_oid, oid FROM reached
    WHERE class = 'pg_catalog.pg_proc'::pg_catalog.regclass
) AS x
JOIN pg_catalog.pg_proc p ON p.oid = x.oid
JOIN pg_catalog.pg_language l ON l.oid = p.prolang
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE l.lanname NOT IN ('c', 'internal') AND p.prokind IN ('f', 'p')
    AND pg_catalog.to_jsonb(p) ->> 'prosqlbody' IS NULL
    AND NOT EXISTS (SELECT FROM pg_catalog.unnest(p.proconfig) AS s (setting)
        WHERE pg_catalog.starts_with(s.setting, 'search_path='))
ORDER BY 2, 1
