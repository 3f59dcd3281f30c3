//! Deletes claims that were spent long ago.

use uuid::Uuid;

use super::lookup::Lookup;
use super::statements;
use crate::router::Error;
use crate::shard::ShardId;

impl Lookup<'_> {
    /// Deletes the claims that were spent more than 24 hours ago, in every shard, and returns how
    /// many there were. Each statement reads 1000 claims. Run it daily: nothing else deletes them.
    ///
    /// They stay for so long because a transaction may use a claim that is 15 minutes old by
    /// another host's clock. A process that stops for a day cannot use its claim either.
    ///
    /// # Errors
    /// As [`Lookup::states`].
    ///
    /// # Cancel safety
    /// What was deleted stays deleted.
    pub async fn sweep(self) -> Result<u64, Error> {
        let mut swept = 0;
        for shard in self.states().await?.into_keys() {
            swept += self.sweep_shard(shard).await?;
        }
        Ok(swept)
    }

    async fn sweep_shard(self, shard: ShardId) -> Result<u64, Error> {
        let mut swept: u64 = 0;
        let (mut hash, mut claim) = (Vec::new(), Uuid::nil());
        loop {
            let name = &self.definition().name;
            let (deleted, last_hash, last_claim): (i64, Option<Vec<u8>>, Option<Uuid>) = self
                .router()
                .shard(shard)?
                .query_one_as(statements::SWEEP, &[name, &hash, &claim])
                .await?;
            swept = swept.saturating_add(u64::try_from(deleted).unwrap_or_default());
            match last_hash.zip(last_claim) {
                Some(last) => (hash, claim) = last,
                None => return Ok(swept),
            }
        }
    }
}
