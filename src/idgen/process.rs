//! Which process this is. After fork() two processes have in their memory what a source had: its
//! worker number, its block of tickets. Only the process that got it may use it.

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process(u32);

impl Process {
    /// This one.
    pub(super) fn current() -> Process {
        Process(std::process::id())
    }

    /// Whether it is this one. This is a system call, which takes some tens of nanoseconds.
    pub(super) fn is_current(self) -> bool {
        self == Process::current()
    }

    /// One that forked this one.
    #[cfg(test)]
    pub(super) fn parent() -> Process {
        Process(0)
    }
}
