//! What a command shows on a terminal while it takes longer than a second.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use super::pgshard;

/// A config of a host that refuses connections and one that accepts them and never answers.
fn config_with_a_mute_host(folder: &Path) -> TcpListener {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    let (mute_port, gone_port) = (port(&mute), port(&gone));
    drop(gone);
    let url = |port| format!("postgres://app@127.0.0.1:{port}/app?connect_timeout=2");
    let text = format!(
        "[cluster]\nshards = 4\nepoch = \"2026-01-01T00:00:00Z\"\n\n[hosts.db1]\nurl = \"{}\"\n\n\
         [hosts.db2]\nurl = \"{}\"\n\n[map]\nversion = 1\n\n[map.placement]\ndb1 = \"0-1\"\ndb2 \
         = \"2-3\"\n",
        url(gone_port),
        url(mute_port)
    );
    std::fs::write(folder.join("pgshard.toml"), text).unwrap();
    mute
}

/// Runs the command on a terminal of its own, and returns all that it has drawn there.
fn on_a_terminal(folder: &Path, arguments: &str) -> String {
    let command = format!("{} {arguments}", env!("CARGO_BIN_EXE_pgshard"));
    let output = Command::new("script")
        .args(["--quiet", "--command", &command, "/dev/null"])
        .current_dir(folder)
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .expect("util-linux has script");
    String::from_utf8(output.stdout).expect("the command writes UTF-8")
}

/// The numbers before these words, in the order in which they were drawn.
fn numbers_before(words: &str, drawn: &str) -> Vec<u64> {
    let before = drawn
        .match_indices(words)
        .map(|(at, _)| drawn[..at].rsplit(' ').next());
    before
        .map(|number| number.unwrap().parse().unwrap())
        .collect()
}

#[test]
fn a_wait_for_a_silent_host_counts_down_on_a_terminal_only() {
    let folder = tempfile::tempdir().unwrap();
    let _mute = config_with_a_mute_host(folder.path());
    for arguments in ["check", "bootstrap", "host list"] {
        let drawn = on_a_terminal(folder.path(), arguments);
        assert!(drawn.contains("1/2 hosts"), "{arguments}: {drawn:?}");
        let left = numbers_before(" s left at most", &drawn);
        assert!(left.len() > 1, "{arguments}: {drawn:?}");
        assert!(left.is_sorted_by(|a, b| a >= b), "{arguments}: {left:?}");
        assert!(left[0] < 4 && left.last() < left.first(), "{left:?}");
    }
    let piped = pgshard(folder.path(), &["check"]);
    assert!(!piped.stderr.contains("hosts ·"), "{}", piped.stderr);
}
