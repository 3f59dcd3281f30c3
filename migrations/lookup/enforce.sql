-- The look-up @name@ enforces: a row whose value was not claimed is refused (SH003).
-- Written by `pgshard lookups migration @name@ --step enforce`, for all shards.
--
-- Locks: CREATE TRIGGER takes SHARE ROW EXCLUSIVE on the table until the end of this migration. It
-- waits for transactions that write to the table: what they have recorded is seen below.
CREATE OR REPLACE TRIGGER @function@ AFTER INSERT OR UPDATE ON {shard}.@table@
    FOR EACH ROW EXECUTE FUNCTION {shard}.@function@('enforcing');
DO $pgshard$
DECLARE
    pending pg_catalog.text;
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the look-up @name@ is not enforced in an isolation level with an older '
            'snapshot' USING HINT = 'ALTER ROLE … RESET default_transaction_isolation';
    END IF;
    SELECT pg_catalog.format('%s rows were written without a claim since then, last by %s',
            pg_catalog.count(*),
            (pg_catalog.array_agg(c.application ORDER BY c.at DESC))[1])
        INTO pending FROM {shard}.pgshard_lookup_change c
        WHERE c.lookup = @name_text@ HAVING pg_catalog.count(*) > 0;
    IF pending IS NOT NULL OR NOT EXISTS (SELECT FROM {shard}.pgshard_lookup l
        WHERE l.name = @name_text@ AND l.definition = @definition_text@ AND l.covered)
    THEN
        RAISE EXCEPTION 'the look-up @name@ cannot be enforced yet: %',
                COALESCE(pending, 'not every row has its entry')
            USING HINT = 'Deploy an application that claims, run `pgshard lookups build @name@` '
                'until it reports no duplicates, and then run `pgshard migrate up` again.';
    END IF;
    UPDATE {shard}.pgshard_lookup SET state = 'enforcing'
        WHERE name = @name_text@ AND state = 'recording';
END $pgshard$;
