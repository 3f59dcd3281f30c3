//! Decides what must be done with a host that was set back to an earlier time: a pure function of
//! the facts of all hosts.
//!
//! If hosts contradict each other about a shard, a [repair](crate::mover::Mover::plan_repair)
//! judges which of them serves it; nothing here decides that again.
//!
//! Invariant: an ID clock is only advanced, and never by more than a day beyond its host's clock
//! unless an operator requests it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::id::{Id, MS_MAX, SEQ_MAX};
use crate::map::{HostName, ShardEpoch, print_shards};
use crate::mover::command::recover::facts::{Facts, IdSeen, OpenMove, RepairOutcome, SeenBy};
use crate::mover::command::recover::plan::{
    ClockRaise, Decision, LostMove, RecoveredServer, RecoveryPlan, RowsElsewhere,
};
use crate::mover::command::recover::scope::{calm_owner, concerned, contradictory, rows, served};
use crate::mover::command::repair::{Repair, RepairPlan, RepairWay};
use crate::mover::protocol::names::MoveId;
use crate::schema::{ClockFacts, HostFacts, ShardRow, ShardState, restore};
use crate::shard::ShardId;

/// A clock that is behind the others by less than this is ignored: a server takes longer than that
/// to come back.
const OFF_MS: i64 = 500;

/// IDs run ahead of their clock by at most the burst of a second and a lease.
const AHEAD_MS: i64 = 2_000;

/// The limit of `resume_after()`: an ID further ahead may come from another system.
const DAY_MS: i64 = 86_400_000;

/// What is to be done. `margin`: how far after the present IDs may have been made before the host
/// was lost.
pub(super) fn judge(facts: &Facts, margin: Option<Duration>) -> RecoveryPlan {
    let mut plan = RecoveryPlan {
        host: facts.host.clone(),
        server: server(facts),
        moves: lost_moves(facts),
        repairs: Vec::new(),
        clocks: Vec::new(),
        elsewhere: Vec::new(),
        decisions: Vec::new(),
    };
    let served = served(&facts.host, &facts.survey);
    for (shard, looked) in &facts.looked {
        match looked {
            RepairOutcome::At { without, .. } if served.contains(shard) => {
                plan.elsewhere
                    .extend(elsewhere(*shard, &facts.host, without));
            }
            RepairOutcome::At { sure, .. } => match &sure.repair {
                Repair::Do(_) => plan.repairs.push((**sure).clone()),
                Repair::Choose(_) => plan.decisions.push(choice(sure)),
                // `gone` reports the shards that no host has, all together.
                Repair::Fine { .. } | Repair::Nothing => {}
            },
            RepairOutcome::Not(why) => plan.decisions.push(Decision {
                shards: vec![*shard],
                what: format!("this cannot be judged now: {why}"),
                commands: vec![format!("pgshard recover {}", facts.host)],
            }),
        }
    }
    plan.decisions.extend(unowned_shards(facts));
    plan.decisions.extend(open_moves(facts, &plan));
    clocks(facts, margin, &mut plan);
    plan
}

fn server(facts: &Facts) -> Option<RecoveredServer> {
    let said = facts.server?;
    let Some(Ok(HostFacts {
        clock: Some(clock), ..
    })) = facts.survey.get(&facts.host)
    else {
        let (system, timeline, recorded) = (said.system, said.timeline, said.recorded);
        return Some(RecoveredServer {
            system,
            timeline,
            recorded,
            last_id: None,
        });
    };
    // A clock that is ahead does not show when its last ID was made.
    let last = clock
        .ids_ahead_ms
        .values()
        .filter(|ahead| **ahead <= 0)
        .max();
    let last_id =
        last.and_then(|ahead| Timestamp::from_millisecond(clock.now.as_millisecond() + ahead).ok());
    Some(RecoveredServer {
        system: said.system,
        timeline: said.timeline,
        recorded: said.recorded,
        last_id,
    })
}

/// Moves to later epochs than the host knows of, according to the others.
fn lost_moves(facts: &Facts) -> Vec<LostMove> {
    let unclear = contradictory(&facts.host, &facts.survey);
    let mut lost = Vec::new();
    for (shard, said) in rows(&facts.survey)
        .into_iter()
        .filter(|(shard, _)| unclear.contains(shard))
    {
        let own = said
            .iter()
            .find(|(host, _)| **host == facts.host)
            .map(|(_, row)| row.epoch);
        let later = |epoch: ShardEpoch| own.is_none_or(|own| epoch > own);
        let id = |row: &ShardRow| row.move_id.map(MoveId::from);
        let mut of_shard: Vec<LostMove> = Vec::new();
        for (host, row) in said
            .iter()
            .filter(|(_, row)| row.state == ShardState::Moved && later(row.epoch))
        {
            let (from, to, epoch) = (Some((*host).clone()), row.peer.clone(), row.epoch);
            of_shard.extend(to.map(|to| LostMove {
                shard,
                id: id(row),
                from,
                to,
                epoch,
            }));
        }
        for (host, row) in said
            .iter()
            .filter(|(_, row)| row.state.is_owner() && later(row.epoch))
        {
            if of_shard.iter().all(|lost| lost.epoch != row.epoch) {
                let from = own
                    .filter(|own| own.next() == row.epoch)
                    .map(|_| facts.host.clone());
                of_shard.push(LostMove {
                    shard,
                    id: None,
                    from,
                    to: (*host).clone(),
                    epoch: row.epoch,
                });
            }
        }
        of_shard.sort_by_key(|lost| lost.epoch);
        lost.extend(of_shard);
    }
    lost
}

/// A shard for which one host or another must be given up.
fn choice(plan: &RepairPlan) -> Decision {
    let shard = plan.shard;
    let ways: &[_] = match &plan.repair {
        Repair::Choose(ways) => ways,
        _ => &[],
    };
    let said: Vec<String> = plan
        .hosts
        .iter()
        .map(|says| format!("{} {}", says.host, says.says))
        .collect();
    let command = |way: &RepairWay| format!("pgshard moves repair {shard} {}", way.flags());
    Decision {
        shards: vec![shard],
        what: format!("the rows of one host must be given up: {}", said.join("; ")),
        commands: ways.iter().map(command).collect(),
    }
}

/// Rows of a shard that the host serves, which another host has as well.
fn elsewhere(shard: ShardId, host: &HostName, without: &RepairPlan) -> Option<RowsElsewhere> {
    let Repair::Do(way) = &without.repair else {
        return None;
    };
    let says = without.hosts.iter().find(|says| says.host == way.host)?;
    let command = format!("pgshard moves repair {shard} --give-up {host}");
    Some(RowsElsewhere {
        shard,
        says: format!("{} {}", says.host, says.says),
        command,
    })
}

/// Shards that no host has any more.
fn unowned_shards(facts: &Facts) -> Option<Decision> {
    let nothing = facts.looked.iter().filter(|(_, looked)| match looked {
        RepairOutcome::At { sure, .. } => matches!(sure.repair, Repair::Nothing),
        RepairOutcome::Not(_) => false,
    });
    let shards: Vec<ShardId> = nothing.map(|(shard, _)| *shard).collect();
    let (first, host) = (shards.first()?, &facts.host);
    let what = format!(
        "no host has these shards, or a whole copy of one: {}",
        restore(host)
    );
    Some(Decision {
        commands: vec![
            format!("pgshard bootstrap --lost {host}"),
            format!("pgshard moves repair {first} --plan"),
        ],
        shards,
        what,
    })
}

/// Moves that were under way and have no mover at work, for shards that need no repair.
fn open_moves(facts: &Facts, plan: &RecoveryPlan) -> Vec<Decision> {
    let mut by_move: BTreeMap<MoveId, Vec<&OpenMove>> = BTreeMap::new();
    let repaired = |shard: ShardId| {
        let decided = plan
            .decisions
            .iter()
            .any(|decision| decision.shards.contains(&shard));
        decided || plan.repairs.iter().any(|repair| repair.shard == shard)
    };
    for open in facts.open.iter().filter(|open| !repaired(open.shard)) {
        by_move.entry(open.id).or_default().push(open);
    }
    let decision = |(id, of_move): (MoveId, Vec<&OpenMove>)| {
        let first = of_move.first()?;
        let shards: Vec<ShardId> = of_move.iter().map(|open| open.shard).collect();
        let what = format!(
            "the move {id} from {} to {} was under way: {}",
            first.source, first.target, first.phase
        );
        let commands = vec![
            format!("pgshard moves resume {id}"),
            format!("pgshard moves abort {id}"),
        ];
        Some(Decision {
            shards,
            what,
            commands,
        })
    };
    by_move.into_iter().filter_map(decision).collect()
}

/// The time that an ID clock must pass, and why.
struct Floor {
    unix_ms: i64,
    why: String,
}

/// Raises the clocks that could give an ID a second time. The reasons are IDs that were seen
/// elsewhere, clocks, and the operator's margin.
fn clocks(facts: &Facts, margin: Option<Duration>, plan: &mut RecoveryPlan) {
    let all = rows(&facts.survey);
    for shard in &concerned(&facts.host, &facts.survey) {
        let Some(host) = all.get(shard).and_then(|said| calm_owner(said)) else {
            continue;
        };
        let Some(Ok(HostFacts {
            clock: Some(clock),
            control: Some(control),
            ..
        })) = facts.survey.get(host)
        else {
            continue;
        };
        let (Some(row), Some(cluster)) = (control.shards.get(shard), &control.cluster) else {
            continue;
        };
        let seen = facts.ids.get(shard).map_or(&[][..], Vec::as_slice);
        let own = |seen: &&IdSeen| {
            (&seen.host, &seen.schema, seen.by) == (host, &row.schema, SeenBy::Clock)
        };
        // An ID clock that cannot be read is a finding of `check`.
        let Some(at) = seen.iter().find(own).map(|seen| seen.unix_ms) else {
            continue;
        };
        let now = clock.now.as_millisecond();
        let margin = margin.filter(|_| *host == facts.host);
        let floors = [
            by_rows(seen, host, at),
            by_clocks(facts, host, clock),
            by_word(margin, now),
        ];
        let Some(floor) = floors
            .into_iter()
            .flatten()
            .max_by_key(|floor| floor.unix_ms)
        else {
            continue;
        };
        // Several IDs may be made in one millisecond, and the one that was seen may be the later of
        // them.
        if at > floor.unix_ms {
            continue;
        }
        let ms = u64::try_from(floor.unix_ms - cluster.epoch_ms)
            .unwrap_or(0)
            .min(MS_MAX);
        let Some(id) = Id::new(ms, *shard, u64::from(SEQ_MAX)).map(Id::encode) else {
            continue;
        };
        let (host, after) = (
            host.clone(),
            Timestamp::from_millisecond(floor.unix_ms).unwrap_or(Timestamp::MAX),
        );
        if floor.unix_ms - now < DAY_MS {
            plan.clocks.push(ClockRaise {
                host,
                shard: *shard,
                after,
                id,
                why: floor.why,
            });
        } else {
            let days = (floor.unix_ms - now) / DAY_MS + 1;
            let schema = crate::pg::quote_ident(&row.schema);
            plan.decisions.push(Decision {
                shards: vec![*shard],
                what: format!(
                    "its IDs would have to go on after {after}, far ahead of the clock of {host}: \
                        {}. If that is an ID of the shard, the owner of its schema confirms it \
                        with this statement; if not, give that row another ID",
                    floor.why
                ),
                commands: vec![format!("SELECT {schema}.resume_after({id}, '{days} days')")],
            });
        }
    }
}

/// IDs that are in rows, or that another host's clock of the shard had come to. The millisecond
/// that the host's own has come to is passed by itself where the rows are its own.
fn by_rows(seen: &[IdSeen], host: &HostName, at: i64) -> Option<Floor> {
    let past = |seen: &&IdSeen| seen.unix_ms > at || (seen.unix_ms == at && seen.host != *host);
    let last = seen.iter().filter(past).max_by_key(|seen| seen.unix_ms)?;
    let why = format!("{} of {} has come to a later ID", last.schema, last.host);
    Some(Floor {
        unix_ms: last.unix_ms,
        why,
    })
}

/// The clock of the host is behind the others', and the clock of its former server may not have
/// been. If only two clocks differ, it is unknown which is right; then this machine's decides.
fn by_clocks(facts: &Facts, host: &HostName, clock: &ClockFacts) -> Option<Floor> {
    let other = |(other, facts): (&HostName, &Result<HostFacts, _>)| {
        facts
            .as_ref()
            .ok()
            .filter(|_| other != host)?
            .clock
            .as_ref()
            .map(|clock| (clock.ahead_ms, clock.within_ms))
    };
    let mut others: Vec<(i64, i64)> = facts.survey.iter().filter_map(other).collect();
    others.push((0, 0));
    others.sort_unstable();
    let (usual, within) = others[(others.len() - 1) / 2];
    let behind = usual - clock.ahead_ms;
    let floor = clock.now.as_millisecond() + behind + AHEAD_MS;
    (behind > OFF_MS + within + clock.within_ms).then(|| Floor {
        unix_ms: floor,
        why: format!(
            "the clock of {host} is {:.1} s behind the others'",
            behind as f64 / 1000.0
        ),
    })
}

fn by_word(margin: Option<Duration>, now: i64) -> Option<Floor> {
    let margin = margin?;
    let unix_ms = now.saturating_add(i64::try_from(margin.as_millis()).unwrap_or(i64::MAX));
    Some(Floor {
        unix_ms,
        why: format!("--margin-s {}", margin.as_secs()),
    })
}

impl RecoveryPlan {
    /// The shards that the plan is about, for the log.
    pub(super) fn summary(&self) -> String {
        let repaired = self.repairs.iter().map(|repair| repair.shard);
        print_shards(
            repaired
                .chain(self.clocks.iter().map(|raise| raise.shard))
                .collect::<BTreeSet<_>>(),
        )
    }
}
