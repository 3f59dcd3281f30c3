-- Which transaction last wrote each catalog row of the schema: any DDL changes at least one of
-- them. VACUUM, ANALYZE and a rename of the schema change none. Publications are not part of the
-- schema.
, inside AS MATERIALIZED (
    SELECT DISTINCT class, oid FROM part
    WHERE class <> 'pg_catalog.pg_publication_rel'::pg_catalog.regclass
), written (class, oid, sub, by) AS (
    SELECT i.class, i.oid, 0, x.xmin
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_class WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_class'::pg_catalog.regclass
    UNION ALL
    SELECT i.class, i.oid, x.attnum, x.xmin
    FROM inside i, LATERAL (SELECT attnum, xmin FROM pg_catalog.pg_attribute
        WHERE attrelid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_class'::pg_catalog.regclass
    UNION ALL
    SELECT 'pg_catalog.pg_index'::pg_catalog.regclass, i.oid, 0, x.xmin
    FROM inside i,
        LATERAL (SELECT xmin FROM pg_catalog.pg_index WHERE indexrelid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_class'::pg_catalog.regclass
    UNION ALL
    SELECT 'pg_catalog.pg_inherits'::pg_catalog.regclass, i.oid, x.inhseqno, x.xmin
    FROM inside i, LATERAL (SELECT inhseqno, xmin FROM pg_catalog.pg_inherits
        WHERE inhrelid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_class'::pg_catalog.regclass
    UNION ALL
    SELECT 'pg_catalog.pg_sequence'::pg_catalog.regclass, i.oid, 0, x.xmin
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_sequence
        WHERE seqrelid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_class'::pg_catalog.regclass
    UNION ALL
    SELECT i.class, i.oid, 0, x.xmin
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_type WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_type'::pg_catalog.regclass
    UNION ALL
    SELECT 'pg_catalog.pg_enum'::pg_catalog.regclass, x.oid, 0, x.xmin
    FROM named_type t, LATERAL (SELECT oid, xmin FROM pg_catalog.pg_enum
        WHERE enumtypid = t.oid OFFSET 0) x
    UNION ALL
    SELECT i.class, i.oid, 0, x.xmin
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_proc WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_proc'::pg_catalog.regclass
    UNION ALL
    SELECT i.class, i.oid, 0, x.xmin
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_constraint WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_constraint'::pg_catalog.regclass
    UNION ALL
    SELECT i.class, i.oid, 0, x.xmin
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_attrdef WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_attrdef'::pg_catalog.regclass
    UNION ALL
    SELECT i.class, i.oid, 0, x.xmin
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_rewrite WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_rewrite'::pg_catalog.regclass
    UNION ALL
    SELECT i.class, i.oid, 0, x.xmin
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_trigger WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_trigger'::pg_catalog.regclass
    UNION ALL
    SELECT i.class, i.oid, 0, x.xmin
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_policy WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_policy'::pg_catalog.regclass
    UNION ALL
    SELECT i.class, i.oid, 0, x.xmin
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_statistic_ext
        WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass
    UNION ALL
    SELECT i.class, i.oid, 0, x.xmin
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_collation WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_collation'::pg_catalog.regclass
    UNION ALL
    SELECT i.class, i.oid, 0, x.xmin
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_ts_dict WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_ts_dict'::pg_catalog.regclass
    UNION ALL
    SELECT i.class, i.oid, 0, x.xmin
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_ts_config WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_ts_config'::pg_catalog.regclass
    UNION ALL
    SELECT i.class, i.oid, 0, x.xmin
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_default_acl WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_default_acl'::pg_catalog.regclass
    UNION ALL
    SELECT i.class, i.oid, 0, x.xmin
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_operator WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_operator'::pg_catalog.regclass
    UNION ALL
    SELECT i.class, i.oid, 0, x.xmin
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_conversion WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_conversion'::pg_catalog.regclass
    UNION ALL
    SELECT i.class, i.oid, 0, x.xmin
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_cast WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_cast'::pg_catalog.regclass
    UNION ALL
    SELECT 'pg_catalog.pg_ts_config_map'::pg_catalog.regclass, i.oid, x.maptokentype, x.xmin
    FROM inside i, LATERAL (SELECT maptokentype, xmin FROM pg_catalog.pg_ts_config_map
        WHERE mapcfg = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_ts_config'::pg_catalog.regclass
    UNION ALL
    SELECT 'pg_catalog.pg_description'::pg_catalog.regclass, i.oid, x.objsubid, x.xmin
    FROM (SELECT class, oid FROM inside
        UNION ALL SELECT 'pg_catalog.pg_namespace'::pg_catalog.regclass, $1) i,
        LATERAL (SELECT objsubid, xmin FROM pg_catalog.pg_description
            WHERE objoid = i.oid AND classoid = i.class OFFSET 0) x
    UNION ALL
    -- For everything else, only that it exists.
    SELECT i.class, i.oid, -1, '0'::pg_catalog.xid FROM inside i
)
SELECT pg_catalog.md5(
    coalesce((SELECT nspacl::pg_catalog.text || nspowner FROM pg_catalog.pg_namespace
        WHERE oid = $1), '') ||
    coalesce(pg_catalog.string_agg(pg_catalog.concat_ws(' ', class::pg_catalog.oid, oid, sub, by),
        ',' ORDER BY class, oid, sub, by::pg_catalog.text), ''))
FROM written
