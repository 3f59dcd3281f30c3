//! The environment in which libpq's programs (`psql`, `pg_dump`) connect as this process does.
//!
//! Invariant: it contains no password. The password is where the config has it, or in a file that
//! only this user can read and that is removed with the environment.

use std::io::Write;
use std::path::Path;

use tempfile::NamedTempFile;
use tokio_postgres::config::{ChannelBinding, Host, TargetSessionAttrs};

use super::options::ConnectOptions;
use super::password::{PassfileKey, Password};
use super::password_error::PasswordError;
use super::tls::{RootCert, SslMode};

/// The environment of a libpq program that connects as some [`ConnectOptions`] do. Keep it until
/// the program has ended: it may own a file with the password.
#[derive(Debug)]
pub struct LibpqEnvironment {
    variables: Vec<(&'static str, String)>,
    passfile: Option<NamedTempFile>,
}

impl LibpqEnvironment {
    /// The variables that define where and how a program connects.
    const ALL: [&'static str; 19] = [
        "PGHOST",
        "PGHOSTADDR",
        "PGPORT",
        "PGDATABASE",
        "PGUSER",
        "PGSERVICE",
        "PGSERVICEFILE",
        "PGOPTIONS",
        "PGSSLMODE",
        "PGSSLROOTCERT",
        "PGSSLCERT",
        "PGSSLKEY",
        "PGSSLCRL",
        "PGCHANNELBINDING",
        "PGREQUIREAUTH",
        "PGTARGETSESSIONATTRS",
        "PGLOADBALANCEHOSTS",
        "PGCONNECT_TIMEOUT",
        "PGAPPNAME",
    ];

    /// The variables to remove first: an inherited one that is not set again would lead to another
    /// server.
    pub fn removed(&self) -> Vec<&'static str> {
        // libpq would take it instead of the file.
        let password = self.passfile.as_ref().map(|_| "PGPASSWORD");
        Self::ALL.into_iter().chain(password).collect()
    }

    /// The variables to set. No password is among them.
    pub fn variables(&self) -> &[(&'static str, String)] {
        &self.variables
    }
}

impl ConnectOptions {
    /// The environment with which a libpq program connects as these options do, with these schemas
    /// in its `search_path`.
    ///
    /// # Errors
    /// When the password cannot be read, or no file can be written for it.
    pub fn libpq_environment(
        &self,
        search_path: &[&str],
    ) -> Result<LibpqEnvironment, PasswordError> {
        let config = &self.config;
        let mut variables = vec![
            ("PGDATABASE", self.database().to_owned()),
            ("PGUSER", self.user().to_owned()),
        ];
        let mut list = |name, values: Vec<String>| {
            if !values.is_empty() {
                variables.push((name, values.join(",")));
            }
        };
        let name = |host: &Host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        };
        list("PGHOST", config.get_hosts().iter().map(name).collect());
        list(
            "PGHOSTADDR",
            config
                .get_hostaddrs()
                .iter()
                .map(ToString::to_string)
                .collect(),
        );
        list(
            "PGPORT",
            config.get_ports().iter().map(ToString::to_string).collect(),
        );
        if let Some(timeout) = config.get_connect_timeout() {
            variables.push(("PGCONNECT_TIMEOUT", timeout.as_secs().max(1).to_string()));
        }
        let wanted = match config.get_target_session_attrs() {
            TargetSessionAttrs::ReadWrite => "read-write",
            TargetSessionAttrs::ReadOnly => "read-only",
            _ => "any",
        };
        variables.push(("PGTARGETSESSIONATTRS", wanted.to_owned()));
        self.put_tls(&mut variables);
        let path: Vec<String> = search_path
            .iter()
            .map(|schema| super::quote_ident(schema))
            .collect();
        let mut options = config.get_options().unwrap_or_default().to_owned();
        if !path.is_empty() {
            let separator = if options.is_empty() { "" } else { " " };
            options.push_str(&format!(
                "{separator}-c search_path={}",
                escaped(&path.join(","))
            ));
        }
        variables.push(("PGOPTIONS", options));
        let passfile = self.put_password(&mut variables)?;
        Ok(LibpqEnvironment {
            variables,
            passfile,
        })
    }

    fn put_tls(&self, variables: &mut Vec<(&'static str, String)>) {
        let mode = match self.tls.mode {
            SslMode::Disable => "disable",
            SslMode::Prefer => "prefer",
            SslMode::Require => "require",
            SslMode::VerifyCa => "verify-ca",
            SslMode::VerifyFull => "verify-full",
        };
        variables.push(("PGSSLMODE", mode.to_owned()));
        let text = |path: &Path| path.display().to_string();
        match &self.tls.root_cert {
            RootCert::Standard => {}
            RootCert::System => variables.push(("PGSSLROOTCERT", "system".to_owned())),
            RootCert::File(path) => variables.push(("PGSSLROOTCERT", text(path))),
        }
        variables.extend(self.tls.cert.as_ref().map(|path| ("PGSSLCERT", text(path))));
        variables.extend(self.tls.key.as_ref().map(|path| ("PGSSLKEY", text(path))));
        variables.extend(self.tls.crl.as_ref().map(|path| ("PGSSLCRL", text(path))));
        if self.config.get_channel_binding() == ChannelBinding::Require {
            variables.push(("PGCHANNELBINDING", "require".to_owned()));
        }
        // Before version 16 libpq does not know this one, and ignores it.
        variables.extend(
            self.require_auth
                .as_ref()
                .map(|required| ("PGREQUIREAUTH", required.text.clone())),
        );
    }

    /// The name of the password file: an existing one, or one that this writes.
    fn put_password(
        &self,
        variables: &mut Vec<(&'static str, String)>,
    ) -> Result<Option<NamedTempFile>, PasswordError> {
        let name = |path: &Path| ("PGPASSFILE", path.display().to_string());
        let wanted = PassfileKey {
            host: "",
            port: 0,
            database: self.database(),
            user: self.user(),
        };
        let secret = match &self.password {
            // libpq looks there by itself.
            Password::Standard => return Ok(None),
            Password::Passfile(path) => {
                variables.push(name(path));
                return Ok(None);
            }
            Password::Given(_) | Password::Env(_) | Password::File(_) | Password::Command(_) => {
                self.password.read(&wanted)?
            }
        };
        let Some(secret) = secret else {
            return Ok(None);
        };
        let escaped = secret.replace('\\', "\\\\").replace(':', "\\:");
        // Only its owner may read it, from the moment it is created.
        let written = NamedTempFile::new()
            .and_then(|mut file| writeln!(file, "*:*:*:*:{escaped}").map(|()| file));
        let file = written.map_err(|source| PasswordError::File {
            path: std::env::temp_dir(),
            source,
        })?;
        variables.push(name(file.path()));
        Ok(Some(file))
    }
}

/// A value inside `options`, where a blank would end it and a backslash quotes the next character.
fn escaped(text: &str) -> String {
    let special = |c: char| c == '\\' || c.is_ascii_whitespace();
    text.chars()
        .flat_map(|c| special(c).then_some('\\').into_iter().chain([c]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(environment: &'a LibpqEnvironment, name: &str) -> Option<&'a str> {
        environment
            .variables()
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value.as_str())
    }

    #[test]
    fn what_psql_needs_and_no_password() {
        let text = "postgres://app:se:cr\\et@10.0.0.1:6000,10.0.0.2:6001/db?sslmode=require\
                    &sslrootcert=/ca.pem&target_session_attrs=read-write&sslcrl=/crl.pem\
                    &channel_binding=require&require_auth=scram-sha-256";
        let options = ConnectOptions::parse(text).unwrap();
        let environment = options.libpq_environment(&["shard 7", "public"]).unwrap();
        let expected = [
            ("PGHOST", "10.0.0.1,10.0.0.2"),
            ("PGPORT", "6000,6001"),
            ("PGDATABASE", "db"),
            ("PGUSER", "app"),
            ("PGSSLMODE", "require"),
            ("PGSSLROOTCERT", "/ca.pem"),
            ("PGSSLCRL", "/crl.pem"),
            ("PGCHANNELBINDING", "require"),
            ("PGREQUIREAUTH", "scram-sha-256"),
            ("PGTARGETSESSIONATTRS", "read-write"),
            ("PGOPTIONS", "-c search_path=\"shard\\ 7\",\"public\""),
        ];
        for (name, wanted) in expected {
            assert_eq!(value(&environment, name), Some(wanted), "{name}");
        }
        let said = format!("{environment:?}{:?}", environment.variables());
        assert!(!said.contains("cr\\"), "{said}");
        let path = std::path::PathBuf::from(value(&environment, "PGPASSFILE").unwrap());
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "*:*:*:*:se\\:cr\\\\et\n"
        );
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(&path).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        assert!(
            environment.removed().contains(&"PGPASSWORD")
                && environment.removed().contains(&"PGSERVICE")
        );
        drop(environment);
        assert!(!path.exists(), "the file goes with the environment");
    }

    #[test]
    fn files_that_libpq_reads_are_left_to_it() {
        let options =
            ConnectOptions::parse("postgres://app@10.0.0.1/db?passfile=/etc/pass").unwrap();
        let environment = options.libpq_environment(&[]).unwrap();
        assert_eq!(value(&environment, "PGPASSFILE"), Some("/etc/pass"));
        assert!(
            !environment.removed().contains(&"PGPASSWORD"),
            "it counts before the file, as for us"
        );
        let options = ConnectOptions::parse("postgres://app@10.0.0.1/db").unwrap();
        assert_eq!(
            value(&options.libpq_environment(&[]).unwrap(), "PGPASSFILE"),
            None
        );
    }
}
