//! Receives the kernel's notifications of changes next to a file. It watches the file's folder, and
//! the folders of what the file links to.
//!
//! It watches folders because the file itself is never written to: editors and publications replace
//! it, and Kubernetes swaps the link `..data` that the file's own link uses.
//!
//! Invariant: an event only means "look". Where a file system has no events, or cannot be watched,
//! the next look is late, and nothing worse happens.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

/// The folders of one file.
pub(super) struct Folders {
    path: PathBuf,
    /// `None` where the system gives no watcher.
    watcher: Option<RecommendedWatcher>,
    watched: Vec<PathBuf>,
    changed: Arc<Notify>,
}

impl Folders {
    /// Watches the folders of this file.
    pub(super) fn of(path: &Path) -> Folders {
        let changed = Arc::<Notify>::default();
        let tell = changed.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // Our own reading is an event, too.
            if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
                tell.notify_one();
            }
        });
        let watcher = watcher.inspect_err(
            |error| tracing::info!(%error, "the config is not watched, only looked at"),
        );
        let mut folders = Folders {
            path: path.to_owned(),
            watcher: watcher.ok(),
            watched: Vec::new(),
            changed,
        };
        folders.renew();
        folders
    }

    /// Watches the folders as they are now: a link may lead to another folder than before, and a
    /// folder may have been replaced by one of the same name.
    pub(super) fn renew(&mut self) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        for folder in self.watched.drain(..) {
            // A folder that is gone took its watch along.
            let _ = watcher.unwatch(&folder);
        }
        for folder in links_and_target(&self.path) {
            match watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => self.watched.push(folder),
                Err(error) => {
                    tracing::debug!(%error, folder = %folder.display(), "a folder is not watched")
                }
            }
        }
    }

    /// Waits for a change in the file's folders.
    ///
    /// # Cancel safety
    /// No change is lost: the next call returns immediately.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// The folders of the file, of the links on the way, and of the file that they lead to; each once.
fn links_and_target(path: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let mut add = |path: &Path| {
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        if !folders.iter().any(|folder| folder == parent) {
            folders.push(parent.to_owned());
        }
    };
    let mut at = path.to_owned();
    // The number of links that the kernel follows.
    for _ in 0..40 {
        add(&at);
        let Ok(to) = std::fs::read_link(&at) else {
            break;
        };
        at = at.parent().unwrap_or(Path::new("")).join(to);
    }
    if let Ok(target) = std::fs::canonicalize(path) {
        add(&target);
    }
    folders
}
