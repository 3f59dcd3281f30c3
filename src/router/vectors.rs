//! Checks the vectors (`tests/vectors`) that every client of a cluster must meet. The Python
//! package checks them too.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::session_effects::asks_about_names;
use super::stale::{
    MoveSignal, OwnershipLookup, OwnershipState, PeerVerdict, Row, Verdict, judge, judge_peer,
};
use super::statement_class::StatementClass;
use super::{Options, Router};
use crate::id::{Epoch, Id};
use crate::map::{HostName, MapError, MapVersion, Placement, ShardEpoch, ShardMap, parse_ranges};
use crate::pg::Template;
use crate::shard::{KeyKind, ShardCount, ShardId};

/// The cases of one list of a file.
fn cases<T: DeserializeOwned>(text: &str, list: &str) -> Vec<T> {
    let mut file: BTreeMap<String, Value> = serde_json::from_str(text).unwrap();
    let cases: Vec<T> = serde_json::from_value(file.remove(list).unwrap()).unwrap();
    assert!(!cases.is_empty(), "{list}");
    cases
}

fn epoch(number: u32) -> ShardEpoch {
    ShardEpoch::new(number).unwrap()
}

fn count(shards: u32) -> ShardCount {
    ShardCount::new(shards).unwrap()
}

fn host(name: &str) -> HostName {
    HostName::new(name).unwrap()
}

#[test]
fn keys_match_the_vectors() {
    #[derive(Deserialize)]
    struct Key {
        kind: String,
        text: String,
        of_4096: Option<u16>,
        of_2000: Option<u16>,
    }
    let file = include_str!("../../tests/vectors/keys.json");
    for case in cases::<Key>(file, "keys")
        .into_iter()
        .chain(cases::<Key>(file, "refused"))
    {
        let kind: KeyKind = case.kind.parse().unwrap();
        let shard = |shards| {
            kind.shard_of_text(&case.text, count(shards))
                .ok()
                .map(ShardId::get)
        };
        assert_eq!(
            (shard(4096), shard(2000)),
            (case.of_4096, case.of_2000),
            "{kind} {:?}",
            case.text
        );
    }
}

#[test]
fn ids_match_the_vectors() {
    #[derive(Deserialize)]
    struct Made {
        ms: u64,
        shard: u16,
        sequence_value: u64,
        seq: u16,
        id: String,
    }
    #[derive(Deserialize)]
    struct Time {
        epoch_ms: i64,
        time: String,
        id: String,
    }
    #[derive(Deserialize)]
    struct InCluster {
        id: String,
        shards: u32,
        shard: Option<u16>,
    }
    let file = include_str!("../../tests/vectors/ids.json");
    for case in cases::<Made>(file, "ids") {
        let id = Id::new(
            case.ms,
            ShardId::new(case.shard).unwrap(),
            case.sequence_value,
        )
        .unwrap();
        assert_eq!((id.encode().to_string(), id.seq()), (case.id, case.seq));
        assert_eq!(Id::decode(id.encode()), id);
    }
    for case in cases::<Time>(file, "times") {
        let epoch = Epoch::from_unix_ms(case.epoch_ms).unwrap();
        assert_eq!(
            epoch
                .time(Id::decode(case.id.parse().unwrap()).ms())
                .to_string(),
            case.time
        );
    }
    for case in cases::<InCluster>(file, "in_cluster") {
        let shard = Id::decode(case.id.parse().unwrap()).shard();
        let known = count(case.shards).contains(shard).then(|| shard.get());
        assert_eq!(known, case.shard, "{} of {}", case.id, case.shards);
    }
}

#[test]
fn maps_match_the_vectors() {
    #[derive(Deserialize)]
    struct Case {
        shards: u32,
        lists: BTreeMap<String, String>,
        runs: Option<Vec<(u16, u16, String, u32)>>,
    }
    for case in cases::<Case>(include_str!("../../tests/vectors/maps.json"), "maps") {
        let shards = count(case.shards);
        let mut placements = Vec::new();
        let mut readable = true;
        for (name, text) in &case.lists {
            match parse_ranges(text, shards) {
                Ok(items) => placements.extend(items.into_iter().flat_map(|item| {
                    item.shards().map(move |shard| {
                        (
                            shard,
                            Placement {
                                host: host(name),
                                epoch: item.epoch,
                            },
                        )
                    })
                })),
                Err(_) => readable = false,
            }
        }
        let map: Result<ShardMap, Vec<MapError>> =
            ShardMap::new(MapVersion::FIRST, shards, placements);
        let Some(runs) = &case.runs else {
            assert!(!readable || map.is_err(), "{:?}", case.lists);
            continue;
        };
        let expected = runs.iter().flat_map(|(first, last, name, at)| {
            (*first..=*last).map(move |shard| {
                (
                    ShardId::new(shard).unwrap(),
                    Placement {
                        host: host(name),
                        epoch: epoch(*at),
                    },
                )
            })
        });
        assert_eq!(
            map.unwrap(),
            ShardMap::new(MapVersion::FIRST, shards, expected).unwrap(),
            "{:?}",
            case.lists
        );
    }
}

/// An answer of `pgshard.look`, and what comes of it: the verdict's name, an epoch, a peer.
#[derive(Deserialize)]
struct Judged {
    met: Option<String>,
    row: Option<JudgedRow>,
    incoming: Option<u32>,
    #[serde(rename = "do")]
    verdict: Vec<Value>,
}

#[derive(Deserialize)]
struct JudgedRow {
    state: String,
    epoch: u32,
    last_fence_ago_ms: Option<u64>,
    peer: Option<String>,
    overdue: bool,
}

impl Judged {
    fn lookup(&self) -> OwnershipLookup {
        let row = self.row.as_ref().map(|row| Row {
            state: match row.state.as_str() {
                "serving" => OwnershipState::Serving,
                "fenced" => OwnershipState::Fenced {
                    overdue: row.overdue,
                },
                "moved" => OwnershipState::Moved {
                    peer: row.peer.clone().unwrap(),
                    token: None,
                },
                other => panic!("{other}"),
            },
            epoch: epoch(row.epoch),
            last_fence_ago: row.last_fence_ago_ms.map(Duration::from_millis),
        });
        OwnershipLookup {
            row,
            incoming: self.incoming.map(epoch),
        }
    }

    fn expected(&self) -> (&str, Option<ShardEpoch>, Option<&str>) {
        let at = self
            .verdict
            .get(1)
            .map(|number| epoch(number.as_u64().unwrap() as u32));
        (
            self.verdict[0].as_str().unwrap(),
            at,
            self.verdict.get(2).and_then(Value::as_str),
        )
    }
}

#[test]
fn what_an_error_means() {
    let file = include_str!("../../tests/vectors/stale.json");
    for case in cases::<Judged>(file, "judge") {
        let signal = if case.met.as_deref() == Some("signpost") {
            MoveSignal::Signpost
        } else {
            MoveSignal::Ambiguous
        };
        let verdict = judge(signal, &case.lookup(), Duration::from_millis(10), epoch(3));
        let said = match &verdict {
            Verdict::Retry { epoch } => ("again", Some(*epoch), None),
            Verdict::ApplicationError => ("own", None, None),
            Verdict::Wait => ("wait", None, None),
            Verdict::Expire => ("expire", None, None),
            Verdict::Ask { peer, epoch, .. } => ("ask", Some(*epoch), Some(peer.as_str())),
            Verdict::NotHere => ("not-here", None, None),
        };
        assert_eq!(said, case.expected(), "{:?}", case.lookup());
    }
    for case in cases::<Judged>(file, "judge_peer") {
        let verdict = judge_peer(epoch(4), &case.lookup());
        let said = match &verdict {
            PeerVerdict::Here { epoch } => ("here", Some(*epoch), None),
            PeerVerdict::Onward { peer, epoch, .. } => ("ask", Some(*epoch), Some(peer.as_str())),
            PeerVerdict::Unopened => ("unopened", None, None),
            PeerVerdict::Wait => ("wait", None, None),
        };
        assert_eq!(said, case.expected(), "{:?}", case.lookup());
    }
}

#[test]
fn statements_match_the_vectors() {
    #[derive(Deserialize)]
    struct Case {
        sql: String,
        repeatable: bool,
    }
    for case in cases::<Case>(
        include_str!("../../tests/vectors/statements.json"),
        "statements",
    ) {
        assert_eq!(
            StatementClass::of(&case.sql).repeatable(),
            case.repeatable,
            "{}",
            case.sql
        );
    }
}

#[test]
fn questions_about_names() {
    #[derive(Deserialize)]
    struct Case {
        sql: String,
        asks: bool,
    }
    for case in cases::<Case>(
        include_str!("../../tests/vectors/statements.json"),
        "asking",
    ) {
        assert_eq!(asks_about_names(&case.sql), case.asks, "{}", case.sql);
    }
}

#[test]
fn templates_match_the_vectors() {
    #[derive(Deserialize)]
    struct Case {
        sql: String,
        rendered: String,
    }
    let file = include_str!("../../tests/vectors/templates.json");
    for case in cases::<Case>(file, "templates") {
        assert_eq!(Template::new(&case.sql).render("s"), case.rendered);
    }
    let shard = ShardId::new(7).unwrap();
    for case in cases::<Case>(file, "plain") {
        let sql = Template::new(&case.sql).render_shard("shard_0007", shard);
        assert_eq!(sql, case.rendered);
    }
}

#[test]
fn what_was_learned_against_the_map() {
    #[derive(Deserialize)]
    struct History {
        news: Vec<News>,
        places: Vec<(String, u32)>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum News {
        Map((u64, Vec<u32>)),
        Look((u16, String, u32)),
    }
    let map = |version: u64, epochs: &[u32]| {
        let shards = count(epochs.len() as u32);
        let place = |at: &u32| Placement {
            host: host("db0"),
            epoch: epoch(*at),
        };
        let placements = shards.iter().zip(epochs.iter().map(place));
        std::sync::Arc::new(ShardMap::new(MapVersion::new(version), shards, placements).unwrap())
    };
    for history in cases::<History>(
        include_str!("../../tests/vectors/learned.json"),
        "histories",
    ) {
        let router = Router::new(Options::new(Vec::new(), map(1, &[1, 1, 1])));
        for news in &history.news {
            match news {
                // A map that is older than the present one is refused.
                News::Map((version, epochs)) => drop(router.set_map(map(*version, epochs))),
                News::Look((shard, name, at)) => {
                    let placement = Placement {
                        host: host(name),
                        epoch: epoch(*at),
                    };
                    router
                        .inner()
                        .learn(ShardId::new(*shard).unwrap(), placement);
                }
            }
        }
        for (shard, (name, at)) in history.places.iter().enumerate() {
            let shard = ShardId::new(shard as u16).unwrap();
            let (inner, expected) = (router.inner(), (Some(host(name)), Some(epoch(*at))));
            assert_eq!(
                (inner.host_name(shard), inner.epoch(shard)),
                expected,
                "shard {shard}"
            );
        }
    }
}
