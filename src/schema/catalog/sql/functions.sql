SELECT pg_catalog.json_build_object(
    'oid', p.oid::bigint, 'name', p.proname, 'kind', p.prokind,
    'owner', pg_catalog.pg_get_userbyid(p.proowner),
    'arguments', pg_catalog.pg_get_function_identity_arguments(p.oid),
    'language', l.lanname, 'trusted', l.lanpltrusted, 'leakproof', p.proleakproof,
    'support', p.prosupport <> 0, 'body', p.prosrc,
    'bound', pg_catalog.to_jsonb(p) ->> 'prosqlbody' IS NOT NULL,
    'settings', coalesce(p.proconfig, '{}'),
    'aggregate', CASE WHEN p.prokind = 'a' THEN (
        SELECT pg_catalog.json_build_object('kind', g.aggkind,
            'definition', pg_catalog.format('(%s) (%s)',
                coalesce(nullif(pg_catalog.pg_get_function_identity_arguments(p.oid), ''), '*'), (
                SELECT pg_catalog.string_agg(c.word || coalesce(' = ' || c.value, ''),
                    ', ' ORDER BY c.at)
                FROM (
                    SELECT v.at, v.word, CASE WHEN f.pronamespace = $1 THEN ''
                        ELSE pg_catalog.quote_ident(s.nspname) || '.' END
                        || pg_catalog.quote_ident(f.proname) AS value
                    FROM (VALUES (1, 'SFUNC', g.aggtransfn), (4, 'FINALFUNC', g.aggfinalfn),
                            (7, 'COMBINEFUNC', g.aggcombinefn), (8, 'SERIALFUNC', g.aggserialfn),
                            (9, 'DESERIALFUNC', g.aggdeserialfn), (11, 'MSFUNC', g.aggmtransfn),
                            (12, 'MINVFUNC', g.aggminvtransfn),
                            (15, 'MFINALFUNC', g.aggmfinalfn)) AS v(at, word, function)
                    JOIN pg_catalog.pg_proc f ON f.oid = v.function
                    JOIN pg_catalog.pg_namespace s ON s.oid = f.pronamespace
                    UNION ALL
                    SELECT v.at, v.word, v.value
                    FROM (VALUES (2, 'STYPE', pg_catalog.format_type(g.aggtranstype, NULL)),
                            (3, 'SSPACE', nullif(g.aggtransspace, 0)::text),
                            (6, 'FINALFUNC_MODIFY', CASE g.aggfinalmodify WHEN 's' THEN 'SHAREABLE'
                                    WHEN 'w' THEN 'READ_WRITE'
                                    ELSE CASE WHEN g.aggkind <> 'n' THEN 'READ_ONLY' END END),
                            (10, 'INITCOND', pg_catalog.quote_literal(g.agginitval)),
                            (13, 'MSTYPE',
                                CASE WHEN g.aggmtranstype <> 0
                                    THEN pg_catalog.format_type(g.aggmtranstype, NULL) END),
                            (14, 'MSSPACE', nullif(g.aggmtransspace, 0)::text),
                            (17, 'MFINALFUNC_MODIFY',
                                CASE g.aggmfinalmodify WHEN 's' THEN 'SHAREABLE'
                                    WHEN 'w' THEN 'READ_WRITE' END),
                            (18, 'MINITCOND', pg_catalog.quote_literal(g.aggminitval)),
                            (19, 'SORTOP',
                                (SELECT 'OPERATOR(' || CASE WHEN o.oprnamespace = $1 THEN ''
                                    ELSE pg_catalog.quote_ident(s.nspname) || '.' END
                                    || o.oprname || ')'
                                FROM pg_catalog.pg_operator o
                                JOIN pg_catalog.pg_namespace s ON s.oid = o.oprnamespace
                                WHERE o.oid = g.aggsortop)),
                            (20, 'PARALLEL', CASE p.proparallel WHEN 's' THEN 'SAFE'
                                WHEN 'r' THEN 'RESTRICTED' END)) AS v(at, word, value)
                    WHERE v.value IS NOT NULL
                    UNION ALL
                    SELECT v.at, v.word, NULL
                    FROM (VALUES (5, 'FINALFUNC_EXTRA', g.aggfinalextra),
                        (16, 'MFINALFUNC_EXTRA', g.aggmfinalextra),
                        (21, 'HYPOTHETICAL', g.aggkind = 'h')) AS v(at, word, is_set)
                    WHERE v.is_set) AS c)))
        FROM pg_catalog.pg_aggregate g WHERE g.aggfnoid = p.oid) END,
    'definition', (
        SELECT CASE WHEN pg_catalog.starts_with(whole, head)
            THEN pg_catalog.substr(whole, pg_catalog.length(head) + 1) END
        FROM (SELECT CASE WHEN p.prokind IN ('f', 'p')
                         THEN pg_catalog.pg_get_functiondef(p.oid) END AS whole,
                     pg_catalog.format('CREATE OR REPLACE %s %I.%I',
                            CASE p.prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END,
                            n.nspname, p.proname) AS head) AS deparsed))
FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_proc WHERE oid = m.oid OFFSET 0) p
JOIN pg_catalog.pg_language l ON l.oid = p.prolang
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE m.class = 'pg_catalog.pg_proc'::pg_catalog.regclass
    -- The constructors of a range are created with it.
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend
        WHERE classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND objid = p.oid
        AND deptype = 'i')
ORDER BY p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid)
