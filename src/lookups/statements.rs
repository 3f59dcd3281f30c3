//! The statements of the protocol. Each is a template of a shard's schema.
//!
//! CLAIM, TAKE and the transaction of KILL commit with `synchronous_commit = on` at least: the
//! protocol relies on them, whatever the session's setting.

use crate::pg::{quote_ident, quote_literal};
use crate::values::Definition;

/// Sets `synchronous_commit` for this transaction, unless it is `on` or more. It is true.
const DURABLY: &str = "pg_catalog.set_config('synchronous_commit', CASE WHEN \
    pg_catalog.current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN 'on' \
    ELSE pg_catalog.current_setting('synchronous_commit') END, true) IS NOT NULL";

/// What the shard knows of the look-up: `$1` is its name, `$2` the definition.
const KNOWN: &str = "known AS (SELECT l.name, l.kinds, l.definition, l.definition = $2::text AS \
    same FROM {shard}.pgshard_lookup l WHERE l.name = $1::text)";

/// What a claimer gets: the entry as it is now, and whether it is its own.
const ENTRY: &str = "SELECT k.definition, k.kinds, e.key, e.claim, e.claimed_us, e.age_ms, e.won \
    FROM known k LEFT JOIN (SELECT c.*, true AS won FROM changed c UNION ALL SELECT x.key, \
    x.claim, \
    pg_catalog.floor(EXTRACT(EPOCH FROM x.claimed_at) * 1000000)::bigint AS claimed_us, \
    pg_catalog.floor(EXTRACT(EPOCH FROM (pg_catalog.clock_timestamp() - x.claimed_at)) * \
    1000)::bigint \
    AS age_ms, false AS won FROM {shard}.pgshard_entry x WHERE x.lookup = $1 AND x.hash = $3 AND \
    NOT \
    EXISTS (SELECT FROM changed)) e ON true";

const RETURNING: &str = "RETURNING key, claim, \
    pg_catalog.floor(EXTRACT(EPOCH FROM claimed_at) * 1000000)::bigint AS claimed_us, 0::bigint AS \
    age_ms";

/// Inserts the entry of hash `$3` for key `$4` with a new claim, if the values are of the types
/// `$5`; or finds the one that is there.
pub(super) fn claim() -> String {
    format!(
        "WITH {KNOWN}, changed AS (INSERT INTO {{shard}}.pgshard_entry (lookup, hash, key, claim, \
            claimed_at) SELECT k.name, $3::bytea, $4::text, pg_catalog.gen_random_uuid(), \
            pg_catalog.clock_timestamp() FROM known k WHERE k.same AND k.kinds = $5::text[] AND \
            {DURABLY} ON CONFLICT DO NOTHING {RETURNING}) {ENTRY}"
    )
}

/// Gives the entry to key `$4` with a new claim, if it still has the claim `$6`.
pub(super) fn take() -> String {
    format!(
        "WITH {KNOWN}, changed AS (UPDATE {{shard}}.pgshard_entry SET key = $4::text, claim = \
            pg_catalog.gen_random_uuid(), claimed_at = pg_catalog.clock_timestamp() FROM known k \
            WHERE lookup = k.name AND hash = $3::bytea AND claim = $6::uuid AND k.same AND \
            k.kinds = \
            $5::text[] AND {DURABLY} {RETURNING}) {ENTRY}"
    )
}

/// Whether key `$1` has a row with these values, and whether the claim is spent. Takes no lock.
pub(super) fn look(definition: &Definition) -> String {
    let hash = definition.columns.len() + 2;
    format!(
        "SELECT EXISTS ({row}), EXISTS (SELECT FROM {{shard}}.pgshard_claim c WHERE c.lookup = \
        {name} \
            AND c.hash = ${hash}::bytea AND c.claim = ${claim}::uuid)",
        row = has_row(definition),
        name = definition.name_literal(),
        claim = hash + 1,
    )
}

/// Whether key `$1` has a row with these values.
pub(super) fn look_again(definition: &Definition) -> String {
    format!("SELECT EXISTS ({})", has_row(definition))
}

fn has_row(definition: &Definition) -> String {
    format!(
        "SELECT FROM {{shard}}.{} WHERE {}",
        quote_ident(&definition.table),
        definition.has_row_sql()
    )
}

/// Bounds how long [`VOID`] waits for a transaction that uses the claim, and makes the commit
/// durable.
pub(super) fn before_kill() -> String {
    format!("SELECT pg_catalog.set_config('lock_timeout', '500ms', true), {DURABLY}")
}

/// Makes the claim `$3` of hash `$2` unusable. Waits for a transaction in flight that uses it.
pub(super) const VOID: &str = "INSERT INTO {shard}.pgshard_claim (lookup, hash, claim, key, \
    outcome, xact, at) VALUES ($1::text, $2::bytea, $3::uuid, $4::text, 'void', \
    pg_catalog.pg_current_xact_id(), pg_catalog.clock_timestamp()) ON CONFLICT DO NOTHING";

/// Uses the claim `$4` of hash `$3` for key `$5`, unless it is spent or was made (`$6`, in
/// microseconds since 1970) more than 15 minutes ago.
pub(super) fn use_claim() -> String {
    format!(
        "WITH {KNOWN}, used AS (INSERT INTO {{shard}}.pgshard_claim (lookup, hash, claim, key, \
            outcome, xact, at) SELECT k.name, $3::bytea, $4::uuid, $5::text, 'used', \
            pg_catalog.pg_current_xact_id(), pg_catalog.clock_timestamp() FROM known k WHERE \
            k.same AND \
            $6::bigint > EXTRACT(EPOCH FROM pg_catalog.clock_timestamp() - interval '15 \
            minutes') * \
            1000000 ON CONFLICT DO NOTHING RETURNING true AS used) SELECT k.definition, EXISTS \
            (SELECT \
            FROM used) FROM known k"
    )
}

/// The entry of hash `$3`, and what the shard knows of the look-up.
pub(super) const FIND: &str = "SELECT l.definition, l.kinds, l.state, e.key FROM \
    {shard}.pgshard_lookup l LEFT JOIN {shard}.pgshard_entry e ON e.lookup = l.name AND e.hash = \
    $2::bytea WHERE l.name = $1::text";

/// What the shard has of the look-up `$1`, and whether its trigger is there and enabled.
pub(super) fn state(definition: &Definition) -> String {
    let table = quote_literal(&format!("{{shard}}.{}", quote_ident(&definition.table)));
    let name = format!("pgshard_lookup_{}", definition.name);
    let function = quote_literal(&format!("{{shard}}.{}", quote_ident(&name)));
    format!(
        "SELECT l.definition, l.kinds, l.covered, l.state, EXISTS (SELECT FROM \
        pg_catalog.pg_trigger t \
            WHERE t.tgrelid = {table}::regclass AND t.tgname = {name} AND t.tgenabled IN ('O', \
            'A') AND \
            t.tgfoid = {function}::regproc) FROM {{shard}}.pgshard_lookup l WHERE l.name = \
            $1::text",
        name = quote_literal(&name),
    )
}

/// Every row with a value: its key as text, and the columns.
pub(super) fn rows(definition: &Definition, kinds: &[String]) -> String {
    let columns: Vec<String> = definition
        .columns
        .iter()
        .map(|name| quote_ident(name))
        .collect();
    let selected: Vec<String> = columns
        .iter()
        .zip(kinds)
        .map(|(column, kind)| match kind.as_str() {
            "integer" => format!("{column}::bigint"),
            "uuid" | "date" => column.clone(),
            _ => format!("{column}::text"),
        })
        .collect();
    let there: Vec<String> = columns
        .iter()
        .map(|name| format!("{name} IS NOT NULL"))
        .collect();
    format!(
        "SELECT {}::text, {} FROM {{shard}}.{} WHERE {}",
        quote_ident(&definition.key),
        selected.join(", "),
        quote_ident(&definition.table),
        there.join(" AND ")
    )
}

/// Every row of the shard with a value has its entry.
pub(super) const COVERED: &str = "UPDATE {shard}.pgshard_lookup SET covered = true WHERE name = \
    $1::text AND definition = $2::text";

/// Every row of every shard with a value has its entry.
pub(super) const COMPLETE: &str = "UPDATE {shard}.pgshard_lookup SET state = 'complete' WHERE name \
    = $1::text AND definition = $2::text";

/// Of the next 1000 claims after hash `$2` and claim `$3`, deletes those that were spent more than
/// 24 hours ago. Returns how many these were, and the last claim that was read.
pub(super) const SWEEP: &str = "WITH page AS MATERIALIZED (SELECT c.hash, c.claim, c.at FROM \
    {shard}.pgshard_claim c WHERE c.lookup = $1::text AND (c.hash, c.claim) > ($2::bytea, \
    $3::uuid) ORDER BY c.hash, c.claim LIMIT 1000), deleted AS (DELETE FROM {shard}.pgshard_claim \
    c USING page p WHERE c.lookup = $1::text AND c.hash = p.hash AND c.claim = p.claim AND p.at < \
    pg_catalog.clock_timestamp() - interval '24 hours' RETURNING true) SELECT (SELECT count(*) \
    FROM deleted), l.hash, l.claim FROM (SELECT) AS one LEFT JOIN (SELECT hash, claim FROM page \
    ORDER BY hash DESC, claim DESC LIMIT 1) l ON true";
