//! One file a verb, each an async function of plain arguments and the output.

mod bench;
mod bootstrap;
mod check;
mod completions;
mod conformance;
#[cfg(feature = "console")]
mod console;
mod demo;
mod dev;
mod explain;
mod exporter;
mod findings;
mod host;
mod id;
mod import;
mod init;
mod listen;
mod locate;
mod lookups;
mod man;
mod map;
mod map_carry;
mod map_versions;
mod measure;
mod migrate;
mod moves;
mod privilege_warning;
mod psql;
mod rebalance;
mod recover;
mod rights;
mod schemas;
mod sql;
mod survey;
mod tickets;
mod top;
mod workers;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use self::locate::{Lines, Target};
use self::moves::Verb;
use self::moves::start::Detail;
use futures_util::future::BoxFuture;
use pgshard::mover::{DesiredState, Leases};
use pgshard::schema::migrate::{Resolution, Which};
use pgshard::store::whole::Overwrite;

use crate::args::{
    Args, Command, ConformanceCommand, DevCommand, HostCommand, IdCommand, ImportCommand, Init,
    Locate, LookupsCommand, MapCommand, MigrateCommand, MovesCommand, TicketsCommand, Wide,
    WorkersCommand,
};
use crate::confirm::Consent;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Output, Width};

/// Runs the command.
pub(crate) fn run(args: Args, output: &Arc<Output>) -> BoxFuture<'_, Result<Exit, Failure>> {
    Box::pin(dispatch(args, output))
}

async fn dispatch(args: Args, output: &Arc<Output>) -> Result<Exit, Failure> {
    let config = args.global.config.as_deref();
    match args.command {
        Command::Init(args) => run_init(args, config, output).await,
        Command::Check(args) => check::run(&args, config, output).await,
        Command::Bootstrap(args) => bootstrap::run(&args, config, output).await,
        Command::Rights(args) => {
            let printed = if args.migration {
                rights::As::Migration
            } else {
                rights::As::Statements
            };
            let wanted = rights::RoleRequest {
                purpose: args.purpose.into(),
                role: &args.role,
                service: args.service.into(),
                by: args.by.map(Into::into),
            };
            rights::run(&wanted, printed, output)
        }
        Command::Migrate { command } => run_migrate(command, config, output).await,
        Command::Locate(args) => {
            let located = run_locate(args, config, output);
            output.waiting("locating", located).await
        }
        Command::Psql(args) => {
            let target = args
                .key
                .map(Target::Key)
                .or(args.id.map(Target::Id))
                .or(args.shard.map(Target::Shard));
            let target = target.ok_or_else(|| Failure::usage("where? --key, --id or --shard"))?;
            psql::run(&target, &args.args, config, output).await
        }
        Command::Explain(args) => explain::run(args.code.as_deref(), output),
        Command::Top(args) => top::run(&args, config, output).await,
        Command::Exporter(args) => exporter::run(&args, config, output).await,
        #[cfg(feature = "console")]
        Command::Console(args) => console::run(&args, config, output).await,
        Command::Id { command } => match command {
            IdCommand::Decode(args) => id::decode(&args, config, output),
            IdCommand::Encode(args) => id::encode(args, config, output),
            IdCommand::Range(args) => {
                id::range(args.from, args.to, args.epoch.epoch, config, output)
            }
        },
        Command::Tickets { command } => match command {
            TicketsCommand::Create(args) => tickets::create(args, config, output).await,
            TicketsCommand::Status(_) => {
                let told = tickets::status(config, output);
                output.waiting("reading the hosts", told).await
            }
            TicketsCommand::Next(args) => {
                tickets::next(args.name, args.count.get(), config, output).await
            }
        },
        Command::Workers { command } => match command {
            WorkersCommand::Install(args) => workers::install(&args, config, output).await,
            WorkersCommand::Hold(args) => workers::hold(&args, config, output).await,
            WorkersCommand::Status(args) => {
                let told = workers::status(&args, config, output);
                output.waiting("reading the host", told).await
            }
            WorkersCommand::Release(args) => workers::release(&args, config, output).await,
        },
        Command::Lookups { command } => run_lookups(command, config, output).await,
        Command::Map { command } => run_map(command, config, output).await,
        Command::Move(args) => {
            let (fence_at, rollback, identity) =
                (args.fence_at(), args.rollback(), args.replica_identity());
            let asked = moves::start::MoveOptions {
                shards: args.shards,
                target: args.to,
                mode: args.mode.map(Into::into),
                only_plan: args
                    .plan
                    .then_some(if args.sql { Detail::Sql } else { Detail::Steps }),
                consent: Consent::from_flag(args.yes),
                options: args
                    .pace
                    .options()
                    .fence_at(fence_at)
                    .rollback(rollback)
                    .replica_identity(identity),
            };
            moves::start::run(asked, config, output).await
        }
        Command::Moves { wide, command } => run_moves(wide, command, config, output).await,
        Command::Recover(args) => recover::run(args, config, output).await,
        Command::Rebalance(args) => rebalance::run(args, config, output).await,
        Command::Drain(args) => rebalance::drain(args, config, output).await,
        Command::Host { command } => match command {
            HostCommand::Add(args) => host::add(args, config, output).await,
            HostCommand::Remove(args) => {
                host::remove(&args.name, Consent::from_flag(args.yes), config, output).await
            }
            HostCommand::List(args) => {
                host::list(Width::from_flag(args.wide.wide), config, output).await
            }
            HostCommand::Accept(args) => {
                let consent = Consent::from_flag(args.yes);
                host::accept(&args.host, args.system, consent, config, output).await
            }
        },
        Command::Demo(args) => demo::run(args, output).await,
        Command::Import { command } => match command {
            ImportCommand::Assess(args) => import::assess(&args, config, output).await,
            ImportCommand::Keys(args) => import::keys::keys(&args, output).await,
            ImportCommand::Separate(args) => import::separate::separate(&args, output).await,
        },
        Command::Sql(args) => sql::run(&args.query, args.shards.as_deref(), config, output).await,
        Command::Bench(args) => {
            bench::run(args.seconds, args.connections.into(), config, output).await
        }
        Command::Dev { command } => match command {
            DevCommand::Up(args) => {
                dev::up(args.folder.dir, args.hosts.into(), args.shards, output).await
            }
            DevCommand::Down(args) => {
                dev::down(args.folder.dir, Consent::from_flag(args.yes), output).await
            }
            DevCommand::Status(args) => dev::status(args.folder.dir, output).await,
        },
        Command::Conformance {
            command: ConformanceCommand::Serve(args),
        } => conformance::serve(args, output).await,
        Command::Completions(args) => completions::run(args.shell, output),
        Command::JsonSchema(args) => schemas::run(&args.command, args.out.as_deref(), output),
        Command::Man(args) => man::run(args.out.as_deref(), output),
    }
}

async fn run_init(
    args: Init,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    let overwrite = if args.force {
        Overwrite::Allowed
    } else {
        Overwrite::Refused
    };
    match args.from.as_slice() {
        [] => init::run(args.hosts, args.shards, overwrite, config, output),
        urls => init::run_from(urls, overwrite, config, output).await,
    }
}

async fn run_locate(
    args: Locate,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    let many = args
        .keys
        .map(|file| (Lines::Keys, file))
        .or(args.ids.map(|file| (Lines::Ids, file)));
    if let Some((lines, file)) = many {
        return locate::run_many(lines, file, config, output).await;
    }
    let target = args.key.map(Target::Key).or(args.id.map(Target::Id));
    let target = target.ok_or_else(|| locate::unclear(args.word.as_deref()))?;
    let by = if args.check {
        locate::By::Hosts
    } else {
        locate::By::Map
    };
    locate::run(target, by, config, output).await
}

async fn run_migrate(
    command: MigrateCommand,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    match command {
        MigrateCommand::New(args) => migrate::new(&args.name, config, output),
        MigrateCommand::Status(_) => migrate::status(config, output).await,
        MigrateCommand::Wait(args) => {
            migrate::wait(
                args.name.as_deref(),
                Duration::from_secs(args.timeout_s),
                config,
                output,
            )
            .await
        }
        MigrateCommand::Backfill(args) => migrate::backfill(&args, config, output).await,
        MigrateCommand::Plan(args) => {
            let detail = if args.sql { Detail::Sql } else { Detail::Steps };
            migrate::plan(&args.target, detail, config, output).await
        }
        MigrateCommand::Up(args) => {
            let how = migrate::How {
                which: Which::Pending,
                canary: args.canary,
                pace: args.pace.pace(),
            };
            migrate::up(&args.target, how, config, output).await
        }
        MigrateCommand::Retry(args) => {
            let how = migrate::How {
                which: Which::Failed,
                canary: None,
                pace: args.pace.pace(),
            };
            migrate::up(&args.target, how, config, output).await
        }
        MigrateCommand::Resolve(args) => {
            let resolution = match (args.applied, args.not_applied) {
                (true, _) => Resolution::Applied,
                (_, true) => Resolution::NotApplied,
                _ => Resolution::AcceptEdit,
            };
            match args.plan {
                true => {
                    migrate::plan_resolving(&args.name, resolution, &args.target, config, output)
                        .await
                }
                false => {
                    migrate::resolve(&args.name, resolution, &args.target, config, output).await
                }
            }
        }
    }
}

async fn run_lookups(
    command: LookupsCommand,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    match command {
        LookupsCommand::Migration(args) => {
            lookups::migration(&args.name, args.step.into(), config, output)
        }
        LookupsCommand::Status(_) => {
            let told = lookups::status(config, output);
            output.waiting("reading the hosts", told).await
        }
        LookupsCommand::Build(args) => lookups::build(&args.name, config, output).await,
        LookupsCommand::Check(args) => lookups::check(&args.name, config, output).await,
        LookupsCommand::Repair(args) => lookups::repair(&args.name, config, output).await,
        LookupsCommand::Suspend(args) => lookups::suspend(&args.name, config, output).await,
        LookupsCommand::Sweep(_) => lookups::sweep(config, output).await,
    }
}

async fn run_map(
    command: MapCommand,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    match command {
        MapCommand::Show(args) => map::show(args, config, output).await,
        MapCommand::Diff(args) => match args.from {
            None => map::diff(args.other.as_deref(), config, output).await,
            Some(from) => map_versions::diff(from, args.to, config, output).await,
        },
        MapCommand::History(args) => map_versions::history(args.count.into(), config, output).await,
        MapCommand::Import(args) => {
            map_carry::import(&args.from, Consent::from_flag(args.yes), config, output).await
        }
        MapCommand::Export(args) => map_carry::export(args.format, config, output).await,
        MapCommand::Rebuild(args) => {
            map::rebuild(Consent::from_flag(args.yes), config, output).await
        }
    }
}

async fn run_moves(
    wide: Wide,
    command: Option<MovesCommand>,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    let is_table = matches!(
        command,
        None | Some(MovesCommand::List(_) | MovesCommand::Show(_))
    );
    if wide.wide && !is_table {
        return Err(Failure::usage(
            "--wide is an option of `moves list` and `moves show`",
        ));
    }
    match command {
        None => {
            let width = Width::from_flag(wide.wide);
            moves::list(moves::Which::Open, width, config, output).await
        }
        Some(MovesCommand::List(args)) => {
            let which = if args.all {
                moves::Which::All
            } else {
                moves::Which::Open
            };
            let width = Width::from_flag(wide.wide || args.wide.wide);
            moves::list(which, width, config, output).await
        }
        Some(MovesCommand::Show(args)) => {
            let width = Width::from_flag(wide.wide || args.wide.wide);
            moves::show(args.id.as_deref(), width, config, output).await
        }
        Some(MovesCommand::Watch(args)) => moves::watch(args.id.as_deref(), config, output).await,
        Some(MovesCommand::Pause(args)) => {
            moves::set_desired_state(DesiredState::Pause, args.id.as_deref(), config, output).await
        }
        Some(MovesCommand::Continue(args)) => {
            moves::set_desired_state(DesiredState::Run, args.id.as_deref(), config, output).await
        }
        Some(MovesCommand::Stop(args)) => {
            moves::stop(args.id.as_deref(), args.patience.duration(), config, output).await
        }
        Some(MovesCommand::Resume(args)) => {
            let options = args.pace.options();
            moves::act(
                Verb::Resume,
                args.id.as_deref(),
                Consent::Given,
                options,
                config,
                output,
            )
            .await
        }
        Some(MovesCommand::Abort(args)) => {
            let (id, verb) = (
                args.id.clone(),
                Verb::Abort {
                    patience: args.patience.duration(),
                },
            );
            moves::act(
                verb,
                id.as_deref(),
                Consent::Given,
                args.options(),
                config,
                output,
            )
            .await
        }
        Some(MovesCommand::Rollback(args)) => {
            let (consent, options) = (Consent::from_flag(args.yes), args.pace.options());
            moves::act(
                Verb::Rollback,
                args.id.as_deref(),
                consent,
                options,
                config,
                output,
            )
            .await
        }
        Some(MovesCommand::Audit(args)) => {
            let options = args.pace.options();
            moves::act(
                Verb::Audit,
                args.id.as_deref(),
                Consent::Given,
                options,
                config,
                output,
            )
            .await
        }
        Some(MovesCommand::Feed(args)) => {
            let leases = Leases::of(Duration::from_millis(args.lease_ms));
            let options = args.limit.options().leases(leases);
            moves::feed(args.id.as_deref(), options, config, output).await
        }
        Some(MovesCommand::Complete(args)) => {
            let (all, id, consent) = (args.all, args.id.clone(), Consent::from_flag(args.yes));
            let options = args.options();
            if all {
                return moves::complete_all(consent, options, config, output).await;
            }
            moves::act(
                Verb::Complete,
                id.as_deref(),
                consent,
                options,
                config,
                output,
            )
            .await
        }
        Some(MovesCommand::Repair(args)) => moves::repair(args, config, output).await,
        Some(MovesCommand::Gc(args)) => moves::gc(args.limit.options(), config, output).await,
    }
}

/// What Ctrl-C and SIGTERM do to a command.
pub(crate) enum Interrupt {
    /// The command hears it itself and ends in order.
    Handled,
    /// The command ends immediately.
    Ends {
        /// For the commands that change something.
        how_to_go_on: Option<&'static str>,
    },
}

/// What Ctrl-C and SIGTERM do to this command.
pub(crate) fn on_interrupt(command: &Command) -> Interrupt {
    let how_to_go_on = match command {
        Command::Moves {
            command: Some(MovesCommand::Repair(args)),
            ..
        } if args.plan => None,
        Command::Moves {
            command: Some(MovesCommand::Gc(_) | MovesCommand::Repair(_)),
            ..
        } => Some("run the same command again: it does what is left"),
        Command::Moves {
            command: None | Some(MovesCommand::List(_) | MovesCommand::Show(_)),
            ..
        } => None,
        Command::Moves {
            command: Some(MovesCommand::Pause(_) | MovesCommand::Continue(_)),
            ..
        } => Some("`pgshard moves show` says what is asked of the move"),
        Command::Move(_) | Command::Moves { .. } => return Interrupt::Handled,
        Command::Rebalance(_) | Command::Drain(_) => return Interrupt::Handled,
        Command::Psql(_) | Command::Exporter(_) => return Interrupt::Handled,
        #[cfg(feature = "console")]
        Command::Console(_) => return Interrupt::Handled,
        Command::Host {
            command: HostCommand::Add(_) | HostCommand::Accept(_),
        } => Some("run the same command again: it does what is left"),
        Command::Bootstrap(_) | Command::Recover(_) => {
            Some("run the same command again: it does what is left")
        }
        Command::Migrate {
            command: MigrateCommand::Backfill(args),
        } if args.status => None,
        Command::Migrate {
            command: MigrateCommand::Up(_) | MigrateCommand::Backfill(_),
        } => Some("run the same command again: it does what is left"),
        Command::Migrate {
            command: MigrateCommand::Retry(_) | MigrateCommand::Resolve(_),
        } => Some("run the same command again: it does what is left"),
        Command::Import {
            command: ImportCommand::Keys(_) | ImportCommand::Separate(_),
        } => Some("run the same command again: it does what is left"),
        Command::Tickets {
            command: TicketsCommand::Create(_),
        } => Some("run the same command again: residues that are claimed stay with their hosts"),
        Command::Dev {
            command: DevCommand::Up(_),
        } => Some("run the same command again: servers that run go on"),
        Command::Dev {
            command: DevCommand::Down(_),
        } => Some("run the same command again"),
        Command::Dev {
            command: DevCommand::Status(_),
        }
        | Command::Init(_)
        | Command::Check(_)
        | Command::Explain(_)
        | Command::Rights(_)
        | Command::Migrate { .. }
        | Command::Locate(_)
        | Command::Id { .. }
        | Command::Tickets { .. }
        | Command::Workers { .. }
        | Command::Lookups { .. }
        | Command::Map { .. }
        | Command::Host { .. }
        | Command::Top(_)
        | Command::Import {
            command: ImportCommand::Assess(_),
        }
        | Command::Sql(_)
        | Command::Bench(_)
        | Command::Demo(_)
        | Command::Conformance { .. }
        | Command::Completions(_)
        | Command::JsonSchema(_)
        | Command::Man(_) => None,
    };
    Interrupt::Ends { how_to_go_on }
}
