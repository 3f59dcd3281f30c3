-- Roles other than the owner that have rights on tables or are named by policies.
SELECT json_build_object('name', r.rolname, 'tables', json_agg(DISTINCT u.relation::int8))
FROM (
    SELECT c.oid AS relation, a.grantee AS role FROM pg_class c
    CROSS JOIN LATERAL aclexplode(c.relacl) a
    WHERE c.relkind IN ('r', 'p') AND a.grantee <> c.relowner
    UNION ALL
    SELECT p.polrelid, role FROM pg_policy p CROSS JOIN LATERAL unnest(p.polroles) AS role
) u JOIN pg_roles r ON r.oid = u.role AND r.rolname !~ '^pg_'
GROUP BY r.rolname ORDER BY r.rolname
