//! The shards of one move that come online from one host to another: one publication, one slot, one stream for all of them.
//!
//! A slot decodes the source's whole WAL, so five hundred shards share one. Every shard is still its own: it is claimed,
//! copied, fenced and opened by itself, and its failure stops no other. What may not break: the slot is there before the
//! first row is copied and until the last shard of the group has ended; rows that were copied under a slot that is gone
//! are copied again.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream;
use uuid::Uuid;

use crate::map::HostName;
use crate::shard::ShardId;

use super::driver::{self, Driver, Part, Signed, Until, begin, chain, connect, sign};
use super::error::Error;
use super::heartbeat::Heartbeat;
use super::journal::{Hold, Note};
use super::names::MoveId;
use super::options::Event;
use super::session::Session;
use super::state::{Goal, Phase};
use super::stream::{Follower, slot};
use super::{Mover, ShardReport};

type End = (ShardId, Result<ShardReport, Error>);

/// Moves the parts, which are of one move and have the same source and target, to their ends.
pub(super) async fn work(mover: &Mover, parts: Vec<Part>) -> Vec<End> {
    let Some(first) = parts.first() else { return Vec::new() };
    let group = Group {
        mover,
        id: first.id,
        source: first.source.clone(),
        target: first.target.clone(),
        lease: Uuid::new_v4(),
        first: first.shard,
    };
    let shards: Vec<ShardId> = parts.iter().map(|part| part.shard).collect();
    match group.run(parts).await {
        Ok(ends) => ends,
        // Nothing of a shard has begun, or its own end would be here.
        Err(error) => {
            let error = Arc::new(error);
            shards.into_iter().map(|shard| (shard, Err(Error::Group { shard, source: error.clone() }))).collect()
        }
    }
}

struct Group<'a> {
    mover: &'a Mover,
    id: MoveId,
    source: HostName,
    target: HostName,
    /// The same for all shards of the group: whoever takes one over takes the stream over.
    lease: Uuid,
    /// The shard whose number the ledger gives with what is of all of them.
    first: ShardId,
}

impl<'a> Group<'a> {
    async fn run(&self, parts: Vec<Part>) -> Result<Vec<End>, Error> {
        let heartbeat = Heartbeat::start(self.session(&self.source).await?, self.mover.options.leases);
        let mut ends = Vec::new();
        let mut drives = Vec::new();
        for begun in self.begin(parts, &heartbeat).await {
            match begun {
                Ok(drive) => drives.push(drive),
                Err(end) => ends.push(end),
            }
        }
        if !drives.is_empty() {
            ends.extend(self.stream(drives).await);
        }
        self.tidy_up().await;
        Ok(ends)
    }

    /// Comes by every shard, and does all that can be done without the stream: a shard that is new is prepared, one that
    /// is fenced and was not drained is served again, one that is decided is opened.
    async fn begin(
        &self,
        parts: Vec<Part>,
        heartbeat: &'a Heartbeat,
    ) -> Vec<Result<Driver<'a>, End>> {
        let begun = stream::iter(parts).map(|part| async move {
            let shard = part.shard;
            if self.mover.is_stopped() {
                return Err((shard, Err(Error::Interrupted { shard })));
            }
            let hold = Hold { id: self.id, shard, lease: self.lease };
            let work = async {
                let work = connect(self.mover, &part, hold).await?;
                begin(&work, heartbeat, &part).await?;
                Ok::<_, Error>(work)
            };
            let work = work.await.map_err(|error| self.failed(shard, error))?;
            let mut drive = Driver::new(self.mover, work, heartbeat, Goal::Finish);
            self.drive(&mut drive, Until::Stream).await.map_or(Ok(drive), Err)
        });
        begun.buffer_unordered(self.mover.options.jobs.max(1)).collect().await
    }

    /// Drives a shard, and ends this mover's work with it if that is the shard's end.
    async fn drive(&self, drive: &mut Driver<'_>, until: Until) -> Option<End> {
        let shard = drive.work.hold.shard;
        match drive.run(until).await {
            Ok(None) => None,
            Ok(Some(report)) => {
                drive.leave(None).await;
                Some((shard, Ok(report)))
            }
            Err(error) => {
                drive.leave(Some(&error)).await;
                Some(self.failed(shard, error))
            }
        }
    }

    fn failed(&self, shard: ShardId, error: Error) -> End {
        self.mover.observer.tell(Event::Failed { shard, error: chain(&error) });
        (shard, Err(error))
    }
}
