//! `pgshard import`: bringing the tables of one database into shards.

mod change;
mod html;
pub(super) mod keys;
pub(super) mod separate;
mod text;
mod words;

use std::path::Path;

use pgshard::id::Epoch;
use pgshard::import::{self, Assessment, Choices, Goal, Request, Verdict};
use pgshard::store::whole::{self, Overwrite};

use crate::args::ImportAssess;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

/// 2026-01-01, as `pgshard init` writes it.
const EPOCH_MS: i64 = 1_767_225_600_000;

/// Reads a database, and reports whether it can be brought into shards.
pub(crate) async fn assess(
    args: &ImportAssess,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let connect = context::open_url(&args.url, "PGPASSWORD, ~/.pgpass, or a service file")?;
    let epoch = match context::epoch_if_known(args.epoch, config)? {
        Some(epoch) => epoch,
        None => Epoch::from_unix_ms(EPOCH_MS).map_err(Failure::usage)?,
    };
    let goal = Goal::default().shards(args.shards.get()).hosts(args.hosts);
    let request = Request::new(args.key.clone(), epoch)
        .statements(args.statements.clone())
        .choices(
            Choices::default()
                .stays(args.stays.clone())
                .references(args.reference.clone())
                .by(args.by.clone()),
        )
        .goal(goal);
    let read = output.waiting("reading the database", import::assess(&connect, &request));
    let assessment = read.await.map_err(|error| {
        let is_usage = error.is_usage();
        let failure = Failure::from(error);
        if is_usage {
            failure.ends(Exit::Usage)
        } else {
            failure
        }
    })?;
    if let Some(file) = &args.html {
        write_html(&assessment, file, output)?;
    }
    match output.format() {
        Format::Json => output.object(&assessment),
        Format::Text => text::print(&assessment, output),
    }
    Ok(match assessment.verdict {
        Verdict::Possible => Exit::Done,
        Verdict::PossibleAfterChanges => Exit::Failed,
        Verdict::Impossible => Exit::Refused,
    })
}

fn write_html(assessment: &Assessment, file: &Path, output: &Output) -> Result<(), Failure> {
    let page = html::page(assessment).into_string();
    whole::write(file, &page, Overwrite::Allowed).map_err(|error| {
        Failure::new(
            Exit::Failed,
            format!("cannot write {}: {error}", file.display()),
        )
    })?;
    output.note(format_args!("wrote {}", file.display()));
    Ok(())
}
