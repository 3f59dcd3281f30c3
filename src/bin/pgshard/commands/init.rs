//! `pgshard init`.

mod from;

use std::io;
use std::path::{Path, PathBuf};

use pgshard::ShardCount;
use pgshard::config::{Config, template};
use pgshard::map::print_shards;
use pgshard::store::whole::{self, Overwrite};
use toml_edit::{DocumentMut, Table, value};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::trust;

#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", path.display())]
struct WriteError {
    path: PathBuf,
    source: io::Error,
}

/// Writes a commented config for hosts that the operator fills in.
pub(crate) fn run(
    hosts: u16,
    shards: ShardCount,
    overwrite: Overwrite,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    if hosts > shards.get() {
        return Err(Failure::usage(format!(
            "{hosts} hosts cannot share {shards} shards: one or more each"
        )));
    }
    let path = Config::find(config);
    trust::found(&path, config)?;
    write(&path, &text(hosts, shards)?, overwrite, output)?;
    output.note(
        "\nnext:\n  1. put your servers' URLs into it, and look at shards and epoch, which cannot \
            change later\n  2. pgshard check       can the servers be reached?\n  3. pgshard \
            bootstrap   create the shards on them",
    );
    Ok(Exit::Done)
}

/// Writes the config of a cluster that exists, as the hosts behind these URLs have recorded it.
pub(crate) async fn run_from(
    urls: &[String],
    overwrite: Overwrite,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let path = Config::find(config);
    trust::found(&path, config)?;
    let text = from::text(urls, &path).await?;
    write(&path, &text, overwrite, output)?;
    output.note(
        "\nnext:\n  1. write into it what no host knows: where passwords are, [router], \
            [rebalance], weights of hosts, and [map] if the\n     map is in a database\n  2. \
            pgshard check       does it fit?",
    );
    Ok(Exit::Done)
}

fn write(path: &Path, text: &str, overwrite: Overwrite, output: &Output) -> Result<(), Failure> {
    whole::write(path, text, overwrite).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::new(Exit::Failed, format!("{} is there already", path.display()))
                .hint("--force overwrites it, --config names another file")
        }
        _ => WriteError {
            path: path.to_owned(),
            source,
        }
        .into(),
    })?;
    output.note(format_args!("wrote {}", path.display()));
    Ok(())
}

/// The library's template with the requested hosts and shards, and all of its comments.
fn text(hosts: u16, shards: ShardCount) -> Result<String, Failure> {
    let mut document: DocumentMut = template().parse()?;
    document["cluster"]["shards"] =
        with_decor_of(&document["cluster"]["shards"], i64::from(shards.get()));
    let names: Vec<String> = (1..=hosts).map(|number| format!("db{number}")).collect();
    let broken = || {
        Failure::new(
            Exit::Failed,
            "the config template has no [hosts] or no [map.placement]",
        )
    };
    let table = document["hosts"].as_table_mut().ok_or_else(broken)?;
    table.retain(|name, _| names.iter().any(|ours| ours == name));
    for (number, name) in (1..).zip(&names) {
        if !table.contains_key(name) {
            let mut host = Table::new();
            host.insert(
                "url",
                value(format!("postgres://app@10.0.0.{number}:5432/app")),
            );
            host.insert("password_env", value(format!("DB{number}_PASSWORD")));
            table.insert(name, host.into());
        }
    }
    let placement = document["map"]["placement"]
        .as_table_mut()
        .ok_or_else(broken)?;
    placement.retain(|name, _| names.iter().any(|ours| ours == name));
    let bound = |index: usize| index * usize::from(shards.get()) / names.len();
    for (index, name) in names.iter().enumerate() {
        let here = shards
            .iter()
            .skip(bound(index))
            .take(bound(index + 1) - bound(index));
        placement[name] = value(print_shards(here));
    }
    let text = document.to_string();
    // What we write can be read.
    Config::parse(&text, Config::FILE_NAME)?;
    Ok(text)
}

fn with_decor_of(old: &toml_edit::Item, new: i64) -> toml_edit::Item {
    let mut new = toml_edit::Value::from(new);
    if let Some(old) = old.as_value() {
        *new.decor_mut() = old.decor().clone();
    }
    new.into()
}
