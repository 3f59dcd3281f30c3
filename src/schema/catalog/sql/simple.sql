-- Collations and text search objects. Names of columns that not every version has are asked of the row as JSON.
SELECT pg_catalog.json_build_object('oid', x.oid::bigint, 'kind', x.kind, 'name', x.name, 'owner', pg_catalog.pg_get_userbyid(x.owner),
    'definition', x.definition, 'mappings', x.mappings)
FROM (
    SELECT c.oid, 'pg_collation' AS kind, c.collname AS name, c.collowner AS owner, '(' || pg_catalog.concat_ws(', ',
        'PROVIDER = ' || CASE c.collprovider WHEN 'i' THEN 'icu' WHEN 'b' THEN 'builtin' ELSE 'libc' END,
        CASE WHEN c.collprovider = 'c' THEN pg_catalog.format('LC_COLLATE = %L, LC_CTYPE = %L', c.collcollate, c.collctype)
            ELSE pg_catalog.format('LOCALE = %L', coalesce(j.its ->> 'colllocale', j.its ->> 'colliculocale', c.collcollate)) END,
        'RULES = ' || pg_catalog.quote_literal(nullif(j.its ->> 'collicurules', '')), CASE WHEN NOT c.collisdeterministic THEN 'DETERMINISTIC = false' END)
        || ')' AS definition, ARRAY[]::text[] AS mappings
    FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_collation WHERE oid = m.oid OFFSET 0) c, LATERAL (SELECT pg_catalog.to_jsonb(c) AS its) j
    WHERE m.class = 'pg_catalog.pg_collation'::pg_catalog.regclass
    UNION ALL
    SELECT d.oid, 'pg_ts_dict', d.dictname, d.dictowner, pg_catalog.format('(TEMPLATE = %I.%I%s)', n.nspname, t.tmplname, ', ' || d.dictinitoption),
        ARRAY[]::text[]
    FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_ts_dict WHERE oid = m.oid OFFSET 0) d
    JOIN pg_catalog.pg_ts_template t ON t.oid = d.dicttemplate JOIN pg_catalog.pg_namespace n ON n.oid = t.tmplnamespace
    WHERE m.class = 'pg_catalog.pg_ts_dict'::pg_catalog.regclass
    UNION ALL
    SELECT c.oid, 'pg_ts_config', c.cfgname, c.cfgowner, pg_catalog.format('(PARSER = %I.%I)', n.nspname, p.prsname), ARRAY(
        SELECT pg_catalog.format('FOR %I WITH %s', k.alias, pg_catalog.string_agg(
            CASE WHEN pg_catalog.pg_ts_dict_is_visible(d.oid) THEN pg_catalog.quote_ident(d.dictname)
                 ELSE pg_catalog.format('%I.%I', s.nspname, d.dictname) END, ', ' ORDER BY g.mapseqno))
        FROM pg_catalog.pg_ts_config_map g JOIN pg_catalog.pg_ts_dict d ON d.oid = g.mapdict JOIN pg_catalog.pg_namespace s ON s.oid = d.dictnamespace
        JOIN LATERAL pg_catalog.ts_token_type(c.cfgparser) k ON k.tokid = g.maptokentype
        WHERE g.mapcfg = c.oid GROUP BY k.tokid, k.alias ORDER BY k.tokid)
    FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_ts_config WHERE oid = m.oid OFFSET 0) c
    JOIN pg_catalog.pg_ts_parser p ON p.oid = c.cfgparser JOIN pg_catalog.pg_namespace n ON n.oid = p.prsnamespace
    WHERE m.class = 'pg_catalog.pg_ts_config'::pg_catalog.regclass
) x
ORDER BY x.kind, x.name
