-- The schemas outside of this one that have an operator of an object: IS DISTINCT FROM and its like
-- do not name theirs.
SELECT pg_catalog.json_build_object(
    'class', (SELECT relname FROM pg_catalog.pg_class WHERE oid = x.class),
    'oid', x.oid::bigint, 'schema', x.nspname)
FROM (
    SELECT DISTINCT p.class, p.oid, n.nspname
    FROM part p, LATERAL (
        SELECT refobjid FROM pg_catalog.pg_depend WHERE classid = p.class AND objid = p.oid
            AND refclassid = 'pg_catalog.pg_operator'::pg_catalog.regclass OFFSET 0) d,
        LATERAL (SELECT oprnamespace FROM pg_catalog.pg_operator WHERE oid = d.refobjid OFFSET 0) o
    JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
    WHERE o.oprnamespace <> $1) x
