use super::error::Error;
use super::step::ShardMove;
use super::stream::Follower;
pub(crate) async fn shard(_w: &ShardMove<'_>, _f: &Follower) -> Result<(), Error> { Ok(()) }
