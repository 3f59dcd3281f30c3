//! The user that servers run as. PostgreSQL refuses root, so servers of root run as another user.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::error::Error;

/// Who runs the servers and owns their directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    /// `None`: the account that we run as.
    become_user: Option<User>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct User {
    name: String,
    uid: u32,
    gid: u32,
}

impl Account {
    /// The account that we run as; as root, `postgres`, or else `nobody`.
    pub(super) fn for_servers() -> Result<Account, Error> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Account::ourselves());
        }
        let passwd = Path::new("/etc/passwd");
        let users = fs::read_to_string(passwd).map_err(Error::io("read", passwd))?;
        let user = ["postgres", "nobody"]
            .iter()
            .find_map(|name| user(&users, name));
        Ok(Account {
            become_user: Some(user.ok_or(Error::NoUser)?),
        })
    }

    /// The account that we run as, root too.
    pub(super) fn ourselves() -> Account {
        Account { become_user: None }
    }

    /// The user's name, for errors and the names of caches.
    pub(super) fn name(&self) -> &str {
        self.become_user.as_ref().map_or("self", |user| &user.name)
    }

    /// A command that runs as this user, with nothing of ours on its stdin, and without the `PG…`
    /// variables of our environment, which are meant for another server.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if let Some(user) = &self.become_user {
            command.uid(user.uid).gid(user.gid);
        }
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PG") {
                command.env_remove(name);
            }
        }
        // Messages are searched for by their English words; and our own directory may be closed to
        // the user.
        command
            .env("LC_ALL", "C")
            .current_dir("/")
            .stdin(Stdio::null());
        command
    }

    /// Runs such a command to its end.
    pub(super) fn run(
        &self,
        program: &Path,
        arguments: &[&OsStr],
        input: &str,
    ) -> Result<String, Error> {
        let spawn = |source| Error::Spawn {
            program: program.to_owned(),
            source,
        };
        // Through files, which never fill up as pipes do and never wait for a grandchild that keeps
        // them open.
        let mut stdin = tempfile::tempfile().map_err(spawn)?;
        stdin
            .write_all(input.as_bytes())
            .and_then(|()| stdin.rewind())
            .map_err(spawn)?;
        let mut printed = tempfile::tempfile().map_err(spawn)?;
        let mut command = self.command(program);
        command.args(arguments).stdin(stdin);
        command
            .stdout(printed.try_clone().map_err(spawn)?)
            .stderr(printed.try_clone().map_err(spawn)?);
        let status = command.status().map_err(spawn)?;
        let mut bytes = Vec::new();
        printed
            .rewind()
            .and_then(|()| printed.read_to_end(&mut bytes))
            .map_err(spawn)?;
        let output = String::from_utf8_lossy(&bytes).into_owned();
        if status.success() {
            Ok(output)
        } else {
            Err(Error::Command {
                program: program.to_owned(),
                output: format!("{status}; {}", tail(&output)),
            })
        }
    }

    /// Gives the user a directory of ours, which from then on is closed to all others but root. It
    /// must be in a directory of ours. From here on we write to it by [`Account::write`] only.
    pub(super) fn give(&self, directory: &Path) -> Result<(), Error> {
        let give = || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = fs::File::from(openat(CWD, directory, flags, Mode::empty())?);
            opened.set_permissions(fs::Permissions::from_mode(0o700))?;
            match &self.become_user {
                Some(user) => std::os::unix::fs::fchown(&opened, Some(user.uid), Some(user.gid)),
                None => Ok(()),
            }
        };
        give().map_err(Error::io("give away", directory))
    }

    /// Lets the user pass through a directory of ours to one that the user was given. If we are
    /// that user, nothing changes.
    pub(super) fn let_through(&self, directory: &Path) -> Result<(), Error> {
        match &self.become_user {
            Some(_) => fs::set_permissions(directory, fs::Permissions::from_mode(0o711))
                .map_err(Error::io("open", directory)),
            None => Ok(()),
        }
    }

    /// Writes a file in a directory that was given to the user, as that user: a link that the user
    /// has put there leads only to what the user could write anyway.
    pub(super) fn write(&self, path: &Path, text: &str) -> Result<(), Error> {
        self.redirect("cat >\"$1\"", path, text)
    }

    /// The same, at the end of the file.
    pub(super) fn append(&self, path: &Path, text: &str) -> Result<(), Error> {
        self.redirect("cat >>\"$1\"", path, text)
    }

    fn redirect(&self, script: &str, path: &Path, text: &str) -> Result<(), Error> {
        let script = format!("umask 077; exec {script}");
        let arguments: [&OsStr; 4] = [
            "-c".as_ref(),
            script.as_ref(),
            "pgshard-write".as_ref(),
            path.as_ref(),
        ];
        self.run(Path::new("/bin/sh"), &arguments, text).map(drop)
    }

    /// The first directory on the way to `path`, or `path` itself, that the user cannot enter.
    ///
    /// By the mode bits alone: other groups of the user and access lists are not looked at. Being
    /// wrong that way costs a copy or a clear refusal, never a server that cannot start.
    pub(super) fn blocked_at(&self, path: &Path) -> Option<PathBuf> {
        let user = self.become_user.as_ref()?;
        let mut ways: Vec<&Path> = path.ancestors().collect();
        ways.reverse();
        let closed = |way: &&&Path| {
            let Ok(facts) = fs::metadata(way) else {
                return false;
            };
            let shift = match () {
                () if facts.uid() == user.uid => 6,
                () if facts.gid() == user.gid => 3,
                () => 0,
            };
            facts.is_dir() && facts.mode() >> shift & 0o1 == 0
        };
        ways.iter().find(closed).map(|way| way.to_path_buf())
    }

    /// Refuses a path that the user cannot reach.
    pub(super) fn check_reach(&self, path: &Path) -> Result<(), Error> {
        match self.blocked_at(path) {
            Some(blocked) => Err(Error::OutOfReach {
                user: self.name().to_owned(),
                path: path.to_owned(),
                blocked,
            }),
            None => Ok(()),
        }
    }
}

/// The end of a program's output or of a log, short enough for an error.
pub(super) fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

fn user(passwd: &str, name: &str) -> Option<User> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let found = fields.next()? == name;
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        found.then(|| User {
            name: name.to_owned(),
            uid,
            gid,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_passwd() {
        let passwd =
            "root:x:0:0::/root:/bin/sh\nbroken\nnobody:x:65534:65533:nobody:/:/usr/sbin/nologin\n";
        assert_eq!(
            user(passwd, "nobody"),
            Some(User {
                name: "nobody".into(),
                uid: 65534,
                gid: 65533
            })
        );
        assert_eq!(user(passwd, "postgres"), None);
    }

    #[test]
    fn a_closed_directory_is_named() {
        let top = tempfile::tempdir().unwrap();
        let (closed, inner) = (top.path().join("closed"), top.path().join("closed/inner"));
        fs::create_dir_all(&inner).unwrap();
        fs::set_permissions(top.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        let stranger = Account {
            become_user: Some(User {
                name: "stranger".into(),
                uid: 4_000_001,
                gid: 4_000_001,
            }),
        };
        assert_eq!(stranger.blocked_at(&inner), Some(closed.clone()));
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o711)).unwrap();
        assert_eq!(stranger.blocked_at(&inner), None);
        assert_eq!(Account::ourselves().blocked_at(&inner), None);
    }

    #[test]
    fn a_failed_command_says_what_it_printed() {
        let account = Account::ourselves();
        let run = |script: &str| {
            account.run(
                Path::new("/bin/sh"),
                &["-c".as_ref(), script.as_ref()],
                "in\n",
            )
        };
        assert_eq!(run("cat").unwrap(), "in\n");
        let error = run("echo out; echo err >&2; exit 3")
            .unwrap_err()
            .to_string();
        assert!(error.contains("exit status: 3; out\nerr"), "{error}");
    }
}
