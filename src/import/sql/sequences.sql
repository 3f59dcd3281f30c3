-- Sequences that defaults of several tables use.
SELECT json_build_object('name', n.nspname || '.' || s.relname,
    'tables', json_agg(DISTINCT a.adrelid::int8))
FROM pg_attrdef a
JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = a.oid
    AND d.refclassid = 'pg_class'::regclass
JOIN pg_class s ON s.oid = d.refobjid AND s.relkind = 'S'
JOIN pg_namespace n ON n.oid = s.relnamespace
JOIN pg_class t ON t.oid = a.adrelid AND NOT t.relispartition
GROUP BY n.nspname, s.relname HAVING count(DISTINCT a.adrelid) > 1 ORDER BY n.nspname, s.relname
