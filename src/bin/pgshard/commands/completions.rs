//! `pgshard completions`.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// Prints the shell's script.
pub(crate) fn run(shell: Shell, output: &Output) -> Result<Exit, Failure> {
    // Written to memory first: the generator panics when it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "pgshard", &mut script);
    output.raw(&script);
    Ok(Exit::Done)
}
