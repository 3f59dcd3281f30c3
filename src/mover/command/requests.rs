//! An operator's requests to a running mover, and the identity of that mover: from any machine,
//! through the journals of all hosts.

use std::time::{Duration, Instant};

use crate::map::HostName;
use crate::mover::control::context::Context;
use crate::mover::protocol::desired::{DesiredState, StopKind};
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::worker::Worker;
use crate::schema::COMMITS_WAIT;
use crate::shard::ShardId;

/// How long a host may take to commit an operator's request.
const COMMIT_MAX: Duration = Duration::from_secs(10);

/// What a host answers to a request, which is written there.
///
/// # Errors
/// [`Error::CommitWaits`] where it does not commit it in time.
async fn in_time<T>(
    context: &Context,
    host: &HostName,
    written: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let began = Instant::now();
    let written = match tokio::time::timeout(COMMIT_MAX, written).await {
        // A request before this one may hold the row until its own commit ends.
        Ok(Err(error)) if error.is_lock() => Some(error),
        Ok(written) => return written,
        Err(_) => None,
    };
    let what = "looking what a commit waits for";
    let asked = async {
        let session = context.hosts.open_new(host).await?;
        let row = session
            .row(what, &format!("SELECT {COMMITS_WAIT}"), &[])
            .await?;
        row.get::<_, bool>(0)
    };
    let asked = tokio::time::timeout(COMMIT_MAX, asked).await;
    let for_standbys = matches!(asked, Ok(Ok(true)));
    Err(match written {
        Some(error) if !for_standbys => error,
        _ => Error::CommitWaits {
            host: host.clone(),
            waited_s: began.elapsed().as_secs(),
            for_standbys,
        },
    })
}

/// Sets the desired state of a move.
pub(crate) async fn set_desired_state(
    context: &Context,
    id: MoveId,
    desired: DesiredState,
) -> Result<(Vec<ShardId>, Vec<(HostName, Error)>), Error> {
    let told = context.hosts.names().map(|host| async move {
        let told = async {
            let session = context.hosts.open(host).await?;
            in_time(context, host, session.set_desired_state(id, desired)).await
        };
        (host.clone(), told.await)
    });
    let (mut known, mut open, mut unknown) = (false, Vec::new(), Vec::new());
    for (host, answer) in futures_util::future::join_all(told).await {
        match answer {
            Ok(shards) => {
                known |= !shards.is_empty();
                open.extend(
                    shards
                        .into_iter()
                        .filter_map(|(shard, ended)| (!ended).then_some(shard)),
                );
            }
            Err(error) => unknown.push((host, error)),
        }
    }
    if !known {
        return Err(unknown
            .into_iter()
            .next()
            .map_or(Error::NoSuchMove { id }, |(_, error)| error));
    }
    open.sort_unstable();
    Ok((open, unknown))
}

/// Requests a move's mover to stop, or to abort.
pub(crate) async fn request(
    context: &Context,
    id: MoveId,
    asked: StopKind,
) -> (Vec<Worker>, Vec<(HostName, Error)>) {
    of_workers(context, id, Some(asked)).await
}

/// Who works on a move at present.
pub(crate) async fn workers(
    context: &Context,
    id: MoveId,
) -> (Vec<Worker>, Vec<(HostName, Error)>) {
    of_workers(context, id, None).await
}

async fn of_workers(
    context: &Context,
    id: MoveId,
    asked: Option<StopKind>,
) -> (Vec<Worker>, Vec<(HostName, Error)>) {
    let answers = context.hosts.names().map(|host| async move {
        let answer = async {
            let session = context.hosts.open(host).await?;
            if !session.is_bootstrapped().await? {
                return Ok(Vec::new());
            }
            if let Some(asked) = asked {
                let asked = session.request(id, asked, &context.options.holder);
                in_time(context, host, asked).await?;
            }
            session.workers(id).await
        };
        (host.clone(), answer.await)
    });
    let (mut workers, mut unknown) = (Vec::new(), Vec::new());
    for (host, answer) in futures_util::future::join_all(answers).await {
        match answer {
            Ok(found) => workers.extend(found),
            Err(error) => unknown.push((host, error)),
        }
    }
    (workers, unknown)
}
