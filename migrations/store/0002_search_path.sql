-- The function finds its operators and types in pg_catalog, whatever the search_path of its caller is. Tables and function are
-- used as before, so that the format stays what it is.
--
-- Locks: the function's row in pg_proc, for this one transaction; callers do not wait for it.

ALTER FUNCTION pgshard_map.publish(bigint, bigint, integer, jsonb, text, text) SET search_path = pg_catalog, pg_temp;
