//! The log on stderr: the library's `tracing` events.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::args::Global;
use crate::output::{Format, JsonMessage, Output, line};

/// Starts the log. `PGSHARD_LOG`, else `RUST_LOG`, selects the events that are logged; without them
/// `-v` and `-q` do.
pub(crate) fn start(global: &Global, output: &Output) {
    let filter = ["PGSHARD_LOG", "RUST_LOG"]
        .iter()
        .find_map(|name| EnvFilter::try_from_env(name).ok());
    let level = match (global.quiet, global.verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info",
        (false, 2) => "debug",
        (false, _) => "trace",
    };
    let filter = filter.unwrap_or_else(|| EnvFilter::new(format!("error,pgshard={level}")));
    let talk = output.talk();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || talk.clone());
    match output.format() {
        Format::Text => log
            .with_ansi(output.is_coloured())
            .with_target(global.verbose > 1)
            .init(),
        Format::Json => log.with_ansi(false).event_format(Objects).init(),
    }
}

/// With `--json`: each line of the log is an object, as everything on stderr.
struct Objects;

impl<S, N> FormatEvent<S, N> for Objects
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut message = String::new();
        context.format_fields(Writer::new(&mut message), event)?;
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            _ => "note",
        };
        writeln!(writer, "{}", line(JsonMessage::new(level, &message)))
    }
}
