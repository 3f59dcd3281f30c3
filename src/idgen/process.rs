//! Which process this is. What a source has in its memory is, after fork(), in the memory of two processes: its worker
//! number, its block of tickets. Only the one that got it may use it.

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process(u32);

impl Process {
    /// This one.
    pub(super) fn current() -> Process {
        Process(std::process::id())
    }

    /// Whether it is this one: a call of the system, some tens of nanoseconds.
    pub(super) fn is_current(self) -> bool {
        self == Process::current()
    }

    /// One that forked this one.
    #[cfg(test)]
    pub(super) fn parent() -> Process {
        Process(0)
    }
}
