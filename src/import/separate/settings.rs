//! The settings of `search_path` in a database, and those that have to be set.

use serde::Deserialize;

use super::path::{self, Need, Schemas};
use super::record::SetPath;
use crate::import::change::{ChangeError, Session};
use crate::pg::quote_ident;

/// A setting in `pg_db_role_setting`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Setting {
    /// The role; none is all.
    pub(super) role: Option<String>,
    /// Whether it is for this database only.
    pub(super) in_database: bool,
    pub(super) path: String,
}

/// The path of a role with one of its own, or of the database.
#[derive(Clone, Debug)]
pub(super) struct Path {
    /// The role; none is the database.
    pub(super) role: Option<String>,
    /// What is set at this very place.
    pub(super) former: Option<String>,
    /// What sessions begin with.
    pub(super) elements: Vec<String>,
    pub(super) need: Need,
}

impl Path {
    /// The statement that sets what is needed.
    pub(super) fn statement(&self, database: &str) -> Option<String> {
        match &self.need {
            Need::Path(path) => Some(statement(self.role.as_deref(), database, path)),
            _ => None,
        }
    }

    /// What is to be recorded.
    pub(super) fn to_be_set(&self) -> Option<SetPath> {
        match &self.need {
            Need::Path(path) => Some(SetPath {
                role: self.role.clone(),
                former: self.former.clone(),
                path: path.clone(),
            }),
            _ => None,
        }
    }
}

/// `ALTER DATABASE d`, or `ALTER ROLE r IN DATABASE d`.
pub(super) fn alter(role: Option<&str>, database: &str) -> String {
    let database = quote_ident(database);
    match role {
        Some(role) => format!("ALTER ROLE {} IN DATABASE {database}", quote_ident(role)),
        None => format!("ALTER DATABASE {database}"),
    }
}

/// The statement that sets a path.
pub(super) fn statement(role: Option<&str>, database: &str, path: &[String]) -> String {
    let alter = alter(role, database);
    format!("{alter} SET search_path = {}", path::sql(path))
}

/// Reads the settings that sessions of this database may begin with.
pub(super) async fn read(session: &Session) -> Result<Vec<Setting>, ChangeError> {
    let sql = r"SELECT json_build_object('role', r.rolname, 'in_database', s.setdatabase <> 0,
            'path', substr(c, 13))
        FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole, unnest(s.setconfig) c
        WHERE c LIKE 'search\_path=%' AND (s.setrole = 0 OR r.oid IS NOT NULL)
            AND s.setdatabase IN (0, (SELECT oid FROM pg_database
                WHERE datname = current_database()))
        ORDER BY r.rolname, s.setdatabase";
    session.values("read the settings of roles", sql).await
}

/// The paths of the database, and of each role with a path of its own.
pub(super) async fn paths(
    session: &Session,
    role: &str,
    schemas: Schemas<'_>,
) -> Result<Vec<Path>, ChangeError> {
    let settings = read(session).await?;
    let find = |role: Option<&str>, in_database| {
        let mut all = settings.iter();
        let found = all.find(|one| one.role.as_deref() == role && one.in_database == in_database);
        found.map(|one| one.path.clone())
    };
    let former = find(None, true);
    let of_all = former.clone().or_else(|| find(None, false));
    let of_server = match of_all {
        Some(path) => path,
        None => {
            // What this session began with is the server's, unless its role has another.
            let is_own = find(Some(role), true).or_else(|| find(Some(role), false));
            let column = if is_own.is_some() {
                "boot_val"
            } else {
                "reset_val"
            };
            let sql =
                format!("SELECT to_json({column}) FROM pg_settings WHERE name = 'search_path'");
            let path: Option<String> = session.value("read search_path", &sql).await?;
            path.unwrap_or_default()
        }
    };
    let of_database = path::parse(&of_server);
    let mut paths = vec![Path {
        role: None,
        former,
        need: path::need(&of_database, schemas, None),
        elements: of_database.clone(),
    }];
    let mut roles: Vec<&str> = settings
        .iter()
        .filter_map(|one| one.role.as_deref())
        .collect();
    // The former schema may be that of a role, which finds it by its name.
    let sql = format!(
        "SELECT to_json(rolname) FROM pg_roles WHERE rolname = {}",
        crate::pg::quote_literal(schemas.old)
    );
    let named: Option<String> = session.value("find a role", &sql).await?;
    roles.extend(named.as_deref());
    roles.sort_unstable();
    roles.dedup();
    for role in roles {
        let former = find(Some(role), true);
        let own = former.clone().or_else(|| find(Some(role), false));
        let elements = own
            .as_deref()
            .map_or_else(|| of_database.clone(), path::parse);
        let need = path::need(&elements, schemas, Some(role));
        let of_all = path::need(&elements, schemas, None);
        // Without a path of its own it has that of the database.
        if own.is_some() || need != of_all {
            paths.push(Path {
                role: Some(role.to_owned()),
                former,
                elements,
                need,
            });
        }
    }
    Ok(paths)
}

/// Whether a statement is one that this role may run: nothing remains of it.
pub(super) async fn may_run(session: &Session, statement: &str) -> Result<bool, ChangeError> {
    let sql = format!("BEGIN; SET LOCAL lock_timeout = '1s'; {statement}; ROLLBACK");
    let Err(source) = session.client().batch_execute(&sql).await else {
        return Ok(true);
    };
    session.execute("end a try", "ROLLBACK").await?;
    if source.code() == Some(&tokio_postgres::error::SqlState::INSUFFICIENT_PRIVILEGE) {
        return Ok(false);
    }
    Err(ChangeError::postgres(format!("try {statement}"), source))
}
