//! The hosts' clocks compared with each other, and the shards' IDs with their host's clock. Pure.

use super::finding::{Findings, Severity};
use crate::id::Epoch;
use crate::map::HostName;
use crate::schema::survey::facts::{ClockFacts, Survey};

/// Two clocks that differ by this much are mentioned. IDs stay unique: only their order across
/// shards is worse.
const OFF_MS: i64 = 500;

/// How far IDs can be ahead of a clock that was never set back: a burst runs ahead by a second,
/// then waits.
const AHEAD_MS: i64 = 1100;

const YEAR_MS: i64 = 365 * 86_400_000;

/// From this many on, `id_repair()` brings IDs back: IDs made after it meet those made before in
/// ten years at the soonest. The bound is that function's.
const REPAIRABLE_MS: i64 = 3652 * 86_400_000;

/// Clocks that are off, and the end of positive IDs. Hosts without a reading of their clock are
/// left out.
pub(in crate::schema) fn check(findings: &mut Findings, survey: &Survey, epoch: Epoch) {
    let clocks: Vec<(&HostName, &ClockFacts)> = survey
        .iter()
        .filter_map(|(host, facts)| Some((host, facts.as_ref().ok()?.clock.as_ref()?)))
        .collect();
    let usual = usual(&clocks);
    for (host, clock) in &clocks {
        if let Some(usual) = usual {
            off(findings, host, clock, usual);
        }
        ids_ahead(findings, host, clock);
        ids_unset(findings, host, clock);
    }
    if usual.is_none() {
        apart(findings, &clocks);
    }
    let Some(now) = clocks
        .iter()
        .map(|(_, clock)| clock.now.as_millisecond())
        .max()
    else {
        return;
    };
    let flip = epoch.sign_flip();
    if now >= flip.as_millisecond() {
        let what =
            format!("IDs are negative as bigint since {flip}: ORDER BY id puts newer rows first");
        let remedy = "order by (id >> 23) & 2199023255551, or by a time of your own";
        findings.add(Severity::Notice, "ids_negative", None, what, remedy);
    } else if now >= flip.as_millisecond() - YEAR_MS {
        let what = format!(
            "IDs turn negative as bigint on {flip}: from then on ORDER BY id puts newer rows first"
        );
        let remedy = "see that nothing takes IDs as signed before that day; they stay unique and \
            decode as before";
        findings.add(Severity::Warning, "ids_turn_negative", None, what, remedy);
    }
}

/// The clock in the middle: a minority that is off, ahead or behind, does not accuse the others.
/// `None` if one half differs from the other, as two clocks do: which of them is off is not known.
fn usual<'a>(clocks: &[(&HostName, &'a ClockFacts)]) -> Option<&'a ClockFacts> {
    let mut sorted: Vec<&ClockFacts> = clocks.iter().map(|(_, clock)| *clock).collect();
    sorted.sort_by_key(|clock| clock.ahead_ms);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    let within = lower.within_ms + upper.within_ms;
    (upper.ahead_ms - lower.ahead_ms - within <= OFF_MS).then_some(lower)
}

/// A clock that differs from the usual one.
fn off(findings: &mut Findings, host: &HostName, clock: &ClockFacts, usual: &ClockFacts) {
    let (ahead, within) = (
        clock.ahead_ms - usual.ahead_ms,
        clock.within_ms + usual.within_ms,
    );
    if ahead.abs() - within <= OFF_MS {
        return;
    }
    let side = if ahead > 0 { "ahead of" } else { "behind" };
    let what = format!(
        "its clock is {} s {side} the other hosts' (+- {within} ms)",
        seconds(ahead.abs())
    );
    let remedy = "have it set by NTP; IDs stay unique meanwhile, but do not sort by time across \
                  shards";
    findings.add(Severity::Warning, "clock_off", Some(host), what, remedy);
}

/// Clocks of which one half differs from the other. The clock of this machine is a further one,
/// which may be off as well.
fn apart(findings: &mut Findings, clocks: &[(&HostName, &ClockFacts)]) {
    let by_clock = |(_, clock): &&(&HostName, &ClockFacts)| clock.ahead_ms;
    let (Some((behind, least)), Some((ahead, most))) = (
        clocks.iter().min_by_key(by_clock),
        clocks.iter().max_by_key(by_clock),
    ) else {
        return;
    };
    let which = if clocks.len() > 2 {
        ", and half of the hosts are closer to one, half to the other"
    } else {
        ""
    };
    let what = format!(
        "the clock of {ahead} is {} s ahead of that of {behind} (+- {} ms){which}; compared with \
         this machine's, {behind} is at {:+.1} s and {ahead} at {:+.1} s",
        seconds(most.ahead_ms - least.ahead_ms),
        least.within_ms + most.within_ms,
        least.ahead_ms as f64 / 1000.0,
        most.ahead_ms as f64 / 1000.0
    );
    let remedy = "have the one that is off set by NTP; IDs stay unique meanwhile, but do not sort \
                  by time across shards";
    findings.add(Severity::Warning, "clock_off", None, what, remedy);
}

/// Shards that make no ID, since their sequences were never called: the server was filled by
/// logical replication, or by a dump of the schema, which have no values of sequences. IDs continue
/// from the clock.
fn ids_unset(findings: &mut Findings, host: &HostName, clock: &ClockFacts) {
    for shard in &clock.ids_unset {
        let what = "its sequences of IDs were never called, as after logical replication: inserts \
            that need an ID fail";
        let remedy = format!(
            "as the owner, once nothing else takes writes for the shard: SELECT \
                setval(format('%I.id_ticket', schema_name), 0), setval(format('%I.id_offset', \
                schema_name), 0) FROM pgshard.shard WHERE shard_id = {shard}"
        );
        findings.add_shard(
            Severity::Error,
            "ids_unset",
            Some(host),
            *shard,
            what,
            remedy,
        );
    }
}

/// Shards with IDs that are ahead of their host's clock: for a temporary reason, or so far that
/// they are soon used up.
fn ids_ahead(findings: &mut Findings, host: &HostName, clock: &ClockFacts) {
    let ahead = || {
        clock
            .ids_ahead_ms
            .iter()
            .filter(|(_, ahead)| **ahead > AHEAD_MS)
    };
    let (wild, passing): (Vec<_>, Vec<_>) =
        ahead().partition(|(_, ahead)| **ahead >= REPAIRABLE_MS);
    if let Some((_, most)) = passing.iter().max_by_key(|(_, ahead)| **ahead) {
        let what = format!(
            "IDs are up to {} s ahead of the host's clock, which was set back or is behind",
            seconds(**most)
        );
        let remedy = "have the clock set by NTP; IDs stay unique and go on from the time that they \
            have reached";
        for (shard, _) in &passing {
            findings.add_shard(
                Severity::Warning,
                "ids_ahead",
                Some(host),
                **shard,
                what.as_str(),
                remedy,
            );
        }
    }
    if let Some((_, most)) = wild.iter().max_by_key(|(_, ahead)| **ahead) {
        let years = **most / YEAR_MS;
        let what = format!(
            "IDs are up to {years} years ahead of the host's clock, which was far ahead when they \
                were made: new ones are negative as bigint, or there are none left"
        );
        let remedy = "set the clock right, then let the shard's owner call id_repair(LAST) of its \
            schema with the largest ID that was made under the right clock; docs/ids.md has the \
            steps";
        for (shard, _) in &wild {
            findings.add_shard(
                Severity::Error,
                "ids_far_ahead",
                Some(host),
                **shard,
                what.as_str(),
                remedy,
            );
        }
    }
}

/// Milliseconds as seconds with one digit.
fn seconds(ms: i64) -> String {
    format!("{:.1}", ms as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use jiff::Timestamp;

    use super::*;
    use crate::schema::check as check_all;
    use crate::schema::survey::refusal::tests::cluster;
    use crate::schema::tables::{map_of, shard, survey_of};

    /// What is found with these clocks, which are ahead of ours by this much, when the IDs of shard
    /// 0 are ahead of the first.
    fn found(clocks: &[i64], ids_ahead_ms: i64, now: Timestamp) -> Vec<String> {
        let names = ["db1", "db2", "db3", "db4", "db5"];
        let hosts: Vec<(&str, &str)> = names
            .iter()
            .zip(clocks)
            .map(|(name, _)| (*name, if *name == "db1" { "0 serving 1" } else { "" }))
            .collect();
        let mut survey = survey_of(&hosts);
        for (at, (_, facts)) in survey.iter_mut().enumerate() {
            let ids = (at == 0)
                .then_some((shard(0), ids_ahead_ms))
                .into_iter()
                .collect();
            let clock = ClockFacts {
                ahead_ms: clocks[at],
                within_ms: 5,
                now,
                ids_ahead_ms: ids,
                ids_unset: BTreeSet::new(),
            };
            facts.as_mut().unwrap().clock = Some(clock);
        }
        let findings = check_all(&map_of(&["db1"]), &survey, &cluster(), None);
        let said = findings.iter().map(|f| {
            let host = f.host.as_ref().map_or("-", HostName::as_str);
            format!("{} {} {host} {}", f.severity.as_str(), f.code, f.message)
        });
        said.collect()
    }

    #[test]
    fn clocks_that_are_off() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert!(found(&[0, 0, 0], -60_000, now).is_empty());
        // Our own clock does not matter.
        assert!(found(&[90_000, 90_510, 90_000], 1000, now).is_empty());
        assert!(found(&[5000], 1000, now).is_empty());
        let behind = "warning clock_off db2 its clock is 3.2 s behind the other hosts' (+- 10 ms)";
        assert_eq!(found(&[0, -3200, 40], 0, now), [behind]);
        let ahead = "warning clock_off db2 its clock is 3.2 s ahead of the other hosts' (+- 10 ms)";
        assert_eq!(found(&[0, 3200, -40], 0, now), [ahead]);
        // With two clocks it is unknown which is off: one finding, and neither host is named by it.
        let apart = "warning clock_off - the clock of db2 is 0.6 s ahead of that of db1 (+- 10 \
                     ms); compared with this machine's, db1 is at +0.0 s and db2 at +0.6 s";
        assert_eq!(found(&[0, 600], 0, now), [apart]);
        let halves = "warning clock_off - the clock of db4 is 5.1 s ahead of that of db1 (+- 10 \
                      ms), and half of the hosts are closer to one, half to the other; compared \
                      with this machine's, db1 is at -0.1 s and db4 at +5.0 s";
        assert_eq!(found(&[-100, 0, 4900, 5000], 0, now), [halves]);
        let ids = "warning ids_ahead db1 shard 0: IDs are up to 3600.0 s ahead of the host's \
            clock, which was set back or is behind";
        assert_eq!(found(&[0, 0], 3_600_000, now), [ids]);
        let wild = found(&[0, 0], 40 * YEAR_MS, now);
        assert!(
            wild.len() == 1
                && wild[0]
                    .starts_with("error ids_far_ahead db1 shard 0: IDs are up to 40 years ahead"),
            "{wild:?}"
        );
    }

    /// Whichever clocks are off: a minority is reported by name, and none of the others.
    #[test]
    fn a_minority_of_clocks_accuses_no_other() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for count in 3_usize..=5 {
            for off in 0_usize..1 << count {
                if off.count_ones() as usize * 2 >= count {
                    continue;
                }
                for by in [-7000, 7000] {
                    let is_off = |at: usize| off >> at & 1 == 1;
                    let clocks: Vec<i64> = (0..count)
                        .map(|at| at as i64 * 90 + if is_off(at) { by } else { 0 })
                        .collect();
                    let found = found(&clocks, 0, now);
                    let named: Vec<bool> = (0..count)
                        .map(|at| {
                            let start = format!("warning clock_off db{} ", at + 1);
                            found.iter().any(|found| found.starts_with(&start))
                        })
                        .collect();
                    let expected: Vec<bool> = (0..count).map(is_off).collect();
                    assert_eq!(named, expected, "{clocks:?}: {found:?}");
                    assert_eq!(found.len(), off.count_ones() as usize, "{found:?}");
                }
            }
        }
    }

    #[test]
    fn the_end_of_positive_ids() {
        let flip = cluster().epoch.sign_flip();
        let at = |days: i64| {
            Timestamp::from_millisecond(flip.as_millisecond() + days * 86_400_000).unwrap()
        };
        assert!(found(&[0], 0, at(-366)).is_empty());
        let soon = format!(
            "warning ids_turn_negative - IDs turn negative as bigint on {flip}: from then on ORDER \
                BY id puts newer rows first"
        );
        assert_eq!(found(&[0], 0, at(-364)), [soon]);
        let since = format!(
            "notice ids_negative - IDs are negative as bigint since {flip}: ORDER BY id puts newer \
                rows first"
        );
        assert_eq!(found(&[0], 0, at(1)), [since]);
    }
}
