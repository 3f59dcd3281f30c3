-- Each table that is no partition, with the sum over its partitions. Extensions' own tables, and
-- those of PostgreSQL and pgshard, are left out. Sizes come from pg_class, which VACUUM and ANALYZE
-- keep up to date: no table is opened for them.
WITH RECURSIVE own AS (
    SELECT c.oid, c.oid AS root FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'f') AND NOT c.relispartition AND c.relpersistence <> 't'
        AND n.nspname NOT IN ('pg_catalog', 'information_schema')
        AND n.nspname !~ '^pgshard(_|$)'
        AND n.nspname !~ '^pg_(toast|temp)'
        AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass
            AND d.objid = c.oid AND d.deptype = 'e')
    UNION ALL
    SELECT i.inhrelid, own.root FROM own JOIN pg_inherits i ON i.inhparent = own.oid
        JOIN pg_class p ON p.oid = i.inhrelid AND p.relispartition
), part AS (
    SELECT own.root, c.oid, c.relkind, c.relpersistence, c.reltuples::float8 AS tuples,
        c.reltoastrelid,
        (c.relpages + coalesce(t.relpages, 0))::int8 AS pages
    FROM own JOIN pg_class c ON c.oid = own.oid LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
), indexed AS (
    SELECT p.root, count(*) FILTER (WHERE p.oid = p.root) AS indexes, sum(c.relpages::int8) AS pages
    FROM part p JOIN pg_index i ON i.indrelid = p.oid JOIN pg_class c ON c.oid = i.indexrelid
    GROUP BY p.root
), whole AS (
    SELECT root, bool_or(relpersistence = 'u') AS unlogged,
        bool_or(relkind = 'f' AND oid <> root) AS has_foreign_partition,
        CASE WHEN bool_or(tuples >= 0 AND relkind <> 'p') THEN sum(greatest(tuples, 0))
            FILTER (WHERE relkind <> 'p') END AS rows,
        sum(pages) AS pages, bool_or(reltoastrelid <> 0) AS toasted,
        sum(pg_stat_get_tuples_inserted(oid) + pg_stat_get_tuples_updated(oid)
            + pg_stat_get_tuples_deleted(oid)) AS writes,
        sum(pg_stat_get_mod_since_analyze(oid)) FILTER (WHERE relkind <> 'p') AS changed
    FROM part GROUP BY root
), cols AS (
    SELECT a.attrelid, json_agg(json_build_object(
        'number', a.attnum, 'name', a.attname, 'type', format_type(b.base, NULL),
        'not_null', a.attnotnull OR b.not_null, 'identity', a.attidentity <> '',
        'default', CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid) END
        ) ORDER BY a.attnum) AS columns
    FROM pg_attribute a JOIN (SELECT DISTINCT root FROM own) o ON o.root = a.attrelid
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    CROSS JOIN LATERAL (
        WITH RECURSIVE made AS (
            SELECT t.oid, t.typtype, t.typbasetype, t.typnotnull FROM pg_type t
            WHERE t.oid = a.atttypid
            UNION ALL SELECT t.oid, t.typtype, t.typbasetype, t.typnotnull
            FROM made m JOIN pg_type t ON t.oid = m.typbasetype WHERE m.typtype = 'd'
        ) SELECT max(oid) FILTER (WHERE typtype <> 'd') AS base,
            bool_or(typtype = 'd' AND typnotnull) AS not_null FROM made
    ) b
    WHERE a.attnum > 0 AND NOT a.attisdropped GROUP BY a.attrelid
)
SELECT json_build_object(
    'oid', c.oid::int8, 'schema', n.nspname, 'name', c.relname, 'kind', c.relkind,
    'unlogged', w.unlogged, 'has_foreign_partition', w.has_foreign_partition,
    'inherits', coalesce((SELECT json_agg(i.inhparent::int8 ORDER BY i.inhseqno) FROM pg_inherits i
        WHERE i.inhrelid = c.oid), '[]'),
    'rows', w.rows, 'heap_bytes', w.pages * current_setting('block_size')::int8,
    'index_bytes', coalesce(x.pages, 0) * current_setting('block_size')::int8,
    'indexes', coalesce(x.indexes, 0), 'toasted', w.toasted, 'writes', w.writes,
    'changed', coalesce(w.changed, 0), 'forced_rls', c.relrowsecurity AND c.relforcerowsecurity,
    'owner', pg_get_userbyid(c.relowner), 'columns', coalesce(k.columns, '[]'))
FROM whole w JOIN pg_class c ON c.oid = w.root JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN indexed x ON x.root = w.root LEFT JOIN cols k ON k.attrelid = w.root
