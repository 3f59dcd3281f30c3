//! How a mover gets on, while it works: a bar on a terminal, events in JSON.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use pgshard::mover::{DesiredState, Event, MoveId, Observer, Phase};

use super::Verb;
use super::audit::ShownAudit;
use super::events::MoveEvent;
use super::events::millis;
use crate::output::{Output, counted, size, whole_seconds};

/// What a bar counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    /// Shards that reach a phase.
    Reached(Phase),
    /// Old copies that were compared.
    Audits,
}

/// Shows how a mover gets on: a bar on a terminal, events in JSON.
pub(crate) struct Watcher {
    output: Arc<Output>,
    bar: Mutex<Option<ProgressBar>>,
    count: Count,
    id: OnceLock<MoveId>,
    fed: Mutex<BTreeMap<MoveId, FedState>>,
}

/// How far the old copies of a move are.
#[derive(Clone, Copy, Debug)]
struct FedState {
    at: Instant,
    bytes: u64,
    seconds: f64,
    changes: u64,
}

/// After this time without a report, a move is no longer fed.
const FED_WITHIN: Duration = Duration::from_secs(10);

impl Watcher {
    pub(crate) fn new(output: Arc<Output>) -> Arc<Watcher> {
        Watcher::counting(Count::Reached(Phase::Kept), output)
    }

    /// A watcher of one command's work on a move.
    pub(crate) fn of(verb: Verb, output: Arc<Output>) -> Arc<Watcher> {
        let count = match verb {
            Verb::Resume | Verb::Rollback => Count::Reached(Phase::Kept),
            Verb::Abort { .. } => Count::Reached(Phase::Aborted),
            Verb::Audit => Count::Audits,
            Verb::Complete => Count::Reached(Phase::Completed),
        };
        Watcher::counting(count, output)
    }

    fn counting(count: Count, output: Arc<Output>) -> Arc<Watcher> {
        Arc::new(Watcher {
            output,
            bar: Mutex::default(),
            count,
            id: OnceLock::new(),
            fed: Mutex::default(),
        })
    }

    /// Makes a plan, which examines so many shards.
    pub(crate) async fn planning<T>(&self, shards: usize, plan: impl Future<Output = T>) -> T {
        let work = async |bar: &ProgressBar| {
            *self.bar() = Some(bar.clone());
            plan.await
        };
        let planned = self
            .output
            .counting("planning", "shards", shards, work)
            .await;
        self.finish();
        planned
    }

    /// Begins the bar.
    pub(crate) fn begin(&self, what: &str, shards: usize) {
        let bar = self
            .output
            .progress(what.to_owned(), "shards", shards as u64);
        *self.bar() = Some(bar);
    }

    /// Begins the line about old copies that take changes.
    pub(crate) fn begin_feed(&self) {
        if self.output.redraws() {
            *self.bar() = Some(self.output.board());
        }
    }

    /// Notes how far the old copies of a move are, or that they take no changes.
    fn note_fed(&self, id: MoveId, state: Option<FedState>) {
        let mut fed = self.fed.lock().unwrap_or_else(PoisonError::into_inner);
        match state {
            Some(state) => fed.insert(id, state),
            None => fed.remove(&id),
        };
        fed.retain(|_, state| state.at.elapsed() < FED_WITHIN);
        if let Some(bar) = self.bar().as_ref() {
            bar.set_message(fed_line(fed.values()));
        }
    }

    pub(crate) fn observer(self: &Arc<Watcher>) -> Observer {
        let watcher = self.clone();
        Observer::new(move |event| watcher.saw(event))
    }

    /// The move, once it has begun.
    pub(crate) fn id(&self) -> Option<MoveId> {
        self.id.get().copied()
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = self.bar().take() {
            bar.finish_and_clear();
        }
    }

    fn bar(&self) -> std::sync::MutexGuard<'_, Option<ProgressBar>> {
        // A panic leaves nothing half done here.
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self, what: Count) {
        if let Some(bar) = self.bar().as_ref().filter(|_| what == self.count) {
            bar.inc(1);
        }
    }

    fn saw(&self, event: Event) {
        let told = match event {
            Event::Started { id, shards } => {
                // A watcher sees one move begin.
                let _ = self.id.set(id);
                self.output.note(format_args!("move {id}"));
                self.begin("moving", shards);
                MoveEvent::Started {
                    r#move: id.to_string(),
                    shards,
                }
            }
            Event::Examined { .. } => {
                if let (Some(bar), None) = (self.bar().as_ref(), self.id()) {
                    bar.inc(1);
                }
                return;
            }
            Event::Reached { shard, phase } => {
                self.step(Count::Reached(phase));
                MoveEvent::Reached {
                    shard,
                    phase: phase.as_str(),
                }
            }
            Event::TableCopied {
                shard,
                table,
                rows,
                bytes,
            } => MoveEvent::TableCopied {
                shard,
                table,
                rows,
                bytes,
            },
            Event::FenceRetried {
                shard,
                attempt,
                reason,
            } => {
                self.output.note(format_args!(
                    "shard {shard}: fence {attempt} was taken back, {reason}"
                ));
                MoveEvent::FenceRetried {
                    shard,
                    attempt,
                    reason,
                }
            }
            Event::Waits { shard, desired } => {
                let why = if desired == DesiredState::Pause {
                    "paused"
                } else {
                    "held before its fence"
                };
                self.output.note(format_args!(
                    "shard {shard} is {why}, until `pgshard moves continue`"
                ));
                MoveEvent::Waits {
                    shard,
                    desired: desired.as_str(),
                }
            }
            Event::Asked(stop_request) => {
                self.output.note(format_args!(
                    "asked to {} by {}",
                    stop_request.asked.as_str(),
                    stop_request.by
                ));
                MoveEvent::Asked {
                    asked: stop_request.asked.as_str(),
                    by: stop_request.by,
                }
            }
            Event::Opened { shard, host, pause } => MoveEvent::Opened {
                shard,
                host: host.to_string(),
                pause_ms: millis(pause),
            },
            Event::Audited { shard, audit } => {
                self.step(Count::Audits);
                MoveEvent::Audited {
                    shard,
                    audit: ShownAudit::of(&audit),
                }
            }
            Event::Feeding { id, shards } => {
                self.output.note(format_args!(
                    "the old copies of move {id} take changes: {}",
                    counted(shards, "shard")
                ));
                MoveEvent::Feeding {
                    r#move: id.to_string(),
                    shards,
                }
            }
            Event::Fed {
                id,
                bytes,
                seconds,
                changes,
            } => {
                let state = FedState {
                    at: Instant::now(),
                    bytes,
                    seconds,
                    changes,
                };
                self.note_fed(id, Some(state));
                MoveEvent::Fed {
                    r#move: id.to_string(),
                    behind_bytes: bytes,
                    behind_s: seconds,
                    changes,
                }
            }
            Event::NotFed { id, error } => {
                self.note_fed(id, None);
                self.output.note(format_args!(
                    "the old copies of move {id} take no changes for now: {error}"
                ));
                MoveEvent::NotFed {
                    r#move: id.to_string(),
                    message: error,
                }
            }
            Event::Failed { shard, error } => MoveEvent::Failed {
                shard,
                message: error,
            },
            // Bytes under way move no bar yet, and would flood a pipe.
            _ => return,
        };
        self.output.event(told);
    }
}

/// The old copies of all moves that are fed, in a line; the one that is the furthest behind counts.
fn fed_line<'a>(states: impl Iterator<Item = &'a FedState>) -> String {
    let states: Vec<&FedState> = states.collect();
    if states.is_empty() {
        return "no old copies take changes".to_owned();
    }
    let changes: u64 = states.iter().map(|state| state.changes).sum();
    let bytes = states.iter().map(|state| state.bytes).max().unwrap_or(0);
    let behind = states.iter().map(|state| state.seconds).fold(0.0, f64::max);
    let behind = match bytes {
        0 => "up to date".to_owned(),
        bytes => format!(
            "up to {} and {} behind",
            size(bytes),
            whole_seconds(Duration::try_from_secs_f64(behind).unwrap_or_default())
        ),
    };
    format!(
        "old copies of {}: {behind}, {changes} changes applied",
        counted(states.len(), "move")
    )
}
