//! The answers of hosts and of the control database.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::server::{Script, Statement};
use super::wire::{Answer, FLOAT8, INT4, INT4_ARRAY, INT8, Refusal, Shape, TEXT, UUID, int4_array};
use crate::map::{HostName, ShardMap};
use crate::shard::ShardId;

type Value = Option<Vec<u8>>;

fn text(value: &str) -> Value {
    Some(value.as_bytes().to_vec())
}

/// The statements with which any connection begins.
fn begins(sql: &str) -> Option<(Statement, Shape)> {
    let none = &[];
    let (number, columns): (u8, &'static [(&'static str, u32)]) =
        if sql.contains("pg_control_system") {
            (
                0,
                &[
                    ("writes", TEXT),
                    ("file", TEXT),
                    ("system", INT8),
                    ("started", FLOAT8),
                    ("process", INT4),
                ],
            )
        } else if sql.contains("FROM pgshard.cluster") {
            (
                1,
                &[("shards", INT4), ("key_kind", TEXT), ("legacy_below", INT8)],
            )
        } else if sql.contains("FROM pgshard.identity") {
            (
                2,
                &[
                    ("host_name", TEXT),
                    ("generation", INT4),
                    ("system_identifier", INT8),
                    ("timeline", INT4),
                ],
            )
        } else {
            return None;
        };
    Some((
        Statement::Begin(number),
        Shape {
            parameters: none,
            columns,
        },
    ))
}

fn begun(number: u8, shards: u32) -> Answer {
    let int8 = |number: i64| Some(number.to_be_bytes().to_vec());
    let int4 = |number: u32| Some(number.to_be_bytes().to_vec());
    Answer::Rows(match number {
        0 => {
            let started = Some(1.0_f64.to_be_bytes().to_vec());
            vec![vec![
                text("off"),
                text("000000010000000000000001"),
                int8(1),
                started,
                int4(1),
            ]]
        }
        1 => vec![vec![int4(shards), text("integer"), int8(0)]],
        _ => Vec::new(),
    })
}

/// Who has a shard, by a host's own row.
#[derive(Clone, Debug)]
pub(super) enum Row {
    Serving {
        epoch: u32,
        since: Option<Instant>,
    },
    Fenced {
        epoch: u32,
        since: Instant,
        until: Instant,
    },
    Moved {
        epoch: u32,
        peer: String,
    },
    Incoming {
        epoch: u32,
    },
}

/// A host's rows.
pub(super) struct HostScript {
    shards: u32,
    rows: Mutex<BTreeMap<u16, Row>>,
}

const LOOKED: &[(&str, u32)] = &[
    ("shard", INT4),
    ("state", TEXT),
    ("epoch", INT4),
    ("peer", TEXT),
    ("deadline_in_ms", FLOAT8),
    ("last_fence_ago_ms", FLOAT8),
    ("open_token", UUID),
    ("incoming_epoch", INT4),
];

impl HostScript {
    pub(super) fn new(map: &ShardMap, host: &HostName) -> HostScript {
        let serving = |shard: ShardId| {
            (
                shard.get(),
                Row::Serving {
                    epoch: 1,
                    since: None,
                },
            )
        };
        let rows = Mutex::new(map.shards_on(host).map(serving).collect());
        HostScript {
            shards: u32::from(map.shards().get()),
            rows,
        }
    }

    pub(super) fn rows(&self) -> MutexGuard<'_, BTreeMap<u16, Row>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self, shard: i32) -> Vec<Value> {
        let now = Instant::now();
        let ms = |time: Duration| Some((time.as_secs_f64() * 1000.0).to_be_bytes().to_vec());
        let int4 = |number: u32| Some(number.to_be_bytes().to_vec());
        let row = u16::try_from(shard)
            .ok()
            .and_then(|shard| self.rows().get(&shard).cloned());
        let asked = Some(shard.to_be_bytes().to_vec());
        match row {
            None => vec![asked, None, None, None, None, None, None, None],
            Some(Row::Serving { epoch, since }) => {
                let ago = since.and_then(|since| ms(now - since));
                vec![
                    asked,
                    text("serving"),
                    int4(epoch),
                    None,
                    None,
                    ago,
                    None,
                    None,
                ]
            }
            Some(Row::Fenced {
                epoch,
                since,
                until,
            }) => {
                let left = (until.saturating_duration_since(now).as_secs_f64()
                    - now.saturating_duration_since(until).as_secs_f64())
                    * 1000.0;
                let left = Some(left.to_be_bytes().to_vec());
                vec![
                    asked,
                    text("fenced"),
                    int4(epoch),
                    None,
                    left,
                    ms(now - since),
                    None,
                    None,
                ]
            }
            Some(Row::Moved { epoch, peer }) => {
                vec![
                    asked,
                    text("moved"),
                    int4(epoch),
                    text(&peer),
                    None,
                    None,
                    None,
                    None,
                ]
            }
            Some(Row::Incoming { epoch }) => {
                vec![asked, None, None, None, None, None, None, int4(epoch)]
            }
        }
    }

    /// What the control schema's function does: swaps back a fence that is past its deadline.
    fn expire(&self, shard: i32) -> bool {
        let now = Instant::now();
        let mut rows = self.rows();
        let Some(row) = u16::try_from(shard)
            .ok()
            .and_then(|shard| rows.get_mut(&shard))
        else {
            return false;
        };
        match *row {
            Row::Fenced { epoch, until, .. } if until < now => {
                *row = Row::Serving {
                    epoch,
                    since: Some(now),
                };
                true
            }
            _ => false,
        }
    }
}

impl Script for HostScript {
    fn parse(&self, sql: &str) -> Result<(Statement, Shape), Refusal> {
        if let Some(known) = begins(sql) {
            return Ok(known);
        }
        if sql.contains("pgshard.look(") {
            return Ok((
                Statement::Look,
                Shape {
                    parameters: &[INT4_ARRAY],
                    columns: LOOKED,
                },
            ));
        }
        if sql.contains("pgshard.expire_fence(") {
            // boolean
            return Ok((
                Statement::Expire,
                Shape {
                    parameters: &[INT4],
                    columns: &[("expire_fence", 16)],
                },
            ));
        }
        let mut words = sql.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        match words.find_map(|word| word.strip_prefix("shard_")?.parse().ok()) {
            Some(shard) if self.rows().contains_key(&shard) => Ok((
                Statement::Shard(shard),
                Shape {
                    parameters: &[],
                    columns: &[("one", INT4)],
                },
            )),
            Some(_) => Err(Refusal {
                code: "3F000",
                detail: String::new(),
            }),
            None => panic!("a host is not asked {sql}"),
        }
    }

    fn run(&self, statement: Statement, parameters: &[Value]) -> Answer {
        let first = || {
            parameters
                .first()
                .and_then(Option::as_deref)
                .unwrap_or_default()
        };
        match statement {
            Statement::Begin(number) => begun(number, self.shards),
            Statement::Look => Answer::Rows(
                int4_array(first())
                    .into_iter()
                    .map(|shard| self.look(shard))
                    .collect(),
            ),
            Statement::Expire => {
                let shard = first().try_into().map_or(-1, i32::from_be_bytes);
                Answer::Rows(vec![vec![Some(vec![u8::from(self.expire(shard))])]])
            }
            Statement::Shard(shard) => match self.rows().get(&shard) {
                Some(Row::Serving { .. }) => {
                    Answer::Rows(vec![vec![Some(1_i32.to_be_bytes().to_vec())]])
                }
                Some(Row::Incoming { .. }) | None => Answer::Refused(Refusal {
                    code: "3F000",
                    detail: String::new(),
                }),
                Some(_) => Answer::Refused(Refusal {
                    code: "SH001",
                    detail: "{}".to_owned(),
                }),
            },
            Statement::Fetch => panic!("a host is not asked that"),
        }
    }
}

/// The map that a control database keeps.
pub(super) struct ControlScript {
    kept: Mutex<(ShardMap, String, Uuid)>,
}

impl ControlScript {
    pub(super) fn new(map: ShardMap) -> ControlScript {
        let placement = placement(&map);
        ControlScript {
            kept: Mutex::new((map, placement, Uuid::from_u128(1))),
        }
    }

    pub(super) fn map(&self) -> ShardMap {
        self.kept
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .clone()
    }

    /// Replaces the map.
    pub(super) fn publish(&self, map: ShardMap) {
        let publication = Uuid::from_u128(u128::from(map.version().get()));
        let placement = placement(&map);
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = (map, placement, publication);
    }
}

fn placement(map: &ShardMap) -> String {
    let lists: BTreeMap<&str, String> = map
        .hosts()
        .iter()
        .map(|host| (host.as_str(), map.ranges(host)))
        .collect();
    serde_json::to_string(&lists).expect("texts by texts are JSON")
}

impl Script for ControlScript {
    fn parse(&self, sql: &str) -> Result<(Statement, Shape), Refusal> {
        if let Some(known) = begins(sql) {
            return Ok(known);
        }
        assert!(
            sql.contains("FROM pgshard_map.map"),
            "a control database is not asked {sql}"
        );
        let columns = &[
            ("version", INT8),
            ("shards", INT4),
            ("placement", TEXT),
            ("publication", UUID),
            ("format", INT4),
        ];
        Ok((
            Statement::Fetch,
            Shape {
                parameters: &[UUID],
                columns,
            },
        ))
    }

    fn run(&self, statement: Statement, parameters: &[Value]) -> Answer {
        match statement {
            Statement::Begin(number) => begun(number, 0),
            Statement::Fetch => {
                let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                let (map, placement, publication) = &*kept;
                if parameters.first().and_then(Option::as_deref) == Some(publication.as_bytes()) {
                    return Answer::Rows(Vec::new());
                }
                let (version, shards) = (map.version().get(), i32::from(map.shards().get()));
                Answer::Rows(vec![vec![
                    Some(version.to_be_bytes().to_vec()),
                    Some(shards.to_be_bytes().to_vec()),
                    text(placement),
                    Some(publication.as_bytes().to_vec()),
                    Some(1_i32.to_be_bytes().to_vec()),
                ]])
            }
            _ => panic!("a control database is not asked that"),
        }
    }
}
