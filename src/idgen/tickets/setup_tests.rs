//! Who gets which residue: every case, without servers.

use super::super::host::Ticket;
use super::*;

const SERIES: Uuid = Uuid::from_u128(1);

fn host(name: &str) -> HostName {
    HostName::new(name).unwrap()
}

fn request(hosts: &[&str]) -> Create {
    let hosts = hosts.iter().map(|name| host(name)).collect();
    Create {
        name: TicketName::new("users").unwrap(),
        hosts,
        stride: None,
        run: None,
        start: None,
        max: None,
        replace: None,
        lost: BTreeSet::new(),
    }
}

/// Hosts that know all of these claims and give the tickets of their own.
fn hosts(names: &[&str], stride: u32, claims: &[(u32, &str)]) -> BTreeMap<HostName, Facts> {
    let one = |name: &&str| {
        let own = claims.iter().find(|(_, owner)| owner == name);
        let facts = Facts {
            series: (!claims.is_empty()).then_some((SERIES, Layout { stride, run: 1 })),
            max: None,
            claims: claims
                .iter()
                .map(|(residue, owner)| (*residue, (*owner).to_owned()))
                .collect(),
            ticket: own.map(|(residue, owner)| Ticket {
                residue: *residue,
                host_name: (*owner).to_owned(),
                last: Some(1000 + i64::from(*residue)),
            }),
        };
        (host(name), facts)
    };
    names.iter().map(one).collect()
}

fn planned(known: &BTreeMap<HostName, Facts>, request: &Create) -> Vec<(u32, String)> {
    plan(known, request, SERIES)
        .unwrap()
        .claims
        .into_iter()
        .collect()
}

fn refused(known: &BTreeMap<HostName, Facts>, request: &Create) -> Vec<Refusal> {
    plan(known, request, Uuid::from_u128(2)).unwrap_err()
}

fn claim(residue: u32, name: &str) -> (u32, String) {
    (residue, name.to_owned())
}

#[test]
fn new_hosts_get_the_next_residues() {
    let fresh = hosts(&["db1", "db2", "db3"], 16, &[]);
    let plan_of_two = plan(&fresh, &request(&["db1", "db2"]), SERIES).unwrap();
    assert_eq!(
        (plan_of_two.layout, plan_of_two.start, plan_of_two.series),
        (Layout::default(), 1, SERIES)
    );
    assert_eq!(
        planned(&fresh, &request(&["db1", "db2"])),
        [claim(1, "db1"), claim(2, "db2")]
    );
    let odd_and_even = Create {
        stride: Some(2),
        ..request(&["db1", "db2"])
    };
    assert_eq!(
        planned(&fresh, &odd_and_even),
        [claim(0, "db2"), claim(1, "db1")]
    );

    let two = hosts(&["db1", "db2", "db3"], 16, &[(1, "db1"), (2, "db2")]);
    let third = plan(&two, &request(&["db3"]), SERIES).unwrap();
    assert_eq!(third.start, 1002, "it begins where the others are");
    assert_eq!(third.claims[&3], "db3");
    assert_eq!(
        planned(&two, &request(&["db1", "db2"])),
        [claim(1, "db1"), claim(2, "db2")],
        "again"
    );
}

/// db2 is lost: it is not read, and its residue stays taken because the others recorded it.
#[test]
fn a_lost_hosts_residue_needs_a_start() {
    let left = hosts(&["db1", "db3"], 2, &[(1, "db1"), (0, "db2")]);
    assert_eq!(
        refused(&left, &request(&["db3"])),
        [Refusal::TooFew {
            missing: vec!["db2".to_owned()]
        }]
    );
    let full = [Refusal::Full {
        stride: 2,
        hosts: vec!["db2".to_owned(), "db1".to_owned()],
    }];
    assert_eq!(
        refused(
            &left,
            &Create {
                lost: [host("db2")].into(),
                ..request(&["db3"])
            }
        ),
        full
    );
    let replace = Create {
        replace: Some(host("db2")),
        ..request(&["db3"])
    };
    assert_eq!(refused(&left, &replace), [Refusal::NoFloor(host("db2"))]);
    let with_start = Create {
        start: Some(5000),
        ..replace.clone()
    };
    let taken_over = plan(&left, &with_start, SERIES).unwrap();
    assert_eq!(
        (taken_over.start, taken_over.claims[&0].as_str()),
        (5000, "db3")
    );

    let both = Create {
        hosts: [host("db1"), host("db3")].into(),
        ..with_start.clone()
    };
    assert_eq!(refused(&left, &both), [Refusal::OneReplaces]);
    let nobody = Create {
        replace: Some(host("db9")),
        lost: [host("db2")].into(),
        ..with_start.clone()
    };
    assert_eq!(
        refused(&left, &nobody),
        [Refusal::NothingToReplace(host("db9"))]
    );
    let still_there = hosts(&["db1", "db2", "db3"], 2, &[(1, "db1"), (0, "db2")]);
    assert_eq!(
        refused(&still_there, &with_start),
        [Refusal::NotLost(host("db2"))]
    );

    // It stopped half-way: db1 knows of it, db3 not yet; and then it is done already.
    let mut half = left.clone();
    half.get_mut("db1")
        .unwrap()
        .claims
        .insert(0, "db3".to_owned());
    assert_eq!(
        planned(&half, &with_start),
        [claim(0, "db3"), claim(1, "db1")]
    );
    let done = hosts(&["db1", "db3"], 2, &[(1, "db1"), (0, "db3")]);
    assert_eq!(
        planned(&done, &with_start),
        [claim(0, "db3"), claim(1, "db1")]
    );
}

#[test]
fn what_cannot_be() {
    let mut clash = hosts(&["db1", "db2"], 16, &[(1, "db1")]);
    clash.get_mut("db2").unwrap().claims = [(1, "db2".to_owned())].into();
    assert!(matches!(
        refused(&clash, &request(&["db2"]))[..],
        [Refusal::Clash { residue: 1, .. }]
    ));

    let mut other = hosts(&["db1", "db2"], 16, &[(1, "db1"), (2, "db2")]);
    other.get_mut("db2").unwrap().series =
        Some((Uuid::from_u128(7), Layout { stride: 16, run: 1 }));
    let wanted = Refusal::SeriesDiffer {
        first: host("db1"),
        second: host("db2"),
    };
    assert_eq!(refused(&other, &request(&["db1"])), [wanted]);

    let mut copy = hosts(&["db1", "db2"], 16, &[(1, "db1")]);
    copy.get_mut("db2").unwrap().ticket = copy["db1"].ticket.clone();
    assert_eq!(
        refused(&copy, &request(&["db2"])),
        [Refusal::HostName {
            host: host("db2"),
            recorded: "db1".to_owned()
        }]
    );

    let two = hosts(&["db1", "db2"], 16, &[(1, "db1"), (2, "db1")]);
    assert!(matches!(
        refused(&two, &request(&["db1"]))[..],
        [Refusal::TwoResidues {
            first: 1,
            second: 2,
            ..
        }]
    ));

    let right = hosts(&["db1"], 16, &[(1, "db1")]);
    let all_wrong = Create {
        stride: Some(5000),
        run: Some(0),
        start: Some(0),
        ..request(&["db9"])
    };
    let said: Vec<String> = refused(&right, &all_wrong)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        said.len(),
        6,
        "no such host, stride, run, start, and both differ: {said:?}"
    );
    let changed = Create {
        stride: Some(2),
        ..request(&["db1"])
    };
    assert_eq!(
        refused(&right, &changed),
        [Refusal::StrideDiffers { recorded: 16 }]
    );
    assert_eq!(refused(&right, &request(&[])), [Refusal::NoHosts]);
    let end = Create {
        start: Some(i64::MAX),
        ..request(&["db1"])
    };
    assert_eq!(refused(&right, &end), [Refusal::Start(i64::MAX)]);
}

/// Of any two hosts that create something, one knows what the other has created.
#[test]
fn more_than_half_must_answer() {
    let claims = [(1, "db1"), (2, "db2"), (3, "db3")];
    let third = request(&["db4"]);
    let missing = |names: &[&str]| Refusal::TooFew {
        missing: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    assert_eq!(
        planned(&hosts(&["db2", "db3", "db4"], 16, &claims), &third).len(),
        4
    );
    let one = hosts(&["db3", "db4"], 16, &claims);
    assert_eq!(refused(&one, &third), [missing(&["db1", "db2"])]);
    assert_eq!(
        refused(
            &one,
            &Create {
                lost: [host("db1")].into(),
                ..third.clone()
            }
        ),
        [missing(&["db2"])]
    );
    let both_lost = Create {
        lost: [host("db1"), host("db2")].into(),
        ..third
    };
    assert_eq!(planned(&one, &both_lost).len(), 4);
}

/// db1 was replaced by an empty one: the others know that it gave tickets, and it does not.
#[test]
fn a_host_that_has_forgotten_its_tickets_needs_a_start() {
    let mut known = hosts(
        &["db1", "db2", "db3"],
        16,
        &[(1, "db1"), (2, "db2"), (3, "db3")],
    );
    known.insert(host("db1"), Facts::default());
    assert_eq!(
        refused(&known, &request(&["db1"])),
        [Refusal::Forgotten(host("db1"))]
    );
    // What the others do is theirs.
    assert_eq!(planned(&known, &request(&["db2", "db3"])).len(), 3);
    let with_start = plan(
        &known,
        &Create {
            start: Some(20_000),
            ..request(&["db1"])
        },
        SERIES,
    )
    .unwrap();
    assert_eq!(
        (with_start.start, with_start.claims[&1].as_str()),
        (20_000, "db1")
    );
    // It was interrupted between its claim and its first ticket.
    known
        .get_mut("db1")
        .unwrap()
        .claims
        .insert(1, "db1".to_owned());
    assert_eq!(planned(&known, &request(&["db1"])).len(), 3);
}

/// With runs of 8,192 the first host begins at 8,192: a smaller maximum leaves it nothing.
#[test]
fn a_maximum_leaves_each_host_a_ticket() {
    let fresh = hosts(&["db1", "db2"], 16, &[]);
    let with = |max| Create {
        max: Some(max),
        ..request(&["db1", "db2"])
    };
    let none = |name, max| Refusal::MaxLeavesNone {
        host: host(name),
        start: 1,
        max,
    };
    assert_eq!(
        refused(&fresh, &with(8191)),
        [none("db1", 8191), none("db2", 8191)]
    );
    assert_eq!(refused(&fresh, &with(8192)), [none("db2", 8192)]);
    assert_eq!(plan(&fresh, &with(16384), SERIES).unwrap().max, Some(16384));
    assert_eq!(refused(&fresh, &with(0))[0], Refusal::Max(0));
}

/// An interrupted change left the hosts with different ones.
#[test]
fn a_new_host_takes_the_smallest_maximum() {
    let mut two = hosts(&["db1", "db2", "db3"], 16, &[(1, "db1"), (2, "db2")]);
    two.get_mut(&host("db1")).unwrap().max = Some(5000);
    two.get_mut(&host("db2")).unwrap().max = Some(2000);
    assert_eq!(
        plan(&two, &request(&["db3"]), SERIES).unwrap().max,
        Some(2000)
    );
}
