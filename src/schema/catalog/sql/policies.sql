-- Policies of row level security. The owner of the table is written as such: on another host it may
-- have another name.
SELECT pg_catalog.json_build_object(
    'oid', p.oid::bigint, 'name', p.polname, 'relation', p.polrelid::bigint,
    'permissive', p.polpermissive, 'command', p.polcmd,
    'roles', (
        SELECT coalesce(pg_catalog.json_agg(CASE
            WHEN g.oid = 0 THEN pg_catalog.json_build_object('kind', 'public')
            WHEN g.oid = c.relowner THEN pg_catalog.json_build_object('kind', 'owner')
            ELSE pg_catalog.json_build_object('kind', 'role', 'name',
                pg_catalog.pg_get_userbyid(g.oid)) END
            ORDER BY g.oid = c.relowner, pg_catalog.pg_get_userbyid(g.oid)), '[]')
        FROM pg_catalog.unnest(p.polroles) AS g(oid)),
    'using', pg_catalog.pg_get_expr(p.polqual, p.polrelid),
    'check', pg_catalog.pg_get_expr(p.polwithcheck, p.polrelid))
FROM relation r, LATERAL (SELECT * FROM pg_catalog.pg_policy WHERE polrelid = r.oid OFFSET 0) p
JOIN pg_catalog.pg_class c ON c.oid = p.polrelid
ORDER BY c.relname, p.polname
