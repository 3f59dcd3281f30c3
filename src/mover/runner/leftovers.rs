//! What the shards of a route share, and what must be dropped once the last of them has ended.

use crate::mover::control::context::Context;
use crate::mover::protocol::error::Error;
use crate::mover::runner::assignment::GroupKey;
use crate::mover::runner::reverse;
use crate::mover::step::identity;
use crate::mover::stream::slot;
use crate::pg::cause::chain;

/// Drops publications and slots that no shard needs any longer: those of the move once every shard
/// that came from its source has ended, and those of reverse replications that cannot be used any
/// more.
///
/// Locks: none.
pub(in crate::mover) async fn drop_shared(
    context: &Context,
    shared: &GroupKey,
) -> Result<(), Error> {
    let GroupKey {
        id,
        source,
        target,
        rollback_of,
    } = shared;
    let source = context.hosts.open(source).await?;
    let target = context.hosts.open(target).await?;
    reverse::stream::tidy_up(context, &source, &target, *id).await?;
    let entries = source.entries(Some(*id)).await?;
    if entries.iter().any(|entry| !entry.phase.is_ended()) {
        return Ok(());
    }
    let name = slot::stream_name(*id);
    slot::drop_slot(&source, &name).await?;
    context.options.at("after slot drop")?;
    slot::drop_publication(&source, &name).await?;
    context.options.at("after publication drop")?;
    if let Some(taken_back) = rollback_of {
        reverse::stream::tidy_up(context, &target, &source, *taken_back).await?;
    }
    // The shards have left, so the move that brought them here can no longer be rolled back.
    reverse::stream::look_after(context, &source).await?;
    for host in [&source, &target] {
        identity::take_back_or_warn(host).await;
    }
    Ok(())
}

/// The same where the caller cannot react to an error: it is logged.
pub(in crate::mover) async fn drop_shared_or_warn(context: &Context, shared: &GroupKey) {
    if let Err(error) = drop_shared(context, shared).await {
        tracing::warn!(host = %shared.source, error = chain(&error), "`pgshard moves gc` drops \
            what is left of the stream");
    }
}
