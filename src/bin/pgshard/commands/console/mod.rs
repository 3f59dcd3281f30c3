//! `pgshard console`: the cluster in a browser. It reads only.
//!
//! One task queries the hosts ([`collect`]); every viewer is shown the last [`snapshot`]. A page is
//! a list of parts, each rendered on the server by itself ([`pages`]); a viewer is sent the parts
//! that have changed ([`live`]).
//!
//! Invariant: a request never queries a host. Invariant: nothing is answered before [`guard`] has
//! seen the request.

mod api;
mod asset;
mod collect;
mod guard;
mod live;
mod pages;
mod route;
mod serve;
mod snapshot;
mod state;
mod token;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use self::collect::Collector;
use self::guard::Guard;
use self::state::ConsoleState;
use self::token::Token;
use super::{listen, privilege_warning};
use crate::args::Console;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// Answers browsers until Ctrl-C.
pub(crate) async fn run(
    args: &Console,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    let is_local = args.listen.ip().is_loopback();
    let token = args.token_file.as_deref().map(Token::read).transpose()?;
    if !is_local && token.is_none() {
        return Err(Failure::usage(format!(
            "{} can be reached by others: that needs a token",
            args.listen
        ))
        .hint(
            "(umask 077; openssl rand -hex 24 >token), then --token-file token; or listen on \
                127.0.0.1, and reach it through ssh -L",
        ));
    }
    // A mistake in the config is reported now, and by the pages if it is made later.
    let config = context::config(config)?;
    let listener = listen::bind(args.listen).await?;
    let address = listener.local_addr()?;
    if !is_local {
        output.warning(format_args!(
            "{address} speaks no TLS: every machine on the way can read the token; put a proxy \
                with TLS in front"
        ));
    }
    let (floor, bound) = (
        Duration::from_secs(args.floor_s),
        Duration::from_secs(args.timeout_s),
    );
    privilege_warning::warn_of_writers(&config, bound, output);
    let served = ConsoleState {
        collector: Collector::start(config.path, floor, bound),
        guard: Arc::new(Guard::new(&args.names, token)),
    };
    listen::print_address(format!("http://{address}/"), output);
    let router = serve::router(Arc::new(served));
    let answering = |stream, standing| serve::connection(stream, standing, router.clone());
    listen::until_interrupted(&listener, answering).await;
    Ok(Exit::Done)
}
