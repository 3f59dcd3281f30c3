//! `pgshard man`.

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_mangen::Man;

use crate::args::Args;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

#[derive(Debug, thiserror::Error)]
#[error("cannot write the manual pages to {}", folder.display())]
struct ManError {
    folder: PathBuf,
    source: std::io::Error,
}

/// Prints the main page, or writes a page for every command into the folder.
pub(crate) fn run(out: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    match out {
        None => {
            let mut page = Vec::new();
            Man::new(Args::command()).render(&mut page)?;
            output.raw(&page);
        }
        Some(folder) => {
            let written = fs::create_dir_all(folder)
                .and_then(|()| clap_mangen::generate_to(Args::command(), folder));
            written.map_err(|source| ManError {
                folder: folder.to_owned(),
                source,
            })?;
            output.note(format_args!(
                "wrote the manual pages to {}",
                folder.display()
            ));
        }
    }
    Ok(Exit::Done)
}
