//! Puts into words what is known about a shard and what would be done, for the operator to decide.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::map::HostName;
use crate::mover::command::repair::facts::{Answer, HostAnswer, Owning, ShardFacts, Silence};
use crate::mover::command::repair::judge::{Action, Choice, Judgement, View, judge};
use crate::mover::protocol::names::Names;
use crate::mover::protocol::state::Phase;
use crate::pg::HostState;
use crate::shard::{SchemaPrefix, ShardId};

/// The facts of the hosts about a shard, and what can be repaired without losing acknowledged rows.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RepairPlan {
    /// The shard.
    pub shard: ShardId,
    /// The facts of each host first-hand.
    pub hosts: Vec<HostClaim>,
    /// Hosts that were given up, that answer, and that do not report what they have of the shard:
    /// they may serve it.
    pub answering: Vec<AnsweringHost>,
    /// What is to be done.
    pub repair: Repair,
    pub(super) judgement: Judgement,
    /// Hosts that were given up because they cannot be reached.
    pub(super) gone: Vec<HostName>,
}

/// What an operator gives up of a shard.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct GiveUp {
    /// The hosts with rows of the shard that are given up. The config need not name them.
    pub hosts: BTreeSet<HostName>,
    /// Hosts that were fenced off: no application reaches them any more. Without this declaration,
    /// a host that answers with an error is not given up.
    pub fenced: BTreeSet<HostName>,
}

setters!(GiveUp: hosts: BTreeSet<HostName>, fenced: BTreeSet<HostName>);

/// A host that answers, and does not report what it has of a shard.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AnsweringHost {
    /// The host.
    pub host: HostName,
    /// Its state.
    pub state: HostState,
    /// What it answers, with the causes.
    pub why: String,
    /// Whether an operator has declared it fenced off.
    pub is_fenced: bool,
}

impl std::fmt::Display for AnsweringHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let AnsweringHost {
            host, state, why, ..
        } = self;
        match state {
            HostState::NotAsked => {
                write!(
                    f,
                    "{host} was not contacted, and may serve the shard: {why}"
                )
            }
            state => write!(f, "{host} is not gone, for it {state}: {why}"),
        }
    }
}

/// The claim of one host about a shard.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HostClaim {
    /// The host.
    pub host: HostName,
    /// Its claim, or the reason why it has none.
    pub says: String,
}

/// What is to be done with a shard.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Repair {
    /// Nothing: one host serves it, and no other contradicts.
    Fine {
        /// That host.
        host: HostName,
    },
    /// This, and it is safe.
    Do(RepairWay),
    /// One of these, each of which gives something up: an operator must choose.
    Choose(Vec<RepairWay>),
    /// Nothing can be done: no reachable host has the shard or a whole copy of it.
    Nothing,
}

/// A way to make one host serve the shard.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RepairWay {
    /// The hosts that an operator must give up for it, with everything that they have of the shard.
    pub give_up: Vec<HostName>,
    /// Those of them that may serve the shard, for they answer with an error or were not contacted:
    /// they must have been fenced off.
    pub to_fence: Vec<HostName>,
    /// The host that serves the shard afterwards.
    pub host: HostName,
    /// What is done, in this order.
    pub steps: Vec<String>,
    /// Which rows the shard may lack afterwards, and where those are.
    pub at_risk: Vec<String>,
}

impl RepairPlan {
    pub(super) fn of(
        shard: ShardId,
        prefix: &SchemaPrefix,
        said: &[HostAnswer],
        GiveUp {
            hosts: given_up,
            fenced,
        }: &GiveUp,
    ) -> RepairPlan {
        let names = Names {
            schema: prefix.schema(shard),
        };
        let judgement = judge(&View { said, given_up });
        let way = |give_up: &BTreeSet<HostName>, host: &HostName, actions: &[Action]| RepairWay {
            give_up: give_up.iter().cloned().collect(),
            to_fence: silent(said, give_up)
                .filter(|(_, silence)| !may_be_given_up(silence.state))
                .map(|(host, _)| host.clone())
                .collect(),
            host: host.clone(),
            steps: actions.iter().map(|action| step(action, &names)).collect(),
            at_risk: at_risk(said, give_up, actions, &names),
        };
        let repair = match &judgement {
            Judgement::Fine { host, .. } => Repair::Fine { host: host.clone() },
            Judgement::Do { host, actions, .. } => Repair::Do(way(given_up, host, actions)),
            Judgement::Choose(choices) => {
                let each = |choice: &Choice| way(&choice.give_up, &choice.host, &choice.actions);
                Repair::Choose(choices.iter().map(each).collect())
            }
            Judgement::Nothing => Repair::Nothing,
        };
        let hosts = said
            .iter()
            .map(|said| HostClaim {
                host: said.host.clone(),
                says: says(said, &names),
            })
            .collect();
        let answering = silent(said, given_up)
            .filter(|(_, silence)| !may_be_given_up(silence.state))
            .map(|(host, silence)| AnsweringHost {
                host: host.clone(),
                state: silence.state,
                why: silence.why.clone(),
                is_fenced: fenced.contains(host),
            })
            .collect();
        let gone = silent(said, given_up)
            .filter(|(host, silence)| silence.state.may_be_gone() && !fenced.contains(*host))
            .map(|(host, _)| host.clone())
            .collect();
        RepairPlan {
            shard,
            hosts,
            answering,
            repair,
            judgement,
            gone,
        }
    }
}

impl RepairWay {
    /// The flags of `pgshard moves repair` that choose this way.
    pub fn flags(&self) -> String {
        let give_up = self.give_up.iter().map(|host| format!("--give-up {host}"));
        let fenced = self.to_fence.iter().map(|host| format!("--fenced {host}"));
        give_up.chain(fenced).collect::<Vec<_>>().join(" ")
    }
}

/// Those of these hosts that report nothing about the shard.
fn silent<'a>(
    said: &'a [HostAnswer],
    hosts: &BTreeSet<HostName>,
) -> impl Iterator<Item = (&'a HostName, &'a Silence)> {
    let silent = said.iter().filter_map(|said| match &said.answer {
        Answer::Silent(silence) => Some((&said.host, silence)),
        Answer::Known(_) => None,
    });
    silent.filter(|(host, _)| hosts.contains(*host))
}

/// Whether a silent host may be given up by one flag: it cannot be reached, or it answers that it
/// has nothing.
fn may_be_given_up(state: HostState) -> bool {
    state.may_be_gone() || state == HostState::Serving
}

/// A host's claim, on one line.
fn says(said: &HostAnswer, names: &Names) -> String {
    let known = match &said.answer {
        Answer::Known(known) => known,
        Answer::Silent(Silence { state, why }) => match state {
            HostState::Serving | HostState::Unreachable | HostState::NotAsked => {
                return format!("says nothing: {why}");
            }
            state => return format!("{state}: {why}"),
        },
    };
    let mut text = match &known.row {
        None => "does not know it".to_owned(),
        Some(row) => match &row.state {
            Owning::Serving => format!("serves it since epoch {}", row.epoch),
            Owning::Fenced => format!("has it at epoch {}, closed by a move", row.epoch),
            Owning::Moved(peer) => format!("has given it to {peer} at epoch {}", row.epoch),
        },
    };
    if let Some(incoming) = &known.incoming {
        let how = if incoming.ready.is_some() {
            "all of it is there, but not opened"
        } else {
            "not all of it is there"
        };
        let (source, epoch, id) = (&incoming.source, incoming.epoch, incoming.move_id);
        let _ = write!(
            text,
            "; the move {id} brings it from {source} for epoch {epoch}: {how}"
        );
    }
    if known
        .row
        .as_ref()
        .is_some_and(|row| matches!(row.state, Owning::Moved(_)))
    {
        for copy in &known.copies {
            let name = copy
                .taken_by
                .map_or_else(|| names.left(copy.epoch), |_| names.incoming());
            let fed = if copy.fed {
                ", fed with changes since"
            } else {
                ", as it was when it left"
            };
            let _ = write!(
                text,
                "; its old copy of epoch {} is kept ({name}{fed})",
                copy.epoch
            );
        }
    }
    for told in known
        .journal
        .iter()
        .filter(|told| !matches!(told.phase, Phase::Completed | Phase::Aborted))
    {
        let _ = write!(
            text,
            "; its journal has the move {} to {} as {}",
            told.id, told.target, told.phase
        );
    }
    let server = known.server;
    let _ = write!(
        text,
        " (system {}, timeline {}",
        server.system, server.timeline
    );
    match server.recorded {
        Some(recorded) if recorded < server.timeline => {
            let _ = write!(
                text,
                ": it was promoted or restored since it recorded timeline {recorded})"
            );
        }
        _ => text.push(')'),
    }
    text
}

/// One action in words.
fn step(action: &Action, names: &Names) -> String {
    match action {
        Action::Raise { host, epoch, to } => {
            format!("{host} serves it at epoch {to} in place of {epoch}, with the rows that it has")
        }
        Action::StandDown {
            host, epoch, owner, ..
        } => format!(
            "{host} refuses it and directs to {owner}; what it has is kept as {}, and nothing of \
                it is dropped",
            names.left(*epoch)
        ),
        Action::TakeBack { host, copy, to, .. } => {
            format!(
                "{host} makes its old copy of epoch {copy} the shard again, with its unlogged \
                    tables empty, and serves it at epoch {to}"
            )
        }
        Action::Open {
            host,
            by: Some(by),
            id,
            epoch,
        } => {
            format!(
                "{host} opens what the move {id} brought, as {by} decided, and serves it at epoch \
                    {epoch}"
            )
        }
        Action::Open {
            host,
            by: None,
            id,
            epoch,
        } => format!(
            "{host} opens what the move {id} brought, although it is unknown whether its source \
                had decided, and serves it at epoch {epoch}"
        ),
    }
}

/// Which acknowledged rows the shard may lack, and where they are.
fn at_risk(
    said: &[HostAnswer],
    give_up: &BTreeSet<HostName>,
    actions: &[Action],
    names: &Names,
) -> Vec<String> {
    let answer = |host: &HostName| {
        said.iter()
            .find(|said| said.host == *host)
            .map(|said| &said.answer)
    };
    let known = |host: &HostName| match answer(host) {
        Some(Answer::Known(known)) => Some(&**known),
        _ => None,
    };
    let mut risks = Vec::new();
    for host in give_up {
        match known(host) {
            None => risks.push(format!(
                "whatever {host} took while it had the shard, if it had it: no other host has \
                    that, except what was fed to an old copy. It must not come back as it was \
                    before `pgshard check` has seen it"
            )),
            Some(known) => risks.extend(given_up(host, known, actions)),
        }
    }
    for action in actions {
        match action {
            Action::StandDown {
                host, epoch, owner, ..
            } => risks.push(format!(
                "what {host} took since the shard went to another: it is in {} on {host} only. \
                    Compare it with the shard on {owner}: `pgshard moves audit`",
                names.left(*epoch)
            )),
            Action::TakeBack { host, copy, .. } if !is_fed(known(host), *copy) => {
                risks.push(format!(
                    "what was written to the shard after it had left {host} at \
                    epoch {copy}"
                ));
            }
            Action::TakeBack { host, .. } => risks.push(format!(
                "what was written to the shard after it had left {host}, except what was fed to \
                    the old copy since"
            )),
            Action::Open {
                host,
                by: Some(by),
                id,
                ..
            } => {
                let told =
                    known(by).and_then(|known| known.journal.iter().find(|told| told.id == *id));
                if told.is_some_and(|told| matches!(told.phase, Phase::Opened | Phase::Kept)) {
                    risks.push(format!(
                        "what {host} took after it had opened the shard: its server of today has \
                            lost that, as after a fail-over, and nobody else has it"
                    ));
                }
            }
            Action::Open { host, by: None, .. } => {
                risks.push(format!(
                    "what the source took after {host} had all of it, if its fence \
                    was taken back"
                ));
            }
            Action::Raise { .. } => {}
        }
    }
    risks
}

fn is_fed(known: Option<&ShardFacts>, epoch: crate::map::ShardEpoch) -> bool {
    known.is_some_and(|known| {
        known
            .copies
            .iter()
            .any(|copy| copy.epoch == epoch && copy.fed)
    })
}

/// What a host has that is given up although it answers.
fn given_up(host: &HostName, known: &ShardFacts, actions: &[Action]) -> Option<String> {
    let stands_down =
        |action: &Action| matches!(action, Action::StandDown { host: other, .. } if other == host);
    if actions.iter().any(stands_down) {
        return None;
    }
    Some(match known.copies.last() {
        Some(copy) => {
            format!(
                "what the old copy of epoch {} on {host} has and others do not have: it stays \
                    there",
                copy.epoch
            )
        }
        None => format!(
            "what {host} took while it had the shard: its server of today does not have it; a \
                backup may"
        ),
    })
}
