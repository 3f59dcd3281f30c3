SELECT json_build_object('name', c.relname, 'table', i.indrelid::int8,
    'columns', (SELECT json_agg(k.number ORDER BY k.place) FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
        WHERE k.place <= i.indnkeyatts),
    'primary', i.indisprimary, 'exclusion', i.indisexclusion, 'partial', i.indpred IS NOT NULL)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
WHERE (i.indisunique OR i.indisexclusion) AND t.relkind IN ('r', 'p') AND NOT t.relispartition
ORDER BY i.indrelid, NOT i.indisprimary, c.relname
