//! In place of `failpoint.rs` in a release build: there are no failpoints, so nobody's environment can kill a mover.

/// None can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failpoint {}

impl Failpoint {
    /// Refuses: a test that sets a failpoint counts on it, and must hear that nothing will happen there.
    ///
    /// # Errors
    /// Always.
    pub fn parse(_: &str) -> Result<Failpoint, String> {
        Err("a release build has no failpoints: unset PGSHARD_FAILPOINT, or build with the feature `failpoints`".into())
    }

    pub(crate) fn is_hit(&self, _: &str) -> bool {
        match *self {}
    }
}
