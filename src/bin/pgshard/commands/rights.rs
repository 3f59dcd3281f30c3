//! `pgshard rights`.

use pgshard::schema::{Grantor, Grants, Purpose, Service, rights, shard_migration};
use schemars::JsonSchema;
use serde::Serialize;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output, printable};

/// Which SQL is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum As {
    /// For the hosts as they are.
    Statements,
    /// A shard migration.
    Migration,
}

#[derive(JsonSchema, Serialize)]
struct Part {
    by: &'static str,
    statements: Vec<String>,
}

#[derive(JsonSchema, Serialize)]
pub(super) struct Answer<'a> {
    role: &'a str,
    parts: Vec<Part>,
    /// The text of a shard migration; `null` for a role that needs no grant in shards.
    migration: Option<String>,
}

/// The role with the rights to print, and the role that gets them.
pub(super) struct RoleRequest<'a> {
    pub(super) purpose: Purpose,
    pub(super) role: &'a str,
    pub(super) service: Service,
    /// Which role's script; `None` for all.
    pub(super) by: Option<Grantor>,
}

pub(super) fn run(wanted: &RoleRequest<'_>, printed: As, output: &Output) -> Result<Exit, Failure> {
    let RoleRequest {
        purpose,
        role,
        service,
        by,
    } = *wanted;
    if role.is_empty() || role.contains('\0') {
        return Err(Failure::usage("--role: a role has a name, without NUL"));
    }
    if printable(role) != role {
        let error = "--role: this name has characters that a terminal would obey, and SQL that is \
            printed cannot show them";
        return Err(Failure::usage(error).hint("rename the role: ALTER ROLE … RENAME TO …"));
    }
    let (mut parts, migration) = (
        rights(purpose, role, service),
        shard_migration(purpose, role),
    );
    parts.retain(|part| by.is_none_or(|by| by == part.grantor));
    if parts.is_empty() {
        let error = "--by: there is nothing to grant for the owner: the administrator's script is \
            all that this role needs";
        return Err(Failure::usage(error));
    }
    match (output.format(), printed) {
        (Format::Json, _) => {
            let parts = parts
                .into_iter()
                .map(|Grants { by, statements, .. }| Part { by, statements })
                .collect();
            output.object(Answer {
                role,
                parts,
                migration,
            });
        }
        (Format::Text, As::Migration) => {
            let none = || {
                Failure::usage(
                    "--migration: this role owns the shards, or reads nothing in them, and needs \
                        no grant there",
                )
            };
            output.raw(migration.ok_or_else(none)?.as_bytes());
        }
        (Format::Text, As::Statements) => output.raw(text(&parts).as_bytes()),
    }
    Ok(Exit::Done)
}

fn text(parts: &[Grants]) -> String {
    let part = |part: &Grants| {
        let statements: Vec<String> = part
            .statements
            .iter()
            .map(|statement| format!("{statement};\n"))
            .collect();
        format!("-- By {}.\n{}", part.by, statements.concat())
    };
    parts.iter().map(part).collect::<Vec<_>>().join("\n")
}
