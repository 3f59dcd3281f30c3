//! A host that has come back from an earlier time: it was restored, emptied, or failed over to a
//! standby that lacked the last seconds.
//!
//! [`read`](facts::read) reads all hosts, [`judge`](judge::judge) determines what must be done, and
//! a repair decides for each shard which host serves it. A second run does nothing.

mod facts;
mod judge;
mod plan;
mod scope;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::map::HostName;
use crate::mover::command::repair;
use crate::mover::control::context::Context;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::Names;
use crate::pg::quote_ident;

pub use plan::{ClockRaise, Decision, LostMove, RecoveredServer, RecoveryPlan, RowsElsewhere};

/// Reads every host and decides. Writes nothing.
pub(in crate::mover) async fn plan(
    context: &Context,
    host: &HostName,
    margin: Option<Duration>,
) -> Result<RecoveryPlan, Error> {
    Ok(judge::judge(&facts::read(context, host).await?, margin))
}

/// Executes a plan, and returns what is left. The clocks come first: from then on, applications
/// that already write to the host get no ID a second time.
pub(in crate::mover) async fn recover(
    context: &Context,
    plan: &RecoveryPlan,
) -> Result<RecoveryPlan, Error> {
    tracing::info!(host = %plan.host, shards = plan.summary(), "bringing a host back into service");
    raise(context, &plan.clocks).await?;
    for repair in &plan.repairs {
        repair::repair(context, repair).await?;
        context.options.at("after repair")?;
    }
    // A shard that was just opened or taken back has a clock only now.
    let left = self::plan(context, &plan.host, None).await?;
    if left.clocks.is_empty() {
        return Ok(left);
    }
    raise(context, &left.clocks).await?;
    Ok(RecoveryPlan {
        clocks: Vec::new(),
        ..left
    })
}

/// Raises ID clocks, host by host.
///
/// Locks: ROW EXCLUSIVE on the shard's sequence id_offset and the advisory lock of its ID clock,
/// for one statement.
async fn raise(context: &Context, clocks: &[ClockRaise]) -> Result<(), Error> {
    for of_host in clocks.chunk_by(|one, other| one.host == other.host) {
        let mut session = context.hosts.open(&of_host[0].host).await?;
        for raise in of_host {
            session = session.for_shard(raise.shard);
            let names = Names {
                schema: context.prefix.schema(raise.shard),
            };
            let sql = format!("SELECT {}.resume_after($1)", quote_ident(&names.schema));
            session
                .row("raising the ID clock", &sql, &[&raise.id])
                .await?;
        }
    }
    Ok(())
}
