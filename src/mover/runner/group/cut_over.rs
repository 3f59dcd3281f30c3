//! The shards of a group once their changes are applied: if their fences are held back, they are
//! made ready together; then each is cut over.

use crate::mover::control::report::ShardReport;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::state::{Goal, Until};
use crate::mover::protocol::verdict::{Audit, AuditState};
use crate::mover::runner::assignment::ShardResult;
use crate::mover::runner::audit;
use crate::mover::runner::driver::{Driver, Online};
use crate::mover::runner::group::{Group, Member};
use crate::mover::runner::single::reconnect;
use crate::mover::stream::follower::Follower;
use crate::shard::ShardId;

impl Group<'_> {
    /// A driver of a shard with changes that are applied.
    async fn with_stream<'d>(
        &'d self,
        member: Member,
        follower: &'d Follower,
        reverse: Option<&'d str>,
    ) -> Result<Driver<'d>, ShardResult> {
        let permit = self.permits.background_permit().await;
        let work = match reconnect(self.context, &member.part, self.hold(member.part.shard)).await {
            Ok(work) => work,
            Err(error) => return Err(self.failed_member(&member, error).await),
        };
        drop(permit);
        let online = Online {
            follower,
            reverse,
            watchdog: &self.watchdog,
            permits: &self.permits,
        };
        let driver = Driver::new(self.context, work, self.heartbeat, Goal::Finish);
        Ok(driver.following(online, member.built, member.compared_on))
    }

    /// Does everything but the fence, which is held back for all of them.
    pub(super) async fn make_ready(
        &self,
        member: Member,
        follower: &Follower,
        reverse: Option<&str>,
    ) -> Result<Member, ShardResult> {
        let shard = member.part.shard;
        let part = member.part.clone();
        let mut drive = self.with_stream(member, follower, reverse).await?;
        match self.drive(&mut drive, Until::Ready).await {
            None => {
                let rest = drive.finish().await;
                Ok(Member {
                    part,
                    built: rest.built,
                    compared_on: rest.compared_on,
                })
            }
            Some(end) => {
                self.watchdog.let_go(shard);
                Err(end)
            }
        }
    }

    /// From the last changes to the end.
    pub(super) async fn cut_over(
        &self,
        member: Member,
        follower: &Follower,
        reverse: Option<&str>,
    ) -> Result<(), ShardResult> {
        let shard = member.part.shard;
        let mut drive = self.with_stream(member, follower, reverse).await?;
        let end = self.drive(&mut drive, Until::End).await;
        self.watchdog.let_go(shard);
        // This comes before waiting for the follower, which waits for locks that a failed
        // transaction of the driver holds.
        let went_well = matches!(end, Some((_, Ok(_))));
        let rest = if went_well {
            drive.finish().await
        } else {
            drive.end()
        };
        // A shard that failed is followed for as long as the others are: the slot moves on with
        // them, and a resume must find that the shard has done so too.
        if went_well {
            follower.detach(shard).await;
        }
        let end = end.unwrap_or_else(|| self.failed(shard, Error::Interrupted { shard }));
        Err(self.audited(rest.audit, end).await)
    }

    /// Audits a shard that is kept, with snapshots that its driver has taken.
    pub(super) async fn audited(
        &self,
        begun: Option<audit::Begun>,
        end: ShardResult,
    ) -> ShardResult {
        match (begun, end) {
            (Some(begun), (shard, Ok(report))) => {
                let audit = audit::run(self.context, begun, Some(&self.permits)).await;
                (shard, Ok(ShardReport { audit, ..report }))
            }
            // Another mover that has ended since has opened it, or there was no snapshot.
            (None, (shard, Ok(report))) if report.audit.state == AuditState::NotAudited => {
                let audit = self.audited_late(shard).await.unwrap_or(report.audit);
                (shard, Ok(ShardReport { audit, ..report }))
            }
            (_, end) => end,
        }
    }

    async fn audited_late(&self, shard: ShardId) -> Option<Audit> {
        let source = self.context.hosts.open(&self.shared.source).await.ok()?;
        let entry = source.entry(self.shared.id, shard).await.ok()?;
        Some(audit::late(self.context, &entry).await)
    }
}
