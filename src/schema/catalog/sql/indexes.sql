SELECT pg_catalog.json_build_object(
    'oid', c.oid::bigint, 'name', c.relname, 'relation', i.indrelid::bigint,
    'unique', i.indisunique, 'valid', i.indisvalid AND i.indisready AND i.indislive,
    'definition', (
        -- Only what follows the names: the names are given with their schema.
        SELECT CASE WHEN pg_catalog.starts_with(whole, head)
            THEN pg_catalog.substr(whole, pg_catalog.length(head) + 1) END
        FROM (SELECT pg_catalog.pg_get_indexdef(c.oid) AS whole,
                     pg_catalog.format('CREATE %sINDEX %I ON %s%I.%I ',
                            CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END,
                            c.relname, CASE c.relkind WHEN 'I' THEN 'ONLY ' ELSE '' END, n.nspname,
                            t.relname) AS head) AS deparsed),
    'constraint', (
        SELECT d.refobjid::bigint FROM pg_catalog.pg_depend d
        WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid
            AND d.deptype = 'i'
            AND d.refclassid = 'pg_catalog.pg_constraint'::pg_catalog.regclass),
    'parent', (SELECT h.inhparent::bigint FROM pg_catalog.pg_inherits h WHERE h.inhrelid = c.oid),
    'options', coalesce(c.reloptions, '{}'),
    'tablespace', (SELECT spcname FROM pg_catalog.pg_tablespace WHERE oid = c.reltablespace),
    'clustered', i.indisclustered, 'replica_identity', i.indisreplident,
    'evaluates', i.indexprs IS NOT NULL OR i.indpred IS NOT NULL,
    'statistics', (
        SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_object('column', a.attnum,
            'target', a.attstattarget) ORDER BY a.attnum), '[]')
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
            AND coalesce(a.attstattarget::int, -1) >= 0))
FROM relation r, LATERAL (SELECT * FROM pg_catalog.pg_index WHERE indrelid = r.oid OFFSET 0) i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_class t ON t.oid = i.indrelid
JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
ORDER BY c.relname
