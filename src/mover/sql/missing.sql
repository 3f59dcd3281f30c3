-- The numbers of what is not there of $2 (names) with the kinds $1, in pg_identify_object's words and spelling.
SELECT w.n
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS w(kind, name, n)
WHERE NOT CASE
    WHEN w.kind IN ('table', 'view', 'materialized view', 'foreign table', 'sequence', 'index', 'composite type')
        THEN to_regclass(w.name) IS NOT NULL
    WHEN w.kind = 'type' THEN to_regtype(w.name) IS NOT NULL
    WHEN w.kind = 'collation' THEN to_regcollation(w.name) IS NOT NULL
    -- Not to_regprocedure: that one fails where a type of an argument is missing.
    WHEN w.kind IN ('function', 'procedure', 'aggregate') THEN EXISTS (
        SELECT FROM pg_proc p JOIN pg_namespace s ON s.oid = p.pronamespace
        WHERE quote_ident(s.nspname) || '.' || quote_ident(p.proname) = split_part(w.name, '(', 1)
            AND (pg_identify_object('pg_proc'::regclass, p.oid, 0)).identity = w.name)
    WHEN w.kind = 'operator' THEN EXISTS (
        SELECT FROM pg_operator o JOIN pg_namespace s ON s.oid = o.oprnamespace
        WHERE quote_ident(s.nspname) || '.' || o.oprname = split_part(w.name, '(', 1)
            AND (pg_identify_object('pg_operator'::regclass, o.oid, 0)).identity = w.name)
    WHEN w.kind = 'operator class' THEN EXISTS (
        SELECT FROM pg_opclass c JOIN pg_namespace s ON s.oid = c.opcnamespace JOIN pg_am m ON m.oid = c.opcmethod
        WHERE quote_ident(s.nspname) || '.' || quote_ident(c.opcname) || ' USING ' || quote_ident(m.amname) = w.name)
    WHEN w.kind = 'operator family' THEN EXISTS (
        SELECT FROM pg_opfamily f JOIN pg_namespace s ON s.oid = f.opfnamespace JOIN pg_am m ON m.oid = f.opfmethod
        WHERE quote_ident(s.nspname) || '.' || quote_ident(f.opfname) || ' USING ' || quote_ident(m.amname) = w.name)
    WHEN w.kind = 'text search configuration' THEN EXISTS (
        SELECT FROM pg_ts_config c JOIN pg_namespace s ON s.oid = c.cfgnamespace
        WHERE quote_ident(s.nspname) || '.' || quote_ident(c.cfgname) = w.name)
    WHEN w.kind = 'text search dictionary' THEN EXISTS (
        SELECT FROM pg_ts_dict d JOIN pg_namespace s ON s.oid = d.dictnamespace
        WHERE quote_ident(s.nspname) || '.' || quote_ident(d.dictname) = w.name)
    WHEN w.kind = 'language' THEN EXISTS (SELECT FROM pg_language WHERE quote_ident(lanname) = w.name OR lanname = w.name)
    WHEN w.kind = 'access method' THEN EXISTS (SELECT FROM pg_am WHERE quote_ident(amname) = w.name OR amname = w.name)
    WHEN w.kind = 'role' THEN EXISTS (SELECT FROM pg_roles WHERE rolname = w.name)
    -- Anything else speaks up when it is used, in the transaction that makes the schema.
    ELSE true
END
ORDER BY w.n
