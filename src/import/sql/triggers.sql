SELECT json_build_object('name', t.tgname, 'table', t.tgrelid::int8, 'function', n.nspname || '.'
    || p.proname, 'body', p.prosrc)
FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE NOT t.tgisinternal AND t.tgparentid = 0 AND n.nspname NOT IN ('pg_catalog', 'pgshard_import')
ORDER BY t.tgrelid, t.tgname
