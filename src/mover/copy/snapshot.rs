//! What a transaction of the source can see: snapshots. Also widens the stream's 32-bit transaction
//! numbers to 64 bits.

use std::fmt;

/// A snapshot as `pg_current_snapshot()` writes it: `xmin:xmax:xid,xid,…`.
///
/// It contains the numbers of top-level transactions only, and so does the stream: a
/// subtransaction's change comes under the number of its top-level transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    xmin: u64,
    xmax: u64,
    /// The transactions between the two that had not ended, sorted.
    in_progress: Vec<u64>,
}

impl Snapshot {
    /// Reads a snapshot; `None` if the text is not one.
    pub(crate) fn parse(text: &str) -> Option<Snapshot> {
        let mut parts = text.split(':');
        let (xmin, xmax) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let list = parts.next()?;
        let numbers = list.split(',').filter(|number| !number.is_empty());
        let in_progress = numbers
            .map(|number| number.parse().ok())
            .collect::<Option<Vec<u64>>>()?;
        let ordered = in_progress.is_sorted_by(|a, b| a < b);
        let within = in_progress.iter().all(|xid| (xmin..xmax).contains(xid));
        let whole = parts.next().is_none() && xmin <= xmax && ordered && within;
        whole.then_some(Snapshot {
            xmin,
            xmax,
            in_progress,
        })
    }

    /// Whether the snapshot contains what this transaction did, provided that it was committed.
    pub(crate) fn sees(&self, xid: u64) -> bool {
        xid < self.xmin || (xid < self.xmax && self.in_progress.binary_search(&xid).is_err())
    }

    /// The first transaction number that was not assigned yet: the snapshot sees neither it nor any
    /// later one.
    pub(crate) fn xmax(&self) -> u64 {
        self.xmax
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:", self.xmin, self.xmax)?;
        for (at, xid) in self.in_progress.iter().enumerate() {
            write!(f, "{}{xid}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// The full number of a transaction, given its lower 32 bits from the stream and a full number
/// `near` from about the same time: the nearest of all candidates. No two transactions that are
/// alive, or in WAL that is still kept, are 2³¹ apart: PostgreSQL guarantees that.
pub(crate) fn widen(xid: u32, near: u64) -> u64 {
    let apart = i64::from(xid.wrapping_sub(near as u32) as i32);
    // Before the first wrap-around nothing is below zero, so only the candidate above is left.
    near.checked_add_signed(apart)
        .unwrap_or_else(|| near.wrapping_add_signed(apart).wrapping_add(1 << 32))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn malformed_snapshots_are_refused() {
        for (text, whole) in [
            ("10:20:10,14,15", true),
            ("10:10:", true),
            ("10:20:", true),
            (
                "18446744073709551614:18446744073709551615:18446744073709551614",
                true,
            ),
            ("20:10:", false),
            ("10:20:9", false),
            ("10:20:20", false),
            ("10:20:15,14", false),
            ("10:20:14,14", false),
            ("10:20", false),
            ("10:20:11:12", false),
            ("-1:20:", false),
            ("10:99999999999999999999:", false),
            ("", false),
        ] {
            let snapshot = Snapshot::parse(text);
            assert_eq!(snapshot.is_some(), whole, "{text}");
            if let Some(snapshot) = snapshot {
                assert_eq!(snapshot.to_string(), text);
            }
        }
    }

    #[test]
    fn what_is_seen() {
        let snapshot = Snapshot::parse("10:20:10,14,15").unwrap();
        let seen: Vec<u64> = (8..23).filter(|xid| snapshot.sees(*xid)).collect();
        assert_eq!(seen, [8, 9, 11, 12, 13, 16, 17, 18, 19]);
        assert_eq!(snapshot.xmax(), 20);
    }

    #[test]
    fn numbers_around_the_wrap() {
        let wrap = 1_u64 << 32;
        for (xid, near, whole) in [
            (5, 7, 5),
            (7, 5, 7),
            (3, wrap - 1, wrap + 3),
            (u32::MAX, wrap + 3, wrap - 1),
            (u32::MAX, 7 * wrap + 3, 7 * wrap - 1),
            (9, 7 * wrap + 3, 7 * wrap + 9),
            // Only one candidate is not below zero.
            (u32::MAX, 3, u64::from(u32::MAX)),
        ] {
            assert_eq!(widen(xid, near), whole, "{xid} near {near}");
        }
    }

    proptest! {
        #[test]
        fn widening_finds_what_was_cut_off(
            whole in 3_u64..1 << 60,
            apart in -(1_i64 << 31) + 1..1 << 31,
        ) {
            if let Some(near) = whole.checked_add_signed(apart) {
                prop_assert_eq!(widen(whole as u32, near), whole);
            }
        }

        #[test]
        fn a_snapshot_reads_what_it_writes(
            xmin in 3_u64..1 << 40,
            ahead in proptest::collection::btree_set(0_u64..50, 0..8)
        ) {
            let in_progress: Vec<u64> = ahead.iter().map(|ahead| xmin + ahead).collect();
            let snapshot = Snapshot { xmin, xmax: xmin + 50, in_progress: in_progress.clone() };
            prop_assert_eq!(Snapshot::parse(&snapshot.to_string()), Some(snapshot.clone()));
            for xid in xmin - 3..xmin + 60 {
                prop_assert_eq!(snapshot.sees(xid), xid < xmin + 50 && !in_progress.contains(&xid));
            }
        }

        #[test]
        fn nothing_makes_it_panic(text in "[0-9:,]{0,30}") {
            let _ = Snapshot::parse(&text);
        }
    }
}
