//! Tables that test the judgement.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::facts::{Facts, IdSeen, OpenMove, RepairOutcome, SeenBy};
use super::judge::judge;
use super::scope::{contradictory, kept_elsewhere, served};
use crate::id::Id;
use crate::map::print_shards;
use crate::mover::command::repair::tests::planned;
use crate::mover::command::repair::{Repair, ServerRecord};
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::state::Phase;
use crate::schema::ClockFacts;
use crate::schema::tables::{host, shard, survey_of};

/// The facts about db1, which has come back, and two others. Clocks are in seconds ahead of ours,
/// IDs of shard 0 in seconds ahead of db1's clock.
fn facts(words: [&str; 3], clocks: [i64; 3], ids_ahead: i64) -> Facts {
    let [first, second, third] = words;
    let mut survey = survey_of(&[("db1", first), ("db2", second), ("db3", third)]);
    let mut looked = BTreeMap::new();
    for shard in contradictory(&host("db1"), &survey).union(&kept_elsewhere(&host("db1"), &survey))
    {
        // The same text, without the shard's number.
        let about = |words: &str| {
            let number = format!("{shard} ");
            let said = words
                .split(", ")
                .filter_map(|word| word.strip_prefix(&number));
            let said: Vec<&str> = said.filter(|word| !word.starts_with("knows")).collect();
            if words == "down" || words == "empty" {
                "silent".to_owned()
            } else {
                said.join(", ")
            }
        };
        let said = words.map(about);
        let said: Vec<&str> = said.iter().map(String::as_str).collect();
        let (sure, without) = (
            planned(*shard, &said, &[]),
            planned(*shard, &said, &["db1"]),
        );
        looked.insert(
            *shard,
            RepairOutcome::At {
                sure: Box::new(sure),
                without: Box::new(without),
            },
        );
    }
    for (facts, ahead) in survey.values_mut().zip(clocks) {
        let Ok(facts) = facts else { continue };
        let ids_ahead_ms = BTreeMap::from([(shard(0), ids_ahead * 1000)]);
        let now = Timestamp::from_millisecond(NOW + ahead * 1000).unwrap();
        facts.clock = Some(ClockFacts {
            ahead_ms: ahead * 1000,
            within_ms: 5,
            now,
            ids_ahead_ms,
            ids_unset: Default::default(),
        });
    }
    let server = (first != "empty").then_some(ServerRecord {
        system: 7,
        timeline: 2,
        recorded: Some(1),
    });
    Facts {
        host: host("db1"),
        survey,
        server,
        looked,
        ids: BTreeMap::new(),
        open: Vec::new(),
    }
}

const NOW: i64 = 1_767_225_600_000;

#[test]
fn what_is_repaired_and_what_is_asked() {
    let cases: &[([&str; 3], &str)] = &[
        (["0 serving 1", "", ""], ""),
        (["0 moved 2 db2", "0 serving 2", ""], ""),
        (["0 serving 3", "0 moved 3 db1", ""], ""),
        // The source is from before the move: another host has the shard.
        (
            ["0 serving 1", "0 serving 2", ""],
            "move 0 to db2 2; repair 0 for db2",
        ),
        (
            ["0 serving 1, 1 serving 1", "0 serving 2", "1 serving 3"],
            "move 0 to db2 2; move 1 to db3 3; repair 0 for db2; repair 1 for db3",
        ),
        // The host is from before the shard came and went, or from before it came.
        (
            ["0 serving 1", "0 moved 3 db1", ""],
            "move 0 to db1 3; decide 0: pgshard moves repair 0 --give-up db2",
        ),
        (
            ["", "0 moved 2 db1", ""],
            "move 0 to db1 2; decide 0: pgshard bootstrap --lost db1 | \
          pgshard moves repair 0 --plan",
        ),
        (
            ["0 incoming 2 db2", "0 moved 2 db1", ""],
            "move 0 to db1 2; decide 0: pgshard bootstrap --lost db1 | \
          pgshard moves repair 0 --plan",
        ),
        // Its database is empty, and others know what it had.
        (
            ["empty", "3 knows db1 1, 4 knows db1 1", ""],
            "decide 3-4: pgshard bootstrap --lost db1 | pgshard moves repair 3 --plan",
        ),
    ];
    for (words, expected) in cases {
        let plan = judge(&facts(*words, [0; 3], -60), None);
        let mut said: Vec<String> = plan
            .moves
            .iter()
            .map(|lost| format!("move {} to {} {}", lost.shard, lost.to, lost.epoch))
            .collect();
        for repair in &plan.repairs {
            let Repair::Do(way) = &repair.repair else {
                panic!("{repair:?}")
            };
            said.push(format!("repair {} for {}", repair.shard, way.host));
        }
        for decision in &plan.decisions {
            let shards = print_shards(decision.shards.iter().copied());
            said.push(format!(
                "decide {shards}: {}",
                decision.commands.join(" | ")
            ));
        }
        assert_eq!(said.join("; "), *expected, "{words:?}");
        assert_eq!(plan.is_done(), expected.is_empty(), "{words:?}");
        assert_eq!(plan.clocks, [], "{words:?}");
    }
}

#[test]
fn who_serves_is_clear_or_not() {
    for (words, clear, unclear) in [
        (
            ["0 serving 1, 1 serving 1", "1 serving 2", ""],
            vec![0],
            vec![1],
        ),
        (
            ["0 serving 3", "0 moved 3 db1", "0 moved 2 db2"],
            vec![0],
            vec![],
        ),
        (["0 serving 3", "0 moved 3 db3", ""], vec![], vec![0]),
        (["0 fenced 1 db2", "0 incoming 2 db1", ""], vec![0], vec![]),
        // It has no facts about the shards of others.
        (["", "0 serving 1", "0 serving 1"], vec![], vec![]),
        (["down", "0 moved 2 db1", ""], vec![], vec![0]),
    ] {
        let [first, second, third] = words;
        let survey = survey_of(&[("db1", first), ("db2", second), ("db3", third)]);
        let numbers = |numbers: Vec<u16>| numbers.into_iter().map(shard).collect::<BTreeSet<_>>();
        assert_eq!(served(&host("db1"), &survey), numbers(clear), "{words:?}");
        assert_eq!(
            contradictory(&host("db1"), &survey),
            numbers(unclear),
            "{words:?}"
        );
    }
}

/// The time an ID clock is raised to, in seconds from db1's present, or the question.
fn raised(facts: &Facts, margin: Option<Duration>) -> String {
    let plan = judge(facts, margin);
    let now = facts.survey[&host("db1")]
        .as_ref()
        .unwrap()
        .clock
        .as_ref()
        .unwrap()
        .now;
    let mut said = Vec::new();
    for raise in &plan.clocks {
        let id = Id::decode(raise.id);
        assert_eq!(
            (id.shard(), id.ms() as i64 + 1_293_840_000_000),
            (raise.shard, raise.after.as_millisecond())
        );
        said.push(format!(
            "{} {}",
            raise.host,
            (raise.after.as_millisecond() - now.as_millisecond()) / 1000
        ));
    }
    said.extend(
        plan.decisions
            .into_iter()
            .flat_map(|decision| decision.commands),
    );
    said.join("; ")
}

#[test]
fn no_id_comes_twice() {
    let words = ["0 serving 1", "0 moved 1 db1", ""];
    for (clocks, ids_ahead, seen, margin, expected) in [
        ([0, 0, 0], -60, vec![], None, ""),
        // IDs that others have seen are later than the host's last ID, whatever its clock shows.
        ([0, 0, 0], -60, vec![("db2", -61)], None, ""),
        (
            [0, 0, 0],
            -60,
            vec![("db2", -30), ("db1", -40)],
            None,
            "db1 -30",
        ),
        ([0, 0, 0], -60, vec![("db2", 40)], None, "db1 40"),
        ([0, 0, 0], 41, vec![("db2", 40)], None, ""),
        // The last ID in its own rows is that of its clock; an ID in another host's rows may be
        // later.
        ([0, 0, 0], -60, vec![("db1", -60)], None, ""),
        ([0, 0, 0], -60, vec![("db2", -60)], None, "db1 -60"),
        // Its clock is behind, according to two others, or to one other and ours.
        ([-600, 0, 0], -60, vec![], None, "db1 602"),
        ([-600, 0, 0], 700, vec![], None, ""),
        ([0, 600, 600], -60, vec![], None, "db1 602"),
        // A single clock that is ahead does not count, even if it is ours.
        ([0, 600, 0], -60, vec![], None, ""),
        ([-600, -600, -600], -60, vec![], None, ""),
        // The operator's margin.
        ([0, 0, 0], -60, vec![], Some(300), "db1 300"),
        ([0, 0, 0], 400, vec![], Some(300), ""),
        // A raise this far ahead needs a human.
        ([0, 0, 0], -60, vec![("db2", 90_000)], None, "ask"),
    ] {
        let mut facts = facts(words, clocks, 0);
        let at = |name: &str, by, ahead: i64| IdSeen {
            host: host(name),
            schema: "shard_0000".to_owned(),
            by,
            unix_ms: NOW + (clocks[0] + ahead) * 1000,
        };
        let seen = seen
            .iter()
            .map(|(name, ahead)| at(name, SeenBy::Row, *ahead));
        facts.ids.insert(
            shard(0),
            [at("db1", SeenBy::Clock, ids_ahead)]
                .into_iter()
                .chain(seen)
                .collect(),
        );
        let said = raised(&facts, margin.map(Duration::from_secs));
        match expected {
            "ask" => assert!(
                said.starts_with("SELECT \"shard_0000\".resume_after(")
                    && said.ends_with("'2 days')"),
                "{said}"
            ),
            _ => assert_eq!(said, expected, "{clocks:?} {ids_ahead} {:?}", facts.ids),
        }
        // After the raise nothing is left to do.
        if !expected.is_empty() && expected != "ask" {
            let last = judge(&facts, margin.map(Duration::from_secs)).clocks[0]
                .after
                .as_millisecond()
                + 1;
            facts.ids.get_mut(&shard(0)).unwrap()[0].unix_ms = last;
            assert_eq!(
                raised(&facts, margin.map(Duration::from_secs)),
                "",
                "{clocks:?} {:?}",
                facts.ids
            );
        }
    }
}

#[test]
fn what_was_under_way_is_named_once() {
    let mut facts = facts(["0 serving 1, 1 serving 1", "1 serving 2", ""], [0; 3], -60);
    let id = MoveId::from(uuid::Uuid::nil());
    let open = |number| OpenMove {
        id,
        shard: shard(number),
        source: host("db1"),
        target: host("db2"),
        phase: Phase::Prepared,
    };
    facts.open = vec![open(0), open(1)];
    let plan = judge(&facts, None);
    assert_eq!(plan.repairs.len(), 1);
    assert_eq!(plan.decisions.len(), 1, "{:?}", plan.decisions);
    assert_eq!(plan.decisions[0].shards, [shard(0)]);
    assert_eq!(
        plan.decisions[0].commands[0],
        format!("pgshard moves resume {id}")
    );
}
