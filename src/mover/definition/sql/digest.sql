-- The traces that any change of a schema's definition or border leaves on known objects: $1 the
-- schema, $2 classes, $3 and $4 the lowest and the highest OID of a run of objects of that class. A
-- new object depends on one of them. The rows of the catalogs that define an object of some class
-- are added, for the classes that occur. For each xmin the rows are counted: nothing else of them
-- has to be read, hashed or sorted behind the fence.
WITH run AS MATERIALIZED (
    SELECT class, low, high
    FROM ROWS FROM (pg_catalog.unnest($2::pg_catalog.oid[]),
        pg_catalog.unnest($3::pg_catalog.oid[]),
        pg_catalog.unnest($4::pg_catalog.oid[])) AS s(class, low, high)
), near AS MATERIALIZED (
    SELECT class, low, high FROM run
    UNION ALL SELECT 'pg_catalog.pg_namespace'::pg_catalog.regclass::pg_catalog.oid, $1, $1
), written (xmin, rows) AS (
    SELECT x.xmin, pg_catalog.count(*)
    FROM (
        SELECT x.xmin
        FROM near r, LATERAL (
            SELECT xmin FROM pg_catalog.pg_depend
            WHERE refclassid = r.class AND refobjid BETWEEN r.low AND r.high OFFSET 0) x
        UNION ALL
        SELECT x.xmin
        FROM run r, LATERAL (
            SELECT xmin FROM pg_catalog.pg_depend
            WHERE classid = r.class AND objid BETWEEN r.low AND r.high OFFSET 0) x
        UNION ALL
        SELECT x.xmin
        FROM near r, LATERAL (
            SELECT xmin FROM pg_catalog.pg_description WHERE objoid BETWEEN r.low AND r.high
                AND classoid = r.class OFFSET 0) x
        -- What a publication leaves out for all of its tables; each table in it is an object that
        -- depends on the table.
        UNION ALL
        SELECT xmin FROM pg_catalog.pg_publication
        /* rows */
    ) AS x
    GROUP BY x.xmin
)
SELECT pg_catalog.concat_ws(' ',
    (SELECT nspacl::pg_catalog.text || nspowner FROM pg_catalog.pg_namespace WHERE oid = $1),
    pg_catalog.sum(rows), pg_catalog.sum(pg_catalog.hashtextextended(xmin::pg_catalog.text, rows)))
FROM written
