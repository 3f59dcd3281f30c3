//! The chunks of a table, and the rule that decides which changes are already in them.

use std::collections::{BTreeMap, HashMap};

use crate::mover::control::journal::Hold;
use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::pg::quote_literal;

use crate::mover::copy::snapshot::Snapshot;
use crate::mover::preflight::key::{Key, KeyKind};
use crate::mover::preflight::table::{Column, TableShape};

/// The keys from `low` up to, but without, `high`, as texts of the first key column. `None` means
/// unbounded.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct KeyRange {
    pub(crate) low: Option<String>,
    pub(crate) high: Option<String>,
}

impl KeyRange {
    /// The range as a condition on its column. The literals take the column's type, so that the
    /// column's index and collation decide.
    pub(crate) fn condition(&self, column: Option<&Column>) -> String {
        let Some(column) = column else {
            return "true".to_owned();
        };
        let bound = |sign: &str, bound: &Option<String>| {
            bound
                .as_ref()
                .map(|text| format!("{} {sign} {}", column.quoted(), quote_literal(text)))
        };
        let both: Vec<String> = bound(">=", &self.low)
            .into_iter()
            .chain(bound("<", &self.high))
            .collect();
        if both.is_empty() {
            "true".to_owned()
        } else {
            both.join(" AND ")
        }
    }
}

/// Which rows of a table were copied without seeing a transaction: those that its TRUNCATE removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unseen {
    /// All of them: no chunk has seen it.
    All,
    /// None: every chunk has seen it.
    None,
    /// The rows in these ranges, except those with these keys: they were read again later and have
    /// seen it.
    Ranges {
        ranges: Vec<KeyRange>,
        but: Vec<Vec<Option<String>>>,
    },
}

#[derive(Clone, Debug)]
struct Chunk {
    low: Option<Key>,
    range: KeyRange,
    snapshot: Snapshot,
}

/// The chunks of one table, all copied.
#[derive(Clone, Debug)]
pub(crate) struct Chunks {
    kind: Option<KeyKind>,
    /// Sorted by `low`, the unbounded one first; together they hold every key.
    chunks: Vec<Chunk>,
    /// Rows that were read again, by their whole key.
    rereads: HashMap<Vec<Option<String>>, Snapshot>,
}

impl Chunks {
    /// Combines chunks. `None` if they leave a gap or overlap, or if a bound is not a key.
    pub(crate) fn of(kind: Option<KeyKind>, copied: Vec<(KeyRange, Snapshot)>) -> Option<Chunks> {
        let key = |text: &Option<String>| match text {
            None => Some(None),
            Some(text) => kind?.parse(text).map(Some),
        };
        let mut chunks = Vec::with_capacity(copied.len());
        for (range, snapshot) in copied {
            chunks.push(Chunk {
                low: key(&range.low)?,
                range,
                snapshot,
            });
        }
        // `None`, the unbounded end, sorts before every key.
        chunks.sort_by(|a, b| a.low.cmp(&b.low));
        let (first, last) = (chunks.first()?, chunks.last()?);
        let joined = chunks
            .windows(2)
            .all(|pair| pair[0].range.high.is_some() && pair[0].range.high == pair[1].range.low);
        let ordered = chunks.windows(2).all(|pair| pair[0].low < pair[1].low);
        let whole = first.low.is_none() && last.range.high.is_none() && joined && ordered;
        whole.then_some(Chunks {
            kind,
            chunks,
            rereads: HashMap::new(),
        })
    }

    /// Whether the copy contains already what a transaction did to the row with this key.
    /// `first_key` is the text of the first key column (`None` if the table has no key),
    /// `whole_key` the texts of all its columns, in the key's order.
    pub(crate) fn sees(
        &self,
        first_key: Option<&str>,
        whole_key: &[Option<&str>],
        xid: u64,
    ) -> bool {
        if !self.rereads.is_empty() {
            let whole_key: Vec<Option<String>> = whole_key
                .iter()
                .map(|text| text.map(str::to_owned))
                .collect();
            if let Some(snapshot) = self.rereads.get(&whole_key) {
                return snapshot.sees(xid);
            }
        }
        let only = || (self.chunks.len() == 1).then(|| &self.chunks[0]);
        // A key that cannot be read is assigned to no chunk, so the change is applied. Applying is
        // strict: if that was wrong, it fails and nothing is lost.
        only()
            .or_else(|| self.holding(first_key?))
            .is_some_and(|chunk| chunk.snapshot.sees(xid))
    }

    fn holding(&self, first_key: &str) -> Option<&Chunk> {
        let key = Some(self.kind?.parse(first_key)?);
        let after = self.chunks.partition_point(|chunk| chunk.low <= key);
        self.chunks.get(after.checked_sub(1)?)
    }

    /// The rows that a TRUNCATE by this transaction removes.
    pub(crate) fn unseen_ranges(&self, xid: u64) -> Unseen {
        let unseen = self.chunks.iter().filter(|chunk| !chunk.snapshot.sees(xid));
        let mut ranges: Vec<KeyRange> = Vec::new();
        for chunk in unseen {
            match ranges.last_mut() {
                Some(last) if last.high.is_some() && last.high == chunk.range.low => {
                    last.high = chunk.range.high.clone()
                }
                _ => ranges.push(chunk.range.clone()),
            }
        }
        let seen = self
            .rereads
            .iter()
            .filter(|(_, snapshot)| snapshot.sees(xid));
        let mut but: Vec<Vec<Option<String>>> = seen.map(|(key, _)| key.clone()).collect();
        but.sort();
        match (ranges.as_slice(), but.is_empty()) {
            ([], _) => Unseen::None,
            ([range], true) if *range == KeyRange::default() => Unseen::All,
            _ => Unseen::Ranges { ranges, but },
        }
    }

    /// From now on, changes to the row with this key are judged by the snapshot under which it was
    /// read again.
    pub(crate) fn add_reread(&mut self, whole_key: Vec<Option<String>>, snapshot: Snapshot) {
        self.rereads.insert(whole_key, snapshot);
    }

    /// Transactions with this number or a later one are in no chunk.
    pub(crate) fn newest_xmax(&self) -> u64 {
        let snapshots = self
            .chunks
            .iter()
            .map(|chunk| &chunk.snapshot)
            .chain(self.rereads.values());
        snapshots.map(Snapshot::xmax).max().unwrap_or(0)
    }
}

/// What was copied of a shard, by the names of its tables.
///
/// Locks: ACCESS SHARE on pgshard.chunk and pgshard.reread at the target, for one statement each.
///
/// # Errors
/// [`Error::Stuck`] when a table has no chunks, or has chunks that are not copied.
pub(crate) async fn load(
    target: &Session,
    hold: Hold,
    shapes: &[TableShape],
) -> Result<BTreeMap<String, Chunks>, Error> {
    let what = "reading what was copied";
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
        [hold.id.uuid(), &hold.shard.as_i32()];
    let sql = "SELECT table_name, low, high, snapshot FROM pgshard.chunk WHERE move_id = $1 AND \
        shard_id = $2";
    let mut chunks: BTreeMap<String, Option<Vec<(KeyRange, Snapshot)>>> = BTreeMap::new();
    for row in target.rows(what, sql, &params).await? {
        let snapshot = row
            .get::<_, Option<String>>(3)?
            .and_then(|text| Snapshot::parse(&text));
        let range = KeyRange {
            low: row.get(1)?,
            high: row.get(2)?,
        };
        let chunk = snapshot.map(|snapshot| (range, snapshot));
        let of_table = chunks
            .entry(row.get(0)?)
            .or_insert_with(|| Some(Vec::new()));
        match (of_table.as_mut(), chunk) {
            (Some(of_table), Some(chunk)) => of_table.push(chunk),
            _ => *of_table = None,
        }
    }
    let mut loaded = BTreeMap::new();
    for shape in shapes {
        let of_table = chunks.remove(&shape.name).flatten();
        let chunks = of_table
            .and_then(|chunks| Chunks::of(shape.first_key, chunks))
            .ok_or_else(|| Error::Stuck {
                shard: hold.shard,
                observed: format!(
                    "pgshard.chunk on host {} does not have all chunks of table {}",
                    target.host, shape.name
                ),
            })?;
        loaded.insert(shape.name.clone(), chunks);
    }
    let sql =
        "SELECT table_name, key, snapshot FROM pgshard.reread WHERE move_id = $1 AND shard_id = $2";
    for row in target.rows(what, sql, &params).await? {
        let (table, key, snapshot): (String, String, String) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        let Some(chunks) = loaded.get_mut(&table) else {
            continue;
        };
        let read = serde_json::from_str(&key)
            .ok()
            .zip(Snapshot::parse(&snapshot));
        let (key, snapshot) = read.ok_or_else(|| Error::Stuck {
            shard: hold.shard,
            observed: format!(
                "pgshard.reread on host {} has {key} with {snapshot} for table {table}",
                target.host
            ),
        })?;
        chunks.add_reread(key, snapshot);
    }
    Ok(loaded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mover::preflight::table::tests::shape;

    fn range(low: Option<i64>, high: Option<i64>) -> KeyRange {
        KeyRange {
            low: low.map(|low| low.to_string()),
            high: high.map(|high| high.to_string()),
        }
    }

    /// Chunks of an integer key: bounds between them, and the xmax of each.
    fn chunks(bounds: &[i64], xmaxes: &[u64]) -> Chunks {
        let lows = std::iter::once(None).chain(bounds.iter().copied().map(Some));
        let highs = bounds.iter().copied().map(Some).chain([None]);
        let snapshot = |xmax: &u64| Snapshot::parse(&format!("{xmax}:{xmax}:")).unwrap();
        let chunks = lows
            .zip(highs)
            .zip(xmaxes)
            .map(|((low, high), xmax)| (range(low, high), snapshot(xmax)));
        Chunks::of(Some(KeyKind::Integer), chunks.collect()).unwrap()
    }

    #[test]
    fn a_change_is_judged_by_the_chunk_that_holds_its_key() {
        let mut chunks = chunks(&[-5, 10], &[100, 200, 300]);
        for (key, xid, seen) in [
            ("-6", 99, true),
            ("-6", 100, false),
            ("-5", 100, true),
            ("9", 199, true),
            ("9", 200, false),
            ("10", 299, true),
            ("9223372036854775807", 300, false),
        ] {
            assert_eq!(
                chunks.sees(Some(key), &[Some(key)], xid),
                seen,
                "{key} by {xid}"
            );
        }
        assert!(
            !chunks.sees(Some("nonsense"), &[Some("nonsense")], 1),
            "applied, strictly"
        );
        assert_eq!(chunks.newest_xmax(), 300);
        chunks.add_reread(
            vec![Some("9".to_owned())],
            Snapshot::parse("400:400:").unwrap(),
        );
        assert!(chunks.sees(Some("9"), &[Some("9")], 399));
        assert!(!chunks.sees(Some("8"), &[Some("8")], 399));
        assert_eq!(chunks.newest_xmax(), 400);
    }

    #[test]
    fn a_table_without_a_key_is_one_chunk() {
        let snapshot = Snapshot::parse("7:7:").unwrap();
        let chunks = Chunks::of(None, vec![(KeyRange::default(), snapshot.clone())]).unwrap();
        assert!(chunks.sees(None, &[], 6) && !chunks.sees(None, &[], 7));
        assert!(chunks.sees(Some("not of any kind"), &[Some("not of any kind")], 6));
        assert!(
            Chunks::of(
                None,
                vec![
                    (range(None, Some(1)), snapshot.clone()),
                    (range(Some(1), None), snapshot)
                ]
            )
            .is_none()
        );
    }

    #[test]
    fn chunks_must_hold_every_key_once() {
        let snapshot = || Snapshot::parse("7:7:").unwrap();
        let chunks = |ranges: &[KeyRange]| {
            Chunks::of(
                Some(KeyKind::Integer),
                ranges
                    .iter()
                    .map(|range| (range.clone(), snapshot()))
                    .collect(),
            )
        };
        assert!(
            chunks(&[range(Some(3), None), range(None, Some(3))]).is_some(),
            "in any order"
        );
        assert!(chunks(&[]).is_none());
        assert!(chunks(&[range(None, Some(3))]).is_none());
        assert!(chunks(&[range(Some(3), None)]).is_none());
        assert!(chunks(&[range(None, Some(3)), range(Some(4), None)]).is_none());
        assert!(chunks(&[range(None, Some(3)), range(None, None)]).is_none());
        assert!(
            chunks(&[
                range(None, Some(3)),
                range(Some(3), Some(3)),
                range(Some(3), None)
            ])
            .is_none()
        );
    }

    #[test]
    fn what_a_truncate_removes() {
        let mut chunks = chunks(&[0, 10, 20], &[100, 200, 200, 300]);
        assert_eq!(chunks.unseen_ranges(99), Unseen::None);
        assert_eq!(chunks.unseen_ranges(300), Unseen::All);
        let ranges = |ranges: Vec<KeyRange>| Unseen::Ranges {
            ranges,
            but: Vec::new(),
        };
        assert_eq!(
            chunks.unseen_ranges(100),
            ranges(vec![range(None, Some(0))])
        );
        assert_eq!(
            chunks.unseen_ranges(250),
            ranges(vec![range(None, Some(20))]),
            "neighbours are one range"
        );
        let key = vec![Some("5".to_owned())];
        chunks.add_reread(key.clone(), Snapshot::parse("400:400:").unwrap());
        assert_eq!(
            chunks.unseen_ranges(300),
            Unseen::Ranges {
                ranges: vec![range(None, None)],
                but: vec![key]
            }
        );
        assert_eq!(chunks.unseen_ranges(400), Unseen::All);
    }

    #[test]
    fn conditions_name_the_bounds_of_a_chunk() {
        let shape = shape(&["we\"ird"], 1);
        let column = shape.first_key_column();
        assert_eq!(
            range(Some(-5), Some(7)).condition(column),
            r#""we""ird" >= '-5' AND "we""ird" < '7'"#
        );
        assert_eq!(range(None, None).condition(column), "true");
        assert_eq!(range(None, None).condition(None), "true");
    }

    proptest! {
        #[test]
        fn every_key_is_in_one_chunk(
            bounds in proptest::collection::btree_set(any::<i64>(), 0..12),
            key: i64,
        ) {
            let bounds: Vec<i64> = bounds.into_iter().collect();
            let xmaxes: Vec<u64> = (0..=bounds.len() as u64).map(|at| 1000 + at).collect();
            let chunks = chunks(&bounds, &xmaxes);
            let place = bounds.iter().filter(|bound| **bound <= key).count() as u64;
            let key = key.to_string();
            prop_assert!(chunks.sees(Some(&key), &[Some(&key)], 999 + place));
            prop_assert!(!chunks.sees(Some(&key), &[Some(&key)], 1000 + place));
        }
    }
}
