-- Which operators and functions, other than PostgreSQL's own, the expressions and queries of each
-- object call, and how often, by the trees that PostgreSQL has made of them. Names are without the
-- schema's own.
, tree (class, oid, trees) AS MATERIALIZED (
    SELECT CASE w.rulename WHEN '_RETURN' THEN 'pg_catalog.pg_class'::pg_catalog.regclass
        ELSE 'pg_catalog.pg_rewrite'::pg_catalog.regclass END,
        CASE w.rulename WHEN '_RETURN' THEN r.oid ELSE w.oid END,
        ARRAY[w.ev_qual::text, w.ev_action::text]
    FROM relation r, LATERAL (SELECT * FROM pg_catalog.pg_rewrite WHERE ev_class = r.oid OFFSET 0) w
    UNION ALL
    SELECT 'pg_catalog.pg_attrdef'::pg_catalog.regclass, a.oid, ARRAY[a.adbin::text]
    FROM relation r, LATERAL (SELECT * FROM pg_catalog.pg_attrdef WHERE adrelid = r.oid OFFSET 0) a
    UNION ALL
    SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, k.oid, ARRAY[k.conbin::text, (
        SELECT pg_catalog.string_agg(' :opno ' || o, '' ORDER BY n)
        FROM pg_catalog.unnest(k.conexclop) WITH ORDINALITY AS x(o, n))]
    FROM constrained c, LATERAL (SELECT * FROM pg_catalog.pg_constraint
        WHERE oid = c.oid OFFSET 0) k
    UNION ALL
    SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, i.indexrelid,
        ARRAY[i.indexprs::text, i.indpred::text]
    FROM relation r, LATERAL (SELECT * FROM pg_catalog.pg_index WHERE indrelid = r.oid OFFSET 0) i
    UNION ALL
    SELECT 'pg_catalog.pg_policy'::pg_catalog.regclass, p.oid,
        ARRAY[p.polqual::text, p.polwithcheck::text]
    FROM relation r, LATERAL (SELECT * FROM pg_catalog.pg_policy WHERE polrelid = r.oid OFFSET 0) p
    UNION ALL
    SELECT 'pg_catalog.pg_trigger'::pg_catalog.regclass, g.oid, ARRAY[g.tgqual::text]
    FROM relation r,
        LATERAL (SELECT * FROM pg_catalog.pg_trigger
            WHERE tgrelid = r.oid AND NOT tgisinternal OFFSET 0) g
    UNION ALL
    SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass, p.oid,
        ARRAY[p.proargdefaults::text, pg_catalog.to_jsonb(p) ->> 'prosqlbody']
    FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_proc WHERE oid = m.oid OFFSET 0) p
    WHERE m.class = 'pg_catalog.pg_proc'::pg_catalog.regclass
    UNION ALL
    SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, r.oid, ARRAY[k.partexprs::text]
    FROM relation r, LATERAL (SELECT * FROM pg_catalog.pg_partitioned_table
        WHERE partrelid = r.oid OFFSET 0) k
    UNION ALL
    SELECT 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass, s.oid,
        ARRAY[pg_catalog.to_jsonb(s) ->> 'stxexprs']
    FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_statistic_ext WHERE oid = m.oid OFFSET 0) s
    WHERE m.class = 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass
    UNION ALL
    SELECT 'pg_catalog.pg_type'::pg_catalog.regclass, y.oid, ARRAY[y.typdefaultbin::text]
    FROM named_type t, LATERAL (SELECT * FROM pg_catalog.pg_type WHERE oid = t.oid OFFSET 0) y
), called AS MATERIALIZED (
    -- Spaces within a name are escaped in a tree, so that none of these can be a part of one.
    SELECT t.class, t.oid, x.class AS of_class, x.called
    FROM tree t, pg_catalog.unnest(t.trees) AS u(tree), LATERAL (
        SELECT 'pg_catalog.pg_operator'::pg_catalog.regclass, (m.found)[1]::oid
        FROM pg_catalog.regexp_matches(u.tree, ' :opno ([0-9]+)', 'g') AS m(found)
        UNION ALL
        SELECT 'pg_catalog.pg_operator'::pg_catalog.regclass, o.one::oid
        FROM pg_catalog.regexp_matches(u.tree, ' :opnos \(o ([0-9 ]+)\)', 'g') AS m(found),
            pg_catalog.regexp_split_to_table(pg_catalog.btrim((m.found)[1]), ' +') AS o(one)
        UNION ALL
        SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass, (m.found)[1]::oid
        FROM pg_catalog.regexp_matches(u.tree, ' ?:(?:funcid|aggfnoid|winfnoid) ([0-9]+)',
            'g') AS m(found)
    ) AS x(class, called)
    WHERE u.tree IS NOT NULL AND x.called >= 16384
), own AS MATERIALIZED (
    SELECT pg_catalog.quote_ident(nspname) || '.' AS prefix FROM pg_catalog.pg_namespace
    WHERE oid = $1
)
SELECT (x.i).type || ' ' || pg_catalog.replace((x.i).identity, own.prefix, ''), x.called, x.times
FROM own, (
    SELECT pg_catalog.pg_identify_object(t.class, t.oid, 0) AS i, c.called, c.times
    FROM (SELECT class, oid FROM tree WHERE pg_catalog.array_to_string(trees, '') <> ''
        GROUP BY class, oid) t LEFT JOIN (
        SELECT c.class, c.oid,
            pg_catalog.replace((pg_catalog.pg_identify_object(c.of_class, c.called, 0)).identity,
                own.prefix, '') AS called,
            pg_catalog.count(*)::integer AS times
        FROM called c, own GROUP BY c.class, c.oid, 3) c ON c.class = t.class AND c.oid = t.oid) x
