SELECT json_build_object('class', d.classid::regclass, 'oid', d.objid::bigint, 'of_class', d.refclassid::regclass,
    'of', d.refobjid::bigint, 'of_column', d.refobjsubid)
FROM (SELECT DISTINCT class, oid FROM part) p, LATERAL (
    SELECT * FROM pg_depend WHERE classid = p.class AND objid = p.oid AND refclassid <> 'pg_namespace'::regclass OFFSET 0) d

