-- Who may use the schema pgshard.
--
-- Invariant: nothing of it is PUBLIC's but the functions of signposts. `pgshard bootstrap` grants
-- what routers need, in the transaction that runs this step, to every role that may use the schema
-- of a shard here and to the routers' roles of other hosts; later to roles that come after that.
-- All other functions are for the owner.
--
-- Locks: rows of pg_namespace, pg_class and pg_proc, until the end of the transaction. Sessions
-- that read the tables or call the functions do not wait for them.

-- Default privileges may have granted these.
REVOKE ALL ON SCHEMA pgshard FROM PUBLIC;
REVOKE ALL ON TABLE pgshard.cluster, pgshard.shard, pgshard.whole, pgshard.identity FROM PUBLIC;

-- What the roles of routers are granted.
REVOKE ALL ON FUNCTION pgshard.look(integer), pgshard.expire_fence(integer),
    pgshard.finish_open(integer, uuid), pgshard.migrated(text), pgshard.commit_durably()
    FROM PUBLIC;

-- What the owner alone may call: the functions of movers, migrations and repair.
REVOKE ALL ON FUNCTION pgshard.build_signpost(integer, uuid),
    pgshard.fence(integer, uuid, uuid, uuid, integer), pgshard.barrier(oid),
    pgshard.mark(integer, uuid, integer, uuid),
    pgshard.heartbeat(integer, uuid, uuid, integer, integer),
    pgshard.unfence(integer, uuid, integer, uuid), pgshard.decide(integer, uuid, integer, uuid),
    pgshard.open_incoming(pgshard.incoming), pgshard.open(integer, uuid, integer, uuid),
    pgshard.hold_for_migration(integer), pgshard.end_moves(integer, text),
    pgshard.stand_down(integer, integer, text, integer, uuid, text, text),
    pgshard.take_back(integer, integer, integer, integer, text),
    pgshard.open_given_up(integer, uuid, integer),
    pgshard.raise_epoch(integer, integer, integer, text),
    pgshard.redirect(integer, text, text, integer)
    FROM PUBLIC;

-- A view calls its functions with the rights of its reader, and a role that was granted a table but
-- is no router must read where the shard is, not "permission denied". Only a signpost reaches these
-- functions for a role that may not use the schema. Granted, because default privileges may have
-- revoked it.
GRANT EXECUTE ON FUNCTION pgshard.signpost_raise(integer), pgshard.signpost_rows(integer),
    pgshard.signpost_write() TO PUBLIC;
