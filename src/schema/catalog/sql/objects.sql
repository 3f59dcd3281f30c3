-- Everything that belongs to the schema $1 (oid): (class, oid) and the object it is a part of. A
-- schema's members are found by pg_depend, which has an index for it: pg_class has no index on the
-- namespace, and on a host with thousands of shards a scan of it takes longer than a whole fence.
-- "OFFSET 0" keeps each look-up an index scan.
WITH member AS MATERIALIZED (
    SELECT d.classid AS class, d.objid AS oid
    FROM pg_catalog.pg_depend d
    WHERE d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass AND d.refobjid = $1
), relation AS MATERIALIZED (
    SELECT c.oid, c.reltype, c.reltoastrelid
    FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_class WHERE oid = m.oid OFFSET 0) c
    WHERE m.class = 'pg_catalog.pg_class'::pg_catalog.regclass
), named_type AS MATERIALIZED (
    SELECT t.oid, t.typarray, t.typrelid, t.oid AS home
    FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_type WHERE oid = m.oid OFFSET 0) t
    WHERE m.class = 'pg_catalog.pg_type'::pg_catalog.regclass
), row_type AS MATERIALIZED (
    SELECT t.oid, t.typarray, r.oid AS home
    FROM relation r, LATERAL (SELECT * FROM pg_catalog.pg_type WHERE oid = r.reltype OFFSET 0) t
), constrained AS MATERIALIZED (
    SELECT k.oid, k.contype, k.conrelid, k.contypid
    FROM relation r, LATERAL (SELECT * FROM pg_catalog.pg_constraint
        WHERE conrelid = r.oid OFFSET 0) k
    UNION ALL
    SELECT k.oid, k.contype, k.conrelid, k.contypid
    FROM named_type t, LATERAL (SELECT * FROM pg_catalog.pg_constraint
        WHERE conrelid = 0 AND contypid = t.oid OFFSET 0) k
), casted AS MATERIALIZED (
    -- Casts from or to its types, except those that only a superuser can create, and those that a
    -- type has by itself.
    SELECT DISTINCT c.oid
    FROM (SELECT oid FROM named_type UNION ALL SELECT oid FROM row_type) t, LATERAL (
        SELECT objid FROM pg_catalog.pg_depend
        WHERE refclassid = 'pg_catalog.pg_type'::pg_catalog.regclass AND refobjid = t.oid
            AND classid = 'pg_catalog.pg_cast'::pg_catalog.regclass AND deptype = 'n' OFFSET 0) d,
        LATERAL (SELECT oid, castmethod FROM pg_catalog.pg_cast WHERE oid = d.objid OFFSET 0) c
    WHERE c.castmethod IN ('f', 'i')
), part (class, oid, home_class, home) AS MATERIALIZED (
    -- Members; what another object creates (identity sequences, constructors of ranges) is a part
    -- of that object.
    SELECT m.class, m.oid, coalesce(d.refclassid, m.class), coalesce(d.refobjid, m.oid)
    FROM member m LEFT JOIN LATERAL (
        SELECT refclassid, refobjid FROM pg_catalog.pg_depend
        WHERE classid = m.class AND objid = m.oid AND deptype = 'i' LIMIT 1) d ON true
    UNION ALL
    SELECT 'pg_catalog.pg_type'::pg_catalog.regclass, t.oid,
        'pg_catalog.pg_class'::pg_catalog.regclass, t.home
    FROM (SELECT oid, home FROM row_type UNION ALL SELECT typarray, home FROM row_type) t
    WHERE t.oid <> 0
    UNION ALL
    SELECT 'pg_catalog.pg_type'::pg_catalog.regclass, typarray,
        'pg_catalog.pg_type'::pg_catalog.regclass, home
    FROM named_type WHERE typarray <> 0
    UNION ALL
    SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, typrelid,
        'pg_catalog.pg_type'::pg_catalog.regclass, home
    FROM named_type WHERE typrelid <> 0
    UNION ALL
    SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, reltoastrelid,
        'pg_catalog.pg_class'::pg_catalog.regclass, oid
    FROM relation WHERE reltoastrelid <> 0
    UNION ALL
    SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, i.indexrelid,
        'pg_catalog.pg_class'::pg_catalog.regclass, r.oid
    FROM relation r, LATERAL (SELECT indexrelid FROM pg_catalog.pg_index
        WHERE indrelid = r.reltoastrelid OFFSET 0) i
    UNION ALL
    -- An index of a constraint is a part of the constraint.
    SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, i.indexrelid,
        coalesce(d.refclassid, 'pg_catalog.pg_class'::pg_catalog.regclass),
        coalesce(d.refobjid, i.indexrelid)
    FROM relation r, LATERAL (SELECT indexrelid FROM pg_catalog.pg_index
        WHERE indrelid = r.oid OFFSET 0) i
    LEFT JOIN LATERAL (
        SELECT refclassid, refobjid FROM pg_catalog.pg_depend
        WHERE classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND objid = i.indexrelid
            AND deptype = 'i' LIMIT 1) d ON true
    UNION ALL
    -- A NOT NULL is a part of its table, a check of a domain a part of the domain.
    SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, k.oid,
        CASE WHEN k.contypid <> 0 THEN 'pg_catalog.pg_type'::pg_catalog.regclass
             WHEN k.contype = 'n' THEN 'pg_catalog.pg_class'::pg_catalog.regclass
             ELSE 'pg_catalog.pg_constraint'::pg_catalog.regclass END,
        CASE WHEN k.contypid <> 0 THEN k.contypid WHEN k.contype = 'n' THEN k.conrelid
            ELSE k.oid END
    FROM constrained k
    UNION ALL
    -- A generated column is a part of its table; a default is an object of its own, because it can
    -- be set later.
    SELECT 'pg_catalog.pg_attrdef'::pg_catalog.regclass, a.oid,
        CASE WHEN a.attgenerated = '' THEN 'pg_catalog.pg_attrdef'::pg_catalog.regclass
             ELSE 'pg_catalog.pg_class'::pg_catalog.regclass END,
        CASE WHEN a.attgenerated = '' THEN a.oid ELSE r.oid END
    FROM relation r, LATERAL (
        SELECT f.oid, c.attgenerated FROM pg_catalog.pg_attrdef f
        JOIN pg_catalog.pg_attribute c ON c.attrelid = f.adrelid AND c.attnum = f.adnum
        WHERE f.adrelid = r.oid OFFSET 0) a
    UNION ALL
    -- The rule that makes a view is a part of it; others are objects of their own.
    SELECT 'pg_catalog.pg_rewrite'::pg_catalog.regclass, w.oid,
        CASE w.rulename WHEN '_RETURN' THEN 'pg_catalog.pg_class'::pg_catalog.regclass
            ELSE 'pg_catalog.pg_rewrite'::pg_catalog.regclass END,
        CASE w.rulename WHEN '_RETURN' THEN r.oid ELSE w.oid END
    FROM relation r, LATERAL (SELECT oid, rulename FROM pg_catalog.pg_rewrite
        WHERE ev_class = r.oid OFFSET 0) w
    UNION ALL
    -- The triggers of a foreign key are a part of it.
    SELECT 'pg_catalog.pg_trigger'::pg_catalog.regclass, g.oid,
        CASE WHEN g.tgisinternal THEN 'pg_catalog.pg_constraint'::pg_catalog.regclass
             ELSE 'pg_catalog.pg_trigger'::pg_catalog.regclass END,
        CASE WHEN g.tgisinternal THEN g.tgconstraint ELSE g.oid END
    FROM relation r, LATERAL (
        -- Before 15 a partition's trigger of its parent's is called internal, too.
        SELECT oid, tgconstraint, tgisinternal AND NOT (tgparentid <> 0 AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_constraint k
            WHERE k.oid = tgconstraint AND k.contype <> 't')) AS tgisinternal
        FROM pg_catalog.pg_trigger WHERE tgrelid = r.oid OFFSET 0) g
    UNION ALL
    -- A policy is an object of its own: it may read tables that come later.
    SELECT 'pg_catalog.pg_policy'::pg_catalog.regclass, p.oid,
        'pg_catalog.pg_policy'::pg_catalog.regclass, p.oid
    FROM relation r,
        LATERAL (SELECT oid FROM pg_catalog.pg_policy WHERE polrelid = r.oid OFFSET 0) p
    UNION ALL
    SELECT 'pg_catalog.pg_publication_rel'::pg_catalog.regclass, p.oid,
        'pg_catalog.pg_class'::pg_catalog.regclass, r.oid
    FROM relation r, LATERAL (SELECT oid FROM pg_catalog.pg_publication_rel
        WHERE prrelid = r.oid OFFSET 0) p
    UNION ALL
    SELECT 'pg_catalog.pg_cast'::pg_catalog.regclass, oid,
        'pg_catalog.pg_cast'::pg_catalog.regclass, oid FROM casted
)
