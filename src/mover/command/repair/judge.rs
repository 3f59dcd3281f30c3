//! Decides what can be repaired when hosts contradict each other about a shard: a pure function of
//! their facts and of what the operator gives up.
//!
//! Invariants: if a host has rows that would not be served, or may have some and does not answer,
//! only the operator can give it up. The exception is when another host has the shard at a later
//! epoch: then the host is wrong, and its rows are kept. No step makes a second host serve the
//! shard.

use std::collections::BTreeSet;

use crate::map::{HostName, ShardEpoch};
use crate::mover::command::repair::facts::{
    Answer, HostAnswer, Incoming, OldCopy, Owning, ShardFacts,
};
use crate::mover::protocol::names::MoveId;

/// One thing to do; each is a compare-and-swap on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The host owns the shard at a later epoch from now on.
    Raise {
        host: HostName,
        epoch: ShardEpoch,
        to: ShardEpoch,
    },
    /// The host refuses the shard, and its signpost leads to the owner. What it has becomes an old
    /// copy.
    StandDown {
        host: HostName,
        epoch: ShardEpoch,
        owner: HostName,
        since: ShardEpoch,
        rollback_of: Option<MoveId>,
    },
    /// The host's old copy becomes the shard again.
    TakeBack {
        host: HostName,
        epoch: ShardEpoch,
        copy: ShardEpoch,
        taken_by: Option<MoveId>,
        to: ShardEpoch,
    },
    /// The host opens what a move has brought it: by the token of the host that has decided, or
    /// because that host is given up.
    Open {
        host: HostName,
        by: Option<HostName>,
        id: MoveId,
        epoch: ShardEpoch,
    },
}

/// The decision about a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// One host has it, and no other contradicts.
    Fine { host: HostName, epoch: ShardEpoch },
    /// These actions make this host serve it.
    Do {
        host: HostName,
        epoch: ShardEpoch,
        actions: Vec<Action>,
    },
    /// An operator must choose what to give up.
    Choose(Vec<Choice>),
    /// No reachable host has the shard, or a whole copy of it.
    Nothing,
}

/// One of the possible choices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// The hosts that are given up.
    pub(super) give_up: BTreeSet<HostName>,
    /// The host that would serve the shard.
    pub(super) host: HostName,
    /// What would be done.
    pub(super) actions: Vec<Action>,
}

/// The facts of the hosts, and the hosts that are given up.
pub(super) struct View<'a> {
    pub(super) said: &'a [HostAnswer],
    pub(super) given_up: &'a BTreeSet<HostName>,
}

/// A host that owns the shard by its own row.
#[derive(Clone, Copy)]
struct Owner<'a> {
    host: &'a HostName,
    epoch: ShardEpoch,
}

/// A shard that a host has given to another host, which does not know of it.
struct Dangling<'a> {
    epoch: ShardEpoch,
    from: &'a HostName,
    /// The host that it was given to.
    to: &'a HostName,
}

/// Decides what to do.
pub(super) fn judge(view: &View<'_>) -> Judgement {
    match view.settle() {
        Settlement::Done(judgement) => judgement,
        Settlement::Blocked(wanted) => view.choose(wanted),
    }
}

/// The result with the hosts that are given up.
enum Settlement<'a> {
    Done(Judgement),
    /// Nothing can be done unless one of these sets of hosts is given up as well.
    Blocked(Vec<BTreeSet<&'a HostName>>),
}

impl<'a> View<'a> {
    fn settle(&self) -> Settlement<'a> {
        let owners = self.owners();
        let dangling = self.dangling();
        let copy = self.newest_copy();
        match (owners.first(), dangling) {
            (Some(best), Some(lost)) if lost.epoch >= best.epoch => {
                // Rows may be on the owner, from before, and with the host that the shard was given
                // to, or another, since.
                let later = if lost.to == best.host {
                    lost.from
                } else {
                    lost.to
                };
                Settlement::Blocked(vec![BTreeSet::from([best.host]), BTreeSet::from([later])])
            }
            (Some(best), _) => self.keep(*best, &owners, copy),
            (None, Some(lost)) => self.lost(&lost, copy),
            (None, None) => self.unowned(copy),
        }
    }

    /// The possible choices, each of which gives up as few hosts as possible.
    fn choose(&self, wanted: Vec<BTreeSet<&'a HostName>>) -> Judgement {
        let mut choices: Vec<Choice> = Vec::new();
        let mut open = wanted;
        // Each round gives up one more host, so there are no more rounds than hosts.
        for _ in 0..=self.said.len() {
            let mut next = Vec::new();
            for more in open.drain(..) {
                let given_up: BTreeSet<HostName> = self
                    .given_up
                    .iter()
                    .chain(more.iter().copied())
                    .cloned()
                    .collect();
                let view = View {
                    said: self.said,
                    given_up: &given_up,
                };
                match view.settle() {
                    Settlement::Done(Judgement::Do { host, actions, .. }) => {
                        if !choices.iter().any(|choice| choice.host == host) {
                            choices.push(Choice {
                                give_up: view.given_up.clone(),
                                host,
                                actions,
                            });
                        }
                    }
                    Settlement::Done(_) => {}
                    Settlement::Blocked(ways) => {
                        next.extend(ways.into_iter().map(|way| {
                            let known: BTreeSet<&HostName> =
                                self.said.iter().map(|said| &said.host).collect();
                            let all = way.into_iter().chain(more.iter().copied());
                            all.filter_map(|host| known.get(host).copied())
                                .collect::<BTreeSet<_>>()
                        }));
                    }
                }
            }
            open = next;
        }
        if choices.is_empty() {
            Judgement::Nothing
        } else {
            Judgement::Choose(choices)
        }
    }

    /// An owner at the latest epoch that any host names, among those that are not given up.
    fn keep(
        &self,
        best: Owner<'a>,
        owners: &[Owner<'a>],
        copy: Option<(&'a HostName, &'a OldCopy)>,
    ) -> Settlement<'a> {
        let tied = owners
            .iter()
            .filter(|other| other.host != best.host && other.epoch == best.epoch);
        let mut ways: Vec<BTreeSet<&HostName>> =
            tied.map(|other| BTreeSet::from([other.host])).collect();
        if !ways.is_empty() {
            ways.push(BTreeSet::from([best.host]));
            return Settlement::Blocked(ways);
        }
        // There is an old copy from later: what is served is from before the shard came and left
        // again.
        if let Some((host, _)) = copy.filter(|(_, copy)| copy.epoch > best.epoch) {
            return Settlement::Blocked(vec![BTreeSet::from([best.host]), BTreeSet::from([host])]);
        }
        let mut since = best.epoch;
        let mut actions = Vec::new();
        for (host, known) in self.answers().filter(|(host, _)| *host != best.host) {
            let Some(row) = &known.row else { continue };
            let needed = match &row.state {
                Owning::Moved(peer) if peer == best.host => row.epoch,
                Owning::Moved(_) if row.epoch > best.epoch => row.epoch.next(),
                Owning::Serving | Owning::Fenced if row.epoch >= best.epoch => row.epoch.next(),
                _ => best.epoch,
            };
            since = since.max(needed);
            if row.state == Owning::Serving || row.state == Owning::Fenced {
                actions.push((host, known));
            }
        }
        let mut actions: Vec<Action> = actions
            .into_iter()
            .map(|(host, known)| stand_down(host, known, best.host, since))
            .collect();
        if since > best.epoch {
            actions.insert(
                0,
                Action::Raise {
                    host: best.host.clone(),
                    epoch: best.epoch,
                    to: since,
                },
            );
        }
        Settlement::Done(match actions.is_empty() {
            true => Judgement::Fine {
                host: best.host.clone(),
                epoch: best.epoch,
            },
            false => Judgement::Do {
                host: best.host.clone(),
                epoch: since,
                actions,
            },
        })
    }

    /// No host serves it, and this is the last record of it.
    fn lost(
        &self,
        lost: &Dangling<'a>,
        copy: Option<(&'a HostName, &'a OldCopy)>,
    ) -> Settlement<'a> {
        let (_, from) = self
            .answers()
            .find(|(host, _)| *host == lost.from)
            .expect("who has said so has answered");
        let brought = self
            .trusted()
            .find(|(host, _)| *host == lost.to)
            .and_then(|(_, known)| known.incoming.as_ref());
        let whole = from
            .row
            .as_ref()
            .and_then(|row| brought.filter(|brought| brought.fits(row)));
        let own = copy.filter(|(host, _)| *host == lost.to);
        if whole.is_none() && own.is_none() {
            return Settlement::Blocked(vec![BTreeSet::from([lost.to])]);
        }
        if let Some(blocked) = self.unheard() {
            return blocked;
        }
        let Some(whole) = whole else {
            // A repair that gave the shard to this host because of its old copy was interrupted.
            return own.map_or(Settlement::Done(Judgement::Nothing), |(host, copy)| {
                Settlement::Done(self.take_back(host, copy))
            });
        };
        // The host that has lost its open has no more than what was fed to the old copy.
        match copy.filter(|(host, copy)| {
            *host == lost.from && copy.fed && copy.epoch.next() == lost.epoch
        }) {
            Some((host, copy)) => Settlement::Done(self.take_back(host, copy)),
            None => {
                let (host, by) = (lost.to.clone(), Some(lost.from.clone()));
                Settlement::Done(self.open(host, by, whole))
            }
        }
    }

    /// No host serves it, and the host that was recorded as serving it is given up.
    fn unowned(&self, copy: Option<(&'a HostName, &'a OldCopy)>) -> Settlement<'a> {
        // If the source of a move answers, its row decides, so what the move brought is what an
        // ended move has left. The same holds if the shard has been elsewhere since.
        let answers = |host: &HostName| self.trusted().any(|(other, _)| other == host);
        let since = self
            .answers()
            .filter_map(|(_, known)| Some(known.row.as_ref()?.epoch))
            .max();
        let whole = |incoming: &&Incoming| {
            let last = since.is_none_or(|since| incoming.epoch >= since);
            incoming.ready.is_some() && last && !answers(&incoming.source)
        };
        let brought = self
            .trusted()
            .filter_map(|(host, known)| Some((host, known.incoming.as_ref().filter(whole)?)));
        let brought = brought.max_by_key(|(_, whole)| whole.epoch);
        let done = match (copy, brought) {
            // It is unknown which of them is later.
            (Some((kept, copy)), Some((host, whole))) if copy.epoch < whole.epoch && copy.fed => {
                return Settlement::Blocked(vec![BTreeSet::from([kept]), BTreeSet::from([host])]);
            }
            // What a move has brought is what its source had at its last epoch.
            (Some((_, copy)), Some((host, whole))) if copy.epoch < whole.epoch => {
                self.open(host.clone(), None, whole)
            }
            (Some((host, copy)), _) => self.take_back(host, copy),
            (None, Some((host, whole))) => self.open(host.clone(), None, whole),
            (None, None) => return Settlement::Done(Judgement::Nothing),
        };
        self.unheard().unwrap_or(Settlement::Done(done))
    }

    fn open(&self, host: HostName, by: Option<HostName>, whole: &Incoming) -> Judgement {
        let owned = self.answers().filter_map(|(_, known)| known.row.as_ref());
        let owned = owned
            .filter(|row| !matches!(row.state, Owning::Moved(_)))
            .map(|row| row.epoch.next());
        let since = owned.fold(whole.epoch, ShardEpoch::max);
        let mut actions = self.stand_downs(&host, since);
        actions.push(Action::Open {
            host: host.clone(),
            by,
            id: whole.move_id,
            epoch: whole.epoch,
        });
        if since > whole.epoch {
            actions.push(Action::Raise {
                host: host.clone(),
                epoch: whole.epoch,
                to: since,
            });
        }
        Judgement::Do {
            host,
            epoch: since,
            actions,
        }
    }

    fn take_back(&self, host: &HostName, copy: &OldCopy) -> Judgement {
        let row = self
            .answers()
            .find(|(other, _)| *other == host)
            .and_then(|(_, known)| known.row.as_ref());
        let (epoch, to) = (
            row.map_or(ShardEpoch::FIRST, |row| row.epoch),
            self.latest().next(),
        );
        let mut actions = self.stand_downs(host, to);
        let (copy, taken_by) = (copy.epoch, copy.taken_by);
        actions.push(Action::TakeBack {
            host: host.clone(),
            epoch,
            copy,
            taken_by,
            to,
        });
        Judgement::Do {
            host: host.clone(),
            epoch: to,
            actions,
        }
    }

    /// The owners by their own row that are given up: they stand down first.
    fn stand_downs(&self, owner: &HostName, since: ShardEpoch) -> Vec<Action> {
        let owns = |known: &ShardFacts| {
            known
                .row
                .as_ref()
                .is_some_and(|row| !matches!(row.state, Owning::Moved(_)))
        };
        let owners = self
            .answers()
            .filter(|(host, known)| *host != owner && owns(known));
        owners
            .map(|(host, known)| stand_down(host, known, owner, since))
            .collect()
    }

    /// Hosts that did not answer may have the shard at a later epoch than any known one.
    fn unheard(&self) -> Option<Settlement<'a>> {
        let silent = self
            .said
            .iter()
            .filter(|said| matches!(said.answer, Answer::Silent(_)));
        let silent: BTreeSet<&HostName> = silent
            .map(|said| &said.host)
            .filter(|host| !self.given_up.contains(*host))
            .collect();
        (!silent.is_empty()).then(|| Settlement::Blocked(vec![silent]))
    }

    fn answers(&self) -> impl Iterator<Item = (&'a HostName, &'a ShardFacts)> {
        self.said.iter().filter_map(|said| match &said.answer {
            Answer::Known(known) => Some((&said.host, &**known)),
            Answer::Silent(_) => None,
        })
    }

    /// The hosts that answer and are not given up.
    fn trusted(&self) -> impl Iterator<Item = (&'a HostName, &'a ShardFacts)> {
        self.answers()
            .filter(|(host, _)| !self.given_up.contains(*host))
    }

    /// The owners by their own row, the latest first.
    fn owners(&self) -> Vec<Owner<'a>> {
        let owner = |(host, known): (&'a HostName, &'a ShardFacts)| {
            let row = known
                .row
                .as_ref()
                .filter(|row| !matches!(row.state, Owning::Moved(_)))?;
            Some(Owner {
                host,
                epoch: row.epoch,
            })
        };
        let mut owners: Vec<Owner<'a>> = self.trusted().filter_map(owner).collect();
        owners.sort_by_key(|owner| (std::cmp::Reverse(owner.epoch), owner.host));
        owners
    }

    /// The last host that was given the shard, is not given up, and does not know of it.
    fn dangling(&self) -> Option<Dangling<'a>> {
        let given = self
            .trusted()
            .filter_map(|(from, known)| match known.row.as_ref() {
                Some(row) => match &row.state {
                    Owning::Moved(to) if !self.given_up.contains(to) => Some(Dangling {
                        epoch: row.epoch,
                        from,
                        to,
                    }),
                    _ => None,
                },
                None => None,
            });
        let unknown = |given: &Dangling<'_>| {
            let there = self
                .answers()
                .find(|(host, _)| *host == given.to)
                .and_then(|(_, known)| known.row.as_ref());
            there.is_none_or(|row| row.epoch < given.epoch)
        };
        given.filter(unknown).max_by_key(|given| given.epoch)
    }

    /// The old copy with the latest epoch, on a host that is not given up and does not serve the
    /// shard.
    fn newest_copy(&self) -> Option<(&'a HostName, &'a OldCopy)> {
        let away = |known: &ShardFacts| {
            known
                .row
                .as_ref()
                .is_some_and(|row| matches!(row.state, Owning::Moved(_)))
        };
        let copies = self.trusted().filter(|(_, known)| away(known));
        let copies =
            copies.flat_map(|(host, known)| known.copies.iter().map(move |copy| (host, copy)));
        copies.max_by_key(|(host, copy)| (copy.epoch, *host))
    }

    /// The latest epoch that any host names.
    fn latest(&self) -> ShardEpoch {
        let named = self.answers().flat_map(|(_, known)| {
            let row = known.row.iter().map(|row| row.epoch);
            row.chain(known.incoming.iter().map(|incoming| incoming.epoch))
        });
        named.max().unwrap_or(ShardEpoch::FIRST)
    }
}

fn stand_down(host: &HostName, known: &ShardFacts, owner: &HostName, since: ShardEpoch) -> Action {
    let epoch = known
        .row
        .as_ref()
        .map_or(ShardEpoch::FIRST, |row| row.epoch);
    let open = known
        .journal
        .iter()
        .find(|told| !told.phase.is_ended() && told.target == *owner);
    let rollback_of = open.and_then(|told| told.rollback_of);
    Action::StandDown {
        host: host.clone(),
        epoch,
        owner: owner.clone(),
        since,
        rollback_of,
    }
}
