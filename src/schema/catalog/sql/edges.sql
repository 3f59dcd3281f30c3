SELECT pg_catalog.json_build_object(
    'class', (SELECT relname FROM pg_catalog.pg_class WHERE oid = d.classid),
    'oid', d.objid::bigint,
    'of_class', (SELECT relname FROM pg_catalog.pg_class WHERE oid = d.refclassid),
    'of', d.refobjid::bigint, 'of_column', d.refobjsubid)
FROM (SELECT DISTINCT class, oid FROM part) p, LATERAL (
    SELECT * FROM pg_catalog.pg_depend WHERE classid = p.class AND objid = p.oid
        AND refclassid <> 'pg_catalog.pg_namespace'::pg_catalog.regclass
        -- How a partition's index or trigger depends on its parent's: the index is created first
        -- and attached.
        AND deptype NOT IN ('P', 'S') OFFSET 0) d

