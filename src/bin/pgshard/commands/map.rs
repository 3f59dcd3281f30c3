//! `pgshard map`: the shard map, shown, compared and made anew.

use std::collections::BTreeMap;
use std::path::Path;

use pgshard::map::HostName;
use serde::Serialize;

use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output};

#[derive(Serialize)]
struct Shown {
    version: u64,
    shards: u16,
    hosts: BTreeMap<String, HostShown>,
}

#[derive(Serialize)]
struct HostShown {
    ranges: String,
    count: usize,
}

/// Which host serves which shards. Hosts without any are shown too.
pub(crate) async fn show(config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let map = context::map(&config).await?;
    let host = |name: &HostName| {
        (name.to_string(), HostShown { ranges: map.ranges(name), count: map.shards_on(name).count() })
    };
    let hosts: BTreeMap<String, HostShown> = config.hosts.keys().map(host).collect();
    let shown = Shown { version: map.version().get(), shards: map.shards().get(), hosts };
    match output.format() {
        Format::Json => output.object(shown)?,
        Format::Text => {
            output.data(format_args!("map version {}, {} shards\n", shown.version, shown.shards))?;
            let rows =
                shown.hosts.iter().map(|(name, host)| [name.clone(), host.count.to_string(), host.ranges.clone()]);
            output.table(&[("host", Align::Left), ("count", Align::Right), ("shards", Align::Left)], rows)?;
        }
    }
    Ok(Exit::Done)
}
