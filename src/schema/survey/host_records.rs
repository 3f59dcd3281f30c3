//! What the hosts know about each other: which hosts there are, and where each shard was last.
//! Pure.
//!
//! A host that has lost its database cannot report what was there, and one that the config does not
//! name is not read. The others do it for them, by their records (`pgshard.known_host`) and by the
//! rows of the shards that they have given away. Of two records about a shard, the one with the
//! later epoch counts.
//!
//! Invariant: a record contains what hosts reported about themselves, never the content of a map.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{ControlFacts, HostFacts, Record, Survey};
use super::ownership::Statement;
use crate::map::{HostName, ShardEpoch};
use crate::shard::ShardId;

/// What the hosts that answered know about all of them.
pub(in crate::schema) struct HostRecords<'a> {
    /// Every host of a record, with a host that has it.
    hosts: BTreeMap<&'a HostName, &'a HostName>,
    /// Hosts of the config that did not answer.
    silent: BTreeSet<&'a HostName>,
    /// Hosts of the config.
    named: BTreeSet<&'a HostName>,
    /// Where each shard was last, by a row of the host that gave it away, or by a record.
    last: BTreeMap<ShardId, Statement<'a>>,
    /// The shards that a host serves, or that a move is bringing to one.
    there: BTreeSet<ShardId>,
}

impl<'a> HostRecords<'a> {
    /// From the hosts of the config: the facts of each, or none if it was not read.
    pub(in crate::schema) fn of(
        hosts: impl IntoIterator<Item = (&'a HostName, Option<&'a HostFacts>)>,
    ) -> HostRecords<'a> {
        let mut known = HostRecords {
            hosts: BTreeMap::new(),
            silent: BTreeSet::new(),
            named: BTreeSet::new(),
            last: BTreeMap::new(),
            there: BTreeSet::new(),
        };
        for (name, facts) in hosts {
            known.named.insert(name);
            match facts {
                Some(facts) => known.hear(name, facts.control.as_ref()),
                None => drop(known.silent.insert(name)),
            }
        }
        known
    }

    /// From a survey.
    pub(in crate::schema) fn of_survey(survey: &'a Survey) -> HostRecords<'a> {
        HostRecords::of(
            survey
                .iter()
                .map(|(name, facts)| (name, facts.as_ref().ok())),
        )
    }

    fn hear(&mut self, by: &'a HostName, control: Option<&'a ControlFacts>) {
        let Some(control) = control else { return };
        for (host, shards) in &control.known {
            self.hosts.entry(host).or_insert(by);
            for (shard, epoch) in shards {
                self.note(*shard, recorded(by, host, *epoch));
            }
        }
        for (shard, row) in &control.shards {
            match Statement::of(by, row) {
                Some(own) if own.first_hand => drop(self.there.insert(*shard)),
                Some(given) => self.note(*shard, given),
                None => {}
            }
        }
        self.there.extend(control.incoming.keys());
    }

    fn note(&mut self, shard: ShardId, said: Statement<'a>) {
        // The record of another host is preferred to that of the host itself, which has lost the
        // shard.
        let rank = |last: &Statement<'_>| (last.epoch, last.by != last.owner);
        let known = self.last.entry(shard).or_insert(said);
        if rank(&said) > rank(known) {
            *known = said;
        }
    }

    /// Where a shard was last, whether it is there or not.
    pub(in crate::schema) fn last(&self, shard: ShardId) -> Option<Statement<'a>> {
        self.last.get(&shard).copied()
    }

    /// Where a shard was that is nowhere now: its host answers and does not know it, or is not in
    /// the config. Nothing is known about a host that did not answer.
    pub(in crate::schema) fn lost(&self, shard: ShardId) -> Option<Statement<'a>> {
        let last = self.last.get(&shard)?;
        (!self.there.contains(&shard) && !self.silent.contains(last.owner)).then_some(*last)
    }

    /// The shards that were last on this host and are nowhere now, and a host that knows.
    pub(in crate::schema) fn missing_shards(
        &self,
        host: &HostName,
    ) -> Option<(Vec<ShardId>, &'a HostName)> {
        let of_host = self
            .last
            .keys()
            .filter_map(|shard| Some((*shard, self.lost(*shard)?)));
        let lost: Vec<_> = of_host.filter(|(_, last)| last.owner == host).collect();
        let by = lost.first()?.1.by;
        Some((lost.into_iter().map(|(shard, _)| shard).collect(), by))
    }

    /// Whether any host's record has this one.
    pub(in crate::schema) fn is_recorded(&self, host: &HostName) -> bool {
        self.hosts.contains_key(host)
    }

    /// Whether any host's record contains shards of this one.
    pub(in crate::schema) fn had_shards(&self, host: &HostName) -> bool {
        self.last.values().any(|last| last.owner == host)
    }

    /// The hosts that the config does not name, and that are in a record or have got a shard that
    /// is nowhere now: each with a host that knows it.
    pub(in crate::schema) fn absent(&self) -> BTreeMap<&'a HostName, &'a HostName> {
        let mut all = self.hosts.clone();
        for last in self.last.keys().filter_map(|shard| self.lost(*shard)) {
            all.entry(last.owner).or_insert(last.by);
        }
        all.retain(|host, _| !self.named.contains(*host));
        all
    }

    /// Whether the config names a host.
    pub(in crate::schema) fn names(&self, host: &HostName) -> bool {
        self.named.contains(host)
    }
}

/// What a host's record contains about a shard of another host.
fn recorded<'a>(by: &'a HostName, owner: &'a HostName, epoch: ShardEpoch) -> Statement<'a> {
    Statement {
        epoch,
        first_hand: false,
        by,
        owner,
    }
}

/// What every host should have in its record: the present state of these hosts, and what their
/// records contain about shards that no host has. `forgotten` are hosts that no record may contain
/// any longer.
pub(in crate::schema) fn record<'a>(
    said: impl IntoIterator<Item = (&'a HostName, &'a ControlFacts)>,
    forgotten: &BTreeSet<HostName>,
) -> Record {
    let mut hosts: BTreeSet<&HostName> = BTreeSet::new();
    // At the same epoch, an owner's own row takes precedence over another host's record.
    let mut last: BTreeMap<ShardId, Statement<'_>> = BTreeMap::new();
    let mut note = |shard: ShardId, said: Statement<'a>| {
        let known = last.entry(shard).or_insert(said);
        if (said.epoch, said.first_hand) > (known.epoch, known.first_hand) {
            *known = said;
        }
    };
    for (name, control) in said {
        hosts.insert(name);
        hosts.extend(control.known.keys());
        for (shard, row) in &control.shards {
            if let Some(said) = Statement::of(name, row) {
                note(*shard, said);
            }
        }
        for (host, shards) in &control.known {
            for (shard, epoch) in shards {
                note(*shard, recorded(name, host, *epoch));
            }
        }
    }
    let mut record: Record = hosts
        .into_iter()
        .map(|host| (host.clone(), BTreeMap::new()))
        .collect();
    for (shard, Statement { epoch, owner, .. }) in last {
        let of_owner = record.entry(owner.clone()).or_default();
        of_owner.insert(shard, epoch);
    }
    record.retain(|host, _| !forgotten.contains(host));
    record
}

/// What a record lacks, compared with what all know together: hosts that it does not have, and
/// shards that it has nowhere. If a shard has moved since, the record does not lack it.
pub(in crate::schema) fn lacks<'a>(
    own: &Record,
    all: &'a Record,
) -> (Vec<&'a HostName>, Vec<ShardId>) {
    let hosts = all.keys().filter(|host| !own.contains_key(*host)).collect();
    let has: BTreeSet<ShardId> = own.values().flat_map(BTreeMap::keys).copied().collect();
    let shards: BTreeSet<ShardId> = all.values().flat_map(BTreeMap::keys).copied().collect();
    (hosts, shards.difference(&has).copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::tables::{host, shard, survey_of};

    fn written(record: &Record) -> Vec<String> {
        let shards = |shards: &BTreeMap<ShardId, ShardEpoch>| {
            crate::map::print_ranges(shards.iter().map(|(shard, epoch)| (*shard, *epoch)))
        };
        record
            .iter()
            .map(|(name, of_host)| format!("{name}: {}", shards(of_host)))
            .collect()
    }

    #[test]
    fn of_two_statements_the_later_epoch_counts() {
        let hosts = [
            (
                "db1",
                "0 serving 1, 1 moved 2 db2, 2 moved 2 db3, 3 knows db4 1",
            ),
            ("db2", "1 serving 2, 2 knows db2 1, 0 knows db3 1"),
            ("db3", ""),
        ];
        let survey = survey_of(&hosts);
        let said = || {
            survey
                .iter()
                .map(|(name, facts)| (name, facts.as_ref().unwrap().control.as_ref().unwrap()))
        };
        let all = record(said(), &BTreeSet::new());
        assert_eq!(written(&all), ["db1: 0", "db2: 1@2", "db3: 2@2", "db4: 3"]);
        assert_eq!(
            written(&record(said(), &BTreeSet::from([host("db4")]))),
            ["db1: 0", "db2: 1@2", "db3: 2@2"]
        );
        let (hosts, shards) = lacks(&Record::from([(host("db1"), BTreeMap::new())]), &all);
        assert_eq!(
            (hosts, shards.len()),
            (vec![&host("db2"), &host("db3"), &host("db4")], 4)
        );
        assert_eq!(lacks(&all, &all), (vec![], vec![]));
    }

    #[test]
    fn what_was_on_a_host_and_is_nowhere() {
        for (hosts, lost, expected) in [
            (vec![("db1", ""), ("db2", "0 knows db1 1")], "db1", vec![0]),
            (
                vec![("db1", "empty"), ("db2", "0 knows db1 1, 1 serving 1")],
                "db1",
                vec![0],
            ),
            (
                vec![("db1", "empty"), ("db2", "0 moved 2 db1")],
                "db1",
                vec![0],
            ),
            (vec![("db2", "0 knows db1 1")], "db1", vec![0]),
            // It moved on, is served somewhere, is on its way, or its host does not answer.
            (
                vec![
                    ("db1", ""),
                    ("db2", "0 knows db1 1, 0 moved 2 db3"),
                    ("db3", "empty"),
                ],
                "db1",
                vec![],
            ),
            (
                vec![("db1", ""), ("db2", "0 knows db1 1, 0 serving 1")],
                "db1",
                vec![],
            ),
            (
                vec![("db1", "0 incoming 2 db2"), ("db2", "0 moved 2 db1")],
                "db1",
                vec![],
            ),
            (
                vec![("db1", "down"), ("db2", "0 knows db1 1")],
                "db1",
                vec![],
            ),
        ] {
            let survey = survey_of(&hosts);
            let known = HostRecords::of_survey(&survey);
            let lost = known
                .missing_shards(&host(lost))
                .map(|(shards, _)| shards)
                .unwrap_or_default();
            assert_eq!(
                lost,
                expected
                    .iter()
                    .map(|number| shard(*number))
                    .collect::<Vec<_>>(),
                "{hosts:?}"
            );
        }
    }
}
