//! Many keys or IDs, a line each.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pgshard::config::Config;
use pgshard::map::ShardMap;
use schemars::JsonSchema;
use serde::Serialize;

use super::{ShardLocation, Target, located};
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};
use crate::values;

/// What the lines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lines {
    /// Sharding keys.
    Keys,
    /// IDs.
    Ids,
}

/// The longest accepted line: no key is nearly as long, and a file without line ends cannot fill
/// the memory.
const LINE_MAX: u64 = 64 << 10;

/// A line that is not a key or an ID of this cluster.
#[derive(JsonSchema, Serialize)]
pub(crate) struct Wrong<'a> {
    line: u64,
    error: &'a str,
}

/// Prints where the key or ID of each line is, line by line; a wrong line does not affect the
/// others.
pub(crate) async fn run(
    lines: Lines,
    from: PathBuf,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let map = context::map(&config).await?;
    let output = output.clone();
    // Reading has a thread of its own, so that Ctrl-C works while it waits for input.
    tokio::task::spawn_blocking(move || match from.as_os_str() == "-" {
        true => every(io::stdin().lock(), lines, &config, &map, &output),
        false => {
            let file = File::open(&from).map_err(|error| {
                Failure::usage(format!("cannot read {}: {error}", from.display()))
            })?;
            every(BufReader::new(file), lines, &config, &map, &output)
        }
    })
    .await?
}

fn every(
    mut reader: impl BufRead,
    lines: Lines,
    config: &Config,
    map: &ShardMap,
    output: &Output,
) -> Result<Exit, Failure> {
    let (mut found, mut wrong) = (0_u64, 0_u64);
    let mut bytes = Vec::new();
    for number in 1.. {
        // There may be no end of lines.
        if !output.is_taken() {
            break;
        }
        bytes.clear();
        if reader
            .by_ref()
            .take(LINE_MAX)
            .read_until(b'\n', &mut bytes)?
            == 0
        {
            break;
        }
        if bytes.len() as u64 == LINE_MAX && bytes.last() != Some(&b'\n') {
            return Err(Failure::usage(format!(
                "line {number} is longer than {LINE_MAX} bytes"
            )));
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end_matches(['\n', '\r']);
        // Spreadsheets put a byte order mark before the first line.
        let text = if number == 1 {
            text.strip_prefix('\u{feff}').unwrap_or(text)
        } else {
            text
        };
        if text.is_empty() {
            continue;
        }
        let target = match lines {
            Lines::Keys => Ok(Target::Key(text.to_owned())),
            Lines::Ids => values::id(text)
                .map(Target::Id)
                .map_err(|error| format!("{text:?}: {error}")),
        };
        let answer = target
            .and_then(|target| located(target, config, map).map_err(|failure| failure.one_line()));
        match answer {
            Ok(located) => {
                found += 1;
                show(&located, text, output);
            }
            Err(error) => {
                wrong += 1;
                match output.format() {
                    Format::Json => output.object(Wrong {
                        line: number,
                        error: &error,
                    }),
                    Format::Text => {
                        output.error_with_remedy(format_args!("line {number}: {error}"), "")
                    }
                }
            }
        }
    }
    Ok(match (found, wrong) {
        (_, 0) => Exit::Done,
        (0, _) => Exit::Failed,
        _ => Exit::Partly,
    })
}

/// A JSON object; or the input with shard, schema and host, separated by tabs.
fn show(located: &ShardLocation, given: &str, output: &Output) {
    match output.format() {
        Format::Json => output.object(located),
        Format::Text => {
            let ShardLocation { schema, host, .. } = located;
            output.data(format_args!(
                "{given}\t{}\t{schema}\t{host}",
                located.shard()
            ));
        }
    }
}
