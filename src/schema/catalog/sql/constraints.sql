SELECT pg_catalog.json_build_object(
    'oid', k.oid::bigint, 'name', k.conname, 'kind', k.contype,
    'relation', k.conrelid::bigint, 'type', k.contypid::bigint,
    'definition', pg_catalog.pg_get_constraintdef(k.oid),
    'validated', k.convalidated, 'index', k.conindid::bigint, 'refers_to', k.confrelid::bigint,
    'refers_inside', k.confrelid = 0 OR EXISTS (SELECT FROM relation WHERE oid = k.confrelid))
FROM constrained c, LATERAL (SELECT * FROM pg_catalog.pg_constraint WHERE oid = c.oid OFFSET 0) k
WHERE (k.contype IN ('p', 'u', 'x', 'c', 'f') OR (k.contypid <> 0 AND k.contype <> 'n'))
    -- A partition's constraints that come from its parent are created with the parent's; so are
    -- those that a foreign key to a partitioned table has for each partition.
    AND NOT (k.contype = 'f' AND k.conparentid <> 0)
    AND NOT (k.contype = 'c' AND k.coninhcount > 0 AND NOT k.conislocal)
ORDER BY k.conrelid, k.contypid, k.conname
