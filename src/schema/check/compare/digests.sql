-- For every property the digests of its values, and the shards with each. The shard's number in a
-- value is replaced, so that it is the same in all. That alone would make `numeric(10,2)` look
-- different in shard 10, and `DEFAULT 1` in shard 1 like `DEFAULT 2` in shard 2, so where it was
-- replaced, the digests of the values as they are follow, shard by shard.
SELECT object, property, digest, pg_catalog.array_agg(shard_id ORDER BY shard_id),
    pg_catalog.array_agg(plain ORDER BY shard_id) FILTER (WHERE plain <> digest)
FROM (
    SELECT shard_id, object, property, plain,
        CASE WHEN pg_catalog.strpos(value, shard_id::pg_catalog.text) = 0 THEN plain
        ELSE pg_catalog.md5(pg_catalog.regexp_replace(value, '(^|[^0-9])' || shard_id
            || '(?![0-9])', E'\\1\x01', 'g')) END AS digest
    -- OFFSET 0: each value is hashed once.
    FROM (SELECT shard_id, object, property, value, pg_catalog.md5(value) AS plain
        FROM said OFFSET 0) s) d
GROUP BY object, property, digest, plain <> digest
