//! `pgshard tickets`: numbers for rows that have no shard yet.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use pgshard::config::Config;
use pgshard::idgen::tickets::{self, Create, Options, Role, TicketHost, TicketName};
use pgshard::idgen::{BATCH_MAX, IdSource, Tickets};
use pgshard::map::HostName;
use pgshard::pg::cause::causes;
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use crate::args::TicketsCreate;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output};

/// Shown while hosts are queried that may not answer.
const ASKING: &str = "asking the hosts";

#[derive(JsonSchema, Serialize)]
pub(crate) struct CreatedHost {
    residue: u32,
    stride: u32,
    run: u32,
    /// The largest ticket; `null` where the series has no maximum.
    max: Option<String>,
    state: &'static str,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct CreatedSeries<'a> {
    name: &'a str,
    hosts: BTreeMap<String, CreatedHost>,
}

/// Makes hosts give tickets.
pub(crate) async fn create(
    args: TicketsCreate,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let hosts = match args.hosts.is_empty() {
        // A new maximum for a series that exists makes no further host give it.
        true if args.max.is_some() => output.waiting(ASKING, giving(&config, &args.name)).await,
        true => BTreeSet::new(),
        false => context::hosts(&config, &args.hosts)?,
    };
    let hosts = match hosts.is_empty() {
        true => config.hosts.keys().cloned().collect(),
        false => hosts,
    };
    let replace = args
        .replace
        .as_deref()
        .map(HostName::new)
        .transpose()
        .map_err(Failure::usage)?;
    let lost = args
        .lost
        .iter()
        .map(|name| HostName::new(name))
        .collect::<Result<_, _>>()
        .map_err(Failure::usage)?;
    let (stride, run, start, max) = (args.stride, args.run, args.start, args.max);
    let request = Create {
        name: args.name,
        hosts,
        stride,
        run,
        start,
        max,
        replace,
        lost,
    };
    let all = all_hosts(&config);
    let created = output.waiting(ASKING, tickets::create(&all, &request, Uuid::new_v4()));
    let created = created.await.map_err(failure)?;
    let hosts: BTreeMap<String, CreatedHost> = created
        .iter()
        .map(|host| {
            let state = match host.role {
                Role::Created => "created",
                Role::Raised => "raised",
                Role::Unchanged => "unchanged",
            };
            (
                host.host.to_string(),
                CreatedHost {
                    residue: host.residue,
                    stride: host.layout.stride,
                    run: host.layout.run,
                    max: host.max.map(|max| max.to_string()),
                    state,
                },
            )
        })
        .collect();
    match output.format() {
        Format::Json => output.object(CreatedSeries {
            name: request.name.as_str(),
            hosts,
        }),
        Format::Text => {
            let columns = [
                ("host", Align::Left),
                ("residue", Align::Right),
                ("stride", Align::Right),
                ("max", Align::Right),
                ("state", Align::Left),
            ];
            let row = |(host, made): (&String, &CreatedHost)| {
                [
                    host.clone(),
                    made.residue.to_string(),
                    made.stride.to_string(),
                    dash(made.max.clone()),
                    made.state.to_owned(),
                ]
            };
            output.table(&columns, hosts.iter().map(row));
        }
    }
    Ok(Exit::Done)
}

/// The hosts that give tickets of this name, of those that answer.
async fn giving(config: &Config, name: &TicketName) -> BTreeSet<HostName> {
    let said = tickets::status(&all_hosts(config)).await;
    said.into_iter()
        .filter(|host| host.names.as_ref().is_ok_and(|names| gives(names, name)))
        .map(|host| host.host)
        .collect()
}

/// Whether a host gives tickets of this name, by its rows.
fn gives(names: &[tickets::NameStatus], name: &TicketName) -> bool {
    names
        .iter()
        .any(|status| status.name == *name && status.residue.is_some())
}

fn dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

fn all_hosts(config: &Config) -> Vec<TicketHost> {
    let host = |host: &pgshard::config::HostConfig| TicketHost {
        name: host.name.clone(),
        connect: host.connect.clone(),
    };
    config.hosts.values().map(host).collect()
}

fn failure(error: tickets::Error) -> Failure {
    match error {
        tickets::Error::Refused(refusals) => Failure::several(Exit::Refused, refusals),
        error @ tickets::Error::Connect { .. } => Failure::from(error).hint(
            "all hosts must answer, so that no residue is given twice; take one that is lost \
                out of the config",
        ),
        error => error.into(),
    }
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Status {
    hosts: BTreeMap<String, HostTickets>,
}

#[derive(JsonSchema, Serialize)]
#[serde(untagged)]
pub(crate) enum HostTickets {
    Names { names: BTreeMap<String, Name> },
    Error { error: String },
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Name {
    stride: u32,
    run: u32,
    /// `null` where the host gives none of this name.
    residue: Option<u32>,
    last: Option<String>,
    /// The largest ticket; `null` where the series has no maximum.
    max: Option<String>,
    /// How many tickets the host can still give; `null` where the series has no maximum.
    left: Option<u64>,
    claims: BTreeMap<u32, String>,
}

/// The state of the tickets on every host.
pub(crate) async fn status(config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let hosts = all_hosts(&config);
    let said = output.waiting(ASKING, tickets::status(&hosts)).await;
    let mut exit = Exit::Done;
    let (mut rows, mut hosts) = (Vec::new(), BTreeMap::new());
    for host in said {
        let names = match host.names {
            Ok(names) => names,
            Err(error) => {
                exit = Exit::Failed;
                let words = causes(&error);
                output.error(&words);
                hosts.insert(
                    host.host.to_string(),
                    HostTickets::Error {
                        error: words.join(": "),
                    },
                );
                continue;
            }
        };
        let mut says = BTreeMap::new();
        for name in names {
            let left = name.used().map(|used| used.left);
            rows.push([
                name.name.to_string(),
                host.host.to_string(),
                dash(name.residue.map(|residue| residue.to_string())),
                name.layout.stride.to_string(),
                dash(name.last.map(|last| last.to_string())),
                dash(name.max.map(|max| max.to_string())),
                dash(left.map(|left| left.to_string())),
            ]);
            let last = name.last.map(|last| last.to_string());
            let value = Name {
                stride: name.layout.stride,
                run: name.layout.run,
                residue: name.residue,
                last,
                max: name.max.map(|max| max.to_string()),
                left,
                claims: name.claims,
            };
            says.insert(name.name.to_string(), value);
        }
        hosts.insert(host.host.to_string(), HostTickets::Names { names: says });
    }
    match output.format() {
        Format::Json => output.object(Status { hosts }),
        Format::Text => {
            rows.sort();
            let columns = [
                ("name", Align::Left),
                ("host", Align::Left),
                ("residue", Align::Right),
                ("stride", Align::Right),
                ("last", Align::Right),
                ("max", Align::Right),
                ("left", Align::Right),
            ];
            output.table(&columns, rows);
        }
    }
    Ok(exit)
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Taken {
    name: String,
    tickets: Vec<String>,
}

/// Takes tickets from the hosts that give this name.
pub(crate) async fn next(
    name: TicketName,
    count: usize,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    if count > BATCH_MAX {
        return Err(Failure::usage(format!(
            "at most {BATCH_MAX} tickets are taken at once"
        )));
    }
    let config = context::config(config)?;
    // One that does not answer may give them, so it is kept.
    let mut giving = BTreeSet::new();
    let hosts = all_hosts(&config);
    for host in output.waiting(ASKING, tickets::status(&hosts)).await {
        if host.names.map_or(true, |names| gives(&names, &name)) {
            giving.insert(host.host);
        }
    }
    if giving.is_empty() {
        return Err(
            Failure::new(Exit::Failed, format!("no host has tickets {name}"))
                .hint(format!("pgshard tickets create {name}")),
        );
    }
    let hosts = all_hosts(&config)
        .into_iter()
        .filter(|host| giving.contains(&host.name))
        .collect();
    let tickets = Tickets::new(Options::new(name.clone(), hosts).block(1));
    let taken = output.waiting(ASKING, tickets.next_many(count)).await?;
    let tickets: Vec<String> = taken.iter().map(ToString::to_string).collect();
    match output.format() {
        Format::Json => output.object(Taken {
            name: name.to_string(),
            tickets,
        }),
        Format::Text => output.data(tickets.join("\n")),
    }
    Ok(Exit::Done)
}
