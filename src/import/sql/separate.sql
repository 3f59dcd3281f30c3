-- Tables with their partitions, and what moves to another schema with them.
WITH RECURSIVE own AS (
    SELECT c.oid, c.oid AS root FROM pg_class c WHERE c.oid = ANY ('{oids}'::oid[])
    UNION ALL
    SELECT i.inhrelid, own.root FROM own JOIN pg_inherits i ON i.inhparent = own.oid
        JOIN pg_class p ON p.oid = i.inhrelid AND p.relispartition
)
SELECT json_build_object(
    'oid', c.oid::int8, 'root', own.root::int8, 'schema', n.nspname, 'name', c.relname,
    'kind', c.relkind, 'owner', pg_get_userbyid(c.relowner),
    'owned', pg_has_role(c.relowner, 'USAGE'),
    'sequences', coalesce((SELECT json_agg(s.oid::int8 ORDER BY s.oid)
        FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
        WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
            AND d.refobjid = c.oid AND d.deptype IN ('a', 'i')), '[]'),
    'statistics', coalesce((SELECT json_agg(json_build_object('schema', x.nspname,
            'name', s.stxname, 'owner', pg_get_userbyid(s.stxowner),
            'owned', pg_has_role(s.stxowner, 'USAGE')) ORDER BY x.nspname, s.stxname)
        FROM pg_statistic_ext s JOIN pg_namespace x ON x.oid = s.stxnamespace
        WHERE s.stxrelid = c.oid), '[]'))
FROM own JOIN pg_class c ON c.oid = own.oid JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
