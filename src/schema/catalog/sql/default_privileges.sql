-- What ALTER DEFAULT PRIVILEGES IN SCHEMA grants; within a schema it can revoke nothing.
SELECT pg_catalog.json_build_object('role', pg_catalog.pg_get_userbyid(a.defaclrole),
    'objects', CASE a.defaclobjtype WHEN 'r' THEN 'TABLES' WHEN 'S' THEN 'SEQUENCES'
        WHEN 'f' THEN 'FUNCTIONS' WHEN 'T' THEN 'TYPES' END,
    'grantee', CASE WHEN g.grantee = a.defaclrole THEN pg_catalog.json_build_object('kind', 'owner')
                    WHEN g.grantee = 0 THEN pg_catalog.json_build_object('kind', 'public')
                    ELSE pg_catalog.json_build_object('kind', 'role', 'name',
                        pg_catalog.pg_get_userbyid(g.grantee)) END,
    'privilege', g.privilege_type, 'grantable', g.is_grantable)
FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_default_acl WHERE oid = m.oid OFFSET 0) a,
    LATERAL pg_catalog.aclexplode(a.defaclacl) g
WHERE m.class = 'pg_catalog.pg_default_acl'::pg_catalog.regclass
ORDER BY pg_catalog.pg_get_userbyid(a.defaclrole), a.defaclobjtype, g.grantee, g.privilege_type
