-- IDs of the shards for the tables of one database: milliseconds since the cluster's epoch, the
-- key's shard, and a sequence, as next_id() of a shard makes them.
CREATE SEQUENCE app.wide;
CREATE FUNCTION app.wide() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    shard bigint := ((to_jsonb(NEW) ->> TG_ARGV[0])::bigint % 16 + 16) % 16;
    ms bigint := extract(epoch FROM clock_timestamp() - '2026-01-01T00:00:00Z') * 1000;
BEGIN
    NEW.id := ms << 23 | shard << 10 | nextval('app.wide') % 1024;
    RETURN NEW;
END $$;
