//! `service=NAME`: the rest of a connection string, from a section of libpq's `pg_service.conf`.
//! <https://www.postgresql.org/docs/current/libpq-pgservice.html>
//!
//! Invariant: the keys of a string take precedence over the file. No message repeats a value or an
//! unknown key, because either may be a password in the wrong place.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::options_error::OptionsError;

/// The files in which services are looked for; the first that has the section counts. They are the
/// file that `PGSERVICEFILE` names, or `~/.pg_service.conf`, and then `pg_service.conf` in the
/// folder `PGSYSCONFDIR`. libpq also looks into a folder that is fixed when it is built, which we
/// cannot know.
pub(super) fn standard_files() -> Vec<PathBuf> {
    let variable = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let own = variable("PGSERVICEFILE").or_else(|| Some(home()?.join(".pg_service.conf")));
    own.into_iter()
        .chain(variable("PGSYSCONFDIR").map(|folder| folder.join("pg_service.conf")))
        .collect()
}

/// The home of the current user, as libpq finds it: `HOME`, or else the system's list of users.
pub(super) fn home() -> Option<PathBuf> {
    std::env::home_dir().filter(|home| !home.as_os_str().is_empty())
}

/// A key and value of a service, and their line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) line: usize,
}

/// The pairs of a service, and the file that has it.
pub(super) fn find(service: &str, files: &[PathBuf]) -> Result<(PathBuf, Vec<Pair>), OptionsError> {
    for file in files {
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                continue;
            }
            Err(error) => {
                let reason = error.to_string();
                return Err(OptionsError::ServiceFile {
                    file: file.clone(),
                    service: service.to_owned(),
                    reason,
                });
            }
        };
        if let Some(pairs) = section(&text, service, file)? {
            return Ok((file.clone(), pairs));
        }
    }
    Err(OptionsError::NoSuchService {
        service: service.to_owned(),
        files: files.to_vec(),
    })
}

/// The error for a line of a service.
pub(super) fn wrong(file: &Path, service: &str, line: usize, reason: &str) -> OptionsError {
    let reason = format!("line {line} {reason}");
    OptionsError::ServiceFile {
        file: file.to_owned(),
        service: service.to_owned(),
        reason,
    }
}

/// Reads the file as libpq does: `[name]` begins a section, `#` a comment. White space does not
/// count at the ends of a line, but it does around `=`.
pub(super) fn section(
    text: &str,
    service: &str,
    file: &Path,
) -> Result<Option<Vec<Pair>>, OptionsError> {
    let mut found: Option<Vec<Pair>> = None;
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            // The first of that name counts, and ends here.
            if found.is_some() {
                break;
            }
            // As in libpq, whatever comes after the bracket.
            if name
                .strip_prefix(service)
                .is_some_and(|rest| rest.starts_with(']'))
            {
                found = Some(Vec::new());
            }
            continue;
        }
        let Some(pairs) = &mut found else { continue };
        if line.starts_with("ldap") {
            return Err(wrong(
                file,
                service,
                number,
                "asks an LDAP server, which pgshard cannot",
            ));
        }
        let (key, value) = line.split_once('=').ok_or_else(|| {
            wrong(
                file,
                service,
                number,
                "is not key=value, without spaces at =",
            )
        })?;
        if key == "service" {
            return Err(wrong(
                file,
                service,
                number,
                "names another service: that is not possible within one",
            ));
        }
        // If a key comes twice, the first one counts.
        if pairs.iter().all(|pair| pair.key != key) {
            pairs.push(Pair {
                key: key.to_owned(),
                value: value.to_owned(),
                line: number,
            });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# ours\n[shop]\nhost=10.0.0.1\n  port=6432  \n\n# \
        why\nuser=app\npassword=a = b#c\nuser=other\n\
        [other]\nhost=10.0.0.9\n[shop]\nhost=10.0.0.7\n";

    fn pairs(text: &str, service: &str) -> Result<Option<Vec<(String, String)>>, String> {
        let found = section(text, service, Path::new("f")).map_err(|error| error.to_string())?;
        Ok(found.map(|pairs| {
            pairs
                .into_iter()
                .map(|pair| (pair.key, pair.value))
                .collect()
        }))
    }

    #[test]
    fn sections_of_a_service_file_are_read() {
        let shop = pairs(FILE, "shop").unwrap().unwrap();
        let shop: Vec<(&str, &str)> = shop
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        assert_eq!(
            shop,
            [
                ("host", "10.0.0.1"),
                ("port", "6432"),
                ("user", "app"),
                ("password", "a = b#c")
            ]
        );
        assert_eq!(
            pairs(FILE, "other").unwrap().unwrap(),
            [("host".to_owned(), "10.0.0.9".to_owned())]
        );
        assert_eq!(pairs(FILE, "sho"), Ok(None));
        assert_eq!(
            pairs("[a] ours\nhost=1\n[a]\nhost=2", "a")
                .unwrap()
                .unwrap()[0]
                .1,
            "1"
        );
        for (text, words) in [
            ("[a]\nhost", "line 2 is not key=value"),
            (
                "[a]\n\nldap://ldap.mycompany.com/dc=x",
                "line 3 asks an LDAP server",
            ),
            ("[a]\nservice=b", "line 2 names another service"),
        ] {
            let error = pairs(text, "a").unwrap_err();
            assert!(
                error.contains(words) && error.contains("[a] of f"),
                "{error}"
            );
            assert_eq!(
                pairs(text, "b"),
                Ok(None),
                "of other sections nothing is asked"
            );
        }
    }

    #[test]
    fn the_first_file_that_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<PathBuf> = ["none", "first", "second"]
            .map(|name| folder.path().join(name))
            .into();
        fs::write(&files[1], "[a]\nhost=1\n").unwrap();
        fs::write(&files[2], "[a]\nhost=2\n[b]\nhost=3\n").unwrap();
        let host =
            |service| find(service, &files).map(|(file, pairs)| (file, pairs[0].value.clone()));
        assert_eq!(host("a"), Ok((files[1].clone(), "1".to_owned())));
        assert_eq!(host("b"), Ok((files[2].clone(), "3".to_owned())));
        let error = host("c").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("there is no service \"c\" in "),
            "{error}"
        );
        assert!(
            error.to_string().contains(&files[2].display().to_string()),
            "{error}"
        );
        let folder = [folder.path().to_owned()];
        assert!(matches!(
            find("a", &folder),
            Err(OptionsError::ServiceFile { .. })
        ));
    }
}
