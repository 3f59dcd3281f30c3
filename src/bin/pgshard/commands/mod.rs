//! One file a verb, each an async function of plain arguments and the output.

mod bootstrap;
mod completions;
mod dev;
mod id;
mod init;
mod locate;
mod man;
mod map;
mod migrate;
mod sql;

use self::init::Overwrite;
use self::locate::Target;
use crate::args::{Args, Command, DevCommand, IdCommand, MapCommand, MigrateCommand};
use crate::confirm::Consent;
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
        Command::Bootstrap(args) | Command::Migrate { command: MigrateCommand::Up(args) } => {
            bootstrap::run(&args.hosts, &args.assume_empty, args.jobs, config, output).await
        }
        Command::Migrate { command: MigrateCommand::Status(_) } => migrate::status(config, output).await,
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
            MapCommand::Diff(args) => map::diff(&args.other, config, output).await,
        },
        Command::Sql(args) => sql::run(&args.query, args.shards.as_deref(), config, output).await,
        Command::Dev { command } => match command {
            DevCommand::Up(args) => dev::up(args.folder.dir, args.hosts.into(), args.shards, output).await,
            DevCommand::Down(args) => dev::down(args.folder.dir, Consent::from_flag(args.yes), output).await,
            DevCommand::Status(args) => dev::status(args.folder.dir, output).await,
        },
        Command::Completions(args) => completions::run(args.shell, output),
        Command::Man(args) => man::run(args.out.as_deref(), output),
    }
}

/// How to go on after Ctrl-C, for the commands that change something.
pub(crate) fn on_interrupt(command: &Command) -> Option<&'static str> {
    match command {
        Command::Bootstrap(_) | Command::Migrate { command: MigrateCommand::Up(_) } => {
            Some("run the same command again: it does what is left")
        }
        Command::Dev { command: DevCommand::Up(_) } => Some("run the same command again: servers that run go on"),
        Command::Dev { command: DevCommand::Down(_) } => Some("run the same command again"),
        Command::Dev { command: DevCommand::Status(_) }
        | Command::Init(_)
        | Command::Migrate { command: MigrateCommand::Status(_) }
        | Command::Locate(_)
        | Command::Id { .. }
        | Command::Map { .. }
        | Command::Sql(_)
        | Command::Completions(_)
        | Command::Man(_) => None,
    }
}
