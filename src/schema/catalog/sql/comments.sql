-- A composite type's attributes are columns of a relation of its own; here they are the type's.
SELECT json_build_object(
    'class', CASE WHEN p.home_class = 'pg_type'::regclass AND p.class = 'pg_class'::regclass THEN p.home_class ELSE p.class END::regclass,
    'oid', CASE WHEN p.home_class = 'pg_type'::regclass AND p.class = 'pg_class'::regclass THEN p.home ELSE p.oid END::bigint,
    'column', d.objsubid, 'text', d.description)
FROM (SELECT * FROM part UNION ALL SELECT 'pg_namespace'::regclass, $1, 'pg_namespace'::regclass, $1) p,
    LATERAL (SELECT objsubid, description FROM pg_description WHERE objoid = p.oid AND classoid = p.class OFFSET 0) d
-- Comments on a NOT NULL are read with its column.
WHERE NOT (p.class = 'pg_constraint'::regclass AND p.home_class = 'pg_class'::regclass)
ORDER BY p.class, p.oid, d.objsubid
