//! One file a verb, each an async function of plain arguments and the output.

mod completions;
mod id;
mod init;
mod locate;
mod man;
mod map;

use self::init::Overwrite;
use self::locate::Target;
use crate::args::{Args, Command, IdCommand, MapCommand};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// Runs the command.
pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit, Failure> {
    let config = args.global.config.as_deref();
    match args.command {
        Command::Init(args) => {
            let overwrite = if args.force { Overwrite::Allowed } else { Overwrite::Refused };
            init::run(args.hosts, args.shards, overwrite, config, output)
        }
        Command::Locate(args) => {
            let target = args.key.map(Target::Key).or(args.id.map(Target::Id));
            let target = target.ok_or_else(|| Failure::usage("locate what? --key or --id"))?;
            locate::run(target, config, output).await
        }
        Command::Id { command } => match command {
            IdCommand::Decode(args) => id::decode(&args.ids, args.epoch.epoch, config, output),
            IdCommand::Encode(args) => id::encode(args, config, output),
            IdCommand::Range(args) => id::range(args.from, args.to, args.epoch.epoch, config, output),
        },
        Command::Map { command } => match command {
            MapCommand::Show(_) => map::show(config, output).await,
        },
        Command::Completions(args) => completions::run(args.shell, output),
        Command::Man(args) => man::run(args.out.as_deref(), output),
    }
}

/// How to go on after Ctrl-C, for the commands that change something.
pub(crate) fn on_interrupt(command: &Command) -> Option<&'static str> {
    match command {
        Command::Init(_)
        | Command::Locate(_)
        | Command::Id { .. }
        | Command::Map { .. }
        | Command::Completions(_)
        | Command::Man(_) => None,
    }
}
