//! `pgshard host accept`.

use std::path::Path;

use pgshard::map::HostName;
use pgshard::pg::cause::chain;
use pgshard::pg::{ConnectOptions, Record};
use pgshard::schema::{self, AcceptError, Identities, RecordError};
use schemars::JsonSchema;
use serde::Serialize;

use crate::confirm::{Consent, confirm};
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

#[derive(JsonSchema, Serialize)]
pub(crate) struct AcceptanceReport<'a> {
    host: &'a str,
    generation: u32,
    system_identifier: String,
    /// 0: the server has not answered yet.
    timeline: u32,
    /// Hosts that could not be told.
    untold: Vec<String>,
}

/// Takes the server that answers under a host's name for the host from now on. With a system
/// identifier, only that one, also before it answers.
pub(crate) async fn accept(
    name: &str,
    system: Option<i64>,
    consent: Consent,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let host = context::host(&config, name)?;
    let hosts = context::all_hosts(&config);
    let itself = hosts.iter().filter(|(name, _)| *name == host).cloned();
    context::of_this_cluster(&config, &schema::survey(itself.collect::<Vec<_>>()).await)?;
    let asked = schema::identities(hosts.clone());
    let identities = output.waiting("reading the hosts", asked).await;
    let accepted = match (identities.accepted(&host), system) {
        (Ok(Some(accepted)), Some(system)) if accepted.record.system != system => {
            let other = accepted.record.system;
            return Err(match accepted.former {
                Some(_) => Failure::new(
                    Exit::Refused,
                    format!("the server that answers as {host} has system identifier {other}"),
                ),
                None => Failure::new(Exit::Refused, format!("nothing is recorded of {host}"))
                    .hint("run `pgshard bootstrap` first, which records its server"),
            });
        }
        (Ok(None) | Err(AcceptError::NoPrimary { .. }), Some(system))
            if identities.now(&host).is_none_or(|now| now.system != system)
                || identities.awaited(&host).is_some() =>
        {
            return in_advance(&host, system, &identities, &hosts, consent, output).await;
        }
        (accepted, _) => accepted.map_err(|error| Failure::new(Exit::Refused, error))?,
    };
    let Some(schema::Accepted { former, record, .. }) = accepted else {
        context::record(&identities, &config).await;
        output.note(format_args!(
            "nothing to do: the server that answers is {host} already"
        ));
        return Ok(Exit::Done);
    };
    let now = describe(record);
    let question = match former {
        None => format!("nothing is recorded of {host}: take the server with {now} for it?"),
        Some(former) => format!(
            "{host} was the server with {}: take the one with {now} for it?",
            describe(former)
        ),
    };
    if !confirm(&question, consent, output).await? {
        return Err(Failure::new(Exit::Failed, "nothing was changed"));
    }
    let untold = schema::accept(&hosts, &host, former, record).await?;
    let again = format!("pgshard host accept {host}");
    let said = format!("{host} is the server with {now}");
    Ok(report(&host, record, &untold, (&again, &said), output))
}

/// Accepts a server that does not answer yet.
async fn in_advance(
    host: &HostName,
    system: i64,
    identities: &Identities,
    hosts: &[(HostName, ConnectOptions)],
    consent: Consent,
    output: &Output,
) -> Result<Exit, Failure> {
    let known = identities.known(host);
    let Some(known) = known else {
        let refusal = schema::AwaitError::Unknown { host: host.clone() };
        return Err(Failure::new(Exit::Refused, refusal));
    };
    let now = describe(known);
    let (question, said) = match system == known.system {
        true => (
            format!("{host} is the server with {now}: accept no other in its place?"),
            format!("{host} is the server with {now}, and no other may take its place"),
        ),
        false => (
            format!(
                "{host} is the server with {now}: may one with system identifier {system} take \
                    its place, once it answers there and takes writes?"
            ),
            format!(
                "the server with system identifier {system} may take the place of {host}, the one \
                    with {now}"
            ),
        ),
    };
    if !confirm(&question, consent, output).await? {
        return Err(Failure::new(Exit::Failed, "nothing was changed"));
    }
    let (record, untold) = schema::accept_in_advance(hosts, identities, host, system).await?;
    let again = format!("pgshard host accept {host} --system {system}");
    Ok(report(host, record, &untold, (&again, &said), output))
}

/// Prints what was recorded, and where it could not be.
fn report(
    host: &HostName,
    record: Record,
    untold: &[RecordError],
    (again, said): (&str, &str),
    output: &Output,
) -> Exit {
    for error in untold {
        let remedy = format!("when it answers, run `{again}` again");
        output.error_with_remedy(chain(error), &remedy);
    }
    match output.format() {
        Format::Json => output.object(AcceptanceReport {
            host: host.as_str(),
            generation: record.generation,
            system_identifier: record.system.to_string(),
            timeline: record.timeline,
            untold: untold.iter().map(|error| error.host.to_string()).collect(),
        }),
        Format::Text => output.data(format_args!("{said}")),
    }
    match untold.is_empty() {
        true => Exit::Done,
        false => Exit::Partly,
    }
}

fn describe(record: Record) -> String {
    format!(
        "system identifier {} and timeline {}",
        record.system, record.timeline
    )
}
