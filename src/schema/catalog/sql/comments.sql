-- A composite type's attributes are columns of a relation of its own; here they are the type's.
SELECT pg_catalog.json_build_object(
    'class', (SELECT relname FROM pg_catalog.pg_class
        WHERE oid = CASE WHEN p.attribute THEN p.home_class ELSE p.class END),
    'oid', CASE WHEN p.attribute THEN p.home ELSE p.oid END::bigint, 'column', d.objsubid,
    'text', d.description)
FROM (
    SELECT *, home_class = 'pg_catalog.pg_type'::pg_catalog.regclass
        AND class = 'pg_catalog.pg_class'::pg_catalog.regclass AS attribute
    FROM part
    UNION ALL
    SELECT 'pg_catalog.pg_namespace'::pg_catalog.regclass, $1,
        'pg_catalog.pg_namespace'::pg_catalog.regclass, $1, false) p,
    LATERAL (SELECT objsubid, description FROM pg_catalog.pg_description
        WHERE objoid = p.oid AND classoid = p.class OFFSET 0) d
-- Comments on a NOT NULL are read with its column.
WHERE NOT (p.class = 'pg_catalog.pg_constraint'::pg_catalog.regclass
    AND p.home_class = 'pg_catalog.pg_class'::pg_catalog.regclass)
ORDER BY p.class, p.oid, d.objsubid
