//! The order of the moves: wherever a plan is stopped, it has gained as much as it could by then.

use super::load::{Load, Score};
use super::outcome::Reason;

/// A move with its reason in the state before it.
pub(super) struct OrderedMove {
    pub(super) shard: usize,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) reason: Reason,
}

/// The moves from where everything is to where `end` has it: first those that must be, then those
/// that even out the most. Each move is possible when its turn comes. What never becomes possible
/// (two full hosts that would exchange) is left out. The list is cut to `most` moves, and then
/// where the placement is best, since half of an exchange could be worse than none.
pub(super) fn order(
    start: &Load<'_>,
    end: &Load<'_>,
    level: f64,
    most: Option<usize>,
) -> Vec<OrderedMove> {
    let mut now = start.clone();
    let mut left: Vec<usize> = (0..end.at.len())
        .filter(|shard| end.at[*shard] != start.at[*shard])
        .collect();
    let mut moves = Vec::with_capacity(left.len());
    let mut score = now.score();
    let mut best: (usize, Score) = (0, score);
    let forced: Vec<bool> = (0..start.at.len())
        .map(|shard| start.why_it_must(shard).is_some())
        .collect();
    let most = most.unwrap_or(usize::MAX);
    while moves.len() < most {
        let possible = left
            .iter()
            .enumerate()
            .filter(|(_, shard)| now.may_go(**shard, end.at[**shard]));
        let ranked = possible.map(|(place, shard)| {
            (
                place,
                *shard,
                rank(&now, *shard, end.at[*shard], forced[*shard]),
            )
        });
        let chosen = ranked.reduce(|best, next| {
            if next.2.is_before(&best.2) {
                next
            } else {
                best
            }
        });
        let Some((place, shard, _)) = chosen else {
            break;
        };
        left.remove(place);
        let (from, to) = (now.at[shard], end.at[shard]);
        let reason = start.why_it_must(shard).unwrap_or_else(|| {
            let percent = |host: usize| (now.fullness(host) / level - 1.0) * 100.0;
            let (source_percent, target_percent) = (percent(from), percent(to));
            if source_percent > 0.0 && target_percent < 0.0 {
                Reason::Levels {
                    source_percent,
                    target_percent,
                }
            } else {
                Reason::Exchanged
            }
        });
        now.put(shard, to);
        moves.push(OrderedMove {
            shard,
            from,
            to,
            reason,
        });
        score = if forced[shard] {
            now.score()
        } else {
            now.score_like(&score)
        };
        if score.is_better_than(&best.1) {
            best = (moves.len(), score);
        }
    }
    moves.truncate(best.0);
    moves
}

/// Which move comes first.
struct Rank {
    forced: bool,
    /// How much more uneven everything becomes; what evens out is negative.
    unevenness: f64,
}

impl Rank {
    fn is_before(&self, other: &Rank) -> bool {
        other
            .forced
            .cmp(&self.forced)
            .then(self.unevenness.total_cmp(&other.unevenness))
            .is_lt()
    }
}

fn rank(now: &Load<'_>, shard: usize, to: usize, forced: bool) -> Rank {
    let (from, weight) = (now.at[shard], now.problem.shards[shard].weight);
    let term = |host: usize, weight: u64| now.share(host) * now.fullness_with(host, weight).powi(2);
    let change = |host: usize, then: u64| term(host, then) - term(host, now.weight[host]);
    let unevenness = change(from, now.weight[from] - weight) + change(to, now.weight[to] + weight);
    Rank { forced, unevenness }
}
