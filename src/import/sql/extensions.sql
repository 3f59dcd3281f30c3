-- Extensions with types of columns, or with functions and operators of defaults, checks and
-- indexes.
WITH member AS (
    SELECT d.classid, d.objid, e.extname FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
    WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname <> 'plpgsql'
), used AS (
    SELECT m.extname, d.classid, d.objid, d.objsubid FROM member m
    JOIN pg_depend d ON d.refclassid = m.classid AND d.refobjid = m.objid
    WHERE d.deptype <> 'e'
)
SELECT json_build_object('name', u.extname,
    'tables', json_agg(DISTINCT coalesce(i.indrelid, k.conrelid, a.adrelid, c.oid)::int8))
FROM used u
LEFT JOIN pg_index i ON u.classid = 'pg_class'::regclass AND i.indexrelid = u.objid
LEFT JOIN pg_constraint k ON u.classid = 'pg_constraint'::regclass AND k.oid = u.objid
    AND k.conrelid <> 0
LEFT JOIN pg_attrdef a ON u.classid = 'pg_attrdef'::regclass AND a.oid = u.objid
LEFT JOIN pg_class c ON u.classid = 'pg_class'::regclass AND c.oid = u.objid
    AND c.relkind IN ('r', 'p')
WHERE coalesce(i.indrelid, k.conrelid, a.adrelid, c.oid) IS NOT NULL
GROUP BY u.extname ORDER BY u.extname
