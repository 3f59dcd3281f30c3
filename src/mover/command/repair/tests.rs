//! Tests the decision with a table, and over every combination of the facts of three hosts.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::RepairPlan;
use super::facts::{
    Answer, HostAnswer, Incoming, OldCopy, Owning, ShardFacts, ShardRecord, Silence,
};
use super::judge::{Action, Judgement, View, judge};
use super::plan::GiveUp;
use crate::map::{HostName, ShardEpoch};
use crate::mover::protocol::names::MoveId;
use crate::pg::HostState;
use crate::shard::{SchemaPrefix, ShardId};

fn host(name: &str) -> HostName {
    HostName::new(name).unwrap()
}

fn epoch(text: &str) -> ShardEpoch {
    ShardEpoch::from_i32(text.parse().unwrap()).unwrap()
}

/// The SHA-256 of the token that is all zeros.
const HASH: &str = "12b9377cbe7e5c94e8a70d9d23929523d14afa954793130f8a3959c7b849aca8";

/// A host from words such as `serving 1`, `moved 2 db2, copy 1 fed`, `incoming 2 db1 ready`,
/// `silent`.
fn said(name: &str, words: &str) -> HostAnswer {
    let mut known = ShardFacts::default();
    for thing in words.split(", ").filter(|thing| !thing.is_empty()) {
        let word: Vec<&str> = thing.split(' ').collect();
        let id = MoveId::from(Uuid::nil());
        match word[..] {
            ["silent"] => {
                return HostAnswer {
                    host: host(name),
                    answer: Answer::Silent(Silence {
                        state: HostState::Unreachable,
                        why: "it is down".to_owned(),
                    }),
                };
            }
            ["serving", at] | ["fenced", at] => {
                let state = if word[0] == "serving" {
                    Owning::Serving
                } else {
                    Owning::Fenced
                };
                known.row = Some(ShardRecord {
                    state,
                    epoch: epoch(at),
                    move_id: Some(id),
                    token: None,
                });
            }
            ["moved", at, to] => {
                let (state, token) = (Owning::Moved(host(to)), Some(Uuid::nil()));
                known.row = Some(ShardRecord {
                    state,
                    epoch: epoch(at),
                    move_id: Some(id),
                    token,
                });
            }
            ["copy", at, ref fed @ ..] => {
                known.copies.push(OldCopy {
                    epoch: epoch(at),
                    fed: !fed.is_empty(),
                    taken_by: None,
                });
            }
            ["incoming", at, from, ref ready @ ..] => {
                let ready = (!ready.is_empty()).then(|| HASH.to_owned());
                known.incoming = Some(Incoming {
                    move_id: id,
                    source: host(from),
                    epoch: epoch(at),
                    ready,
                });
            }
            _ => panic!("{thing}"),
        }
    }
    HostAnswer {
        host: host(name),
        answer: Answer::Known(Box::new(known)),
    }
}

fn short(action: &Action) -> String {
    match action {
        Action::Raise { host, to, .. } => format!("raise {host} {to}"),
        Action::StandDown {
            host, owner, since, ..
        } => format!("down {host} to {owner} {since}"),
        Action::TakeBack { host, copy, to, .. } => format!("back {host} {copy} {to}"),
        Action::Open {
            host, by: Some(by), ..
        } => format!("open {host} by {by}"),
        Action::Open { host, by: None, .. } => format!("open {host}"),
    }
}

fn judged(hosts: &[&str], given_up: &[&str]) -> String {
    let said: Vec<HostAnswer> = hosts
        .iter()
        .enumerate()
        .map(|(at, words)| said(&format!("db{}", at + 1), words))
        .collect();
    let given_up = given_up.iter().map(|name| host(name)).collect();
    let list = |actions: &[Action]| actions.iter().map(short).collect::<Vec<_>>().join(", ");
    match judge(&View {
        said: &said,
        given_up: &given_up,
    }) {
        Judgement::Fine { host, .. } => format!("fine {host}"),
        Judgement::Do { actions, .. } => list(&actions),
        Judgement::Choose(choices) => {
            let way = |choice: &super::judge::Choice| {
                let names: Vec<&str> = choice.give_up.iter().map(HostName::as_str).collect();
                format!("-{}: {}", names.join("-"), list(&choice.actions))
            };
            choices.iter().map(way).collect::<Vec<_>>().join(" | ")
        }
        Judgement::Nothing => "nothing".to_owned(),
    }
}

/// The result of a repair of a shard with these facts of db1, db2 …, with these given up.
pub(in crate::mover::command) fn planned(
    shard: ShardId,
    hosts: &[&str],
    given_up: &[&str],
) -> RepairPlan {
    let said: Vec<HostAnswer> = hosts
        .iter()
        .enumerate()
        .map(|(at, words)| said(&format!("db{}", at + 1), words))
        .collect();
    let given_up = GiveUp::default().hosts(given_up.iter().map(|name| host(name)).collect());
    RepairPlan::of(shard, &SchemaPrefix::default(), &said, &given_up)
}

#[test]
fn a_token_is_hashed_as_the_control_schema_does() {
    let given = said("db1", "moved 2 db2");
    let brought = said("db2", "incoming 2 db1 ready");
    let (Answer::Known(given), Answer::Known(brought)) = (given.answer, brought.answer) else {
        panic!("they answer")
    };
    assert!(brought.incoming.unwrap().fits(&given.row.unwrap()));
}

#[test]
fn what_is_sure_is_done_and_what_is_not_is_asked() {
    let cases: &[(&[&str], &[&str], &str)] = &[
        (&["serving 1", ""], &[], "fine db1"),
        (&["moved 2 db2, copy 1", "serving 2"], &[], "fine db2"),
        (&["serving 1", "incoming 2 db1 ready"], &[], "fine db1"),
        (&["silent", "serving 2"], &[], "fine db2"),
        // The source lost its decision, or more.
        (&["serving 1", "serving 2"], &[], "down db1 to db2 2"),
        (&["fenced 1", "serving 2"], &[], "down db1 to db2 2"),
        (
            &["serving 1", "serving 2", "silent"],
            &[],
            "down db1 to db2 2",
        ),
        (
            &["serving 1", "serving 4", "moved 4 db2, copy 3"],
            &[],
            "down db1 to db2 4",
        ),
        (
            &["serving 1", "serving 2"],
            &["db2"],
            "raise db1 3, down db2 to db1 3",
        ),
        (
            &["serving 2", "serving 2"],
            &[],
            "-db2: raise db1 3, down db2 to db1 3 | -db1: raise db2 3, down db1 to db2 3",
        ),
        // The target lost its open.
        (
            &["moved 2 db2, copy 1", "incoming 2 db1 ready"],
            &[],
            "open db2 by db1",
        ),
        (
            &["moved 2 db2, copy 1 fed", "incoming 2 db1 ready"],
            &[],
            "back db1 1 3",
        ),
        (
            &["moved 2 db2, copy 1", "incoming 2 db1 ready", "silent"],
            &[],
            "-db3: open db2 by db1",
        ),
        (
            &["moved 2 db2, copy 1", "incoming 2 db1"],
            &[],
            "-db2: back db1 1 3",
        ),
        (&["moved 2 db2, copy 1", ""], &[], "-db2: back db1 1 3"),
        (&["moved 2 db2, copy 1", ""], &["db2"], "back db1 1 3"),
        (
            &["moved 2 db2, copy 1", "silent"],
            &[],
            "-db2: back db1 1 3",
        ),
        (&["moved 2 db2", "silent"], &[], "nothing"),
        (
            &["moved 2 db2, copy 1", "moved 3 db3, copy 2", ""],
            &[],
            "-db3: back db2 2 4",
        ),
        (
            &["moved 2 db2, copy 1", "silent", "silent"],
            &["db2"],
            "-db2-db3: back db1 1 3",
        ),
        // The source is gone.
        (&["silent", "incoming 2 db1 ready"], &[], "-db1: open db2"),
        (&["silent", "incoming 2 db1"], &[], "nothing"),
        (&["silent", ""], &[], "nothing"),
        // What an ended move of another source has left must not be opened.
        (
            &["moved 2 db2, copy 1", "silent", "incoming 2 db1 ready"],
            &["db2"],
            "back db1 1 3",
        ),
        (
            &["moved 2 db2, copy 1", "silent", "incoming 3 db2 ready"],
            &["db2"],
            "open db3",
        ),
        // A host is from before the shard came and left again.
        (
            &["serving 1", "moved 3 db1, copy 2"],
            &[],
            "-db1: down db1 to db2 4, back db2 2 4 | -db2: raise db1 3",
        ),
        (&["serving 1", "moved 3 db1"], &[], "-db2: raise db1 3"),
        (
            &["serving 1", "moved 3 db3, copy 2", "silent"],
            &["db3"],
            "-db1-db3: down db1 to db2 4, back db2 2 4 | -db2-db3: raise db1 4",
        ),
        // The same repair, interrupted halfway.
        (
            &["moved 4 db2, copy 1", "moved 3 db1, copy 2"],
            &[],
            "back db2 2 5",
        ),
    ];
    for (hosts, given_up, expected) in cases {
        assert_eq!(judged(hosts, given_up), *expected, "{hosts:?} {given_up:?}");
    }
}

/// All possible facts of one of three hosts.
fn all_words(own: usize) -> Vec<String> {
    let mut words = vec![String::new(), "silent".to_owned()];
    for at in 1..=3 {
        words.extend([format!("serving {at}"), format!("fenced {at}")]);
        for other in (1..=3).filter(|other| *other != own) {
            words.extend([
                format!("moved {} db{other}", at + 1),
                format!("moved {} db{other}, copy {at}", at + 1),
            ]);
            words.push(format!("moved {} db{other}, copy {at} fed", at + 1));
            words.extend([
                format!("incoming {} db{other}", at + 1),
                format!("incoming {} db{other} ready", at + 1),
            ]);
        }
    }
    words
}

#[test]
fn whatever_is_said_one_host_serves_in_the_end_and_never_two_more() {
    let all: Vec<Vec<HostAnswer>> = (1..=3)
        .map(|own| {
            all_words(own)
                .iter()
                .map(|words| said(&format!("db{own}"), words))
                .collect()
        })
        .collect();
    let mut repaired = 0;
    for first in &all[0] {
        for second in &all[1] {
            for third in &all[2] {
                let said = [first.clone(), second.clone(), third.clone()];
                let nobody = BTreeSet::new();
                match judge(&View {
                    said: &said,
                    given_up: &nobody,
                }) {
                    Judgement::Do {
                        host,
                        epoch,
                        actions,
                    } => {
                        serves_alone(&said, &host, epoch, &actions);
                        repaired += 1;
                    }
                    Judgement::Choose(choices) => {
                        for choice in choices {
                            assert!(!choice.give_up.contains(&choice.host), "{said:?}");
                            let again = judge(&View {
                                said: &said,
                                given_up: &choice.give_up,
                            });
                            let Judgement::Do {
                                host,
                                epoch,
                                actions,
                            } = again
                            else {
                                panic!("{said:?} {again:?}")
                            };
                            assert_eq!((&host, &actions), (&choice.host, &choice.actions));
                            serves_alone(&said, &host, epoch, &actions);
                            repaired += 1;
                        }
                    }
                    Judgement::Fine { .. } | Judgement::Nothing => {}
                }
            }
        }
    }
    assert!(repaired > 10_000, "{repaired}");
}

/// Plays the actions. In the end, of the hosts that answer, only this one serves, at the latest
/// epoch; and no step makes a second one serve.
fn serves_alone(said: &[HostAnswer], host: &HostName, epoch: ShardEpoch, actions: &[Action]) {
    let owning = |one: &HostAnswer| match &one.answer {
        Answer::Known(known) => match known.row.as_ref()?.state {
            Owning::Serving | Owning::Fenced => Some(one.host.clone()),
            Owning::Moved(_) => None,
        },
        Answer::Silent(_) => None,
    };
    let mut owners: BTreeSet<HostName> = said.iter().filter_map(owning).collect();
    for action in actions {
        match action {
            Action::Raise { host, epoch, to } => {
                assert!(owners.contains(host) && to > epoch, "{said:?} {actions:?}")
            }
            Action::StandDown {
                host, epoch, since, ..
            } => {
                assert!(owners.remove(host) && since > epoch, "{said:?} {actions:?}");
            }
            Action::TakeBack {
                host, epoch, to, ..
            } => {
                assert!(owners.is_empty() && to > epoch, "{said:?} {actions:?}");
                owners.insert(host.clone());
            }
            Action::Open { host, .. } => {
                assert!(owners.is_empty(), "{said:?} {actions:?}");
                owners.insert(host.clone());
            }
        }
    }
    assert_eq!(
        owners,
        BTreeSet::from([host.clone()]),
        "{said:?} {actions:?}"
    );
    let latest = said.iter().filter_map(|one| match &one.answer {
        Answer::Known(known) => known.row.as_ref().map(|row| row.epoch),
        Answer::Silent(_) => None,
    });
    assert!(
        latest.max().is_none_or(|latest| epoch >= latest),
        "{said:?} {actions:?}"
    );
}
