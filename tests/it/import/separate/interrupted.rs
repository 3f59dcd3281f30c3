//! Runs that are killed, continued and taken back.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use super::{database, report, spawned, state};
use crate::import::keys;
use crate::support::TestCluster;

/// A run of the command that is killed when its n-th step begins. Whether it had as many.
fn killed_at_step(url: &str, n: usize) -> bool {
    let mut child = spawned(url, &[]);
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut steps = lines
        .map_while(Result::ok)
        .filter(|line| line.contains("\"step\""));
    let reached = steps.nth(n).is_some();
    if reached {
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..15)));
        child.kill().unwrap();
    }
    child.wait().unwrap();
    reached
}

on_each_version! {
    /// Killed in each step, the next run continues, or takes back what was done, whether that is
    /// killed as well or not.
    async fn each_step_is_continued_or_taken_back(version) {
        let cluster = TestCluster::start(version, 1);
        let url = database(&cluster).await;
        let (exit, _, stderr) = keys::keys(&url, &[]);
        assert_eq!(exit, 0, "{stderr}");
        let before = state(version, &url).await;
        let (exit, done) = report(&url, &[]);
        assert_eq!(exit, 0, "{done}");
        let separated = state(version, &url).await;
        assert_eq!(report(&url, &["--undo"]).0, 0);
        let mut at = 0;
        while killed_at_step(&url, at) {
            let (exit, done) = report(&url, &[]);
            assert_eq!(exit, 0, "step {at}: {done}");
            assert_eq!(state(version, &url).await, separated, "step {at}");
            assert_eq!(report(&url, &["--undo"]).0, 0);
            killed_at_step(&url, at);
            for _ in 0..at {
                let mut undo = spawned(&url, &["--undo"]);
                std::thread::sleep(Duration::from_millis(fastrand::u64(5..120)));
                undo.kill().unwrap();
                undo.wait().unwrap();
            }
            let (exit, undone) = report(&url, &["--undo"]);
            assert_eq!(exit, 0, "step {at}: {undone}");
            assert_eq!(state(version, &url).await, before, "step {at}");
            at += 1;
        }
        assert!(at >= 3, "{at} steps");
        assert_eq!(report(&url, &["--undo"]).0, 0);
        assert_eq!(state(version, &url).await, before);
    }
}
