//! The map in the `[map]` table of the config file.
//!
//! Invariant: the file is always whole, the old one or the new one, even when the power fails. A
//! publication changes the values of `[map]` and no other byte, and never overwrites a concurrent
//! edit.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};

use super::folders::Folders;
use super::map_edit::edit_map;
use super::map_text::parse_map;
use super::replace::{Stamp, blocking, failed, lock, write_over};
use super::{MapSender, MapStore, MapWatch, PublishError, StoreError, check_replaceable};
use crate::map::{MapVersion, ShardMap};
use crate::shard::ShardCount;

/// Keeps the map in the config file.
///
/// Publishers in several processes wait for each other on an advisory lock (`flock`) of the file.
/// Some network file systems have no such lock, and editors take none. So the file is looked at
/// once more just before it is replaced.
#[derive(Clone, Debug)]
pub struct FileStore {
    path: PathBuf,
    shards: ShardCount,
    poll_interval: Duration,
}

impl FileStore {
    /// How often a watched file is checked by default. Local file systems report changes, so there
    /// this is only for reports that got lost.
    pub const POLL_INTERVAL: Duration = Duration::from_millis(500);

    /// A store in this file, for a cluster of this many shards. Nothing is read yet.
    pub fn new(path: impl Into<PathBuf>, shards: ShardCount) -> FileStore {
        FileStore {
            path: path.into(),
            shards,
            poll_interval: Self::POLL_INTERVAL,
        }
    }

    /// The same store that looks at a watched file this often, at most once a millisecond.
    #[must_use]
    pub fn with_poll_interval(self, interval: Duration) -> FileStore {
        FileStore {
            poll_interval: interval.max(Duration::from_millis(1)),
            ..self
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn parse(&self, text: &str) -> Result<ShardMap, StoreError> {
        parse_map(text, &self.path, self.shards)
            .map_err(|diagnostics| StoreError::Text { diagnostics })
    }

    fn read(&self) -> Result<ShardMap, StoreError> {
        self.parse(&fs::read_to_string(&self.path).map_err(failed("read", &self.path))?)
    }

    fn replace(&self, expected: MapVersion, map: &ShardMap) -> Result<(), PublishError> {
        // A link stays; its target is replaced.
        let target = fs::canonicalize(&self.path).map_err(failed("find", &self.path))?;
        for _ in 0..PUBLISH_ATTEMPTS {
            let file = lock(&target)?;
            let seen = Stamp::of(&file.metadata().map_err(failed("read", &target))?);
            let text = io::read_to_string(&file).map_err(failed("read", &target))?;
            let kept = self.parse(&text)?;
            check_replaceable(&kept, expected, map)?;
            let new_text = self.edited(&text, &kept, map)?;
            if write_over(&target, &file, seen, &new_text)? {
                return Ok(());
            }
        }
        Err(StoreError::Unsteady { path: target }.into())
    }

    /// The text with the new map. It has been read back, and gives that map.
    fn edited(&self, text: &str, kept: &ShardMap, map: &ShardMap) -> Result<String, StoreError> {
        let unwritable = |diagnostics| StoreError::Unwritable {
            path: self.path.clone(),
            diagnostics,
        };
        let new_text = edit_map(text, kept, map).ok_or_else(|| unwritable(Vec::new()))?;
        match parse_map(&new_text, &self.path, self.shards) {
            Ok(read) if read == *map => Ok(new_text),
            Ok(_) => Err(unwritable(Vec::new())),
            Err(diagnostics) => Err(unwritable(diagnostics)),
        }
    }
}

/// How long to wait after a change before the file is looked at. A program that writes into the
/// file, instead of replacing it, is then done.
const SETTLE: Duration = Duration::from_millis(10);

/// How often a publication starts over because the file was edited under it.
const PUBLISH_ATTEMPTS: u32 = 5;

impl MapStore for FileStore {
    fn load(&self) -> BoxFuture<'_, Result<ShardMap, StoreError>> {
        let store = self.clone();
        blocking(move || store.read()).boxed()
    }

    fn publish<'a>(
        &'a self,
        expected: MapVersion,
        map: &'a ShardMap,
    ) -> BoxFuture<'a, Result<(), PublishError>> {
        let (store, map) = (self.clone(), map.clone());
        blocking(move || store.replace(expected, &map)).boxed()
    }

    fn watch(&self) -> BoxFuture<'_, Result<MapWatch, StoreError>> {
        async move {
            let store = self.clone();
            // The folders come first and the map last, so that a change in between is noticed.
            let (folders, seen, map) =
                blocking(move || (Folders::of(&store.path), store.stamp(), store.read())).await;
            let sender = MapSender::new(Arc::new(map?));
            let watch = sender.subscribe();
            tokio::spawn(self.clone().follow(sender, seen, folders));
            Ok(watch)
        }
        .boxed()
    }
}

impl FileStore {
    fn stamp(&self) -> Option<Stamp> {
        fs::metadata(&self.path)
            .map(|metadata| Stamp::of(&metadata))
            .ok()
    }

    /// Checks the file whenever its folder changes, when a reader requests it, and at every poll
    /// interval, until the maps have no reader any more.
    async fn follow(self, sender: MapSender, mut seen: Option<Stamp>, mut folders: Folders) {
        loop {
            tokio::select! {
                () = folders.changed() => tokio::time::sleep(SETTLE).await,
                () = sender.refresh_wanted() => {}
                () = tokio::time::sleep(self.poll_interval) => {}
                () = sender.closed() => return,
            }
            let store = self.clone();
            let look = move || {
                let stamp = store.stamp();
                if stamp == seen {
                    return (folders, None);
                }
                folders.renew();
                let map = store.read();
                (folders, Some((stamp, map)))
            };
            let looked;
            (folders, looked) = blocking(look).await;
            let Some((stamp, map)) = looked else { continue };
            seen = stamp;
            match map {
                Ok(map) => sender.send(map),
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the shard map stays at version {}: the changed file cannot be used",
                        sender.current().version()
                    );
                    sender.failed(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;
    use crate::map::{Changes, HostName};
    use crate::store::map_text::print_map;
    use crate::store::publish_merged;
    use crate::store::testing::{first_map, place, store_contract};
    use crate::{ShardCount, ShardId};

    const TEXT: &str =
        "# ours\n[map]\nversion = 1 # counted\n[map.placement]\n\tdb1 = \"0-7\" # all\n";

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn with(text: &str) -> (Folder, FileStore) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("pgshard.toml");
            fs::write(&path, text).unwrap();
            (
                Folder(folder),
                FileStore::new(path, ShardCount::new(8).unwrap()),
            )
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(self.0.path()).unwrap();
            let mut names: Vec<_> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
    }

    /// Replaces the file in one step, as an editor does.
    fn save(folder: &Folder, store: &FileStore, text: &str) {
        let saved = folder.0.path().join("saved");
        fs::write(&saved, text).unwrap();
        fs::rename(&saved, store.path()).unwrap();
    }

    fn moved(shard: u16, host: u8) -> Changes {
        Changes::from_iter([(ShardId::new(shard).unwrap(), place(host, 2))])
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_file_keeps_the_contract_of_a_store() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgshard.toml");
        let map = first_map();
        fs::write(&path, print_map(&map)).unwrap();
        store_contract(Arc::new(FileStore::new(path, map.shards()))).await;
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "no temporary file is left behind"
        );
    }

    #[tokio::test]
    async fn comments_mode_owner_and_link_stay() {
        let (folder, store) = Folder::with(TEXT);
        fs::set_permissions(store.path(), fs::Permissions::from_mode(0o640)).unwrap();
        let owner = fs::metadata(store.path()).unwrap();
        // As root (in containers), the file must keep its owner.
        let _ =
            std::os::unix::fs::chown(store.path(), Some(owner.uid() + 1), Some(owner.gid() + 1));
        let before = fs::metadata(store.path()).unwrap();
        let link = folder.0.path().join("link.toml");
        std::os::unix::fs::symlink("pgshard.toml", &link).unwrap();

        publish_merged(&FileStore::new(&link, store.shards), &moved(7, 2))
            .await
            .unwrap();

        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let text = fs::read_to_string(store.path()).unwrap();
        let wanted = "# ours\n[map]\nversion = 2 # counted\n[map.placement]\n\tdb1 = \"0-6\" # \
            all\n\tdb2 = \"7@2\"\n";
        assert_eq!(text, wanted);
        let after = fs::metadata(store.path()).unwrap();
        assert_eq!(
            (after.mode(), after.uid(), after.gid()),
            (before.mode(), before.uid(), before.gid())
        );
        assert_ne!(
            after.ino(),
            before.ino(),
            "the old file was replaced, not overwritten"
        );
        assert_eq!(folder.names(), ["link.toml", "pgshard.toml"]);
    }

    #[tokio::test]
    async fn an_unknown_host_is_not_written() {
        let text = format!("[hosts.db1]\n{TEXT}");
        let (folder, store) = Folder::with(&text);
        let error = publish_merged(&store, &moved(7, 2)).await.unwrap_err();
        let PublishError::Store(StoreError::Unwritable { diagnostics, .. }) = &error else {
            panic!("{error}")
        };
        assert_eq!(
            diagnostics[0].message,
            "unknown host \"db2\" in [map.placement]"
        );
        assert_eq!(fs::read_to_string(store.path()).unwrap(), text);
        assert_eq!(folder.names(), ["pgshard.toml"]);
    }

    #[tokio::test]
    async fn a_bad_reload_keeps_the_map_and_says_why() {
        let (folder, store) = Folder::with(TEXT);
        let store = store.with_poll_interval(Duration::from_millis(2));
        let mut watch = store.watch().await.unwrap();
        let first = watch.current();
        save(&folder, &store, &TEXT.replace("0-7", "0-6"));
        // The store looks by itself; this waits until it has.
        let told = async {
            loop {
                match watch.last_error() {
                    Some(error) => break error.to_string(),
                    None => tokio::time::sleep(Duration::from_millis(2)).await,
                }
            }
        };
        let error = tokio::time::timeout(Duration::from_secs(60), told)
            .await
            .unwrap();
        assert!(
            error.contains("pgshard.toml:4:1: shard 7 is on no host"),
            "{error}"
        );
        assert_eq!(watch.current(), first);

        save(&folder, &store, &TEXT.replace("db1", "db9"));
        let second = watch.changed().await.unwrap();
        assert_eq!(second.hosts(), [HostName::new("db9").unwrap()]);
        assert!(watch.last_error().is_none());
    }

    #[tokio::test]
    async fn a_missing_file_is_named() {
        let store = FileStore::new("/nowhere/pgshard.toml", ShardCount::MAX);
        assert_eq!(
            store.load().await.unwrap_err().to_string(),
            "cannot read /nowhere/pgshard.toml"
        );
        assert!(store.watch().await.is_err());
    }

    /// A store that finds out by events or not at all: its polls are an hour apart.
    fn patient(path: PathBuf) -> FileStore {
        FileStore::new(path, ShardCount::new(8).unwrap())
            .with_poll_interval(Duration::from_secs(3600))
    }

    async fn next(watch: &mut MapWatch) -> HostName {
        let map = tokio::time::timeout(Duration::from_secs(60), watch.changed()).await;
        map.expect("the change is seen").unwrap().hosts()[0].clone()
    }

    #[tokio::test]
    async fn an_editor_is_noticed() {
        let (folder, store) = Folder::with(TEXT);
        let mut watch = patient(store.path().to_owned()).watch().await.unwrap();
        for name in ["db2", "db3"] {
            save(&folder, &store, &TEXT.replace("db1", name));
            assert_eq!(next(&mut watch).await.as_str(), name);
        }
        // Written in place.
        fs::write(store.path(), TEXT.replace("db1", "db4")).unwrap();
        assert_eq!(next(&mut watch).await.as_str(), "db4");
    }

    /// As the kubelet does it: the file is a link through `..data`, a link that is swapped for one
    /// to another folder.
    #[tokio::test]
    async fn a_swapped_config_map_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let publish = |time: &str, name: &str| {
            fs::create_dir(at(time)).unwrap();
            fs::write(at(time).join("pgshard.toml"), TEXT.replace("db1", name)).unwrap();
            std::os::unix::fs::symlink(time, at("..data_tmp")).unwrap();
            fs::rename(at("..data_tmp"), at("..data")).unwrap();
        };
        publish("..2026_01", "db1");
        std::os::unix::fs::symlink("..data/pgshard.toml", at("pgshard.toml")).unwrap();
        let mut watch = patient(at("pgshard.toml")).watch().await.unwrap();
        for (time, name) in [("..2026_02", "db2"), ("..2026_03", "db3")] {
            publish(time, name);
            assert_eq!(next(&mut watch).await.as_str(), name);
        }
        fs::remove_dir_all(at("..2026_02")).unwrap();
        publish("..2026_04", "db4");
        assert_eq!(next(&mut watch).await.as_str(), "db4");
    }

    #[tokio::test]
    async fn a_file_behind_a_link_is_noticed() {
        let (folder, store) = Folder::with(TEXT);
        let beside = tempfile::tempdir().unwrap();
        let link = beside.path().join("link.toml");
        std::os::unix::fs::symlink(store.path(), &link).unwrap();
        let mut watch = patient(link).watch().await.unwrap();
        save(&folder, &store, &TEXT.replace("db1", "db2"));
        assert_eq!(next(&mut watch).await.as_str(), "db2");
    }

    /// Where the file system reports no changes, a reader can still request a check, as on SIGHUP.
    #[tokio::test]
    async fn a_reader_can_ask() {
        let (folder, store) = Folder::with(TEXT);
        let store = patient(store.path().to_owned());
        let sender = MapSender::new(Arc::new(store.read().unwrap()));
        let mut watch = sender.subscribe();
        // Folders of another file.
        let folders = Folders::of(Path::new("/nowhere/pgshard.toml"));
        tokio::spawn(store.clone().follow(sender, store.stamp(), folders));
        save(&folder, &store, &TEXT.replace("db1", "db2"));
        watch.refresh().now();
        assert_eq!(next(&mut watch).await.as_str(), "db2");
    }
}
