//! `pgshard host add`.

use std::collections::BTreeSet;
use std::path::Path;

use pgshard::config::{Config, HostConfig, NewHost};
use pgshard::map::HostName;
use pgshard::pg::cause::chain;
use pgshard::pg::{ConnectError, ConnectOptions, Password};
use pgshard::schema::{self, DatabaseEnvironment, HostFault, bootstrap};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::bootstrap::hosts;
use super::{edit_failure, version};
use crate::args::HostAdd;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

#[derive(JsonSchema, Serialize)]
pub(crate) struct AdditionReport<'a> {
    host: &'a str,
    version: String,
    /// Whether its control schema was made now.
    bootstrapped: bool,
    /// What shards of other hosts may need and it does not have.
    missing: Vec<String>,
}

/// Checks a host, bootstraps it, and writes it into the config.
pub(crate) async fn add(
    args: HostAdd,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let host = new_host(args)?;
    let there = config.hosts.get(&host.name);
    let wanted = match there {
        // The host was added before: it is checked and bootstrapped again.
        Some(there) if is_same(there, &host) => config.clone(),
        _ => config.with_host(&host).map_err(edit_failure)?,
    };
    let added = wanted
        .hosts
        .get(&host.name)
        .ok_or_else(|| Failure::usage("the config does not take the host"))?;

    let map = context::map(&config).await?;
    let missing = check(added, &config, output).await?;
    let (server, bootstrapped) = install(&wanted, &host.name).await?;
    if there.is_none() {
        introduce(&wanted, &host.name).await;
        config.add_host(&host).map_err(edit_failure)?;
    }
    for what in &missing {
        output.warning(format_args!(
            "{what}; shards that need it are refused by moves until it is there"
        ));
    }
    let (name, version) = (host.name.as_str(), version(server));
    match output.format() {
        Format::Json => output.object(AdditionReport {
            host: name,
            version,
            bootstrapped,
            missing,
        }),
        Format::Text => output.data(format_args!(
            "{name} (PostgreSQL {version}) is in {}",
            config.path.display()
        )),
    }
    if map.shards_on(&host.name).next().is_none() {
        output.hint("it has no shards yet: `pgshard rebalance --plan` shows what it would get");
    }
    Ok(Exit::Done)
}

fn new_host(args: HostAdd) -> Result<NewHost, Failure> {
    let name = HostName::new(&args.name).map_err(Failure::usage)?;
    context::open_url(
        &args.url,
        "--password-env DB3_PASSWORD, --password-file FILE, or ~/.pgpass",
    )?;
    Ok(NewHost {
        name,
        url: args.url,
        password_env: args.password_env,
        password_file: args.password_file,
    })
}

fn is_same(there: &HostConfig, host: &NewHost) -> bool {
    ConnectOptions::parse(&host.url)
        .is_ok_and(|connect| connect.to_string() == there.connect.to_string())
}

/// Compares the new host with those in use. Returns what it lacks: moves would refuse some shards
/// for that.
///
/// # Errors
/// With [`Exit::Refused`] and every reason why no shard could live there.
async fn check(
    host: &HostConfig,
    config: &Config,
    output: &Output,
) -> Result<Vec<String>, Failure> {
    let new = output
        .waiting("reading the host", read_environment(host))
        .await?;
    let mut refusals = Vec::new();
    let mut missing = BTreeSet::new();
    if !new.can_decode {
        let text = format!(
            "{}: wal_level is {}: moves from it that keep shards open need logical (a restart of \
                the server)",
            host.name, new.wal_level
        );
        output.warning(text);
    }
    for other in config
        .hosts
        .values()
        .filter(|other| other.name != host.name)
    {
        let there = match output
            .waiting(other.name.as_str(), read_environment(other))
            .await
        {
            Ok(there) => there,
            Err(failure) => {
                let words: Vec<String> = failure.chains().flatten().collect();
                output.warning(format_args!(
                    "{}; what its shards need is not known",
                    words.join(": ")
                ));
                continue;
            }
        };
        if there.encoding != new.encoding {
            let (ours, theirs) = (&new.encoding, &there.encoding);
            refusals.push(format!(
                "{} has encoding {ours}, {} has {theirs}\n  remedy: create the database again with \
                    ENCODING '{theirs}'",
                host.name, other.name
            ));
        }
        if there.collation != new.collation {
            let (ours, theirs) = (&new.collation, &there.collation);
            refusals.push(format!(
                "{} has collation {ours}, {} has {theirs}\n  remedy: create the database again \
                    with that LC_COLLATE and LC_CTYPE",
                host.name, other.name
            ));
        }
        for role in there.granted.difference(&new.roles) {
            missing.insert(format!(
                "{} has no role {role}, to which shards of {} grant: CREATE ROLE {}",
                host.name,
                other.name,
                pgshard::pg::quote_ident(role)
            ));
        }
        for extension in there.extensions.difference(&new.extensions) {
            missing.insert(format!(
                "{} has no extension {extension}, {} does: CREATE EXTENSION {}",
                host.name,
                other.name,
                pgshard::pg::quote_ident(extension)
            ));
        }
    }
    if refusals.is_empty() {
        Ok(missing.into_iter().collect())
    } else {
        Err(Failure::several(Exit::Refused, refusals))
    }
}

async fn read_environment(host: &HostConfig) -> Result<DatabaseEnvironment, Failure> {
    let failed = |error: &(dyn std::error::Error + 'static)| {
        Failure::new(
            Exit::Failed,
            format!("host {}: {}", host.name, chain(error)),
        )
    };
    let connection = host
        .connect
        .connect("pgshard host")
        .await
        .map_err(|error| failed(&error).hint(to_connect(host, &error)))?;
    schema::database_environment(connection.client())
        .await
        .map_err(|error| failed(&error))
}

/// What to do about a host that is not connected to. Its password may be in none of the standard
/// places, and a flag of this command names the file.
fn to_connect(host: &HostConfig, error: &ConnectError) -> String {
    let remedy = error.remedy();
    match host.connect.password() {
        Password::Standard => format!(
            "{remedy}; if it asks for a password, say where that is: --password-env VARIABLE, \
             --password-file FILE, PGPASSWORD or ~/.pgpass"
        ),
        _ => remedy.to_owned(),
    }
}

/// Has the hosts record which server the new one is, even if they remember another by its name. A
/// later `bootstrap` writes what cannot be written now.
async fn introduce(config: &Config, name: &HostName) {
    let hosts = context::all_hosts(config);
    let identities = schema::identities(hosts.clone()).await;
    if let Ok(Some(schema::Accepted {
        former: former @ Some(_),
        record,
        ..
    })) = identities.accepted(name)
        && let Err(error) = schema::accept(&hosts, name, former, record).await
    {
        tracing::warn!(host = %name, error = chain(&error), "which server it is was not recorded");
    }
    context::record(&identities, config).await;
}

/// Creates the host's control schema, with the cluster's identity. Returns the server's version,
/// and whether anything was created.
async fn install(config: &Config, name: &HostName) -> Result<(i32, bool), Failure> {
    let hosts = hosts(config, &context::map(config).await?);
    let request = bootstrap::Request::new(
        context::cluster(config),
        hosts,
        context::migrations(config)?,
    )
    .only(BTreeSet::from([name.clone()]));
    let report = schema::bootstrap(&request, &|_| ()).await;
    let made = report.hosts.get(name);
    match made.and_then(|made| made.fault.as_ref()) {
        None => {}
        Some(HostFault::Refused(refusals)) => {
            let each = refusals
                .iter()
                .map(|refusal| format!("{name}: {refusal}\n  remedy: {}", refusal.remedy()));
            return Err(Failure::several(Exit::Refused, each));
        }
        Some(fault) => {
            return Err(Failure::new(Exit::Failed, format!("{name}: {fault}")).hint(fault.remedy()));
        }
    }
    let host = config
        .hosts
        .get(name)
        .map(|host| (host.name.clone(), host.connect.clone()));
    let facts = schema::survey(host).await.remove(name).and_then(Result::ok);
    let version = facts.map_or(0, |facts| facts.server.version);
    Ok((version, made.is_some_and(|made| !made.control.is_empty())))
}
