//! A watch on the database. It is notified of a new map by LISTEN, also polls, and keeps the last
//! map while the database is unreachable.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use uuid::Uuid;

use super::session::Session;
use super::store::{Follow, PostgresStore};
use crate::backoff::Backoff;
use crate::map::ShardMap;
use crate::store::{MapSender, MapWatch, StoreError};

/// The first pause before a database that became unreachable is tried again; twice as long each
/// time after, up to the poll interval.
const RETRY_FIRST: Duration = Duration::from_millis(100);

/// This many notifications in a row may bring nothing: a map that was read just before its own
/// comes is no reason to wait.
const IDLE_NOTICES: u32 = 4;

/// How long the next one after those is left alone; twice as long with each more, up to the other,
/// and to the poll interval.
const NOTICES: Backoff = Backoff {
    first: Duration::from_millis(50),
    max: Duration::from_secs(5),
    jitter: Backoff::NO_JITTER,
};

/// A fleet hears of a new map at the same moment. Its looks are spread over this long.
const NEWS_SPREAD: Duration = Duration::from_millis(50);

/// A database that is restarted ends the connections of a whole fleet at the same moment. The new
/// ones are spread over this long: each costs the database a process and a proof of the password.
const RETURN_SPREAD: Duration = Duration::from_secs(1);

/// What a watch remembers between two looks.
struct Follower {
    store: PostgresStore,
    /// Woken by notifications and by the end of the connection.
    heard: Arc<Notify>,
    /// `None` when the next look must open it.
    session: Option<Session>,
    /// The publication handed out last; `None` when it was the copy on disk.
    seen: Option<Uuid>,
    /// How many looks in a row have failed.
    failures: u32,
    /// How many notifications in a row brought nothing, about.
    idle_notices: u32,
}

/// Reads the map, or its copy, and follows it in a task that ends with the last reader.
pub(super) async fn begin(store: PostgresStore) -> Result<MapWatch, StoreError> {
    let mut follower = Follower {
        store,
        heard: Arc::default(),
        session: None,
        seen: None,
        failures: 0,
        idle_notices: 0,
    };
    let (map, stale) = match follower.read_newer().await {
        Ok(Some(map)) => (Arc::new(map), None),
        Ok(None) => unreachable!("a first look gives the map or an error"),
        Err(error) => match follower.store.copied(&error).await {
            Some(map) => (Arc::new(map), Some(error)),
            None => return Err(error),
        },
    };
    let sender = MapSender::new(map.clone());
    match stale {
        None => follower.store.keep_copy(&map).await,
        Some(error) => {
            follower.failures = 1;
            sender.failed(error);
        }
    }
    let watch = sender.subscribe();
    tokio::spawn(follower.follow(sender));
    Ok(watch)
}

impl Follower {
    async fn follow(mut self, sender: MapSender) {
        loop {
            let heard = tokio::select! {
                // Not while the database fails: the end of a connection is heard too, and there
                // would be no pause.
                () = self.heard_of_news(), if self.failures == 0 => true,
                () = sender.refresh_wanted() => false,
                () = tokio::time::sleep(self.wait()) => false,
                () = sender.closed() => return,
            };
            let looked = tokio::select! {
                looked = self.read_newer() => looked,
                () = sender.closed() => return,
            };
            let database = Arc::clone(&self.store.connect);
            match looked {
                Ok(news) => {
                    self.judge(heard, news.is_some());
                    if std::mem::take(&mut self.failures) > 0 {
                        tracing::info!("the map is followed again in {database}");
                    }
                    match news {
                        Some(map) => {
                            sender.send(map);
                            self.store.keep_copy(&sender.current()).await;
                        }
                        // Clears the error; the same map is not reported twice.
                        None => sender.send(sender.current().as_ref().clone()),
                    }
                }
                Err(error) => {
                    self.failures = self.failures.saturating_add(1);
                    if self.failures == 1 {
                        let version = sender.current().version();
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(
                            error,
                            "the shard map stays at version {version}: {database} does not give it"
                        );
                    }
                    sender.failed(error);
                }
            }
        }
    }

    /// Waits for a notification, and after some that brought nothing for a while longer. Then it
    /// waits for a moment by chance, since others have heard the same.
    async fn heard_of_news(&self) {
        tokio::time::sleep(pause(self.idle_notices).min(self.store.poll_interval)).await;
        self.heard.notified().await;
        let spread = match &self.session {
            Some(session) if !session.is_closed() => NEWS_SPREAD,
            _ => RETURN_SPREAD,
        };
        tokio::time::sleep(
            spread
                .min(self.store.poll_interval)
                .mul_f64(fastrand::f64()),
        )
        .await;
    }

    /// Every role that may connect may notify, as often as it likes. That delays no check for
    /// longer than the poll interval, and a new map arrives by that interval, or through a router
    /// that meets a signpost.
    fn judge(&mut self, heard: bool, brought: bool) {
        match (heard, brought) {
            (_, true) => self.idle_notices = 0,
            (true, false) => self.idle_notices = self.idle_notices.saturating_add(1),
            (false, false) => self.idle_notices = self.idle_notices.saturating_sub(1),
        }
    }

    /// Reads the map. `None` when it is the one that was seen.
    async fn read_newer(&mut self) -> Result<Option<ShardMap>, StoreError> {
        // Whatever goes wrong, the next look begins with a new connection.
        let session = match (self.session.take(), self.store.follow) {
            (Some(session), _) => session,
            (None, Follow::Polling) => Session::open(&self.store.connect, None).await?,
            (None, Follow::Listening) => {
                let session = Session::open(&self.store.connect, Some(self.heard.clone())).await?;
                // Before the map is read, so that one that is published in between is not missed.
                session.listen().await?;
                session
            }
        };
        let kept = session.fetch(self.store.shards, self.seen).await?;
        if kept.is_none() && self.seen.is_none() {
            return Err(session.empty());
        }
        if self.store.follow == Follow::Listening {
            self.session = Some(session);
        }
        Ok(kept.map(|kept| {
            self.seen = Some(kept.publication);
            kept.map
        }))
    }

    /// How long until the next poll, give or take a quarter, so that a fleet does not poll in step.
    fn wait(&self) -> Duration {
        let interval = self.store.poll_interval;
        let retries = Backoff {
            first: RETRY_FIRST,
            max: interval,
            jitter: (0.75, 1.25),
        };
        match self.failures {
            0 => retries.spread(interval, fastrand::f64()),
            failures => retries.pause(failures - 1),
        }
    }
}

/// How long no notification is heeded after so many that brought nothing.
fn pause(idle_notices: u32) -> Duration {
    match idle_notices.checked_sub(IDLE_NOTICES) {
        None => Duration::ZERO,
        Some(more) => NOTICES.whole(more),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_notifications_costs_little() {
        let pauses = [0, 3, 4, 5, 6, 20, u32::MAX].map(|idle| pause(idle).as_millis());
        assert_eq!(pauses, [0, 0, 50, 100, 200, 5000, 5000]);
        // An hour of them: fewer looks than by the poll interval alone.
        let (mut looks, mut time) = (0, Duration::ZERO);
        while time < Duration::from_secs(3600) {
            time += pause(looks).max(Duration::from_micros(100));
            looks += 1;
        }
        assert!(looks < 740, "{looks}");
    }
}
