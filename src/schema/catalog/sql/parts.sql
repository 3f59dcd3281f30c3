SELECT pg_catalog.json_build_object(
    'class', (SELECT relname FROM pg_catalog.pg_class WHERE oid = class), 'oid', oid::bigint,
    'home_class', (SELECT relname FROM pg_catalog.pg_class WHERE oid = home_class),
    'home', home::bigint)
FROM part
