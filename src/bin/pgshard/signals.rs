//! The signals that request a command to end: Ctrl-C (SIGINT), and SIGTERM, as sent by `kill`, a
//! service manager and a machine that shuts down. Every command handles the two alike.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Hears these signals from when it is made. None that comes later is missed, and none ends the
/// process by itself any more.
pub(crate) struct Ending {
    interrupts: Signal,
    terminations: Signal,
}

impl Ending {
    /// # Errors
    /// When the process cannot listen to signals.
    pub(crate) fn listen() -> io::Result<Ending> {
        Ok(Ending {
            interrupts: signal(SignalKind::interrupt())?,
            terminations: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one.
    ///
    /// # Cancel safety
    /// May be dropped and called again: no signal is lost.
    pub(crate) async fn stop_requested(&mut self) {
        tokio::select! {
            _ = self.interrupts.recv() => {}
            _ = self.terminations.recv() => {}
        }
    }
}

/// Waits for one of these signals. Where the process cannot listen to them, they end it anyway.
///
/// # Cancel safety
/// May be dropped. What comes before it is called again is not heard.
pub(crate) async fn asked_to_end() {
    match Ending::listen() {
        Ok(mut ending) => ending.stop_requested().await,
        Err(error) => {
            tracing::warn!(%error, "signals are not heard");
            std::future::pending().await
        }
    }
}
