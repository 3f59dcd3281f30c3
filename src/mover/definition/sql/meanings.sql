-- What decides what the stored values of those of $2 (names) with the kinds $1 mean that are types,
-- and of the types that they are made of: the numbers, the types, and their parts. Two hosts whose
-- parts differ give other meanings to the same text. Checks of domains are left out: they refuse
-- values, and change none.
WITH RECURSIVE asked (n, type) AS (
    SELECT w.n, pg_catalog.to_regtype(w.name)::pg_catalog.oid
    FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]),
        pg_catalog.unnest($2::pg_catalog.text[])) WITH ORDINALITY AS w(kind, name, n)
    WHERE w.kind IN ('type', 'composite type')
), reached (n, type) AS (
    SELECT n, type FROM asked
    UNION
    SELECT r.n, x.type
    FROM reached r JOIN pg_catalog.pg_type t ON t.oid = r.type, LATERAL (
        SELECT t.typelem WHERE t.typcategory = 'A'
        UNION ALL SELECT t.typbasetype
        UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
            WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0
                AND NOT a.attisdropped
        UNION ALL SELECT g.rngsubtype FROM pg_catalog.pg_range g
            WHERE g.rngtypid = t.oid
                OR pg_catalog.to_jsonb(g) ->> 'rngmultitypid' = t.oid::pg_catalog.text) AS x(type)
    -- PostgreSQL's own types are the same everywhere.
    WHERE x.type >= 16384
)
SELECT r.n, pg_catalog.format_type(t.oid, NULL), CASE t.typtype
    WHEN 'e' THEN 'the labels ' || coalesce((
        SELECT pg_catalog.string_agg(pg_catalog.quote_literal(enumlabel),
            ', ' ORDER BY enumsortorder)
        FROM pg_catalog.pg_enum WHERE enumtypid = t.oid), '')
    WHEN 'c' THEN 'the attributes ' || coalesce((
        SELECT pg_catalog.string_agg(pg_catalog.quote_ident(a.attname) || ' '
            || pg_catalog.format_type(a.atttypid, a.atttypmod)
            || coalesce(' COLLATE ' || nullif(a.attcollation,
                y.typcollation)::pg_catalog.regcollation::pg_catalog.text, ''),
                ', ' ORDER BY a.attnum)
        FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type y ON y.oid = a.atttypid
        WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped), '')
    WHEN 'd' THEN 'the base type ' || pg_catalog.format_type(t.typbasetype, t.typtypmod)
        || coalesce(' COLLATE ' || nullif(t.typcollation,
            (SELECT typcollation FROM pg_catalog.pg_type
                WHERE oid = t.typbasetype))::pg_catalog.regcollation::pg_catalog.text, '')
        || CASE WHEN t.typnotnull THEN ' NOT NULL' ELSE '' END
    WHEN 'r' THEN 'the subtype ' || (
        SELECT pg_catalog.format_type(g.rngsubtype, NULL) || ' with ' || (
                SELECT pg_catalog.quote_ident(s.nspname) || '.' || pg_catalog.quote_ident(o.opcname)
                FROM pg_catalog.pg_opclass o
                JOIN pg_catalog.pg_namespace s ON s.oid = o.opcnamespace WHERE o.oid = g.rngsubopc)
            || CASE WHEN g.rngcollation <> 0 THEN ' COLLATE '
            || g.rngcollation::pg_catalog.regcollation::pg_catalog.text ELSE '' END
            || CASE WHEN g.rngcanonical <> 0 THEN ' and a canonical form' ELSE '' END
        FROM pg_catalog.pg_range g WHERE g.rngtypid = t.oid)
    WHEN 'b' THEN 'a form of its own'
    ELSE 'other parts' END
FROM reached r JOIN pg_catalog.pg_type t ON t.oid = r.type
WHERE t.oid >= 16384
ORDER BY r.n, 2
