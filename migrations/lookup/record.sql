-- The look-up @name@ records: a row whose value was not claimed is written, and recorded.
-- Written by `pgshard lookups migration @name@ --step record`, for all shards.
--
-- Locks: CREATE TRIGGER takes SHARE ROW EXCLUSIVE on the table until the end of this migration, and
-- waits for transactions that write to the table.
DO $pgshard$
BEGIN
    UPDATE {shard}.pgshard_lookup SET state = 'recording'
        WHERE name = @name_text@ AND definition = @definition_text@ AND may_record
            AND state <> 'complete';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the look-up @name@ cannot record while it answers find'
            USING HINT = 'Run `pgshard lookups suspend @name@` first.';
    END IF;
END $pgshard$;
CREATE OR REPLACE TRIGGER @function@ AFTER INSERT OR UPDATE ON {shard}.@table@
    FOR EACH ROW EXECUTE FUNCTION {shard}.@function@('recording');
