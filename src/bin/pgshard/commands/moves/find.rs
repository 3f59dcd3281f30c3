//! Finds the move that is meant: by its ID, by the beginning of its ID, or because it is the only
//! one.

use std::collections::BTreeSet;

use pgshard::map::HostName;
use pgshard::mover::{Entry, Error, MoveId, Mover, PartialAnswer, Phase, ReverseReplication};
use pgshard::pg::cause::chain;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// Which moves a command is for if none is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fits {
    /// Those that have not ended.
    Open,
    /// Those with kept old copies.
    Kept,
    /// The same, for `moves complete`, which has a flag for all of them.
    Completed,
    /// Those of which a rollback can take a shard back.
    Reversible,
    /// Those that are open or kept.
    Any,
}

impl Fits {
    fn takes(self, entry: &Entry) -> bool {
        let is_kept = entry.phase == Phase::Kept;
        match self {
            Fits::Open => !entry.phase.is_ended(),
            Fits::Kept | Fits::Completed => is_kept,
            Fits::Reversible => {
                is_kept
                    && entry
                        .reverse
                        .as_ref()
                        .is_some_and(ReverseReplication::is_open)
            }
            Fits::Any => true,
        }
    }

    /// What several moves have in common, after "there are 2 moves".
    const fn several(self) -> &'static str {
        match self {
            Fits::Open => "that are open",
            Fits::Kept | Fits::Completed => "whose old copies are kept",
            Fits::Reversible => "that can be taken back",
            Fits::Any => "that are open, or whose old copies are kept",
        }
    }

    const fn none(self) -> &'static str {
        match self {
            Fits::Open => "no move is open",
            Fits::Kept | Fits::Completed => "no move has old copies that are kept",
            Fits::Reversible => "no move can be taken back",
            Fits::Any => "no move is open, and none has old copies that are kept",
        }
    }
}

/// How many characters of its ID name a move, at least.
const PREFIX_MIN: usize = 4;

const LIST: &str = "see `pgshard moves list --all`";

/// The move of this ID, or the only one that fits when there is no ID.
///
/// # Errors
/// With [`Exit::Usage`] when there is no such move, or several are meant; with [`Exit::Failed`]
/// when a host that does not answer may have another.
pub(super) async fn find(mover: &Mover, id: Option<&str>, fits: Fits) -> Result<MoveId, Failure> {
    if let Some(id) = id {
        return named(mover, id).await;
    }
    let PartialAnswer {
        found: entries,
        unknown: silent,
        ..
    } = mover.list(None).await;
    may_have_more(silent.first().map(|(host, error)| (host, chain(error))))?;
    let mut ids: Vec<MoveId> = entries
        .iter()
        .filter(|entry| fits.takes(entry))
        .map(|entry| entry.id)
        .collect();
    ids.dedup();
    match ids.as_slice() {
        [only] => Ok(*only),
        [] if fits == Fits::Reversible => Err(Failure::usage(fits.none()).hint(
            "`pgshard moves show` says why for each; `pgshard move SHARD --to HOST` copies a shard \
             back",
        )),
        [] => Err(Failure::usage(fits.none()).hint(
            "see `pgshard moves list --all`; for a shard that no host serves, or two do, `pgshard \
                moves repair SHARD --plan`",
        )),
        several => {
            let more = if fits == Fits::Completed {
                ", or complete them all: `pgshard moves complete --all`"
            } else {
                ""
            };
            let what = fits.several();
            let error = format!("there are {} moves {what}", several.len());
            Err(Failure::usage(error).hint(one_of(several) + more))
        }
    }
}

/// The move with this ID, or the only one with an ID that begins with it, whether it has ended or
/// not.
///
/// # Errors
/// As [`find`].
pub(super) async fn named(mover: &Mover, text: &str) -> Result<MoveId, Failure> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let prefix = beginning(text)?;
    let PartialAnswer {
        found: entries,
        unknown: silent,
        ..
    } = mover.list_all().await;
    may_have_more(silent.first().map(|(host, error)| (host, chain(error))))?;
    only(&prefix, &entries)
}

/// The same among entries that were read, where these hosts were silent, each for the reason given
/// with it.
///
/// # Errors
/// As [`find`].
pub(in super::super) fn among<'a>(
    text: &str,
    entries: &[Entry],
    mut silent: impl Iterator<Item = (&'a HostName, String)>,
) -> Result<MoveId, Failure> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let prefix = beginning(text)?;
    may_have_more(silent.next())?;
    only(&prefix, entries)
}

/// The beginning of an ID, as it is compared.
fn beginning(text: &str) -> Result<String, Failure> {
    let prefix = text.trim().to_ascii_lowercase();
    if prefix.is_empty() || !prefix.chars().all(|c| c.is_ascii_hexdigit() || c == '-') {
        return Err(Failure::usage(format!("{text:?} is not the ID of a move")).hint(LIST));
    }
    if prefix.len() < PREFIX_MIN {
        let error = format!("{text:?} is too little of an ID: {PREFIX_MIN} characters are needed");
        return Err(Failure::usage(error).hint(LIST));
    }
    Ok(prefix)
}

/// The only move with an ID that begins so.
fn only(prefix: &str, entries: &[Entry]) -> Result<MoveId, Failure> {
    let ids: BTreeSet<MoveId> = entries
        .iter()
        .map(|entry| entry.id)
        .filter(|id| id.to_string().starts_with(prefix))
        .collect();
    let ids: Vec<MoveId> = ids.into_iter().collect();
    match ids.as_slice() {
        [only] => Ok(*only),
        [] => Err(Failure::usage(format!("no move's ID begins with {prefix}")).hint(LIST)),
        several => {
            let error = format!("the IDs of {} moves begin with {prefix}", several.len());
            Err(Failure::usage(error).hint(one_of(several)))
        }
    }
}

/// A host that does not answer may have another move that fits.
fn may_have_more(silent: Option<(&HostName, String)>) -> Result<(), Failure> {
    let Some((host, why)) = silent else {
        return Ok(());
    };
    let error = format!("host {host} may have a move too: {why}");
    Err(Failure::new(Exit::Failed, error)
        .hint("name the move by its whole ID, see `pgshard moves list`"))
}

/// The newest of several moves, to choose from.
fn one_of(ids: &[MoveId]) -> String {
    const SHOWN_MAX: usize = 8;
    let newest: Vec<String> = ids
        .iter()
        .rev()
        .take(SHOWN_MAX)
        .map(ToString::to_string)
        .collect();
    let more = ids.len().saturating_sub(SHOWN_MAX);
    let more = if more > 0 {
        format!(" (and {more} older)")
    } else {
        String::new()
    };
    format!("name one of {}{more}", newest.join(", "))
}

/// What to do about a host that has recorded something other than what is in the config.
pub(in super::super) const CORRECT_THE_CONFIG: &str =
    "correct the config: `pgshard check` names what differs from what the host has recorded";

/// Why a host could not be read, with its name in front, once.
pub(in super::super) fn named_host(host: &HostName, error: &Error) -> String {
    let (words, name) = (chain(error), format!("host {host}"));
    if words.starts_with(&name) {
        words
    } else {
        format!("{name}: {words}")
    }
}

/// Reports the hosts that could not be read, and what to do about each.
pub(super) fn unread(silent: &[(HostName, Error)], output: &Output) -> Exit {
    for (host, error) in silent {
        let remedy = match error {
            Error::Superseded { shard, .. } => {
                format!("`pgshard moves repair {shard} --plan` says what can be done")
            }
            Error::Connect { source, .. } => format!("{}; then look again", source.remedy()),
            Error::CommitWaits { .. } => "have its commits end: start a standby that \
                synchronous_standby_names waits for, or correct that setting; then the same \
                command again"
                .to_owned(),
            Error::OtherHost { .. } | Error::OtherCluster { .. } => {
                format!("{CORRECT_THE_CONFIG}; then look again")
            }
            _ => "see what `pgshard check` says of it, then look again".to_owned(),
        };
        output.error_with_remedy(named_host(host, error), &remedy);
    }
    if silent.is_empty() {
        Exit::Done
    } else {
        Exit::Failed
    }
}
