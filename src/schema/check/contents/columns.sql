-- The columns of a schema's tables that a generator fills. $1: the schemas; $2: the number of each.
-- next_id() has no `sequence`. For a partitioned table each partition is listed.
WITH tables AS (
    SELECT s.shard, c.oid, c.relname, c.relkind, n.nspname
    FROM unnest($2::int4[], $1::text[]) AS s(shard, name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = s.name
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'p')
        AND c.relpersistence <> 't'
), filled AS (
    SELECT t.oid, d.adnum AS attnum, NULL::oid AS sequence
    FROM tables t
    JOIN pg_catalog.pg_attrdef d ON d.adrelid = t.oid
    JOIN pg_catalog.pg_depend e ON e.classid = 'pg_catalog.pg_attrdef'::regclass AND e.objid = d.oid
        AND e.refclassid = 'pg_catalog.pg_proc'::regclass
    JOIN pg_catalog.pg_proc p ON p.oid = e.refobjid AND p.proname = 'next_id' AND p.pronargs = 0
    JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace AND n.nspname = t.nspname
    UNION
    SELECT t.oid, d.adnum, q.oid
    FROM tables t
    JOIN pg_catalog.pg_attrdef d ON d.adrelid = t.oid
    JOIN pg_catalog.pg_depend e ON e.classid = 'pg_catalog.pg_attrdef'::regclass AND e.objid = d.oid
        AND e.refclassid = 'pg_catalog.pg_class'::regclass
    JOIN pg_catalog.pg_class q ON q.oid = e.refobjid AND q.relkind = 'S'
    UNION
    -- GENERATED AS IDENTITY: the sequence depends on the column; for a partition, on its parent's
    -- column.
    SELECT t.oid, e.refobjsubid::int2, q.oid
    FROM tables t
    JOIN pg_catalog.pg_depend e ON e.refclassid = 'pg_catalog.pg_class'::regclass
        AND e.refobjid = t.oid
        AND e.refobjsubid > 0 AND e.classid = 'pg_catalog.pg_class'::regclass AND e.deptype = 'i'
    JOIN pg_catalog.pg_class q ON q.oid = e.objid AND q.relkind = 'S'
), spread AS (
    SELECT f.oid AS parent, coalesce(p.relid, f.oid) AS oid, a.attname, f.sequence
    FROM filled f
    JOIN pg_catalog.pg_attribute a ON a.attrelid = f.oid AND a.attnum = f.attnum
        AND NOT a.attisdropped
    LEFT JOIN LATERAL pg_catalog.pg_partition_tree(f.oid) p ON true
)
SELECT DISTINCT t.shard, n.nspname::text, c.relname::text, s.attname::text,
    qn.nspname::text, q.relname::text, coalesce(i.seqincrement > 0, true),
    -- Whoever owns a table or a sequence can put a view in its place, or a policy on it, that runs
    -- what he likes as its reader.
    (SELECT min(pg_catalog.pg_get_userbyid(o.role)::text)
        FROM (VALUES (c.relowner), (q.relowner)) AS o(role)
        WHERE o.role <> n.nspowner AND o.role <> (SELECT u.oid FROM pg_catalog.pg_roles u
            WHERE u.rolname = current_user)),
    -- Whether policies would hide rows from the reader.
    pg_catalog.row_security_active(c.oid)
FROM spread s
JOIN tables t ON t.oid = s.parent
JOIN pg_catalog.pg_class c ON c.oid = s.oid AND c.relkind = 'r'
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = s.attname
    AND NOT a.attisdropped
    AND a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)
LEFT JOIN pg_catalog.pg_class q ON q.oid = s.sequence
LEFT JOIN pg_catalog.pg_namespace qn ON qn.oid = q.relnamespace
LEFT JOIN pg_catalog.pg_sequence i ON i.seqrelid = q.oid
ORDER BY 1, 2, 3, 4
