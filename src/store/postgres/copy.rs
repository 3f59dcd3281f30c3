//! The copy of the map on disk, for a start while the control database is away.
//!
//! Invariant: the file is always whole, even when the power fails, and however many processes write
//! it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::map::ShardMap;
use crate::pg::ConnectOptions;
use crate::shard::ShardCount;
use crate::store::map_text::{parse_map, print_map};
use crate::store::replace::{blocking, failed};
use crate::store::{StoreError, whole};

/// A file that holds a map as a config does.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    path: PathBuf,
    shards: ShardCount,
}

impl Copy {
    pub(super) fn new(path: PathBuf, shards: ShardCount) -> Copy {
        Copy { path, shards }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) async fn read(&self) -> Result<ShardMap, StoreError> {
        let Copy { path, shards } = self.clone();
        let read = move || {
            let text = fs::read_to_string(&path).map_err(failed("read", &path))?;
            parse_map(&text, &path, shards).map_err(|diagnostics| StoreError::Text { diagnostics })
        };
        blocking(read).await
    }

    /// Writes the map, unless it is there already: the processes of a machine share the file, and
    /// each of them hears of every map.
    pub(super) async fn write(
        &self,
        map: &Arc<ShardMap>,
        from: &ConnectOptions,
    ) -> Result<(), StoreError> {
        let (path, map) = (self.path.clone(), map.clone());
        let head = format!(
            "# The map as {from} had it, for when that cannot be asked. Every new map replaces \
                it.\n\n"
        );
        blocking(move || write(&path, &(head + &print_map(&map)))).await
    }
}

fn write(path: &Path, text: &str) -> Result<(), StoreError> {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    let failed_to_write = failed("write the copy", path);
    let new = whole::beside(path, text).map_err(&failed_to_write)?;
    // No secret is in it, and the processes that share it may be different users'.
    new.as_file()
        .set_permissions(Permissions::from_mode(0o644))
        .map_err(&failed_to_write)?;
    whole::replace(new, path).map_err(&failed_to_write)
}
