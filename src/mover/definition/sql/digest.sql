-- What any change of a schema's definition or border leaves behind, of objects that are known: $1 the schema, $2 and $3 classes
-- and OIDs of all that belongs to it. An object that comes anew depends on one of them. The rows of the catalogs that say what
-- an object of some class is are added to `found`, for the classes that there are.
WITH inside AS MATERIALIZED (
    SELECT class, oid FROM ROWS FROM (pg_catalog.unnest($2::pg_catalog.oid[]), pg_catalog.unnest($3::pg_catalog.oid[])) AS s(class, oid)
), near AS MATERIALIZED (
    SELECT class, oid FROM inside UNION ALL SELECT 'pg_catalog.pg_namespace'::pg_catalog.regclass::pg_catalog.oid, $1
), found (what) AS (
    SELECT pg_catalog.concat_ws(' ', 'to', d.classid, d.objid, d.objsubid, i.class, i.oid, d.refobjsubid, d.deptype)
    FROM near i, LATERAL (SELECT * FROM pg_catalog.pg_depend WHERE refclassid = i.class AND refobjid = i.oid OFFSET 0) d
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'of', i.class, i.oid, d.objsubid, d.refclassid, d.refobjid, d.refobjsubid, d.deptype)
    FROM inside i, LATERAL (SELECT * FROM pg_catalog.pg_depend WHERE classid = i.class AND objid = i.oid OFFSET 0) d
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'comment', i.class, i.oid, x.objsubid, x.xmin)
    FROM near i, LATERAL (SELECT objsubid, xmin FROM pg_catalog.pg_description WHERE objoid = i.oid AND classoid = i.class OFFSET 0) x
    /* rows */
)
SELECT pg_catalog.md5(
    coalesce((SELECT nspacl::pg_catalog.text || nspowner FROM pg_catalog.pg_namespace WHERE oid = $1), '') ||
    coalesce(pg_catalog.string_agg(what, ',' ORDER BY what COLLATE pg_catalog."C"), ''))
FROM found
