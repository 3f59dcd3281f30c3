//! Each host by itself: whether it can be read, is what the config says, and has a control schema that is whole.

use super::remedy::{BOOTSTRAP, MEND};
use crate::map::HostName;
use crate::schema::control::{Cluster, pending, record_of, restore};
use crate::schema::damage::damages;
use crate::schema::facts::{FactsError, Gone, HostFacts, chain};
use crate::schema::finding::{Findings, Severity};
use crate::schema::known::Known;
use crate::schema::{rights, shape};
use crate::shard::ShardId;

pub(super) fn unread(findings: &mut Findings, host: &HostName, error: &FactsError) {
    let (code, remedy) = match error {
        FactsError::Unreachable { source } if source.is_login_refused() => {
            ("login_refused", format!("{}; the server runs, and may serve its shards to others", source.remedy()))
        }
        FactsError::Unreachable { source } => {
            ("host_unreachable", format!("{}; its shards are not served", source.remedy()))
        }
        FactsError::NotOwner { owner, role } => ("not_owner", not_owner(owner, role)),
        FactsError::Lacking { gone } => {
            for Gone { what, remedy } in gone {
                let message = format!("of its control schema: {what}");
                findings.add(Severity::Error, "control_damaged", Some(host), message, remedy.as_str());
            }
            return;
        }
        FactsError::Unreadable { .. } => {
            let remedy = "somebody has written there: correct that row; `DELETE FROM pgshard.known_host`, then \
                          `pgshard bootstrap`, where it is what the host knows of others";
            ("host_unreadable", remedy.to_owned())
        }
        _ => ("host_unreadable", "see what the server's log says".to_owned()),
    };
    findings.add(Severity::Error, code, Some(host), chain(error), remedy);
}

/// What to do where a role neither owns the control schema nor may watch it.
fn not_owner(owner: &str, role: &str) -> String {
    format!(
        "connect as {owner}, or as a member of it; or, for {role} to watch only, run what `pgshard rights --for \
         monitor --role {}` prints",
        rights::shell_word(role)
    )
}

/// The control migrations that were run by what is there, and are not recorded; with the statement that records them.
fn unrecorded(facts: &HostFacts, versions: &[i32]) -> impl Iterator<Item = (i32, String)> {
    let shape = facts.control.as_ref().and_then(|control| control.shape.as_ref());
    let made = shape.into_iter().flat_map(|shape| versions.iter().filter(|version| shape::is_made(**version, shape)));
    made.map(|version| (*version, record_of(*version)))
}

/// Whether a schema has the name of a shard past the last one.
fn is_beyond(schema: &str, cluster: &Cluster) -> bool {
    let number = schema.strip_prefix(cluster.schema_prefix.as_str()).and_then(|number| number.parse().ok());
    number
        .and_then(ShardId::new)
        .is_some_and(|shard| !cluster.shards.contains(shard) && cluster.schema_prefix.schema(shard) == schema)
}

pub(super) fn check(findings: &mut Findings, host: &HostName, facts: &HostFacts, cluster: &Cluster, known: &Known<'_>) {
    match pending(facts, cluster, host) {
        Err(refusals) => {
            for refusal in refusals {
                findings.add(Severity::Error, refusal.code(), Some(host), refusal.to_string(), refusal.remedy());
            }
        }
        Ok(versions) if unrecorded(facts, &versions).next().is_some() => {
            for (version, insert) in unrecorded(facts, &versions) {
                let message = format!("its control migration {version} was run, and the record of that is gone");
                findings.add(Severity::Error, "control_unrecorded", Some(host), message, insert);
            }
        }
        Ok(versions) if facts.control.is_some() && !versions.is_empty() => {
            let message = "its control schema is of an older version";
            findings.add(Severity::Warning, "control_old", Some(host), message, BOOTSTRAP);
        }
        Ok(_) => {
            let installed = facts.control.iter().filter_map(|control| control.installed.as_ref());
            let shapes = facts.control.iter().filter_map(|control| control.shape.as_ref());
            for damage in installed.flat_map(damages).chain(shapes.flat_map(shape::damages)) {
                let what = format!("of its control schema: {}", damage.what);
                let remedy = damage.by_hand.unwrap_or_else(|| MEND.to_owned());
                findings.add(Severity::Error, "control_damaged", Some(host), what, remedy);
            }
            for role in facts.control.iter().flat_map(|control| &control.routers.lacking) {
                let what = format!(
                    "the role {role} may use shards here, and may not ask where they are: its statements fail while a \
                     shard moves"
                );
                let role = rights::shell_word(role);
                let remedy =
                    format!("run `pgshard bootstrap`, or what `pgshard rights --for router --role {role}` prints");
                findings.add(Severity::Error, "rights_missing", Some(host), what, remedy);
            }
        }
    }
    for schema in facts.schemas.iter().filter(|schema| is_beyond(schema, cluster)) {
        let what = format!("the schema {schema} is named like a shard, but the cluster has {}", cluster.shards);
        let name = crate::pg::quote_ident(schema);
        let remedy = format!("see whether somebody needs what is in it, then DROP SCHEMA {name} CASCADE, or rename it");
        findings.add(Severity::Warning, "schema_beyond", Some(host), what, remedy);
    }
    match (&facts.control, known.lost_on(host)) {
        (None, Some((shards, by))) => {
            for shard in shards {
                let what = format!("the database of {host} is empty, and {by} knows that the shard was there");
                findings.add_shard(Severity::Alarm, "host_emptied", Some(host), shard, what, restore(host));
            }
        }
        (None, None) => {
            let message = "it has not been bootstrapped";
            findings.add(Severity::Error, "not_bootstrapped", Some(host), message, BOOTSTRAP);
        }
        (Some(_), _) => {}
    }
}
