//! Which files a command trusts. A config names the servers that get our passwords, and the SQL
//! that runs there with our role.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pgshard::config::Config;

use crate::failure::Failure;

/// Refuses a config that was not named and is in the current folder by chance, if another user can
/// have put it there or altered it. Root's is always accepted; a user who is root by sudo may use
/// their own.
///
/// # Errors
/// With [`crate::exit::Exit::Usage`] and the file's owner. None if there is no such file.
pub(crate) fn found(path: &Path, flag: Option<&Path>) -> Result<(), Failure> {
    let named = std::env::var_os(Config::ENVIRONMENT).is_some_and(|name| !name.is_empty());
    if flag.is_some() || named {
        return Ok(());
    }
    // The link itself, and its target.
    let ways = [std::fs::symlink_metadata(path), std::fs::metadata(path)];
    let why = ways.iter().flatten().find_map(distrust);
    why.map_or(Ok(()), |why| {
        let shown = path.display();
        Err(Failure::usage(format!("{shown} in this folder {why}"))
            .hint(format!("if you trust it, name it: --config {shown}")))
    })
}

/// Why this is not believed; `None` if it is.
fn distrust(facts: &Metadata) -> Option<String> {
    let us = rustix::process::geteuid();
    let by_sudo = std::env::var("SUDO_UID")
        .ok()
        .and_then(|uid| uid.parse().ok());
    let ours = [Some(0), Some(us.as_raw()), by_sudo.filter(|_| us.is_root())];
    if !ours.contains(&Some(facts.uid())) {
        return Some(format!("belongs to another user (uid {})", facts.uid()));
    }
    (!facts.is_symlink() && facts.mode() & 0o002 != 0)
        .then(|| "can be written by every user of this machine".to_owned())
}
