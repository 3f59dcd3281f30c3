-- What a text can find by the search_path and not in PostgreSQL's own schema. $1: the functions in
-- question, $2: how the schemas of shards begin, which are left out. Types are those with operators
-- of their own, as extensions bring them; `own` are the types that a function has for its arguments
-- or result, or that such a one is made of.
WITH RECURSIVE surrounding AS MATERIALIZED (
    SELECT oid, nspname FROM pg_catalog.pg_namespace
    WHERE nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'pgshard') 
        AND NOT (pg_catalog.starts_with(nspname::pg_catalog.text, $2)
            AND pg_catalog.substr(nspname::pg_catalog.text, pg_catalog.length($2) + 1) ~ '^[0-9]')
), base AS MATERIALIZED (
    SELECT t.oid, t.typname, s.nspname
    FROM pg_catalog.pg_type t JOIN surrounding s ON s.oid = t.typnamespace
    WHERE t.typtype = 'b' AND t.typcategory <> 'A'
), made (function, type) AS (
    SELECT p.oid, u.type
    FROM pg_catalog.pg_proc p, LATERAL (
        SELECT p.prorettype UNION SELECT pg_catalog.unnest(p.proargtypes)
        UNION SELECT pg_catalog.unnest(p.proallargtypes)) AS u (type)
    WHERE p.oid = ANY ($1)
    UNION
    SELECT m.function, next.type
    FROM made m JOIN pg_catalog.pg_type t ON t.oid = m.type, LATERAL (
        SELECT t.typelem WHERE t.typcategory = 'A' UNION ALL SELECT t.typbasetype
        WHERE t.typtype = 'd'
        UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
        UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
        WHERE t.typrelid <> 0 AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    ) AS next (type)
)
SELECT 'own', b.typname::pg_catalog.text, b.nspname::pg_catalog.text, m.function FROM made m
JOIN base b ON b.oid = m.type
UNION
SELECT 'type', b.typname::pg_catalog.text, b.nspname::pg_catalog.text, 0 FROM base b
UNION
SELECT CASE WHEN EXISTS (SELECT FROM base b WHERE b.oid = p.prorettype) THEN 'of type'
    ELSE 'function' END, p.proname::pg_catalog.text, s.nspname::pg_catalog.text, 0
FROM pg_catalog.pg_proc p JOIN surrounding s ON s.oid = p.pronamespace
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_proc o
    WHERE o.proname = p.proname AND o.pronamespace = 'pg_catalog'::pg_catalog.regnamespace)
UNION
SELECT 'operator', o.oprname::pg_catalog.text, s.nspname::pg_catalog.text, 0
FROM pg_catalog.pg_operator o JOIN surrounding s ON s.oid = o.oprnamespace
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_operator b
    WHERE b.oprname = o.oprname AND b.oprnamespace = 'pg_catalog'::pg_catalog.regnamespace)
UNION
SELECT 'relation', c.relname::pg_catalog.text, s.nspname::pg_catalog.text, 0
FROM pg_catalog.pg_class c JOIN surrounding s ON s.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
