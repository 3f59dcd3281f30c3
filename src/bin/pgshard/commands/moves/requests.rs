//! `pgshard moves pause` and `continue`: setting the desired state of a move for its mover,
//! wherever that runs.

use std::path::Path;

use pgshard::map::print_shards;
use pgshard::mover::{DesiredState, Observer, Options, PartialAnswer};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Fits, failure, find, unread};
use crate::context;
use crate::context::mover;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

#[derive(JsonSchema, Serialize)]
pub(crate) struct RequestReport {
    r#move: String,
    shards: String,
    desired: &'static str,
}

/// Sets the desired state of a move.
pub(crate) async fn set_desired_state(
    desired: DesiredState,
    id: Option<&str>,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let mover = mover(&config, Options::default(), Observer::silent());
    let id = find(&mover, id, Fits::Open).await?;
    let PartialAnswer {
        found: shards,
        unknown: silent,
        ..
    } = mover
        .set_desired_state(id, desired)
        .await
        .map_err(failure)?;
    if shards.is_empty() && silent.is_empty() {
        return Err(Failure::new(
            Exit::Refused,
            format!("every shard of the move {id} has ended"),
        ));
    }
    let list = print_shards(shards.iter().copied());
    if output.format() == Format::Json {
        output.object(RequestReport {
            r#move: id.to_string(),
            shards: list,
            desired: desired.as_str(),
        });
    } else if desired == DesiredState::Run {
        output.note(format_args!(
            "move {id} goes on with shards {list}, if its mover lives"
        ));
    } else {
        output.note(format_args!(
            "move {id} stands still with shards {list}; its changes are kept or applied meanwhile"
        ));
        output.hint(format_args!("`pgshard moves continue {id}`"));
    }
    let exit = unread(&silent, output);
    Ok(if exit != Exit::Done && !shards.is_empty() {
        Exit::Partly
    } else {
        exit
    })
}
