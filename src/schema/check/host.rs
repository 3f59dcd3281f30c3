//! Each host by itself: whether it can be read, matches the config, and has a control schema that
//! is complete.

use super::contradiction::contradicts;
use super::view::Hosts;
use crate::map::{HostName, print_shards};
use crate::pg::HostState;
use crate::pg::cause::chain;
use crate::pg::quote_ident;
use crate::schema::check::finding::{Findings, Severity};
use crate::schema::check::remedy::BOOTSTRAP;
use crate::schema::control::Cluster;
use crate::schema::control::damage::damages;
use crate::schema::control::rights::shell_word;
use crate::schema::control::shape::{self, Gone};
use crate::schema::control::steps::record_of;
use crate::schema::survey::facts::{ControlFacts, FactsError, HostFacts, WholeRow};
use crate::schema::survey::refusal::{pending, restore};
use crate::shard::ShardId;

/// A host that could not be read.
pub(super) fn unread(findings: &mut Findings, host: &HostName, error: &FactsError) {
    let (code, remedy) = match error {
        FactsError::Unreachable { source } => {
            let state = source.host_state();
            (unread_code(state), unread_remedy(state))
        }
        FactsError::NotOwner { owner, role } => ("not_owner", not_owner(owner, role)),
        FactsError::Lacking { gone } => {
            for Gone { what, remedy } in gone {
                let message = format!("of its control schema: {what}");
                findings.add(
                    Severity::Error,
                    "control_damaged",
                    Some(host),
                    message,
                    remedy.as_str(),
                );
            }
            return;
        }
        FactsError::Unreadable { .. } => {
            let remedy = "a program other than pgshard has written there: correct that row; \
                `DELETE FROM pgshard.known_host`, then \
                          `pgshard bootstrap`, where it is what the host knows of others";
            ("host_unreadable", remedy.to_owned())
        }
        _ => (
            "host_unreadable",
            "see what the server's log says".to_owned(),
        ),
    };
    findings.add(Severity::Error, code, Some(host), chain(error), remedy);
}

/// The code of the finding that a host in this state makes.
fn unread_code(state: HostState) -> &'static str {
    match state {
        HostState::RefusesLogins => "login_refused",
        HostState::OutOfConnections => "out_of_connections",
        HostState::StartingUp => "host_starting",
        HostState::OtherServer => "host_displaced",
        HostState::Unreachable => "host_unreachable",
        HostState::NotAsked => "host_not_asked",
        HostState::Serving | HostState::AnswersWithError => "host_unreadable",
    }
}

/// What to do about a host in this state, and what it means for its shards.
fn unread_remedy(state: HostState) -> String {
    let shards = match state {
        HostState::RefusesLogins => "the server runs, and may serve its shards to others",
        HostState::Unreachable => "its shards are not served",
        HostState::StartingUp => "until then it refuses new sessions",
        HostState::OtherServer => "see what else is found about it",
        HostState::NotAsked => "it may be well",
        HostState::OutOfConnections | HostState::Serving | HostState::AnswersWithError => {
            return state.remedy().to_owned();
        }
    };
    format!("{}; {shards}", state.remedy())
}

/// What to do where a role neither owns the control schema nor may watch it.
fn not_owner(owner: &str, role: &str) -> String {
    format!(
        "connect as {owner}, or as a member of it; or, for {role} to watch only, run what `pgshard \
            rights --for monitor --role {}` prints",
        shell_word(role)
    )
}

/// A host that was read.
pub(super) fn check(
    findings: &mut Findings,
    hosts: &Hosts<'_>,
    host: &HostName,
    facts: &HostFacts,
) {
    match (pending(facts, hosts.cluster, host), &facts.control) {
        (Err(refusals), _) => {
            for refusal in refusals {
                findings.add(
                    Severity::Error,
                    refusal.code(),
                    Some(host),
                    refusal.to_string(),
                    refusal.remedy(),
                );
            }
        }
        (Ok(versions), Some(control)) if versions.is_empty() => {
            whole(findings, hosts, host, control);
            damaged(findings, host, control);
            without_rights(findings, host, control);
        }
        (Ok(versions), Some(control)) => behind(findings, host, control, &versions),
        (Ok(_), None) => {}
    }
    // By another N, other schemas are past the last shard.
    if !contradicts(host, facts, hosts.cluster) {
        beyond(findings, hosts.cluster, host, facts);
    }
    if facts.control.is_none() {
        empty(findings, hosts, host);
    }
}

/// An unsharded host whose schema is gone, or that serves nothing yet.
fn whole(findings: &mut Findings, hosts: &Hosts<'_>, host: &HostName, control: &ControlFacts) {
    let Some(schema) = hosts.cluster.whole(host) else {
        return;
    };
    match &control.whole {
        Some(whole) if !whole.exists => {
            let what = format!("it serves all shards from the schema {schema}, which is not there");
            let remedy = "restore the schema from a backup";
            findings.add(Severity::Alarm, "schema_missing", Some(host), what, remedy);
        }
        Some(whole) => {
            legacy_ids(findings, hosts.cluster, host, whole);
            let served = print_shards(control.shards.keys().copied());
            let what = format!("it is unsharded: its schema {schema} serves the shards {served}");
            let remedy = "nothing is wrong: docs/from-one-database.md says what such a host can do";
            findings.add(Severity::Notice, "unsharded", Some(host), what, remedy);
        }
        None => {
            let what = format!("it does not serve the shards from the schema {schema} yet");
            findings.add(
                Severity::Notice,
                "whole_not_served",
                Some(host),
                what,
                "give it all shards in the map, then run `pgshard bootstrap`; or take it out",
            );
        }
    }
}

/// A sequence of an unsharded host whose IDs will soon be taken for those of shards: nine tenths of
/// the IDs from before the shards are used up.
fn legacy_ids(findings: &mut Findings, cluster: &Cluster, host: &HostName, whole: &WholeRow) {
    let below = cluster.legacy_below;
    let Some((sequence, last)) = &whole.last_id else {
        return;
    };
    if *last < below - below / 10 {
        return;
    }
    let what = format!(
        "the sequence {sequence} has made the ID {last}, and IDs from legacy_below = {below} on \
         are taken for those of shards"
    );
    let remedy = "choose a limit above all IDs that it will make; run `UPDATE pgshard.cluster SET \
                  legacy_below = …` on each host, write it into each config, and restart programs";
    findings.add(
        Severity::Warning,
        "legacy_ids_end",
        Some(host),
        what,
        remedy,
    );
}

/// A control schema that lacks these migrations, or only their records.
fn behind(findings: &mut Findings, host: &HostName, control: &ControlFacts, versions: &[i32]) {
    let is_made = |version: &&i32| {
        control
            .shape
            .as_ref()
            .is_some_and(|shape| shape::is_made(**version, shape))
    };
    let mut unrecorded = versions.iter().filter(is_made).peekable();
    if unrecorded.peek().is_none() {
        let message = "its control schema is of an older version";
        findings.add(
            Severity::Warning,
            "control_old",
            Some(host),
            message,
            BOOTSTRAP,
        );
    }
    for version in unrecorded {
        let message =
            format!("its control migration {version} was run, and the record of that is gone");
        findings.add(
            Severity::Error,
            "control_unrecorded",
            Some(host),
            message,
            record_of(*version),
        );
    }
}

/// What is gone or altered in a control schema.
fn damaged(findings: &mut Findings, host: &HostName, control: &ControlFacts) {
    let damages = control
        .installed
        .iter()
        .flat_map(damages)
        .chain(control.shape.iter().flat_map(shape::damages));
    for damage in damages {
        let what = format!("of its control schema: {}", damage.what);
        let remedy = damage
            .by_hand
            .unwrap_or_else(|| format!("{BOOTSTRAP}, which restores it"));
        findings.add(Severity::Error, "control_damaged", Some(host), what, remedy);
    }
}

/// Roles of routers that cannot look up shards on the host.
fn without_rights(findings: &mut Findings, host: &HostName, control: &ControlFacts) {
    for role in &control.routers.lacking {
        let what = format!(
            "the role {role} may use shards here, and may not ask where they are: its statements \
                fail while a shard moves"
        );
        let prints = format!(
            "what `pgshard rights --for router --role {}` prints",
            shell_word(role)
        );
        let remedy = format!("{BOOTSTRAP}, or {prints}");
        findings.add(Severity::Error, "rights_missing", Some(host), what, remedy);
    }
}

/// Schemas with the name of a shard past the last one. Those that the host's own control schema
/// lists are shards, even if the config disagrees: dropping one would lose its rows.
fn beyond(findings: &mut Findings, cluster: &Cluster, host: &HostName, facts: &HostFacts) {
    let (prefix, shards) = (&cluster.schema_prefix, cluster.shards);
    let past_the_last = |schema: &String| {
        let number = schema.strip_prefix(prefix.as_str())?.parse().ok()?;
        let shard = ShardId::new(number)?;
        (!shards.contains(shard) && prefix.schema(shard) == *schema).then_some(shard)
    };
    let is_listed = |shard: &ShardId| {
        facts.control.as_ref().is_some_and(|control| {
            control.shards.contains_key(shard) || control.incoming.contains_key(shard)
        })
    };
    let (listed, strangers): (Vec<ShardId>, Vec<ShardId>) = facts
        .schemas
        .iter()
        .filter_map(past_the_last)
        .partition(is_listed);
    for shard in listed {
        let what = format!("the host lists it as a shard, but the cluster has {shards} shards");
        let remedy = "drop nothing, it may hold the only copy of its rows: see whether \
                      somebody has written to pgshard.shard there, or to pgshard.cluster";
        let (severity, code) = (Severity::Error, "shard_beyond");
        findings.add_shard(severity, code, Some(host), shard, what, remedy);
    }
    let Some(first) = strangers.first() else {
        return;
    };
    let schema = prefix.schema(*first);
    let drop = format!("DROP SCHEMA {} CASCADE", quote_ident(&schema));
    let (what, remedy) = match strangers.len() {
        1 => (
            format!(
                "the schema {schema} is named like a shard, but the cluster has {shards} shards"
            ),
            format!("see whether what is in it is still needed, then {drop}, or rename it"),
        ),
        n => (
            format!(
                "{n} schemas are named like shards ({}), but the cluster has {shards} shards",
                print_shards(strangers.iter().copied())
            ),
            format!(
                "see whether what is in them is still needed, then drop or rename each, as with \
                 {drop}"
            ),
        ),
    };
    findings.add(Severity::Warning, "schema_beyond", Some(host), what, remedy);
}

/// A host without a control schema: one that was never bootstrapped, or has lost its database.
fn empty(findings: &mut Findings, hosts: &Hosts<'_>, host: &HostName) {
    let Some((shards, by)) = hosts.known.missing_shards(host) else {
        let message = "it has not been bootstrapped";
        findings.add(
            Severity::Error,
            "not_bootstrapped",
            Some(host),
            message,
            BOOTSTRAP,
        );
        return;
    };
    for shard in shards {
        let what =
            format!("the database of {host} is empty, and {by} knows that the shard was there");
        findings.add_shard(
            Severity::Alarm,
            "host_emptied",
            Some(host),
            shard,
            what,
            restore(host),
        );
    }
}
