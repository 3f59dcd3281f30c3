//! The JSON Schema of the output of each command with `--json`; docs/json/README.md describes what
//! is guaranteed.
//!
//! Invariant: each type that is printed has a schema (`Output::object` requires it), and is in the
//! list below; the tests compare `docs/json/` with the list, and what commands print with
//! `docs/json/`.

use std::fs;
use std::path::Path;

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use super::{
    bench, bootstrap, check, conformance, demo, dev, explain, host, id, import, listen, locate,
    lookups, map, map_carry, map_versions, migrate, moves, rebalance, recover, rights, sql,
    tickets, top, workers,
};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, JsonMessage, Output, Versioned};

/// A command, and the types of the lines that it prints.
struct CommandOutput {
    command: &'static str,
    kinds: Vec<fn(&mut SchemaGenerator) -> Schema>,
}

fn kind<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<Versioned<T>>()
}

macro_rules! printed {
    ($($command:literal: $($kind:ty),+;)*) => {
        vec![$(CommandOutput { command: $command, kinds: vec![$(kind::<$kind>),+] }),*]
    };
}

/// What any command may print on stderr: errors, warnings, notes and hints.
const STDERR: &str = "stderr";

fn all() -> Vec<CommandOutput> {
    printed! {
        "bench": bench::Report;
        "bootstrap": bootstrap::BootstrapEvent<'static>;
        "check": check::Report<'static>;
        "conformance serve": conformance::Report;
        "console": listen::Listening;
        "demo": demo::Summary;
        "dev down": dev::DownReport;
        "dev status": dev::StatusReport;
        "dev up": dev::UpReport;
        "drain": rebalance::PlanReport<'static>, rebalance::RebalanceEvent;
        "explain": explain::Explanation;
        "exporter": listen::Listening;
        "host accept": host::AcceptanceReport<'static>;
        "host add": host::AdditionReport<'static>;
        "host list": host::HostListing;
        "host remove": host::RemovalReport<'static>;
        "id decode": id::DecodedId, id::OtherDecoded;
        "id encode": id::DecodedId;
        "id range": id::Range;
        "import assess": pgshard::import::Assessment;
        "import keys": import::keys::Finished, pgshard::import::ChangeEvent,
            pgshard::import::keys::KeysPlan;
        "import separate": import::separate::Finished, pgshard::import::ChangeEvent,
            pgshard::import::separate::SeparatePlan;
        "locate": locate::ShardLocation, locate::Wrong<'static>;
        "lookups build": lookups::Built<'static>;
        "lookups suspend": lookups::Suspended<'static>;
        "lookups check": lookups::Compared<'static>;
        "lookups repair": lookups::Compared<'static>;
        "lookups sweep": lookups::Swept;
        "lookups migration": lookups::Migration<'static>;
        "lookups status": lookups::Status;
        "map diff": map::Changes;
        "map export": map_carry::ExportReport;
        "map history": map_versions::History;
        "map import": map::Changes;
        "map rebuild": map::Changes;
        "map show": map::MapReport;
        "migrate backfill": migrate::BackfillEvent<'static>, migrate::Backfills;
        "migrate new": migrate::NewFile<'static>;
        "migrate plan": migrate::PlannedUp<'static>;
        "migrate resolve": bootstrap::BootstrapEvent<'static>, migrate::PlannedResolve<'static>;
        "migrate retry": bootstrap::BootstrapEvent<'static>;
        "migrate status": migrate::Status;
        "migrate up": bootstrap::BootstrapEvent<'static>;
        "migrate wait": migrate::WaitReport;
        "move": moves::MoveEvent, moves::start::PlanReport<'static>;
        "moves abort": moves::MoveEvent;
        "moves audit": moves::MoveEvent;
        "moves complete": moves::MoveEvent;
        "moves continue": moves::RequestReport;
        "moves feed": moves::MoveEvent;
        "moves gc": moves::GcReport;
        "moves list": moves::ListReport;
        "moves pause": moves::RequestReport;
        "moves repair": moves::Repaired<'static>;
        "moves resume": moves::MoveEvent;
        "moves rollback": moves::MoveEvent;
        "moves show": moves::ShowReport<'static>;
        "moves stop": moves::AskedToStop;
        "moves watch": moves::Line<'static>;
        "rebalance": rebalance::PlanReport<'static>, rebalance::RebalanceEvent;
        "recover": recover::RecoveryReport<'static>;
        "rights": rights::Answer<'static>;
        "sql": sql::ShardRows<'static>, sql::ShardFailed<'static>;
        "stderr": JsonMessage<'static>;
        "tickets create": tickets::CreatedSeries<'static>;
        "tickets next": tickets::Taken;
        "tickets status": tickets::Status;
        "top": top::Report;
        "workers hold": workers::HeldOn<'static>;
        "workers install": workers::InstalledOn<'static>;
        "workers release": workers::ReleasedOn<'static>;
        "workers status": workers::Status<'static>;
    }
}

impl CommandOutput {
    fn schema(&self) -> Value {
        let mut generator = SchemaSettings::draft2020_12()
            .for_serialize()
            .into_generator();
        let kinds: Vec<Schema> = self.kinds.iter().map(|kind| kind(&mut generator)).collect();
        let title = match self.command {
            STDERR => "What a command says on stderr with --json, a line each".to_owned(),
            command => format!("What `pgshard {command} --json` prints, a line each"),
        };
        let mut root = Map::new();
        root.insert(
            "$schema".to_owned(),
            json!("https://json-schema.org/draft/2020-12/schema"),
        );
        root.insert("title".to_owned(), json!(title));
        root.insert("anyOf".to_owned(), json!(kinds));
        let definitions = generator.take_definitions(true);
        if !definitions.is_empty() {
            root.insert("$defs".to_owned(), Value::Object(definitions));
        }
        Value::Object(root)
    }

    fn text(&self) -> String {
        serde_json::to_string_pretty(&self.schema()).expect("a schema has text for keys") + "\n"
    }
}

/// Prints the schema of a command, or writes those of all; without either, lists the commands.
pub(crate) fn run(
    command: &[String],
    out: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let all = all();
    if let Some(folder) = out {
        let failed = |error| {
            Failure::new(
                Exit::Failed,
                format!("cannot write to {}: {error}", folder.display()),
            )
        };
        fs::create_dir_all(folder).map_err(failed)?;
        for printed in &all {
            let name = format!("{}.json", printed.command.replace(' ', "-"));
            fs::write(folder.join(name), printed.text()).map_err(failed)?;
        }
        output.note(format_args!(
            "wrote {} schemas to {}",
            all.len(),
            folder.display()
        ));
        return Ok(Exit::Done);
    }
    if command.is_empty() {
        let names: Vec<&str> = all.iter().map(|printed| printed.command).collect();
        output.data(names.join("\n"));
        return Ok(Exit::Done);
    }
    let name = command.join(" ");
    match all.iter().find(|printed| printed.command == name) {
        Some(printed) if output.format() == Format::Json => {
            output.data(serde_json::to_string(&printed.schema())?);
        }
        Some(printed) => output.raw(printed.text().as_bytes()),
        None => {
            return Err(Failure::usage(format!("`pgshard {name}` prints no JSON"))
                .hint("`pgshard json-schema` lists the commands that do"));
        }
    }
    Ok(Exit::Done)
}
