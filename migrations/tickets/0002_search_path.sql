-- The function finds its operators and types in pg_catalog, whatever the search_path of its caller is.
--
-- Locks: the function's row in pg_proc, for this one transaction; callers do not wait for it.

ALTER FUNCTION pgshard_tickets.take(text, integer) SET search_path = pg_catalog, pg_temp;

UPDATE pgshard_tickets.version SET version = 2;
