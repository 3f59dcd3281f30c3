//! Who works on a move, and how far it is: sessions, the journal with its leases, signs of life,
//! requests of operators.

pub(crate) mod context;
pub(crate) mod heartbeat;
pub(crate) mod hosts;
pub(crate) mod journal;
pub(crate) mod observe;
pub(crate) mod report;
pub(crate) mod requests;
pub(crate) mod row;
pub(crate) mod session;
pub(crate) mod spare;
pub(crate) mod worker;
