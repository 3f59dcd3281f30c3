//! Finds a shard's number in texts that are otherwise the same in every shard. Pure.

use crate::shard::ShardId;

/// Splits a text into runs of digits and runs of anything else.
fn tokens(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let digits = rest.chars().next()?.is_ascii_digit();
        let end = rest
            .find(|c: char| c.is_ascii_digit() != digits)
            .unwrap_or(rest.len());
        let (token, after) = rest.split_at(end);
        rest = after;
        Some(token)
    })
}

/// Whether two texts of two shards are equal, except that each has its own number where the other
/// has its own.
pub(super) fn alike(a: &str, of_a: ShardId, b: &str, of_b: ShardId) -> bool {
    let (number_a, number_b) = (of_a.to_string(), of_b.to_string());
    let (mut a, mut b) = (tokens(a), tokens(b));
    loop {
        match (a.next(), b.next()) {
            (None, None) => return true,
            (Some(a), Some(b)) if a == b || (a == number_a && b == number_b) => {}
            _ => return false,
        }
    }
}

/// The text with a placeholder for the number.
pub(super) fn out_of(text: &str, shard: ShardId) -> String {
    let number = shard.to_string();
    tokens(text)
        .map(|token| if token == number { "{shard_id}" } else { token })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_differ_in_the_shards_number_are_alike() {
        let shard = |number| ShardId::new(number).unwrap();
        let alike = |a, of_a, b, of_b| super::alike(a, shard(of_a), b, shard(of_b));
        assert!(
            alike("7 << 10", 7, "10 << 10", 10) && alike("x", 1, "x", 2) && alike("é1", 1, "é2", 2)
        );
        assert!(
            !alike("7 << 10", 7, "8 << 10", 10)
                && !alike("17", 7, "110", 10)
                && !alike("a7", 7, "a7 ", 7)
        );
        assert_eq!(out_of("f_7(17)", shard(7)), "f_{shard_id}(17)");
    }
}
