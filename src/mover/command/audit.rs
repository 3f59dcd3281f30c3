//! The late audit: of kept shards from a move that ended without one.

use crate::mover::control::context::Context;
use crate::mover::control::journal::Entry;
use crate::mover::control::report::{Report, ShardReport};
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::state::Phase;
use crate::mover::protocol::verdict::AuditState;
use crate::mover::runner;

/// Audits what is still possible of a move's kept shards.
pub(crate) async fn audit(context: &Context, id: MoveId) -> Result<Report, Error> {
    let (entries, unknown) = context.list(Some(id)).await;
    if entries.is_empty() {
        return Err(unknown
            .into_iter()
            .next()
            .map_or(Error::NoSuchMove { id }, |(_, error)| error));
    }
    let mut report = Report {
        id,
        done: Vec::new(),
        failed: Vec::new(),
        unknown,
    };
    for entry in &entries {
        if entry.phase == Phase::Kept {
            report.done.push(audited(context, entry).await);
        } else if !entry.phase.is_ended() {
            let (shard, phase) = (entry.shard, entry.phase);
            let reason = format!("it is audited at its end: `pgshard moves resume {id}`");
            report.failed.push((
                shard,
                Error::NotNow {
                    shard,
                    phase,
                    reason,
                },
            ));
        }
    }
    Ok(report)
}

/// The report of a kept shard, which is audited now if it was not.
pub(crate) async fn audited(context: &Context, entry: &Entry) -> ShardReport {
    let mut done = ShardReport::of(entry);
    if matches!(entry.audit.state, AuditState::None | AuditState::NotAudited) {
        done.audit = runner::audit::late(context, entry).await;
    }
    done
}
