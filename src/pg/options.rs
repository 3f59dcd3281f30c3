//! A host's connection string, checked.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio_postgres::config::{Host, LoadBalanceHosts, SslNegotiation, TargetSessionAttrs};

use super::cancel::Address;
use super::identity::SharedKnowledge;
use super::keys;
use super::options_error::OptionsError;
use super::password::Password;
use super::require_auth::RequireAuth;
use super::service;
use super::silence::Silence;
use super::tls::{RootCert, SslMode, TlsOptions};

/// How to reach one PostgreSQL database: a libpq URL or key=value string, read as libpq reads it. A
/// key that requires what pgshard cannot check is refused.
///
/// `Debug` and `Display` never show a password.
#[derive(Clone)]
pub struct ConnectOptions {
    pub(super) config: tokio_postgres::Config,
    pub(super) tls: TlsOptions,
    pub(super) password: Password,
    /// The authentication methods that the server may request.
    pub(super) require_auth: Option<RequireAuth>,
    /// The address that answered last, for all clones.
    answered: Arc<AtomicUsize>,
    /// Which server it is, for all clones.
    pub(super) known: Arc<SharedKnowledge>,
    /// Which addresses were silent, for all clones; `None` if each connection waits for its whole
    /// limit.
    pub(super) silence: Option<Arc<Silence>>,
}

/// Sets the limits that the text does not give.
fn set_limits(config: &mut tokio_postgres::Config) {
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(ConnectOptions::CONNECT_TIMEOUT);
    }
    // Half-open connections are found within a minute. The kernel alone takes two hours to probe
    // and eleven minutes more to give up, and a quarter of an hour for data that was sent and never
    // acknowledged. A mover that is cut off from its target would keep its shard closed for as
    // long.
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

impl ConnectOptions {
    /// How long one address may take to answer, unless the string has `connect_timeout`.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

    /// How long the other addresses have to answer once one server has answered. Then that server
    /// is taken for the host.
    pub(super) const OTHERS_MAX: Duration = Duration::from_secs(2);

    /// Reads a libpq URL (`postgres://app@10.0.0.1:5432/app?sslmode=require`) or key=value string
    /// (`host=10.0.0.1 dbname=app user=app`). With `service=NAME` in it, what it leaves out is
    /// taken from that section of the file that `PGSERVICEFILE` names, of `~/.pg_service.conf`, or
    /// of `pg_service.conf` in the folder `PGSYSCONFDIR`. How far the server is trusted may also
    /// come from the service that `PGSERVICE` names, and then from libpq's variables (`PGSSLMODE`,
    /// `PGSSLROOTCERT`, `PGREQUIREAUTH`, `PGCHANNELBINDING` and similar ones). No variable selects
    /// the server or the role.
    ///
    /// # Errors
    /// When the string cannot be read, or names no host, user or database; when there is no such
    /// service, or its section cannot be used; when it requires what pgshard cannot check.
    pub fn parse(text: &str) -> Result<ConnectOptions, OptionsError> {
        // Something that is not text is no valid value of a key, and no existing file.
        let variable =
            |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        ConnectOptions::parse_with(text, &service::standard_files(), variable)
    }

    /// [`ConnectOptions::parse`] with services from these files, and this environment.
    fn parse_with(
        text: &str,
        service_files: &[PathBuf],
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<ConnectOptions, OptionsError> {
        let mut read = keys::settings(text, service_files, variable)?;
        read.tls.settle(read.mode.as_deref())?;
        let (mut config, tls) = (read.config, read.tls);
        // As in libpq: with an address alone there is no name that a certificate could be for.
        let nameless = config.get_hosts().is_empty() && tls.mode == SslMode::VerifyFull;
        if nameless || config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(OptionsError::Missing { key: "host" });
        }
        if config.get_user().is_none() {
            return Err(OptionsError::Missing { key: "user" });
        }
        if config.get_dbname().is_none() {
            return Err(OptionsError::Missing { key: "dbname" });
        }
        set_limits(&mut config);
        config.ssl_mode(match tls.mode {
            SslMode::Disable => tokio_postgres::config::SslMode::Disable,
            SslMode::Prefer => tokio_postgres::config::SslMode::Prefer,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => {
                tokio_postgres::config::SslMode::Require
            }
        });
        let direct = config.get_ssl_negotiation() == SslNegotiation::Direct;
        if direct && config.get_ssl_mode() != tokio_postgres::config::SslMode::Require {
            return Err(OptionsError::WeakWithDirect);
        }
        let password = match config.get_password() {
            Some(given) => Password::Given(String::from_utf8_lossy(given).into_owned()),
            None => read.passfile.map_or(Password::Standard, Password::Passfile),
        };
        let require_auth = read.require_auth;
        Ok(ConnectOptions {
            config,
            tls,
            password,
            require_auth,
            answered: Arc::default(),
            known: Arc::default(),
            silence: None,
        })
    }

    /// The same options for a command that connects several times, one after the other: an address
    /// that has not answered within its limit has only two seconds for each of the next
    /// connections, for a quarter of a minute. Clones share what they know.
    #[must_use]
    pub fn briefly_after_silence(mut self) -> ConnectOptions {
        self.silence = Some(Arc::default());
        self
    }

    /// The same options with another source of the password.
    #[must_use]
    pub fn with_password(mut self, password: Password) -> ConnectOptions {
        self.password = password;
        self
    }

    /// The same options, with certificate, key and password files that are not absolute taken as
    /// below `folder`.
    #[must_use]
    pub fn with_files_below(mut self, folder: &Path) -> ConnectOptions {
        let root_cert = match &mut self.tls.root_cert {
            RootCert::File(file) => Some(file),
            RootCert::Standard | RootCert::System => None,
        };
        let files = [
            root_cert,
            self.tls.crl.as_mut(),
            self.tls.cert.as_mut(),
            self.tls.key.as_mut(),
        ];
        for file in files.into_iter().flatten() {
            *file = folder.join(&*file);
        }
        if let Password::File(file) | Password::Passfile(file) = &mut self.password {
            *file = folder.join(&*file);
        }
        if let Password::Command(command) = &mut self.password {
            command.below(folder);
        }
        self
    }

    /// Each address by itself, as a server of any kind: `target_session_attrs`, which is about all
    /// of them, is left out. All share what is known about the host.
    pub fn each_address(&self) -> Vec<ConnectOptions> {
        let one = |index| {
            let mut config = self.at(index);
            config.target_session_attrs(TargetSessionAttrs::Any);
            ConnectOptions {
                config,
                answered: Arc::default(),
                ..self.clone()
            }
        };
        (0..self.count()).map(one).collect()
    }

    /// The addresses, `10.0.0.1:5432` or `/run/postgresql:5432`, in the order they are tried.
    pub fn addresses(&self) -> Vec<String> {
        let hosts: Vec<String> = if self.config.get_hosts().is_empty() {
            self.config
                .get_hostaddrs()
                .iter()
                .map(ToString::to_string)
                .collect()
        } else {
            let name = |host: &Host| match host {
                Host::Tcp(name) => name.clone(),
                Host::Unix(path) => path.display().to_string(),
            };
            self.config.get_hosts().iter().map(name).collect()
        };
        hosts
            .iter()
            .enumerate()
            .map(|(index, host)| format!("{host}:{}", self.port(index)))
            .collect()
    }

    /// The database's name.
    pub fn database(&self) -> &str {
        self.config.get_dbname().unwrap_or_default()
    }

    /// The role that connects.
    pub fn user(&self) -> &str {
        self.config.get_user().unwrap_or_default()
    }

    /// The TLS settings.
    pub fn tls(&self) -> &TlsOptions {
        &self.tls
    }

    /// Where the password comes from. Its `Debug` never shows the password.
    pub fn password(&self) -> &Password {
        &self.password
    }

    /// Whether both reach the same server in the same way.
    pub(crate) fn reaches_as(&self, other: &ConnectOptions) -> bool {
        self.config == other.config
            && self.tls == other.tls
            && self.password == other.password
            && self.require_auth == other.require_auth
    }

    /// These options for the host of `others`: what is known about which server that is stays
    /// known.
    pub(crate) fn for_host_of(mut self, others: &ConnectOptions) -> ConnectOptions {
        self.known = others.known.clone();
        self
    }

    /// These options of a host of which nothing is known yet.
    #[cfg(feature = "ops")]
    pub(super) fn forgetful(mut self) -> ConnectOptions {
        self.known = Arc::default();
        self
    }

    /// Whether a server that takes writes may be wanted.
    pub(crate) fn is_for_primary(&self) -> bool {
        self.config.get_target_session_attrs() != TargetSessionAttrs::ReadOnly
    }

    /// How long one address may take until it can be used: connected, and logged in.
    pub fn answer_limit(&self) -> Duration {
        self.connect_timeout() * 2
    }

    /// How long one address may take to be connected.
    pub(super) fn connect_timeout(&self) -> Duration {
        self.config
            .get_connect_timeout()
            .copied()
            .unwrap_or(Self::CONNECT_TIMEOUT)
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
        self.config
            .get_hosts()
            .len()
            .max(self.config.get_hostaddrs().len())
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
            // Without a name for the certificate the driver takes no TLS.
            None => config.host(self.host_name(index)),
        };
        if let Some(address) = from.get_hostaddrs().get(index) {
            config.hostaddr(*address);
        }
        config
            .port(self.port(index))
            .user(self.user())
            .dbname(self.database());
        config
            .ssl_mode(from.get_ssl_mode())
            .ssl_negotiation(from.get_ssl_negotiation());
        config
            .channel_binding(from.get_channel_binding())
            .target_session_attrs(from.get_target_session_attrs());
        config.load_balance_hosts(from.get_load_balance_hosts());
        config
            .keepalives(from.get_keepalives())
            .keepalives_idle(from.get_keepalives_idle());
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

    /// The TLS settings for one of the addresses. As in libpq a unix socket has none, whatever the
    /// string contains.
    pub(super) fn tls_mode(&self, index: usize) -> SslMode {
        match self.cancel_address(index) {
            Address::Unix(_) => SslMode::Disable,
            Address::Tcp(..) => self.tls.mode,
        }
    }

    /// The folder of a unix socket or the name of a host: what a line of `.pgpass` begins with.
    pub(super) fn host_name(&self, index: usize) -> String {
        match self.config.get_hosts().get(index) {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(path)) => PathBuf::from(path).display().to_string(),
            None => self
                .config
                .get_hostaddrs()
                .get(index)
                .map(ToString::to_string)
                .unwrap_or_default(),
        }
    }

    /// Where a cancel request for a connection to this address goes.
    pub(super) fn cancel_address(&self, index: usize) -> Address {
        let port = self.port(index);
        match (
            self.config.get_hosts().get(index),
            self.config.get_hostaddrs().get(index),
        ) {
            (_, Some(address)) => Address::Tcp(address.to_string(), port),
            (Some(Host::Unix(path)), None) => Address::Unix(path.join(format!(".s.PGSQL.{port}"))),
            _ => Address::Tcp(self.host_name(index), port),
        }
    }

    pub(super) fn port(&self, index: usize) -> u16 {
        let ports = self.config.get_ports();
        ports
            .get(index)
            .or_else(|| ports.first())
            .copied()
            .unwrap_or(5432)
    }
}

impl fmt::Display for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}@{}/{}",
            self.user(),
            self.addresses().join(","),
            self.database()
        )
    }
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ConnectOptions({self}, {:?}, password {:?})",
            self.tls.mode, self.password
        )
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
    fn both_notations_are_read() {
        for text in [
            "postgres://app:s%20ecret@10.0.0.1:6432/shop?sslmode=verify-full\
             &sslrootcert=/etc/ca.pem&connect_timeout=3",
            "host=10.0.0.1 port=6432 dbname=shop user=app password='s ecret' sslmode = verify-full \
             sslrootcert='/etc/ca.pem'",
        ] {
            let options = ConnectOptions::parse(text).unwrap();
            assert_eq!(options.to_string(), "app@10.0.0.1:6432/shop");
            assert_eq!(options.tls().mode, SslMode::VerifyFull);
            assert_eq!(
                options.tls().root_cert,
                RootCert::File("/etc/ca.pem".into())
            );
            assert_eq!(options.config.get_password(), Some(&b"s ecret"[..]));
            assert!(!format!("{options:?} {options}").contains("ecret"));
        }
    }

    #[test]
    fn a_file_of_passwords_in_the_string() {
        let password = |text: &str| {
            let options = ConnectOptions::parse(text)
                .unwrap()
                .with_files_below(Path::new("/etc/shop"));
            format!("{:?}", options.password())
        };
        for text in [
            "postgres://app@h/db?passfile=my%20pass",
            "host=h user=app dbname=db passfile='my pass'",
        ] {
            assert_eq!(password(text), r#"Passfile("/etc/shop/my pass")"#);
        }
        assert_eq!(
            password("postgres://app@h/db?passfile=/x"),
            r#"Passfile("/x")"#
        );
        assert_eq!(password("postgres://app:x@h/db?passfile=/x"), "Given(..)");
        assert_eq!(password("postgres://app@h/db?passfile="), "Standard");
    }

    #[test]
    fn a_service_says_what_the_string_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pg_service.conf");
        let text = "[shop]\nhost=10.0.0.1\nport=6432\ndbname=shop\nuser=app\npassword=hun%r'2 \\ \
            x\n\
            sslmode=verify-full\nsslrootcert=/etc/ca.pem\ntarget_session_attrs=primary\n\
            connect_timeout=3\n\
            [bad]\nhost=10.0.0.1\nhunter2=x\n[worse]\nconnect_timeout=hunter2\n\
            [mode]\nsslmode=verify\n";
        std::fs::write(&file, text).unwrap();
        let parse =
            |text: &str| ConnectOptions::parse_with(text, std::slice::from_ref(&file), |_| None);
        for text in [
            "service=shop",
            "postgres:///?service=shop",
            "postgresql://?service=shop",
        ] {
            let options = parse(text).unwrap();
            assert_eq!(options.to_string(), "app@10.0.0.1:6432/shop", "{text}");
            assert_eq!(
                options.config.get_password(),
                Some(&b"hun%r'2 \\ x"[..]),
                "{text}"
            );
            assert_eq!(options.tls().mode, SslMode::VerifyFull, "{text}");
            assert_eq!(
                options.tls().root_cert,
                RootCert::File("/etc/ca.pem".into()),
                "{text}"
            );
            assert_eq!(
                options.config.get_target_session_attrs(),
                TargetSessionAttrs::ReadWrite
            );
            assert_eq!(
                options.config.get_connect_timeout(),
                Some(&Duration::from_secs(3))
            );
        }
        for (text, shown) in [
            (
                "service=shop user=me port=1 sslmode=disable",
                "me@10.0.0.1:1/shop",
            ),
            (
                "port=1 user='me' service='shop' sslmode=disable",
                "me@10.0.0.1:1/shop",
            ),
            (
                "postgres://me@/?service=shop&port=1&sslmode=disable",
                "me@10.0.0.1:1/shop",
            ),
            (
                "postgres://me@db2,db3/?service=shop&sslmode=disable",
                "me@db2:5432,db3:5432/shop",
            ),
            // One host without a port leaves the port to the service, as in libpq.
            (
                "postgres://me@db2/?service=shop&sslmode=disable",
                "me@db2:6432/shop",
            ),
            (
                "postgres://me:x@db2:7/other?sslmode=disable&service=shop",
                "me@db2:7/other",
            ),
        ] {
            let options = parse(text).unwrap();
            assert_eq!(
                (options.to_string(), options.tls().mode),
                (shown.to_owned(), SslMode::Disable),
                "{text}"
            );
        }
        let error = |text: &str| parse(text).unwrap_err().to_string();
        let place = |section: &str| format!("service [{section}] of {}: ", file.display());
        assert_eq!(
            error("service=none"),
            format!("there is no service \"none\" in {}", file.display())
        );
        assert_eq!(
            error("service=bad"),
            place("bad") + "line 13 has a key that pgshard does not know"
        );
        assert_eq!(
            error("service=worse"),
            place("worse") + "line 15 has a wrong value for connect_timeout"
        );
        assert_eq!(
            error("service=mode"),
            place("mode") + "line 17 has a wrong value for sslmode"
        );
    }

    #[test]
    fn a_key_that_asks_for_tls_is_found_wherever_libpq_finds_it() {
        let mode = |text: &str| {
            let options = ConnectOptions::parse_with(text, &[], |_| None)
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            (options.to_string(), options.tls().mode)
        };
        for (text, to) in [
            ("postgres://app:pa?ss@h/db?sslmode=require", "app@h:5432/db"),
            (
                "postgres://app:a?sslmode=disable@h/db?sslmode=require",
                "app@h:5432/db",
            ),
            ("postgres://app:x@h/db?ss%6Cmode=require", "app@h:5432/db"),
            (
                "postgres://app:x@h/db?application_name=a@b&sslmode=require",
                "app@h:5432/db",
            ),
            (
                "postgres://h/db?user=app&application_name=x:y@z&sslmode=require",
                "app@h:5432/db",
            ),
            (
                "postgres://h/d@b?user=app&sslmode=require",
                "app@h:5432/d@b",
            ),
            (
                "postgres://app@h/db?sslmode=disable&sslmode=require",
                "app@h:5432/db",
            ),
            (
                "host=h user=app dbname=db sslmode = 'require'",
                "app@h:5432/db",
            ),
        ] {
            assert_eq!(mode(text), (to.to_owned(), SslMode::Require), "{text}");
        }
        // In libpq a password ends at the first @, and the rest of it is the host. With a slash in
        // it there is no user at all. Nothing of it is shown.
        for text in [
            "postgres://app:pa/ss@h/db?sslmode=require",
            "postgres://app:p@ss@h/db?sslmode=require",
        ] {
            let error = ConnectOptions::parse(text).unwrap_err().to_string();
            assert!(!error.contains("ss@"), "{error}");
        }
    }

    #[test]
    fn a_password_with_an_at_is_not_shown_as_a_host() {
        for text in [
            "postgres://app:p@ssw0rd@h/db",
            "postgres://app:p@ssw0rd@h1,h2/db?sslmode=require",
        ] {
            let error = ConnectOptions::parse(text).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(
                shown.contains("write %40") && !shown.contains("ssw0rd"),
                "{shown}"
            );
        }
        let options = ConnectOptions::parse("postgres://app:p%40ssw0rd@h/db").unwrap();
        assert_eq!(options.to_string(), "app@h:5432/db");
    }

    #[test]
    fn the_environment_says_what_the_string_does_not() {
        let parse = |text: &str, variables: &[(&str, &str)]| {
            let find = |name: &str| {
                variables
                    .iter()
                    .find(|(own, _)| *own == name)
                    .map(|(_, value)| (*value).to_owned())
            };
            ConnectOptions::parse_with(text, &[], find)
        };
        let strict = [
            ("PGSSLMODE", "verify-full"),
            ("PGSSLROOTCERT", "/etc/ca.pem"),
            ("PGCHANNELBINDING", "require"),
        ];
        for text in [
            "postgres://app@h/db",
            "postgres://app:a?b@h/db?application_name=x",
            "host=h user=app dbname=db",
        ] {
            let options = parse(text, &strict).unwrap();
            assert_eq!(options.tls().mode, SslMode::VerifyFull, "{text}");
            assert_eq!(
                options.tls().root_cert,
                RootCert::File("/etc/ca.pem".into()),
                "{text}"
            );
            let binding = options.config.get_channel_binding();
            assert_eq!(
                binding,
                tokio_postgres::config::ChannelBinding::Require,
                "{text}"
            );
        }
        let own = parse(
            "postgres://app@h/db?sslmode=disable&channel_binding=disable",
            &strict,
        )
        .unwrap();
        assert_eq!(own.tls().mode, SslMode::Disable);
        let wrong = parse("postgres://app@h/db", &[("PGSSLMODE", "full")])
            .unwrap_err()
            .to_string();
        assert!(
            wrong.starts_with("PGSSLMODE in the environment: sslmode \"full\" is none of"),
            "{wrong}"
        );
        let wrong = parse("postgres://app@h/db", &[("PGCHANNELBINDING", "maybe")])
            .unwrap_err()
            .to_string();
        assert!(
            wrong.starts_with("PGCHANNELBINDING in the environment: "),
            "{wrong}"
        );
        // A variable that is set to nothing is no valid value of a key; a file without a name
        // counts as none.
        assert!(parse("postgres://app@h/db", &[("PGSSLMODE", "")]).is_err());
        assert_eq!(
            parse("postgres://app@h/db", &[("PGSSLROOTCERT", "")])
                .unwrap()
                .tls()
                .root_cert,
            RootCert::Standard
        );
        assert_eq!(
            parse("postgres://app@h/db", &[("PGREQUIRESSL", "1")])
                .unwrap()
                .tls()
                .mode,
            SslMode::Require
        );
        for (name, value) in [
            ("PGREQUIREPEER", "postgres"),
            ("PGGSSENCMODE", "require"),
            ("PGSSLCRLDIR", "/etc/crl"),
            ("PGSSLCERTMODE", "require"),
        ] {
            let error = parse("postgres://app@h/db", &[(name, value)])
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with(&format!("{name} in the environment: ")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_service_of_the_environment_says_what_is_trusted_and_not_which_server_is_meant() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pg_service.conf");
        std::fs::write(
            &file,
            "[strict]\nhost=10.0.0.9\nport=1\nsslmode=verify-ca\nrequire_auth=scram-sha-256\n",
        )
        .unwrap();
        let parse = |service: &str| {
            let variable = |name: &str| match name {
                "PGSERVICE" => Some(service.to_owned()),
                "PGSSLMODE" => Some("disable".to_owned()),
                _ => None,
            };
            ConnectOptions::parse_with("postgres://app@h/db", std::slice::from_ref(&file), variable)
        };
        let strict = parse("strict").unwrap();
        assert_eq!(
            (strict.to_string(), strict.tls().mode),
            ("app@h:5432/db".to_owned(), SslMode::VerifyCa)
        );
        assert!(strict.require_auth.is_some());
        assert!(matches!(
            parse("none"),
            Err(OptionsError::NoSuchService { .. })
        ));
    }

    #[test]
    fn a_key_that_comes_twice_counts_once() {
        for text in [
            "host=a host=b port=1 port=2 user=u dbname=d",
            "postgres://u@a:1/d?host=b&port=2",
        ] {
            assert_eq!(
                ConnectOptions::parse(text).unwrap().addresses(),
                ["b:2"],
                "{text}"
            );
        }
    }

    #[test]
    fn what_belongs_together_comes_in_the_same_number() {
        for text in [
            "host=a,b port=1,2,3 user=u dbname=d",
            "host=a,b hostaddr=10.0.0.1 user=u dbname=d",
            "host=a,,b user=u dbname=d",
            "hostaddr=10.0.0.1 user=u dbname=d sslmode=verify-full",
            "host=a port=0 user=u dbname=d",
            "host=a port=65536 user=u dbname=d",
            "host=a user=u dbname=d sslnegotiation=direct",
        ] {
            assert!(ConnectOptions::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn with_the_machines_certificates_the_name_is_verified() {
        let mode = |keys: &str| ConnectOptions::parse(&format!("host=h user=app dbname=db {keys}"));
        assert_eq!(
            mode("sslrootcert=system").unwrap().tls().mode,
            SslMode::VerifyFull
        );
        assert_eq!(
            mode("sslrootcert=system sslmode=verify-full")
                .unwrap()
                .tls()
                .mode,
            SslMode::VerifyFull
        );
        for weak in ["disable", "allow", "prefer", "require", "verify-ca"] {
            let error = mode(&format!("sslmode={weak} sslrootcert=system"))
                .unwrap_err()
                .to_string();
            assert_eq!(
                error,
                format!(
                    "sslmode {weak:?} is too weak for sslrootcert=system: that wants verify-full"
                )
            );
        }
    }

    #[test]
    fn several_hosts_and_sockets() {
        let options = ConnectOptions::parse("postgres://app@a,b:1/app").unwrap();
        assert_eq!(options.addresses(), ["a:5432", "b:1"]);
        let options = ConnectOptions::parse("host=/run/pg user=app dbname=app").unwrap();
        assert_eq!(options.addresses(), ["/run/pg:5432"]);
        let text = "postgres://app:x@a,b:1/app?target_session_attrs=primary&sslmode=require\
            &connect_timeout=3";
        let each = ConnectOptions::parse(text).unwrap().each_address();
        assert_eq!(
            each.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["app@a:5432/app", "app@b:1/app"]
        );
        for one in each {
            assert_eq!(
                one.config.get_target_session_attrs(),
                TargetSessionAttrs::Any
            );
            assert_eq!(
                (one.tls.mode, one.config.get_connect_timeout()),
                (SslMode::Require, Some(&Duration::from_secs(3)))
            );
            assert!(matches!(&one.password, Password::Given(given) if given == "x"));
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = |text: &str| ConnectOptions::parse(text).unwrap_err().to_string();
        assert_eq!(error("user=app dbname=app"), "the host is missing");
        assert_eq!(error("postgres://10.0.0.1/app"), "the user is missing");
        assert_eq!(error("postgres://app@10.0.0.1"), "the dbname is missing");
        assert_eq!(
            error("host=a user=b dbname=c sslmode=verify"),
            "sslmode \"verify\" is none of disable, prefer, require, verify-ca, verify-full"
        );
        assert!(error("postgres://app@10.0.0.1:port/app").contains("port"));
        assert!(!error("hots=a password=hunter2").contains("hunter2"));
        for key in ["sslmode", "target_session_attrs"] {
            let glued = error(&format!(
                "host=a user=b dbname=c {key}=anypostgres://b:hunter2@a/c"
            ));
            assert!(
                glued.starts_with(&format!("{key} \"…\" is none of")),
                "{glued}"
            );
        }
    }

    #[test]
    fn half_open_connections_are_found_unless_the_string_says_otherwise() {
        let config = |keys: &str| {
            ConnectOptions::parse(&format!("host=x user=x dbname=x {keys}"))
                .unwrap()
                .config
        };
        let seconds = Duration::from_secs;
        let plain = config("");
        assert_eq!(
            (plain.get_keepalives_idle(), plain.get_keepalives_retries()),
            (seconds(30), Some(3))
        );
        assert_eq!(plain.get_tcp_user_timeout(), Some(&seconds(60)));
        let given = config("keepalives_idle=5 keepalives_count=2 tcp_user_timeout=7000");
        assert_eq!(
            (given.get_keepalives_idle(), given.get_tcp_user_timeout()),
            (seconds(5), Some(&seconds(7)))
        );
        assert_eq!(given.get_keepalives_retries(), Some(2));
    }
}
