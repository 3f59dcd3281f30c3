//! `[cluster]`: the settings that are the same for all hosts and cannot change once a cluster is
//! bootstrapped.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::id::{Epoch, EpochError, SEQ_BITS, SHARD_BITS};
use crate::shard::{KeyKind, SchemaPrefix, ShardCount};
use crate::store::Findings;
use crate::store::section::{Entry, Section, similar};

/// What is the same for all hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// N, `shards`.
    pub shards: ShardCount,
    /// The zero of the IDs' clock.
    pub epoch: Epoch,
    /// The prefix of the names of the shards' schemas, before the number. Default `shard_`.
    pub prefix: SchemaPrefix,
    /// How a key becomes a shard. Default integers.
    pub key: KeyKind,
    /// The folder of the application's shard migrations, if it has any: absolute, or from the
    /// working directory. It need not be there for what runs no migrations.
    pub migrations: Option<PathBuf>,
    /// IDs below this were made before there were shards, and name none. Default 0: there are no
    /// such IDs.
    pub legacy_below: i64,
}

/// What could be read of it.
pub(super) struct PartialCluster {
    pub(super) shards: Option<ShardCount>,
    epoch: Option<Epoch>,
    pub(super) prefix: Option<SchemaPrefix>,
    key: Option<KeyKind>,
    migrations: Option<PathBuf>,
    legacy_below: Option<i64>,
}

impl PartialCluster {
    pub(super) fn complete(self) -> Option<Cluster> {
        let (shards, epoch, prefix, key) = (self.shards?, self.epoch?, self.prefix?, self.key?);
        let legacy_below = self.legacy_below?;
        Some(Cluster {
            shards,
            epoch,
            prefix,
            key,
            migrations: self.migrations,
            legacy_below,
        })
    }
}

pub(super) fn read(
    section: &Section<'_>,
    folder: &Path,
    now: Timestamp,
    findings: &mut Findings<'_>,
) -> PartialCluster {
    section.only(
        &[
            "shards",
            "epoch",
            "schema_prefix",
            "key",
            "migrations",
            "legacy_below",
        ],
        findings,
    );
    let remedy =
        "add shards = 4096: many more than you will ever have servers, as it cannot change later";
    let shards = section
        .need("shards", remedy, findings)
        .and_then(|entry| read_shards(&entry, findings));
    let remedy =
        "add epoch = \"2026-01-01T00:00:00Z\": a recent date, as IDs last 69 years from there";
    let epoch = section
        .need("epoch", remedy, findings)
        .and_then(|entry| read_epoch(&entry, now, findings));
    let prefix = match section.get("schema_prefix") {
        None => Some(SchemaPrefix::default()),
        Some(entry) => entry
            .string(findings)
            .and_then(|text| match SchemaPrefix::new(text) {
                Ok(prefix) => Some(prefix),
                Err(error) => {
                    findings.add(
                        &entry.at(),
                        error.to_string(),
                        Some("the default is \"shard_\"".to_owned()),
                    );
                    None
                }
            }),
    };
    let key = match section.get("key") {
        None => Some(KeyKind::default()),
        Some(entry) => entry
            .string(findings)
            .and_then(|text| read_key(text, &entry, findings)),
    };
    // Only what runs migrations looks into the folder: routers have the config and not the folder.
    let migrations = section
        .get("migrations")
        .and_then(|entry| Some(folder.join(entry.string(findings)?)));
    let legacy_below = match section.get("legacy_below") {
        None => Some(0),
        Some(entry) => read_legacy_below(&entry, epoch, now, findings),
    };
    PartialCluster {
        shards,
        epoch,
        prefix,
        key,
        migrations,
        legacy_below,
    }
}

/// The first ID that shards may have made. It must be behind all earlier ones, and before those
/// that shards make now.
fn read_legacy_below(
    entry: &Entry<'_>,
    epoch: Option<Epoch>,
    now: Timestamp,
    findings: &mut Findings<'_>,
) -> Option<i64> {
    let number = entry.integer(findings)?;
    let mut refuse = |message: String, hint: &str| {
        findings.add(&entry.at(), message, Some(hint.to_owned()));
        None
    };
    if number < 1 {
        return refuse(
            format!("legacy_below must be 1 or more, not {number}"),
            "write the largest ID that was made before the shards, plus one; without such IDs \
                leave it out",
        );
    }
    let ms = epoch.and_then(|epoch| epoch.ms(now).ok());
    let first = ms.map(|ms| ms << (SHARD_BITS + SEQ_BITS));
    match first {
        Some(first) if first < number.cast_unsigned() => refuse(
            format!("legacy_below is {number}, and the IDs that shards make now begin at {first}"),
            "IDs of the shards must be above all others: take an earlier epoch",
        ),
        _ => Some(number),
    }
}

fn read_key(text: &str, entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<KeyKind> {
    let kind = text.parse::<KeyKind>();
    if let Err(error) = &kind {
        let names = KeyKind::ALL.map(KeyKind::as_str);
        let hint =
            similar(text, names).unwrap_or_else(|| format!("known are {}", names.join(", ")));
        findings.add(&entry.at(), error.to_string(), Some(hint));
    }
    kind.ok()
}

fn read_shards(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<ShardCount> {
    let number = entry.integer(findings)?;
    let shards = u32::try_from(number).ok().and_then(ShardCount::new);
    if shards.is_none() {
        let max = ShardCount::MAX;
        let hint = (number > i64::from(max.get()))
            .then(|| format!("13 bits of an ID hold the shard: {max} is the most"));
        findings.add(
            &entry.at(),
            format!("shards must be 1 to {max}, not {number}"),
            hint,
        );
    }
    shards
}

fn read_epoch(entry: &Entry<'_>, now: Timestamp, findings: &mut Findings<'_>) -> Option<Epoch> {
    // TOML has a notation for times, too: epoch = 2011-01-01T00:00:00Z.
    let text = match entry.as_time() {
        Some(time) => time,
        None => entry.string(findings)?.to_owned(),
    };
    let mut refuse = |message: String, hint: &str| {
        findings.add(&entry.at(), message, Some(hint.to_owned()));
        None
    };
    let Ok(time) = text.parse::<Timestamp>() else {
        let message =
            format!("the epoch {text:?} is not a time with its zone, as RFC 3339 writes it");
        return refuse(message, "write it like \"2026-01-01T00:00:00Z\"");
    };
    if time.as_nanosecond() % 1_000_000 != 0 {
        return refuse(
            format!("the epoch {time} is finer than a millisecond"),
            "IDs count whole milliseconds",
        );
    }
    if time < Timestamp::UNIX_EPOCH {
        return refuse(
            format!("the epoch {time} is before 1970"),
            "take a recent date: IDs last 69 years from there",
        );
    }
    if time > now {
        return refuse(
            format!("the epoch {time} is in the future"),
            "IDs cannot tell of a time before their epoch",
        );
    }
    let epoch = Epoch::from_unix_ms(time.as_millisecond());
    match epoch.and_then(|epoch| epoch.ms(now).map(|_| epoch)) {
        Ok(epoch) => Some(epoch),
        Err(EpochError::PastEnd { last, .. }) => refuse(
            format!("the IDs of the epoch {time} ended on {last}"),
            "41 bits of milliseconds are 69 years",
        ),
        Err(error) => refuse(error.to_string(), "take a recent date"),
    }
}
