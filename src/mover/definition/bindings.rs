//! Which operators and functions the expressions and queries of a schema are bound to. An
//! expression is bound when it is created, and its text is not always enough to bind it to the same
//! things again: `a IS DISTINCT FROM b` does not name its operator. So what a target is bound to is
//! compared with the source before anything depends on it.

use std::collections::BTreeMap;

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::mover::definition::refusal::Refusal;
use crate::schema::catalog::objects_sql;

const SQL: &str = concat!(objects_sql!(), include_str!("sql/bindings.sql"));

/// What each object of a schema calls, other than PostgreSQL's own operators and functions: by the
/// object's name, and by the name of what it calls, how often.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bindings {
    /// The server's major version: another one may write the same expression as another tree.
    major: u32,
    objects: BTreeMap<String, BTreeMap<String, i32>>,
}

impl Bindings {
    /// Reads those of the schema with this OID. The session's `search_path` must find PostgreSQL's
    /// own objects first.
    ///
    /// Locks: ACCESS SHARE on catalogs, for one statement.
    ///
    /// # Errors
    /// When the server refuses.
    ///
    /// # Cancel safety
    /// Only reads.
    pub(crate) async fn read<C: GenericClient + Sync>(
        client: &C,
        schema: u32,
        version: u32,
    ) -> Result<Bindings, tokio_postgres::Error> {
        let mut objects: BTreeMap<String, BTreeMap<String, i32>> = BTreeMap::new();
        for row in client.query_typed(SQL, &[(&schema, Type::OID)]).await? {
            let called = objects.entry(row.try_get(0)?).or_default();
            if let Some(name) = row.try_get::<_, Option<String>>(1)? {
                *called.entry(name).or_default() += row.try_get::<_, i32>(2)?;
            }
        }
        Ok(Bindings {
            major: version / 10_000,
            objects,
        })
    }

    /// The objects that a target has bound to something else. What only one side has is left to the
    /// comparison of definitions.
    pub(crate) fn differences(&self, target: &Bindings) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        for (object, ours) in &self.objects {
            let Some(theirs) = target.objects.get(object) else {
                continue;
            };
            let is_same = if self.major == target.major {
                ours == theirs
            } else {
                ours.keys().eq(theirs.keys())
            };
            if !is_same {
                refusals.push(difference(object, ours, theirs));
            }
        }
        refusals
    }
}

fn difference(
    object: &str,
    ours: &BTreeMap<String, i32>,
    theirs: &BTreeMap<String, i32>,
) -> Refusal {
    let more = |one: &BTreeMap<String, i32>, other: &BTreeMap<String, i32>| {
        let more = one
            .iter()
            .filter(|(name, times)| other.get(*name).unwrap_or(&0) < *times);
        more.map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    let (lost, gained) = (more(ours, theirs), more(theirs, ours));
    let list = |names: Vec<String>| match names.is_empty() {
        true => "PostgreSQL's own".to_owned(),
        false => names.join(", "),
    };
    let reason = format!(
        "uses {} here, and built from its definition at the target it would use {}: the \
         definition does not name the operator (IS DISTINCT FROM, NULLIF, CASE, USING or the like)",
        list(lost),
        list(gained)
    );
    Refusal::new(
        object,
        reason,
        "write the comparison with OPERATOR(schema.=), or with a cast to the type that it compares",
    )
}
