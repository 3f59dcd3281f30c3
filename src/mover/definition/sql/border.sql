-- Dependencies between an object of the schema and one outside it, in both directions, and
-- subscriptions that write into it.
, inside AS MATERIALIZED (SELECT DISTINCT class, oid FROM part), crossing AS (
    -- Internal dependents (deptype i) are created and dropped with their object and belong to its
    -- owner.
    SELECT true AS incoming, d.classid AS out_class, d.objid AS out_oid, i.class AS in_class,
        i.oid AS in_oid, d.deptype
    FROM inside i, LATERAL (
        SELECT * FROM pg_catalog.pg_depend WHERE refclassid = i.class AND refobjid = i.oid
            AND deptype <> 'i' OFFSET 0) d
    WHERE NOT EXISTS (SELECT FROM inside o WHERE o.class = d.classid AND o.oid = d.objid)
    UNION
    SELECT false, d.refclassid, d.refobjid, i.class, i.oid, d.deptype
    FROM inside i, LATERAL (
        SELECT * FROM pg_catalog.pg_depend WHERE classid = i.class AND objid = i.oid
            AND refclassid NOT IN ('pg_catalog.pg_namespace'::pg_catalog.regclass,
                'pg_catalog.pg_extension'::pg_catalog.regclass)
            AND refobjid >= 16384 OFFSET 0) d
    WHERE NOT EXISTS (SELECT FROM inside o WHERE o.class = d.refclassid AND o.oid = d.refobjid)
    UNION
    SELECT true, 'pg_catalog.pg_subscription'::pg_catalog.regclass, s.srsubid,
        'pg_catalog.pg_class'::pg_catalog.regclass, r.oid, 'n'
    FROM relation r, LATERAL (SELECT srsubid FROM pg_catalog.pg_subscription_rel
        WHERE srrelid = r.oid OFFSET 0) s
), named AS (
    SELECT c.incoming,
        (SELECT relname FROM pg_catalog.pg_class WHERE oid = c.out_class) AS out_class, c.out_oid,
        (SELECT relname FROM pg_catalog.pg_class WHERE oid = c.in_class) AS in_class,
        c.in_oid, c.deptype,
        pg_catalog.pg_identify_object(coalesce(w.class, c.out_class),
            coalesce(w.oid, c.out_oid), 0) AS o,
        pg_catalog.pg_identify_object(coalesce(v.class, c.in_class),
            coalesce(v.oid, c.in_oid), 0) AS i
    FROM crossing c
    -- A view's rule is the view.
    LEFT JOIN LATERAL (
        SELECT 'pg_catalog.pg_class'::pg_catalog.regclass AS class, ev_class AS oid
        FROM pg_catalog.pg_rewrite
        WHERE c.out_class = 'pg_catalog.pg_rewrite'::pg_catalog.regclass AND oid = c.out_oid
            AND rulename = '_RETURN') w ON true
    LEFT JOIN LATERAL (
        SELECT 'pg_catalog.pg_class'::pg_catalog.regclass AS class, ev_class AS oid
        FROM pg_catalog.pg_rewrite
        WHERE c.in_class = 'pg_catalog.pg_rewrite'::pg_catalog.regclass AND oid = c.in_oid
            AND rulename = '_RETURN') v ON true
)
SELECT pg_catalog.json_build_object(
    'incoming', n.incoming, 'outside_kind', (n.o).type, 'outside', (n.o).identity,
    'outside_schema', (n.o).schema, 'inside_class', n.in_class, 'inside_kind', (n.i).type,
    'inside', (n.i).identity, 'dependency', n.deptype,
    'foreign_key', EXISTS (
        SELECT FROM pg_catalog.pg_constraint
        WHERE contype = 'f' AND oid = CASE WHEN n.incoming THEN n.out_oid ELSE n.in_oid END
            AND CASE WHEN n.incoming THEN n.out_class ELSE n.in_class END = 'pg_constraint'),
    'internal_trigger', n.in_class = 'pg_trigger' AND EXISTS (
        SELECT FROM pg_catalog.pg_trigger WHERE oid = n.in_oid
            AND tgisinternal AND NOT (tgparentid <> 0 AND NOT EXISTS (
                SELECT FROM pg_catalog.pg_constraint k
                WHERE k.oid = tgconstraint AND k.contype <> 't'))))
FROM named n
WHERE (n.o).type IS NOT NULL AND (n.i).type IS NOT NULL
