//! [`ConsoleState`]: the state that all requests share.

use std::sync::Arc;

use super::collect::Collector;
use super::guard::Guard;

/// What all requests share: axum's state.
pub(super) struct ConsoleState {
    pub(super) collector: Collector,
    pub(super) guard: Arc<Guard>,
}
