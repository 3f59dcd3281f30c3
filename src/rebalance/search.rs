//! The search: what must move, then levelling, then refinement, then taking back what was not
//! needed.

use super::load::Load;
use super::problem::Constraint;

/// How near to the bound is near enough: 0.002 is a fifth of a percent. Bytes that would be moved
/// for less gain nothing measurable.
pub const PRECISION: f64 = 0.002;

/// Rounds of taking back. Each can make room for another; more than a few never do.
const TAKE_BACK_MAX: usize = 4;

/// A lower bound for the fullness of the fullest host in any placement. Shards that may not move,
/// or only to one host, are fixed. The bound is the largest of three: the heaviest free shard on
/// the largest host; the host that its fixed shards fill the most; and all hosts equally full,
/// except those that fixed shards alone make fuller. Limits and apart-sets are not taken into
/// account.
pub(super) fn bound(load: &Load<'_>) -> f64 {
    let hosts: Vec<usize> = (0..load.weight.len())
        .filter(|host| load.share(*host) > 0.0)
        .collect();
    let mut fixed = vec![0u64; load.weight.len()];
    let mut heaviest = 0u64;
    let mut spread = 0u64;
    for (number, shard) in load.problem.shards.iter().enumerate() {
        let (at, taken) = (load.home[number], load.share(load.home[number]) > 0.0);
        match load.pin[number].filter(|pin| load.share(*pin) > 0.0) {
            Some(pin) => fixed[pin] += shard.weight,
            None if shard.constraint == Constraint::Free => {
                spread += shard.weight;
                heaviest = heaviest.max(shard.weight);
            }
            // What cannot leave a host that takes nothing counts for no host.
            None if taken => fixed[at] += shard.weight,
            None => {}
        }
    }
    let mut open = hosts.clone();
    open.sort_by(|a, b| {
        load.fullness_with(*b, fixed[*b])
            .total_cmp(&load.fullness_with(*a, fixed[*a]))
    });
    // Hosts that fixed shards alone make fuller than the others can become get nothing: the fullest
    // first.
    let mut level = 0.0;
    for at in 0..open.len() {
        let rest = &open[at..];
        let weight: u64 = rest.iter().map(|host| fixed[*host]).sum::<u64>() + spread;
        level = weight as f64 / rest.iter().map(|host| load.share(*host)).sum::<f64>();
        if load.fullness_with(open[at], fixed[open[at]]) <= level {
            break;
        }
    }
    let fullest_fixed = hosts
        .iter()
        .map(|host| load.fullness_with(*host, fixed[*host]))
        .fold(0.0, f64::max);
    let largest = hosts
        .iter()
        .map(|host| load.share(*host))
        .fold(0.0, f64::max);
    let heaviest = if largest > 0.0 {
        heaviest as f64 / largest
    } else {
        0.0
    };
    level.max(fullest_fixed).max(heaviest)
}

/// The fullness that levelling aims at: all hosts can come down to it, except those that fixed
/// shards alone make fuller.
pub(super) fn level(load: &Load<'_>) -> f64 {
    level_and_closed(load).0
}

/// The same, with the hosts that fixed shards alone make fuller.
fn level_and_closed(load: &Load<'_>) -> (f64, Vec<bool>) {
    let hosts = || (0..load.weight.len()).filter(|host| load.share(*host) > 0.0);
    let mut fixed = vec![0u64; load.weight.len()];
    for (number, shard) in load.problem.shards.iter().enumerate() {
        if !is_free(load, number) {
            fixed[load.at[number]] += shard.weight;
        }
    }
    let mut closed = vec![false; load.weight.len()];
    loop {
        let open = || hosts().filter(|host| !closed[*host]);
        let share: f64 = open().map(|host| load.share(host)).sum();
        let gone: u64 = hosts()
            .filter(|host| closed[*host])
            .map(|host| fixed[host])
            .sum();
        let weight: u64 = hosts()
            .map(|host| load.weight[host])
            .sum::<u64>()
            .saturating_sub(gone);
        let level = if share > 0.0 {
            weight as f64 / share
        } else {
            0.0
        };
        let over: Vec<usize> = open()
            .filter(|host| load.fullness_with(*host, fixed[*host]) > level)
            .collect();
        if over.is_empty() {
            return (level, closed);
        }
        over.into_iter().for_each(|host| closed[host] = true);
    }
}

fn is_free(load: &Load<'_>, shard: usize) -> bool {
    load.problem.shards[shard].constraint == Constraint::Free
}

/// What a move costs in addition to what is planned: a shard that has left home moves on at no
/// cost, and saves its bytes if it goes back home.
fn cost(load: &Load<'_>, shard: usize, host: usize) -> i64 {
    let bytes = i64::try_from(load.problem.shards[shard].bytes).unwrap_or(i64::MAX);
    match (load.at[shard] == load.home[shard], host == load.home[shard]) {
        (true, _) => bytes,
        (false, true) => -bytes,
        (false, false) => 0,
    }
}

/// Moves what must move, as far as there is a place for it.
pub(super) fn force(load: &mut Load<'_>) {
    let hosts = load.weight.len();
    // Twice: what leaves a host in the first round makes room there.
    for _ in 0..2 {
        let mut leaving: Vec<usize> = (0..load.at.len())
            .filter(|shard| must_leave(load, *shard))
            .collect();
        // The heaviest first, while there is room to choose.
        leaving.sort_by_key(|shard| {
            (
                std::cmp::Reverse(load.problem.shards[*shard].weight),
                *shard,
            )
        });
        for shard in leaving {
            place(load, shard);
        }
        // Of two shards that are to be kept apart, the one that costs less goes.
        let mut near: Vec<usize> = (0..load.at.len())
            .filter(|shard| load.too_near(*shard).is_some())
            .collect();
        near.sort_by_key(|shard| (load.problem.shards[*shard].bytes, *shard));
        for shard in near {
            if load.too_near(shard).is_some() && is_free(load, shard) {
                place(load, shard);
            }
        }
        for host in 0..hosts {
            relieve(load, host);
        }
    }
}

fn must_leave(load: &Load<'_>, shard: usize) -> bool {
    let at = load.at[shard];
    match load.pin[shard] {
        Some(pin) => pin != at,
        None => is_free(load, shard) && load.share(at) == 0.0,
    }
}

/// Puts a shard on the host that is then the least full of those that may take it.
fn place(load: &mut Load<'_>, shard: usize) -> bool {
    let weight = load.problem.shards[shard].weight;
    let then = |host: usize| load.fullness_with(host, load.weight[host] + weight);
    let may = (0..load.weight.len()).filter(|host| load.may_go(shard, *host));
    match may.min_by(|a, b| then(*a).total_cmp(&then(*b))) {
        Some(host) => {
            load.put(shard, host);
            true
        }
        None => false,
    }
}

/// Takes shards off a host that is over a limit, with as few bytes as will do.
fn relieve(load: &mut Load<'_>, host: usize) {
    while load.over_shards(host) > 0 || load.over_bytes(host) > 0 {
        let over = load.over_bytes(host);
        let mut here: Vec<usize> = (0..load.at.len())
            .filter(|shard| load.at[*shard] == host && is_free(load, *shard))
            .collect();
        let bytes = |shard: &usize| load.problem.shards[*shard].bytes;
        // The smallest that is enough by itself; else the largest.
        here.sort_by_key(|shard| match bytes(shard) {
            enough if enough >= over => (0, enough, *shard),
            less => (1, u64::MAX - less, *shard),
        });
        if !here.into_iter().any(|shard| place(load, shard)) {
            return;
        }
    }
}

/// Takes from hosts over their share and gives to those below it, never more than either is off: no
/// shard is moved in vain, and none twice.
pub(super) fn flatten(load: &mut Load<'_>) {
    let target = level(load);
    let hosts = load.weight.len();
    let room = |load: &Load<'_>, host: usize| target * load.share(host) - load.weight[host] as f64;
    let mut here: Vec<Vec<usize>> = vec![Vec::new(); hosts];
    for shard in (0..load.at.len()).filter(|shard| is_free(load, *shard)) {
        if load.problem.shards[shard].weight > 0 {
            here[load.at[shard]].push(shard);
        }
    }
    let value = |load: &Load<'_>, shard: usize| {
        let facts = &load.problem.shards[shard];
        // What is on its way already costs nothing.
        let bytes = if load.at[shard] == load.home[shard] {
            facts.bytes
        } else {
            0
        };
        (facts.weight as f64 / (bytes as f64 + 1.0), facts.weight)
    };
    for list in &mut here {
        list.sort_by(|a, b| {
            let (a_value, b_value) = (value(load, *a), value(load, *b));
            b_value
                .0
                .total_cmp(&a_value.0)
                .then(b_value.1.cmp(&a_value.1))
                .then(a.cmp(b))
        });
    }
    let mut done = vec![false; hosts];
    seat_the_heaviest(load, &mut here, target);
    loop {
        let over = (0..hosts)
            .filter(|host| !done[*host] && load.share(*host) > 0.0 && room(load, *host) < 0.0);
        let Some(from) = over.max_by(|a, b| load.fullness(*a).total_cmp(&load.fullness(*b))) else {
            return;
        };
        let mut receivers: Vec<usize> = (0..hosts).filter(|host| room(load, *host) > 0.0).collect();
        receivers.sort_by(|a, b| room(load, *b).total_cmp(&room(load, *a)).then(a.cmp(b)));
        let found = receivers.iter().find_map(|to| {
            let most = (-room(load, from)).min(room(load, *to));
            let fits = |shard: &usize| {
                load.problem.shards[*shard].weight as f64 <= most && load.may_go(*shard, *to)
            };
            here[from].iter().position(fits).map(|at| (at, *to))
        });
        match found {
            Some((at, to)) => {
                let shard = here[from].remove(at);
                load.put(shard, to);
            }
            None => done[from] = true,
        }
    }
}

/// A shard that overfills its host all by itself goes to the host that it fills the least, whatever
/// else is there: the rest is levelled around it. Levelling by itself never gives a host more than
/// it has room for.
fn seat_the_heaviest(load: &mut Load<'_>, here: &mut [Vec<usize>], target: f64) {
    let weight = |load: &Load<'_>, shard: usize| load.problem.shards[shard].weight;
    let too_heavy = |load: &Load<'_>, shard: usize| {
        weight(load, shard) as f64 > target * load.share(load.at[shard])
    };
    let mut heavy: Vec<usize> = here
        .iter()
        .flatten()
        .copied()
        .filter(|shard| too_heavy(load, *shard))
        .collect();
    heavy.sort_by_key(|shard| (std::cmp::Reverse(weight(load, *shard)), *shard));
    let mut seated = vec![0u64; here.len()];
    for shard in heavy {
        let then = |load: &Load<'_>, host: usize| {
            load.fullness_with(host, seated[host] + weight(load, shard))
        };
        let may = (0..here.len()).filter(|host| load.may_go(shard, *host));
        let best = may.min_by(|a, b| then(load, *a).total_cmp(&then(load, *b)));
        let Some(to) = best.filter(|to| then(load, *to) < then(load, load.at[shard])) else {
            continue;
        };
        here[load.at[shard]].retain(|other| *other != shard);
        seated[to] += weight(load, shard);
        load.put(shard, to);
    }
}

/// A step of the refinement.
#[derive(Clone, Copy)]
struct Step {
    /// How full the fuller of the two hosts is afterwards.
    peak: f64,
    cost: i64,
    shard: usize,
    to: usize,
    back: Option<usize>,
}

/// Makes the fullest host less full, by a move or an exchange at a time, until it is near enough to
/// `bound` or no step helps. Every step makes the sorted list of fullnesses smaller, so it ends;
/// the limit is for rounding errors.
pub(super) fn refine(load: &mut Load<'_>, bound: f64) {
    let hosts = load.weight.len();
    let enough = bound * (1.0 + PRECISION);
    let mut by_weight: Vec<Vec<(u64, usize)>> = vec![Vec::new(); hosts];
    for shard in (0..load.at.len()).filter(|shard| is_free(load, *shard)) {
        by_weight[load.at[shard]].push((load.problem.shards[shard].weight, shard));
    }
    by_weight.iter_mut().for_each(|list| list.sort_unstable());
    let aim = level(load);
    for _ in 0..4 * load.at.len() {
        let mut fullest: Vec<usize> = (0..hosts).filter(|host| load.share(*host) > 0.0).collect();
        fullest.sort_by(|a, b| {
            load.fullness(*b)
                .total_cmp(&load.fullness(*a))
                .then(a.cmp(b))
        });
        // A host that no step helps is passed over: the next may still be lowered.
        let over = fullest.into_iter().filter(|host| {
            let fullness = load.fullness(*host);
            fullness > enough || fullness > aim * (1.0 + PRECISION)
        });
        let Some(step) = over
            .into_iter()
            .find_map(|from| best_step(load, &by_weight, from, aim))
        else {
            return;
        };
        let from = load.at[step.shard];
        let mut shift = |load: &mut Load<'_>, shard: usize, to: usize| {
            let entry = (load.problem.shards[shard].weight, shard);
            let from = load.at[shard];
            if let Ok(at) = by_weight[from].binary_search(&entry) {
                by_weight[from].remove(at);
            }
            if let Err(at) = by_weight[to].binary_search(&entry) {
                by_weight[to].insert(at, entry);
            }
            load.put(shard, to);
        };
        shift(load, step.shard, step.to);
        if let Some(back) = step.back {
            shift(load, back, from);
        }
    }
}

/// The step that helps a host the most; of those that bring it near enough, the one that costs the
/// least.
fn best_step(
    load: &Load<'_>,
    by_weight: &[Vec<(u64, usize)>],
    from: usize,
    aim: f64,
) -> Option<Step> {
    let now = load.fullness(from);
    let enough = aim * (1.0 + PRECISION);
    let mut best: Option<Step> = None;
    let mut consider = |step: Step| {
        if step.peak >= now * (1.0 - 1e-12) {
            return;
        }
        let rank = |step: &Step| {
            if step.peak <= enough {
                (0, step.cost as f64)
            } else {
                (1, step.peak)
            }
        };
        let better = |best: &Step| {
            let (new, old) = (rank(&step), rank(best));
            new.0
                .cmp(&old.0)
                .then(new.1.total_cmp(&old.1))
                .then(step.cost.cmp(&best.cost))
                .is_lt()
        };
        if best.as_ref().is_none_or(better) {
            best = Some(step);
        }
    };
    for to in (0..by_weight.len()).filter(|to| *to != from && load.share(*to) > 0.0) {
        if load.fullness(to) >= now {
            continue;
        }
        let (share, other) = (load.share(from), load.share(to));
        // What would make the two equally full.
        let ideal = (now - load.fullness(to)) * share * other / (share + other);
        let then = |away: u64, back: u64| {
            let here = load.fullness_with(from, load.weight[from] - away + back);
            here.max(load.fullness_with(to, load.weight[to] + away - back))
        };
        for near in neighbours(&by_weight[from], ideal) {
            let (weight, shard) = by_weight[from][near];
            if load.may_go(shard, to) {
                consider(Step {
                    peak: then(weight, 0),
                    cost: cost(load, shard, to),
                    shard,
                    to,
                    back: None,
                });
            }
        }
        for (weight, shard) in by_weight[from].iter().copied() {
            if (weight as f64) <= ideal {
                continue;
            }
            for near in neighbours(&by_weight[to], weight as f64 - ideal) {
                let (back_weight, back) = by_weight[to][near];
                if back_weight >= weight
                    || !load.may_exchange(shard, to, Some(back))
                    || !load.may_exchange(back, from, Some(shard))
                {
                    continue;
                }
                let peak = then(weight, back_weight);
                let cost = cost(load, shard, to).saturating_add(cost(load, back, from));
                consider(Step {
                    peak,
                    cost,
                    shard,
                    to,
                    back: Some(back),
                });
            }
        }
    }
    best
}

/// The places in a sorted list around a weight: two below, two above.
fn neighbours(list: &[(u64, usize)], weight: f64) -> std::ops::Range<usize> {
    let at = list.partition_point(|(other, _)| (*other as f64) < weight);
    at.saturating_sub(2)..(at + 2).min(list.len())
}

/// Takes home what can go home without making the fullest host fuller, or anything misplaced: the
/// largest first. A host that fixed shards alone make fuller is not the measure for the others.
pub(super) fn take_back(load: &mut Load<'_>) {
    let (_, closed) = level_and_closed(load);
    let open = (0..load.weight.len()).filter(|host| !closed[*host]);
    let peak = open.map(|host| load.fullness(host)).fold(0.0, f64::max);
    for _ in 0..TAKE_BACK_MAX {
        let mut away: Vec<usize> = (0..load.at.len())
            .filter(|shard| load.at[*shard] != load.home[*shard])
            .collect();
        away.sort_by_key(|shard| (std::cmp::Reverse(load.problem.shards[*shard].bytes), *shard));
        let before = away.len();
        away.retain(|shard| {
            let home = load.home[*shard];
            let then =
                load.fullness_with(home, load.weight[home] + load.problem.shards[*shard].weight);
            let back = then <= peak && load.may_go(*shard, home);
            if back {
                load.put(*shard, home);
            }
            !back
        });
        if away.len() == before {
            return;
        }
    }
}
