-- The numbers of those of $2 (names) with the kinds $1 that do not exist, in pg_identify_object's
-- words and spelling.
SELECT w.n
FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[]))
    WITH ORDINALITY AS w(kind, name, n)
WHERE NOT CASE
    WHEN w.kind IN ('table', 'view', 'materialized view', 'foreign table',
        'sequence', 'index', 'composite type')
        THEN pg_catalog.to_regclass(w.name) IS NOT NULL
    WHEN w.kind = 'type' THEN pg_catalog.to_regtype(w.name) IS NOT NULL
    WHEN w.kind = 'collation' THEN pg_catalog.to_regcollation(w.name) IS NOT NULL
    -- to_regprocedure would fail where a type of an argument is missing.
    WHEN w.kind IN ('function', 'procedure', 'aggregate') THEN EXISTS (
        SELECT FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace s ON s.oid = p.pronamespace
        WHERE pg_catalog.quote_ident(s.nspname)
            || '.' || pg_catalog.quote_ident(p.proname) = pg_catalog.split_part(w.name, '(', 1)
            AND (pg_catalog.pg_identify_object('pg_catalog.pg_proc'::pg_catalog.regclass, p.oid,
                0)).identity = w.name)
    WHEN w.kind = 'operator' THEN EXISTS (
        SELECT FROM pg_catalog.pg_operator o
        JOIN pg_catalog.pg_namespace s ON s.oid = o.oprnamespace
        WHERE pg_catalog.quote_ident(s.nspname)
            || '.' || o.oprname = pg_catalog.split_part(w.name, '(', 1)
            AND (pg_catalog.pg_identify_object('pg_catalog.pg_operator'::pg_catalog.regclass, o.oid,
                0)).identity = w.name)
    WHEN w.kind = 'operator class' THEN EXISTS (
        SELECT FROM pg_catalog.pg_opclass c JOIN pg_catalog.pg_namespace s ON s.oid = c.opcnamespace
        JOIN pg_catalog.pg_am m ON m.oid = c.opcmethod
        WHERE pg_catalog.quote_ident(s.nspname) || '.' || pg_catalog.quote_ident(c.opcname)
            || ' USING ' || pg_catalog.quote_ident(m.amname) = w.name)
    WHEN w.kind = 'operator family' THEN EXISTS (
        SELECT FROM pg_catalog.pg_opfamily f
        JOIN pg_catalog.pg_namespace s ON s.oid = f.opfnamespace
        JOIN pg_catalog.pg_am m ON m.oid = f.opfmethod
        WHERE pg_catalog.quote_ident(s.nspname) || '.' || pg_catalog.quote_ident(f.opfname)
            || ' USING ' || pg_catalog.quote_ident(m.amname) = w.name)
    WHEN w.kind = 'text search configuration' THEN EXISTS (
        SELECT FROM pg_catalog.pg_ts_config c
        JOIN pg_catalog.pg_namespace s ON s.oid = c.cfgnamespace
        WHERE pg_catalog.quote_ident(s.nspname)
            || '.' || pg_catalog.quote_ident(c.cfgname) = w.name)
    WHEN w.kind = 'text search dictionary' THEN EXISTS (
        SELECT FROM pg_catalog.pg_ts_dict d
        JOIN pg_catalog.pg_namespace s ON s.oid = d.dictnamespace
        WHERE pg_catalog.quote_ident(s.nspname)
            || '.' || pg_catalog.quote_ident(d.dictname) = w.name)
    WHEN w.kind = 'language' THEN EXISTS (SELECT FROM pg_catalog.pg_language
        WHERE pg_catalog.quote_ident(lanname) = w.name OR lanname = w.name)
    WHEN w.kind = 'access method' THEN EXISTS (SELECT FROM pg_catalog.pg_am
        WHERE pg_catalog.quote_ident(amname) = w.name OR amname = w.name)
    WHEN w.kind = 'role' THEN EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = w.name)
    -- Anything else that is missing fails when it is used, in the transaction that creates the
    -- schema.
    ELSE true
END
ORDER BY w.n
