//! Where a password comes from: an environment variable, a file, `~/.pgpass` or the URL. It is never shown.

use std::fmt;
use std::path::{Path, PathBuf};

/// A source of a password. It is read again for every connection, so that a rotated password needs no restart.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Password {
    /// `PGPASSWORD`, then the file `PGPASSFILE` names or `~/.pgpass`, then none.
    #[default]
    Standard,
    /// The environment variable of this name.
    Env(String),
    /// The first line of this file.
    File(PathBuf),
    /// `passfile` of a connection string: as [`Password::Standard`], with this file, which must be there, instead of
    /// `~/.pgpass`.
    Passfile(PathBuf),
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
            Password::Given(_) => f.write_str("Given(..)"),
        }
    }
}

/// Why there is no password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PasswordError {
    /// The environment variable is not set.
    #[error("the environment variable {name} for the password is not set")]
    Env {
        /// The variable.
        name: String,
    },
    /// The password file cannot be read.
    #[error("cannot read the password file {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// libpq refuses a file that others can read; so do we.
    #[error("{} can be read by others: chmod 600 it", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
    },
}

/// What a line of a `.pgpass` file must match.
pub(crate) struct Wanted<'a> {
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    pub(crate) database: &'a str,
    pub(crate) user: &'a str,
}

impl Password {
    pub(crate) fn read(&self, wanted: &Wanted<'_>) -> Result<Option<String>, PasswordError> {
        match self {
            Password::Given(password) => Ok(Some(password.clone())),
            Password::Env(name) => match std::env::var(name) {
                Ok(password) => Ok(Some(password)),
                Err(_) => Err(PasswordError::Env { name: name.clone() }),
            },
            Password::File(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|source| PasswordError::File { path: path.clone(), source })?;
                Ok(text.lines().next().map(str::to_owned))
            }
            Password::Passfile(path) => match std::env::var("PGPASSWORD") {
                Ok(password) => Ok(Some(password)),
                Err(_) => from_pgpass(path, wanted),
            },
            Password::Standard => {
                if let Ok(password) = std::env::var("PGPASSWORD") {
                    return Ok(Some(password));
                }
                let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pgpass"));
                match std::env::var_os("PGPASSFILE").map(PathBuf::from).or_else(home) {
                    Some(path) if path.is_file() => from_pgpass(&path, wanted),
                    _ => Ok(None),
                }
            }
        }
    }
}

fn from_pgpass(path: &Path, wanted: &Wanted<'_>) -> Result<Option<String>, PasswordError> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |source| PasswordError::File { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(failed)?.permissions().mode() & 0o077 != 0 {
        return Err(PasswordError::Exposed { path: path.to_owned() });
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    Ok(text.lines().filter(|line| !line.starts_with('#')).find_map(|line| match_line(line, wanted)))
}

/// `host:port:database:user:password`, each of the first four `*` for any, `\` before `:` and `\` in a field.
/// <https://www.postgresql.org/docs/current/libpq-pgpass.html>
pub(super) fn match_line(line: &str, wanted: &Wanted<'_>) -> Option<String> {
    let mut fields = vec![String::new()];
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => fields.last_mut()?.extend(chars.next()),
            ':' if fields.len() < 5 => fields.push(String::new()),
            _ => fields.last_mut()?.push(c),
        }
    }
    let [host, port, database, user, password] = <[String; 5]>::try_from(fields).ok()?;
    // libpq looks a unix socket up as localhost.
    let wanted_host = if wanted.host.starts_with('/') { "localhost" } else { wanted.host };
    let same = |field: &str, value: &str| field == "*" || field == value;
    let all = (same(&host, wanted_host) || same(&host, wanted.host))
        && same(&port, &wanted.port.to_string())
        && same(&database, wanted.database)
        && same(&user, wanted.user);
    all.then_some(password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pgpass_lines() {
        let wanted = Wanted { host: "10.0.0.1", port: 5432, database: "app", user: "me" };
        let found = |line| match_line(line, &wanted);
        assert_eq!(found("10.0.0.1:5432:app:me:se:cret").as_deref(), Some("se:cret"));
        assert_eq!(found(r"*:*:*:me:a\:b\\c").as_deref(), Some(r"a:b\c"));
        assert_eq!(found("10.0.0.2:5432:app:me:x"), None);
        assert_eq!(found("nonsense"), None);
        let socket = Wanted { host: "/run/pg", port: 5432, database: "app", user: "me" };
        assert_eq!(match_line("localhost:5432:app:me:x", &socket).as_deref(), Some("x"));
    }

    #[test]
    fn a_passfile_must_be_there_and_closed_to_others() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pass");
        let source = Password::Passfile(path.clone());
        let read = |user: &str| source.read(&Wanted { host: "127.0.0.1", port: 5432, database: "app", user });
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
        assert_eq!(format!("{:?}", Password::Given("hunter2".into())), "Given(..)");
    }
}
