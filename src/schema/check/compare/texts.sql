-- The values of the properties $2, $3 of the shards that have them, unchanged.
SELECT DISTINCT shard_id, object, property, value
FROM said
JOIN ROWS FROM (pg_catalog.unnest($2::pg_catalog.text[]), pg_catalog.unnest($3::pg_catalog.text[]))
    AS w (object, property)
    USING (object, property)
