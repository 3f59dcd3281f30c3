//! Hosts do not answer at the same instant. A shard that is opened between two answers seems to be
//! on two hosts, or on none. So what they state together is read again until it makes sense, and
//! what remains is believed.

use std::time::Duration;

/// In how many looks a doubtful thing is seen before it is believed.
pub const LOOKS: u32 = 3;

/// How many looks there are at most: a thing may have begun after the first look.
pub const LOOKS_MAX: u32 = 6;

/// The time between two looks: long enough for an open that is under way to reach both hosts.
pub const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

/// Reads until the answer is settled, [`LOOKS_MAX`] times at most, and returns the last answer.
///
/// # Errors
/// That of `read`, immediately.
///
/// # Cancel safety
/// As `read`.
pub async fn read_until_settled<T, E, R>(
    mut read: impl FnMut() -> R,
    is_settled: impl Fn(&T) -> bool,
) -> Result<T, E>
where
    R: Future<Output = Result<T, E>>,
{
    for _ in 1..LOOKS_MAX {
        let answer = read().await?;
        if is_settled(&answer) {
            return Ok(answer);
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    read().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::ready;

    #[tokio::test(start_paused = true)]
    async fn it_reads_until_the_answer_is_settled_and_not_for_ever() {
        for (settled_at, reads) in [(1, 1), (3, 3), (6, 6), (7, 6)] {
            let mut count = 0;
            let read = || {
                count += 1;
                ready(Ok::<u32, ()>(count))
            };
            let last = read_until_settled(read, |at| *at == settled_at).await;
            assert_eq!((last, count), (Ok(reads), reads));
        }
        let failed = read_until_settled(|| ready(Err::<(), _>("gone")), |()| true).await;
        assert_eq!(failed, Err("gone"));
    }
}
