-- Objects for which we have no statement: (what, object). The mover refuses these by name.
WITH inside AS MATERIALIZED (SELECT DISTINCT class, oid FROM part)
SELECT pg_catalog.json_build_object('kind', o.kind, 'object', o.object) FROM (
    SELECT (pg_catalog.pg_identify_object(m.class, m.oid, 0)).type AS kind,
        pg_catalog.pg_describe_object(m.class, m.oid, 0) AS object
    FROM member m
    WHERE m.class NOT IN ('pg_catalog.pg_class'::pg_catalog.regclass,
        'pg_catalog.pg_type'::pg_catalog.regclass, 'pg_catalog.pg_proc'::pg_catalog.regclass,
        'pg_catalog.pg_extension'::pg_catalog.regclass,
        'pg_catalog.pg_statistic_ext'::pg_catalog.regclass,
        'pg_catalog.pg_collation'::pg_catalog.regclass,
        'pg_catalog.pg_ts_dict'::pg_catalog.regclass,
        'pg_catalog.pg_ts_config'::pg_catalog.regclass,
        'pg_catalog.pg_default_acl'::pg_catalog.regclass,
        'pg_catalog.pg_operator'::pg_catalog.regclass,
        'pg_catalog.pg_conversion'::pg_catalog.regclass)
    UNION ALL
    -- What a version of PostgreSQL has that we do not know is refused, not left out.
    SELECT 'relation of unknown kind ' || c.relkind::pg_catalog.text,
        pg_catalog.format('relation %I', c.relname)
    FROM relation r, LATERAL (SELECT relname, relkind FROM pg_catalog.pg_class
        WHERE oid = r.oid OFFSET 0) c
    WHERE c.relkind NOT IN ('r', 'v', 'm', 'p', 'f', 'S', 'i', 'I', 'c', 't')
    UNION ALL
    SELECT 'constraint of unknown kind ' || k.contype::pg_catalog.text,
        pg_catalog.pg_describe_object('pg_catalog.pg_constraint'::pg_catalog.regclass, k.oid, 0)
    FROM constrained k WHERE k.contype NOT IN ('p', 'u', 'x', 'c', 'f', 'n', 't')
    UNION ALL
    SELECT 'type of unknown kind ' || y.typtype::pg_catalog.text,
        pg_catalog.format('type %I', y.typname)
    FROM named_type t, LATERAL (SELECT typname, typtype FROM pg_catalog.pg_type
        WHERE oid = t.oid OFFSET 0) y
    WHERE y.typtype NOT IN ('b', 'c', 'd', 'e', 'p', 'r', 'm')
    UNION ALL
    SELECT 'extension', pg_catalog.pg_describe_object(m.class, m.oid, 0) FROM member m
    WHERE m.class = 'pg_catalog.pg_extension'::pg_catalog.regclass
    UNION ALL
    SELECT 'statistics object',
        pg_catalog.pg_describe_object('pg_catalog.pg_statistic_ext'::pg_catalog.regclass, s.oid, 0)
    FROM relation r, LATERAL (SELECT * FROM pg_catalog.pg_statistic_ext
        WHERE stxrelid = r.oid AND stxnamespace <> $1 OFFSET 0) s
    UNION ALL
    -- A move's own, and those that feed its old copies, are no loss.
    SELECT 'publication relation',
        pg_catalog.pg_describe_object('pg_catalog.pg_publication_rel'::pg_catalog.regclass, p.oid,
            0)
    FROM relation r, LATERAL (SELECT * FROM pg_catalog.pg_publication_rel
        WHERE prrelid = r.oid OFFSET 0) p
    WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_publication b
        WHERE b.oid = p.prpubid AND pg_catalog.starts_with(b.pubname::text, 'pgshard_'))
    UNION ALL
    SELECT 'cast', pg_catalog.pg_describe_object(d.classid, d.objid, 0)
    FROM inside i, LATERAL (SELECT DISTINCT classid, objid FROM pg_catalog.pg_depend
        WHERE refclassid = i.class AND refobjid = i.oid
            AND classid = 'pg_catalog.pg_cast'::pg_catalog.regclass AND deptype <> 'i' OFFSET 0) d
    WHERE NOT EXISTS (SELECT FROM casted c WHERE c.oid = d.objid)
    UNION ALL
    -- An operator that another one names, but that was never created.
    SELECT 'declared operator', pg_catalog.pg_describe_object(m.class, m.oid, 0)
    FROM member m, LATERAL (SELECT oprcode FROM pg_catalog.pg_operator WHERE oid = m.oid OFFSET 0) o
    WHERE m.class = 'pg_catalog.pg_operator'::pg_catalog.regclass AND o.oprcode = 0
    UNION ALL
    SELECT 'security label', pg_catalog.pg_describe_object(i.class, i.oid, 0)
    FROM inside i
    WHERE EXISTS (SELECT FROM pg_catalog.pg_seclabel s
        WHERE s.objoid = i.oid AND s.classoid = i.class)
    UNION ALL
    SELECT CASE d.deptype WHEN 'e' THEN 'extension member' ELSE 'extension dependent' END,
        pg_catalog.pg_describe_object(i.class, i.oid, 0)
    FROM inside i, LATERAL (SELECT deptype FROM pg_catalog.pg_depend
        WHERE classid = i.class AND objid = i.oid
        AND refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass
        AND deptype IN ('e', 'x') OFFSET 0) d
) o
GROUP BY o.kind, o.object
ORDER BY o.kind, o.object
