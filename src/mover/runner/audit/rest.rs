//! What of a shard is no row: where its sequences are, and what it is made of. Read as soon as the target is open,
//! outside of the snapshots, which have neither.

use std::collections::BTreeSet;

use crate::mover::control::session::Session;
use crate::mover::definition::sequences;
use crate::mover::preflight::facts;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::verdict::AuditDifference;
use crate::schema::catalog::{Address, Constraint, ConstraintKind, Facts, Namespace};
use crate::schema::fingerprint::{Difference, differences};

/// So many differences of the definitions are told.
const TOLD_MAX: usize = 10;

/// Compares sequences and definitions of the old copy with those of the open shard.
///
/// Locks: ACCESS SHARE on the sequences and on catalogs, for a statement each; what reading definitions takes on
/// tables, ACCESS SHARE as well.
pub(super) async fn compare(
    (source, left): (&Session, u32),
    (target, schema): (&Session, u32),
) -> Result<Vec<AuditDifference>, Error> {
    let (left, schema) = (Namespace::Oid(left), Namespace::Oid(schema));
    let mut found = Vec::new();
    // The source's first: the target's only go on meanwhile.
    let what = "comparing the sequences";
    let ours = sequences::read(source.client.client(), &left).await.map_err(|error| source.failed(what, error))?;
    let theirs = sequences::read(target.client.client(), &schema).await.map_err(|error| target.failed(what, error))?;
    if let Some(which) = sequences::behind(&ours, &theirs) {
        let how = "at the target it is not where it was at the source".to_owned();
        found.push(AuditDifference { what: which, how, rows: Vec::new() });
    }
    let (ours, theirs) = tokio::try_join!(facts::of_schema(source, &left), facts::of_schema(target, &schema))?;
    let later: BTreeSet<String> = keys_of_partitioned(&ours).chain(keys_of_partitioned(&theirs)).collect();
    let told: Vec<String> = differences(&ours, &theirs)
        .iter()
        // A foreign key is proved after the open, and that of a partitioned table may come only then.
        .filter(|one| proved(&one.left) != proved(&one.right) && !(later.contains(&one.object) && is_on_one_side(one)))
        .map(ToString::to_string)
        .collect();
    if let Some(first) = told.first() {
        let rest = told.len().saturating_sub(TOLD_MAX);
        let mut how = told.iter().take(TOLD_MAX).skip(1).fold(first.clone(), |all, one| all + ", " + one);
        if rest > 0 {
            how.push_str(&format!(", and {rest} more"));
        }
        found.push(AuditDifference { what: "definitions".to_owned(), how, rows: Vec::new() });
    }
    Ok(found)
}

/// The foreign keys of partitioned tables and of partitions: before PostgreSQL 18 those of a partitioned table are made
/// for each partition, and then for the whole, which takes them for its own. The move does not end without that.
fn keys_of_partitioned(facts: &Facts) -> impl Iterator<Item = String> {
    let names = facts.names();
    let is_of_partitions = |one: &&Constraint| {
        let relation = facts.relation(one.relation);
        one.kind == ConstraintKind::ForeignKey
            && relation.is_some_and(|relation| relation.partition_key.is_some() || relation.partition.is_some())
    };
    let keys = facts.constraints.iter().filter(is_of_partitions);
    let keys: Vec<String> = keys
        .filter_map(|key| names.get(&Address::new("pg_constraint", key.oid)).map(|name| name.plain.clone()))
        .collect();
    keys.into_iter()
}

/// A foreign key, or a comment on one, that one side has and the other has not.
fn is_on_one_side(one: &Difference) -> bool {
    one.left.is_none() || one.right.is_none()
}

fn proved(text: &Option<String>) -> Option<&str> {
    text.as_deref().map(|text| text.trim_end_matches(" NOT VALID"))
}
