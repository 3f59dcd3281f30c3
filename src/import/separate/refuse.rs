//! What `import separate` does not do, found before anything is changed.

use super::path::Need;
use super::prepared::Prepared;
use super::settings;
use crate::import::change::{ChangeError, Refusal, Session};
use crate::import::facts::VERSION_MIN;
use crate::pg::{quote_ident, quote_literal};

impl Prepared {
    /// Refuses another schema than the one of the record.
    pub(super) fn refuse_another(&self) -> Result<(), ChangeError> {
        match &self.record {
            Some(record) if record.new_schema != self.new => {
                let refusal = Refusal::new(
                    format!("schema {}", record.new_schema),
                    "is the one that an earlier run has begun with",
                    "name it (--schema), or take that run back (--undo)",
                );
                let refusals = vec![refusal];
                Err(ChangeError::Refused { refusals })
            }
            _ => Ok(()),
        }
    }

    /// Refuses what cannot be done, before anything is changed.
    pub(super) async fn refuse(&self, session: &Session) -> Result<(), ChangeError> {
        self.refuse_another()?;
        let mut refusals = self.of_server();
        if !self.moving().is_empty() {
            refusals.extend(self.border().refusals());
            refusals.extend(self.of_relations());
            refusals.extend(self.of_schema(session).await?);
            refusals.extend(self.of_sessions());
        }
        refusals.extend(self.of_paths(session).await?);
        if refusals.is_empty() {
            Ok(())
        } else {
            Err(ChangeError::Refused { refusals })
        }
    }

    fn of_server(&self) -> Vec<Refusal> {
        let server = &self.database.server;
        let mut found = Vec::new();
        if server.version < VERSION_MIN {
            let remedy = "upgrade it first";
            found.push(Refusal::new(
                "the server",
                "is older than PostgreSQL 14",
                remedy,
            ));
        }
        if server.standby {
            let remedy = "name the primary";
            found.push(Refusal::new("the server", "is a standby", remedy));
        }
        if server.prepared > 0 && !self.moving().is_empty() {
            found.push(Refusal::new(
                format!("{} prepared transactions", server.prepared),
                "have locks that do not end with a session",
                "end them with COMMIT PREPARED or ROLLBACK PREPARED",
            ));
        }
        found
    }

    fn of_relations(&self) -> Vec<Refusal> {
        let mut found = Vec::new();
        for relation in self.moving() {
            let name = format!("{}.{}", relation.schema, relation.name);
            if relation.schema != self.old {
                found.push(Refusal::new(
                    &name,
                    format!("is imported, and not in schema {}", self.old),
                    format!(
                        "ALTER TABLE … SET SCHEMA {}, or let it stay (--stays)",
                        quote_ident(&self.old)
                    ),
                ));
            }
            if relation.kind == "f" {
                found.push(Refusal::new(
                    &name,
                    "is a partition on another server",
                    "copy its rows into an ordinary partition, or detach it",
                ));
            }
            let statistics = relation.statistics.iter();
            let owners = statistics.map(|one| (&one.owner, one.owned));
            let not_owned = [(&relation.owner, relation.owned)]
                .into_iter()
                .chain(owners);
            for (owner, _) in not_owned.filter(|(_, owned)| !owned).take(1) {
                found.push(Refusal::new(
                    &name,
                    format!("it, or statistics of it, belong to role {owner}"),
                    format!(
                        "run it as that role or a superuser, or GRANT {} TO {}",
                        quote_ident(owner),
                        quote_ident(&self.database.server.role)
                    ),
                ));
            }
        }
        found
    }

    async fn of_schema(&self, session: &Session) -> Result<Vec<Refusal>, ChangeError> {
        let mut found = Vec::new();
        let object = format!("schema {}", self.new);
        let is_own = self.new == "pgshard" || self.new.starts_with("pgshard_");
        if self.new.starts_with("pg_") || self.new == "information_schema" || is_own {
            found.push(Refusal::new(
                object,
                "is a name that PostgreSQL or pgshard uses",
                "name another one (--schema)",
            ));
        } else if self.new.is_empty() || self.new.len() > 63 {
            found.push(Refusal::new(
                object,
                "is a name that has no byte, or more than 63",
                "name another one (--schema)",
            ));
        } else if self.record.is_none() && self.is_used {
            found.push(Refusal::new(
                object,
                "is there, with something in it, and no run has made it",
                "name another one (--schema), or empty it",
            ));
        } else if !self.exists {
            let create = format!("CREATE SCHEMA {}", quote_ident(&self.new));
            if !settings::may_run(session, &create).await? {
                found.push(Refusal::new(
                    object,
                    format!("role {} may not create it", self.database.server.role),
                    format!(
                        "GRANT CREATE ON DATABASE {} TO {}",
                        quote_ident(&self.database.server.database),
                        quote_ident(&self.database.server.role)
                    ),
                ));
            }
        } else if !self.grants.is_empty() || !self.moving().is_empty() {
            let sql = format!(
                "SELECT to_json(has_schema_privilege(oid, 'CREATE') AND ({} OR
                    pg_has_role(nspowner, 'USAGE'))) FROM pg_namespace WHERE nspname = {}",
                self.grants.is_empty(),
                quote_literal(&self.new)
            );
            let may: Option<bool> = session.value("read the rights on the schema", &sql).await?;
            if may != Some(true) {
                found.push(Refusal::new(
                    object,
                    "is not this role's",
                    format!(
                        "ALTER SCHEMA {} OWNER TO {}",
                        quote_ident(&self.new),
                        quote_ident(&self.database.server.role)
                    ),
                ));
            }
        }
        Ok(found)
    }

    fn of_sessions(&self) -> Vec<Refusal> {
        let roles = self.hidden.iter().filter(|_| self.sets_path());
        let refusal = |role: &String| {
            Refusal::new(
                format!("sessions of role {role}"),
                "do not show to this role when they began",
                format!(
                    "GRANT pg_read_all_stats TO {}",
                    quote_ident(&self.database.server.role)
                ),
            )
        };
        roles.map(refusal).collect()
    }

    async fn of_paths(&self, session: &Session) -> Result<Vec<Refusal>, ChangeError> {
        let mut found = Vec::new();
        let leads = self.paths.iter().any(|path| path.need != Need::Nothing);
        if self.sets_path() && !leads && !self.moving().is_empty() {
            found.push(Refusal::new(
                "search_path",
                format!(
                    "leads to schema {} for no role, so statements name it or sessions set it",
                    self.old
                ),
                format!(
                    "leave the schema out of statements, have sessions set {}, {}, then \
                     --keep-search-path",
                    quote_ident(&self.new),
                    quote_ident(&self.old)
                ),
            ));
        }
        let database = &self.database.server.database;
        for path in self.paths_to_set() {
            let Some(statement) = path.statement(database) else {
                continue;
            };
            if !settings::may_run(session, &statement).await? {
                found.push(may_not_set(path.role.as_deref(), &statement));
            }
        }
        Ok(found)
    }
}

/// A setting that this role may not change.
pub(super) fn may_not_set(role: Option<&str>, statement: &str) -> Refusal {
    let object = match role {
        Some(role) => format!("search_path of role {role}"),
        None => "search_path of the database".to_owned(),
    };
    Refusal::new(
        object,
        "this role may not set it",
        format!("have it set by a role that may: {statement}"),
    )
}
