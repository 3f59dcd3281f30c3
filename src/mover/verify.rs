use super::error::Error;
use super::step::ShardMove;
use super::stream::follower::Follower;
pub(crate) async fn shard(_w: &ShardMove<'_>, _f: &Follower) -> Result<(), Error> { Ok(()) }
