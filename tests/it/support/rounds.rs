//! Transactions that continue wherever shard 0 is served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_postgres::Client;

/// Runs the round of each number at each host, until it is stopped. Returns how many were done, and
/// the errors that should not have occurred.
pub(crate) async fn rounds(
    clients: Vec<Client>,
    rest: Duration,
    stop: Arc<AtomicBool>,
    round: impl Fn(u32) -> String,
) -> (u32, Vec<String>) {
    let (mut n, mut done, mut refused) = (0, 0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        for client in &clients {
            n += 1;
            match client.batch_execute(&round(n)).await {
                Ok(()) => done += 1,
                Err(error) => {
                    let code = error.code().map_or("gone", |code| code.code()).to_owned();
                    // Where the shard is not served, the signpost raises an error, or there is none
                    // yet.
                    if !["SH001", "3F000", "42P01"].contains(&code.as_str()) {
                        refused.push(format!("{error:?}"));
                    }
                    let _ = client.batch_execute("ROLLBACK").await;
                }
            }
        }
        tokio::time::sleep(rest).await;
    }
    (done, refused)
}
