//! How a rebalance gets on: one bar over all waves on a terminal, events in JSON.

use std::sync::{Arc, Mutex, PoisonError};

use indicatif::ProgressBar;
use pgshard::mover::{Event, Observer, Phase};

use super::super::moves::millis;
use super::events::RebalanceEvent;
use crate::output::Output;

pub(super) struct Watcher {
    output: Arc<Output>,
    bar: Mutex<Option<ProgressBar>>,
}

impl Watcher {
    pub(super) fn new(output: Arc<Output>) -> Arc<Watcher> {
        Arc::new(Watcher {
            output,
            bar: Mutex::default(),
        })
    }

    pub(super) fn observer(self: &Arc<Watcher>) -> Observer {
        let watcher = self.clone();
        Observer::new(move |event| watcher.saw(event))
    }

    /// Begins a bar of so many shards.
    pub(super) fn begin(&self, shards: usize) {
        self.finish();
        *self.bar() = Some(
            self.output
                .progress("moving".to_owned(), "shards", shards as u64),
        );
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = self.bar().take() {
            bar.finish_and_clear();
        }
    }

    pub(super) fn print(&self, told: RebalanceEvent) {
        self.output.event(told);
    }

    fn bar(&self) -> std::sync::MutexGuard<'_, Option<ProgressBar>> {
        // A panic leaves nothing half done here.
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn saw(&self, event: Event) {
        let told = match event {
            Event::Started { id, shards } => RebalanceEvent::Started {
                r#move: id.to_string(),
                shards,
            },
            Event::Reached { phase, .. } => {
                if let (Phase::Kept, Some(bar)) = (phase, &*self.bar()) {
                    bar.inc(1);
                }
                return;
            }
            Event::FenceRetried {
                shard,
                attempt,
                reason,
            } => RebalanceEvent::FenceRetried {
                shard,
                attempt,
                reason,
            },
            Event::Asked(stop_request) => {
                self.output.note(format_args!(
                    "asked to {} by {}",
                    stop_request.asked.as_str(),
                    stop_request.by
                ));
                RebalanceEvent::Asked {
                    asked: stop_request.asked.as_str(),
                    by: stop_request.by,
                }
            }
            Event::Opened { shard, host, pause } => RebalanceEvent::Opened {
                shard,
                host: host.to_string(),
                pause_ms: millis(pause),
            },
            Event::Failed { shard, error } => RebalanceEvent::Failed {
                shard,
                message: error,
            },
            // A rebalance is of thousands of tables: what becomes of each shard is enough.
            _ => return,
        };
        self.print(told);
    }
}
