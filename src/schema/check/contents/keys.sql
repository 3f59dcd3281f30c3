-- The columns that the config names as keys, in these schemas. $1: the schemas; $2: the number of
-- each; $3: the tables; $4: the column of each. A table or column that is not there has a row, too.
-- For a partitioned table each partition is listed.
SELECT DISTINCT w.shard, w.schema, CASE WHEN a.attnum IS NULL THEN w.relname
    ELSE c.relname END::text, w.attname, t.oid IS NOT NULL, a.attnum IS NOT NULL,
    pg_catalog.format_type(a.atttypid, a.atttypmod), b.typcategory::text, b.oid = 'uuid'::regtype,
    -- Whoever owns a table can put a view in its place, or a policy on it, that runs what he likes
    -- as its reader.
    CASE WHEN c.relowner <> n.nspowner AND c.relowner <> (SELECT u.oid FROM pg_catalog.pg_roles u
        WHERE u.rolname = current_user)
        THEN pg_catalog.pg_get_userbyid(c.relowner)::text END,
    -- Whether policies would hide rows from the reader.
    coalesce(pg_catalog.row_security_active(c.oid), false)
FROM (
    SELECT s.shard, s.schema, k.relname::text, k.attname
    FROM unnest($2::int4[], $1::text[]) AS s(shard, schema),
        unnest($3::text[], $4::text[]) AS k(relname, attname)
) w
LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
LEFT JOIN pg_catalog.pg_class t ON t.relnamespace = n.oid AND t.relname = w.relname
    AND t.relkind IN ('r', 'p')
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attname = w.attname AND a.attnum > 0
    AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_type d ON d.oid = a.atttypid
-- A domain is read as the type that it is of.
LEFT JOIN pg_catalog.pg_type b ON b.oid = CASE WHEN d.typtype = 'd' THEN d.typbasetype
    ELSE d.oid END
LEFT JOIN LATERAL (
    SELECT t.oid WHERE t.relkind = 'r'
    UNION ALL
    SELECT p.relid FROM pg_catalog.pg_partition_tree(t.oid) p WHERE t.relkind = 'p' AND p.isleaf
) l ON true
LEFT JOIN pg_catalog.pg_class c ON c.oid = l.oid AND c.relkind = 'r'
WHERE t.relkind IS DISTINCT FROM 'p' OR c.oid IS NOT NULL OR a.attnum IS NULL
ORDER BY 1, 2, 3, 4
