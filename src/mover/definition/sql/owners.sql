-- Whose those of $2 (names) with the kinds $1 are that exist, as in missing.sql; and whether what
-- they do may be trusted by the role that asks: they are a superuser's, an extension's, or its own.
WITH asked AS (
    SELECT *
    FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]),
        pg_catalog.unnest($2::pg_catalog.text[])) WITH ORDINALITY AS w(kind, name, n)
), found (n, class, oid, owner) AS (
    SELECT a.n, 'pg_catalog.pg_type'::pg_catalog.regclass, e.oid, e.typowner
    FROM asked a, pg_catalog.pg_type t, pg_catalog.pg_type e
    WHERE a.kind = 'type' AND t.oid = pg_catalog.to_regtype(a.name)
        AND e.oid = CASE t.typcategory WHEN 'A' THEN t.typelem ELSE t.oid END
    UNION ALL
    SELECT a.n, 'pg_catalog.pg_proc'::pg_catalog.regclass, p.oid, p.proowner
    FROM asked a, pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace s ON s.oid = p.pronamespace
    WHERE a.kind IN ('function', 'procedure', 'aggregate')
        AND pg_catalog.quote_ident(s.nspname)
            || '.' || pg_catalog.quote_ident(p.proname) = pg_catalog.split_part(a.name, '(', 1)
        AND (pg_catalog.pg_identify_object('pg_catalog.pg_proc'::pg_catalog.regclass, p.oid,
            0)).identity = a.name
    UNION ALL
    SELECT a.n, 'pg_catalog.pg_operator'::pg_catalog.regclass, o.oid, o.oprowner
    FROM asked a, pg_catalog.pg_operator o JOIN pg_catalog.pg_namespace s ON s.oid = o.oprnamespace
    WHERE a.kind = 'operator'
        AND pg_catalog.quote_ident(s.nspname)
            || '.' || o.oprname = pg_catalog.split_part(a.name, '(', 1)
        AND (pg_catalog.pg_identify_object('pg_catalog.pg_operator'::pg_catalog.regclass, o.oid,
            0)).identity = a.name
)
SELECT f.n, r.rolname::pg_catalog.text, r.rolsuper
    OR pg_catalog.pg_has_role(r.oid, 'USAGE') OR EXISTS (
    SELECT FROM pg_catalog.pg_depend d WHERE d.classid = f.class AND d.objid = f.oid
        AND d.deptype = 'e')
FROM found f JOIN pg_catalog.pg_roles r ON r.oid = f.owner
ORDER BY f.n
