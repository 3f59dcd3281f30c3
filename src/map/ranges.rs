//! The notation `"0-2047, 17@3"`: shards as ranges, each with its epoch.

use std::fmt;
use std::ops::Range;

use super::placement::ShardEpoch;
use crate::shard::{ShardCount, ShardId};

/// The most shards in a list, counting repetitions. A few bytes can list all of them again, and a
/// client that can write the map's table could otherwise exhaust its readers' memory.
const LISTED_MAX: usize = 4 * ShardCount::MAX.get() as usize;

/// The most mistakes that are reported of a list.
const MISTAKES_MAX: usize = 100;

/// One item of a list of ranges: shards `first..=last`, all of one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeItem {
    /// The first shard.
    pub first: ShardId,
    /// The last shard; `first ≤ last`.
    pub last: ShardId,
    /// The epoch after `@`, [`ShardEpoch::FIRST`] where there is none.
    pub epoch: ShardEpoch,
    /// The byte position of the item in the text.
    pub at: Range<usize>,
}

impl RangeItem {
    /// The shards of the item, in order.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = ShardId> + use<> {
        let (first, last) = (self.first.get(), self.last.get());
        (0..usize::from(last - first) + 1).map(move |offset| {
            ShardId::new(first + offset as u16).expect("between two shards there are only shards")
        })
    }
}

/// One mistake in a list of ranges.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault}")]
pub struct RangesError {
    /// What is wrong.
    pub fault: RangesFault,
    /// Where in the text, in bytes.
    pub at: Range<usize>,
}

/// What can be wrong with an item of a list of ranges.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangesFault {
    /// Nothing between two commas, or before the first.
    #[error("there is no range before this comma")]
    Empty,
    /// Not `7`, `0-255` or either with `@3`.
    #[error("{text:?} is not a range such as 7 or 0-255")]
    NoRange {
        /// The item.
        text: String,
    },
    /// The first shard is larger than the last.
    #[error("the range {first}-{last} runs backwards")]
    Backwards {
        /// The number before the dash.
        first: u64,
        /// The number after it.
        last: u64,
    },
    /// A shard that the cluster does not have.
    #[error("shard {shard} does not exist: the cluster has {shards} shards, 0 to \
        {}", shards.get() - 1)]
    OutOfRange {
        /// The number given.
        shard: u64,
        /// N.
        shards: ShardCount,
    },
    /// The text after `@` is not an epoch.
    #[error("{text:?} is not an epoch: a number from 1 on")]
    NoEpoch {
        /// The text after the `@`.
        text: String,
    },
    /// A list of shards to work on has no epochs.
    #[error("a list of shards takes no @epoch")]
    EpochHere,
    /// It names shards again and again.
    #[error(
        "a list of more than {LISTED_MAX} shards: there are {} at most",
        ShardCount::MAX
    )]
    TooMany,
}

/// Reads a list such as `"0-2047, 17@3"`. The empty text is the empty list. The caller looks for
/// overlaps, since they can lie in different lists.
///
/// # Errors
/// Every mistake, each with its place in the text, but a hundred at most.
pub fn parse_ranges(text: &str, shards: ShardCount) -> Result<Vec<RangeItem>, Vec<RangesError>> {
    let mut items = Vec::new();
    let mut errors = Vec::new();
    if text.trim().is_empty() {
        return Ok(items);
    }
    let (mut start, mut listed) = (0, 0);
    for chunk in text.split(',') {
        let indent = chunk.len() - chunk.trim_start().len();
        let item = chunk.trim();
        // An empty item is shown at its comma.
        let at = start + indent..start + indent + item.len().max(1);
        match parse_item(item, shards) {
            Ok((first, last, epoch)) => {
                listed += usize::from(last.get() - first.get()) + 1;
                if listed > LISTED_MAX {
                    errors.push(RangesError {
                        fault: RangesFault::TooMany,
                        at,
                    });
                    break;
                }
                items.push(RangeItem {
                    first,
                    last,
                    epoch,
                    at,
                });
            }
            Err(fault) => errors.push(RangesError { fault, at }),
        }
        if errors.len() == MISTAKES_MAX {
            break;
        }
        start += chunk.len() + 1;
    }
    if errors.is_empty() {
        Ok(items)
    } else {
        Err(errors)
    }
}

/// Reads a list of shards to work on, such as `"17"` or `"0-255,300"`: sorted, each once.
///
/// # Errors
/// Every mistake, each with its place in the text; an epoch is one.
pub fn parse_shards(text: &str, shards: ShardCount) -> Result<Vec<ShardId>, Vec<RangesError>> {
    let at_signs = text.match_indices('@').map(|(at, _)| RangesError {
        fault: RangesFault::EpochHere,
        at: at..at + 1,
    });
    let errors: Vec<_> = at_signs.take(MISTAKES_MAX).collect();
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut list: Vec<_> = parse_ranges(text, shards)?
        .iter()
        .flat_map(RangeItem::shards)
        .collect();
    list.sort_unstable();
    list.dedup();
    Ok(list)
}

fn parse_item(
    item: &str,
    shards: ShardCount,
) -> Result<(ShardId, ShardId, ShardEpoch), RangesFault> {
    if item.is_empty() {
        return Err(RangesFault::Empty);
    }
    let (range, epoch) = match item.split_once('@') {
        None => (item, ShardEpoch::FIRST),
        Some((range, epoch)) => {
            let number = number(epoch.trim())
                .and_then(|epoch| u32::try_from(epoch).ok())
                .and_then(ShardEpoch::new);
            (
                range.trim(),
                number.ok_or_else(|| RangesFault::NoEpoch {
                    text: epoch.trim().to_owned(),
                })?,
            )
        }
    };
    let no_range = || RangesFault::NoRange {
        text: item.to_owned(),
    };
    let (first, last) = match range.split_once('-') {
        None => {
            let one = number(range).ok_or_else(no_range)?;
            (one, one)
        }
        Some((first, last)) => (
            number(first.trim()).ok_or_else(no_range)?,
            number(last.trim()).ok_or_else(no_range)?,
        ),
    };
    if first > last {
        return Err(RangesFault::Backwards { first, last });
    }
    let shard = |given: u64| {
        let known = u16::try_from(given)
            .ok()
            .and_then(|number| shards.shard(number));
        known.ok_or(RangesFault::OutOfRange {
            shard: given,
            shards,
        })
    };
    Ok((shard(first)?, shard(last)?, epoch))
}

/// Digits only: `parse` alone would take a sign.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    // More digits than a u64 holds are a number past every limit, not a mistake of notation.
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Writes shards and their epochs as the shortest list of ranges: `"0-2047, 17@3"`. Epoch 1 is not
/// written.
pub fn print_ranges(shards: impl IntoIterator<Item = (ShardId, ShardEpoch)>) -> String {
    let mut runs: Vec<(ShardId, ShardId, ShardEpoch)> = Vec::new();
    for (shard, epoch) in shards {
        match runs.last_mut() {
            Some((_, last, last_epoch))
                if last.get() + 1 == shard.get() && *last_epoch == epoch =>
            {
                *last = shard
            }
            _ => runs.push((shard, shard, epoch)),
        }
    }
    let written: Vec<String> = runs.iter().map(|run| Run(run).to_string()).collect();
    written.join(", ")
}

/// Writes shards as the shortest list of ranges: `"0-255, 300"`.
pub fn print_shards(shards: impl IntoIterator<Item = ShardId>) -> String {
    print_ranges(shards.into_iter().map(|shard| (shard, ShardEpoch::FIRST)))
}

struct Run<'a>(&'a (ShardId, ShardId, ShardEpoch));

impl fmt::Display for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last, epoch) = self.0;
        write!(f, "{first}")?;
        if first != last {
            write!(f, "-{last}")?;
        }
        if *epoch != ShardEpoch::FIRST {
            write!(f, "@{epoch}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn faults(text: &str) -> Vec<(String, Range<usize>)> {
        let errors = parse_ranges(text, ShardCount::new(256).unwrap()).unwrap_err();
        errors
            .into_iter()
            .map(|error| (error.to_string(), error.at))
            .collect()
    }

    /// Ten million bytes would be twenty billion shards.
    #[test]
    fn a_list_is_as_long_as_it_can_be() {
        for text in ["0-8191,".repeat(1_000_000), "7@2,".repeat(1_000_000)] {
            let errors = parse_ranges(&text, ShardCount::MAX).unwrap_err();
            assert_eq!(errors.len(), 1);
            assert_eq!(errors[0].fault, RangesFault::TooMany);
            assert!(parse_shards(&text, ShardCount::MAX).is_err());
        }
        assert_eq!(
            parse_ranges(&",".repeat(1_000_000), ShardCount::MAX)
                .unwrap_err()
                .len(),
            MISTAKES_MAX
        );
        assert_eq!(
            parse_shards(&"@".repeat(1_000_000), ShardCount::MAX)
                .unwrap_err()
                .len(),
            MISTAKES_MAX
        );
    }

    #[test]
    fn mistakes_and_their_places() {
        let one = |message: &str, at| vec![(message.to_owned(), at)];
        assert_eq!(
            faults("0-255, x"),
            one("\"x\" is not a range such as 7 or 0-255", 7..8)
        );
        assert_eq!(
            faults("0,,1"),
            one("there is no range before this comma", 2..3)
        );
        assert_eq!(faults(" 9-3"), one("the range 9-3 runs backwards", 1..4));
        assert_eq!(
            faults("0-256"),
            one(
                "shard 256 does not exist: the cluster has 256 shards, 0 to 255",
                0..5
            )
        );
        assert_eq!(
            faults("7@0"),
            one("\"0\" is not an epoch: a number from 1 on", 0..3)
        );
        assert_eq!(
            faults("+1"),
            one("\"+1\" is not a range such as 7 or 0-255", 0..2)
        );
        assert_eq!(faults("a, b").len(), 2, "all at once");
        assert!(
            faults("99999999999999999999999")[0]
                .0
                .contains("does not exist")
        );
    }

    #[test]
    fn lists_of_shards() {
        let shards = ShardCount::new(256).unwrap();
        let numbers = |text| {
            parse_shards(text, shards)
                .unwrap()
                .iter()
                .map(|s| s.get())
                .collect::<Vec<_>>()
        };
        assert_eq!(numbers("3,1-2,2"), [1, 2, 3]);
        assert!(numbers("").is_empty());
        assert_eq!(parse_shards("1@2", shards).unwrap_err()[0].at, 1..2);
        assert_eq!(
            print_shards(parse_shards("3, 1-2, 9", shards).unwrap()),
            "1-3, 9"
        );
    }

    proptest! {
        #[test]
        fn print_undoes_parse(slots in prop::collection::btree_map(0u16..256, 1u32..4, 0..40)) {
            let shards = ShardCount::new(256).unwrap();
            let list: Vec<_> = slots.into_iter()
                .map(|(s, e)| (ShardId::new(s).unwrap(), ShardEpoch::new(e).unwrap())).collect();
            let text = print_ranges(list.clone());
            let back: Vec<_> = parse_ranges(&text, shards).unwrap().iter()
                .flat_map(|item| item.shards().map(|s| (s, item.epoch))).collect();
            prop_assert_eq!(back, list);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[-@0-9, ]{0,20}|.{0,20}") {
            if let Err(errors) = parse_ranges(&text, ShardCount::MAX) {
                prop_assert!(errors.iter().all(|e| e.at.start <= text.len()));
            }
        }
    }
}
