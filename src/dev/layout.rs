//! Where things are: one directory a server, with `data`, `log` and the unix socket in it.

use std::path::{Path, PathBuf};

use super::error::Error;
use super::privileges::Account;

/// The data directory below a server's directory.
pub(super) fn data(server: &Path) -> PathBuf {
    server.join("data")
}

/// The log below a server's directory.
pub(super) fn log(server: &Path) -> PathBuf {
    server.join(LOG)
}

/// The path of a server's log below its directory.
pub(super) const LOG: &str = "log";
/// The path of the file in which a server reports its state.
pub(super) const POSTMASTER: &str = "data/postmaster.pid";

/// The directory for the unix socket, or `None` where the path is too long for one: the kernel
/// takes 107 bytes (macOS
/// 103) with the name `.s.PGSQL.54321.lock` at its end.
pub(super) fn socket_directory(server: &Path) -> Option<&Path> {
    (server.as_os_str().len() + "/.s.PGSQL.54321.lock".len() <= 103).then_some(server)
}

/// The directory for temporary things: the system's, or `/tmp` where that is too long for a socket
/// below it or closed to `account`.
pub(super) fn temporary(account: &Account) -> Result<PathBuf, Error> {
    let system = std::env::temp_dir();
    let fits = system.is_absolute()
        && system.as_os_str().len() <= 50
        && account.blocked_at(&system).is_none();
    let temporary = if fits { system } else { PathBuf::from("/tmp") };
    account.check_reach(&temporary)?;
    Ok(temporary)
}

/// The directory for data that need not outlive the machine: in memory where there is plenty, since
/// a data directory is more than a thousand small files, and a disk can take a second to make them.
/// If `TMPDIR` is set, it decides.
pub(super) fn throwaway(account: &Account) -> Result<PathBuf, Error> {
    const PLENTY: u64 = 4 << 30;
    let memory = Path::new("/dev/shm");
    let free = rustix::fs::statvfs(memory)
        .map_or(0, |facts| facts.f_bavail.saturating_mul(facts.f_frsize));
    if std::env::var_os("TMPDIR").is_none()
        && free >= PLENTY
        && account.blocked_at(memory).is_none()
    {
        Ok(memory.to_owned())
    } else {
        temporary(account)
    }
}
