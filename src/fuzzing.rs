//! What reads texts and bytes from elsewhere, each as a function of any bytes that panics where a
//! promise is broken. For `cargo fuzz` (`fuzz/`, which sets `cfg(fuzzing)`), and for the tests
//! below, which run the same functions on what is in `fuzz/corpus` and on what comes of changing
//! it. No part of the library: no other build has it.
#![allow(
    missing_docs,
    reason = "nobody can use it but fuzz/ and the tests below"
)]

use std::path::Path;

use jiff::Timestamp;

use crate::config::Config;
use crate::id::Id;
use crate::idgen::{Scheme, tickets};
use crate::map::{parse_ranges, parse_shards, print_shards};
use crate::pg::{ConnectOptions, Template, fuzz as pg};
use crate::router::Sql;
use crate::schema::fuzz as schema;
use crate::shard::ShardCount;

/// A function of any bytes.
pub type Target = fn(&[u8]);

/// The functions by the names of their corpora.
pub const TARGETS: [(&str, Target); 12] = [
    ("config", config),
    ("connection_string", connection_string),
    ("frames", pg::frames),
    ("ids", ids),
    ("map", map),
    ("messages", pg::messages),
    ("pgoutput", crate::mover::stream::fuzz::pgoutput),
    ("pgpass", pg::pgpass),
    ("script", schema::script),
    ("service", pg::service),
    ("stream", crate::mover::stream::fuzz::frames),
    ("template", template),
];

/// Calls a function by its name: what a target of `fuzz/` does.
pub fn run(name: &str, data: &[u8]) {
    let (_, target) = TARGETS
        .iter()
        .find(|(known, _)| *known == name)
        .expect("a target of this name");
    target(data);
}

/// The text, if the bytes are one. Readers of files get no other.
fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

/// A config is read, or there is a mistake to show. The ranges that its map prints can be read.
pub fn config(data: &[u8]) {
    let Some(text) = text(data) else { return };
    match Config::parse_at(text, Path::new("pgshard.toml"), Timestamp::UNIX_EPOCH) {
        Ok(config) => {
            if let Some(map) = &config.map {
                let placed: usize = map
                    .hosts()
                    .iter()
                    .map(|host| map.shards_on(host).count())
                    .sum();
                assert_eq!(
                    placed,
                    usize::from(config.cluster.shards.get()),
                    "every shard is on one host"
                );
                let again = parse_ranges(&map.ranges(&map.hosts()[0]), map.shards())
                    .expect("a map prints ranges");
                assert_eq!(
                    again.iter().map(|item| item.shards().len()).sum::<usize>(),
                    map.shards_on(&map.hosts()[0]).count()
                );
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// The notation of maps: a map that was read is printed with the same meaning.
pub fn map(data: &[u8]) {
    let Some(text) = text(data).filter(|text| text.len() < 4096) else {
        return;
    };
    for shards in [1, 256, 8192] {
        let shards = ShardCount::new(shards).expect("these are counts");
        match parse_shards(text, shards) {
            Ok(list) => {
                let printed = print_shards(list.iter().copied());
                assert_eq!(
                    parse_shards(&printed, shards).expect("what is printed is read"),
                    list
                );
            }
            Err(errors) => {
                for error in errors {
                    // A message shows the place by slicing the text there; one at its end has no
                    // letter.
                    assert!(error.at.start <= text.len() && !error.to_string().is_empty());
                }
            }
        }
    }
}

/// A connection string is refused or names a host. Neither what is shown of it nor an error has the
/// password.
pub fn connection_string(data: &[u8]) {
    const SECRET: &str = "hunter2hunter2";
    let Some(text) = text(data).filter(|text| !text.contains("service") && !text.contains('\0'))
    else {
        return;
    };
    let shown = match ConnectOptions::parse(text) {
        Ok(options) => {
            assert!(!options.addresses().is_empty() && !options.user().is_empty());
            // In an address or a name the word is no secret.
            let places = [
                options.addresses().join(" "),
                options.user().to_owned(),
                options.database().to_owned(),
            ];
            if places.iter().any(|place| place.contains(SECRET)) {
                return;
            }
            format!("{options} {options:?}")
        }
        Err(error) => error.to_string(),
    };
    // Where a key has a word that it cannot have, the message repeats that; there is no password in
    // that place.
    let after = text.split(SECRET).next().unwrap_or_default();
    if after.ends_with("password=") || after.ends_with(':') {
        assert!(!shown.contains(SECRET), "{shown}");
    }
}

/// `{shard}` is replaced, `{{shard}}` stays, and all else is as it was.
pub fn template(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let template = Template::new(text);
    let literals = text.matches("{{shard}}").count();
    let places = text.replace("{{shard}}", "\0").matches("{shard}").count();
    let (short, long) = (template.render("a"), template.render("bb"));
    assert_eq!(long.len() - short.len(), places);
    assert_eq!(short.len() + 4 * places + 2 * literals, text.len());
    assert_eq!(template.names_shard(), places > 0);
    let _ = (Sql::new(text), Sql::reading(text));
}

/// Each number is an ID, and is the same after it was taken apart; other schemes refuse IDs that
/// are not theirs.
pub fn ids(data: &[u8]) {
    if let Some(number) = data.first_chunk::<8>() {
        let number = i64::from_le_bytes(*number);
        let id = Id::decode(number);
        assert_eq!(id.encode(), number);
        assert_eq!(Id::new(id.ms(), id.shard(), id.seq().into()), Some(id));
    }
    let Some(text) = text(data) else { return };
    let ticket = tickets::Layout::default();
    for scheme in [
        Scheme::Shard,
        Scheme::Snowflake,
        Scheme::Flake,
        Scheme::Simpleflake,
        Scheme::Uuid7,
        Scheme::Ticket(ticket),
    ] {
        match scheme.decode(text, None) {
            Ok(decoded) => {
                for (_, field) in decoded.fields {
                    let _ = field.to_string();
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    /// The files of a target's corpus. There is one at least.
    fn corpus(target: &str) -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fuzz/corpus")
            .join(target);
        let entries = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        assert!(!paths.is_empty(), "{} has something", folder.display());
        paths
            .iter()
            .map(|path| std::fs::read(path).unwrap())
            .collect()
    }

    /// What may be between two parts of an input.
    const PIECES: [&[u8]; 18] = [
        b"\0",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\x80\0\0\0",
        b"=",
        b"'",
        b"\"",
        b"\\",
        b"@",
        b":",
        b"%",
        b"%zz",
        b"?",
        b"{shard}",
        b"{",
        b"\n",
        b"[",
        "\u{202e}é".as_bytes(),
    ];

    /// One input made of others: bytes changed, left out, doubled, exchanged.
    fn changed(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
        let mut data = rng.choice(corpus).expect("there is one").clone();
        for _ in 0..rng.usize(1..6) {
            let at = rng.usize(..=data.len());
            let end = (at + rng.usize(..9)).min(data.len());
            match rng.u8(..7) {
                0 if at < data.len() => data[at] ^= 1 << rng.u8(..8),
                1 if at < data.len() => data[at] = rng.u8(..),
                2 => drop(data.drain(at..end)),
                3 => {
                    let part = data[at..end].to_vec();
                    drop(data.splice(at..at, part));
                }
                4 => data.truncate(at),
                5 => {
                    let other = rng.choice(corpus).expect("there is one");
                    let from = rng.usize(..=other.len());
                    data.truncate(at);
                    data.extend_from_slice(&other[from..]);
                }
                _ => drop(data.splice(
                    at..at,
                    rng.choice(PIECES).expect("there are some").iter().copied(),
                )),
            }
        }
        data
    }

    /// What is kept, and what comes of it: the same inputs each time, many more with
    /// `PGSHARD_TEST_LONG`.
    fn holds(target: &str) {
        let corpus = corpus(target);
        for data in &corpus {
            run(target, data);
        }
        let mut rng = Rng::with_seed(1);
        let count = if std::env::var_os("PGSHARD_TEST_LONG").is_some() {
            1_000_000
        } else {
            3000
        };
        for _ in 0..count {
            let data = changed(&corpus, &mut rng);
            if std::panic::catch_unwind(|| run(target, &data)).is_err() {
                panic!("{target}: {}\n{data:?}", String::from_utf8_lossy(&data));
            }
        }
    }

    /// A stable compiler does not build `fuzz/`.
    #[test]
    fn each_has_a_target_of_cargo_fuzz() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        for (name, _) in TARGETS {
            let path = format!("fuzz_targets/{name}.rs");
            let program = std::fs::read_to_string(folder.join(&path)).unwrap();
            assert!(
                program.contains(&format!("pgshard::fuzzing::run(\"{name}\", data)")),
                "{path}"
            );
            assert!(
                manifest.contains(&format!("name = \"{name}\"\npath = \"{path}\"")),
                "{name}"
            );
        }
        assert_eq!(
            std::fs::read_dir(folder.join("fuzz_targets"))
                .unwrap()
                .count(),
            TARGETS.len()
        );
    }

    macro_rules! targets {
        ($($name:ident),+ $(,)?) => {
            $(#[test] fn $name() { holds(stringify!($name)); })+

            #[test]
            fn each_is_run() {
                assert_eq!([$(stringify!($name)),+], TARGETS.map(|(name, _)| name));
            }
        };
    }

    targets! {
        config, connection_string, frames, ids, map, messages, pgoutput, pgpass, script, service,
        stream, template,
    }
}
