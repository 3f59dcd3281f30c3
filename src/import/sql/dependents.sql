-- Views, rules and functions with a bound body, and the tables that each is bound to.
SELECT json_build_object('kind', f.kind, 'name', f.name,
    'tables', json_agg(DISTINCT f.relation::int8))
FROM (
    SELECT CASE WHEN r.rulename <> '_RETURN' THEN 'rule'
        WHEN v.relkind = 'm' THEN 'materialized_view' ELSE 'view' END AS kind,
        CASE WHEN r.rulename <> '_RETURN' THEN r.rulename || ' on ' ELSE '' END || n.nspname || '.'
            || v.relname AS name,
        d.refobjid AS relation
    FROM pg_rewrite r JOIN pg_class v ON v.oid = r.ev_class
    JOIN pg_namespace n ON n.oid = v.relnamespace
    JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
        AND d.refclassid = 'pg_class'::regclass
    JOIN pg_class t ON t.oid = d.refobjid AND t.relkind IN ('r', 'p', 'f')
    WHERE n.nspname NOT IN ('pg_catalog', 'information_schema')
    UNION ALL
    SELECT 'function', n.nspname || '.' || p.proname, d.refobjid
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
        AND d.refclassid = 'pg_class'::regclass
    JOIN pg_class t ON t.oid = d.refobjid AND t.relkind IN ('r', 'p', 'f')
    WHERE n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pgshard(_|$)'
        AND p.provolatile = 'v'
) f
GROUP BY f.kind, f.name ORDER BY f.kind, f.name
