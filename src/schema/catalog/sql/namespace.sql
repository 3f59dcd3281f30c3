SELECT pg_catalog.json_build_object(
    'oid', n.oid::bigint, 'name', n.nspname, 'owner', pg_catalog.pg_get_userbyid(n.nspowner), 'reader', current_user,
    'reader_bypasses', (SELECT rolsuper OR rolbypassrls FROM pg_catalog.pg_roles WHERE rolname = current_user),
    'version', pg_catalog.current_setting('server_version_num')::int)
FROM pg_catalog.pg_namespace n
WHERE n.oid = $1 OR n.nspname = $2
