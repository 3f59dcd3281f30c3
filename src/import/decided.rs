//! A database, read, with what becomes of each table.

use tokio_postgres::Client;

use super::choices::Choices;
use super::decide::{self, Decision, Decisions};
use super::error::Error;
use super::facts::Database;
use super::key::KeyName;
use super::read::{self, Added};

/// Reads the catalogs and decides.
pub(super) async fn read(
    client: &Client,
    key: &KeyName,
    choices: &Choices,
    added: Added,
) -> Result<(Database, Decisions), Error> {
    let database = read::database(client, key, choices, added).await?;
    let decisions = decide::decide(&database);
    for (table, column) in &database.chosen.by {
        if !decisions.get(table).is_some_and(Decision::is_imported) {
            let choice = database.column_names(*table, &[*column]);
            return Err(Error::NoWay { choice });
        }
    }
    Ok((database, decisions))
}
