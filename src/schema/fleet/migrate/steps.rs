//! What is run in a shard, in order. Pure.

use crate::pg::quote_literal;
use crate::schema::control::Cluster;
use crate::schema::control::RecordedMigration;
use crate::schema::control::id_functions::ID_FUNCTIONS;
use crate::schema::control::script::{Repeatable, guarded};
use crate::schema::fleet::migrations::{Kind, Migrations, Pending};
use crate::shard::ShardId;

/// One migration of one shard.
#[derive(Clone, Debug)]
pub(in crate::schema) struct Step {
    pub(super) recorded: RecordedMigration,
    pub(super) sql: String,
    /// How it is repeated after it was stopped, if it runs outside transactions.
    pub(super) outside: Option<Repeatable>,
}

/// What a shard still lacks, pgshard's own migrations first. No file can remove the guard by its
/// own settings.
pub(super) fn steps(
    cluster: &Cluster,
    migrations: &Migrations,
    pending: Pending,
    shard: ShardId,
    guard: &str,
) -> Vec<Step> {
    let schema = cluster.schema_prefix.schema(shard);
    let own = ID_FUNCTIONS[pending.own_from..].iter().map(|own| Step {
        recorded: own.recorded(),
        sql: own.render(cluster, shard),
        outside: None,
    });
    let theirs = migrations.iter().skip(pending.from).map(|one| Step {
        recorded: one.recorded(),
        sql: guarded(&one.render(&schema, shard), guard),
        outside: match &one.kind {
            Kind::NoTransaction { repeatable, .. } => Some(repeatable.clone()),
            Kind::Shard | Kind::Host => None,
        },
    });
    own.chain(theirs).collect()
}

/// The next steps that run together: all up to the first that runs alone, or only that one.
pub(super) fn together(steps: &[Step]) -> &[Step] {
    let alone = steps.iter().position(|step| step.outside.is_some());
    match alone {
        Some(0) => &steps[..1],
        Some(at) => &steps[..at],
        None => steps,
    }
}

/// The SQL that records that a shard has these now.
pub(super) fn record(shard: ShardId, steps: &[Step]) -> String {
    let rows = steps.iter().map(|Step { recorded, .. }| {
        format!(
            "({shard}, {}, {})",
            quote_literal(&recorded.name),
            quote_literal(&recorded.checksum)
        )
    });
    format!(
        "INSERT INTO pgshard.shard_migration (shard_id, name, checksum) VALUES {}; \
         DELETE FROM pgshard.migration_attempt WHERE shard_id = {shard}",
        rows.collect::<Vec<_>>().join(", ")
    )
}
