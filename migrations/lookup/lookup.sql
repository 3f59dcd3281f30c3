-- The look-up @name@: @about@.
-- Written by `pgshard lookups migration @name@`, for all shards.
--
-- Locks: CREATE TRIGGER takes SHARE ROW EXCLUSIVE on the table until the end of this migration. It
-- waits for transactions that write to the table, so what is committed later has run into the
-- trigger.

-- What this shard knows of the look-ups. Every statement of a router compares the definition.
CREATE TABLE IF NOT EXISTS {shard}.pgshard_lookup (
    name text PRIMARY KEY,
    definition text NOT NULL,
    -- The types of the columns: integer, text, uuid, date.
    kinds text[] NOT NULL,
    -- Every row of this shard with a value has its entry, or is in pgshard_lookup_change.
    covered boolean NOT NULL,
    -- `recording`: a row whose value was not claimed is recorded; `enforcing`: it is refused;
    -- `complete`: and every shard is covered, so a value without an entry belongs to no key.
    state text NOT NULL CHECK (state IN ('recording', 'enforcing', 'complete')),
    -- No shard is complete, so this one may be made recording.
    may_record boolean NOT NULL
);

-- Of the values with a hash that leads to this shard: the key that has them, or had.
CREATE TABLE IF NOT EXISTS {shard}.pgshard_entry (
    lookup text NOT NULL,
    hash bytea NOT NULL,
    key text NOT NULL,
    claim uuid NOT NULL,
    claimed_at timestamptz NOT NULL,
    PRIMARY KEY (lookup, hash)
);

-- The claims that are spent, in the shard of the row. `outcome` is 'used' or 'void', without a
-- CHECK, which each statement that uses a claim would parse. `xact` means something on one server
-- only, and for the transaction that has it now.
CREATE TABLE IF NOT EXISTS {shard}.pgshard_claim (
    lookup text NOT NULL,
    hash bytea NOT NULL,
    claim uuid NOT NULL,
    key text NOT NULL,
    outcome text NOT NULL,
    xact xid8 NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (lookup, hash, claim)
);

-- The rows that were written without a claim while the look-up was recording, and by which
-- application, until `pgshard lookups build` has given them their entries.
CREATE TABLE IF NOT EXISTS {shard}.pgshard_lookup_change (
    lookup text NOT NULL,
    change uuid NOT NULL,
    key text NOT NULL,
    -- The values of the columns, as texts.
    value text[] NOT NULL,
    application text NOT NULL,
    role text NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (lookup, change)
);
DO $pgshard$
DECLARE
    target pg_catalog.regclass := pg_catalog.to_regclass(@table_text@);
    wanted pg_catalog.text[] := @columns_text@;
    columns pg_catalog.int2[];
    kinds pg_catalog.text[];
    writer pg_catalog.text;
BEGIN
    IF target IS NULL THEN
        RAISE EXCEPTION 'the look-up @name@ is over a table that this shard does not have: %',
                @table_text@
            USING HINT = 'Create the table by an earlier migration, or correct [lookups.@name@] '
                'in the config.';
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = target
        AND (c.relkind <> 'r' OR c.relispartition OR c.relhassubclass OR c.relrowsecurity))
    THEN
        RAISE EXCEPTION 'the look-up @name@ cannot be over %', target
            USING HINT = 'It must be an ordinary table: not partitioned, no parent of others, no '
                'row-level security.';
    END IF;
    SELECT pg_catalog.array_agg(a.attnum ORDER BY w.place),
        pg_catalog.array_agg(CASE a.atttypid
            WHEN 'pg_catalog.int2'::pg_catalog.regtype THEN 'integer'
            WHEN 'pg_catalog.int4'::pg_catalog.regtype THEN 'integer'
            WHEN 'pg_catalog.int8'::pg_catalog.regtype THEN 'integer'
            WHEN 'pg_catalog.text'::pg_catalog.regtype THEN 'text'
            WHEN 'pg_catalog.varchar'::pg_catalog.regtype THEN 'text'
            WHEN 'pg_catalog.uuid'::pg_catalog.regtype THEN 'uuid'
            WHEN 'pg_catalog.date'::pg_catalog.regtype THEN 'date' END
            ORDER BY w.place)
        INTO columns, kinds
        FROM pg_catalog.unnest(wanted) WITH ORDINALITY AS w(name, place)
        LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = target AND a.attname = w.name
            AND a.attnum > 0 AND NOT a.attisdropped
            AND NOT EXISTS (SELECT FROM pg_catalog.pg_collation l
                WHERE l.oid = a.attcollation AND NOT l.collisdeterministic);
    IF pg_catalog.array_position(kinds, NULL) IS NOT NULL @only_texts@THEN
        RAISE EXCEPTION 'the look-up @name@ cannot be over these columns of %: %', target, wanted
            USING HINT = 'Each is an integer, text, varchar, uuid or date, without a collation '
                'that is not deterministic; with fold = "ascii" each is text or varchar.';
    END IF;
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = target AND a.attname = @key_text@
        AND a.attnotnull AND NOT a.attisdropped AND a.atttypid IN (
            'pg_catalog.int2'::pg_catalog.regtype, 'pg_catalog.int4'::pg_catalog.regtype,
            'pg_catalog.int8'::pg_catalog.regtype, 'pg_catalog.text'::pg_catalog.regtype,
            'pg_catalog.varchar'::pg_catalog.regtype, 'pg_catalog.uuid'::pg_catalog.regtype))
    THEN
        RAISE EXCEPTION 'the look-up @name@ has no key column % in %', @key_text@, target
            USING HINT = 'It is an integer, text, varchar or uuid, and NOT NULL.';
    END IF;
    @unique@
    -- A role that writes rows claims their values.
    FOR writer IN
        SELECT DISTINCT CASE g.grantee WHEN 0 THEN 'PUBLIC'
            ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(g.grantee)) END
        FROM (SELECT c.relacl AS acl FROM pg_catalog.pg_class c WHERE c.oid = target
            UNION ALL SELECT a.attacl FROM pg_catalog.pg_attribute a WHERE a.attrelid = target) l,
            LATERAL pg_catalog.aclexplode(l.acl) g
        WHERE g.privilege_type IN ('INSERT', 'UPDATE')
    LOOP
        EXECUTE 'GRANT SELECT ON {shard}.pgshard_lookup TO ' || writer;
        EXECUTE 'GRANT SELECT, INSERT, UPDATE ON {shard}.pgshard_entry TO ' || writer;
        EXECUTE 'GRANT SELECT, INSERT ON {shard}.pgshard_claim TO ' || writer;
    END LOOP;
    INSERT INTO {shard}.pgshard_lookup (name, definition, kinds, covered, state, may_record)
        VALUES (@name_text@, @definition_text@, kinds, false, @mode_text@, true);
END $pgshard$;
@index@
-- Refuses a row if its value was not claimed in its transaction for its key, or records it. It has
-- the rights of its owner: a role may write the table by a view, without any right on tables.
CREATE FUNCTION {shard}.@function@() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $pgshard$
DECLARE
    value_hash pg_catalog.bytea;
BEGIN
    IF TG_OP = 'UPDATE' AND @as_before@ THEN
        RETURN NULL;
    END IF;
    value_hash := @hash@;
    IF value_hash IS NULL OR EXISTS (
        SELECT FROM {shard}.pgshard_claim c WHERE c.lookup = @name_text@ AND c.hash = value_hash
            AND c.outcome = 'used' AND c.key = NEW.@key@::pg_catalog.text
            AND c.xact = pg_catalog.pg_current_xact_id() AND c.at >= pg_catalog.now())
    THEN
        RETURN NULL;
    END IF;
    IF TG_ARGV[0] = 'recording' THEN
        INSERT INTO {shard}.pgshard_lookup_change
                (lookup, change, key, value, application, role, at)
            VALUES (@name_text@, pg_catalog.gen_random_uuid(), NEW.@key@::pg_catalog.text, @texts@,
                pg_catalog.current_setting('application_name'), session_user,
                pg_catalog.clock_timestamp());
        RETURN NULL;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'SH003',
        MESSAGE = 'the value of ' || @columns_about@ || ' was not claimed for the look-up @name@',
        HINT = 'Claim the value for the key of the row first: by Router::claiming in Rust, '
            'Lookups.claim in Python, a Lookup in Meta.lookups in Django.';
END $pgshard$;

REVOKE ALL ON FUNCTION {shard}.@function@() FROM PUBLIC;

CREATE TRIGGER @function@ AFTER INSERT OR UPDATE ON {shard}.@table@
    FOR EACH ROW EXECUTE FUNCTION {shard}.@function@(@mode_text@);

-- No row can come without an entry, or a record, from now on. A snapshot from before the lock would
-- not show every row.
UPDATE {shard}.pgshard_lookup SET covered = true
    WHERE name = @name_text@
        AND pg_catalog.current_setting('transaction_isolation') = 'read committed'
        AND NOT EXISTS (SELECT FROM {shard}.@table@);
