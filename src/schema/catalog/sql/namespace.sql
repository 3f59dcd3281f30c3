-- `makers`: who but the reader may make objects in the schema, or has made one that is there.
-- Nothing that they have made may be found by its name alone while the reader asks. Superusers are
-- left out: they need no trap.
SELECT pg_catalog.json_build_object(
    'oid', n.oid::bigint, 'name', n.nspname, 'owner', pg_catalog.pg_get_userbyid(n.nspowner),
    'reader', current_user,
    'reader_bypasses', (SELECT rolsuper OR rolbypassrls FROM pg_catalog.pg_roles
        WHERE rolname = current_user),
    'version', pg_catalog.current_setting('server_version_num')::int,
    'hides_equality', EXISTS (SELECT FROM pg_catalog.pg_operator o
        WHERE o.oprname OPERATOR(pg_catalog.=) '=' AND o.oprnamespace OPERATOR(pg_catalog.=) n.oid
        AND o.oprleft OPERATOR(pg_catalog.=) o.oprright
        AND o.oprleft OPERATOR(pg_catalog.=)
            ANY (ARRAY['pg_catalog.oid'::pg_catalog.regtype::pg_catalog.oid,
                'pg_catalog.name'::pg_catalog.regtype::pg_catalog.oid])),
    'makers', (
        SELECT coalesce(pg_catalog.json_agg(DISTINCT
            CASE WHEN m.role OPERATOR(pg_catalog.=) 0::pg_catalog.oid THEN 'PUBLIC'
            ELSE pg_catalog.pg_get_userbyid(m.role) END), '[]')
        FROM (
            SELECT n.nspowner
            UNION ALL
            SELECT a.grantee FROM pg_catalog.aclexplode(n.nspacl) a
            WHERE a.privilege_type OPERATOR(pg_catalog.=) 'CREATE'
            UNION ALL
            SELECT o.owner
            FROM pg_catalog.pg_depend d, LATERAL (
                SELECT c.relowner FROM pg_catalog.pg_class c
                WHERE d.classid OPERATOR(pg_catalog.=)
                    'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid
                    AND c.oid OPERATOR(pg_catalog.=) d.objid
                UNION ALL
                SELECT p.proowner FROM pg_catalog.pg_proc p
                WHERE d.classid OPERATOR(pg_catalog.=)
                    'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
                    AND p.oid OPERATOR(pg_catalog.=) d.objid
                UNION ALL
                SELECT p.oprowner FROM pg_catalog.pg_operator p
                WHERE d.classid OPERATOR(pg_catalog.=)
                    'pg_catalog.pg_operator'::pg_catalog.regclass::pg_catalog.oid
                    AND p.oid OPERATOR(pg_catalog.=) d.objid
                UNION ALL
                SELECT t.typowner FROM pg_catalog.pg_type t
                WHERE d.classid OPERATOR(pg_catalog.=)
                    'pg_catalog.pg_type'::pg_catalog.regclass::pg_catalog.oid
                    AND t.oid OPERATOR(pg_catalog.=) d.objid
            ) AS o(owner)
            WHERE d.refclassid OPERATOR(pg_catalog.=)
                'pg_catalog.pg_namespace'::pg_catalog.regclass::pg_catalog.oid
                AND d.refobjid OPERATOR(pg_catalog.=) n.oid
        ) AS m(role)
        WHERE m.role OPERATOR(pg_catalog.<>) (SELECT r.oid FROM pg_catalog.pg_roles r
            WHERE r.rolname OPERATOR(pg_catalog.=) current_user)
            AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles r
                WHERE r.oid OPERATOR(pg_catalog.=) m.role AND r.rolsuper)))
FROM pg_catalog.pg_namespace n
WHERE n.oid OPERATOR(pg_catalog.=) $1 OR n.nspname OPERATOR(pg_catalog.=) $2
