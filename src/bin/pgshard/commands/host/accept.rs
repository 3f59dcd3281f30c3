//! `pgshard host accept`.

use std::path::Path;

use pgshard::pg::Record;
use pgshard::pg::cause::chain;
use pgshard::schema;
use schemars::JsonSchema;
use serde::Serialize;

use crate::confirm::{Consent, confirm};
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

#[derive(JsonSchema, Serialize)]
pub(crate) struct Accepted<'a> {
    host: &'a str,
    generation: u32,
    system_identifier: String,
    timeline: u32,
    /// Hosts that could not be told.
    untold: Vec<String>,
}

/// Takes the server that answers under a host's name for the host from now on.
pub(crate) async fn accept(
    name: &str,
    consent: Consent,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let host = context::host(&config, name)?;
    let hosts = context::all_hosts(&config);
    let itself = hosts.iter().filter(|(name, _)| *name == host).cloned();
    context::of_this_cluster(&config, &schema::survey(itself.collect::<Vec<_>>()).await)?;
    let identities = schema::identities(hosts.clone()).await;
    let accepted = identities
        .accepted(&host)
        .map_err(|error| Failure::new(Exit::Refused, error))?;
    let Some(schema::Accepted { former, record, .. }) = accepted else {
        context::record(&identities, &config).await;
        output.note(format_args!(
            "nothing to do: the server that answers is {host} already"
        ));
        return Ok(Exit::Done);
    };
    let now = said(record);
    let question = match former {
        None => format!("nothing is recorded of {host}: take the server with {now} for it?"),
        Some(former) => format!(
            "{host} was the server with {}: take the one with {now} for it?",
            said(former)
        ),
    };
    if !confirm(&question, consent, output).await? {
        return Err(Failure::new(Exit::Failed, "nothing was changed"));
    }
    let untold = schema::accept(&hosts, &host, former, record).await?;
    for error in &untold {
        let error = chain(error);
        output.error_with_remedy(
            error,
            &format!("when it answers, run `pgshard host accept {host}` again"),
        );
    }
    match output.format() {
        Format::Json => output.object(Accepted {
            host: host.as_str(),
            generation: record.generation,
            system_identifier: record.system.to_string(),
            timeline: record.timeline,
            untold: untold.iter().map(|error| error.host.to_string()).collect(),
        }),
        Format::Text => output.data(format_args!("{host} is the server with {now}")),
    }
    Ok(if untold.is_empty() {
        Exit::Done
    } else {
        Exit::Partly
    })
}

fn said(record: Record) -> String {
    format!(
        "system identifier {} and timeline {}",
        record.system, record.timeline
    )
}
