//! Writes a host into the config file, and takes one out of it.
//!
//! Invariant: everything else in the file stays as it was written, comments too. The result is
//! valid, and replaces no concurrent change of the file.

use std::fs;
use std::io;
use std::path::Path;

use toml_edit::{DocumentMut, Item, Table, value};

use super::{Config, ConfigError};
use crate::map::HostName;
use crate::store::StoreError;
use crate::store::replace::{Stamp, failed, lock, write_over};

/// A host to be written into the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewHost {
    /// Its name.
    pub name: HostName,
    /// The libpq URL or key=value string as it will be in the file, without a password.
    pub url: String,
    /// The environment variable that holds the password.
    pub password_env: Option<String>,
    /// The file that holds the password.
    pub password_file: Option<String>,
}

/// Why the file was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The file cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The text is invalid, or would be after the change.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is a host of that name.
    #[error("there is a host {name} already")]
    There {
        /// The name.
        name: HostName,
    },
    /// There is no host of that name.
    #[error("there is no host {name}")]
    NotThere {
        /// The name.
        name: HostName,
    },
    /// The text has a form in which a host cannot be put or taken out by a program, such as inline
    /// tables.
    #[error("[hosts] is written in a way that cannot be edited here: change it by hand")]
    Form,
    /// The file changed under us again and again.
    #[error("{} is being changed by another program", path.display())]
    Unsteady {
        /// The file.
        path: std::path::PathBuf,
    },
}

/// How often an edit starts over because the file was changed under it.
const ATTEMPTS: u32 = 5;

impl Config {
    /// The config as it would be with this host. Nothing is written.
    ///
    /// # Errors
    /// When the host exists already, or the config would become invalid: for example, if another
    /// host is the same database.
    pub fn with_host(&self, host: &NewHost) -> Result<Config, EditError> {
        let text = fs::read_to_string(&self.path).map_err(failed("read", &self.path))?;
        Ok(Config::parse(
            &with_host(&text, &self.path, host)?,
            &self.path,
        )?)
    }

    /// Writes a host into the file: a section behind those of the other hosts. Blocks for as long
    /// as others write.
    ///
    /// # Errors
    /// As [`Config::with_host`], and when the file cannot be written. The file then stays as it
    /// was.
    pub fn add_host(&self, host: &NewHost) -> Result<Config, EditError> {
        edit(&self.path, |text| with_host(text, &self.path, host))
    }

    /// The config as it would be without this host. Nothing is written.
    ///
    /// # Errors
    /// When there is no such host, or the config would have mistakes: the map or
    /// `[rebalance.pinned]` need it.
    pub fn without_host(&self, name: &HostName) -> Result<Config, EditError> {
        let text = fs::read_to_string(&self.path).map_err(failed("read", &self.path))?;
        Ok(Config::parse(&without_host(&text, name)?, &self.path)?)
    }

    /// Takes a host out of the file, and its empty line in the map. Blocks for as long as others
    /// write.
    ///
    /// # Errors
    /// As [`Config::without_host`], and when the file cannot be written. The file then stays as it
    /// was.
    pub fn remove_host(&self, name: &HostName) -> Result<Config, EditError> {
        edit(&self.path, |text| without_host(text, name))
    }
}

fn edit(
    path: &Path,
    change: impl Fn(&str) -> Result<String, EditError>,
) -> Result<Config, EditError> {
    // A link stays; its target is replaced.
    let target = fs::canonicalize(path).map_err(failed("find", path))?;
    for _ in 0..ATTEMPTS {
        let file = lock(&target)?;
        let seen = Stamp::of(&file.metadata().map_err(failed("read", &target))?);
        let text = io::read_to_string(&file).map_err(failed("read", &target))?;
        let text = in_the_form_of(&text, change(&text)?);
        let config = Config::parse(&text, path)?;
        if write_over(&target, &file, seen, &text)? {
            return Ok(config);
        }
    }
    Err(EditError::Unsteady { path: target })
}

/// The new text with the line ends of the old one, and its byte order mark: the parser drops both.
fn in_the_form_of(old: &str, new: String) -> String {
    let mut text = new;
    if old.contains("\r\n") && !old.replace("\r\n", "").contains('\n') {
        text = text.replace("\r\n", "\n").replace('\n', "\r\n");
    }
    if old.starts_with('\u{feff}') && !text.starts_with('\u{feff}') {
        text.insert(0, '\u{feff}');
    }
    text
}

fn hosts(document: &mut DocumentMut) -> Result<&mut Table, EditError> {
    document
        .get_mut("hosts")
        .and_then(Item::as_table_mut)
        .ok_or(EditError::Form)
}

fn parsed(text: &str, path: &Path) -> Result<DocumentMut, EditError> {
    // Our own reader reports more precisely what is wrong with the text.
    text.parse().map_err(|_| match Config::parse(text, path) {
        Err(error) => error.into(),
        Ok(_) => EditError::Form,
    })
}

fn with_host(text: &str, path: &Path, host: &NewHost) -> Result<String, EditError> {
    let mut document = parsed(text, path)?;
    let table = hosts(&mut document)?;
    if table.contains_key(host.name.as_str()) {
        return Err(EditError::There {
            name: host.name.clone(),
        });
    }
    let mut section = Table::new();
    section.insert("url", value(&host.url));
    if let Some(variable) = &host.password_env {
        section.insert("password_env", value(variable));
    }
    if let Some(file) = &host.password_file {
        section.insert("password_file", value(file));
    }
    section.decor_mut().set_prefix("\n");
    // Tables are written in the order of their positions. This one comes right behind the last
    // host, before what follows it.
    let last = table
        .iter()
        .filter_map(|(_, item)| item.as_table()?.position())
        .max();
    section.set_position(last);
    table.insert(host.name.as_str(), Item::Table(section));
    Ok(document.to_string())
}

fn without_host(text: &str, name: &HostName) -> Result<String, EditError> {
    let mut document: DocumentMut = text.parse().map_err(|_| EditError::Form)?;
    if hosts(&mut document)?.remove(name.as_str()).is_none() {
        return Err(EditError::NotThere { name: name.clone() });
    }
    let placement = document
        .get_mut("map")
        .and_then(|map| map.get_mut("placement"));
    if let Some(placement) = placement.and_then(Item::as_table_like_mut) {
        let empty = placement
            .get(name.as_str())
            .and_then(Item::as_str)
            .is_some_and(|list| list.trim().is_empty());
        if empty {
            placement.remove(name.as_str());
        }
    }
    Ok(document.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# Ours.
[cluster]
shards = 8
epoch = "2026-01-01T00:00:00Z"

# The first.
[hosts.db1]
url = "postgres://app@10.0.0.1/app"    # in the cellar

[hosts.db2]
url = "postgres://app@10.0.0.2/app"
pool_size = 3   # small

# Where they are.
[map]
version = 7
[map.placement]
db1 = "0-7"    # all
db2 = ""
"#;

    fn host(name: &str, address: &str) -> NewHost {
        let (name, url) = (
            HostName::new(name).unwrap(),
            format!("postgres://app@{address}/app"),
        );
        NewHost {
            name,
            url,
            password_env: Some("PASSWORD".to_owned()),
            password_file: None,
        }
    }

    fn config() -> (tempfile::TempDir, Config) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgshard.toml");
        fs::write(&path, TEXT).unwrap();
        let config = Config::load(path).unwrap();
        (folder, config)
    }

    #[test]
    fn a_host_comes_and_goes_and_the_rest_stays() {
        let (_folder, config) = config();
        let more = config.add_host(&host("db3", "10.0.0.3")).unwrap();
        assert_eq!(more.hosts.len(), 3);
        let text = fs::read_to_string(&config.path).unwrap();
        let added =
            "\n[hosts.db3]\nurl = \"postgres://app@10.0.0.3/app\"\npassword_env = \"PASSWORD\"\n";
        let at = TEXT.find("\n# Where they are").unwrap();
        assert_eq!(text, format!("{}{added}{}", &TEXT[..at], &TEXT[at..]));
        more.remove_host(&HostName::new("db3").unwrap()).unwrap();
        assert_eq!(fs::read_to_string(&config.path).unwrap(), TEXT);
        config.remove_host(&HostName::new("db2").unwrap()).unwrap();
        let text = fs::read_to_string(&config.path).unwrap();
        assert!(
            !text.contains("db2") && text.contains("# Where they are.") && text.contains("# all"),
            "{text}"
        );
    }

    #[test]
    fn line_ends_and_a_byte_order_mark_stay() {
        let (_folder, config) = config();
        let written = format!("\u{feff}{}", TEXT.replace('\n', "\r\n"));
        fs::write(&config.path, &written).unwrap();
        let more = config.add_host(&host("db3", "10.0.0.3")).unwrap();
        let text = fs::read_to_string(&config.path).unwrap();
        assert!(
            text.starts_with('\u{feff}') && text.contains("[hosts.db3]\r\nurl"),
            "{text}"
        );
        assert!(!text.replace("\r\n", "").contains('\n'), "{text}");
        more.remove_host(&HostName::new("db3").unwrap()).unwrap();
        assert_eq!(fs::read_to_string(&config.path).unwrap(), written);
    }

    #[test]
    fn what_would_be_wrong_is_not_written() {
        let (_folder, config) = config();
        let error = config.add_host(&host("db3", "10.0.0.2")).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("is the same database as \"db2\""),
            "{error}"
        );
        assert!(matches!(
            config.add_host(&host("db2", "10.0.0.9")),
            Err(EditError::There { .. })
        ));
        let error = config
            .remove_host(&HostName::new("db1").unwrap())
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("unknown host \"db1\" in [map.placement]"),
            "{error}"
        );
        let gone = HostName::new("db9").unwrap();
        assert!(matches!(
            config.remove_host(&gone),
            Err(EditError::NotThere { .. })
        ));
        assert_eq!(fs::read_to_string(&config.path).unwrap(), TEXT);
    }
}
