//! The control schema of a host, and whether it is whole.

use std::collections::BTreeSet;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::answer::{failed, json};
use super::{auxiliary, snapshot};
use crate::schema::control::damage::{INSTALLED, InstalledObjects};
use crate::schema::control::rights::{self, Users};
use crate::schema::control::shape::{self, SHAPE, Shape};
use crate::schema::control::{lock, monitors};
use crate::schema::survey::facts::{ControlFacts, FactsError};

/// The control schema and its shape.
///
/// # Errors
/// [`FactsError::Lacking`] where tables or columns of it are gone.
pub(super) async fn read(client: &Client) -> Result<ControlFacts, FactsError> {
    let seen = shape(client).await?;
    match contents(client, &seen).await {
        Ok(control) => Ok(ControlFacts {
            shape: Some(seen),
            ..control
        }),
        Err(error) if lacks(&error) => Err(of_what_is_gone(&seen, error)),
        Err(error) => Err(error),
    }
}

/// Whether no table and no column of it is gone.
pub(super) fn is_whole(control: &ControlFacts) -> bool {
    control
        .shape
        .as_ref()
        .is_none_or(|shape| shape::gone(shape).is_empty())
}

/// Everything of the control schema but its shape.
async fn contents(client: &Client, shape: &Shape) -> Result<ControlFacts, FactsError> {
    let mut control = snapshot::read(client, shape).await?;
    auxiliary::read(client, shape, &mut control).await?;
    control.still_lent = auxiliary::still_lent(client).await?;
    control.installed = Some(installed(client).await?);
    control.foreign_locks = lock::foreign(client).await.map_err(failed)?;
    control.routers = rights::routers(client, &Users::OfShards, &BTreeSet::new())
        .await
        .map_err(failed)?;
    control.monitors = monitors::monitors(client, &BTreeSet::new())
        .await
        .map_err(failed)?;
    Ok(control)
}

/// Whether a table or a column of the control schema is not there.
fn lacks(error: &FactsError) -> bool {
    let FactsError::Query { source, .. } = error else {
        return false;
    };
    source
        .code()
        .is_some_and(|code| [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN].contains(code))
}

/// The same error, as the tables and columns that are gone; as it was where none is.
fn of_what_is_gone(shape: &Shape, error: FactsError) -> FactsError {
    let gone = shape::gone(shape);
    if gone.is_empty() {
        error
    } else {
        FactsError::Lacking { gone }
    }
}

/// The objects of the control schema.
pub(in crate::schema) async fn installed(client: &Client) -> Result<InstalledObjects, FactsError> {
    json(client, INSTALLED).await
}

/// What the control schema's tables are made of.
pub(in crate::schema) async fn shape(client: &Client) -> Result<Shape, FactsError> {
    json(client, SHAPE).await
}
