//! Servers that require a password: random ones, in a file of libpq's kind that no other user can
//! read.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use postgres_protocol::password::scram_sha_256;

use super::binaries::Binaries;
use super::error::Error;
use super::privileges::Account;
use super::{given, layout, template};

/// `pg_hba.conf` of such a server, for every way to it.
const ASKED: &str = "\
# Written by pgshard when it made this server: everybody is asked for a password.
local all         all              scram-sha-256
host  all         all 127.0.0.1/32 scram-sha-256
host  all         all ::1/128      scram-sha-256
local replication all              scram-sha-256
host  replication all 127.0.0.1/32 scram-sha-256
host  replication all ::1/128      scram-sha-256
";

/// The file that defines which clients are let in, below a server's directory.
const HBA: &str = "data/pg_hba.conf";

/// The passwords of the roles that every server has. None is ever shown.
pub(super) struct Passwords {
    app: String,
    superuser: String,
}

impl Passwords {
    /// New ones that cannot be guessed.
    pub(super) fn random() -> Result<Passwords, Error> {
        Ok(Passwords {
            app: random()?,
            superuser: random()?,
        })
    }

    /// Writes them to a file of ours that only we can read, in a directory of ours. One that is
    /// there is replaced.
    pub(super) fn write(&self, passfile: &Path) -> Result<(), Error> {
        match fs::remove_file(passfile) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io("remove", passfile)(error));
            }
            _ => {}
        }
        let text = format!(
            "*:*:*:app:{}\n*:*:*:postgres:{}\n",
            self.app, self.superuser
        );
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(passfile);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(Error::io("write", passfile))
    }

    /// Makes a server that never ran require them. `server` is its directory.
    pub(super) fn set(
        &self,
        binaries: &Binaries,
        account: &Account,
        server: &Path,
    ) -> Result<(), Error> {
        account.write(&server.join(HBA), ASKED)?;
        // What the server stores instead of a password: the password itself goes nowhere.
        let verifier = |password: &str| scram_sha_256(password.as_bytes());
        let (app, superuser) = (verifier(&self.app), verifier(&self.superuser));
        let statements = format!(
            "ALTER ROLE app PASSWORD '{app}';\nALTER ROLE postgres PASSWORD '{superuser}';\n"
        );
        template::run_single(binaries, account, &layout::data(server), &statements)
    }
}

/// Whether the server in this directory requires passwords.
pub(super) fn asks(server: &Path) -> Result<bool, Error> {
    let text = given::read(server, HBA).map_err(Error::io("read", &server.join(HBA)))?;
    Ok(ASKED
        .lines()
        .next()
        .is_some_and(|first| text.starts_with(first)))
}

/// 192 bits, as letters and digits.
fn random() -> Result<String, Error> {
    let source = Path::new("/dev/urandom");
    let mut bytes = [0; 24];
    File::open(source)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Error::io("read", source))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn the_file_is_ours_alone_and_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let (passfile, other) = (folder.path().join("passfile"), folder.path().join("other"));
        fs::write(&other, "as it was").unwrap();
        symlink(&other, &passfile).unwrap();
        let (first, second) = (Passwords::random().unwrap(), Passwords::random().unwrap());
        assert!(first.app != first.superuser && first.app != second.app && first.app.len() == 48);
        first.write(&passfile).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "as it was");
        let facts = fs::symlink_metadata(&passfile).unwrap();
        assert!(facts.is_file() && facts.permissions().mode() & 0o777 == 0o600);
        second.write(&passfile).unwrap();
        assert!(
            fs::read_to_string(&passfile)
                .unwrap()
                .contains(&format!("app:{}\n", second.app))
        );
    }
}
