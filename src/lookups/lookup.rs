//! From a value to its key.

use std::str::FromStr;

use super::answer::{Place, fitting, problem};
use super::claimer::ClaimRequest;
use super::statements;
use super::unsharded::Table;
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
    /// [`Error::Lookup`] when the config has none of this name.
    pub fn lookup(&self, name: &str) -> Result<Lookup<'_>, Error> {
        let definition = self.defined(name)?;
        Ok(Lookup {
            router: self,
            definition,
        })
    }

    /// The definition of a look-up of the config.
    pub(super) fn defined(&self, name: &str) -> Result<&Definition, Error> {
        self.definition(name).ok_or_else(|| Error::Lookup {
            lookup: name.to_owned(),
            problem: LookupProblem::Undefined,
        })
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
    /// means that no key has a committed row with it. On an unsharded host it is the key of the
    /// table's row with the value.
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
    /// [`Error::Lookup`] when the look-up is not complete or not as the config has it, when the
    /// table of an unsharded host has no unique index over the columns, and when the key is no `K`;
    /// all others as [`Shard::query`](crate::router::Shard::query).
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn find<K: Key + FromStr>(
        self,
        value: impl Into<Values>,
    ) -> Result<Option<K>, Error> {
        let wanted = ClaimRequest::new(self.definition, value.into())?;
        let key = match Table::of(self.router, wanted.shard_id(self.router)) {
            Some(table) => table.key(&wanted).await?,
            None => self.key_of_entry(&wanted).await?,
        };
        let Some(key) = key else {
            return Ok(None);
        };
        match key.parse() {
            Ok(parsed) => Ok(Some(parsed)),
            Err(_) => Err(problem(self.definition, LookupProblem::Key { key })),
        }
    }

    /// The key that the value's entry leads to.
    async fn key_of_entry(self, wanted: &ClaimRequest<'_>) -> Result<Option<String>, Error> {
        let shard = wanted.shard_id(self.router);
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
        Ok(key)
    }
}
