//! The statements of the protocol. Each is a template of a shard's schema.
//!
//! CLAIM, TAKE and the transaction of KILL commit with `synchronous_commit = on` at least: the
//! protocol relies on them, whatever the session's setting.

use crate::pg::{quote_ident, quote_literal};
use crate::values::{Definition, Fold};

/// Sets `synchronous_commit` for this transaction, unless it is `on` or more. It is true.
const DURABLY: &str = "CASE WHEN pg_catalog.current_setting('synchronous_commit') \
    IN ('off', 'local', 'remote_write') \
    THEN pg_catalog.set_config('synchronous_commit', 'on', true) IS NOT NULL ELSE true END";

/// The table of claims, which the server's errors about it name.
pub(super) const CLAIM_TABLE: &str = "pgshard_claim";

/// The parameters that a statement may have, by PostgreSQL's protocol.
const PARAMETERS_MAX: usize = 65_535;

/// The parameters of a claim's use: see [`use_claim`].
const USE_PARAMETERS: usize = 6;

/// What the shard knows of the look-up: parameter `first` is its name, the next the definition.
fn known(name: &str, first: usize) -> String {
    format!(
        "{name} AS (SELECT l.name, l.kinds, l.definition, \
            l.definition = ${definition}::text AS same \
            FROM {{shard}}.pgshard_lookup l WHERE l.name = ${first}::text)",
        definition = first + 1,
    )
}

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

/// When the entry's claim was made, in microseconds since 1970.
const CLAIMED_US: &str = "pg_catalog.floor(EXTRACT(EPOCH FROM claimed_at) * 1000000)::bigint";

/// Inserts the entry of hash `$3` for key `$4` with a new claim, as [`claim`] does, and returns the
/// claim and when it was made. Nothing if there is an entry, or the shard knows another look-up:
/// then [`claim`] returns which, and takes longer.
pub(super) fn claim_new() -> String {
    format!(
        "INSERT INTO {{shard}}.pgshard_entry (lookup, hash, key, claim, claimed_at) \
            SELECT l.name, $3::bytea, $4::text, pg_catalog.gen_random_uuid(), \
            pg_catalog.clock_timestamp() FROM {{shard}}.pgshard_lookup l WHERE l.name = $1::text \
            AND l.definition = $2::text AND l.kinds = $5::text[] AND {DURABLY} \
            ON CONFLICT DO NOTHING RETURNING claim, {CLAIMED_US}"
    )
}

/// Inserts the entry of hash `$3` for key `$4` with a new claim, if the values are of the types
/// `$5`; or finds the one that is there.
pub(super) fn claim() -> String {
    let known = known("known", 1);
    format!(
        "WITH {known}, changed AS (INSERT INTO {{shard}}.pgshard_entry (lookup, hash, key, claim, \
            claimed_at) SELECT k.name, $3::bytea, $4::text, pg_catalog.gen_random_uuid(), \
            pg_catalog.clock_timestamp() FROM known k WHERE k.same AND k.kinds = $5::text[] AND \
            {DURABLY} ON CONFLICT DO NOTHING RETURNING key, claim, \
            {CLAIMED_US} AS claimed_us, 0::bigint AS age_ms) {ENTRY}"
    )
}

/// Gives the entry to key `$4` with a new claim, if it still has the claim `$6`.
pub(super) fn take() -> String {
    let known = known("known", 1);
    format!(
        "WITH {known}, changed AS (UPDATE {{shard}}.pgshard_entry SET key = $4::text, claim = \
            pg_catalog.gen_random_uuid(), claimed_at = pg_catalog.clock_timestamp() FROM known k \
            WHERE lookup = k.name AND hash = $3::bytea AND claim = $6::uuid AND k.same AND \
            k.kinds = \
            $5::text[] AND {DURABLY} RETURNING key, claim, {CLAIMED_US} AS claimed_us, \
            0::bigint AS age_ms) {ENTRY}"
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

/// Uses a claim, unless it is spent or was made more than 15 minutes ago. Returns the shard's
/// definition, and whether the claim is used now. The parameters: name and definition of the
/// look-up, hash, claim, key, and when the claim was made, in microseconds since 1970.
pub(super) fn use_claim() -> String {
    let (known, is_young) = (known("known", 1), is_young(6));
    format!(
        "WITH {known}, used AS (INSERT INTO {{shard}}.pgshard_claim \
            (lookup, hash, claim, key, outcome, xact, at) \
        SELECT k.name, $3::bytea, $4::uuid, $5::text, 'used', pg_catalog.pg_current_xact_id(), \
            pg_catalog.clock_timestamp() \
        FROM known k WHERE k.same AND {is_young} ON CONFLICT DO NOTHING RETURNING true) \
        SELECT k.definition, EXISTS (SELECT FROM used) FROM known k"
    )
}

/// Whether a claim is at most 15 minutes old: the parameter is when it was made.
fn is_young(made: usize) -> String {
    format!(
        "${made}::bigint > 1000000 * EXTRACT(EPOCH FROM \
            pg_catalog.clock_timestamp() - interval '15 minutes')"
    )
}

/// An INSERT with `params` parameters that uses `claims` claims in the same statement. Each claim
/// has the parameters of [`use_claim`], behind the statement's own.
///
/// The statement fails as a whole if a claim cannot be used: with a duplicate key in
/// `pgshard_claim` if it is spent, with a NULL there if it is too old, or if the shard has another
/// definition of the look-up or none.
///
/// `None` for a statement that is no INSERT, or that names a parameter beyond its own, or if there
/// would be more parameters than a statement may have.
pub(super) fn insert_with_uses(statement: &str, params: usize, claims: usize) -> Option<String> {
    let insert = statement.trim_start();
    if !is_insert(insert)
        || last_parameter(insert) > params
        || params + claims * USE_PARAMETERS > PARAMETERS_MAX
    {
        return None;
    }
    let uses = (0..claims).map(|claim| {
        let (first, name) = (
            1 + params + claim * USE_PARAMETERS,
            format!("pgshard_known_{claim}"),
        );
        format!(
            "{known}, pgshard_used_{claim} AS (INSERT INTO {{shard}}.pgshard_claim \
                (lookup, hash, claim, key, outcome, xact, at) \
            VALUES ((SELECT k.name FROM {name} k WHERE k.same AND {is_young}), ${hash}::bytea, \
                ${id}::uuid, ${key}::text, 'used', pg_catalog.pg_current_xact_id(), \
                pg_catalog.clock_timestamp()))",
            known = known(&name, first),
            is_young = is_young(first + 5),
            hash = first + 2,
            id = first + 3,
            key = first + 4,
        )
    });
    let uses = uses.collect::<Vec<_>>().join(", ");
    Some(format!("WITH {uses} {insert}"))
}

/// Whether the first word of a statement is INSERT.
pub(super) fn is_insert(statement: &str) -> bool {
    let first_word = statement.split_whitespace().next();
    first_word.is_some_and(|word| word.eq_ignore_ascii_case("insert"))
}

/// The highest number after a `$`, wherever it is: in a string, too.
fn last_parameter(statement: &str) -> usize {
    let numbers = statement.split('$').skip(1).map(|after| {
        let end = after
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(after.len());
        match &after[..end] {
            "" => 0,
            number => number.parse().unwrap_or(usize::MAX),
        }
    });
    numbers.max().unwrap_or(0)
}

/// The entry of hash `$3`, and what the shard knows of the look-up.
pub(super) const FIND: &str = "SELECT l.definition, l.kinds, l.state, e.key FROM \
    {shard}.pgshard_lookup l LEFT JOIN {shard}.pgshard_entry e ON e.lookup = l.name AND e.hash = \
    $2::bytea WHERE l.name = $1::text";

/// The entries of the hashes `$2`.
pub(super) const ENTRIES: &str = "SELECT hash, key, claim FROM {shard}.pgshard_entry WHERE lookup \
    = $1::text AND hash = ANY ($2::bytea[])";

/// What the shard has of the look-up `$1`, what its trigger does if it is there and enabled, and
/// how many rows are recorded.
pub(super) fn state(definition: &Definition) -> String {
    let table = quote_literal(&format!("{{shard}}.{}", quote_ident(&definition.table)));
    let name = format!("pgshard_lookup_{}", definition.name);
    let function = quote_literal(&format!("{{shard}}.{}", quote_ident(&name)));
    format!(
        "SELECT l.definition, l.kinds, l.covered, l.state, l.may_record, \
            (SELECT CASE pg_catalog.encode(t.tgargs, 'escape') WHEN 'recording\\000' \
                THEN 'recording' ELSE 'enforcing' END FROM pg_catalog.pg_trigger t \
                WHERE t.tgrelid = {table}::regclass AND t.tgname = {name} \
                AND t.tgenabled IN ('O', 'A') AND t.tgfoid = {function}::regproc), \
            (SELECT count(*) FROM {{shard}}.pgshard_lookup_change c WHERE c.lookup = l.name) \
        FROM {{shard}}.pgshard_lookup l WHERE l.name = $1::text",
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

/// A page of the recorded rows of the look-up `$1` after `$2`: the record's ID, whether the row
/// still has the value, its key and its values.
pub(super) fn recorded(definition: &Definition, kinds: &[String]) -> String {
    let values: Vec<String> = (1..)
        .zip(kinds)
        .map(|(at, kind)| match kind.as_str() {
            "integer" => format!("c.value[{at}]::bigint"),
            "uuid" | "date" => format!("c.value[{at}]::{kind}"),
            _ => format!("c.value[{at}]"),
        })
        .collect();
    let is_row = definition.is_row_sql("c.key", |at| match definition.fold {
        Fold::None => values[at].clone(),
        Fold::Ascii => format!("pg_catalog.lower({} COLLATE \"C\")", values[at]),
    });
    format!(
        "SELECT c.change, EXISTS (SELECT FROM {{shard}}.{table} WHERE {is_row}), c.key, {values} \
        FROM {{shard}}.pgshard_lookup_change c WHERE c.lookup = $1::text AND c.change > $2::uuid \
        ORDER BY c.change LIMIT 1000",
        table = quote_ident(&definition.table),
        values = values.join(", "),
    )
}

/// Deletes records of the look-up `$1`.
pub(super) const DELETE_RECORDED: &str = "DELETE FROM {shard}.pgshard_lookup_change WHERE lookup \
    = $1::text AND change = ANY ($2::uuid[])";

/// Which applications wrote the recorded rows of the look-up `$1`, how many, and when the last one,
/// in milliseconds since 1970.
pub(super) const WRITERS: &str = "SELECT application, role, count(*), \
    pg_catalog.floor(EXTRACT(EPOCH FROM max(at)) * 1000)::bigint FROM \
    {shard}.pgshard_lookup_change WHERE lookup = $1::text GROUP BY application, role";

/// Every row of the shard with a value has its entry, or is recorded.
pub(super) const COVERED: &str = "UPDATE {shard}.pgshard_lookup SET covered = true WHERE name = \
    $1::text AND definition = $2::text";

/// The shard cannot be made recording. Before the first shard is complete.
pub(super) const MAY_NOT_RECORD: &str = "UPDATE {shard}.pgshard_lookup SET may_record = false \
    WHERE name = $1::text AND definition = $2::text";

/// Every row of every shard with a value has its entry.
pub(super) const COMPLETE: &str = "UPDATE {shard}.pgshard_lookup l SET state = 'complete' WHERE \
    l.name = $1::text AND l.definition = $2::text AND l.covered AND NOT l.may_record AND l.state \
    IN ('enforcing', 'complete') AND NOT EXISTS (SELECT FROM {shard}.pgshard_lookup_change c WHERE \
    c.lookup = l.name)";

/// `find` is refused.
pub(super) const NOT_COMPLETE: &str = "UPDATE {shard}.pgshard_lookup SET state = 'enforcing' WHERE \
    name = $1::text AND definition = $2::text AND state = 'complete'";

/// The shard may be made recording. After the last shard is no longer complete.
pub(super) const MAY_RECORD: &str = "UPDATE {shard}.pgshard_lookup SET may_record = true, state = \
    CASE WHEN state = 'complete' THEN 'enforcing' ELSE state END WHERE name = $1::text AND \
    definition = $2::text";

/// Reads the next 1000 claims after hash `$2` and claim `$3`, and deletes those that were spent
/// more than 24 hours ago. Returns how many these were, and the last claim that was read.
pub(super) const SWEEP: &str = "WITH page AS MATERIALIZED (SELECT c.hash, c.claim, c.at FROM \
    {shard}.pgshard_claim c WHERE c.lookup = $1::text AND (c.hash, c.claim) > ($2::bytea, \
    $3::uuid) ORDER BY c.hash, c.claim LIMIT 1000), deleted AS (DELETE FROM {shard}.pgshard_claim \
    c USING page p WHERE c.lookup = $1::text AND c.hash = p.hash AND c.claim = p.claim AND p.at < \
    pg_catalog.clock_timestamp() - interval '24 hours' RETURNING true) SELECT (SELECT count(*) \
    FROM deleted), l.hash, l.claim FROM (SELECT) AS one LEFT JOIN (SELECT hash, claim FROM page \
    ORDER BY hash DESC, claim DESC LIMIT 1) l ON true";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_used_in_an_insert_that_has_only_its_own_parameters() {
        let insert = "  insert INTO {shard}.users VALUES ($1, $2)";
        let whole = insert_with_uses(insert, 2, 2).unwrap();
        assert!(
            whole.ends_with(") insert INTO {shard}.users VALUES ($1, $2)"),
            "{whole}"
        );
        assert!(
            whole.contains("$3::text") && whole.contains("$14::bigint"),
            "{whole}"
        );
        assert_eq!(last_parameter(&whole), 14);
        for other in [
            "INSERT INTO {shard}.users VALUES ($1, $3)",
            "INSERT INTO {shard}.users VALUES ('$99999999999999999999')",
            "WITH a AS (SELECT 1) INSERT INTO {shard}.users SELECT 1",
            "/* x */ INSERT INTO {shard}.users SELECT 1",
            "INSERT/**/INTO {shard}.users SELECT 1",
            "UPDATE {shard}.users SET id = 1",
            "",
        ] {
            assert_eq!(insert_with_uses(other, 2, 1), None, "{other}");
        }
        assert!(insert_with_uses(insert, 65_529, 1).is_some());
        assert_eq!(insert_with_uses(insert, 65_530, 1), None);
    }
}
