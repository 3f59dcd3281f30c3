//! Loading a map of 8192 shards (goal: 1 ms), routing keys with it and decoding IDs (goals: 20 ns),
//! each next to the least that it can cost. `tests/no_allocation.rs` shows that the latter two
//! allocate nothing.

use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, criterion_group, criterion_main};
use pgshard::ShardCount;
use pgshard::config::{Config, HostSettings, Settings, render};
use pgshard::id::{Epoch, Id};
use pgshard::map::{HostName, MapVersion, Placement, ShardEpoch, ShardMap};

/// The text of a config of 8192 shards on four hosts; `host_of` returns the host of a shard.
fn text(host_of: impl Fn(u16) -> u16) -> String {
    let name = |host: u16| HostName::new(&format!("db{host}")).expect("a plain name");
    let place = |shard: u16| Placement {
        host: name(host_of(shard)),
        epoch: ShardEpoch::FIRST,
    };
    let shards = ShardCount::MAX;
    let map = ShardMap::new(
        MapVersion::FIRST,
        shards,
        shards.iter().map(|shard| (shard, place(shard.get()))),
    );
    let epoch = Epoch::from_unix_ms(1_767_225_600_000).expect("a year of this century");
    let hosts = (0..4)
        .map(|n| HostSettings::new(name(n), format!("postgres://app@10.0.0.{n}/app")))
        .collect();
    render(&Settings::new(
        epoch,
        hosts,
        map.expect("every shard is placed once"),
    ))
}

fn load(text: &str) -> Config {
    Config::parse(text, Path::new("pgshard.toml")).expect("the config is valid")
}

fn loading(c: &mut Criterion) {
    let mut group = c.benchmark_group("load and check 8192 shards");
    let ranges = text(|shard| shard / 2048);
    group.bench_function("in four ranges", |b| b.iter(|| load(black_box(&ranges))));
    let scattered = text(|shard| shard % 4);
    group.bench_function("each a range of its own", |b| {
        b.iter(|| load(black_box(&scattered)))
    });
    group.bench_function("baseline: the TOML parser alone", |b| {
        b.iter(|| toml::de::DeTable::parse(black_box(&scattered)).expect("the text is TOML"))
    });
    group.finish();
}

fn routing(c: &mut Criterion) {
    let mut group = c.benchmark_group("route a key to its host");
    let map = load(&text(|shard| shard % 4))
        .map
        .expect("the config keeps its map");
    let shards = map.shards();
    let mut key = 0i64;
    let mut next_key = move || {
        // Keys all over the map, so that it is not one line of the cache that is measured.
        key = key.wrapping_add(0x9E37_79B9_7F4A_7C15_u64 as i64);
        key
    };
    group.bench_function("map", |b| {
        b.iter(|| {
            map.host(shards.shard_of_key(black_box(next_key())))
                .expect("every shard has a host")
                .as_str()
                .len()
        })
    });
    let table: Vec<usize> = map.iter().map(|(_, host, _)| host.as_str().len()).collect();
    group.bench_function("baseline: remainder and one table", |b| {
        b.iter(|| table[black_box(next_key()).rem_euclid(table.len() as i64) as usize])
    });
    group.finish();
}

fn decoding(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode an ID");
    let mut id = 0i64;
    let mut next_id = move || {
        id = id.wrapping_add(0x9E37_79B9_7F4A_7C15_u64 as i64);
        id
    };
    group.bench_function("Id::decode", |b| {
        b.iter(|| {
            let id = Id::decode(black_box(next_id()));
            id.ms() ^ u64::from(id.shard().get()) ^ u64::from(id.seq())
        })
    });
    group.bench_function("baseline: shifts and masks", |b| {
        b.iter(|| {
            let id = black_box(next_id()) as u64;
            (id >> 23) ^ (id >> 10 & 8191) ^ (id & 1023)
        })
    });
    group.finish();
}

criterion_group!(benches, loading, routing, decoding);
criterion_main!(benches);
