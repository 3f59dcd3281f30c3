-- What `pgshard host remove` and `pgshard bootstrap` do on a host that has given a shard to one that leaves the cluster,
-- and from which the shard has gone on: its signpost leads to where the shard is, by a later epoch than the one that the
-- row has. Returns false where the row is another one meanwhile: a later statement about the shard is there then.
--
-- Locks: the shard's row, until the end of the transaction.
CREATE OR REPLACE FUNCTION pgshard.redirect(p_shard integer, p_gone text, p_peer text, p_epoch integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE pgshard.shard SET peer = p_peer, epoch = p_epoch, move_id = NULL, open_token = NULL
    WHERE shard_id = p_shard AND state = 'moved' AND peer = p_gone AND epoch < p_epoch;
    RETURN FOUND;
END $$;

REVOKE ALL ON FUNCTION pgshard.redirect(integer, text, text, integer) FROM PUBLIC;
