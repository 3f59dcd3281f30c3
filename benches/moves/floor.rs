//! What no pause can be shorter than on these servers: its round trips and flushes, by hand, with
//! hardly any work in them. The swap is a commit at the source that is not waited for, and the open
//! is one at the target; marker and decision at the source, and the last changes at the target, are
//! waited for. A query prepares the open.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Statement};

use crate::bed::Bed;

/// Between two of them.
const REST: Duration = Duration::from_millis(100);

/// One of them.
pub(crate) struct Chain {
    pub(crate) began: Instant,
    pub(crate) took: Duration,
}

/// The task that runs them, until it is stopped.
pub(crate) struct Floor {
    stop: watch::Sender<bool>,
    chains: JoinHandle<Vec<Chain>>,
}

struct Host {
    client: Client,
    commits: Statement,
    commits_later: Statement,
    asks: Statement,
}

impl Host {
    async fn new(bed: &Bed, at: usize) -> Host {
        let client = bed.superuser(at).await;
        let sql =
            "CREATE TABLE public.floor (n bigint NOT NULL); INSERT INTO public.floor VALUES (0)";
        client.batch_execute(sql).await.expect("a table");
        let commits = client
            .prepare("UPDATE public.floor SET n = n + 1")
            .await
            .expect("a statement");
        let later = "UPDATE public.floor SET n = n + 1 RETURNING set_config('synchronous_commit', \
            'off', true)";
        let commits_later = client.prepare(later).await.expect("a statement");
        let asks = client
            .prepare("SELECT n FROM public.floor")
            .await
            .expect("a statement");
        Host {
            client,
            commits,
            commits_later,
            asks,
        }
    }

    async fn commit(&self) {
        self.client
            .execute(&self.commits, &[])
            .await
            .expect("a commit");
    }

    async fn commit_later(&self) {
        self.client
            .query_one(&self.commits_later, &[])
            .await
            .expect("a commit");
    }

    async fn ask(&self) {
        self.client
            .query_one(&self.asks, &[])
            .await
            .expect("an answer");
    }
}

impl Floor {
    pub(crate) async fn start(bed: &Bed) -> Floor {
        let (source, target) = (Host::new(bed, 0).await, Host::new(bed, 1).await);
        let (stop, mut stopped) = watch::channel(false);
        let chains = tokio::spawn(async move {
            let mut chains = Vec::new();
            while tokio::time::timeout(REST, stopped.wait_for(|stop| *stop))
                .await
                .is_err()
            {
                let began = Instant::now();
                source.commit_later().await;
                source.commit().await;
                target.commit().await;
                target.ask().await;
                source.commit().await;
                target.commit_later().await;
                chains.push(Chain {
                    began,
                    took: began.elapsed(),
                });
            }
            chains
        });
        Floor { stop, chains }
    }

    pub(crate) async fn stop(self) -> Vec<Chain> {
        self.stop.send_replace(true);
        self.chains.await.expect("it ends when it is told")
    }
}
