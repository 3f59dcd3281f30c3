-- IDs of the shards for the tables of one database: milliseconds since the cluster's epoch, the
-- key's shard, and a sequence, as next_id() of a shard makes them. The argument of the trigger is
-- the column with the key, or after 'of' the one with the ID of a row of the same shard.
CREATE SEQUENCE app.wide;
CREATE FUNCTION app.wide() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    named bigint := to_jsonb(NEW) ->> TG_ARGV[0];
    shard bigint := CASE TG_ARGV[1] WHEN 'of' THEN named >> 10 & 8191 ELSE (named % 16 + 16) % 16 END;
    ms bigint := extract(epoch FROM clock_timestamp() - '2026-01-01T00:00:00Z') * 1000;
BEGIN
    IF NEW.id < 1 << 23 THEN
        NEW.id := (ms << 23) | (shard << 10) | (nextval('app.wide') % 1024);
    END IF;
    RETURN NEW;
END $$;
