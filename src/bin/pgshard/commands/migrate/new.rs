//! `pgshard migrate new`: the file of the next migration.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use pgshard::{KeyKind, ShardCount};
use schemars::JsonSchema;
use serde::Serialize;

use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

/// The text of a new file.
const TEMPLATE: &str = "\
-- Run once in every shard, in a transaction that pgshard begins and commits. {shard} is the name \
of the shard's schema,
-- in strings too ('{shard}.photos'::regclass), and {shard_id} its number. The search path is \
empty: a name without a
-- schema before it is an error.
--
-- A line here before the first statement makes it another kind of file:
--   `-- pgshard: no-transaction`   a single CREATE INDEX CONCURRENTLY, DROP INDEX CONCURRENTLY IF \
EXISTS, REFRESH
--                                  MATERIALIZED VIEW CONCURRENTLY or VACUUM, outside of \
transactions
--   `-- pgshard: once-per-host`    once in each host's database, before its shards: extensions, \
roles, shared types
--
-- Once it has been run somewhere the file must not change: a change is the next file.
--
-- ALTER TABLE {shard}.photos ADD COLUMN caption text;
--
-- A row with another shard's key is found by no query. A CHECK refuses it (docs/keys.md); \
{shards} is the number of shards:
-- ALTER TABLE {shard}.photos ADD CONSTRAINT photos_key CHECK ({condition});
";

/// The condition of a CHECK that refuses the keys of other shards, for keys in this column.
fn condition(kind: KeyKind, shards: ShardCount, column: &str) -> String {
    let hashed = |bytes: String| {
        format!("('x' || left(encode(sha256({bytes}), 'hex'), 15))::bit(60)::bigint")
    };
    match kind {
        KeyKind::Integer => {
            let n = shards.get();
            format!("({column} % {n} + {n}) % {n} = {{shard_id}}")
        }
        KeyKind::String => {
            let hash = hashed(format!("convert_to({column}, 'UTF8')"));
            format!("{hash} % {} = {{shard_id}}", shards.get())
        }
        KeyKind::Uuid => {
            let hash = hashed(format!("uuid_send({column})"));
            format!("{hash} % {} = {{shard_id}}", shards.get())
        }
    }
}

/// What was written.
#[derive(JsonSchema, Serialize)]
pub(crate) struct NewFile<'a> {
    file: &'a Path,
}

/// Writes the file of the next migration, and prints its name.
pub(crate) fn new(name: &str, config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let Some(folder) = &config.cluster.migrations else {
        let hint = "write migrations = \"migrations\" below [cluster]";
        return Err(Failure::usage("the config names no folder of migrations").hint(hint));
    };
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || !name.chars().all(good) {
        return Err(Failure::usage(format!(
            "{name:?} cannot be in the name of a file: take a-z A-Z 0-9 _ -"
        )));
    }
    let failed = |error: std::io::Error| Failure::usage(format!("{}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    // Looks at names only: a file that was just begun holds no statement yet, and could not be read
    // as a migration.
    let mut last = 0_u64;
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let file = entry
            .map_err(failed)?
            .file_name()
            .to_string_lossy()
            .into_owned();
        let number = file
            .strip_suffix(".sql")
            .and_then(|stem| stem.split('_').next()?.parse().ok());
        last = last.max(number.unwrap_or(0));
    }
    let cluster = &config.cluster;
    let text = TEMPLATE
        .replace(
            "{condition}",
            &condition(cluster.key, cluster.shards, "user_id"),
        )
        .replace("{shards}", &cluster.shards.get().to_string());
    let path = folder.join(format!("{:04}_{name}.sql", last + 1));
    let written = OpenOptions::new().write(true).create_new(true).open(&path);
    written
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(failed)?;
    match output.format() {
        Format::Json => output.object(NewFile { file: &path }),
        Format::Text => output.data(path.display()),
    }
    Ok(Exit::Done)
}
