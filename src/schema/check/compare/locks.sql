-- The shards that are served here, how many relations are locked while their definitions are
-- deparsed (views, rules, functions whose bodies are parsed), and how many locks one query may
-- take: an eighth of what the server has room for.
WITH here AS (
    SELECT s.shard_id, n.oid FROM pgshard.shard s
    JOIN pg_catalog.pg_namespace n ON n.nspname = s.schema_name WHERE s.state = 'serving'
), deparsed (shard_id, class, oid) AS (
    SELECT h.shard_id, 'pg_catalog.pg_rewrite'::pg_catalog.regclass, w.oid
    FROM here h JOIN pg_catalog.pg_class c ON c.relnamespace = h.oid
    JOIN pg_catalog.pg_rewrite w ON w.ev_class = c.oid
    UNION ALL
    SELECT h.shard_id, 'pg_catalog.pg_proc'::pg_catalog.regclass, p.oid FROM here h
    JOIN pg_catalog.pg_proc p ON p.pronamespace = h.oid
), locked AS (
    SELECT e.shard_id, count(DISTINCT d.refobjid) AS locks
    FROM deparsed e JOIN pg_catalog.pg_depend d ON d.classid = e.class AND d.objid = e.oid
    WHERE d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
    GROUP BY e.shard_id
)
SELECT shard_id, coalesce(locks, 0),
    pg_catalog.current_setting('max_locks_per_transaction')::pg_catalog.int8
    * (pg_catalog.current_setting('max_connections')::pg_catalog.int8
        + pg_catalog.current_setting('max_prepared_transactions')::pg_catalog.int8) / 8
FROM here LEFT JOIN locked USING (shard_id) ORDER BY shard_id
