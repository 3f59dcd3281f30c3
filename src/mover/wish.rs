//! What an operator wants of a move while it runs, told through the journal: from any machine, to a mover on any other.
//!
//! What may not break: a wish decides only when a mover goes on, never what it does. So it needs no lease, and a wish that
//! comes too late changes nothing.

use jiff::Timestamp;

use crate::map::HostName;
use crate::shard::ShardId;

use super::Mover;
use super::error::Error;
use super::names::MoveId;
use super::session::Session;
use super::worker::{Asked, Work, Worker};

/// What a mover may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// Everything.
    #[default]
    Go,
    /// Everything but the fence: the source serves, the target follows.
    Hold,
    /// Nothing more is copied, nothing is fenced. Chunks under way are finished; changes are applied, so that the source need
    /// not keep them.
    Pause,
}

impl Wanted {
    /// The wish as the journal writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Wanted::Go => "go",
            Wanted::Hold => "hold",
            Wanted::Pause => "pause",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Wanted> {
        [Wanted::Go, Wanted::Hold, Wanted::Pause].into_iter().find(|wanted| wanted.as_str() == name)
    }
}

/// Whether a move prepares that its shards can be taken back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Back {
    /// A slot on the target keeps what the old copies lack, if the target can give one.
    #[default]
    Prepared,
    /// The old copies stay as they are at the switch. Nothing is made on the target.
    Forgone,
}

impl Back {
    /// As the journal writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Back::Prepared => "prepared",
            Back::Forgone => "forgone",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Back> {
        [Back::Prepared, Back::Forgone].into_iter().find(|back| back.as_str() == name)
    }
}

/// When the shards of a new move are fenced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FenceAt {
    /// As soon as each is ready.
    #[default]
    Ready,
    /// Once somebody says so: [`Mover::want`] with [`Wanted::Go`].
    Told,
    /// At this time by the source's clock, or once somebody says so.
    Time(Timestamp),
}

impl FenceAt {
    /// As the journal has it.
    pub(crate) fn wish(self) -> (Wanted, Option<Timestamp>) {
        match self {
            FenceAt::Ready => (Wanted::Go, None),
            FenceAt::Told => (Wanted::Hold, None),
            FenceAt::Time(at) => (Wanted::Hold, Some(at)),
        }
    }
}

/// What is wanted at present, by the host's own clock: an expression over a row of `pgshard.move`.
pub(crate) const WANTED: &str =
    "CASE WHEN wanted = 'hold' AND hold_until <= clock_timestamp() THEN 'go' ELSE wanted END";

impl Mover {
    /// Says what is wanted of a move's shards, whoever works on them: its mover hears it within a heartbeat (two seconds).
    /// Gives the shards that have not ended, and the hosts that could not be told. A hold until a time is over then.
    ///
    /// # Errors
    /// [`Error::NoSuchMove`] when no host that can be asked knows the move.
    ///
    /// # Cancel safety
    /// Some hosts may have been told; call it again.
    pub async fn want(&self, id: MoveId, wanted: Wanted) -> Result<(Vec<ShardId>, Vec<(HostName, Error)>), Error> {
        let told = self.hosts.names().map(async |host| {
            let told = async { self.hosts.open(host).await?.want(id, wanted).await };
            (host.clone(), told.await)
        });
        let (mut known, mut open, mut unknown) = (false, Vec::new(), Vec::new());
        for (host, answer) in futures_util::future::join_all(told).await {
            match answer {
                Ok(shards) => {
                    known |= !shards.is_empty();
                    open.extend(shards.into_iter().filter_map(|(shard, ended)| (!ended).then_some(shard)));
                }
                Err(error) => unknown.push((host, error)),
            }
        }
        if !known {
            return Err(unknown.into_iter().next().map_or(Error::NoSuchMove { id }, |(_, error)| error));
        }
        open.sort_unstable();
        Ok((open, unknown))
    }
}

impl Mover {
    /// Asks whoever works on a move to stop, or to abort: a mover hears it within a heartbeat (two seconds), from whatever machine. Gives
    /// those who live, and the hosts that could not be told.
    ///
    /// # Cancel safety
    /// Some may have been asked; call it again.
    pub async fn ask(&self, id: MoveId, asked: Asked) -> (Vec<Worker>, Vec<(HostName, Error)>) {
        let by = &self.options.holder;
        self.of_workers(async |session| {
            session.ask(id, asked, by).await?;
            session.workers(id).await
        })
        .await
    }

    /// Who works on a move at present, to bring its shards to their ends, and the hosts that could not be asked.
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn workers(&self, id: MoveId) -> (Vec<Worker>, Vec<(HostName, Error)>) {
        self.of_workers(async |session| session.workers(id).await).await
    }

    async fn of_workers(
        &self,
        ask: impl AsyncFn(&Session) -> Result<Vec<Worker>, Error>,
    ) -> (Vec<Worker>, Vec<(HostName, Error)>) {
        let answers = self.hosts.names().map(async |host| {
            let answer = async {
                let session = self.hosts.open(host).await?;
                if session.is_bootstrapped().await? { ask(&session).await } else { Ok(Vec::new()) }
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
}

impl Session {
    /// Writes what is asked of the movers of a move that goes from here. Who was to abort still is.
    ///
    /// Locks: their rows, for this one statement.
    async fn ask(&self, id: MoveId, asked: Asked, by: &str) -> Result<(), Error> {
        let sql = "UPDATE pgshard.mover SET asked = $2, asked_by = $3, asked_at = clock_timestamp()
            WHERE move_id = $1 AND work = 'move' AND (asked IS NULL OR asked = 'stop' AND $2 = 'abort')";
        self.execute("asking the mover", sql, &[id.uuid(), &asked.as_str(), &by]).await.map(drop)
    }

    async fn workers(&self, id: MoveId) -> Result<Vec<Worker>, Error> {
        let presences = self.presences(Some(id)).await?;
        let at_work = presences.into_iter().filter(|of| of.lives() && of.worker.work == Work::Move);
        Ok(at_work.map(|of| of.worker).collect())
    }

    /// Writes the wish to this host's journal; which shards it is about, and whether their move has ended.
    ///
    /// Locks: the move's rows, for this one statement. Those that have ended too: a claim that is still to come takes the wish
    /// from them.
    async fn want(&self, id: MoveId, wanted: Wanted) -> Result<Vec<(ShardId, bool)>, Error> {
        if !self.is_bootstrapped().await? {
            return Ok(Vec::new());
        }
        let sql = "UPDATE pgshard.move SET wanted = $2, hold_until = NULL WHERE move_id = $1
            RETURNING shard_id, phase IN ('kept', 'completed', 'aborted')";
        let rows = self.rows("saying what is wanted", sql, &[id.uuid(), &wanted.as_str()]).await?;
        let shard = |row: &tokio_postgres::Row| Some((ShardId::try_from(row.get::<_, i32>(0)).ok()?, row.get(1)));
        Ok(rows.iter().filter_map(shard).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_read_as_they_are_written() {
        for wanted in [Wanted::Go, Wanted::Hold, Wanted::Pause] {
            assert_eq!(Wanted::parse(wanted.as_str()), Some(wanted));
        }
        assert_eq!(Wanted::parse("stop"), None);
    }
}
