//! One file a verb, each an async function of plain arguments and the output.

mod completions;
mod id;
mod man;

use crate::args::{Args, Command, IdCommand};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// Runs the command.
pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit, Failure> {
    let config = args.global.config.as_deref();
    match args.command {
        Command::Id { command } => match command {
            IdCommand::Decode(args) => id::decode(&args.ids, args.epoch.epoch, config, output),
            IdCommand::Encode(args) => id::encode(args, config, output),
            IdCommand::Range(args) => id::range(args.from, args.to, args.epoch.epoch, config, output),
        },
        Command::Completions(args) => completions::run(args.shell, output),
        Command::Man(args) => man::run(args.out.as_deref(), output),
    }
}

/// How to go on after Ctrl-C, for the commands that change something.
pub(crate) fn on_interrupt(command: &Command) -> Option<&'static str> {
    match command {
        Command::Id { .. } | Command::Completions(_) | Command::Man(_) => None,
    }
}
