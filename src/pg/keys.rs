//! What each key of a connection string means, and where keys come from: the text, a service, the
//! environment.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::config::{
    ChannelBinding, LoadBalanceHosts, SslNegotiation, TargetSessionAttrs,
};

use super::conninfo;
use super::options_error::{OptionsError, word};
use super::require_auth::RequireAuth;
use super::service;
use super::tls::TlsOptions;

/// The environment variables that replace keys about how far a server is trusted, as in libpq. None
/// of those that select the server: the config names it, and it is the same one in every process.
const ENVIRONMENT: [(&str, &str); 13] = [
    ("channel_binding", "PGCHANNELBINDING"),
    ("gssencmode", "PGGSSENCMODE"),
    ("require_auth", "PGREQUIREAUTH"),
    ("requirepeer", "PGREQUIREPEER"),
    ("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION"),
    ("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION"),
    ("sslcert", "PGSSLCERT"),
    ("sslcertmode", "PGSSLCERTMODE"),
    ("sslcrl", "PGSSLCRL"),
    ("sslcrldir", "PGSSLCRLDIR"),
    ("sslkey", "PGSSLKEY"),
    ("sslmode", "PGSSLMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
];

/// Where a key was found.
enum Source {
    Text,
    Service {
        file: PathBuf,
        name: String,
        line: usize,
    },
    Variable(&'static str),
}

type Found = BTreeMap<String, (String, Source)>;

/// A connection string, understood.
pub(super) struct Settings {
    /// The server's names and addresses, and what is sent to it first.
    pub(super) config: tokio_postgres::Config,
    pub(super) tls: TlsOptions,
    /// `sslmode` as given.
    pub(super) mode: Option<String>,
    pub(super) passfile: Option<PathBuf>,
    pub(super) require_auth: Option<RequireAuth>,
}

/// Reads a connection string. What it leaves out is taken from the service that it names, and then,
/// for keys about trust, from the environment.
pub(super) fn settings(
    text: &str,
    service_files: &[PathBuf],
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Settings, OptionsError> {
    let mut found: Found = conninfo::read(text)?
        .into_iter()
        .map(|(key, value)| (key, (value, Source::Text)))
        .collect();
    match found.remove("service") {
        Some((name, _)) => add_service(&mut found, &name, service_files, |_| true)?,
        // As in libpq it takes precedence over the other variables, also in what it contains about
        // trust.
        None => {
            if let Some(name) = variable("PGSERVICE") {
                add_service(&mut found, &name, service_files, |key| {
                    ENVIRONMENT.iter().any(|(own, _)| *own == key)
                })?;
            }
        }
    }
    for (key, name) in ENVIRONMENT {
        if let Some(value) = variable(name) {
            found
                .entry(key.to_owned())
                .or_insert((value, Source::Variable(name)));
        }
    }
    if variable("PGREQUIRESSL").is_some_and(|value| value.starts_with('1')) {
        let value = ("require".to_owned(), Source::Variable("PGREQUIRESSL"));
        found.entry("sslmode".to_owned()).or_insert(value);
    }
    let mut settings = Settings {
        config: tokio_postgres::Config::new(),
        tls: TlsOptions::default(),
        mode: None,
        passfile: None,
        require_auth: None,
    };
    for (key, (value, source)) in &found {
        settings
            .set(key, value)
            .map_err(|error| located(error, key, source))?;
    }
    settings.check_counts()?;
    Ok(settings)
}

/// Takes the requested keys of a service that were not found before.
fn add_service(
    found: &mut Found,
    name: &str,
    files: &[PathBuf],
    asked: impl Fn(&str) -> bool,
) -> Result<(), OptionsError> {
    let (file, pairs) = service::find(name, files)?;
    for pair in pairs.into_iter().filter(|pair| asked(&pair.key)) {
        let source = Source::Service {
            file: file.clone(),
            name: name.to_owned(),
            line: pair.line,
        };
        found.entry(pair.key).or_insert((pair.value, source));
    }
    Ok(())
}

/// The error, with the place of the key.
fn located(error: OptionsError, key: &str, source: &Source) -> OptionsError {
    match source {
        Source::Text => error,
        Source::Variable(name) => OptionsError::Variable {
            name,
            reason: error.to_string(),
        },
        Source::Service { file, name, line } => {
            let reason = match error {
                OptionsError::UnknownKey { .. } => {
                    "has a key that pgshard does not know".to_owned()
                }
                OptionsError::Unsupported { .. } => format!("{error}"),
                _ => format!("has a wrong value for {key}"),
            };
            service::wrong(file, name, *line, &reason)
        }
    }
}

impl Settings {
    fn set(&mut self, key: &str, value: &str) -> Result<(), OptionsError> {
        match key {
            // libpq has these from elsewhere where they are empty. Here they are missing.
            "user" | "dbname" | "password" | "options" | "application_name" if value.is_empty() => {
            }
            "user" => _ = self.config.user(value),
            "dbname" => _ = self.config.dbname(value),
            "password" => _ = self.config.password(value),
            "options" => _ = self.config.options(value),
            "application_name" => _ = self.config.application_name(value),
            "passfile" => {
                self.passfile = Some(value)
                    .filter(|value| !value.is_empty())
                    .map(PathBuf::from)
            }
            "require_auth" => self.require_auth = Some(RequireAuth::read(value)?),
            "target_session_attrs" => {
                self.config.target_session_attrs(match value {
                    "any" => TargetSessionAttrs::Any,
                    "read-write" | "primary" => TargetSessionAttrs::ReadWrite,
                    "read-only" | "standby" => TargetSessionAttrs::ReadOnly,
                    _ => return Err(OptionsError::TargetSessionAttrs { value: word(value) }),
                });
            }
            "host" | "hostaddr" | "port" => self.set_address(key, value)?,
            "channel_binding" | "load_balance_hosts" | "sslnegotiation" => {
                self.set_word(key, value)?
            }
            "gssencmode" | "requirepeer" | "sslcrldir" | "sslcertmode" => {
                self.set_unsupported(key, value)?
            }
            _ if self.tls.set(key, value)? => {
                if key == "sslmode" {
                    self.mode = Some(value.to_owned());
                }
            }
            _ => self.set_number(key, value)?,
        }
        Ok(())
    }

    fn set_address(&mut self, key: &str, value: &str) -> Result<(), OptionsError> {
        if value.is_empty() {
            return Ok(());
        }
        for part in value.split(',') {
            match key {
                // A host of which only some are named would be the default one there. An @ is a
                // password's that was not escaped, or begins a kind of socket that pgshard does not
                // know; in neither case is it shown.
                "host" if part.is_empty() => return Err(OptionsError::Missing { key: "host" }),
                "host" if part.contains('@') => return Err(OptionsError::AtInHost),
                "host" => _ = self.config.host(part),
                "hostaddr" => {
                    let address: Result<IpAddr, _> = part.parse();
                    self.config.hostaddr(
                        address.map_err(|_| wrong("hostaddr", "it is no list of IP addresses"))?,
                    );
                }
                _ => {
                    let port = match part {
                        "" => Some(5432),
                        _ => number(part)
                            .and_then(|port| u16::try_from(port).ok())
                            .filter(|port| *port > 0),
                    };
                    self.config.port(
                        port.ok_or_else(|| wrong("port", "a port is a number from 1 to 65535"))?,
                    );
                }
            }
        }
        Ok(())
    }

    fn set_word(&mut self, key: &str, value: &str) -> Result<(), OptionsError> {
        match (key, value) {
            ("channel_binding", "disable") => {
                _ = self.config.channel_binding(ChannelBinding::Disable)
            }
            ("channel_binding", "prefer") => {
                _ = self.config.channel_binding(ChannelBinding::Prefer)
            }
            ("channel_binding", "require") => {
                _ = self.config.channel_binding(ChannelBinding::Require)
            }
            ("load_balance_hosts", "disable") => {
                _ = self.config.load_balance_hosts(LoadBalanceHosts::Disable)
            }
            ("load_balance_hosts", "random") => {
                _ = self.config.load_balance_hosts(LoadBalanceHosts::Random)
            }
            ("sslnegotiation", "postgres") => {
                _ = self.config.ssl_negotiation(SslNegotiation::Postgres)
            }
            ("sslnegotiation", "direct") => _ = self.config.ssl_negotiation(SslNegotiation::Direct),
            ("channel_binding", _) => {
                return Err(wrong(
                    "channel_binding",
                    "known are disable, prefer, require",
                ));
            }
            ("load_balance_hosts", _) => {
                return Err(wrong("load_balance_hosts", "known are disable, random"));
            }
            _ => return Err(wrong("sslnegotiation", "known are postgres, direct")),
        }
        Ok(())
    }

    /// Keys that can require what pgshard cannot check. They are accepted where they require
    /// nothing.
    fn set_unsupported(&mut self, key: &str, value: &str) -> Result<(), OptionsError> {
        let unsupported = |key, why: &str| {
            Err(OptionsError::Unsupported {
                key,
                why: why.to_owned(),
            })
        };
        match (key, value) {
            ("gssencmode", "disable" | "prefer") | ("sslcertmode", "allow") => Ok(()),
            ("requirepeer" | "sslcrldir", "") => Ok(()),
            ("sslcertmode", "disable") => {
                self.tls.show_cert = false;
                Ok(())
            }
            ("gssencmode", "require") => {
                unsupported("gssencmode", "pgshard has no GSSAPI encryption")
            }
            ("sslcertmode", "require") => unsupported(
                "sslcertmode",
                "pgshard cannot see whether the server has asked for a certificate",
            ),
            ("requirepeer", _) => unsupported(
                "requirepeer",
                "pgshard cannot see which user of the system a server runs as",
            ),
            ("sslcrldir", _) => unsupported(
                "sslcrldir",
                "name one file of revoked certificates with sslcrl",
            ),
            ("gssencmode", _) => Err(wrong("gssencmode", "known are disable, prefer")),
            _ => Err(wrong("sslcertmode", "known are disable, allow")),
        }
    }

    fn set_number(&mut self, key: &str, value: &str) -> Result<(), OptionsError> {
        const NUMBERS: [&str; 7] = [
            "connect_timeout",
            "keepalives",
            "keepalives_count",
            "keepalives_idle",
            "keepalives_interval",
            "keepalives_retries",
            "tcp_user_timeout",
        ];
        let Some(name) = NUMBERS.into_iter().find(|known| *known == key) else {
            return Err(OptionsError::UnknownKey {
                key: key.to_owned(),
            });
        };
        let number = number(value).ok_or_else(|| wrong(name, "it is no number"))?;
        if name == "keepalives" {
            self.config.keepalives(number != 0);
            return Ok(());
        }
        // Zero and less mean the same as no key.
        let Some(number) = u32::try_from(number).ok().filter(|number| *number > 0) else {
            return Ok(());
        };
        let seconds = Duration::from_secs(number.into());
        match name {
            "connect_timeout" => _ = self.config.connect_timeout(seconds),
            "keepalives_idle" => _ = self.config.keepalives_idle(seconds),
            "keepalives_interval" => _ = self.config.keepalives_interval(seconds),
            "tcp_user_timeout" => {
                _ = self
                    .config
                    .tcp_user_timeout(Duration::from_millis(number.into()))
            }
            _ => _ = self.config.keepalives_retries(number),
        }
        Ok(())
    }

    /// Names, addresses and ports belong together one by one.
    fn check_counts(&self) -> Result<(), OptionsError> {
        let (hosts, addresses) = (
            self.config.get_hosts().len(),
            self.config.get_hostaddrs().len(),
        );
        let ports = self.config.get_ports().len();
        if hosts > 0 && addresses > 0 && hosts != addresses {
            return Err(wrong(
                "hostaddr",
                &format!("there are {hosts} hosts and {addresses} addresses"),
            ));
        }
        let count = hosts.max(addresses);
        if ports > 1 && ports != count {
            return Err(wrong(
                "port",
                &format!("there are {count} hosts and {ports} ports"),
            ));
        }
        Ok(())
    }
}

fn wrong(key: &'static str, reason: &str) -> OptionsError {
    OptionsError::WrongValue {
        key,
        reason: reason.to_owned(),
    }
}

/// A number as libpq takes it.
fn number(text: &str) -> Option<i32> {
    text.trim_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r'])
        .parse()
        .ok()
}
