-- What the schema's objects need from outside it, other than what every server has.
WITH inside AS MATERIALIZED (SELECT DISTINCT class, oid FROM part)
SELECT pg_catalog.json_build_object('kind', (x.i).type, 'identity', (x.i).identity,
    'used_by', x.used_by, 'extension', x.extension)
FROM (
    SELECT pg_catalog.pg_identify_object(d.refclassid, d.refobjid, 0) AS i,
        (SELECT pg_catalog.min(e.extname) FROM pg_catalog.pg_depend m
            JOIN pg_catalog.pg_extension e ON e.oid = m.refobjid
         WHERE m.classid = d.refclassid AND m.objid = d.refobjid AND m.deptype = 'e') AS extension,
        pg_catalog.min(pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid)) AS used_by
    FROM inside p, LATERAL (
        SELECT * FROM pg_catalog.pg_depend WHERE classid = p.class AND objid = p.oid
            AND refclassid <> 'pg_catalog.pg_namespace'::pg_catalog.regclass OFFSET 0) d
    WHERE d.deptype = 'n' AND d.refobjid >= 16384
        AND NOT EXISTS (SELECT FROM inside o WHERE o.class = d.refclassid AND o.oid = d.refobjid)
    GROUP BY d.refclassid, d.refobjid) x

