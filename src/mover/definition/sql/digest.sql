-- What any change of a schema's definition or border leaves behind, of objects that are known: $1 the schema, $2 and $3 classes
-- and OIDs of all that belongs to it. An object that comes anew depends on one of them.
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
    SELECT pg_catalog.concat_ws(' ', 'subscription', i.oid, s.srsubid)
    FROM inside i, LATERAL (SELECT srsubid FROM pg_catalog.pg_subscription_rel WHERE srrelid = i.oid OFFSET 0) s
    WHERE i.class = 'pg_catalog.pg_class'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'class', i.oid, x.xmin)
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_class WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_class'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'attribute', i.oid, x.attnum, x.xmin)
    FROM inside i, LATERAL (SELECT attnum, xmin FROM pg_catalog.pg_attribute WHERE attrelid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_class'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'index', i.oid, x.xmin)
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_index WHERE indexrelid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_class'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'inherits', i.oid, x.inhparent, x.xmin)
    FROM inside i, LATERAL (SELECT inhparent, xmin FROM pg_catalog.pg_inherits WHERE inhrelid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_class'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'sequence', i.oid, x.xmin)
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_sequence WHERE seqrelid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_class'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'type', i.oid, x.xmin)
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_type WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_type'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'enum', x.oid, x.xmin)
    FROM inside i, LATERAL (SELECT oid, xmin FROM pg_catalog.pg_enum WHERE enumtypid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_type'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'function', i.oid, x.xmin)
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_proc WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_proc'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'constraint', i.oid, x.xmin)
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_constraint WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_constraint'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'default', i.oid, x.xmin)
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_attrdef WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_attrdef'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'rule', i.oid, x.xmin)
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_rewrite WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_rewrite'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'trigger', i.oid, x.xmin)
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_trigger WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_trigger'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'policy', i.oid, x.xmin)
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_policy WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_policy'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'statistics', i.oid, x.xmin)
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_statistic_ext WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'collation', i.oid, x.xmin)
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_collation WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_collation'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'dictionary', i.oid, x.xmin)
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_ts_dict WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_ts_dict'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'configuration', i.oid, x.xmin)
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_ts_config WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_ts_config'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'default privileges', i.oid, x.xmin)
    FROM inside i, LATERAL (SELECT xmin FROM pg_catalog.pg_default_acl WHERE oid = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_default_acl'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'mapping', i.oid, x.maptokentype, x.mapseqno, x.xmin)
    FROM inside i, LATERAL (SELECT maptokentype, mapseqno, xmin FROM pg_catalog.pg_ts_config_map WHERE mapcfg = i.oid OFFSET 0) x
    WHERE i.class = 'pg_catalog.pg_ts_config'::pg_catalog.regclass
    UNION ALL
    SELECT pg_catalog.concat_ws(' ', 'comment', i.class, i.oid, x.objsubid, x.xmin)
    FROM near i, LATERAL (SELECT objsubid, xmin FROM pg_catalog.pg_description WHERE objoid = i.oid AND classoid = i.class OFFSET 0) x
)
SELECT pg_catalog.md5(
    coalesce((SELECT nspacl::pg_catalog.text || nspowner FROM pg_catalog.pg_namespace WHERE oid = $1), '') ||
    coalesce(pg_catalog.string_agg(what, ',' ORDER BY what COLLATE pg_catalog."C"), ''))
FROM found
