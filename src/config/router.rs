//! `[router]`: what routers do with all hosts, and the keys of hosts about it.

use std::time::Duration;

use crate::router::PrepareMode;
use crate::store::Findings;
use crate::store::section::{Entry, Section, similar};

/// What routers of this cluster do, unless the program that makes one says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouterConfig {
    /// The most connections of one router to all hosts together; `None` where each host's `pool_size` is the only limit.
    pub max_connections: Option<usize>,
    /// How long a call may take, all waiting included; `None` for as long as it takes.
    pub statement_timeout: Option<Duration>,
    /// How statements are prepared on hosts that do not say.
    pub prepare: PrepareMode,
}

/// Reads `[router]`.
pub(super) fn read(section: &Section<'_>, findings: &mut Findings<'_>) -> RouterConfig {
    section.only(&["max_connections", "statement_timeout_ms", "prepare"], findings);
    let positive = |key: &str, findings: &mut Findings<'_>| {
        let entry = section.get(key)?;
        let number = entry.integer(findings)?;
        if number < 1 {
            let hint = "leave it out for no limit".to_owned();
            findings.add(&entry.at(), format!("{key} must be 1 or more, not {number}"), Some(hint));
        }
        u64::try_from(number).ok()
    };
    let max_connections = positive("max_connections", findings);
    RouterConfig {
        max_connections: max_connections.map(|number| usize::try_from(number).unwrap_or(usize::MAX)),
        statement_timeout: positive("statement_timeout_ms", findings).map(Duration::from_millis),
        prepare: section.get("prepare").and_then(|entry| read_prepare(&entry, findings)).unwrap_or_default(),
    }
}

/// Reads `prepare`, here or of a host.
pub(super) fn read_prepare(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<PrepareMode> {
    let text = entry.string(findings)?;
    match text {
        "named" => Some(PrepareMode::Named),
        "unnamed" => Some(PrepareMode::Unnamed),
        _ => {
            let hint = similar(text, ["named", "unnamed"]);
            let hint = hint.unwrap_or_else(|| "\"unnamed\" is for PgBouncer in transaction mode".to_owned());
            findings.add(&entry.at(), "prepare is \"named\" or \"unnamed\"", Some(hint));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ConfigError};

    const GOOD: &str = "[cluster]\nshards = 2\nepoch = \"2011-01-01T00:00:00Z\"\n\
        [hosts.db1]\nurl = \"postgres://app@10.0.0.1/app\"\nHOST\n\
        [map]\nversion = 1\n[map.placement]\ndb1 = \"0-1\"\n[router]\nROUTER\n";

    fn parse(host: &str, router: &str) -> Result<Config, ConfigError> {
        Config::parse(&GOOD.replace("HOST", host).replace("ROUTER", router), "pgshard.toml")
    }

    #[test]
    fn what_routers_do() {
        let config = parse("", "").unwrap();
        assert_eq!(config.router, RouterConfig::default());
        let host = "router_url = \"postgres://app@10.0.0.9:6432/app1\"\nprepare = \"unnamed\"";
        let config = parse(host, "max_connections = 40\nstatement_timeout_ms = 1500").unwrap();
        let options = config.router_options(config.map.clone().unwrap().into());
        assert_eq!((options.max_connections, options.statement_timeout), (Some(40), Some(Duration::from_millis(1500))));
        assert_eq!(options.hosts[0].prepare, PrepareMode::Unnamed);
        assert_eq!(options.hosts[0].connect.to_string(), "app@10.0.0.9:6432/app1");
        assert_eq!(config.hosts["db1"].connect.to_string(), "app@10.0.0.1:5432/app");
        let config = parse("prepare = \"named\"", "prepare = \"unnamed\"").unwrap();
        let options = config.router_options(config.map.clone().unwrap().into());
        assert_eq!(options.hosts[0].prepare, PrepareMode::Named);
    }

    #[test]
    fn mistakes() {
        for (host, router, message) in [
            ("", "max_connections = 0", "max_connections must be 1 or more, not 0"),
            ("", "statement_timeout_ms = -5", "statement_timeout_ms must be 1 or more, not -5"),
            ("", "statement_timeout_ms = \"5s\"", "must be a whole number"),
            ("", "prepare = \"none\"", "prepare is \"named\" or \"unnamed\""),
            ("prepare = \"unnnamed\"", "", "prepare is \"named\" or \"unnamed\""),
            ("router_url = \"postgres://10.0.0.9\"", "", "the url names no user"),
            ("", "pool = 3", "known are max_connections, statement_timeout_ms, prepare"),
        ] {
            let error = parse(host, router).unwrap_err().to_string();
            assert!(error.contains(message), "{host} {router}: {error}");
        }
    }
}
