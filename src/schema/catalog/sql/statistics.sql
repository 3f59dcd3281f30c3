-- Extended statistics: PostgreSQL's definition of each, with its own name and without the schema.
SELECT pg_catalog.json_build_object(
    'oid', s.oid::bigint, 'name', s.stxname, 'owner', pg_catalog.pg_get_userbyid(s.stxowner),
    'target', nullif(coalesce(s.stxstattarget::int, -1), -1),
    'definition', CASE WHEN pg_catalog.starts_with(s.whole, s.head)
        THEN pg_catalog.format('CREATE STATISTICS %I', s.stxname)
            || pg_catalog.substr(s.whole, pg_catalog.length(s.head) + 1) END)
FROM (
    SELECT s.*, pg_catalog.pg_get_statisticsobjdef(s.oid) AS whole,
        pg_catalog.format('CREATE STATISTICS %I.%I', n.nspname, s.stxname) AS head
    FROM member m, LATERAL (SELECT * FROM pg_catalog.pg_statistic_ext WHERE oid = m.oid OFFSET 0) s
    JOIN pg_catalog.pg_namespace n ON n.oid = s.stxnamespace
    WHERE m.class = 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass
) s
ORDER BY s.stxname
