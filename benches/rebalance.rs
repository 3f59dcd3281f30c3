//! Planner time for 8192 shards on 64 hosts, compared with sorting them onto empty hosts, which
//! ignores where they are. Also prints how good the plans are: the spread left, and the bytes moved
//! compared with the fewest that any plan must move.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use pgshard::ShardId;
use pgshard::map::HostName;
use pgshard::rebalance::{Constraint, Host, HostLimits, Options, Plan, Problem, Shard, plan};

const SHARDS: u16 = 8192;
const HOSTS: u16 = 64;

fn name(number: u16) -> HostName {
    HostName::new(&format!("db{number}")).expect("a plain name")
}

/// `exp` of a normal distribution: a few shards are a hundred times the median.
fn log_normal(random: &mut fastrand::Rng) -> u64 {
    let (u, v) = (1.0 - random.f64(), random.f64());
    ((1.2 * (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()).exp() * 1e8) as u64 + 1
}

fn problem(
    weight: impl Fn(u64, &mut fastrand::Rng) -> u64,
    host: impl Fn(u16, &mut fastrand::Rng) -> u16,
) -> Problem {
    let mut random = fastrand::Rng::with_seed(7);
    let shard = |number: u16| {
        let bytes = log_normal(&mut random);
        let weight = weight(bytes, &mut random);
        let shard = ShardId::new(number).expect("below 8192");
        Shard {
            shard,
            host: name(host(number, &mut random)),
            weight,
            bytes,
            constraint: Constraint::Free,
        }
    };
    let shards = (0..SHARDS).map(shard).collect();
    let host = |number: u16| {
        let weight = [1.0, 2.0, 1.5, 3.0][usize::from(number % 4)];
        Host {
            name: name(number),
            limits: HostLimits {
                weight,
                ..HostLimits::default()
            },
        }
    };
    let options = Options::default().threshold(0.0);
    Problem {
        hosts: (0..HOSTS).map(host).collect(),
        shards,
        options,
        ..Problem::default()
    }
}

/// What a plan is worth, on one line.
fn worth(what: &str, by_bytes: bool, plan: &Plan) {
    let total: u64 = plan.hosts.iter().map(|host| host.before.weight).sum();
    let moved: u64 = plan.moves.iter().map(|one| one.bytes).sum();
    let peak = plan
        .hosts
        .iter()
        .map(|host| host.after.part / host.share)
        .fold(0.0, f64::max);
    let over = |host: &pgshard::rebalance::HostLoad| {
        (host.before.part - peak * host.share).max(0.0) * total as f64
    };
    let least: f64 = plan.hosts.iter().map(over).sum();
    let beside = if by_bytes {
        format!(", {:.4} of the fewest", moved as f64 / least)
    } else {
        String::new()
    };
    let (before, after) = (plan.spread_before * 100.0, plan.spread_after * 100.0);
    println!(
        "{what}: spread {before:.1} % -> {after:.3} %, {} moves, {moved} bytes{beside}",
        plan.moves.len()
    );
}

fn planning(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan 8192 shards on 64 hosts");
    group.sample_size(10);
    let same = |bytes: u64, _: &mut fastrand::Rng| bytes;
    let writes = |_: u64, random: &mut fastrand::Rng| log_normal(random);
    let anywhere = |_: u16, random: &mut fastrand::Rng| random.u16(0..HOSTS);
    let half = |number: u16, _: &mut fastrand::Rng| number % (HOSTS / 2);
    for (what, by_bytes, problem) in [
        ("by bytes, scattered", true, problem(same, anywhere)),
        ("by bytes, half of the hosts new", true, problem(same, half)),
        ("by bytes, all on one host", true, problem(same, |_, _| 0)),
        ("by writes, scattered", false, problem(writes, anywhere)),
        (
            "by count, half of the hosts new",
            false,
            problem(|_, _| 1, half),
        ),
    ] {
        worth(what, by_bytes, &plan(&problem).expect("a sound problem"));
        group.bench_function(what, |b| {
            b.iter(|| {
                plan(black_box(&problem))
                    .expect("a sound problem")
                    .moves
                    .len()
            })
        });
    }
    let drained = problem(same, anywhere).draining(&name(3));
    group.bench_function("drain one host", |b| {
        b.iter(|| plan(black_box(&drained)).expect("sound").moves.len())
    });
    let problem = problem(same, anywhere);
    group.bench_function("baseline: sorted onto empty hosts", |b| {
        b.iter(|| {
            let mut weights: Vec<u64> = black_box(&problem)
                .shards
                .iter()
                .map(|shard| shard.weight)
                .collect();
            weights.sort_unstable_by(|a, b| b.cmp(a));
            let mut load = vec![0.0f64; problem.hosts.len()];
            for weight in weights {
                let share = |host: usize| problem.hosts[host].limits.weight;
                let then = |host: usize| (load[host] + weight as f64) / share(host);
                let least = (0..load.len())
                    .min_by(|a, b| then(*a).total_cmp(&then(*b)))
                    .expect("there are hosts");
                load[least] += weight as f64;
            }
            load
        })
    });
    group.finish();
}

criterion_group!(benches, planning);
criterion_main!(benches);
