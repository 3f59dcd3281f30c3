//! What a scene cost, and how long callers waited in it.

use std::fmt;
use std::sync::PoisonError;
use std::time::Duration;

use super::world::{Waits, World};

/// What was counted from one moment to another.
pub(super) struct Figures {
    what: String,
    since: usize,
    /// On the host that got most, in its busiest second.
    pub(super) connects: u32,
    pub(super) look_ups: u32,
    pub(super) mends: u32,
    /// On the host that had most.
    pub(super) open: usize,
    /// Being opened at the same time.
    pub(super) opening: usize,
    /// The longest that a request waited for a host's processors.
    pub(super) queued: Duration,
    /// The control database's.
    pub(super) control_connects: u32,
    pub(super) control_opening: usize,
    pub(super) fetches: u32,
    /// Requests at the same time.
    pub(super) control_at_work: usize,
    pub(super) calls: u64,
    pub(super) longest: Duration,
    pub(super) longest_failed: Duration,
    pub(super) errors: Vec<(String, u64)>,
}

impl Figures {
    /// What happens from here on is counted.
    pub(super) fn begin(world: &World, what: &str) -> Figures {
        *world.waits.lock().unwrap_or_else(PoisonError::into_inner) = Waits::default();
        world
            .hosts
            .iter()
            .for_each(|host| _ = host.server.begin_peaks());
        Figures {
            what: what.to_owned(),
            since: world.control.begin_peaks(),
            connects: 0,
            look_ups: 0,
            mends: 0,
            open: 0,
            opening: 0,
            queued: Duration::ZERO,
            control_connects: 0,
            control_opening: 0,
            fetches: 0,
            control_at_work: 0,
            calls: 0,
            longest: Duration::ZERO,
            longest_failed: Duration::ZERO,
            errors: Vec::new(),
        }
    }

    /// Takes the counts, and prints them.
    pub(super) fn end(mut self, world: &World) -> Figures {
        for host in &world.hosts {
            let meter = host.server.meter();
            self.connects = self.connects.max(meter.connects.peak(self.since));
            self.look_ups = self.look_ups.max(meter.look_ups.peak(self.since));
            self.mends = self.mends.max(meter.mends.sum(self.since));
            self.open = self.open.max(meter.open_peak);
            self.opening = self.opening.max(meter.opening_peak);
            self.queued = self.queued.max(meter.queue_peak);
        }
        let meter = world.control.meter();
        self.control_connects = meter.connects.peak(self.since);
        self.fetches = meter.fetches.peak(self.since);
        self.control_opening = meter.opening_peak;
        self.control_at_work = meter.at_work_peak;
        drop(meter);
        let waits = world.waits.lock().unwrap_or_else(PoisonError::into_inner);
        (self.calls, self.longest, self.longest_failed) =
            (waits.calls, waits.longest, waits.longest_failed);
        self.errors = waits
            .errors
            .iter()
            .map(|(name, count)| (name.clone(), *count))
            .collect();
        drop(waits);
        println!("{self}");
        self
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_millis();
        let (host, control) = (
            format!(
                "connects/s {:5}, opening {:5}, open {:5}, look-ups/s {:5}, mends {:4}, queue {:4} \
                    ms",
                self.connects,
                self.opening,
                self.open,
                self.look_ups,
                self.mends,
                ms(self.queued)
            ),
            format!(
                "connects/s {:5}, opening {:4}, fetches/s {:5}, at work {:4}",
                self.control_connects, self.control_opening, self.fetches, self.control_at_work
            ),
        );
        let calls = format!(
            "{:7} calls, longest {:5} ms, of a failed one {:5} ms {:?}",
            self.calls,
            ms(self.longest),
            ms(self.longest_failed),
            self.errors
        );
        write!(
            f,
            "{:30} | a host: {host} | control: {control} | {calls}",
            self.what
        )
    }
}
