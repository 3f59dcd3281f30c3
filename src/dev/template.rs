//! One data directory per PostgreSQL version, made once by `initdb` and copied for every server: a
//! copy takes a tenth of the time.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::binaries::Binaries;
use super::cache::Cache;
use super::error::Error;
use super::layout;
use super::privileges::Account;

/// What every server has from its first moment on. Changing it makes new templates: it is part of
/// their key.
const ROLES: &str = "CREATE ROLE app LOGIN REPLICATION CREATEDB;\nCREATE DATABASE app OWNER app;\n";

/// Before PostgreSQL 15 every role may create objects in `public`. This is run in the database that
/// others are copied from.
const OWN_PUBLIC: &str = "REVOKE CREATE ON SCHEMA public FROM PUBLIC;\n";

/// And there the owner of a database does not own its `public`.
const GIVE_PUBLIC: &str = "GRANT CREATE ON SCHEMA public TO app;\n";

/// The end of `postgresql.conf`. The file is written for each server, after its passwords.
const INCLUDE: &str = "include_if_exists = 'pgshard.conf'\n";

/// Lays a fresh data directory at `data`, which must not exist, in a directory that `account` may
/// write to.
pub(super) fn lay(binaries: &Binaries, account: &Account, data: &Path) -> Result<(), Error> {
    copy(account, &template(binaries, account)?, data)
}

/// Copies the data directory of a server that does not run to `data`, as [`lay`] does.
pub(super) fn copy(account: &Account, template: &Path, data: &Path) -> Result<(), Error> {
    // As the user that runs the server, so that every file is its own.
    account
        .run(
            Path::new("cp"),
            &["-R".as_ref(), template.as_os_str(), data.as_os_str()],
            "",
        )
        .map(drop)
}

/// The template's data directory.
fn template(binaries: &Binaries, account: &Account) -> Result<PathBuf, Error> {
    let name = format!("template-{}", binaries.major());
    let directory = binaries.directory().to_string_lossy();
    let keys = [
        binaries.version(),
        &directory,
        account.name(),
        ROLES,
        OWN_PUBLIC,
        GIVE_PUBLIC,
        INCLUDE,
    ];
    let entry = Cache::open(&layout::throwaway(account)?)?.entry(&name, &keys, |place| {
        let data = place.join("data");
        account.let_through(place)?;
        fs::create_dir(&data).map_err(Error::io("create", &data))?;
        account.give(&data)?;
        build(binaries, account, &data)
    })?;
    Ok(entry.join("data"))
}

fn build(binaries: &Binaries, account: &Account, data: &Path) -> Result<(), Error> {
    let initdb = |locale: &str| {
        let locale = format!("--locale={locale}");
        let arguments = [
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
            &locale,
            "-D",
        ];
        let mut arguments: Vec<&OsStr> = arguments.iter().map(AsRef::as_ref).collect();
        arguments.push(data.as_os_str());
        account.run(&binaries.program("initdb"), &arguments, "")
    };
    // Not every system has C.UTF-8; initdb empties the folder again when it fails.
    initdb("C.UTF-8").or_else(|_| initdb("C"))?;
    if binaries.major() < 15 {
        run_single_in("template1", binaries, account, data, OWN_PUBLIC)?;
    }
    run_single(binaries, account, data, ROLES)?;
    if binaries.major() < 15 {
        run_single_in("app", binaries, account, data, GIVE_PUBLIC)?;
    }
    account.append(&data.join("postgresql.conf"), INCLUDE)
}

/// Runs statements, one per line, as the superuser in a data directory of a stopped server. A
/// server for one user on stdin needs no port and takes a tenth of a second.
pub(super) fn run_single(
    binaries: &Binaries,
    account: &Account,
    data: &Path,
    statements: &str,
) -> Result<(), Error> {
    run_single_in("postgres", binaries, account, data, statements)
}

/// The same in this database.
fn run_single_in(
    database: &str,
    binaries: &Binaries,
    account: &Account,
    data: &Path,
    statements: &str,
) -> Result<(), Error> {
    let single = [
        "--single",
        "-c",
        "exit_on_error=on",
        "-c",
        "fsync=off",
        "-D",
    ];
    let mut arguments: Vec<&OsStr> = single.iter().map(AsRef::as_ref).collect();
    arguments.extend([data.as_os_str(), database.as_ref()]);
    account
        .run(&binaries.program("postgres"), &arguments, statements)
        .map(drop)
}
