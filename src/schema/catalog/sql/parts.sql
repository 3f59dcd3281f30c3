SELECT json_build_object('class', class::regclass, 'oid', oid::bigint,
    'home_class', home_class::regclass, 'home', home::bigint)
FROM part
