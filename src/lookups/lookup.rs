//! From a value to its key.

use std::str::FromStr;

use super::answer::{Place, fitting, problem};
use super::claimer::ClaimRequest;
use super::statements;
use crate::router::{Error, LookupProblem, Router, Sql};
use crate::shard::{Key, ShardId};
use crate::values::{Definition, Values};

/// A look-up of the config; made by [`Router::lookup`].
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'r> {
    router: &'r Router,
    definition: &'r Definition,
}

impl Router {
    /// A look-up by its name.
    ///
    /// # Errors
    /// [`Error::Lookup`] when the config has none of this name, or the shards are on an unsharded
    /// host.
    pub fn lookup(&self, name: &str) -> Result<Lookup<'_>, Error> {
        let definition = self.usable(name)?;
        Ok(Lookup {
            router: self,
            definition,
        })
    }

    /// The definition of a look-up that can be used where the shards are.
    pub(super) fn usable(&self, name: &str) -> Result<&Definition, Error> {
        let refused = |problem| Error::Lookup {
            lookup: name.to_owned(),
            problem,
        };
        let definition = self.definition(name);
        let definition = definition.ok_or_else(|| refused(LookupProblem::Undefined))?;
        match self.unsharded_host() {
            None => Ok(definition),
            Some(host) => Err(refused(LookupProblem::Unsharded { host })),
        }
    }
}

impl<'r> Lookup<'r> {
    pub(super) fn router(self) -> &'r Router {
        self.router
    }

    pub(super) fn definition(self) -> &'r Definition {
        self.definition
    }

    pub(super) fn place(self, shard: ShardId) -> Place<'r> {
        Place {
            definition: self.definition,
            router: self.router,
            shard,
        }
    }

    /// The key that the value belongs to, or did: read the row by the key *and* the value. `None`
    /// means that no key has a committed row with it.
    ///
    /// ```no_run
    /// # async fn example(router: pgshard::Router, email: &str) -> Result<(),
    /// pgshard::router::Error> {
    /// let user = match router.lookup("emails")?.find::<i64>(email).await? {
    ///     Some(id) => {
    ///         let sql = "SELECT id, name FROM {shard}.users WHERE id = $1 AND email = $2";
    ///         router.by_key(id).query_opt(sql, &[&id, &email]).await?
    ///     }
    ///     None => None,
    /// };
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Lookup`] when the look-up is not complete or not as the config has it, and when the
    /// key is no `K`; all others as [`Shard::query`](crate::router::Shard::query).
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn find<K: Key + FromStr>(
        self,
        value: impl Into<Values>,
    ) -> Result<Option<K>, Error> {
        let wanted = ClaimRequest::new(self.definition, value.into())?;
        let shard = wanted
            .hash
            .shard(self.definition, self.router.shards_total());
        let hash = wanted.hash.as_bytes();
        let row = self
            .router
            .shard(shard)?
            .query_opt_as(
                &Sql::reading(statements::FIND),
                &[&self.definition.name, &hash],
            )
            .await
            .map_err(|error| self.place(shard).or_not_installed(error))?;
        let row: Option<(String, Vec<String>, String, Option<String>)> = row;
        let Some((recorded, kinds, state, key)) = row else {
            return Err(self.place(shard).not_installed());
        };
        self.place(shard).checked(recorded)?;
        fitting(self.definition, &kinds, &wanted.values)?;
        if state != "complete" {
            return Err(problem(self.definition, LookupProblem::NotComplete));
        }
        let Some(key) = key else {
            return Ok(None);
        };
        match key.parse() {
            Ok(parsed) => Ok(Some(parsed)),
            Err(_) => Err(problem(self.definition, LookupProblem::Key { key })),
        }
    }
}
