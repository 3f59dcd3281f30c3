//! What is found, by tables of hosts and their rows.

use super::check;
use crate::map::HostName;
use crate::schema::check::finding::Severity;
use crate::schema::check::remedy::BOOTSTRAP;
use crate::schema::control::RecordedMigration;
use crate::schema::control::id_functions::{ID_FUNCTIONS, IdFunctions, UNFINISHED};
use crate::schema::fleet::migrations::tests::migrations;
use crate::schema::survey::facts::{AppliedSet, KeptAudit, LedgerRow, RecordedCluster};
use crate::schema::survey::refusal::tests::cluster;
use crate::schema::tables::{host, map_of, shard, survey_of};

/// What is found for one shard on one to three hosts, without the remedies; another test is about
/// migrations.
fn found(placement: &str, hosts: &[(&str, &str)]) -> Vec<String> {
    let findings = check(&map_of(&[placement]), &survey_of(hosts), &cluster(), None);
    let said = findings.iter().map(|f| {
        assert!(!f.remedy.is_empty() && !f.message.ends_with('.'));
        let host = f.host.as_ref().map_or("-", HostName::as_str);
        format!("{} {} {host} {}", f.severity.as_str(), f.code, f.message)
    });
    said.collect()
}

type Case<'a> = (&'a str, Vec<(&'a str, &'a str)>, Vec<&'a str>);

fn are_found(cases: impl IntoIterator<Item = Case<'static>>) {
    for (placement, hosts, expected) in cases {
        assert_eq!(found(placement, &hosts), expected, "{placement} {hosts:?}");
    }
}

const DOWN: &str =
    "error host_unreachable db2 it cannot be reached: app@there/app did not answer within 5 ms";

#[test]
fn every_difference_is_found() {
    let quiet = ("db2", "");
    are_found([
        ("db1", vec![("db1", "0 serving 1"), quiet], vec![]),
        (
            "db1@2",
            vec![("db1", "0 serving 2"), ("db2", "0 moved 2 db1")],
            vec![],
        ),
        (
            "db1",
            vec![("db1", "0 serving 1"), ("db2", "down")],
            vec![DOWN],
        ),
        ("db2", vec![("db1", ""), ("db2", "down")], vec![DOWN]),
        (
            "db1",
            vec![("db1", "empty")],
            vec!["error not_bootstrapped db1 it has not been bootstrapped"],
        ),
        (
            "db1",
            vec![("db1", ""), quiet],
            vec!["error shard_missing db1 shard 0: it is not there"],
        ),
        (
            "db1@4",
            vec![("db1", ""), quiet],
            vec![
                "alarm served_nowhere db1 shard 0: the map says that it has moved before (epoch \
                    4), but no host knows it",
            ],
        ),
        (
            "db1",
            vec![("db1", "0 moved 2 db2"), ("db2", "0 serving 2")],
            vec![
                "warning shard_elsewhere db2 shard 0: the map puts it on db1, but db2 serves it \
                    (epoch 2)",
            ],
        ),
        (
            "db1",
            vec![("db1", "0 serving 3")],
            vec![
                "warning shard_epoch_differs db1 shard 0: the map has it at epoch 1, the host at 3",
            ],
        ),
        // The shard was on db1, went to db2 and came back; db1 is from before all that, whatever
        // the map contains.
        (
            "db1@3",
            vec![("db1", "0 serving 1"), ("db2", "0 moved 3 db1")],
            vec![
                "alarm went_back db1 shard 0: db2 gave it to db1 at epoch 3, but db1 serves it at \
                    epoch 1, from before that",
            ],
        ),
        (
            "db2",
            vec![
                ("db1", "0 serving 1"),
                ("db2", "0 moved 3 db1"),
                ("db3", "0 moved 5 db1"),
            ],
            vec![
                "alarm went_back db1 shard 0: db3 gave it to db1 at epoch 5, but db1 serves it at \
                    epoch 1, from before that",
            ],
        ),
        (
            "db2@3",
            vec![("db1", "0 serving 2"), ("db2", "0 serving 3")],
            vec!["alarm served_twice - shard 0: db2 (epoch 3) and db1 (epoch 2) both serve it"],
        ),
        (
            "db1",
            vec![
                ("db1", "0 serving 1"),
                ("db2", "0 moved 3 db3"),
                ("db3", ""),
            ],
            vec![
                "alarm went_back db1 shard 0: db2 gave it to db3 at epoch 3, but db1 serves it at \
                    epoch 1, from before that",
            ],
        ),
        (
            "db1@2",
            vec![("db1", "0 serving 2"), ("db2", "0 serving 2147483647")],
            vec![
                "alarm served_twice - shard 0: db2 (epoch 2147483647) and db1 (epoch 2) both serve \
                    it",
                "alarm epoch_jump db2 shard 0: db2 says that it is in epoch 2147483647; the map \
                    has epoch 2, and no host comes near",
            ],
        ),
    ]);
}

#[test]
fn every_move_that_is_half_done_is_found() {
    let quiet = ("db2", "");
    are_found([
        (
            "db1",
            vec![
                ("db1", "0 moved 2 db2, 0 moving"),
                ("db2", "0 incoming 2 db1"),
            ],
            vec![
                "error not_opened db2 shard 0: it has moved from db1 to db2 (epoch 2), which has \
                    not opened it yet",
            ],
        ),
        (
            "db1",
            vec![("db1", "0 moved 2 db2"), quiet],
            vec![
                "alarm served_nowhere db2 shard 0: db1 says that it has moved to db2 (epoch 2), \
                    which does not serve it",
            ],
        ),
        (
            "db1",
            vec![("db1", "0 moved 2 db2"), ("db2", "down")],
            vec![
                DOWN,
                "warning shard_elsewhere db2 shard 0: the map puts it on db1, but db1 says that it \
                    has moved to db2 (epoch 2)",
            ],
        ),
        (
            "db1",
            vec![
                ("db1", "0 fenced 1 db2, 0 moving"),
                ("db2", "0 incoming 2 db1"),
            ],
            vec!["notice fenced db1 shard 0: a move to db2 has closed it for a moment"],
        ),
        (
            "db1",
            vec![
                ("db1", "0 fenced 1 db2 late, 0 moving"),
                ("db2", "0 incoming 2 db1"),
            ],
            vec![
                "error fence_overdue db1 shard 0: a move to db2 has closed it, and its mover is \
                    late",
            ],
        ),
        (
            "db1",
            vec![
                ("db1", "0 serving 1, 0 moving"),
                ("db2", "0 incoming 2 db1"),
            ],
            vec![
                "notice moving db1 shard 0: a move away is at work, or waits for `pgshard moves \
                    resume`",
            ],
        ),
        (
            "db1",
            vec![("db1", "0 serving 1"), ("db2", "0 incoming 2 db1")],
            vec!["warning leftover db2 shard 0: a move from db1 that has ended left it half made"],
        ),
    ]);
}

#[test]
fn every_host_that_has_forgotten_is_found() {
    are_found([
        (
            "db1",
            vec![("db1", "empty"), ("db2", "0 knows db1 1")],
            vec![
                "alarm host_emptied db1 shard 0: the database of db1 is empty, and db2 knows that \
                    the shard was there",
            ],
        ),
        (
            "db1",
            vec![("db1", ""), ("db2", "0 knows db1 1")],
            vec![
                "alarm shard_lost db1 shard 0: db2 knows that it was on db1, which no longer knows \
                    it",
            ],
        ),
        (
            "db1",
            vec![("db1", ""), ("db2", "0 knows db9 1")],
            vec![
                "alarm host_absent db9 shard 0: db1 knows that it was on db9, which the config \
                    does not name",
            ],
        ),
        // No record knows the host, but a shard has gone there.
        (
            "db1",
            vec![("db1", "0 moved 2 db9"), ("db2", "")],
            vec![
                "alarm host_absent db9 shard 0: db1 knows that it was on db9, which the config \
                    does not name",
                "warning shard_elsewhere db9 shard 0: the map puts it on db1, but db1 says that it \
                    has moved to db9 (epoch 2)",
            ],
        ),
        (
            "db1",
            vec![("db1", "0 serving 1"), ("db2", "0 knows db9 1")],
            vec!["warning host_absent db9 db1 knows it as a host, and the config does not name it"],
        ),
    ]);
}

#[test]
fn shards_with_the_same_trouble_are_one_finding() {
    let map = map_of(&["db1", "db1", "db2", "db1"]);
    let survey = survey_of(&[("db1", "1 serving 1"), ("db2", "2 serving 1")]);
    let findings = check(&map, &survey, &cluster(), None);
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].message, "2 shards (0, 3): it is not there");
    assert_eq!(
        (findings[0].shards.clone(), findings[0].shard()),
        (vec![shard(0), shard(3)], None)
    );
}

/// A config that contradicts what a host recorded ends the comparison there: findings about its
/// shards would be wrong, and so would be their remedies. The other hosts are compared.
#[test]
fn a_host_of_another_cluster_has_one_finding() {
    let change = |change: fn(&mut RecordedCluster)| {
        let mut survey = survey_of(&[
            (
                "db1",
                "0 serving 1, 1 serving 1, 17 serving 1, 18 incoming 2 db2",
            ),
            ("db2", "2 serving 1"),
        ]);
        let facts = survey.get_mut("db1").unwrap().as_mut().unwrap();
        facts.schemas.clear();
        facts
            .schemas
            .extend(["shard_0017", "shard_0018", "shard_0019"].map(str::to_owned));
        change(facts.control.as_mut().unwrap().cluster.as_mut().unwrap());
        let findings = check(&map_of(&["db1", "db1", "db1"]), &survey, &cluster(), None);
        findings
            .into_iter()
            .map(|one| {
                assert!(!one.remedy.contains("DROP"), "{one:?}");
                one.code
            })
            .collect::<Vec<_>>()
    };
    for (changed, code) in [
        (
            (|it| it.shards = 5) as fn(&mut RecordedCluster),
            "shards_differ",
        ),
        (|it| it.epoch_ms = 5, "epoch_differs"),
        (
            |it| it.schema_prefix = "other_".to_owned(),
            "prefix_differs",
        ),
        (|it| it.key_kind = "uuid:sha256".to_owned(), "key_differs"),
        (|it| it.host_name = "db2".to_owned(), "host_name_differs"),
    ] {
        assert_eq!(change(changed), [code, "shard_elsewhere"]);
    }
}

#[test]
fn a_schema_that_the_host_lists_is_not_to_be_dropped() {
    let mut survey = survey_of(&[("db1", "0 serving 1, 17 serving 1, 18 incoming 2 db2")]);
    let facts = survey.get_mut("db1").unwrap().as_mut().unwrap();
    facts
        .schemas
        .extend((17..8000).map(|number| format!("shard_{number:04}")));
    let findings = check(&map_of(&["db1"]), &survey, &cluster(), None);
    let said: Vec<_> = findings
        .iter()
        .map(|one| (one.code, one.message.as_str(), one.remedy.contains("DROP")))
        .collect();
    assert_eq!(
        said,
        [
            (
                "shard_beyond",
                "2 shards (17-18): the host lists it as a shard, but the cluster has 16 shards",
                false
            ),
            (
                "schema_beyond",
                "7981 schemas are named like shards (19-7999), but the cluster has 16 shards",
                true
            ),
        ]
    );
}

/// Bootstrap refuses to make the shard there, so it is not the remedy alone.
#[test]
fn a_schema_with_the_name_of_a_shard_that_is_missing() {
    let mut survey = survey_of(&[("db1", ""), ("db2", "")]);
    let facts = survey.get_mut("db1").unwrap().as_mut().unwrap();
    facts.schemas.insert("shard_0000".to_owned());
    let findings = check(&map_of(&["db1"]), &survey, &cluster(), None);
    assert_eq!((findings.len(), findings[0].code), (1, "shard_missing"));
    assert!(
        findings[0]
            .message
            .contains("its schema (shard_ and the number) is one that"),
        "{findings:?}"
    );
    assert!(
        findings[0]
            .remedy
            .starts_with("rename the schema, or drop it"),
        "{}",
        findings[0].remedy
    );
    // The next bootstrap creates again what a killed one has left.
    let unfinished = RecordedMigration {
        name: UNFINISHED.to_owned(),
        checksum: String::new(),
    };
    let left = AppliedSet {
        migrations: vec![unfinished],
        shards: vec![shard(0)],
    };
    survey
        .get_mut("db1")
        .unwrap()
        .as_mut()
        .unwrap()
        .control
        .as_mut()
        .unwrap()
        .applied
        .push(left);
    assert_eq!(
        check(&map_of(&["db1"]), &survey, &cluster(), None)[0].remedy,
        BOOTSTRAP
    );
}

#[test]
fn migrations_are_compared_with_the_folder_or_with_each_other() {
    let folder = migrations(&[
        ("0001_a.sql", "select {shard}.a()"),
        ("0002_b.sql", "select {shard}.b()"),
    ])
    .unwrap();
    let own = ID_FUNCTIONS.iter().map(IdFunctions::recorded);
    let all: Vec<RecordedMigration> = own.chain(folder.iter().map(|one| one.recorded())).collect();
    let mut survey = survey_of(&[
        (
            "db1",
            "0 serving 1, 1 serving 1, 2 serving 1, 3 moved 2 db2",
        ),
        ("db2", "3 serving 2"),
    ]);
    let set = |migrations: &[RecordedMigration], shards: &[u16]| AppliedSet {
        migrations: migrations.to_vec(),
        shards: shards.iter().map(|number| shard(*number)).collect(),
    };
    let mut control = |name: &str, sets| {
        survey
            .get_mut(name)
            .unwrap()
            .as_mut()
            .unwrap()
            .control
            .as_mut()
            .unwrap()
            .applied = sets
    };
    control(
        "db1",
        vec![
            set(&all, &[0, 1]),
            set(&all[..=ID_FUNCTIONS.len()], &[2, 3]),
        ],
    );
    let mut other = all.clone();
    other[ID_FUNCTIONS.len()].checksum = "other".to_owned();
    control("db2", vec![set(&other, &[3])]);
    let map = map_of(&["db1", "db1", "db1", "db2@2"]);
    let said = |folder| -> Vec<String> {
        check(&map, &survey, &cluster(), folder)
            .iter()
            .map(|f| format!("{} {}", f.code, f.message))
            .collect()
    };
    assert_eq!(
        said(Some(&folder)),
        [
            "migrations_drift shard 3: 0001_a was changed after it was run",
            "migrations_pending shard 2: it lacks 0002_b"
        ]
    );
    assert_eq!(
        said(None),
        [
            "migrations_differ shard 2: it lacks migrations that most shards have: 0002_b",
            "migrations_differ shard 3: most shards have 0001_a, where it has 0001_a",
        ]
    );
}

#[test]
fn what_moves_have_left() {
    let mut survey = survey_of(&[("db1", "0 serving 1")]);
    let control = survey
        .get_mut("db1")
        .unwrap()
        .as_mut()
        .unwrap()
        .control
        .as_mut()
        .unwrap();
    let row = |kind: &str, phase: Option<&str>| LedgerRow {
        kind: kind.to_owned(),
        name: kind.to_owned(),
        move_id: uuid::Uuid::nil(),
        shard: shard(0),
        phase: phase.map(str::to_owned),
    };
    control.ledger = vec![
        row("left", Some("kept")),
        row("signpost", Some("aborted")),
        row("signpost", Some("prepared")),
        row("incoming", None),
        row("old signpost", None),
    ];
    control
        .lost_rollbacks
        .insert(shard(0), "its slot is gone".to_owned());
    let findings = check(&map_of(&["db1"]), &survey, &cluster(), None);
    let codes: Vec<_> = findings
        .iter()
        .map(|finding| (finding.severity, finding.code))
        .collect();
    assert_eq!(
        codes,
        [
            (Severity::Warning, "leftover"),
            (Severity::Notice, "no_reverse"),
            (Severity::Notice, "old_copy"),
            (Severity::Notice, "old_signpost"),
        ]
    );
    assert_eq!(findings[0].host, Some(host("db1")));
}

#[test]
fn why_a_move_was_not_audited() {
    let mut survey = survey_of(&[("db1", "0 serving 1")]);
    let control = survey
        .get_mut("db1")
        .unwrap()
        .as_mut()
        .unwrap()
        .control
        .as_mut()
        .unwrap();
    let audit = |number: u16, differences: &[&str], left_out: &[&str]| KeptAudit {
        shard: shard(number),
        move_id: uuid::Uuid::nil(),
        target: host("db2"),
        differences: differences.iter().map(|one| (*one).to_owned()).collect(),
        left_out: left_out.iter().map(|one| (*one).to_owned()).collect(),
    };
    control.audits = vec![
        audit(1, &[], &[]),
        audit(2, &[], &["nothing is recorded of its audit"]),
        audit(3, &["table photos (7)"], &["table users: it was dropped"]),
    ];
    let id = uuid::Uuid::nil();
    let findings = check(&map_of(&["db1"]), &survey, &cluster(), None);
    let said: Vec<_> = findings
        .iter()
        .map(|finding| format!("{} {}", finding.code, finding.message))
        .collect();
    assert_eq!(
        said,
        [
            format!(
                "audit_differs shard 3: db2 did not have what it had here when the move {id} \
                    opened it there: table photos (7)"
            ),
            format!("not_audited shard 1: the move {id} to db2 was not audited: it was broken off"),
            format!(
                "not_audited shard 2: the move {id} to db2 was not audited: nothing is recorded of \
                    its audit"
            ),
        ]
    );
}

#[test]
fn an_audit_is_the_remedy_only_while_the_target_serves() {
    let remedy = |db1: &str, db2: &str, map: &[&str]| {
        let mut survey = survey_of(&[("db1", db1), ("db2", db2)]);
        let facts = survey.get_mut("db1").unwrap().as_mut().unwrap();
        facts.control.as_mut().unwrap().audits = vec![KeptAudit {
            shard: shard(0),
            move_id: uuid::Uuid::nil(),
            target: host("db2"),
            differences: Vec::new(),
            left_out: Vec::new(),
        }];
        let findings = check(&map_of(map), &survey, &cluster(), None);
        let found = findings.iter().find(|one| one.code == "not_audited");
        found.unwrap().remedy.clone()
    };
    let there = remedy("0 moved 2 db2", "0 serving 2", &["db2@2"]);
    assert!(there.contains("pgshard moves audit "), "{there}");
    let gone = remedy("0 serving 3", "0 moved 3 db1", &["db1@3"]);
    assert!(!gone.contains("pgshard moves audit "), "{gone}");
    assert!(
        gone.contains("moves complete") && gone.contains("--unaudited"),
        "{gone}"
    );
}
