//! Data directories in which something was prepared, kept in the cache.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::binaries::Binaries;
use super::cache::Cache;
use super::cluster::{Cluster, ClusterOptions};
use super::error::Error;
use super::layout;
use super::privileges::Account;
use super::server::{Server, StopMode};

/// How many prepared data directories are kept: one has some 60 MB, and each change of a migration
/// makes another.
const KEPT: usize = 4;

/// How long one is kept at least since it was last used: a copy of it may be under way.
const IN_USE: Duration = Duration::from_secs(600);

/// The data directory of a stopped server on which `prepare` has succeeded. It is made once for
/// these keys, in whichever process, and for these programs; copy it by
/// [`ClusterOptions::copy_of`]. Those that were not used for longest are removed. Blocks.
pub(crate) fn prepared<E: From<Error>>(
    binaries: &Binaries,
    keys: &[String],
    prepare: impl Fn(&Server) -> Result<(), E>,
) -> Result<PathBuf, E> {
    let account = Account::for_servers()?;
    let directory = binaries.directory().to_string_lossy();
    let mut all = vec![binaries.version(), &directory, account.name()];
    all.extend(keys.iter().map(String::as_str));
    let cache = Cache::open(&layout::throwaway(&account)?)?;
    let kind = "prepared";
    let entry = cache.entry(&format!("{kind}-{}", binaries.major()), &all, |place| {
        let cluster = Cluster::start(&ClusterOptions::new(1, binaries.clone()))?;
        for server in cluster.servers() {
            prepare(server)?;
            server.stop(StopMode::Fast)?;
            account.let_through(place)?;
            let data = place.join("data");
            fs::create_dir(&data).map_err(Error::io("create", &data))?;
            account.give(&data)?;
            let from = server.data_directory().join(".");
            let arguments = ["-R".as_ref(), from.as_os_str(), data.as_os_str()];
            account.run("cp".as_ref(), &arguments, "")?;
        }
        Ok::<(), E>(())
    })?;
    cache.keep_last_used(kind, KEPT, IN_USE)?;
    Ok(entry.join("data"))
}
