SELECT json_build_object(
    'database', current_database(),
    'role', current_user,
    'version', current_setting('server_version_num')::int4,
    'standby', pg_is_in_recovery(),
    'wal_level', current_setting('wal_level'),
    'free_slots', current_setting('max_replication_slots')::int8 - (SELECT count(*)
        FROM pg_replication_slots),
    'free_senders', current_setting('max_wal_senders')::int8 - (SELECT count(*)
        FROM pg_stat_activity WHERE backend_type = 'walsender'),
    'bypasses_rls', (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user),
    'prepared', (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()),
    'large_objects', EXISTS (SELECT FROM pg_largeobject_metadata),
    'can_decode', {can_decode},
    'wal', {wal})
