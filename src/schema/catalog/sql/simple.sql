-- Collations, text search objects, operators, conversions, and casts from or to the schema's types.
-- Columns that not every version has are read from the row as JSON.
SELECT pg_catalog.json_build_object('oid', x.oid::bigint, 'kind', x.kind, 'name', x.name,
    'owner', pg_catalog.pg_get_userbyid(x.owner),
    'definition', x.definition, 'mappings', x.mappings, 'signature', x.signature,
    'is_default', x.is_default, 'commutator', x.commutator,
    'negator', x.negator)
FROM (
    SELECT c.oid, 'pg_collation' AS kind, c.collname AS name, c.collowner AS owner,
        '(' || pg_catalog.concat_ws(', ',
        'PROVIDER = ' || CASE c.collprovider WHEN 'i' THEN 'icu' WHEN 'b' THEN 'builtin'
            ELSE 'libc' END,
        CASE WHEN c.collprovider = 'c'
            THEN pg_catalog.format('LC_COLLATE = %L, LC_CTYPE = %L', c.collcollate, c.collctype)
            ELSE pg_catalog.format('LOCALE = %L',
                coalesce(j.its ->> 'colllocale', j.its ->> 'colliculocale', c.collcollate)) END,
        'RULES = ' || pg_catalog.quote_literal(nullif(j.its ->> 'collicurules', '')),
        CASE WHEN NOT c.collisdeterministic THEN 'DETERMINISTIC = false' END)
        || ')' AS definition, ARRAY[]::text[] AS mappings,
        '' AS signature, false AS is_default, NULL::text AS commutator, NULL::text AS negator
    FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_collation WHERE oid = m.oid OFFSET 0) c,
        LATERAL (SELECT pg_catalog.to_jsonb(c) AS its) j
    WHERE m.class = 'pg_catalog.pg_collation'::pg_catalog.regclass
    UNION ALL
    SELECT d.oid, 'pg_ts_dict', d.dictname, d.dictowner,
        pg_catalog.format('(TEMPLATE = %I.%I%s)', n.nspname, t.tmplname, ', ' || d.dictinitoption),
        ARRAY[]::text[], '', false, NULL, NULL
    FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_ts_dict WHERE oid = m.oid OFFSET 0) d
    JOIN pg_catalog.pg_ts_template t ON t.oid = d.dicttemplate
    JOIN pg_catalog.pg_namespace n ON n.oid = t.tmplnamespace
    WHERE m.class = 'pg_catalog.pg_ts_dict'::pg_catalog.regclass
    UNION ALL
    SELECT c.oid, 'pg_ts_config', c.cfgname, c.cfgowner,
        pg_catalog.format('(PARSER = %I.%I)', n.nspname, p.prsname), ARRAY(
        SELECT pg_catalog.format('FOR %I WITH %s', k.alias, pg_catalog.string_agg(
            CASE WHEN pg_catalog.pg_ts_dict_is_visible(d.oid)
                 THEN pg_catalog.quote_ident(d.dictname)
                 ELSE pg_catalog.format('%I.%I', s.nspname, d.dictname) END,
             ', ' ORDER BY g.mapseqno))
        FROM pg_catalog.pg_ts_config_map g JOIN pg_catalog.pg_ts_dict d ON d.oid = g.mapdict
        JOIN pg_catalog.pg_namespace s ON s.oid = d.dictnamespace
        JOIN LATERAL pg_catalog.ts_token_type(c.cfgparser) k ON k.tokid = g.maptokentype
        WHERE g.mapcfg = c.oid GROUP BY k.tokid, k.alias ORDER BY k.tokid), '', false, NULL, NULL
    FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_ts_config WHERE oid = m.oid OFFSET 0) c
    JOIN pg_catalog.pg_ts_parser p ON p.oid = c.cfgparser
    JOIN pg_catalog.pg_namespace n ON n.oid = p.prsnamespace
    WHERE m.class = 'pg_catalog.pg_ts_config'::pg_catalog.regclass
    UNION ALL
    SELECT o.oid, 'pg_operator', o.oprname, o.oprowner, '(' || pg_catalog.concat_ws(', ',
        'FUNCTION = ' || CASE WHEN f.pronamespace = $1 THEN ''
            ELSE pg_catalog.quote_ident(n.nspname) || '.' END || pg_catalog.quote_ident(f.proname),
        'LEFTARG = ' || pg_catalog.format_type(nullif(o.oprleft, 0), NULL),
        'RIGHTARG = ' || pg_catalog.format_type(o.oprright, NULL),
        'RESTRICT = ' || nullif(o.oprrest, 0)::pg_catalog.regproc::text,
        'JOIN = ' || nullif(o.oprjoin, 0)::pg_catalog.regproc::text,
        CASE WHEN o.oprcanhash THEN 'HASHES' END, CASE WHEN o.oprcanmerge THEN 'MERGES' END) || ')',
        ARRAY[]::text[],
        pg_catalog.format('(%s, %s)',
            CASE WHEN o.oprleft = 0 THEN 'NONE' ELSE pg_catalog.format_type(o.oprleft, NULL) END,
            pg_catalog.format_type(o.oprright, NULL)),
        false, (SELECT c.oprname FROM pg_catalog.pg_operator c
            WHERE c.oid = o.oprcom AND c.oprnamespace = $1),
        (SELECT c.oprname FROM pg_catalog.pg_operator c
            WHERE c.oid = o.oprnegate AND c.oprnamespace = $1)
    FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_operator WHERE oid = m.oid OFFSET 0) o
    JOIN pg_catalog.pg_proc f ON f.oid = o.oprcode
    JOIN pg_catalog.pg_namespace n ON n.oid = f.pronamespace
    WHERE m.class = 'pg_catalog.pg_operator'::pg_catalog.regclass
    UNION ALL
    SELECT c.oid, 'pg_conversion', c.conname, c.conowner,
        pg_catalog.format('FOR %L TO %L FROM %s', pg_catalog.pg_encoding_to_char(c.conforencoding),
            pg_catalog.pg_encoding_to_char(c.contoencoding), c.conproc),
        ARRAY[]::text[], '', c.condefault, NULL, NULL
    FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_conversion WHERE oid = m.oid OFFSET 0) c
    WHERE m.class = 'pg_catalog.pg_conversion'::pg_catalog.regclass
    UNION ALL
    SELECT c.oid, 'pg_cast', '', NULL,
        pg_catalog.concat_ws(' ',
            CASE c.castmethod WHEN 'i' THEN 'WITH INOUT'
                ELSE 'WITH FUNCTION ' || c.castfunc::pg_catalog.regprocedure END,
            CASE c.castcontext WHEN 'a' THEN 'AS ASSIGNMENT' WHEN 'i' THEN 'AS IMPLICIT' END),
        ARRAY[]::text[],
        pg_catalog.format('(%s AS %s)', pg_catalog.format_type(c.castsource, NULL),
            pg_catalog.format_type(c.casttarget, NULL)), false, NULL, NULL
    FROM casted m, LATERAL (SELECT * FROM pg_catalog.pg_cast WHERE oid = m.oid OFFSET 0) c
) x
ORDER BY x.kind, x.name, x.signature
