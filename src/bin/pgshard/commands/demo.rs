//! x
use crate::args::Demo;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
pub(crate) async fn run(_args: Demo, _output: &Output) -> Result<Exit, Failure> {
    Ok(Exit::Done)
}
