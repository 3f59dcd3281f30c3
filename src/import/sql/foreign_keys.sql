SELECT json_build_object('name', k.conname, 'table', k.conrelid::int8, 'columns', k.conkey,
    'target', k.confrelid::int8, 'target_columns', k.confkey,
    'deferrable', k.condeferrable)
FROM pg_constraint k WHERE k.contype = 'f' AND k.conparentid = 0 ORDER BY k.conrelid, k.conname
