//! UUID version 7 (RFC 9562), by the `uuid` crate: 48 bits of Unix milliseconds, version, a 42-bit
//! counter that begins at random in each millisecond, variant, 32 random bits.
//!
//! Sortable by time, ordered within a process (also when the clock steps back a little: the crate's
//! counter continues), needs no worker number and no database. Limits: nothing is checked, so
//! uniqueness rests on probability, though the odds are very good; 16 bytes are twice a `bigint` in
//! every index; the time of creation is visible in the ID.

use uuid::Uuid;

use super::{Error, IdSource, check_batch};

/// A new UUID of version 7.
pub fn next() -> Uuid {
    Uuid::now_v7()
}

/// [`next`](next()) as a source.
#[derive(Clone, Copy, Debug, Default)]
pub struct Uuid7;

impl Uuid7 {
    /// The milliseconds since 1970 that a UUID of version 7 carries; `None` for another version.
    pub fn unix_ms(id: Uuid) -> Option<u64> {
        (id.get_version_num() == 7).then(|| (id.as_u128() >> 80) as u64)
    }
}

impl IdSource for Uuid7 {
    type Id = Uuid;
    type Error = Error;

    async fn next(&self) -> Result<Uuid, Error> {
        Ok(next())
    }

    async fn next_many(&self, count: usize) -> Result<Vec<Uuid>, Error> {
        check_batch(count)?;
        Ok(std::iter::repeat_with(next).take(count).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::BATCH_MAX;
    use super::*;

    #[tokio::test]
    async fn they_grow_and_tell_their_time() {
        let before = jiff::Timestamp::now().as_millisecond() as u64;
        let ids = Uuid7.next_many(20_000).await.unwrap();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        let ms = Uuid7::unix_ms(ids[0]).unwrap();
        assert!((before..before + 60_000).contains(&ms));
        assert_eq!(Uuid7::unix_ms(Uuid::new_v4()), None);
        assert!(matches!(
            Uuid7.next_many(BATCH_MAX + 1).await,
            Err(Error::BatchTooLarge { .. })
        ));
    }
}
