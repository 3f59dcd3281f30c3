SELECT pg_catalog.json_build_object(
    'oid', p.oid::bigint, 'name', p.proname, 'kind', p.prokind, 'owner', pg_catalog.pg_get_userbyid(p.proowner),
    'arguments', pg_catalog.pg_get_function_identity_arguments(p.oid),
    'language', l.lanname, 'trusted', l.lanpltrusted, 'leakproof', p.proleakproof, 'support', p.prosupport <> 0,
    'body', p.prosrc, 'bound', pg_catalog.to_jsonb(p) ->> 'prosqlbody' IS NOT NULL, 'settings', coalesce(p.proconfig, '{}'),
    'definition', (
        SELECT CASE WHEN pg_catalog.starts_with(whole, head) THEN pg_catalog.substr(whole, pg_catalog.length(head) + 1) END
        FROM (SELECT CASE WHEN p.prokind IN ('f', 'p') THEN pg_catalog.pg_get_functiondef(p.oid) END AS whole,
                     pg_catalog.format('CREATE OR REPLACE %s %I.%I', CASE p.prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END,
                            n.nspname, p.proname) AS head) AS deparsed))
FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_proc WHERE oid = m.oid OFFSET 0) p
JOIN pg_catalog.pg_language l ON l.oid = p.prolang
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE m.class = 'pg_catalog.pg_proc'::pg_catalog.regclass
    -- The constructors of a range come with it.
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend WHERE classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND objid = p.oid AND deptype = 'i')
ORDER BY p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid)
