-- What routers use is no longer PUBLIC's. The command grants it, in the transaction that runs this file, to every role that
-- may use the schema of a shard here, and to those that routers of other hosts have; and later to those that come.
--
-- Locks: rows of pg_namespace, pg_class and pg_proc, for this one transaction; nobody who reads or calls waits for them.

REVOKE ALL ON SCHEMA pgshard FROM PUBLIC;
REVOKE ALL ON TABLE pgshard.cluster, pgshard.shard, pgshard.identity FROM PUBLIC;

-- The functions of signposts stay PUBLIC's: a view's functions are called with the rights of its reader, and whoever was
-- granted a table but is no router must read where it went, not "permission denied". Without a signpost nobody gets at
-- them who may not use the schema.
REVOKE ALL ON FUNCTION pgshard.look(integer), pgshard.expire_fence(integer), pgshard.finish_open(integer, uuid),
    pgshard.migrated(text), pgshard.commit_durably() FROM PUBLIC;
