//! Compares what does not consist of rows: the values of a shard's sequences, and its definition.
//! Both are read as soon as the target is open, and outside the snapshots, which do not contain
//! them.

use crate::mover::control::session::Session;
use crate::mover::definition::drift::drift;
use crate::mover::definition::sequences;
use crate::mover::preflight::facts;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::verdict::AuditDifference;
use crate::schema::catalog::Namespace;

/// What a difference of the definitions is about.
pub(super) const DEFINITIONS: &str = "definitions";

/// The most differences of the definitions that are reported.
const TOLD_MAX: usize = 10;

/// Compares sequences and definitions of the old copy with those of the open shard.
///
/// Locks: ACCESS SHARE on the sequences and on catalogs, for a statement each; and ACCESS SHARE on
/// tables, which reading definitions takes.
pub(super) async fn compare(
    (source, left): (&Session, u32),
    (target, schema): (&Session, u32),
) -> Result<Vec<AuditDifference>, Error> {
    let (left, schema) = (Namespace::Oid(left), Namespace::Oid(schema));
    let mut found = Vec::new();
    // The source's are read first: the target's can only grow in between.
    let what = "comparing the sequences";
    let ours = sequences::read(source.client.client(), &left)
        .await
        .map_err(|error| source.failed(what, error))?;
    let theirs = sequences::read(target.client.client(), &schema)
        .await
        .map_err(|error| target.failed(what, error))?;
    if let Some(which) = sequences::behind(&ours, &theirs) {
        let how = "at the target its value is not what it was at the source".to_owned();
        found.push(AuditDifference {
            what: which,
            how,
            rows: Vec::new(),
        });
    }
    let (ours, theirs) = tokio::try_join!(
        facts::of_schema(source, &left),
        facts::of_schema(target, &schema)
    )?;
    let told: Vec<String> = drift(&ours, &theirs)
        .iter()
        .map(ToString::to_string)
        .collect();
    if let Some(first) = told.first() {
        let rest = told.len().saturating_sub(TOLD_MAX);
        let mut how = told
            .iter()
            .take(TOLD_MAX)
            .skip(1)
            .fold(first.clone(), |all, one| all + ", " + one);
        if rest > 0 {
            how.push_str(&format!(", and {rest} more"));
        }
        found.push(AuditDifference {
            what: DEFINITIONS.to_owned(),
            how,
            rows: Vec::new(),
        });
    }
    Ok(found)
}
