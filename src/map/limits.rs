//! How much a host should hold: its part of a config, and the limits that a rebalance plans with.

/// How much a host should have, and may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostLimits {
    /// Its share compared with the other hosts': with 2 it gets twice what a host with 1 gets. At
    /// least 0; a host with 0 takes no shards and loses those it has.
    pub weight: f64,
    /// The most shards, if there is a limit.
    pub shards_max: Option<u32>,
    /// The most bytes of shards, if there is a limit. Old copies that moves have kept are not
    /// counted.
    pub bytes_max: Option<u64>,
}

impl Default for HostLimits {
    fn default() -> HostLimits {
        HostLimits {
            weight: 1.0,
            shards_max: None,
            bytes_max: None,
        }
    }
}
