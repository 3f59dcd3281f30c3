//! A port on which a command answers HTTP: how many connections at a time, and until when.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};
use crate::signals::asked_to_end;

/// Where a command listens.
#[derive(JsonSchema, Serialize)]
pub(crate) struct Listening {
    url: String,
}

/// Says where the command listens.
pub(super) fn tell(url: String, output: &Output) {
    match output.format() {
        Format::Json => output.object(Listening { url }),
        Format::Text => output.data(format_args!("listening on {url}")),
    }
}

/// How long a client may take to send its request.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Listens on the address.
///
/// # Errors
/// When somebody else does.
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::new(Exit::Failed, format!("cannot listen on {address}: {error}"))
            .hint("another process may have the port: choose one with --listen")
    })
}

/// Answers connections until Ctrl-C or SIGTERM, so many at a time; the others wait.
pub(super) async fn until_interrupted<Answering: Future<Output = ()> + Send + 'static>(
    listener: &TcpListener,
    connections_max: usize,
    answer: impl Fn(TcpStream) -> Answering,
) {
    let places = Arc::new(Semaphore::new(connections_max));
    loop {
        tokio::select! {
            accepted = accept(listener, &places) => {
                if let Some((stream, place)) = accepted {
                    let answering = answer(stream);
                    tokio::spawn(async move {
                        answering.await;
                        drop(place);
                    });
                }
            }
            () = asked_to_end() => return,
        }
    }
}

type Place = tokio::sync::OwnedSemaphorePermit;

/// The next connection, when there is a place for it.
async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> Option<(TcpStream, Place)> {
    let place = places.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, place)),
        Err(error) => {
            // Mostly there are too many open files, which passes.
            tracing::warn!(%error, "a connection was not accepted");
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}
