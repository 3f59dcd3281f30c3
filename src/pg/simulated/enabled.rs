//! Servers that are played in this thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use futures_util::future::BoxFuture;
pub(crate) use tokio::io::DuplexStream as Stream;

/// Returns the client's end of a new connection, or why there is none.
type Listener = Arc<dyn Fn() -> BoxFuture<'static, io::Result<Stream>> + Send + Sync>;

thread_local! {
    static LISTENERS: RefCell<HashMap<String, Listener>> = RefCell::default();
}

/// From now on, connections to a host of this name in this thread come here.
pub(crate) fn listen(
    name: &str,
    listener: impl Fn() -> BoxFuture<'static, io::Result<Stream>> + Send + Sync + 'static,
) {
    LISTENERS.with_borrow_mut(|listeners| listeners.insert(name.to_owned(), Arc::new(listener)));
}

/// Connects, if a server is played under this name.
pub(in crate::pg) fn dial(name: &str) -> Option<BoxFuture<'static, io::Result<Stream>>> {
    LISTENERS
        .with_borrow(|listeners| listeners.get(name).cloned())
        .map(|listener| listener())
}
