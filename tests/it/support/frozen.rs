//! A server that is stopped like a frozen machine.

use rustix::process::{Pid, Signal, kill_process};

/// A server and its backends, all stopped; they continue when this is dropped.
pub(crate) struct Frozen(Vec<Pid>);

impl Frozen {
    pub(crate) fn new(postmaster: u32) -> Frozen {
        let mut frozen = Frozen(vec![Pid::from_raw(postmaster as i32).unwrap()]);
        kill_process(frozen.0[0], Signal::STOP).unwrap();
        for entry in std::fs::read_dir("/proc").unwrap() {
            let name = entry.unwrap().file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // State and parent come after the name, which is in parentheses.
            let parent = stat
                .rsplit_once(") ")
                .and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
            if parent == Some(postmaster) {
                let pid = Pid::from_raw(pid).unwrap();
                let _ = kill_process(pid, Signal::STOP);
                frozen.0.push(pid);
            }
        }
        frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _ = kill_process(*pid, Signal::CONT);
        }
    }
}
