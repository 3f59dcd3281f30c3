-- What each access list has in addition to its object's default, and what of the default it lacks.
WITH listed (class, oid, sub, acl, kind, owner) AS (
    SELECT 'pg_catalog.pg_namespace'::pg_catalog.regclass, n.oid, 0, n.nspacl,
        'n'::pg_catalog."char", n.nspowner FROM pg_catalog.pg_namespace n WHERE n.oid = $1
    UNION ALL
    SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, c.oid, 0, c.relacl,
        CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::pg_catalog."char", c.relowner
    FROM relation r, LATERAL (SELECT * FROM pg_catalog.pg_class WHERE oid = r.oid OFFSET 0) c
    UNION ALL
    SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, a.attrelid, a.attnum, a.attacl,
        'c'::pg_catalog."char", c.relowner
    FROM relation r, LATERAL (SELECT * FROM pg_catalog.pg_class WHERE oid = r.oid OFFSET 0) c,
        pg_catalog.pg_attribute a
    WHERE a.attrelid = c.oid AND a.attacl IS NOT NULL AND NOT a.attisdropped
    UNION ALL
    SELECT 'pg_catalog.pg_type'::pg_catalog.regclass, t.oid, 0, t.typacl,
        'T'::pg_catalog."char", t.typowner
    FROM named_type n, LATERAL (SELECT * FROM pg_catalog.pg_type WHERE oid = n.oid OFFSET 0) t
    UNION ALL
    SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass, p.oid, 0, p.proacl,
        'f'::pg_catalog."char", p.proowner
    FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_proc WHERE oid = m.oid OFFSET 0) p
    WHERE m.class = 'pg_catalog.pg_proc'::pg_catalog.regclass
), entry AS (
    SELECT l.class, l.oid, l.sub, l.owner, g.grantor, g.grantee, g.privilege_type,
        g.is_grantable, g.revoked
    FROM listed l, LATERAL (
        SELECT x.*, false AS revoked FROM (
            SELECT * FROM pg_catalog.aclexplode(l.acl)
            EXCEPT SELECT * FROM pg_catalog.aclexplode(pg_catalog.acldefault(l.kind, l.owner))) x
        UNION ALL
        SELECT x.*, true FROM (
            SELECT * FROM pg_catalog.aclexplode(pg_catalog.acldefault(l.kind, l.owner))
            EXCEPT SELECT * FROM pg_catalog.aclexplode(l.acl)) x) g
    WHERE l.acl IS NOT NULL
)
SELECT pg_catalog.json_build_object(
    'class', (SELECT relname FROM pg_catalog.pg_class WHERE oid = class), 'oid', oid::bigint,
    'column', sub,
    'grantee', CASE WHEN grantee = owner THEN pg_catalog.json_build_object('kind', 'owner')
                    WHEN grantee = 0 THEN pg_catalog.json_build_object('kind', 'public')
                    ELSE pg_catalog.json_build_object('kind', 'role', 'name',
                        pg_catalog.pg_get_userbyid(grantee)) END,
    'privilege', privilege_type, 'grantable', is_grantable, 'revoked', revoked,
    'grantor', CASE WHEN grantor <> owner THEN pg_catalog.pg_get_userbyid(grantor) END)
FROM entry
ORDER BY class, oid, sub, revoked DESC, grantee, privilege_type
