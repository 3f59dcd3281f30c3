SELECT pg_catalog.json_build_object(
    'oid', c.oid::bigint, 'name', c.relname, 'owner', pg_catalog.pg_get_userbyid(c.relowner),
    'persistence', c.relpersistence, 'type', pg_catalog.format_type(s.seqtypid, NULL),
    'start', s.seqstart, 'increment', s.seqincrement,
    'minimum', s.seqmin, 'maximum', s.seqmax, 'cache', s.seqcache, 'cycle', s.seqcycle,
    'owned_by', (
        SELECT pg_catalog.json_build_object('relation', d.refobjid::bigint, 'column', a.attname,
            'identity', d.deptype = 'i')
        FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_attribute a ON a.attrelid = d.refobjid
            AND a.attnum = d.refobjsubid
        WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid
            AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
            AND d.deptype IN ('a', 'i') AND d.refobjsubid > 0))
FROM relation r, LATERAL (SELECT * FROM pg_catalog.pg_class WHERE oid = r.oid OFFSET 0) c
JOIN pg_catalog.pg_sequence s ON s.seqrelid = c.oid
WHERE c.relkind = 'S'
ORDER BY c.relname
