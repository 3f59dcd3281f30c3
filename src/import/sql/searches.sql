-- Indexes for full-text, similarity and nearest-neighbour search.
SELECT json_build_object('name', c.relname, 'table', i.indrelid::int8, 'class', min(o.opcname))
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
    AND NOT t.relispartition
CROSS JOIN LATERAL unnest(i.indclass::oid[]) AS used JOIN pg_opclass o ON o.oid = used
WHERE o.opcname ~ '^(tsvector_ops|tsquery_ops|gin_trgm_ops|gist_trgm_ops|gin_bigm_ops|'
    'vector_.*_ops|halfvec_.*_ops)$'
GROUP BY c.relname, i.indrelid ORDER BY i.indrelid, c.relname
