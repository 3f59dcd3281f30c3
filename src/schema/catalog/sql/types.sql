SELECT pg_catalog.json_build_object(
    'oid', t.oid::bigint, 'name', t.typname,
    'kind', CASE WHEN t.typisdefined THEN t.typtype ELSE 'b' END,
    'owner', pg_catalog.pg_get_userbyid(t.typowner),
    'labels', (SELECT coalesce(pg_catalog.json_agg(enumlabel ORDER BY enumsortorder), '[]')
        FROM pg_catalog.pg_enum WHERE enumtypid = t.oid),
    'base', CASE WHEN t.typtype = 'd' THEN pg_catalog.format_type(t.typbasetype, t.typtypmod) END,
    'collation', CASE WHEN t.typtype = 'd' AND t.typcollation <> (SELECT typcollation
        FROM pg_catalog.pg_type WHERE oid = t.typbasetype)
        THEN (SELECT CASE WHEN pg_catalog.pg_collation_is_visible(l.oid)
                          THEN pg_catalog.quote_ident(l.collname)
                          ELSE pg_catalog.quote_ident(n.nspname) || '.'
                              || pg_catalog.quote_ident(l.collname) END
              FROM pg_catalog.pg_collation l
              JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace
              WHERE l.oid = t.typcollation) END,
    'not_null', t.typnotnull,
    -- From 17 on.
    'not_null_name', (SELECT conname FROM pg_catalog.pg_constraint
        WHERE contypid = t.oid AND contype = 'n'),
    'default', CASE WHEN t.typtype = 'd' THEN coalesce(pg_catalog.pg_get_expr(t.typdefaultbin, 0),
        pg_catalog.quote_literal(t.typdefault)) END,
    'attributes', (
        SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_object(
            'name', a.attname, 'type', pg_catalog.format_type(a.atttypid, a.atttypmod),
            'collation', CASE WHEN a.attcollation <> y.typcollation AND a.attcollation <> 0
                THEN (SELECT CASE WHEN pg_catalog.pg_collation_is_visible(l.oid)
                                  THEN pg_catalog.quote_ident(l.collname)
                                  ELSE pg_catalog.quote_ident(n.nspname) || '.'
                                      || pg_catalog.quote_ident(l.collname) END
                      FROM pg_catalog.pg_collation l
                      JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace
                      WHERE l.oid = a.attcollation) END,
            'number', a.attnum) ORDER BY a.attnum), '[]')
        FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type y ON y.oid = a.atttypid
        WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
    'range', (
        SELECT pg_catalog.json_build_object(
            'subtype', pg_catalog.format_type(r.rngsubtype, NULL),
            'operator_class', CASE WHEN NOT o.opcdefault THEN
                CASE WHEN pg_catalog.pg_opclass_is_visible(o.oid)
                     THEN pg_catalog.quote_ident(o.opcname)
                     ELSE (SELECT pg_catalog.quote_ident(nspname) FROM pg_catalog.pg_namespace
                         WHERE oid = o.opcnamespace) || '.'
                || pg_catalog.quote_ident(o.opcname) END END,
            'collation', CASE WHEN r.rngcollation <> y.typcollation AND r.rngcollation <> 0
                THEN (SELECT CASE WHEN pg_catalog.pg_collation_is_visible(l.oid)
                                  THEN pg_catalog.quote_ident(l.collname)
                                  ELSE pg_catalog.quote_ident(n.nspname) || '.'
                                      || pg_catalog.quote_ident(l.collname) END
                      FROM pg_catalog.pg_collation l
                      JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace
                      WHERE l.oid = r.rngcollation) END,
            'canonical', r.rngcanonical <> 0,
            'difference', CASE WHEN r.rngsubdiff <> 0
                THEN r.rngsubdiff::pg_catalog.regproc::pg_catalog.text END,
            'multirange', (SELECT typname FROM pg_catalog.pg_type
                WHERE oid::pg_catalog.text = pg_catalog.to_jsonb(r) ->> 'rngmultitypid'))
        FROM pg_catalog.pg_range r JOIN pg_catalog.pg_opclass o ON o.oid = r.rngsubopc
        JOIN pg_catalog.pg_type y ON y.oid = r.rngsubtype
        WHERE r.rngtypid = t.oid))
FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_type WHERE oid = m.oid OFFSET 0) t
WHERE m.class = 'pg_catalog.pg_type'::pg_catalog.regclass
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend
        WHERE classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND objid = t.oid
        AND deptype = 'i')
ORDER BY t.typname
