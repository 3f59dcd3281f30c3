//! A host's connection string, checked.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio_postgres::config::{Host, LoadBalanceHosts, TargetSessionAttrs};

use super::cancel::Address;
use super::conninfo::{put_key, take_keys};
use super::identity::Known;
use super::password::Password;
use super::service;
use super::tls::{RootCert, SslMode, TlsOptions};

/// How to reach one PostgreSQL database: a libpq URL or key=value string, with the TLS keys that `tokio_postgres`
/// leaves out (`sslmode=verify-ca|verify-full`, `sslrootcert`, `sslcert`, `sslkey`, `passfile`).
///
/// `Debug` and `Display` never show a password.
#[derive(Clone)]
pub struct ConnectOptions {
    pub(super) config: tokio_postgres::Config,
    pub(super) tls: TlsOptions,
    pub(super) password: Password,
    /// The address that answered last, for all clones.
    answered: Arc<AtomicUsize>,
    /// Which server it is, for all clones.
    pub(super) known: Arc<Known>,
}

/// Why a connection string is refused. The text itself is not repeated: it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// Not a URL and not key=value pairs, or a value that the key cannot have.
    #[error("{reason}")]
    Parse {
        /// What the parser says.
        reason: String,
    },
    /// The host holds an `@`: user or password do, and it is not escaped there. The text is not repeated, as it holds a
    /// part of the password.
    #[error("the host holds an @: write %40 for an @ in user or password")]
    AtInHost,
    /// `sslmode` is none that libpq knows.
    #[error("sslmode {mode:?} is none of disable, prefer, require, verify-ca, verify-full")]
    SslMode {
        /// What was given.
        mode: String,
    },
    /// `sslrootcert=system` with an `sslmode` that does not look at the server's name: any server whose certificate
    /// somebody sold would do.
    #[error("sslmode {mode:?} is too weak for sslrootcert=system: that wants verify-full")]
    WeakWithSystem {
        /// What was given.
        mode: String,
    },
    /// `target_session_attrs` is none that we know.
    #[error("target_session_attrs {value:?} is none of any, read-write, primary, read-only, standby")]
    TargetSessionAttrs {
        /// What was given.
        value: String,
    },
    /// No file has the service that `service` names.
    #[error("there is no service {service:?} in {}", named(files))]
    NoSuchService {
        /// What was given.
        service: String,
        /// The files that were looked into, where they are there.
        files: Vec<PathBuf>,
    },
    /// The file that has the service cannot be used.
    #[error("service [{service}] of {}: {reason}", file.display())]
    ServiceFile {
        /// The file.
        file: PathBuf,
        /// The section.
        service: String,
        /// What is wrong, and in which line.
        reason: String,
    },
    /// A variable of the environment has a value that its key cannot have.
    #[error("{name} in the environment: {reason}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A key that must be there is not.
    #[error("the {key} is missing")]
    Missing {
        /// `host`, `user` or `dbname`.
        key: &'static str,
    },
}

/// Sets the limits that the text does not give.
fn set_limits(config: &mut tokio_postgres::Config) {
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(ConnectOptions::CONNECT_TIMEOUT);
    }
    // Half-open connections are found within a minute. The kernel alone takes two hours to look and eleven minutes more
    // to give up, and a quarter of an hour for what was sent and never acknowledged. A mover whose target is cut off
    // would keep its shard closed for as long.
    if config.get_keepalives_idle() == tokio_postgres::Config::new().get_keepalives_idle() {
        config.keepalives_idle(Duration::from_secs(30));
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(Duration::from_secs(10));
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(3);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(Duration::from_secs(60));
    }
}

/// The environment's variables that stand in for keys that say how far a server is trusted, as in libpq. None of those
/// that say which server is meant: a config names that.
const ENVIRONMENT: [(&str, &str); 5] = [
    ("sslmode", "PGSSLMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("channel_binding", "PGCHANNELBINDING"),
];

/// The config as the driver reads it.
fn driver_config(text: &str) -> Result<tokio_postgres::Config, OptionsError> {
    tokio_postgres::Config::from_str(text).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        // What stands for a key where something is mistyped (`postgres:/app:password@…`) may have the password.
        let is_key = |name: &str| name.len() <= 30 && name.bytes().all(|c| c == b'_' || c.is_ascii_lowercase());
        let reason = match cause.split('`').nth(1).is_none_or(is_key) {
            true => format!("{error}{cause}"),
            false => format!("{error}: unknown option, by a name that no option can have"),
        };
        OptionsError::Parse { reason }
    })
}

/// The keys that are ours, and not the driver's.
struct Own {
    tls: TlsOptions,
    /// `sslmode` as it was said.
    mode: Option<String>,
    attributes: TargetSessionAttrs,
    passfile: Option<PathBuf>,
}

impl Default for Own {
    fn default() -> Self {
        Own { tls: TlsOptions::default(), mode: None, attributes: TargetSessionAttrs::Any, passfile: None }
    }
}

impl Own {
    /// Whether the key is one of ours; then it is taken.
    fn take(&mut self, key: &str, value: &str) -> Result<bool, OptionsError> {
        if key == "target_session_attrs" {
            self.attributes = match value {
                "any" => TargetSessionAttrs::Any,
                "read-write" | "primary" => TargetSessionAttrs::ReadWrite,
                "read-only" | "standby" => TargetSessionAttrs::ReadOnly,
                _ => return Err(OptionsError::TargetSessionAttrs { value: value.to_owned() }),
            };
            return Ok(true);
        }
        if key == "passfile" {
            self.passfile = Some(value).filter(|value| !value.is_empty()).map(PathBuf::from);
            return Ok(true);
        }
        if key == "sslmode" {
            self.mode = Some(value.to_owned());
        }
        self.tls.set(key, value)
    }
}

/// Takes what a service's section has and the string does not say.
fn take_service(
    name: &str,
    files: &[PathBuf],
    own: &mut Own,
    rest: &mut String,
    said: &mut Vec<String>,
) -> Result<(), OptionsError> {
    let config = driver_config(rest)?;
    // The keys that a URL has before its `?`. A host there comes with a port: 5432 when it names none.
    let before = [
        ("host", !config.get_hosts().is_empty()),
        ("port", !config.get_ports().is_empty()),
        ("user", config.get_user().is_some()),
        ("password", config.get_password().is_some()),
        ("dbname", config.get_dbname().is_some()),
    ];
    said.extend(before.into_iter().filter(|(_, there)| *there).map(|(key, _)| key.to_owned()));
    let (file, pairs) = service::find(name, files)?;
    for pair in pairs.iter().filter(|pair| !said.contains(&pair.key)) {
        let wrong = |reason: &str| service::wrong(&file, name, pair.line, reason);
        let wrong_value = || wrong(&format!("has a wrong value for {}", pair.key));
        if own.take(&pair.key, &pair.value).map_err(|_| wrong_value())? {
            continue;
        }
        if let Err(OptionsError::Parse { reason }) = driver_config(&put_key("", &pair.key, &pair.value)) {
            return Err(match reason.contains("unknown option") {
                true => wrong("has a key that pgshard does not know"),
                false => wrong_value(),
            });
        }
        *rest = put_key(rest, &pair.key, &pair.value);
    }
    said.extend(pairs.into_iter().map(|pair| pair.key));
    Ok(())
}

/// Takes from the environment what neither the string nor a service says.
fn take_environment(
    variable: impl Fn(&str) -> Option<String>,
    own: &mut Own,
    rest: &mut String,
    said: &[String],
) -> Result<(), OptionsError> {
    for (key, name) in ENVIRONMENT.iter().filter(|(key, _)| !said.iter().any(|said| said == key)) {
        let Some(value) = variable(name) else { continue };
        let wrong = |error: OptionsError| OptionsError::Variable { name, reason: error.to_string() };
        if !own.take(key, &value).map_err(wrong)? {
            *rest = put_key(rest, key, &value);
            driver_config(rest).map_err(wrong)?;
        }
    }
    Ok(())
}

fn named(files: &[PathBuf]) -> String {
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    if files.is_empty() { "any file: PGSERVICEFILE and HOME are not set".to_owned() } else { files.join(" or ") }
}

impl ConnectOptions {
    /// How long one address may take to answer, unless the string says `connect_timeout`.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

    /// How long the other addresses have to answer once one server has answered. Then that server is taken for the
    /// host.
    pub(super) const OTHERS_MAX: Duration = Duration::from_secs(2);

    /// Reads a libpq URL (`postgres://app@10.0.0.1:5432/app?sslmode=require`) or key=value string
    /// (`host=10.0.0.1 dbname=app user=app`). With `service=NAME` in it, what it does not say itself is taken from that
    /// section of the file that `PGSERVICEFILE` names, of `~/.pg_service.conf`, or of `pg_service.conf` in the folder
    /// `PGSYSCONFDIR`. What both leave out of TLS is as `PGSSLMODE`, `PGSSLROOTCERT`, `PGSSLCERT`, `PGSSLKEY` and
    /// `PGCHANNELBINDING` say.
    ///
    /// # Errors
    /// When it cannot be read, or names no host, user or database; when there is no such service, or its section cannot
    /// be used.
    pub fn parse(text: &str) -> Result<ConnectOptions, OptionsError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        ConnectOptions::parse_with(text, &service::standard_files(), variable)
    }

    /// [`ConnectOptions::parse`] with services from these files, and this environment.
    fn parse_with(
        text: &str,
        service_files: &[PathBuf],
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<ConnectOptions, OptionsError> {
        let (mut own, mut service, mut said) = (Own::default(), None, Vec::new());
        let mut rest = take_keys(text, |key, value| {
            said.push(key.to_owned());
            if key == "service" {
                service = Some(value.to_owned());
                return Ok(true);
            }
            own.take(key, value)
        })?;
        if let Some(name) = &service {
            take_service(name, service_files, &mut own, &mut rest, &mut said)?;
        }
        take_environment(variable, &mut own, &mut rest, &said)?;
        let Own { mut tls, mode, attributes, passfile } = own;
        tls.settle(mode.as_deref())?;
        let mut config = driver_config(&rest)?;
        // What follows an unescaped `@` of a password is taken for the host, by libpq too, and would be shown as one.
        if config
            .get_hosts()
            .iter()
            .any(|host| matches!(host, Host::Tcp(name) if name.trim_start_matches('@').contains('@')))
        {
            return Err(OptionsError::AtInHost);
        }
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(OptionsError::Missing { key: "host" });
        }
        if config.get_user().is_none() {
            return Err(OptionsError::Missing { key: "user" });
        }
        if config.get_dbname().is_none() {
            return Err(OptionsError::Missing { key: "dbname" });
        }
        set_limits(&mut config);
        config.target_session_attrs(attributes);
        config.ssl_mode(match tls.mode {
            SslMode::Disable => tokio_postgres::config::SslMode::Disable,
            SslMode::Prefer => tokio_postgres::config::SslMode::Prefer,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => tokio_postgres::config::SslMode::Require,
        });
        let password = match config.get_password() {
            Some(given) => Password::Given(String::from_utf8_lossy(given).into_owned()),
            None => passfile.map_or(Password::Standard, Password::Passfile),
        };
        Ok(ConnectOptions { config, tls, password, answered: Arc::default(), known: Arc::default() })
    }

    /// The same options with another source of the password.
    #[must_use]
    pub fn with_password(mut self, password: Password) -> ConnectOptions {
        self.password = password;
        self
    }

    /// The same options, with certificate, key and password files that are not absolute taken as below `folder`.
    #[must_use]
    pub fn with_files_below(mut self, folder: &Path) -> ConnectOptions {
        let root_cert = match &mut self.tls.root_cert {
            RootCert::File(file) => Some(file),
            RootCert::Standard | RootCert::System => None,
        };
        let files = [root_cert, self.tls.cert.as_mut(), self.tls.key.as_mut()];
        for file in files.into_iter().flatten() {
            *file = folder.join(&*file);
        }
        if let Password::File(file) | Password::Passfile(file) = &mut self.password {
            *file = folder.join(&*file);
        }
        self
    }

    /// Each address by itself, as a server of any kind: what `target_session_attrs` says of all of them is left out.
    /// What is known of the host is known to all of them.
    pub fn each_address(&self) -> Vec<ConnectOptions> {
        let one = |index| {
            let mut config = self.at(index);
            config.target_session_attrs(TargetSessionAttrs::Any);
            ConnectOptions { config, answered: Arc::default(), ..self.clone() }
        };
        (0..self.count()).map(one).collect()
    }

    /// The addresses, `10.0.0.1:5432` or `/run/postgresql:5432`, in the order they are tried.
    pub fn addresses(&self) -> Vec<String> {
        let hosts: Vec<String> = if self.config.get_hosts().is_empty() {
            self.config.get_hostaddrs().iter().map(ToString::to_string).collect()
        } else {
            let name = |host: &Host| match host {
                Host::Tcp(name) => name.clone(),
                Host::Unix(path) => path.display().to_string(),
            };
            self.config.get_hosts().iter().map(name).collect()
        };
        hosts.iter().enumerate().map(|(index, host)| format!("{host}:{}", self.port(index))).collect()
    }

    /// The database's name.
    pub fn database(&self) -> &str {
        self.config.get_dbname().unwrap_or_default()
    }

    /// The role that connects.
    pub fn user(&self) -> &str {
        self.config.get_user().unwrap_or_default()
    }

    /// What TLS is asked for.
    pub fn tls(&self) -> &TlsOptions {
        &self.tls
    }

    /// Where the password comes from. Its `Debug` never shows the password.
    pub fn password(&self) -> &Password {
        &self.password
    }

    /// Whether both reach the same server in the same way.
    pub(crate) fn reaches_as(&self, other: &ConnectOptions) -> bool {
        self.config == other.config && self.tls == other.tls && self.password == other.password
    }

    /// These options for the host of `others`: what is known about which server that is stays known.
    pub(crate) fn for_host_of(mut self, others: &ConnectOptions) -> ConnectOptions {
        self.known = others.known.clone();
        self
    }

    /// Whether a server that takes writes may be wanted.
    pub(crate) fn is_for_primary(&self) -> bool {
        self.config.get_target_session_attrs() != TargetSessionAttrs::ReadOnly
    }

    /// How long one address may take to be connected.
    pub(super) fn connect_timeout(&self) -> Duration {
        self.config.get_connect_timeout().copied().unwrap_or(Self::CONNECT_TIMEOUT)
    }

    /// The address that a new connection begins with.
    pub(crate) fn first(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// One of the addresses, as in [`ConnectOptions::addresses`].
    pub(crate) fn address(&self, index: usize) -> String {
        self.addresses().swap_remove(index)
    }

    /// How many addresses there are.
    fn count(&self) -> usize {
        self.config.get_hosts().len().max(self.config.get_hostaddrs().len())
    }

    /// The addresses in the order in which they are tried.
    pub(super) fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let count = self.count();
        let first = match self.config.get_load_balance_hosts() {
            LoadBalanceHosts::Random => fastrand::usize(..count.max(1)),
            _ => self.answered.load(Ordering::Relaxed),
        };
        // After the one that answered last, the others in the order of the text.
        std::iter::once(first).chain((0..count).filter(move |index| *index != first))
    }

    /// The next connection begins with this address.
    pub(super) fn remember(&self, index: usize) {
        self.answered.store(index, Ordering::Relaxed);
    }

    /// The driver's config for one of the addresses.
    pub(super) fn at(&self, index: usize) -> tokio_postgres::Config {
        let from = &self.config;
        let mut config = tokio_postgres::Config::new();
        match from.get_hosts().get(index) {
            Some(Host::Tcp(name)) => config.host(name),
            Some(Host::Unix(path)) => config.host_path(path),
            None => &mut config,
        };
        if let Some(address) = from.get_hostaddrs().get(index) {
            config.hostaddr(*address);
        }
        config.port(self.port(index)).user(self.user()).dbname(self.database());
        config.ssl_mode(from.get_ssl_mode()).ssl_negotiation(from.get_ssl_negotiation());
        config.channel_binding(from.get_channel_binding()).target_session_attrs(from.get_target_session_attrs());
        config.load_balance_hosts(from.get_load_balance_hosts());
        config.keepalives(from.get_keepalives()).keepalives_idle(from.get_keepalives_idle());
        if let Some(options) = from.get_options() {
            config.options(options);
        }
        if let Some(name) = from.get_application_name() {
            config.application_name(name);
        }
        if let Some(timeout) = from.get_connect_timeout() {
            config.connect_timeout(*timeout);
        }
        if let Some(timeout) = from.get_tcp_user_timeout() {
            config.tcp_user_timeout(*timeout);
        }
        if let Some(interval) = from.get_keepalives_interval() {
            config.keepalives_interval(interval);
        }
        if let Some(retries) = from.get_keepalives_retries() {
            config.keepalives_retries(retries);
        }
        config
    }

    /// The folder of a unix socket or the name of a host: what a line of `.pgpass` begins with.
    pub(super) fn host_name(&self, index: usize) -> String {
        match self.config.get_hosts().get(index) {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(path)) => PathBuf::from(path).display().to_string(),
            None => self.config.get_hostaddrs().get(index).map(ToString::to_string).unwrap_or_default(),
        }
    }

    /// Where a cancel request for a connection to this address goes.
    pub(super) fn cancel_address(&self, index: usize) -> Address {
        let port = self.port(index);
        match (self.config.get_hosts().get(index), self.config.get_hostaddrs().get(index)) {
            (_, Some(address)) => Address::Tcp(address.to_string(), port),
            (Some(Host::Unix(path)), None) => Address::Unix(path.join(format!(".s.PGSQL.{port}"))),
            _ => Address::Tcp(self.host_name(index), port),
        }
    }

    pub(super) fn port(&self, index: usize) -> u16 {
        let ports = self.config.get_ports();
        ports.get(index).or_else(|| ports.first()).copied().unwrap_or(5432)
    }
}

impl fmt::Display for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}/{}", self.user(), self.addresses().join(","), self.database())
    }
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectOptions({self}, {:?}, password {:?})", self.tls.mode, self.password)
    }
}

impl FromStr for ConnectOptions {
    type Err = OptionsError;

    fn from_str(text: &str) -> Result<ConnectOptions, OptionsError> {
        ConnectOptions::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_notations() {
        for text in [
            "postgres://app:s%20ecret@10.0.0.1:6432/shop?sslmode=verify-full&sslrootcert=/etc/ca.pem&connect_timeout=3",
            "host=10.0.0.1 port=6432 dbname=shop user=app password='s ecret' sslmode = verify-full \
             sslrootcert='/etc/ca.pem'",
        ] {
            let options = ConnectOptions::parse(text).unwrap();
            assert_eq!(options.to_string(), "app@10.0.0.1:6432/shop");
            assert_eq!(options.tls().mode, SslMode::VerifyFull);
            assert_eq!(options.tls().root_cert, RootCert::File("/etc/ca.pem".into()));
            assert_eq!(options.config.get_password(), Some(&b"s ecret"[..]));
            assert!(!format!("{options:?} {options}").contains("ecret"));
        }
    }

    #[test]
    fn a_file_of_passwords_in_the_string() {
        let password = |text: &str| {
            let options = ConnectOptions::parse(text).unwrap().with_files_below(Path::new("/etc/shop"));
            format!("{:?}", options.password())
        };
        for text in ["postgres://app@h/db?passfile=my%20pass", "host=h user=app dbname=db passfile='my pass'"] {
            assert_eq!(password(text), r#"Passfile("/etc/shop/my pass")"#);
        }
        assert_eq!(password("postgres://app@h/db?passfile=/x"), r#"Passfile("/x")"#);
        assert_eq!(password("postgres://app:x@h/db?passfile=/x"), "Given(..)");
        assert_eq!(password("postgres://app@h/db?passfile="), "Standard");
    }

    #[test]
    fn a_service_says_what_the_string_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pg_service.conf");
        let text = "[shop]\nhost=10.0.0.1\nport=6432\ndbname=shop\nuser=app\npassword=hun%r'2 \\ x\n\
            sslmode=verify-full\nsslrootcert=/etc/ca.pem\ntarget_session_attrs=primary\nconnect_timeout=3\n\
            [bad]\nhost=10.0.0.1\nhunter2=x\n[worse]\nconnect_timeout=hunter2\n[mode]\nsslmode=verify\n";
        std::fs::write(&file, text).unwrap();
        let parse = |text: &str| ConnectOptions::parse_with(text, std::slice::from_ref(&file), |_| None);
        for text in ["service=shop", "postgres:///?service=shop", "postgresql://?service=shop"] {
            let options = parse(text).unwrap();
            assert_eq!(options.to_string(), "app@10.0.0.1:6432/shop", "{text}");
            assert_eq!(options.config.get_password(), Some(&b"hun%r'2 \\ x"[..]), "{text}");
            assert_eq!(options.tls().mode, SslMode::VerifyFull, "{text}");
            assert_eq!(options.tls().root_cert, RootCert::File("/etc/ca.pem".into()), "{text}");
            assert_eq!(options.config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
            assert_eq!(options.config.get_connect_timeout(), Some(&Duration::from_secs(3)));
        }
        for (text, shown) in [
            ("service=shop user=me port=1 sslmode=disable", "me@10.0.0.1:1/shop"),
            ("port=1 user='me' service='shop' sslmode=disable", "me@10.0.0.1:1/shop"),
            ("postgres://me@/?service=shop&port=1&sslmode=disable", "me@10.0.0.1:1/shop"),
            ("postgres://me@db2,db3/?service=shop&sslmode=disable", "me@db2:5432,db3:5432/shop"),
            ("postgres://me:x@db2:7/other?sslmode=disable&service=shop", "me@db2:7/other"),
        ] {
            let options = parse(text).unwrap();
            assert_eq!((options.to_string(), options.tls().mode), (shown.to_owned(), SslMode::Disable), "{text}");
        }
        let error = |text: &str| parse(text).unwrap_err().to_string();
        let place = |section: &str| format!("service [{section}] of {}: ", file.display());
        assert_eq!(error("service=none"), format!("there is no service \"none\" in {}", file.display()));
        assert_eq!(error("service=bad"), place("bad") + "line 13 has a key that pgshard does not know");
        assert_eq!(error("service=worse"), place("worse") + "line 15 has a wrong value for connect_timeout");
        assert_eq!(error("service=mode"), place("mode") + "line 17 has a wrong value for sslmode");
    }

    #[test]
    fn a_key_that_asks_for_tls_is_found_wherever_libpq_finds_it() {
        let mode = |text: &str| {
            let options =
                ConnectOptions::parse_with(text, &[], |_| None).unwrap_or_else(|error| panic!("{text}: {error}"));
            (options.to_string(), options.tls().mode)
        };
        for (text, to) in [
            ("postgres://app:pa?ss@h/db?sslmode=require", "app@h:5432/db"),
            ("postgres://app:a?sslmode=disable@h/db?sslmode=require", "app@h:5432/db"),
            ("postgres://app:x@h/db?ss%6Cmode=require", "app@h:5432/db"),
            ("postgres://app:x@h/db?application_name=a@b&sslmode=require", "app@h:5432/db"),
            ("postgres://h/db?user=app&application_name=x:y@z&sslmode=require", "app@h:5432/db"),
            ("postgres://h/d@b?user=app&sslmode=require", "app@h:5432/d@b"),
            ("postgres://app@h/db?sslmode=disable&sslmode=require", "app@h:5432/db"),
            ("host=h user=app dbname=db sslmode = 'require'", "app@h:5432/db"),
        ] {
            assert_eq!(mode(text), (to.to_owned(), SslMode::Require), "{text}");
        }
        // To libpq a password ends before a slash, and there is no user without one.
        assert!(ConnectOptions::parse("postgres://app:pa/ss@h/db?sslmode=require").is_err());
    }

    #[test]
    fn a_password_with_an_at_is_not_shown_as_a_host() {
        for text in ["postgres://app:p@ssw0rd@h/db", "postgres://app:p@ssw0rd@h1,h2/db?sslmode=require"] {
            let error = ConnectOptions::parse(text).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(shown.contains("write %40") && !shown.contains("ssw0rd"), "{shown}");
        }
        let options = ConnectOptions::parse("postgres://app:p%40ssw0rd@h/db").unwrap();
        assert_eq!(options.to_string(), "app@h:5432/db");
    }

    #[test]
    fn the_environment_says_what_the_string_does_not() {
        let parse = |text: &str, variables: &[(&str, &str)]| {
            let find =
                |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned());
            ConnectOptions::parse_with(text, &[], find)
        };
        let strict = [("PGSSLMODE", "verify-full"), ("PGSSLROOTCERT", "/etc/ca.pem"), ("PGCHANNELBINDING", "require")];
        for text in ["postgres://app@h/db", "postgres://app:a?b@h/db?application_name=x", "host=h user=app dbname=db"] {
            let options = parse(text, &strict).unwrap();
            assert_eq!(options.tls().mode, SslMode::VerifyFull, "{text}");
            assert_eq!(options.tls().root_cert, RootCert::File("/etc/ca.pem".into()), "{text}");
            let binding = options.config.get_channel_binding();
            assert_eq!(binding, tokio_postgres::config::ChannelBinding::Require, "{text}");
        }
        let own = parse("postgres://app@h/db?sslmode=disable&channel_binding=disable", &strict).unwrap();
        assert_eq!(own.tls().mode, SslMode::Disable);
        let wrong = parse("postgres://app@h/db", &[("PGSSLMODE", "full")]).unwrap_err().to_string();
        assert!(wrong.starts_with("PGSSLMODE in the environment: sslmode \"full\" is none of"), "{wrong}");
        let wrong = parse("postgres://app@h/db", &[("PGCHANNELBINDING", "maybe")]).unwrap_err().to_string();
        assert!(wrong.starts_with("PGCHANNELBINDING in the environment: "), "{wrong}");
    }

    #[test]
    fn with_the_machines_certificates_the_name_is_verified() {
        let mode = |keys: &str| ConnectOptions::parse(&format!("host=h user=app dbname=db {keys}"));
        assert_eq!(mode("sslrootcert=system").unwrap().tls().mode, SslMode::VerifyFull);
        assert_eq!(mode("sslrootcert=system sslmode=verify-full").unwrap().tls().mode, SslMode::VerifyFull);
        for weak in ["disable", "allow", "prefer", "require", "verify-ca"] {
            let error = mode(&format!("sslmode={weak} sslrootcert=system")).unwrap_err().to_string();
            assert_eq!(error, format!("sslmode {weak:?} is too weak for sslrootcert=system: that wants verify-full"));
        }
    }

    #[test]
    fn several_hosts_and_sockets() {
        let options = ConnectOptions::parse("postgres://app@a,b:1/app").unwrap();
        assert_eq!(options.addresses(), ["a:5432", "b:1"]);
        let options = ConnectOptions::parse("host=/run/pg user=app dbname=app").unwrap();
        assert_eq!(options.addresses(), ["/run/pg:5432"]);
        let text = "postgres://app:x@a,b:1/app?target_session_attrs=primary&sslmode=require&connect_timeout=3";
        let each = ConnectOptions::parse(text).unwrap().each_address();
        assert_eq!(each.iter().map(ToString::to_string).collect::<Vec<_>>(), ["app@a:5432/app", "app@b:1/app"]);
        for one in each {
            assert_eq!(one.config.get_target_session_attrs(), TargetSessionAttrs::Any);
            assert_eq!(
                (one.tls.mode, one.config.get_connect_timeout()),
                (SslMode::Require, Some(&Duration::from_secs(3)))
            );
            assert!(matches!(&one.password, Password::Given(given) if given == "x"));
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = |text| ConnectOptions::parse(text).unwrap_err().to_string();
        assert_eq!(error("user=app dbname=app"), "the host is missing");
        assert_eq!(error("postgres://10.0.0.1/app"), "the user is missing");
        assert_eq!(error("postgres://app@10.0.0.1"), "the dbname is missing");
        assert_eq!(
            error("host=a user=b dbname=c sslmode=verify"),
            "sslmode \"verify\" is none of disable, prefer, require, verify-ca, verify-full"
        );
        assert!(error("postgres://app@10.0.0.1:port/app").contains("port"));
        assert!(!error("hots=a password=hunter2").contains("hunter2"));
    }

    #[test]
    fn half_open_connections_are_found_unless_the_string_says_otherwise() {
        let config = |keys: &str| ConnectOptions::parse(&format!("host=x user=x dbname=x {keys}")).unwrap().config;
        let seconds = Duration::from_secs;
        let plain = config("");
        assert_eq!((plain.get_keepalives_idle(), plain.get_keepalives_retries()), (seconds(30), Some(3)));
        assert_eq!(plain.get_tcp_user_timeout(), Some(&seconds(60)));
        let given = config("keepalives_idle=5 tcp_user_timeout=7");
        assert_eq!((given.get_keepalives_idle(), given.get_tcp_user_timeout()), (seconds(5), Some(&seconds(7))));
    }
}
