-- The ID function of a shard: every sharded table has it as the default of its key, `id bigint DEFAULT {shard}.next_id()`.
-- Run by the role that owns the shard. A role that only writes needs USAGE on the schema and on the sequence.
--
-- What may not break:
--   * the layout, 41 bits of milliseconds since the epoch, 13 bits of shard, 10 bits of sequence;
--   * the body is text that names the shard's final schema, so that a move can carry it before the schema has its name;
--   * every name in it is qualified: it does the same under any search_path.
--
-- {shard} is the shard's schema, quoted; {shard_id} its number; {epoch_ms} the cluster's epoch as Unix milliseconds.
CREATE SEQUENCE {shard}.id_seq AS bigint;

CREATE FUNCTION {shard}.next_id() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $next_id$
DECLARE
    -- Cut off, not rounded: an ID is never of a millisecond that has not begun. date_part() is cheaper than extract().
    ms bigint := pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::bigint - ({epoch_ms});
BEGIN
    IF ms < 0 OR ms > 2199023255551 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'datetime_field_overflow',
            MESSAGE = CASE WHEN ms < 0 THEN 'the clock of this server is before the epoch of the cluster''s IDs'
                           ELSE 'the 41 bits of the cluster''s IDs are used up' END,
            DETAIL = pg_catalog.format('The clock says %s, the epoch is %s ms after 1970.', pg_catalog.clock_timestamp(), {epoch_ms}),
            HINT = CASE WHEN ms < 0 THEN 'Set the server''s clock right.' ELSE 'IDs of another epoch are another cluster.' END;
    END IF;
    -- From 2^40 ms on the shift reaches the sign bit and the bigint is negative; its fields still decode.
    -- The parentheses are needed: | and << bind alike.
    RETURN (ms << 23) | ({shard_id} << 10) | (pg_catalog.nextval('{shard}.id_seq') & 1023);
END $next_id$;
