-- What any change of a schema's definition or border leaves behind, of objects that are known: $1 the schema, $2 and $3 classes
-- and OIDs of all that belongs to it, but TOAST tables and their indexes, which nothing else knows. An object that comes anew
-- depends on one of them. The rows of the catalogs that say what an object of some class is are added to `found`, for the classes
-- that there are. Hashes of numbers, added up: texts would have to be made and sorted behind the fence.
WITH inside AS MATERIALIZED (
    SELECT class, oid FROM ROWS FROM (pg_catalog.unnest($2::pg_catalog.oid[]), pg_catalog.unnest($3::pg_catalog.oid[])) AS s(class, oid)
), near AS MATERIALIZED (
    SELECT class, oid FROM inside UNION ALL SELECT 'pg_catalog.pg_namespace'::pg_catalog.regclass::pg_catalog.oid, $1
), found (hash) AS (
    SELECT pg_catalog.hashint8extended(d.classid::pg_catalog.int8 << 32 | d.objid::pg_catalog.int8,
        pg_catalog.hashint8extended(d.objsubid::pg_catalog.int8 << 32 | d.refobjsubid::pg_catalog.int8,
        pg_catalog.hashint8extended(i.class::pg_catalog.int8 << 32 | i.oid::pg_catalog.int8,
        pg_catalog.ascii(d.deptype::pg_catalog.text))))
    FROM near i, LATERAL (SELECT * FROM pg_catalog.pg_depend WHERE refclassid = i.class AND refobjid = i.oid OFFSET 0) d
    UNION ALL
    SELECT pg_catalog.hashint8extended(d.refclassid::pg_catalog.int8 << 32 | d.refobjid::pg_catalog.int8,
        pg_catalog.hashint8extended(d.objsubid::pg_catalog.int8 << 32 | d.refobjsubid::pg_catalog.int8,
        pg_catalog.hashint8extended(i.class::pg_catalog.int8 << 32 | i.oid::pg_catalog.int8,
        256 + pg_catalog.ascii(d.deptype::pg_catalog.text))))
    FROM inside i, LATERAL (SELECT * FROM pg_catalog.pg_depend WHERE classid = i.class AND objid = i.oid OFFSET 0) d
    UNION ALL
    SELECT pg_catalog.hashtextextended(x.xmin::pg_catalog.text,
        pg_catalog.hashint8extended(i.class::pg_catalog.int8 << 32 | i.oid::pg_catalog.int8, 512 + x.objsubid))
    FROM near i, LATERAL (SELECT objsubid, xmin FROM pg_catalog.pg_description WHERE objoid = i.oid AND classoid = i.class OFFSET 0) x
    UNION ALL
    SELECT pg_catalog.hashtextextended(x.xmin::pg_catalog.text, pg_catalog.hashint8extended(x.oid::pg_catalog.int8, -1))
    FROM inside i, LATERAL (SELECT reltoastrelid FROM pg_catalog.pg_class WHERE oid = i.oid OFFSET 0) t,
        LATERAL (SELECT oid, xmin FROM pg_catalog.pg_class WHERE oid = t.reltoastrelid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_class'::pg_catalog.regclass
    /* rows */
)
SELECT pg_catalog.concat_ws(' ', (SELECT nspacl::pg_catalog.text || nspowner FROM pg_catalog.pg_namespace WHERE oid = $1),
    pg_catalog.count(*), pg_catalog.sum(hash))
FROM found
