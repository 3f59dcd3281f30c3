//! The versions of a schema that records its own: `pgshard_tickets` and `pgshard_workers`.
//!
//! Invariant: the text of a script never changes once it was released; a change is the next one,
//! which makes its version from the one before it and records that.

/// The scripts that a schema of this version lacks; version 0 is none. A newer schema lacks none.
pub(super) fn later<'a>(scripts: &'a [&'a str], recorded: i32) -> &'a [&'a str] {
    let done = usize::try_from(recorded).unwrap_or(0);
    scripts.get(done..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_runs_the_scripts_after_its_version() {
        let scripts = ["first", "second", "third"];
        assert_eq!(later(&scripts, 0), scripts);
        assert_eq!(later(&scripts, 1), ["second", "third"]);
        assert_eq!(later(&scripts, 3), [""; 0]);
        assert_eq!(later(&scripts, 4), [""; 0]);
        assert_eq!(later(&scripts, -1), scripts);
    }
}
