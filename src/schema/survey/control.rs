//! The control schema of a host, and whether it is whole.

use std::collections::BTreeSet;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::answer::{failed, json};
use super::{later, snapshot};
use crate::schema::damage::{INSTALLED, Installed};
use crate::schema::facts::{ControlFacts, FactsError};
use crate::schema::rights::{self, Users};
use crate::schema::shape::{self, SHAPE, Shape};
use crate::schema::{lock, monitors};

/// How often a control schema is read that changes meanwhile.
const READS_MAX: u32 = 3;

/// The control schema and its shape. Where something is gone it is read again, unless the shape has
/// stayed the same meanwhile: a bootstrap may have brought it up to date between the two, and what
/// that has made is not gone.
pub(super) async fn read(client: &Client, has_record: bool) -> Result<ControlFacts, FactsError> {
    let mut seen = shape(client).await?;
    let mut reads = 0;
    loop {
        let read = contents(client, &seen, has_record).await;
        reads += 1;
        if reads < READS_MAX && (read.is_err() || !shape::gone(&seen).is_empty()) {
            let now = shape(client).await?;
            if now != seen {
                seen = now;
                continue;
            }
        }
        let read = read.map_err(|error| {
            if lacks(&error) {
                of_what_is_gone(&seen, error)
            } else {
                error
            }
        });
        return Ok(ControlFacts {
            shape: Some(seen),
            ..read?
        });
    }
}

/// Everything of the control schema but its shape.
async fn contents(
    client: &Client,
    shape: &Shape,
    has_record: bool,
) -> Result<ControlFacts, FactsError> {
    let mut control = snapshot::read(client, shape).await?;
    if has_record {
        later::read_since_6(client, shape, &mut control).await?;
    }
    if control
        .migrations
        .iter()
        .any(|migration| migration.version == 8)
    {
        control.still_lent = later::still_lent(client).await?;
    }
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
pub(in crate::schema) async fn installed(client: &Client) -> Result<Installed, FactsError> {
    json(client, INSTALLED).await
}

/// What the control schema's tables are made of.
pub(in crate::schema) async fn shape(client: &Client) -> Result<Shape, FactsError> {
    json(client, SHAPE).await
}
