//! How long a mover that is gone keeps what it holds.

use std::time::Duration;

/// How long a mover's lease and fence outlive it.
#[derive(Clone, Copy, Debug)]
pub struct Leases {
    /// How long a lease lasts after its last renewal.
    pub lease: Duration,
    /// How long a fence is valid after its last renewal. After that, routers and other movers
    /// remove it.
    pub fence: Duration,
    /// How often both are renewed.
    pub beat: Duration,
}

impl Default for Leases {
    /// Ten seconds each, renewed every two.
    fn default() -> Leases {
        Leases::of(Duration::from_secs(10))
    }
}

impl Leases {
    /// The given duration for each, renewed five times within it.
    pub fn of(duration: Duration) -> Leases {
        Leases {
            lease: duration,
            fence: duration,
            beat: duration / 5,
        }
    }

    pub(crate) fn fence_ms(&self) -> i32 {
        i32::try_from(self.fence.as_millis()).unwrap_or(i32::MAX)
    }

    pub(crate) fn lease_ms(&self) -> i32 {
        i32::try_from(self.lease.as_millis()).unwrap_or(i32::MAX)
    }
}
