//! Replaces `failpoint.rs` in a release build: there are no failpoints, so that no environment
//! variable can kill a mover.

/// No value of this type exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failpoint {}

impl Failpoint {
    /// Refuses: a test that sets a failpoint relies on it, and must learn that nothing would
    /// happen.
    ///
    /// # Errors
    /// Always.
    pub fn parse(_: &str) -> Result<Failpoint, String> {
        Err("a release build has no failpoints: unset PGSHARD_FAILPOINT, or build with the feature \
            `failpoints`".into())
    }

    pub(crate) fn is_hit(&self, _: &str) -> bool {
        match *self {}
    }
}
