//! Finding PostgreSQL's programs.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cache::Cache;
use super::error::Error;
use super::layout;
use super::privileges::Account;

/// The server programs (`postgres`, `initdb`, `pg_ctl`) of one PostgreSQL installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    /// The folder as it was found, symbolic links and all.
    directory: PathBuf,
    version: String,
    major: u32,
}

impl Binaries {
    /// Every installation, the first choice first: `PGSHARD_PG_BIN`, then
    /// `/usr/lib/postgresql/*/bin` (newest first), `pg_config --bindir`, `PATH`, and what
    /// `script/setup` laid into `target/postgres/*/bin` (newest first).
    ///
    /// `target` is searched next to the `Cargo.toml` that cargo names in the environment of tests,
    /// and above the running program.
    ///
    /// # Errors
    /// When there is none.
    pub fn all() -> Result<Vec<Binaries>, Error> {
        let (found, looked) = search()?;
        if found.is_empty() {
            Err(Error::NoBinaries { looked })
        } else {
            Ok(found)
        }
    }

    /// The first choice of [`Binaries::all`].
    ///
    /// # Errors
    /// When there is none.
    pub fn first() -> Result<Binaries, Error> {
        Ok(Binaries::all()?.swap_remove(0))
    }

    /// The first choice of one major version, such as 15.
    ///
    /// # Errors
    /// When there is none of it.
    pub fn of_major(major: u32) -> Result<Binaries, Error> {
        let (found, looked) = search()?;
        if found.is_empty() {
            return Err(Error::NoBinaries { looked });
        }
        let names = found
            .iter()
            .map(|one| format!("{} in {}", one.major, one.directory.display()))
            .collect();
        let wanted = found.into_iter().find(|one| one.major == major);
        wanted.ok_or(Error::NoSuchMajor {
            major,
            found: names,
            looked,
        })
    }

    /// Programs of this major version that are built with TLS, for tests: the wheel's are not.
    #[cfg(test)]
    pub(crate) fn with_tls(major: u32) -> Binaries {
        let laid = laid_by_setup()
            .into_iter()
            .filter_map(|folder| Some(folder.parent()?.join("postgres-tls")));
        let found = laid
            .flat_map(|folder| versions_in(&folder))
            .filter_map(|folder| Binaries::at(&folder));
        let found = found.into_iter().find(|one| one.major == major);
        found.unwrap_or_else(|| match major {
            18 => panic!(
                "there is no PostgreSQL 18 with TLS: script/setup installs it on 64-bit \
                Linux on x86"
            ),
            _ => Binaries::of_major(major).unwrap_or_else(|error| panic!("{error}")),
        })
    }

    /// The folder that holds the programs.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The major version, such as 15.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// What `postgres --version` prints.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// One of the programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The same programs where `account` can run them: as they are or, when they lie behind a
    /// directory that is closed to it (a clone of the repository below `/root`), as a copy of the
    /// whole installation in the cache.
    pub(super) fn within_reach(&self, account: &Account) -> Result<Binaries, Error> {
        let real = fs::canonicalize(&self.directory).map_err(Error::io("find", &self.directory))?;
        if account.blocked_at(&real).is_none() {
            return Ok(self.clone());
        }
        // The whole of `…/18`: programs look for their libraries and `share` relative to
        // themselves.
        let (Some(root), Some(bin)) = (self.directory.parent(), self.directory.file_name()) else {
            account.check_reach(&real)?;
            return Ok(self.clone());
        };
        let name = format!("postgres-{}", self.major);
        // Not in memory: programs cannot be run from there everywhere.
        let cache = Cache::open(&layout::temporary(account)?)?;
        let copy = cache.entry(&name, &[&self.version, &real.to_string_lossy()], |place| {
            let (from, to) = (root.join("."), place.as_os_str());
            Account::ourselves().run(
                Path::new("cp"),
                &["-RP".as_ref(), from.as_os_str(), to],
                "",
            )?;
            Account::ourselves()
                .run(
                    Path::new("chmod"),
                    &["-R".as_ref(), "a+rX".as_ref(), to],
                    "",
                )
                .map(drop)
        })?;
        Ok(Binaries {
            directory: copy.join(bin),
            ..self.clone()
        })
    }

    /// The installation in this folder, if it is one.
    fn at(directory: &Path) -> Option<Binaries> {
        let complete = ["postgres", "initdb", "pg_ctl"]
            .iter()
            .all(|name| directory.join(name).is_file());
        let output = complete
            .then(|| {
                Command::new(directory.join("postgres"))
                    .arg("--version")
                    .output()
            })?
            .ok()?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let major = major(&version)?;
        output.status.success().then(|| Binaries {
            directory: directory.to_owned(),
            version,
            major,
        })
    }
}

impl std::fmt::Display for Binaries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in {}", self.version, self.directory.display())
    }
}

/// `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)` and `postgres (PostgreSQL) 19beta1` have
/// a major version.
fn major(version: &str) -> Option<u32> {
    let number = version.strip_prefix("postgres (PostgreSQL) ")?;
    number
        .split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

/// What there is, and where it was looked for.
///
/// # Errors
/// When `PGSHARD_PG_BIN` names a folder that has no programs: other programs than the requested
/// ones would be used.
fn search() -> Result<(Vec<Binaries>, Vec<String>), Error> {
    let mut found: Vec<Binaries> = Vec::new();
    let mut looked = Vec::new();
    let mut known = BTreeSet::new();
    let mut look = |directories: Vec<PathBuf>| {
        for directory in directories {
            let real = fs::canonicalize(&directory).unwrap_or_else(|_| directory.clone());
            if known.insert(real)
                && let Some(binaries) = Binaries::at(&directory)
            {
                found.push(binaries);
            }
        }
    };
    match std::env::var_os("PGSHARD_PG_BIN") {
        Some(directory) => {
            let directory = PathBuf::from(directory);
            if Binaries::at(&directory).is_none() {
                return Err(Error::NotBinaries { directory });
            }
            looked.push(format!("PGSHARD_PG_BIN ({})", directory.display()));
            look(vec![directory]);
        }
        None => looked.push("PGSHARD_PG_BIN (not set)".to_owned()),
    }
    looked.push("/usr/lib/postgresql/*/bin".to_owned());
    look(versions_in(Path::new("/usr/lib/postgresql")));
    looked.push("pg_config --bindir".to_owned());
    if let Ok(output) = Command::new("pg_config").arg("--bindir").output() {
        look(vec![String::from_utf8_lossy(&output.stdout).trim().into()]);
    }
    looked.push("PATH".to_owned());
    look(
        std::env::var_os("PATH")
            .map(|path| in_path(&path))
            .unwrap_or_default(),
    );
    for laid in laid_by_setup() {
        looked.push(format!("{}/*/bin", laid.display()));
        look(versions_in(&laid));
    }
    Ok((found, looked))
}

/// The folders of a `PATH`, without those that are the current directory or below it.
fn in_path(path: &OsStr) -> Vec<PathBuf> {
    std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .collect()
}

/// `…/18/bin`, `…/15/bin`: the folders of programs below a folder with one folder a version, newest
/// first.
fn versions_in(folder: &Path) -> Vec<PathBuf> {
    let number = |path: &PathBuf| {
        path.file_name()
            .and_then(OsStr::to_str)
            .and_then(|name| name.parse::<u32>().ok())
    };
    let entries = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let mut versions: Vec<(u32, PathBuf)> = entries
        .filter_map(|path| Some((number(&path)?, path)))
        .collect();
    versions.sort_by(|left, right| right.cmp(left));
    versions
        .into_iter()
        .map(|(_, path)| path.join("bin"))
        .collect()
}

/// Where `script/setup` may have put versions: in the `target` next to the manifest, or in one
/// above the running program. The current directory is not searched, since any user may have put
/// programs there.
fn laid_by_setup() -> Vec<PathBuf> {
    let mut targets = Vec::new();
    if let Some(manifest) = std::env::var_os("CARGO_MANIFEST_DIR") {
        targets.push(PathBuf::from(manifest).join("target"));
    }
    if let Ok(program) = std::env::current_exe() {
        targets.extend(
            program
                .ancestors()
                .filter(|way| way.ends_with("target"))
                .map(Path::to_owned),
        );
    }
    let mut folders: Vec<PathBuf> = targets
        .into_iter()
        .map(|target| target.join("postgres"))
        .collect();
    folders.dedup();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_versions_are_read_from_what_programs_print() {
        assert_eq!(
            major("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"),
            Some(15)
        );
        assert_eq!(major("postgres (PostgreSQL) 19beta1"), Some(19));
        assert_eq!(major("postgres (EnterpriseDB) x"), None);
        assert_eq!(major(""), None);
    }

    #[test]
    fn newest_first_by_number() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["9", "15", "18", "lost+found"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let names = versions_in(folder.path());
        assert_eq!(
            names,
            ["18/bin", "15/bin", "9/bin"].map(|name| folder.path().join(name))
        );
    }

    #[test]
    fn the_current_directory_is_in_no_path() {
        assert_eq!(
            in_path(":.:/usr/bin:bin::".as_ref()),
            [Path::new("/usr/bin")]
        );
    }

    #[test]
    fn a_folder_without_programs_is_none() {
        assert_eq!(Binaries::at(tempfile::tempdir().unwrap().path()), None);
    }
}
