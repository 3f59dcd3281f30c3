SELECT json_build_object('name', c.relname, 'table', i.indrelid::int8,
    'columns', (SELECT json_agg(k.number ORDER BY k.place)
        FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
        WHERE k.place <= i.indnkeyatts),
    'expressions',
    coalesce((SELECT json_agg(pg_get_indexdef(i.indexrelid, k.place::int4, true) ORDER BY k.place)
        FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
        WHERE k.number = 0 AND k.place <= i.indnkeyatts), '[]'),
    'constraint', EXISTS (SELECT FROM pg_constraint k
        WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x')),
    'fits_primary', i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL
        AND i.indexprs IS NULL
        AND c.relam = (SELECT m.oid FROM pg_am m WHERE m.amname = 'btree')
        AND NOT 0 < ANY (i.indoption::int2[]) AND t.relkind = 'r',
    'primary', i.indisprimary, 'exclusion', i.indisexclusion, 'partial', i.indpred IS NOT NULL)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
WHERE (i.indisunique OR i.indisexclusion) AND t.relkind IN ('r', 'p') AND NOT t.relispartition
ORDER BY i.indrelid, NOT i.indisprimary, c.relname
