//! `[router]`: what routers do with all hosts, and the keys of hosts about it.

use std::time::Duration;

use crate::router::{PrepareMode, Recycle, Selects};
use crate::store::Findings;
use crate::store::section::{Entry, Section, similar};

/// The defaults of routers of this cluster, which the program that creates one can override.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouterConfig {
    /// The most connections of one router to all hosts together. `None`: each host's `pool_size` is
    /// the only limit.
    pub max_connections: Option<usize>,
    /// How long a call may take, all waiting included; `None` for as long as it takes.
    pub statement_timeout: Option<Duration>,
    /// How statements are prepared on hosts without a setting of their own.
    pub prepare: PrepareMode,
    /// What becomes of a session between two callers.
    pub recycle: Recycle,
    /// Whether a SELECT can change anything.
    pub selects: Selects,
    /// How long an unused connection is kept, zero for as long as it works; `None` for the router's
    /// default.
    pub idle_timeout: Option<Duration>,
    /// The age at which a connection is replaced, zero for never; `None` for the router's default.
    pub max_lifetime: Option<Duration>,
    /// How old the data may be that a replica shows; `None` for the router's default.
    pub max_replica_lag: Option<Duration>,
    /// How long a read waits for a replica; `None` for the router's default.
    pub replica_wait: Option<Duration>,
}

/// Reads `[router]`.
pub(super) fn read(section: &Section<'_>, findings: &mut Findings<'_>) -> RouterConfig {
    let known = [
        "max_connections",
        "statement_timeout_ms",
        "prepare",
        "recycle",
        "selects",
        "idle_timeout_ms",
        "max_lifetime_ms",
        "max_replica_lag_ms",
        "replica_wait_ms",
    ];
    section.only(&known, findings);
    let at_least = |least: i64, key: &str, otherwise: &str, findings: &mut Findings<'_>| {
        let entry = section.get(key)?;
        let number = entry.integer(findings)?;
        if number < least {
            let hint = format!("leave it out for {otherwise}");
            findings.add(
                &entry.at(),
                format!("{key} must be {least} or more, not {number}"),
                Some(hint),
            );
        }
        u64::try_from(number).ok()
    };
    let max_connections = at_least(1, "max_connections", "no limit", findings);
    // A replica's position is checked four times within this limit, and at most every 25 ms. With a
    // smaller limit no replica would count as current.
    let max_replica_lag = at_least(100, "max_replica_lag_ms", "5 seconds", findings);
    RouterConfig {
        max_connections: max_connections
            .map(|number| usize::try_from(number).unwrap_or(usize::MAX)),
        statement_timeout: at_least(1, "statement_timeout_ms", "no limit", findings)
            .map(Duration::from_millis),
        prepare: section
            .get("prepare")
            .and_then(|entry| read_prepare(&entry, findings))
            .unwrap_or_default(),
        recycle: read_word(
            section,
            "recycle",
            [("fast", Recycle::Fast), ("clean", Recycle::Clean)],
            findings,
        ),
        selects: read_word(
            section,
            "selects",
            [
                ("may-write", Selects::MayWrite),
                ("only-read", Selects::OnlyRead),
            ],
            findings,
        ),
        idle_timeout: at_least(0, "idle_timeout_ms", "10 minutes", findings)
            .map(Duration::from_millis),
        max_lifetime: at_least(0, "max_lifetime_ms", "30 minutes", findings)
            .map(Duration::from_millis),
        max_replica_lag: max_replica_lag.map(Duration::from_millis),
        replica_wait: at_least(0, "replica_wait_ms", "200 ms", findings).map(Duration::from_millis),
    }
}

/// Reads a key that is one of two words.
fn read_word<T: Copy + Default>(
    section: &Section<'_>,
    key: &str,
    words: [(&str, T); 2],
    findings: &mut Findings<'_>,
) -> T {
    let Some(entry) = section.get(key) else {
        return T::default();
    };
    let Some(text) = entry.string(findings) else {
        return T::default();
    };
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
        return *value;
    }
    let [first, second] = words.map(|(word, _)| word);
    findings.add(
        &entry.at(),
        format!("{key} is \"{first}\" or \"{second}\""),
        similar(text, [first, second]),
    );
    T::default()
}

/// Reads `prepare`, of this section or of a host.
pub(super) fn read_prepare(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<PrepareMode> {
    let text = entry.string(findings)?;
    match text {
        "named" => Some(PrepareMode::Named),
        "unnamed" => Some(PrepareMode::Unnamed),
        _ => {
            let hint = similar(text, ["named", "unnamed"]);
            let hint = hint
                .unwrap_or_else(|| "\"unnamed\" is for PgBouncer in transaction mode".to_owned());
            findings.add(
                &entry.at(),
                "prepare is \"named\" or \"unnamed\"",
                Some(hint),
            );
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
        Config::parse(
            &GOOD.replace("HOST", host).replace("ROUTER", router),
            "pgshard.toml",
        )
    }

    #[test]
    fn what_routers_do() {
        let config = parse("", "").unwrap();
        assert_eq!(config.router, RouterConfig::default());
        let host = "router_url = \"postgres://app@10.0.0.9:6432/app1\"\nprepare = \"unnamed\"";
        let config = parse(host, "max_connections = 40\nstatement_timeout_ms = 1500").unwrap();
        let options = config.router_options(config.map.clone().unwrap().into());
        assert_eq!(
            (options.max_connections, options.statement_timeout),
            (Some(40), Some(Duration::from_millis(1500)))
        );
        assert_eq!(options.hosts[0].prepare, PrepareMode::Unnamed);
        assert_eq!(
            options.hosts[0].connect.to_string(),
            "app@10.0.0.9:6432/app1"
        );
        assert_eq!(
            config.hosts["db1"].connect.to_string(),
            "app@10.0.0.1:5432/app"
        );
        assert_eq!(
            (options.recycle, options.selects),
            (Recycle::Fast, Selects::MayWrite)
        );
        let lives = |more: &str| {
            let config = parse("", more).unwrap();
            let options = config.router_options(config.map.clone().unwrap().into());
            (options.idle_timeout, options.max_lifetime)
        };
        assert_eq!(
            lives(""),
            (
                Some(Duration::from_secs(600)),
                Some(Duration::from_secs(1800))
            )
        );
        let config = "idle_timeout_ms = 0\nmax_lifetime_ms = 5000";
        assert_eq!(
            lives(config),
            (None, Some(Duration::from_secs(5))),
            "0 is for ever"
        );
        let config = parse("", "recycle = \"clean\"\nselects = \"only-read\"").unwrap();
        let options = config.router_options(config.map.clone().unwrap().into());
        assert_eq!(
            (options.recycle, options.selects),
            (Recycle::Clean, Selects::OnlyRead)
        );
        let config = parse("prepare = \"named\"", "prepare = \"unnamed\"").unwrap();
        let options = config.router_options(config.map.clone().unwrap().into());
        assert_eq!(options.hosts[0].prepare, PrepareMode::Named);
    }

    #[test]
    fn who_answers_reads() {
        let replicas = |host: &str| {
            let config = parse(host, "max_replica_lag_ms = 1500\nreplica_wait_ms = 0").unwrap();
            let options = config.router_options(config.map.clone().unwrap().into());
            assert_eq!(
                (options.max_replica_lag, options.replica_wait),
                (Duration::from_millis(1500), Duration::ZERO)
            );
            options.hosts[0]
                .replicas
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        let two = "replica_url = \"postgres://app@10.0.0.3,10.0.0.4:7/app\"\n";
        assert_eq!(replicas(""), [""; 0]);
        assert_eq!(
            replicas(two),
            ["app@10.0.0.3:5432/app", "app@10.0.0.4:7/app"]
        );
        assert_eq!(
            replicas(&format!("{two}reads = \"replica\"")),
            ["app@10.0.0.3:5432/app", "app@10.0.0.4:7/app"]
        );
        assert_eq!(replicas(&format!("{two}reads = \"primary\"")), [""; 0]);
        let own = "router_url = \"postgres://app@a,b/app?target_session_attrs=primary\"\nreads \
            = \"replica\"";
        assert_eq!(replicas(own), ["app@a:5432/app", "app@b:5432/app"]);
    }

    #[test]
    fn each_mistake_is_named() {
        for (host, router, message) in [
            (
                "",
                "max_connections = 0",
                "max_connections must be 1 or more, not 0",
            ),
            (
                "",
                "statement_timeout_ms = -5",
                "statement_timeout_ms must be 1 or more, not -5",
            ),
            (
                "",
                "statement_timeout_ms = \"5s\"",
                "must be a whole number",
            ),
            (
                "",
                "prepare = \"none\"",
                "prepare is \"named\" or \"unnamed\"",
            ),
            (
                "",
                "recycle = \"cleen\"",
                "recycle is \"fast\" or \"clean\"",
            ),
            (
                "",
                "selects = \"write\"",
                "selects is \"may-write\" or \"only-read\"",
            ),
            (
                "prepare = \"unnnamed\"",
                "",
                "prepare is \"named\" or \"unnamed\"",
            ),
            (
                "router_url = \"postgres://10.0.0.9\"",
                "",
                "the url names no user",
            ),
            (
                "",
                "pool = 3",
                "known are max_connections, statement_timeout_ms, prepare",
            ),
            (
                "",
                "max_replica_lag_ms = 20",
                "max_replica_lag_ms must be 100 or more, not 20",
            ),
            (
                "",
                "replica_wait_ms = -1",
                "replica_wait_ms must be 0 or more, not -1",
            ),
            (
                "reads = \"replica\"",
                "",
                "reads from replicas, and no replica is named",
            ),
            (
                "reads = \"replicas\"",
                "",
                "reads is \"primary\" or \"replica\"",
            ),
            (
                "replica_url = \"postgres://10.0.0.9\"",
                "",
                "the url names no user",
            ),
        ] {
            let error = parse(host, router).unwrap_err().to_string();
            assert!(error.contains(message), "{host} {router}: {error}");
        }
    }
}
