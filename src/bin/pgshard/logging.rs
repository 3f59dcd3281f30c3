//! The log, on stderr: what the library says by `tracing`.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

use crate::args::Global;
use crate::output::Output;

/// Starts the log. `PGSHARD_LOG`, else `RUST_LOG`, says what is logged; without them `-v` and `-q` do.
pub(crate) fn start(global: &Global, output: &Output) {
    let filter = ["PGSHARD_LOG", "RUST_LOG"].iter().find_map(|name| EnvFilter::try_from_env(name).ok());
    let level = match (global.quiet, global.verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info",
        (false, 2) => "debug",
        (false, _) => "trace",
    };
    let filter = filter.unwrap_or_else(|| EnvFilter::new(format!("error,pgshard={level}")));
    let talk = output.talk();
    fmt()
        .with_env_filter(filter)
        .with_ansi(output.is_coloured())
        .with_target(global.verbose > 1)
        .with_writer(move || talk.clone())
        .init();
}
