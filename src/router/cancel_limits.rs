//! How many connections of a host may be ending at a time.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// The limits that the ending connections of a host share.
pub(super) struct CancelLimits {
    /// A permit for each cancel request that is on its way.
    pub(super) cancels: Arc<Semaphore>,
    /// A permit for each connection that waits for its last answers after its slot was freed.
    pub(super) lingering: Arc<Semaphore>,
}

impl Default for CancelLimits {
    fn default() -> CancelLimits {
        CancelLimits {
            cancels: Arc::new(Semaphore::new(4)),
            lingering: Arc::new(Semaphore::new(16)),
        }
    }
}
