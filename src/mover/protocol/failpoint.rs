//! Places in a move where a test can make the mover die, stop or fail.

/// What happens at a [`Failpoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The process is killed by SIGKILL.
    Kill,
    /// The process stops itself by SIGSTOP, and continues after SIGCONT.
    Stop,
    /// The step fails.
    Fail,
    /// A change that the stream brings is dropped, doubled or altered.
    Corruption(Corruption),
}

/// A named place, and what happens every time that a move passes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failpoint {
    name: &'static str,
    action: Action,
}

/// Every failpoint, in the order of a move: before and after each statement that changes anything.
pub const FAILPOINTS: [&str; 53] = [
    "before claim",
    "after claim",
    "after incoming",
    "in lend",
    "after lend",
    "after target schema",
    "after signpost",
    "after prepare",
    "before publication",
    "in publication",
    "after publication",
    "before slot",
    "after slot",
    "after bounds",
    "in a chunk",
    "after a chunk",
    "in build",
    "after build",
    "after chunks",
    "in keys",
    "after keys",
    "after loaded",
    "before applied",
    "after applied",
    "in caught up",
    "after caught up",
    "after verify",
    "after catch-up",
    "in preset",
    "after preset",
    "before swap",
    "after swap",
    "after marker",
    "after rows",
    "after indexes",
    "before ready",
    "after ready",
    "after copied",
    "after drain",
    "after open prepared",
    "after decide",
    "after open",
    "before publish",
    "after publish",
    "after forgotten",
    "after kept",
    "after slot drop",
    "after publication drop",
    "before unfence",
    "after unfence",
    "in discard",
    "after target discard",
    "after discard",
];

/// The failpoints of reverse replications: those of any online move, and those that only a rollback
/// passes.
pub const ROLLBACK_FAILPOINTS: [&str; 8] = [
    "after back publication",
    "after back slot",
    "after back tables",
    "after back row",
    "after constraint drop",
    "after adopt",
    "after end of former",
    "after back drop",
];

/// The failpoint of audits, when both snapshots are taken.
pub const AUDIT_FAILPOINTS: [&str; 1] = ["before audit"];

/// The failpoints of moves of unlogged tables.
const UNLOGGED_FAILPOINTS: [&str; 3] = ["in empty unlogged", "in unlogged", "after unlogged"];

/// The failpoints of repairs: a host has given up its shards, and nothing is committed yet; one
/// shard of a host that is brought back is repaired, and the next one is not.
const REPAIR_FAILPOINTS: [&str; 2] = ["after stand down", "after repair"];

/// The failpoint of `complete`: an old copy is dropped, and the next one is not.
const COMPLETE_FAILPOINTS: [&str; 1] = ["after old copy"];

const LISTS: [&[&str]; 6] = [
    &FAILPOINTS,
    &ROLLBACK_FAILPOINTS,
    &AUDIT_FAILPOINTS,
    &UNLOGGED_FAILPOINTS,
    &REPAIR_FAILPOINTS,
    &COMPLETE_FAILPOINTS,
];

/// What a test does to a change that the stream brings, so that the target differs from the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corruption {
    /// It is skipped.
    Drop,
    /// It is applied twice.
    Double,
    /// It is applied with `TRIGGER_VALUE` changed into `CORRUPTED_VALUE`.
    Alter,
}

/// The failpoint at which [`Corruption`] is done.
const IN_A_CHANGE: &str = "in a change";

/// Only changes with this value in a row, old or new, are corrupted: a test writes it once the
/// shard is verified.
pub(crate) const TRIGGER_VALUE: &str = "failpoint";

/// What [`Corruption::Alter`] replaces it with.
pub(crate) const CORRUPTED_VALUE: &str = "failpoint altered";

impl Failpoint {
    /// Reads `after swap=kill`. The actions are `kill`, `stop` and `fail`; those of `in a change`
    /// are `drop`, `double` and `alter`.
    ///
    /// # Errors
    /// A sentence that names the unknown part.
    pub fn parse(text: &str) -> Result<Failpoint, String> {
        let (name, action) = text
            .split_once('=')
            .ok_or_else(|| format!("{text:?} is not NAME=ACTION"))?;
        let mut known = LISTS.into_iter().flatten().copied().chain([IN_A_CHANGE]);
        let name = known
            .find(|known| *known == name)
            .ok_or_else(|| format!("there is no failpoint {name:?}"))?;
        let action = match action {
            "drop" if name == IN_A_CHANGE => Action::Corruption(Corruption::Drop),
            "double" if name == IN_A_CHANGE => Action::Corruption(Corruption::Double),
            "alter" if name == IN_A_CHANGE => Action::Corruption(Corruption::Alter),
            _ if name == IN_A_CHANGE => {
                return Err(format!("{action:?} is none of drop, double, alter"));
            }
            "kill" => Action::Kill,
            "stop" => Action::Stop,
            "fail" => Action::Fail,
            _ => return Err(format!("{action:?} is none of kill, stop, fail")),
        };
        Ok(Failpoint { name, action })
    }

    /// What to do to a change with these values.
    pub(crate) fn corruption<'v>(
        &self,
        mut values: impl Iterator<Item = &'v [u8]>,
    ) -> Option<Corruption> {
        match self.action {
            Action::Corruption(corruption) => values
                .any(|value| value == TRIGGER_VALUE.as_bytes())
                .then_some(corruption),
            _ => None,
        }
    }

    /// Acts if the move is at this failpoint. Returns true if the step must fail.
    pub(crate) fn is_hit(&self, at: &str) -> bool {
        debug_assert!(
            LISTS.iter().any(|list| list.contains(&at)),
            "{at} is in the list"
        );
        if at != self.name {
            return false;
        }
        let signal = match self.action {
            Action::Fail => return true,
            Action::Corruption(_) => return false,
            Action::Kill => rustix::process::Signal::KILL,
            Action::Stop => rustix::process::Signal::STOP,
        };
        // A signal to oneself is delivered before the call returns. If it is not, the step fails.
        rustix::process::kill_process(rustix::process::getpid(), signal).is_err()
            || self.action == Action::Kill
    }
}
