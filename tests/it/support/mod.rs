//! What every test with servers needs.

mod audit;
mod backup;
mod cluster;
pub(crate) mod contract;
mod control;
pub(crate) mod faults;
mod frozen;
pub(crate) mod liar;
pub(crate) mod proxy;
mod rounds;
pub(crate) mod soak;
mod standby;
#[macro_use]
mod versions;
mod world;
mod writers;

pub(crate) use cluster::{TestCluster, connect};
pub(crate) use control::control;
pub(crate) use frozen::Frozen;
pub(crate) use rounds::rounds;
pub(crate) use world::{
    Ran, TABLES, World, go_on, in_turn, is_long, kept_going, lines, never_stopped, other, share,
    stopped, until,
};
pub(crate) use writers::Writers;

/// A command's stderr in the form that it has without `--json`: a test of its words reads both in
/// the same way.
pub(crate) fn readable(stderr: &str) -> String {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let mut lines = Vec::new();
    for line in stderr.lines() {
        let said: Option<serde_json::Value> = serde_json::from_str(line).ok();
        let Some(said) = said.filter(|said| said.get("level").is_some()) else {
            lines.push(line.to_owned());
            continue;
        };
        match said["level"].as_str() {
            Some("note") => lines.push(text(&said["message"])),
            level => lines.push(format!(
                "{}: {}",
                level.unwrap_or_default(),
                text(&said["message"])
            )),
        }
        let causes = said["causes"].as_array().into_iter().flatten();
        lines.extend(causes.map(|cause| format!("  caused by: {}", text(cause))));
        lines.extend(
            said["remedy"]
                .as_str()
                .map(|remedy| format!("  remedy: {remedy}")),
        );
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}
