-- What adding the key to some tables depends on, and what is there already.
SELECT json_build_object(
    'oid', c.oid::int8, 'identity', c.relreplident,
    'identity_index', (SELECT x.relname FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
        WHERE i.indrelid = c.oid AND i.indisreplident),
    'identity_columns', coalesce((SELECT json_agg(a.attname ORDER BY a.attnum)
        FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid
            AND a.attnum = ANY (i.indkey::int2[])
        WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'i' THEN i.indisreplident
            WHEN 'd' THEN i.indisprimary ELSE false END), '[]'),
    'primary', coalesce((SELECT json_agg(a.attname ORDER BY k.place)
        FROM pg_index i CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY k (number, place)
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
        WHERE i.indrelid = c.oid AND i.indisprimary AND k.place <= i.indnkeyatts), '[]'),
    'leading', coalesce((SELECT json_agg(DISTINCT a.attname)
        FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
        WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL), '[]'),
    'columns', coalesce((SELECT json_agg(json_build_object('name', a.attname,
            'type', format_type(b.base, CASE WHEN a.atttypid = b.base THEN a.atttypmod END),
            'collation', CASE WHEN a.attcollation <> t.typcollation AND a.attcollation <> 0
                THEN (SELECT format('%I.%I', n.nspname, l.collname) FROM pg_collation l
                    JOIN pg_namespace n ON n.oid = l.collnamespace
                    WHERE l.oid = a.attcollation) END,
            'builtin', t.typnamespace = 'pg_catalog'::regnamespace,
            'not_null', a.attnotnull, 'generated', a.attgenerated <> '') ORDER BY a.attnum)
        FROM pg_attribute a CROSS JOIN LATERAL (
            WITH RECURSIVE made AS (
                SELECT y.oid, y.typtype, y.typbasetype FROM pg_type y WHERE y.oid = a.atttypid
                UNION ALL SELECT y.oid, y.typtype, y.typbasetype
                FROM made m JOIN pg_type y ON y.oid = m.typbasetype WHERE m.typtype = 'd'
            ) SELECT max(oid) FILTER (WHERE typtype <> 'd') AS base FROM made
        ) b JOIN pg_type t ON t.oid = b.base
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), '[]'),
    'inherits', c.relkind <> 'p' AND EXISTS (SELECT FROM pg_inherits i
        WHERE c.oid IN (i.inhrelid, i.inhparent)),
    'triggers', coalesce((SELECT json_agg(t.tgname ORDER BY t.tgname)
        FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
        JOIN pg_namespace n ON n.oid = p.pronamespace AND n.nspname = 'pgshard_import'
        WHERE t.tgrelid = c.oid AND t.tgenabled = 'A'), '[]'),
    'other_triggers', coalesce((SELECT json_agg(t.tgname ORDER BY t.tgname)
        FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
        JOIN pg_namespace n ON n.oid = p.pronamespace AND n.nspname <> 'pgshard_import'
        WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A')
            AND t.tgtype & 16 <> 0), '[]'),
    'checked', (SELECT k.convalidated FROM pg_constraint k
        WHERE k.conrelid = c.oid AND k.conname = 'pgshard_key_not_null'),
    'index_valid', (SELECT i.indisvalid AND i.indisready FROM pg_index i
        JOIN pg_class x ON x.oid = i.indexrelid
        WHERE i.indrelid = c.oid AND x.relname = 'pgshard_key_' || c.oid))
FROM pg_class c WHERE c.oid = ANY ('{oids}'::oid[]) ORDER BY c.oid
