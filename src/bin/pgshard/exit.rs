//! The exit codes, which scripts rely on.

use std::num::NonZeroU8;
use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done, or nothing to do.
    Done,
    /// Failed, nothing changed; of `check`: findings.
    Failed,
    /// The command line or the config is wrong.
    Usage,
    /// Preflight refused.
    Refused,
    /// The cut-over gave up; the source serves again.
    GaveUp,
    /// Verification found a difference.
    Differs,
    /// A move waits for `resume`.
    Waits,
    /// Done in part.
    Partly,
    /// Interrupted; can be continued.
    Interrupted,
    /// As the program ended that was run, with a code of its own.
    OfProgram(NonZeroU8),
}

impl Exit {
    /// Every way to end, in the order of the codes.
    const ALL: [Exit; 9] = [
        Exit::Done,
        Exit::Failed,
        Exit::Usage,
        Exit::Refused,
        Exit::GaveUp,
        Exit::Differs,
        Exit::Waits,
        Exit::Partly,
        Exit::Interrupted,
    ];

    /// The code that the shell sees.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Refused => 4,
            Exit::GaveUp => 5,
            Exit::Differs => 6,
            Exit::Waits => 7,
            Exit::Partly => 8,
            Exit::Interrupted => 130,
            Exit::OfProgram(code) => code.get(),
        }
    }

    const fn meaning(self) -> &'static str {
        match self {
            Exit::Done => "done, or nothing to do",
            Exit::Failed => "failed, nothing changed; of `check`: there are findings",
            Exit::Usage => "the command line or the config is wrong",
            Exit::Refused => "preflight refused",
            Exit::GaveUp => "the cut-over gave up, the source serves again",
            Exit::Differs => "verification, or the audit at a move's end, found a difference",
            Exit::Waits => "a move waits for `pgshard moves resume`",
            Exit::Partly => "done in part: the rest is named",
            Exit::Interrupted => "interrupted, can be continued",
            Exit::OfProgram(_) => "as the program ended that was run",
        }
    }

    /// How a command ends that has run a program which ended with this code.
    pub(crate) fn of_program(code: u8) -> Exit {
        NonZeroU8::new(code).map_or(Exit::Done, Exit::OfProgram)
    }

    /// The codes as a section of the help.
    pub(crate) fn help() -> String {
        let lines = Exit::ALL.map(|exit| format!("  {:>3}  {}", exit.code(), exit.meaning()));
        format!("Exit codes:\n{}", lines.join("\n"))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_as_documented() {
        assert_eq!(Exit::ALL.map(Exit::code), [0, 1, 2, 4, 5, 6, 7, 8, 130]);
    }
}
