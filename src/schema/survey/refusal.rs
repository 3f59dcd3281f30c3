//! What a host has recorded of itself, compared with the config: which steps of the control schema
//! it lacks, or why it is not written to. Pure.
//!
//! Invariant: a host that recorded another N, epoch, prefix or name is never written to.

use super::facts::{ControlFacts, HostFacts, RecordedCluster};
use crate::id::Epoch;
use crate::map::{HostName, print_shards};
use crate::schema::control::Cluster;
use crate::schema::control::steps::{STEPS, VERSION, checksum};
use crate::shard::{KeyKind, SchemaPrefix, ShardCount, ShardId, unsharded_key};

/// The oldest PostgreSQL that works, as `server_version_num`.
const SERVER_VERSION_MIN: i32 = 130_000;

/// Why a host's control schema is neither installed nor upgraded, or a host is not written to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The server is too old.
    #[error("the server is PostgreSQL {}, and 13 is the oldest that works", version / 10_000)]
    ServerTooOld {
        /// `server_version_num`.
        version: i32,
    },
    /// The server is a standby.
    #[error("the server is a standby, where nothing can be written")]
    Standby,
    /// The role may not create schemas.
    #[error("the role {role} may not create schemas in the database {database}")]
    MayNotCreate {
        /// The role.
        role: String,
        /// The database.
        database: String,
    },
    /// There is a schema `pgshard`, and it is something else.
    #[error("there is a schema pgshard that is not pgshard's control schema")]
    OtherSchema,
    /// The host knows control migrations that this pgshard does not.
    #[error("its control schema has version {recorded}, this pgshard knows {VERSION}")]
    Newer {
        /// The newest there.
        recorded: i32,
    },
    /// A control migration was run with another text.
    #[error(
        "its control migration {version} ({name}) was run with another text than this pgshard has"
    )]
    Changed {
        /// Its number.
        version: i32,
        /// Its name there.
        name: String,
    },
    /// The row of `pgshard.cluster` is gone.
    #[error("its control schema has lost what it recorded of the cluster")]
    Lost,
    /// Another N.
    #[error("it recorded {recorded} shards, the config says {config}")]
    Shards {
        /// N there.
        recorded: i32,
        /// N in the config.
        config: ShardCount,
    },
    /// Another epoch.
    #[error(
        "it recorded the epoch {}, the config says {}",
        written(*recorded_ms),
        config.timestamp()
    )]
    Epoch {
        /// The epoch there, as Unix milliseconds.
        recorded_ms: i64,
        /// The epoch in the config.
        config: Epoch,
    },
    /// Another schema prefix.
    #[error("it recorded the schema prefix {recorded:?}, the config says {:?}", config.as_str())]
    Prefix {
        /// The prefix there.
        recorded: String,
        /// The prefix in the config.
        config: SchemaPrefix,
    },
    /// Once-per-host migrations were run that the folder does not have.
    #[error("of the once-per-host migrations, {said}")]
    HostMigrations {
        /// What is different.
        said: String,
        /// What to do.
        remedy: String,
    },
    /// Another kind of keys.
    #[error("it recorded that keys are {recorded}, the config says {config}")]
    Key {
        /// The kind there.
        recorded: String,
        /// The kind in the config.
        config: KeyKind,
    },
    /// Another layout.
    #[error("it recorded that it is {recorded}, the config says {config}")]
    Layout {
        /// The layout there: `sharded` or `unsharded`.
        recorded: &'static str,
        /// The layout in the config.
        config: &'static str,
    },
    /// Another schema of all shards.
    #[error("it serves all shards from the schema {recorded:?}, the config says {config:?}")]
    WholeSchema {
        /// The schema there.
        recorded: String,
        /// The schema in the config.
        config: String,
    },
    /// Another limit of the IDs from before the shards.
    #[error(
        "it recorded that IDs below {recorded} are from before the shards, the config says {config}"
    )]
    LegacyBelow {
        /// The limit there.
        recorded: i64,
        /// The limit in the config.
        config: i64,
    },
    /// The schema of all shards is not there.
    #[error("the schema {schema:?}, from which it is to serve all shards, is not there")]
    NoSchema {
        /// The schema.
        schema: String,
    },
    /// Schemas of shards are there.
    #[error(
        "it is to serve all shards from the schema {schema:?}, and has schemas of shards, such as \
            {found}"
    )]
    HasShards {
        /// The schema of all shards.
        schema: String,
        /// A schema with a shard's name.
        found: String,
    },
    /// What was to be done works in each shard, and the host has one schema for all.
    #[error("it is unsharded: all shards are in its schema {schema:?}")]
    Unsharded {
        /// The schema.
        schema: String,
    },
    /// Another host.
    #[error("it recorded that it is the host {recorded}, the config calls it {config}")]
    HostName {
        /// The name there.
        recorded: String,
        /// The name in the config.
        config: HostName,
    },
    /// Its database is empty, and others know that it was not.
    #[error("its database is empty, and {by} knows that {shards} were \
        there", shards = shards_named(shards))]
    Emptied {
        /// The host.
        host: HostName,
        /// A host that knows.
        by: HostName,
        /// The shards that were there and are on no other host.
        shards: Vec<ShardId>,
    },
}

/// An epoch as the config has it.
fn written(unix_ms: i64) -> String {
    match jiff::Timestamp::from_millisecond(unix_ms) {
        Ok(timestamp) => timestamp.to_string(),
        Err(_) => format!("{unix_ms} ms after 1970"),
    }
}

/// The remedy for a value of `[cluster]` that is not the recorded one.
fn put_back(key: &str, recorded: &str) -> String {
    format!(
        "it cannot change once bootstrapped: put {key} = {recorded} back into the config, or use \
         an empty database"
    )
}

/// `shard 7`, `shards 0-3`.
pub(crate) fn shards_named(shards: &[ShardId]) -> String {
    let plural = if shards.len() == 1 { "shard" } else { "shards" };
    format!("{plural} {}", print_shards(shards.iter().copied()))
}

/// What to do about a host that has lost its database.
pub fn restore(host: &HostName) -> String {
    format!(
        "restore its database from a backup or a standby, then run `pgshard recover {host}`; \
            docs/trouble.md has the steps under \"A host has lost its database\". Only if its rows \
            are lost for good: `pgshard bootstrap --lost {host}` makes its shards again, empty, \
            and `pgshard moves repair SHARD --give-up {host}` takes one back whose old copy is on \
            another host"
    )
}

impl Refusal {
    /// What to do.
    pub fn remedy(&self) -> String {
        match self {
            Refusal::ServerTooOld { .. } => "upgrade the server".to_owned(),
            Refusal::Standby => "name the primary in the config".to_owned(),
            Refusal::MayNotCreate { role, database } => format!(
                "as the database's owner: GRANT CREATE ON DATABASE {} TO {}",
                crate::pg::quote_ident(database),
                crate::pg::quote_ident(role)
            ),
            Refusal::OtherSchema => "rename that schema, or use another database".to_owned(),
            Refusal::Newer { .. } => "use the newer pgshard".to_owned(),
            Refusal::Changed { .. } => {
                "use the pgshard that bootstrapped the host, or a later release of it".to_owned()
            }
            Refusal::Lost => {
                "put the row of pgshard.cluster back, as on the other hosts, with this host's name"
                    .to_owned()
            }
            Refusal::Shards { recorded, .. } => put_back("shards", &recorded.to_string()),
            Refusal::Epoch { recorded_ms, .. } => {
                put_back("epoch", &format!("\"{}\"", written(*recorded_ms)))
            }
            Refusal::Prefix { recorded, .. } => {
                put_back("schema_prefix", &format!("\"{recorded}\""))
            }
            Refusal::Key { recorded, .. } => put_back("key", &format!("\"{recorded}\"")),
            Refusal::Layout { recorded, .. } => format!(
                "it cannot change once bootstrapped: put layout = \"{recorded}\" back into the \
                    config, or use another database"
            ),
            Refusal::WholeSchema { recorded, .. } => put_back("schema", &format!("{recorded:?}")),
            Refusal::LegacyBelow { recorded: 0, .. } => {
                "it cannot change once bootstrapped: take legacy_below out of the config".to_owned()
            }
            Refusal::LegacyBelow { recorded, .. } => {
                put_back("legacy_below", &recorded.to_string())
            }
            Refusal::NoSchema { .. } => {
                "name the schema that has the application's tables, or the right database"
                    .to_owned()
            }
            Refusal::HasShards { .. } => {
                "name the database from before the shards; one with shards stays sharded".to_owned()
            }
            Refusal::Unsharded { schema } => format!(
                "change the tables of {schema} as before, by the application's own migrations; \
                    shards come into being by an import (docs/from-one-database.md)"
            ),
            Refusal::HostMigrations { remedy, .. } => remedy.clone(),
            Refusal::Emptied { host, .. } => restore(host),
            Refusal::HostName { recorded, .. } => format!(
                "name it [hosts.{recorded}] in the config; if its url is wrong, put the right one"
            ),
        }
    }

    /// Whether the host is not the one in the config, or belongs to another cluster.
    pub fn is_of_another_host(&self) -> bool {
        match self {
            Refusal::Shards { .. }
            | Refusal::Epoch { .. }
            | Refusal::Prefix { .. }
            | Refusal::Key { .. }
            | Refusal::Layout { .. }
            | Refusal::WholeSchema { .. }
            | Refusal::LegacyBelow { .. }
            | Refusal::HostName { .. } => true,
            Refusal::ServerTooOld { .. }
            | Refusal::Standby
            | Refusal::MayNotCreate { .. }
            | Refusal::OtherSchema
            | Refusal::Newer { .. }
            | Refusal::Changed { .. }
            | Refusal::Lost
            | Refusal::HostMigrations { .. }
            | Refusal::NoSchema { .. }
            | Refusal::HasShards { .. }
            | Refusal::Unsharded { .. }
            | Refusal::Emptied { .. } => false,
        }
    }

    /// A name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::ServerTooOld { .. } => "server_too_old",
            Refusal::Standby => "standby",
            Refusal::MayNotCreate { .. } => "may_not_create",
            Refusal::OtherSchema => "other_schema",
            Refusal::Newer { .. } => "control_newer",
            Refusal::Changed { .. } => "control_changed",
            Refusal::Lost => "control_lost",
            Refusal::Shards { .. } => "shards_differ",
            Refusal::Epoch { .. } => "epoch_differs",
            Refusal::Prefix { .. } => "prefix_differs",
            Refusal::HostMigrations { .. } => "host_migrations_drift",
            Refusal::Key { .. } => "key_differs",
            Refusal::Layout { .. } => "layout_differs",
            Refusal::WholeSchema { .. } => "whole_schema_differs",
            Refusal::LegacyBelow { .. } => "legacy_below_differs",
            Refusal::NoSchema { .. } => "whole_schema_missing",
            Refusal::HasShards { .. } => "has_shards",
            Refusal::Unsharded { .. } => "unsharded",
            Refusal::HostName { .. } => "host_name_differs",
            Refusal::Emptied { .. } => "host_emptied",
        }
    }
}

impl RecordedCluster {
    /// Everything in which the cluster, or the layout of this host of it, is another one than the
    /// config's.
    pub(crate) fn differences(&self, cluster: &Cluster, host: &HostName) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        if self.shards != i32::from(cluster.shards.get()) {
            refusals.push(Refusal::Shards {
                recorded: self.shards,
                config: cluster.shards,
            });
        }
        if self.epoch_ms != cluster.epoch.unix_ms() {
            refusals.push(Refusal::Epoch {
                recorded_ms: self.epoch_ms,
                config: cluster.epoch,
            });
        }
        if self.schema_prefix != cluster.schema_prefix.as_str() {
            let (recorded, config) = (self.schema_prefix.clone(), cluster.schema_prefix.clone());
            refusals.push(Refusal::Prefix { recorded, config });
        }
        let (config, unsharded) = (cluster.whole(host), unsharded_key(&self.key_kind));
        if config.is_some() != unsharded.is_some() {
            let name = |is_unsharded| if is_unsharded { "unsharded" } else { "sharded" };
            refusals.push(Refusal::Layout {
                recorded: name(unsharded.is_some()),
                config: name(config.is_some()),
            });
        }
        let key = unsharded.unwrap_or(&self.key_kind);
        if key != cluster.key.as_str() {
            refusals.push(Refusal::Key {
                recorded: key.to_owned(),
                config: cluster.key,
            });
        }
        if self.legacy_below != cluster.legacy_below {
            refusals.push(Refusal::LegacyBelow {
                recorded: self.legacy_below,
                config: cluster.legacy_below,
            });
        }
        refusals
    }
}

/// Everything in which a host's record differs from the config.
pub fn differences(control: &ControlFacts, cluster: &Cluster, host: &HostName) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    match &control.cluster {
        // The row is written together with the first migration.
        None => refusals.push(Refusal::Lost),
        Some(recorded) => {
            refusals.extend(recorded.differences(cluster, host));
            if recorded.host_name != host.as_str() {
                let (recorded, config) = (recorded.host_name.clone(), host.clone());
                refusals.push(Refusal::HostName { recorded, config });
            }
        }
    }
    if let (Some(there), Some(schema)) = (&control.whole, cluster.whole(host))
        && there.schema != schema.as_str()
    {
        refusals.push(Refusal::WholeSchema {
            recorded: there.schema.clone(),
            config: schema.to_string(),
        });
    }
    for recorded in &control.migrations {
        match STEPS.iter().find(|step| step.version == recorded.version) {
            Some(step) if checksum(step.sql) != recorded.checksum => {
                refusals.push(Refusal::Changed {
                    version: recorded.version,
                    name: recorded.name.clone(),
                });
            }
            Some(_) => {}
            None if recorded.version > VERSION => refusals.push(Refusal::Newer {
                recorded: recorded.version,
            }),
            None => refusals.push(Refusal::Changed {
                version: recorded.version,
                name: recorded.name.clone(),
            }),
        }
    }
    refusals
}

/// The versions to run on a host, in order; empty if the control schema exists and is up to date.
///
/// # Errors
/// Every reason why the host is not to be written to.
pub(in crate::schema) fn pending(
    facts: &HostFacts,
    cluster: &Cluster,
    host: &HostName,
) -> Result<Vec<i32>, Vec<Refusal>> {
    let server = &facts.server;
    let mut refusals = Vec::new();
    if server.version < SERVER_VERSION_MIN {
        refusals.push(Refusal::ServerTooOld {
            version: server.version,
        });
    }
    if server.in_recovery {
        refusals.push(Refusal::Standby);
    }
    let done: &[_] = match &facts.control {
        Some(control) => {
            refusals.extend(differences(control, cluster, host));
            &control.migrations
        }
        None => {
            if server.has_pgshard {
                refusals.push(Refusal::OtherSchema);
            }
            if !server.may_create {
                let (role, database) = (server.role.clone(), server.database.clone());
                refusals.push(Refusal::MayNotCreate { role, database });
            }
            &[]
        }
    };
    if !refusals.is_empty() {
        return Err(refusals);
    }
    let missing = STEPS
        .iter()
        .map(|step| step.version)
        .filter(|v| done.iter().all(|recorded| recorded.version != *v));
    Ok(missing.collect())
}

/// The same for what works in each shard: an unsharded host is refused.
///
/// # Errors
/// As [`pending`], and where all shards of the host are in one schema.
pub(in crate::schema) fn pending_in_shards(
    facts: &HostFacts,
    cluster: &Cluster,
    host: &HostName,
) -> Result<Vec<i32>, Vec<Refusal>> {
    let versions = pending(facts, cluster, host)?;
    match cluster.whole(host) {
        None => Ok(versions),
        Some(schema) => Err(vec![Refusal::Unsharded {
            schema: schema.to_string(),
        }]),
    }
}

#[cfg(test)]
pub(in crate::schema) mod tests {
    use super::super::facts::{RecordedControl, ServerFacts};
    use super::*;

    pub(in crate::schema) fn cluster() -> Cluster {
        Cluster {
            shards: ShardCount::new(16).unwrap(),
            epoch: Epoch::from_unix_ms(1_293_840_000_000).unwrap(),
            schema_prefix: SchemaPrefix::default(),
            key: KeyKind::Integer,
            legacy_below: 0,
            unsharded: None,
        }
    }

    /// A host that was just bootstrapped and has no shards yet.
    pub(in crate::schema) fn facts(host: &str) -> HostFacts {
        let control = ControlFacts {
            migrations: STEPS
                .iter()
                .map(|step| RecordedControl {
                    version: step.version,
                    name: step.name.to_owned(),
                    checksum: checksum(step.sql),
                })
                .collect(),
            cluster: Some(RecordedCluster {
                shards: 16,
                epoch_ms: 1_293_840_000_000,
                schema_prefix: "shard_".to_owned(),
                host_name: host.to_owned(),
                key_kind: "integer".to_owned(),
                legacy_below: 0,
            }),
            ..ControlFacts::default()
        };
        let server = ServerFacts {
            version: 150_004,
            role: "app".to_owned(),
            database: "app".to_owned(),
            in_recovery: false,
            may_create: true,
            has_pgshard: true,
            is_superuser: false,
            public_may_create: false,
            may_replicate: true,
            can_decode: true,
            lock_slots: 6400,
            commits_wait: false,
            watcher: None,
        };
        HostFacts {
            server,
            schemas: Default::default(),
            of_moves: Default::default(),
            settings: Default::default(),
            control: Some(control),
            clock: None,
        }
    }

    fn db1() -> HostName {
        HostName::new("db1").unwrap()
    }

    #[test]
    fn a_host_that_is_as_it_should_be() {
        assert_eq!(pending(&facts("db1"), &cluster(), &db1()), Ok(vec![]));
        let mut fresh = facts("db1");
        (fresh.control, fresh.server.has_pgshard) = (None, false);
        assert_eq!(
            pending(&fresh, &cluster(), &db1()),
            Ok(STEPS.iter().map(|step| step.version).collect())
        );
    }

    #[test]
    fn all_differences_at_once() {
        let mut other = facts("db7");
        let control = other.control.as_mut().unwrap();
        let recorded = control.cluster.as_mut().unwrap();
        (recorded.shards, recorded.epoch_ms, recorded.schema_prefix) = (32, 5, "s".to_owned());
        recorded.key_kind = "uuid:sha256".to_owned();
        control.migrations[0].checksum = "other".to_owned();
        control.migrations.push(RecordedControl {
            version: 99,
            name: "later".to_owned(),
            checksum: String::new(),
        });
        other.server.in_recovery = true;
        other.server.version = 120_010;
        let refusals = pending(&other, &cluster(), &db1()).unwrap_err();
        let said: Vec<_> = refusals.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "the server is PostgreSQL 12, and 13 is the oldest that works",
                "the server is a standby, where nothing can be written",
                "it recorded 32 shards, the config says 16",
                "it recorded the epoch 1970-01-01T00:00:00.005Z, the config says \
                 2011-01-01T00:00:00Z",
                "it recorded the schema prefix \"s\", the config says \"shard_\"",
                "it recorded that keys are uuid:sha256, the config says integer",
                "it recorded that it is the host db7, the config calls it db1",
                "its control migration 1 (shards) was run with another text than this pgshard has",
                format!("its control schema has version 99, this pgshard knows {VERSION}").as_str(),
            ]
        );
    }

    #[test]
    fn rights_come_with_their_remedy() {
        let mut fresh = facts("db1");
        fresh.control = None;
        fresh.server.may_create = false;
        let refusals = pending(&fresh, &cluster(), &db1()).unwrap_err();
        assert_eq!(refusals[0], Refusal::OtherSchema);
        assert_eq!(
            refusals[1].remedy(),
            r#"as the database's owner: GRANT CREATE ON DATABASE "app" TO "app""#
        );
    }
}
