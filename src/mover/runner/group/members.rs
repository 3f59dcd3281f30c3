//! Each shard of a group by itself: acquired, examined, prepared again, left.

use std::sync::Arc;

use crate::mover::control::journal::Note;
use crate::mover::control::session::Session;
use crate::mover::preflight::facts;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::state::{Goal, Phase, Until};
use crate::mover::runner::assignment::{Assignment, ShardResult};
use crate::mover::runner::driver::Driver;
use crate::mover::runner::group::{Group, Member};
use crate::mover::runner::single::{self, acquire, before_claim, connect, reconnect};
use crate::mover::step::ShardMove;
use crate::mover::stream::slot;
use crate::pg::cause::chain;
use crate::shard::ShardId;

impl Group<'_> {
    /// Acquires a shard, and does everything that can be done without the stream: a new shard is
    /// prepared, one that is fenced and not drained is served again, and one that is decided is
    /// opened.
    pub(super) async fn begin(&self, part: Assignment) -> Result<Member, ShardResult> {
        let shard = part.shard;
        if self.context.is_stopped() {
            return Err((shard, Err(Error::Interrupted { shard })));
        }
        let work = async {
            let connected = connect(self.context, &part, self.hold(shard)).await;
            let work = connected.map_err(|error| before_claim(&part, error))?;
            acquire(&work, self.heartbeat, &part).await?;
            Ok::<_, Error>(work)
        };
        let work = work.await.map_err(|error| self.failed(shard, error))?;
        self.go_on(
            Member {
                part,
                built: None,
                compared_on: None,
            },
            work,
        )
        .await
    }

    /// Goes as far as possible without the stream.
    pub(super) async fn go_on(
        &self,
        member: Member,
        work: ShardMove<'_>,
    ) -> Result<Member, ShardResult> {
        let mut drive = Driver::new(self.context, work, self.heartbeat, Goal::Finish);
        match self.drive(&mut drive, Until::Ready).await {
            Some(end) => {
                drop(drive);
                Err(self.audited(None, end).await)
            }
            None => Ok(Member {
                built: drive.finish().await.built.or(member.built),
                ..member
            }),
        }
    }

    /// Drives a shard, and ends this mover's work with it if the shard has ended.
    pub(super) async fn drive(&self, drive: &mut Driver<'_>, until: Until) -> Option<ShardResult> {
        let shard = drive.work.hold.shard;
        match single::drive(drive, until).await {
            Ok(None) => None,
            Ok(Some(report)) => {
                drive.end_shard().await;
                Some((shard, Ok(report)))
            }
            Err(error) => {
                let error = self.explained(drive, error).await;
                self.withdraw_if_altered(&drive.work, &error).await;
                let error = drive.give_up(error).await;
                Some(self.failed(shard, error))
            }
        }
    }

    /// The error, or that the shard was altered, if that explains it: what the stream brings does
    /// not fit then, and rows differ, before the watchdog has looked. Where a lock was waited for,
    /// it names the session that has it.
    async fn explained(&self, drive: &Driver<'_>, error: Error) -> Error {
        let shard = drive.work.hold.shard;
        if error.is_lock() {
            return self.locked(shard, error).await;
        }
        if !matches!(
            error,
            Error::Diverged { .. } | Error::RowsDiffer { .. } | Error::Computed { .. }
        ) {
            return error;
        }
        let looked = async {
            let source = self.context.hosts.open_new(&self.shared.source).await?;
            let schema = facts::schema_oid(&source, &self.context.prefix.schema(shard)).await?;
            match (drive.built(), schema) {
                (Some(built), Some(schema)) => {
                    built.original.clone().alteration(&source, schema).await
                }
                _ => Ok(None),
            }
        };
        match looked.await {
            Ok(Some(alteration)) => {
                tracing::info!(%shard, error = chain(&error), "what an alteration led to");
                Error::Altered {
                    shard,
                    what: alteration.describe().to_owned(),
                }
            }
            Ok(None) | Err(_) => error,
        }
    }

    /// The error with the sessions that have the shard's tables locked at the source, if that is
    /// why.
    async fn locked(&self, shard: ShardId, error: Error) -> Error {
        if !matches!(&error, Error::Database { host, .. } if *host == self.shared.source) {
            return error;
        }
        match self.context.hosts.open_new(&self.shared.source).await {
            Ok(source) => facts::locked(&source, shard, &self.context.prefix, error).await,
            Err(_) => error,
        }
    }

    /// Starts over with a shard if the changes since its copy are no longer known.
    pub(super) async fn prepare_again(&self, member: Member) -> Result<Member, ShardResult> {
        let shard = member.part.shard;
        let work = async {
            let work = reconnect(self.context, &member.part, self.hold(shard)).await?;
            work.source
                .advance(work.hold, Phase::Claimed, &Note::default())
                .await?;
            Ok::<_, Error>(work)
        };
        let work = work.await.map_err(|error| self.failed(shard, error))?;
        self.go_on(member, work).await
    }

    /// Finds out what the shard's target was built from, checks that the source is still the same,
    /// and lets the watchdog watch it. A shard that was altered while no mover looked is copied
    /// again, as it is now; a rollback has no copy to make.
    pub(super) async fn known(
        &self,
        mut member: Member,
        source: &Session,
    ) -> Result<Member, ShardResult> {
        let (shard, is_resumed) = (member.part.shard, member.built.is_none());
        let mut known = self.watched(&mut member, source).await;
        if let Err(error @ (Error::Altered { .. } | Error::Refused { .. })) = &known
            && is_resumed
            && self.shared.rollback_of.is_none()
        {
            tracing::warn!(%shard, error = chain(error), "the shard is copied again");
            let withdrawn =
                slot::withdraw(source, &self.stream(), &self.context.prefix.schema(shard)).await;
            known = match withdrawn {
                Ok(()) => {
                    member = self.prepare_again(member).await?;
                    self.watched(&mut member, source).await
                }
                Err(error) => Err(error),
            };
        }
        match known {
            Ok(()) => Ok(member),
            Err(error) => Err(self.failed_member(&member, error).await),
        }
    }

    async fn watched(&self, member: &mut Member, source: &Session) -> Result<(), Error> {
        let shard = member.part.shard;
        let built = async {
            let schema = facts::schema_oid(source, &self.context.prefix.schema(shard)).await?;
            let built = match (member.built.take(), schema) {
                (Some(built), Some(schema))
                    if built.original.is_untouched(source, schema).await? =>
                {
                    built
                }
                (built, schema) => {
                    let work = reconnect(self.context, &member.part, self.hold(shard)).await?;
                    match (built, schema) {
                        (Some(built), Some(schema)) => match work.altered(schema, &built).await? {
                            Some(what) => return Err(Error::Altered { shard, what }),
                            None => built,
                        },
                        _ => {
                            work.blueprint(&work.source.entry(self.shared.id, shard).await?)
                                .await?
                        }
                    }
                }
            };
            if let Some(schema) = schema {
                self.watchdog.watch_over(shard, schema, &built);
            }
            Ok::<_, Error>(built)
        };
        member.built = Some(built.await?);
        Ok(())
    }

    /// The end of a shard that failed while this mover had no connection for it.
    pub(super) async fn failed_member(&self, member: &Member, error: Error) -> ShardResult {
        let shard = member.part.shard;
        let mut error = if error.is_lock() {
            self.locked(shard, error).await
        } else {
            error
        };
        if let Ok(work) = connect(self.context, &member.part, self.hold(shard)).await {
            self.withdraw_if_altered(&work, &error).await;
            error = Driver::new(self.context, work, self.heartbeat, Goal::Finish)
                .give_up(error)
                .await;
        }
        self.failed(shard, error)
    }

    /// Stops publishing a shard that was altered: a table that has lost its key would refuse UPDATE
    /// and DELETE for as long as the move waits. Its changes from now on are in no stream, so a
    /// resume starts over with it.
    async fn withdraw_if_altered(&self, work: &ShardMove<'_>, error: &Error) {
        if !matches!(error, Error::Altered { .. } | Error::Refused { .. })
            || self.shared.rollback_of.is_some()
        {
            return;
        }
        let withdrawn = async {
            work.source
                .advance(work.hold, Phase::Claimed, &Note::default())
                .await?;
            slot::withdraw(&work.source, &self.stream(), &work.names.schema).await
        };
        if let Err(error) = withdrawn.await {
            tracing::warn!(shard = %work.hold.shard, error = chain(&error), "its tables are still \
                published; an abort ends that");
        }
    }

    pub(super) async fn all_failed(&self, members: Vec<Member>, error: Error) -> Vec<ShardResult> {
        let error = Arc::new(error);
        let mut ends = Vec::new();
        for one in &members {
            let of_group = Error::Group {
                shard: one.part.shard,
                source: error.clone(),
            };
            ends.push(self.failed_member(one, of_group).await);
        }
        ends
    }
}
