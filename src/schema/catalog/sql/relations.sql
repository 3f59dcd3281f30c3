SELECT pg_catalog.json_build_object(
    'oid', c.oid::bigint, 'name', c.relname, 'kind', c.relkind, 'persistence', c.relpersistence,
    'owner', pg_catalog.pg_get_userbyid(c.relowner),
    'access_method', (SELECT amname FROM pg_catalog.pg_am WHERE oid = c.relam),
    'tablespace', (SELECT spcname FROM pg_catalog.pg_tablespace WHERE oid = c.reltablespace),
    'options', coalesce(c.reloptions, '{}'),
    'toast_options', coalesce((SELECT reloptions FROM pg_catalog.pg_class
        WHERE oid = c.reltoastrelid), '{}'),
    'replica_identity', c.relreplident,
    'row_security', c.relrowsecurity, 'force_row_security', c.relforcerowsecurity,
    'of_type', CASE WHEN c.reloftype <> 0 THEN pg_catalog.format_type(c.reloftype, NULL) END,
    'parents', CASE WHEN c.relispartition THEN '[]' ELSE coalesce((
        SELECT pg_catalog.json_agg(h.inhparent::bigint ORDER BY h.inhseqno)
        FROM pg_catalog.pg_inherits h WHERE h.inhrelid = c.oid), '[]') END,
    'heirs_outside', c.relkind <> 'p' AND EXISTS (
        SELECT FROM pg_catalog.pg_inherits h JOIN pg_catalog.pg_class x ON x.oid = h.inhrelid
        WHERE h.inhparent = c.oid AND x.relnamespace <> $1),
    'partition_key', CASE WHEN c.relkind = 'p' THEN pg_catalog.pg_get_partkeydef(c.oid) END,
    -- Enums and rows are hashed by OIDs, and so are arrays and ranges of them.
    'hashes_oids', EXISTS (
        SELECT FROM pg_catalog.pg_partitioned_table k,
            LATERAL ROWS FROM (pg_catalog.unnest(k.partattrs), pg_catalog.unnest(k.partclass))
                AS u(number, class)
        JOIN pg_catalog.pg_opclass o ON o.oid = u.class
        LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = u.number
            AND u.number > 0
        WHERE k.partrelid = c.oid AND k.partstrat = 'h'
            AND (o.opcintype IN ('pg_catalog.anyenum'::pg_catalog.regtype,
                'pg_catalog.record'::pg_catalog.regtype)
                OR o.opcintype::pg_catalog.regtype::text IN ('anyarray', 'anyrange',
                    'anymultirange')
                    AND coalesce(a.atttypid::bigint, 16384) >= 16384)),
    'partition', CASE WHEN c.relispartition THEN (
        SELECT pg_catalog.json_build_object('parent', h.inhparent::bigint,
            'bound', pg_catalog.pg_get_expr(c.relpartbound, c.oid),
            'detaching', coalesce((pg_catalog.to_jsonb(h) ->> 'inhdetachpending')::boolean, false))
        FROM pg_catalog.pg_inherits h WHERE h.inhrelid = c.oid) END,
    'definition', CASE WHEN c.relkind IN ('v', 'm') THEN pg_catalog.pg_get_viewdef(c.oid) END,
    'populated', c.relispopulated,
    'columns', (
        SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_object(
            'number', a.attnum, 'name', a.attname,
            'type', pg_catalog.format_type(a.atttypid, a.atttypmod),
            'type_name', pg_catalog.format_type(a.atttypid, NULL),
            'collation', CASE WHEN a.attcollation <> t.typcollation AND a.attcollation <> 0
                THEN (SELECT CASE WHEN pg_catalog.pg_collation_is_visible(l.oid)
                                  THEN pg_catalog.quote_ident(l.collname)
                                  ELSE pg_catalog.quote_ident(n.nspname) || '.'
                                      || pg_catalog.quote_ident(l.collname) END
                      FROM pg_catalog.pg_collation l
                      JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace
                      WHERE l.oid = a.attcollation) END,
            'is_local', a.attislocal, 'not_null', a.attnotnull,
            'not_null_name', k.conname, 'not_null_inherited', coalesce(k.coninhcount > 0, false),
            'not_null_is_local', coalesce(k.conislocal, false),
            'not_null_validated', coalesce(k.convalidated, true),
            'not_null_no_inherit', coalesce(k.connoinherit, false),
            'not_null_comment', pg_catalog.obj_description(k.oid, 'pg_constraint'),
            -- From 17 on a partition has the identity of its parent.
            'identity', CASE WHEN c.relispartition
                AND pg_catalog.current_setting('server_version_num')::int >= 170000 THEN ''
                ELSE a.attidentity END,
            'generated', a.attgenerated,
            'default', pg_catalog.pg_get_expr(d.adbin, d.adrelid), 'default_oid', d.oid::bigint,
            'statistics', nullif(coalesce(a.attstattarget::int, -1), -1),
            'storage', CASE WHEN a.attstorage <> t.typstorage THEN a.attstorage END,
            'compression', nullif(pg_catalog.to_jsonb(a) ->> 'attcompression', ''),
            'options', coalesce(a.attoptions, '{}')) ORDER BY a.attnum), '[]')
        FROM pg_catalog.pg_attribute a
        JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
        LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        LEFT JOIN pg_catalog.pg_constraint k ON k.conrelid = a.attrelid AND k.contype = 'n'
            AND k.conkey = ARRAY[a.attnum]
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))
FROM relation r, LATERAL (SELECT * FROM pg_catalog.pg_class WHERE oid = r.oid OFFSET 0) c
WHERE c.relkind IN ('r', 'v', 'm', 'p', 'f')
ORDER BY c.relname
