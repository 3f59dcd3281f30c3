//! `[hosts.NAME]`: how to reach each host.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use super::rebalance::{HOST_KEYS, read_limits};
use super::router::read_prepare;
use crate::map::{HostLimits, HostName};
use crate::pg::{ConnectOptions, OptionsError, Password, PasswordCommand};
use crate::router::{PrepareMode, Unrouted};
use crate::shard::{Layout, SchemaPrefix, WholeSchema};
use crate::store::Findings;
use crate::store::section::{Entry, Section, similar};

/// One host: a PostgreSQL database that holds shards.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HostConfig {
    /// Its name in the config.
    pub name: HostName,
    /// How to connect, with the source of the password. Paths of files are as absolute as the
    /// config's own path.
    pub connect: ConnectOptions,
    /// The largest number of connections a router opens to it, `1..=HostConfig::POOL_SIZE_MAX`.
    pub pool_size: usize,
    /// How routers connect, if that is by another address, a pooler's.
    pub router_connect: Option<ConnectOptions>,
    /// How routers prepare statements there, if that differs from `[router]`.
    pub prepare: Option<PrepareMode>,
    /// The servers that may answer what only reads, one address each. Empty when the host itself
    /// answers everything.
    pub replicas: Vec<ConnectOptions>,
    /// What `rebalance` gives it.
    pub limits: HostLimits,
    /// How it keeps its shards. At most one host of a cluster is unsharded.
    pub layout: Layout,
    /// What becomes of statements there that name no key, if it is unsharded.
    pub unrouted: Unrouted,
}

impl HostConfig {
    /// The default of `pool_size`.
    pub const POOL_SIZE_DEFAULT: usize = 16;

    /// The largest `pool_size`. With more, a server spends its memory on processes: put PgBouncer
    /// between instead.
    pub const POOL_SIZE_MAX: usize = 1000;
}

/// What could be read of a host.
struct PartialHost<'t> {
    name: &'t str,
    /// How to connect, and where the text has it.
    connect: Option<(ConnectOptions, Range<usize>)>,
    pool_size: Option<usize>,
    router_connect: Option<ConnectOptions>,
    prepare: Option<PrepareMode>,
    replicas: Vec<ConnectOptions>,
    limits: HostLimits,
    layout: Option<Layout>,
    /// Where the text has that it is unsharded.
    unsharded_at: Option<Range<usize>>,
    unrouted: Option<Unrouted>,
}

/// Reads all hosts. Returns those that are complete.
pub(super) fn read(
    section: &Section<'_>,
    folder: &Path,
    prefix: Option<&SchemaPrefix>,
    findings: &mut Findings<'_>,
) -> BTreeMap<HostName, HostConfig> {
    let mut hosts = Vec::new();
    for entry in section.entries() {
        if let Err(error) = HostName::new(entry.name()) {
            findings.add(&entry.key_at(), error.to_string(), None);
        }
        let host = entry
            .section(findings)
            .map(|host| read_host(entry.name(), &host, (folder, prefix), findings));
        hosts.extend(host);
    }
    if section.entries().next().is_none() {
        let hint = "add [hosts.db1] with url = \"postgres://user@address/database\"".to_owned();
        findings.add(section.at(), "there are no hosts", Some(hint));
    }
    report_same_databases(&hosts, findings);
    report_second_unsharded(&hosts, findings);
    let complete = hosts.into_iter().filter_map(|host| {
        let name = HostName::new(host.name).ok()?;
        let config = HostConfig {
            name: name.clone(),
            connect: host.connect?.0,
            pool_size: host.pool_size?,
            router_connect: host.router_connect,
            prepare: host.prepare,
            replicas: host.replicas,
            limits: host.limits,
            layout: host.layout?,
            unrouted: host.unrouted?,
        };
        Some((name, config))
    });
    complete.collect()
}

/// One finding for each host that is the same database as one before it.
fn report_same_databases(hosts: &[PartialHost<'_>], findings: &mut Findings<'_>) {
    for (index, host) in hosts.iter().enumerate() {
        let Some((connect, at)) = &host.connect else {
            continue;
        };
        let same = hosts[..index].iter().find_map(|first| {
            let (first_connect, first_at) = first.connect.as_ref()?;
            Some((
                first.name,
                first_at,
                shared_address(first_connect, connect)?,
            ))
        });
        let Some((first, first_at, address)) = same else {
            continue;
        };
        let (name, database, place) = (
            host.name,
            connect.database(),
            findings.place_text(first_at.start),
        );
        let message = format!(
            "{name:?} is the same database as {first:?} (at {place}): {database} at {address}"
        );
        let hint = "each host must be a database of its own: a shard would be on both".to_owned();
        findings.add_unshown(at, message, Some(hint));
    }
}

/// One finding for each unsharded host but the first.
fn report_second_unsharded(hosts: &[PartialHost<'_>], findings: &mut Findings<'_>) {
    let mut unsharded = hosts
        .iter()
        .filter_map(|host| Some((host.name, host.unsharded_at.clone()?)));
    let Some((first, first_at)) = unsharded.next() else {
        return;
    };
    for (name, at) in unsharded {
        let place = findings.place_text(first_at.start);
        let message = format!("{name:?} is unsharded, and so is {first:?} (at {place})");
        let hint = "a cluster has one database from before the shards: leave layout out of the \
            others"
            .to_owned();
        findings.add(&at, message, Some(hint));
    }
}

fn read_host<'t>(
    name: &'t str,
    section: &Section<'_>,
    (folder, prefix): (&Path, Option<&SchemaPrefix>),
    findings: &mut Findings<'_>,
) -> PartialHost<'t> {
    let own = [
        "url",
        "password_env",
        "password_file",
        "password_command",
        "pool_size",
        "router_url",
        "prepare",
        "reads",
        "replica_url",
        "layout",
        "schema",
        "unrouted",
    ];
    section.only(&[own.as_slice(), &HOST_KEYS].concat(), findings);
    let remedy = "add url = \"postgres://user@address:5432/database\"";
    let url = section.need("url", remedy, findings);
    let connect = url.and_then(|url| Some((read_url(&url, findings)?, url.at())));
    let password = read_password(section, findings);
    let complete = |connect: ConnectOptions| {
        let connect = match &password {
            Some(password) => connect.with_password(password.clone()),
            None => connect,
        };
        connect.with_files_below(folder)
    };
    let connect = connect.map(|(connect, at)| (complete(connect), at));
    let router_connect = section
        .get("router_url")
        .and_then(|url| read_url(&url, findings))
        .map(complete);
    let prepare = section
        .get("prepare")
        .and_then(|entry| read_prepare(&entry, findings));
    let replica_connect = section
        .get("replica_url")
        .and_then(|url| read_url(&url, findings))
        .map(complete);
    let primary = router_connect
        .as_ref()
        .or(connect.as_ref().map(|(connect, _)| connect));
    let replicas = read_replicas(section, replica_connect, primary, findings);
    let pool_size = match section.get("pool_size") {
        None => Some(HostConfig::POOL_SIZE_DEFAULT),
        Some(entry) => entry.integer(findings).and_then(|number| {
            let size = usize::try_from(number)
                .ok()
                .filter(|size| (1..=HostConfig::POOL_SIZE_MAX).contains(size));
            if size.is_none() {
                let hint = format!("the default is {}", HostConfig::POOL_SIZE_DEFAULT);
                let max = HostConfig::POOL_SIZE_MAX;
                findings.add(
                    &entry.at(),
                    format!("pool_size must be 1 to {max}, not {number}"),
                    Some(hint),
                );
            }
            size
        }),
    };
    let limits = read_limits(section, findings);
    let unsharded_at = section
        .get("layout")
        .filter(|entry| entry.as_str() == Some("unsharded"))
        .map(|entry| entry.at());
    let layout = read_layout(section, prefix, findings);
    let unrouted = read_unrouted(section, unsharded_at.is_some(), findings);
    PartialHost {
        name,
        connect,
        pool_size,
        router_connect,
        prepare,
        replicas,
        limits,
        layout,
        unsharded_at,
        unrouted,
    }
}

/// How the host keeps its shards, by `layout` and `schema`.
fn read_layout(
    section: &Section<'_>,
    prefix: Option<&SchemaPrefix>,
    findings: &mut Findings<'_>,
) -> Option<Layout> {
    let kind = match section.get("layout") {
        None => "sharded",
        Some(entry) => match entry.string(findings)? {
            kind @ ("sharded" | "unsharded") => kind,
            other => {
                let hint = similar(other, ["sharded", "unsharded"]).unwrap_or_else(|| {
                    "\"unsharded\" serves all shards from one schema of ordinary tables".to_owned()
                });
                let message = "layout is \"sharded\" or \"unsharded\"";
                findings.add(&entry.at(), message, Some(hint));
                return None;
            }
        },
    };
    if kind == "sharded" {
        if let Some(entry) = section.get("schema") {
            let hint = "leave it out; of a database from before the shards: layout = \"unsharded\"";
            let message = "schema is for an unsharded host: each shard has a schema of its own";
            findings.add(&entry.key_at(), message, Some(hint.to_owned()));
        }
        return Some(Layout::Sharded);
    }
    let remedy = "add schema = \"app\", the schema with the application's tables";
    let entry = section.need("schema", remedy, findings)?;
    let fallback = SchemaPrefix::default();
    match WholeSchema::new(entry.string(findings)?, prefix.unwrap_or(&fallback)) {
        Ok(schema) => Some(Layout::Unsharded(schema)),
        Err(error) => {
            let hint = "name the schema that has the application's tables, and nothing else";
            findings.add(&entry.at(), error.to_string(), Some(hint.to_owned()));
            None
        }
    }
}

/// What becomes of statements without a key, by `unrouted`.
fn read_unrouted(
    section: &Section<'_>,
    is_unsharded: bool,
    findings: &mut Findings<'_>,
) -> Option<Unrouted> {
    let Some(entry) = section.get("unrouted") else {
        return Some(Unrouted::Refuse);
    };
    if !is_unsharded {
        let hint = "leave it out: on shards, statements without a key are always refused";
        let message = "unrouted is for an unsharded host";
        findings.add(&entry.key_at(), message, Some(hint.to_owned()));
        return None;
    }
    match entry.string(findings)? {
        "refuse" => Some(Unrouted::Refuse),
        "log" => Some(Unrouted::Log),
        other => {
            let hint = similar(other, ["refuse", "log"]).unwrap_or_else(|| {
                "\"log\" runs them and counts them by their place in the code".to_owned()
            });
            findings.add(&entry.at(), "unrouted is \"refuse\" or \"log\"", Some(hint));
            None
        }
    }
}

/// The servers that may answer what only reads: by `reads` and `replica_url`, or the addresses of
/// the host itself.
fn read_replicas(
    section: &Section<'_>,
    replica_connect: Option<ConnectOptions>,
    primary: Option<&ConnectOptions>,
    findings: &mut Findings<'_>,
) -> Vec<ConnectOptions> {
    let addresses = |connect: Option<&ConnectOptions>| {
        connect
            .map(ConnectOptions::each_address)
            .unwrap_or_default()
    };
    let Some(entry) = section.get("reads") else {
        return addresses(replica_connect.as_ref());
    };
    match entry.string(findings) {
        Some("primary") | None => Vec::new(),
        Some("replica") => {
            let servers = addresses(replica_connect.as_ref().or(primary));
            if section.get("replica_url").is_none() && servers.len() == 1 {
                let hint = "add replica_url, or name the standbys in the url: \
                            postgres://app@a,b/app?target_session_attrs=primary";
                findings.add(
                    &entry.at(),
                    "reads from replicas, and no replica is named",
                    Some(hint.to_owned()),
                );
            }
            servers
        }
        Some(text) => {
            let hint = similar(text, ["primary", "replica"]);
            let hint = hint.unwrap_or_else(|| {
                "\"replica\" lets standbys answer what the program marks as read".to_owned()
            });
            findings.add(
                &entry.at(),
                "reads is \"primary\" or \"replica\"",
                Some(hint),
            );
            Vec::new()
        }
    }
}

/// The source of a password, where the section names one.
pub(super) fn read_password(
    section: &Section<'_>,
    findings: &mut Findings<'_>,
) -> Option<Password> {
    let given = |key: &str, findings: &mut Findings<'_>| {
        let entry = section.get(key)?;
        let text = entry.string(findings)?;
        if text.is_empty() {
            findings.add_unshown(
                &entry.at(),
                format!("{key} is empty"),
                Some("leave it out".to_owned()),
            );
        }
        Some((entry, text))
    };
    let variable = given("password_env", findings);
    let file = given("password_file", findings);
    let command = section.get("password_command");
    let args = command
        .as_ref()
        .and_then(|entry| read_command(entry, findings));
    let mut sources: Vec<Entry<'_>> = [&variable, &file]
        .into_iter()
        .flatten()
        .map(|(entry, _)| entry.clone())
        .chain(command)
        .collect();
    sources.sort_by_key(|entry| entry.at().start);
    if let [first, second, ..] = &sources[..] {
        let place = findings.place_text(first.key_at().start);
        let message = format!("{} beside {} (at {place})", second.name(), first.name());
        let hint = "a password has one source: take out one of the two".to_owned();
        findings.add_unshown(&second.key_at(), message, Some(hint));
        return None;
    }
    match (variable, file, args) {
        (Some((_, name)), ..) => Some(Password::Env(name.to_owned())),
        (_, Some((_, path)), _) => Some(Password::File(path.into())),
        (.., Some(args)) => Some(Password::Command(PasswordCommand::new(args))),
        (None, None, None) => None,
    }
}

/// A program and its arguments. They are not shown: one may be a secret.
fn read_command(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<Vec<String>> {
    let args: Option<Vec<String>> = entry.as_array().and_then(|list| {
        list.iter()
            .map(|one| one.get_ref().as_str().map(str::to_owned))
            .collect()
    });
    let args = args.filter(|args| args.first().is_some_and(|program| !program.is_empty()));
    if args.is_none() {
        let message = "password_command must be a list of strings, the program first".to_owned();
        let hint = "write password_command = [\"program\", \"argument\"]; a shell runs only if it \
            is the program: [\"sh\", \"-c\", \"…\"]";
        findings.add_unshown(&entry.at(), message, Some(hint.to_owned()));
    }
    args
}

/// The keys of a connection string that a misspelt key may have meant.
const URL_KEYS: [&str; 30] = [
    "application_name",
    "channel_binding",
    "connect_timeout",
    "dbname",
    "gssencmode",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "load_balance_hosts",
    "options",
    "passfile",
    "password",
    "port",
    "require_auth",
    "service",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
    "sslcert",
    "sslcertmode",
    "sslcrl",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "target_session_attrs",
    "tcp_user_timeout",
    "user",
];

/// Reads the connection string. It may hold a password, even in a part that the parser takes for
/// something else when it is mistyped. So no part of it is ever shown except names that we know
/// anyway.
pub(super) fn read_url(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<ConnectOptions> {
    let text = entry.string(findings)?;
    let error = match ConnectOptions::parse(text) {
        Ok(connect) => return Some(connect),
        Err(error) => error,
    };
    let form = || {
        "write postgres://user@address:5432/database or \"host=address dbname=database user=user\""
            .to_owned()
    };
    let (message, hint) = match error {
        OptionsError::Missing { key: "host" } => ("the url names no host".to_owned(), form()),
        OptionsError::Missing { key: "user" } => ("the url names no user".to_owned(), form()),
        OptionsError::Missing { .. } => ("the url names no database".to_owned(), form()),
        OptionsError::AtInHost => (
            "the host of the url holds an @".to_owned(),
            "write %40 for an @ in user or password".to_owned(),
        ),
        OptionsError::SslMode { mode } => {
            let modes = ["disable", "prefer", "require", "verify-ca", "verify-full"];
            let hint =
                similar(&mode, modes).unwrap_or_else(|| format!("known are {}", modes.join(", ")));
            ("the url has an unknown sslmode".to_owned(), hint)
        }
        OptionsError::TargetSessionAttrs { value } => {
            let known = ["any", "read-write", "primary", "read-only", "standby"];
            let hint =
                similar(&value, known).unwrap_or_else(|| format!("known are {}", known.join(", ")));
            (
                "the url has an unknown target_session_attrs".to_owned(),
                hint,
            )
        }
        OptionsError::NoSuchService { service, .. } => {
            let hint = "it is looked for in the file PGSERVICEFILE names, ~/.pg_service.conf, and \
                pg_service.conf in PGSYSCONFDIR";
            (format!("there is no service {service:?}"), hint.to_owned())
        }
        error @ OptionsError::ServiceFile { .. } => (
            error.to_string(),
            "mend that file, or write the keys into the url".to_owned(),
        ),
        error @ OptionsError::WeakWithSystem { .. } => (
            error.to_string(),
            "write sslmode=verify-full, or name the file of your own authority".to_owned(),
        ),
        error @ OptionsError::Variable { .. } => (
            error.to_string(),
            "correct or unset it, or write the key into the url".to_owned(),
        ),
        OptionsError::UnknownKey { key } => (
            "the url has an option that is not known".to_owned(),
            similar(&key, URL_KEYS).unwrap_or_else(form),
        ),
        // The message contains the key alone, never the value.
        OptionsError::WrongValue { key, reason } => {
            (format!("the url has a wrong value for {key}"), reason)
        }
        OptionsError::Unsupported { key, why } => (
            format!("the url asks by {key} for something that pgshard does not have"),
            why,
        ),
        error @ OptionsError::WeakWithDirect => {
            (error.to_string(), "write sslmode=verify-full".to_owned())
        }
        OptionsError::Parse { reason } => (
            "the url cannot be read".to_owned(),
            format!("{reason}; {}", form()),
        ),
    };
    findings.add_unshown(&entry.at(), message, Some(hint));
    None
}

/// An address at which both are the same database, if there is one.
fn shared_address(a: &ConnectOptions, b: &ConnectOptions) -> Option<String> {
    let same = |address: &String| {
        let plain = |address: &str| match address.to_ascii_lowercase().rsplit_once(':') {
            Some(("localhost", port)) => format!("127.0.0.1:{port}"),
            _ => address.to_ascii_lowercase(),
        };
        b.addresses()
            .iter()
            .any(|other| plain(other) == plain(address))
    };
    if a.database() != b.database() {
        None
    } else {
        a.addresses().into_iter().find(same)
    }
}
