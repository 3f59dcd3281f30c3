//! `pgshard`, the operator's command: parse, run, exit code. It uses the library's public API only.
//!
//! Invariant: stdout is data and stderr is talk, everything is printed by [`output`], and the exit
//! codes of [`exit`] keep their meaning: scripts rely on them.

#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(
    not(feature = "console"),
    allow(dead_code, reason = "some of it is for the console only")
)]

mod args;
mod commands;
mod confirm;
mod context;
mod exit;
mod failure;
mod logging;
mod output;
mod signals;
mod trust;
mod values;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use rustix::fs::Mode;
use rustix::process::umask;

use args::Args;
use commands::Interrupt;
use exit::Exit;
use output::Output;

fn main() -> ExitCode {
    // Whatever the caller's umask is: what a command makes, every user of the machine may not write
    // to.
    let given = umask(Mode::WOTH);
    umask(given | Mode::WOTH);
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(mistake)
            if mistake.use_stderr() && std::env::args_os().any(|word| word == "--json") =>
        {
            let text = mistake.render().to_string();
            let first = text.split("\n\n").next().unwrap_or_default();
            output::refused(first.trim_start_matches("error: ").trim());
            return Exit::Usage.into();
        }
        Err(mistake)
            if mistake.use_stderr() && output::refused_escaped(&mistake.render().to_string()) =>
        {
            return Exit::Usage.into();
        }
        // This prints help and mistakes itself, and then exits with 0 or 2.
        Err(help) => help.exit(),
    };
    let output = Arc::new(Output::new(&args.global));
    logging::start(&args.global, &output);
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return output.failure(&error.into()).into(),
    };
    let exit = runtime.block_on(run(args, &output));
    // Not dropped: a drop would wait for an answer that is no longer needed.
    runtime.shutdown_background();
    exit.into()
}

async fn run(args: Args, output: &Arc<Output>) -> Exit {
    let result = match commands::on_interrupt(&args.command) {
        Interrupt::Handled => commands::run(args, output).await,
        Interrupt::Ends { how_to_go_on } => tokio::select! {
            result = commands::run(args, output) => result,
            () = signals::asked_to_end() => return output.interrupted(how_to_go_on),
        },
    };
    output.end(result.unwrap_or_else(|failure| output.failure(&failure)))
}
