//! A connection that the application uses directly.

use std::ops::{Deref, DerefMut};

use tokio_postgres::Client;

use super::lease::Lease;
use crate::map::HostName;
use crate::pg::quote_ident;
use crate::shard::ShardId;

/// A connection to the host of a shard: a [`tokio_postgres::Client`]. When it is dropped, an open
/// transaction is rolled back, and the connection is cleaned and goes back to its pool.
pub struct RawClient {
    lease: Lease,
    shard: ShardId,
    host: HostName,
    schema: String,
}

impl RawClient {
    pub(super) fn new(
        mut lease: Lease,
        shard: ShardId,
        host: HostName,
        schema: String,
    ) -> RawClient {
        lease.session().set_dirty();
        lease.set_unknown();
        RawClient {
            lease,
            shard,
            host,
            schema,
        }
    }

    /// The shard that it was requested for.
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// The host it is connected to.
    pub fn host(&self) -> &HostName {
        &self.host
    }

    /// The shard's schema as a quoted name, to be put into SQL: `"shard_0007"`.
    pub fn schema(&self) -> String {
        quote_ident(&self.schema)
    }
}

impl Deref for RawClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.lease.session().connection
    }
}

impl DerefMut for RawClient {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.lease.session_mut().connection
    }
}
