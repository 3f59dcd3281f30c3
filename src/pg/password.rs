//! Where a password comes from: an environment variable, a file, a program, `~/.pgpass` or the URL.
//! It is never shown.

use std::fmt;
use std::path::{Path, PathBuf};

use super::password_command::PasswordCommand;
use super::password_error::PasswordError;
use super::service::home;

/// A source of a password. It is read again for every connection, so that a rotated password needs
/// no restart.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Password {
    /// `PGPASSWORD`, then the file `PGPASSFILE` names or `~/.pgpass`, then none.
    #[default]
    Standard,
    /// The environment variable of this name.
    Env(String),
    /// The first line of this file.
    File(PathBuf),
    /// `passfile` of a connection string: as [`Password::Standard`], with this file, which must be
    /// there, instead of `~/.pgpass`.
    Passfile(PathBuf),
    /// The first line that this program prints.
    Command(PasswordCommand),
    /// Given in the URL.
    Given(String),
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Password::Standard => f.write_str("Standard"),
            Password::Env(name) => f.debug_tuple("Env").field(name).finish(),
            Password::File(path) => f.debug_tuple("File").field(path).finish(),
            Password::Passfile(path) => f.debug_tuple("Passfile").field(path).finish(),
            Password::Command(command) => command.fmt(f),
            Password::Given(_) => f.write_str("Given(..)"),
        }
    }
}

/// What a line of a `.pgpass` file must match.
pub(crate) struct PassfileKey<'a> {
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    pub(crate) database: &'a str,
    pub(crate) user: &'a str,
}

impl Password {
    /// As [`read`](Password::read), without blocking other tasks of this thread.
    pub(crate) async fn fetch(
        &self,
        wanted: &PassfileKey<'_>,
    ) -> Result<Option<String>, PasswordError> {
        let Password::Command(command) = self else {
            return self.read(wanted);
        };
        let command = command.clone();
        tokio::task::spawn_blocking(move || command.read().map(Some))
            .await
            .unwrap_or(Err(PasswordError::Interrupted))
    }

    /// Whether it may be another one when it is read again.
    pub(crate) fn may_change(&self) -> bool {
        !matches!(self, Password::Given(_) | Password::Env(_))
    }

    /// Notes that a server has refused it.
    pub(crate) fn forget(&self) {
        if let Password::Command(command) = self {
            command.forget();
        }
    }

    pub(crate) fn read(&self, wanted: &PassfileKey<'_>) -> Result<Option<String>, PasswordError> {
        match self {
            Password::Given(password) => Ok(Some(password.clone())),
            Password::Command(command) => command.read().map(Some),
            Password::Env(name) => match std::env::var(name) {
                Ok(password) => Ok(Some(password)),
                Err(_) => Err(PasswordError::Env { name: name.clone() }),
            },
            Password::File(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|source| PasswordError::File {
                    path: path.clone(),
                    source,
                })?;
                Ok(text.lines().next().map(str::to_owned))
            }
            Password::Passfile(path) => match variable() {
                Some(password) => Ok(Some(password)),
                None => from_pgpass(path, wanted),
            },
            Password::Standard => {
                if let Some(password) = variable() {
                    return Ok(Some(password));
                }
                let home = || home().map(|home| home.join(".pgpass"));
                let named = std::env::var_os("PGPASSFILE")
                    .filter(|name| !name.is_empty())
                    .map(PathBuf::from);
                match named.or_else(home) {
                    Some(path) if path.is_file() => from_pgpass(&path, wanted),
                    _ => Ok(None),
                }
            }
        }
    }
}

/// An empty password is none.
fn variable() -> Option<String> {
    std::env::var("PGPASSWORD")
        .ok()
        .filter(|password| !password.is_empty())
}

fn from_pgpass(path: &Path, wanted: &PassfileKey<'_>) -> Result<Option<String>, PasswordError> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |source| PasswordError::File {
        path: path.to_owned(),
        source,
    };
    if std::fs::metadata(path)
        .map_err(failed)?
        .permissions()
        .mode()
        & 0o077
        != 0
    {
        return Err(PasswordError::Exposed {
            path: path.to_owned(),
        });
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    Ok(text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| match_line(line, wanted)))
}

/// `host:port:database:user:password`, each of the first four `*` for any, `\` before `:` and `\`
/// in a field.
/// <https://www.postgresql.org/docs/current/libpq-pgpass.html>
pub(super) fn match_line(line: &str, wanted: &PassfileKey<'_>) -> Option<String> {
    // libpq looks the standard folders of unix sockets up as localhost.
    let host = if STANDARD_SOCKETS.contains(&wanted.host) {
        "localhost"
    } else {
        wanted.host
    };
    let port = wanted.port.to_string();
    let mut rest = line;
    for value in [host, &port, wanted.database, wanted.user] {
        rest = match rest.strip_prefix("*:") {
            Some(rest) => rest,
            None => after_field(rest, value)?,
        };
    }
    let (mut password, mut chars) = (String::new(), rest.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => password.extend(chars.next()),
            c => password.push(c),
        }
    }
    Some(password)
}

/// Where a server's socket is by default: PostgreSQL's own folder, and that of distributions.
const STANDARD_SOCKETS: [&str; 3] = ["/tmp", "/var/run/postgresql", "/run/postgresql"];

/// What comes after a field that has this value.
fn after_field<'a>(line: &'a str, value: &str) -> Option<&'a str> {
    let (mut chars, mut value) = (line.chars(), value.chars());
    loop {
        let c = match chars.next()? {
            ':' => return value.next().is_none().then_some(chars.as_str()),
            '\\' => chars.next()?,
            c => c,
        };
        if value.next() != Some(c) {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_pgpass_match_as_in_libpq() {
        let wanted = PassfileKey {
            host: "10.0.0.1",
            port: 5432,
            database: "app",
            user: "me",
        };
        let found = |line| match_line(line, &wanted);
        assert_eq!(
            found("10.0.0.1:5432:app:me:se:cret").as_deref(),
            Some("se:cret")
        );
        assert_eq!(found(r"*:*:*:me:a\:b\\c").as_deref(), Some(r"a:b\c"));
        assert_eq!(found("10.0.0.2:5432:app:me:x"), None);
        assert_eq!(found("nonsense"), None);
        assert_eq!(found(r"\*:*:*:me:x"), None, "an escaped * is the character");
        assert_eq!(found("*:*:*:m:x"), None);
        assert_eq!(found("*:*:*:mee:x"), None);
        assert_eq!(found("*:*:*:me"), None);
        let socket = |host| PassfileKey {
            host,
            port: 5432,
            database: "app",
            user: "me",
        };
        assert_eq!(
            match_line("localhost:5432:app:me:x", &socket("/var/run/postgresql")).as_deref(),
            Some("x")
        );
        assert_eq!(
            match_line("localhost:5432:app:me:x", &socket("/srv/sockets")),
            None
        );
        assert_eq!(
            match_line("/srv/sockets:5432:app:me:x", &socket("/srv/sockets")).as_deref(),
            Some("x")
        );
    }

    #[test]
    fn a_passfile_must_be_there_and_closed_to_others() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pass");
        let source = Password::Passfile(path.clone());
        let read = |user: &str| {
            source.read(&PassfileKey {
                host: "127.0.0.1",
                port: 5432,
                database: "app",
                user,
            })
        };
        assert!(matches!(read("app"), Err(PasswordError::File { .. })));
        std::fs::write(&path, "*:*:*:app:hunter2\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(read("app"), Err(PasswordError::Exposed { .. })));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read("app").unwrap().as_deref(), Some("hunter2"));
        assert_eq!(read("other").unwrap(), None);
    }

    #[test]
    fn a_given_password_is_not_shown() {
        assert_eq!(
            format!("{:?}", Password::Given("hunter2".into())),
            "Given(..)"
        );
    }
}
