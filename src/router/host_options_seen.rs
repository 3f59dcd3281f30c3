//! What the source of the hosts' options has returned so far.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use super::options::HostOptions;
use super::pool::Pool;
use crate::map::HostName;

/// The last answer of the source about each host, and the pools that new answers have replaced.
#[derive(Default)]
pub(super) struct HostOptionsSeen(Mutex<SeenState>);

#[derive(Default)]
pub(super) struct SeenState {
    pub(super) last: HashMap<HostName, HostOptions>,
    /// The pools that were replaced. Such a pool is gone once no connection of it is used.
    pub(super) former: Vec<Weak<Pool>>,
}

impl HostOptionsSeen {
    pub(super) fn lock(&self) -> MutexGuard<'_, SeenState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
