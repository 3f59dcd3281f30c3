SELECT json_build_object('name', p.pubname, 'tables', json_agg(DISTINCT c.oid::int8))
FROM pg_publication p JOIN pg_publication_tables t ON t.pubname = p.pubname
JOIN pg_namespace n ON n.nspname = t.schemaname JOIN pg_class c ON c.relnamespace = n.oid
    AND c.relname = t.tablename
GROUP BY p.pubname ORDER BY p.pubname
