//! The operators that a text does not name. PostgreSQL writes `a OPERATOR(public.=) b` for an
//! operator that is not found by its name alone, but for `a IS DISTINCT FROM b`, `NULLIF(a, b)`,
//! `CASE a WHEN b`, `JOIN … USING (a)` and the comparison of rows there is no such form: the
//! operator is looked up in the `search_path` when the text is read. So such a statement is run
//! with the schemas of its object's operators in the path. Whether it has found the same ones is
//! compared afterwards ([`bindings`](crate::mover::definition::bindings)).

use std::collections::{BTreeMap, BTreeSet};

use crate::mover::definition::ddl::stage::Target;
use crate::mover::definition::refusal::Refusal;
use crate::schema::catalog::{Address, Facts, path_with, search_path};

/// What contains an operator without its name, as PostgreSQL spells it.
const UNNAMED: [&str; 7] = [
    "DISTINCT FROM",
    "NULLIF(",
    "CASE ",
    " USING (",
    "ROW(",
    " IN (",
    "NATURAL ",
];

/// The schemas of the operators of a schema's objects.
pub(super) struct Operators<'a> {
    target: &'a Target<'a>,
    schemas: BTreeMap<&'a Address, BTreeSet<&'a str>>,
}

impl<'a> Operators<'a> {
    pub(super) fn of(facts: &'a Facts, target: &'a Target<'a>) -> Operators<'a> {
        let mut schemas: BTreeMap<&Address, BTreeSet<&str>> = BTreeMap::new();
        for (object, schema) in &facts.operators {
            schemas.entry(object).or_default().insert(schema);
        }
        Operators { target, schemas }
    }

    /// What sets the path that a statement of an object needs, and what restores the usual one;
    /// `None` if it needs none.
    ///
    /// # Errors
    /// When another role may create operators that would be found there.
    pub(super) fn path(
        &self,
        object: &Address,
        what: &str,
        sql: &str,
    ) -> Result<Option<(String, String)>, Refusal> {
        let Some(schemas) = self.schemas.get(object) else {
            return Ok(None);
        };
        if !UNNAMED.iter().any(|form| sql.contains(form)) {
            return Ok(None);
        }
        let is_open = |schema: &&&str| !self.target.closed.iter().any(|one| one == *schema);
        if let Some(open) = schemas.iter().find(is_open) {
            let reason = format!(
                "compares values by an operator of schema {open} that its definition does not \
                 name (IS DISTINCT FROM, NULLIF, CASE or the like), and at the target other roles \
                 may make operators there"
            );
            let remedy = format!(
                "REVOKE CREATE ON SCHEMA {open} FROM them, or PUBLIC, at the target; or write the \
                 comparison with OPERATOR({open}.=)"
            );
            return Err(Refusal::new(what, reason, remedy));
        }
        let schemas: Vec<&str> = schemas.iter().copied().collect();
        let set = |path: String| format!("SET LOCAL search_path = {path}");
        Ok(Some((
            set(path_with(self.target.schema, &schemas)),
            set(search_path(self.target.schema)),
        )))
    }
}
