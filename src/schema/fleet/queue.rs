//! The queue of the work on many shards: what waits on which host, and until when.
//!
//! Work that finds its shard busy goes back with a growing pause, so that the rest comes first, and
//! the application's statements do not queue up behind us again immediately.
//!
//! Invariant: what a worker takes it puts back, or reports as done or failed. [`Next::Nothing`] is
//! returned only when nothing is left on any host, and no other worker can put anything back.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::fault::HostFault;
use super::report::NO_PANIC;
use crate::backoff::Backoff;
use crate::map::HostName;

/// How much may fail before the first is done; after that the rest is not tried. Thousands of
/// failures for the same reason are of no use.
const FAILURES_MAX: usize = 32;

/// How long a worker without work waits before it looks again: work may come to its host.
const LOOK: Duration = Duration::from_millis(100);

/// Work that waits for its turn.
#[derive(Clone, Debug)]
pub(super) struct Task<T> {
    pub(super) work: T,
    /// How often it was put back since it last made progress.
    tries: u32,
    /// When it last made progress, or was first tried.
    since: Option<Instant>,
    /// It is not taken before this time.
    due: Instant,
}

impl<T> Task<T> {
    fn new(work: T) -> Task<T> {
        Task {
            work,
            tries: 0,
            since: None,
            due: Instant::now(),
        }
    }

    /// How often it was tried since it last made progress, with this time.
    pub(super) fn tries(&self) -> u32 {
        self.tries + 1
    }

    /// For how long it has been tried without progress.
    pub(super) fn waited(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// It has made progress: its patience begins again.
    pub(super) fn has_progressed(&mut self) {
        (self.tries, self.since) = (0, Some(Instant::now()));
    }
}

/// The next step of a worker.
pub(super) enum Next<T> {
    Now(Task<T>),
    /// It looks again after this time.
    Later(Duration),
    /// So many have failed, and none is done: these are not tried.
    Stop {
        left: Vec<Task<T>>,
        failed: usize,
    },
    Nothing,
}

/// The work that waits, by host.
pub(super) struct Queue<T> {
    pauses: Backoff,
    state: Mutex<State<T>>,
}

struct State<T> {
    /// Workers take from the end.
    hosts: BTreeMap<HostName, Vec<Task<T>>>,
    /// What waits, and what workers have taken.
    open: usize,
    done: usize,
    failed: usize,
    lost: BTreeMap<HostName, HostFault>,
}

impl<T> Queue<T> {
    /// An empty queue with these pauses between two tries of one task.
    pub(super) fn new(pauses: Backoff) -> Queue<T> {
        let state = State {
            hosts: BTreeMap::new(),
            open: 0,
            done: 0,
            failed: 0,
            lost: BTreeMap::new(),
        };
        Queue {
            pauses,
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect(NO_PANIC)
    }

    /// Adds work on a host, to be done in this order.
    pub(super) fn fill(&self, host: &HostName, work: impl DoubleEndedIterator<Item = T>) {
        let tasks: Vec<Task<T>> = work.rev().map(Task::new).collect();
        let mut state = self.state();
        state.open += tasks.len();
        state
            .hosts
            .entry(host.clone())
            .or_default()
            .splice(0..0, tasks);
    }

    /// Takes a due task of a host. A task's patience begins when it is first taken.
    pub(super) fn next(&self, host: &HostName) -> Next<T> {
        let mut state = self.state();
        if state.open == 0 {
            return Next::Nothing;
        }
        let (failed, stops) = (state.failed, state.stops());
        let now = Instant::now();
        let Some(tasks) = state.hosts.get_mut(host) else {
            return Next::Later(LOOK);
        };
        if stops && !tasks.is_empty() {
            let left = std::mem::take(tasks);
            state.open -= left.len();
            return Next::Stop { left, failed };
        }
        match tasks.iter().rposition(|task| task.due <= now) {
            Some(at) => {
                let mut task = tasks.remove(at);
                task.since.get_or_insert(now);
                Next::Now(task)
            }
            None => {
                let due = tasks.iter().map(|task| task.due).min();
                let pause = due.map(|due| due.saturating_duration_since(now));
                Next::Later(pause.unwrap_or(LOOK).min(LOOK))
            }
        }
    }

    /// Takes up to so many more that are due on a host, with one that was taken, so that they are
    /// done together.
    pub(super) fn more(&self, host: &HostName, max: usize) -> Vec<Task<T>> {
        let now = Instant::now();
        let mut state = self.state();
        let Some(tasks) = state.hosts.get_mut(host) else {
            return Vec::new();
        };
        let due = tasks.iter().rev().take(max);
        let count = due.take_while(|task| task.due <= now).count();
        let mut taken = tasks.split_off(tasks.len() - count);
        taken.reverse();
        for task in &mut taken {
            task.since.get_or_insert(now);
        }
        taken
    }

    /// A task that was taken is done.
    pub(super) fn done(&self) {
        let mut state = self.state();
        (state.open, state.done) = (state.open - 1, state.done + 1);
    }

    /// A task that was taken has failed.
    pub(super) fn failed(&self) {
        let mut state = self.state();
        (state.open, state.failed) = (state.open - 1, state.failed + 1);
    }

    /// A task that was taken is left, for a reason that means nothing for the others.
    pub(super) fn left(&self) {
        self.state().open -= 1;
    }

    /// How many have failed.
    pub(super) fn failures(&self) -> usize {
        self.state().failed
    }

    /// How much waits on a host.
    pub(super) fn waiting(&self, host: &HostName) -> usize {
        self.state().hosts.get(host).map_or(0, Vec::len)
    }

    /// Puts a task that was taken on the queue of a host, to be tried again after a pause that
    /// grows with its tries.
    ///
    /// # Errors
    /// Gives the task back when the host was given up, with the reason.
    pub(super) fn retry(
        &self,
        host: &HostName,
        mut task: Task<T>,
    ) -> Result<(), (Task<T>, HostFault)> {
        let pause = self.pauses.pause(task.tries);
        task.tries += 1;
        self.put_back(host, task, pause)
    }

    /// Puts a task that was taken on the queue of a host, for after a pause, without a try more.
    ///
    /// # Errors
    /// Gives the task back when the host was given up, with the reason.
    pub(super) fn put_back(
        &self,
        host: &HostName,
        mut task: Task<T>,
        pause: Duration,
    ) -> Result<(), (Task<T>, HostFault)> {
        task.due = Instant::now() + pause;
        let mut state = self.state();
        if let Some(fault) = state.lost.get(host).cloned() {
            state.open -= 1;
            return Err((task, fault));
        }
        state.hosts.entry(host.clone()).or_default().insert(0, task);
        Ok(())
    }

    /// Gives a host up. Returns what waited there.
    pub(super) fn lose(&self, host: &HostName, fault: HostFault) -> Vec<Task<T>> {
        let mut state = self.state();
        let left = state.hosts.remove(host).unwrap_or_default();
        state.open -= left.len();
        state.lost.insert(host.clone(), fault);
        left
    }
}

impl<T> State<T> {
    fn stops(&self) -> bool {
        self.failed >= FAILURES_MAX && self.done == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES: Backoff = Backoff {
        first: Duration::from_secs(10),
        max: Duration::from_secs(20),
        jitter: Backoff::NO_JITTER,
    };

    fn host(name: &str) -> HostName {
        HostName::new(name).unwrap()
    }

    fn queue(work: impl DoubleEndedIterator<Item = u32>) -> Queue<u32> {
        let queue = Queue::new(PAUSES);
        queue.fill(&host("db1"), work);
        queue
    }

    fn take(queue: &Queue<u32>, name: &str) -> Task<u32> {
        match queue.next(&host(name)) {
            Next::Now(task) => task,
            _ => panic!("nothing is due on {name}"),
        }
    }

    #[test]
    fn tasks_are_taken_in_order_and_a_busy_one_comes_after_the_rest() {
        let queue = queue(0..3);
        let busy = take(&queue, "db1");
        assert_eq!(busy.work, 0);
        assert!(queue.retry(&host("db1"), busy).is_ok());
        for work in [1, 2] {
            assert_eq!(take(&queue, "db1").work, work);
            queue.done();
        }
        // It is not due yet, and the queue is not empty.
        assert!(matches!(queue.next(&host("db1")), Next::Later(_)));
        assert_eq!(queue.waiting(&host("db1")), 1);
    }

    #[test]
    fn a_worker_takes_several_tasks_in_order() {
        let queue = queue(0..5);
        let first = take(&queue, "db1");
        let more = queue.more(&host("db1"), 2);
        let taken: Vec<u32> = std::iter::once(first)
            .chain(more)
            .map(|task| task.work)
            .collect();
        assert_eq!(taken, [0, 1, 2]);
        assert_eq!(queue.more(&host("db1"), 9).len(), 2);
        assert_eq!(queue.waiting(&host("db1")), 0);
    }

    #[test]
    fn a_worker_waits_while_another_one_may_put_work_back() {
        let queue = queue(0..1);
        let task = take(&queue, "db1");
        assert!(matches!(queue.next(&host("db1")), Next::Later(_)));
        assert!(matches!(queue.next(&host("db2")), Next::Later(_)));
        // Its shard has moved.
        assert!(queue.put_back(&host("db2"), task, Duration::ZERO).is_ok());
        assert_eq!(take(&queue, "db2").tries(), 1);
        queue.done();
        assert!(matches!(queue.next(&host("db1")), Next::Nothing));
    }

    #[test]
    fn pauses_grow_with_the_tries_until_a_task_makes_progress() {
        let queue = queue(0..1);
        let mut task = take(&queue, "db1");
        for tries in [2, 3] {
            assert!(queue.retry(&host("db1"), task).is_ok());
            task = queue.lose(&host("db1"), lost()).pop().unwrap();
            queue.state().lost.clear();
            queue.state().open += 1;
            assert_eq!(task.tries(), tries);
        }
        assert!(task.due > Instant::now() + PAUSES.first);
        task.has_progressed();
        assert_eq!(task.tries(), 1);
    }

    #[test]
    fn the_rest_is_not_tried_when_so_many_fail_and_none_is_done() {
        let rest = 5;
        let queue = queue(0..FAILURES_MAX as u32 + rest);
        for _ in 0..FAILURES_MAX {
            take(&queue, "db1");
            queue.failed();
        }
        match queue.next(&host("db1")) {
            Next::Stop { left, failed } => {
                assert_eq!((left.len(), failed), (rest as usize, FAILURES_MAX));
            }
            _ => panic!("the queue goes on"),
        }
        assert!(matches!(queue.next(&host("db1")), Next::Nothing));
    }

    #[test]
    fn one_that_is_done_shows_that_the_others_can_be() {
        let queue = queue(0..FAILURES_MAX as u32 + 2);
        take(&queue, "db1");
        queue.done();
        for _ in 0..FAILURES_MAX {
            take(&queue, "db1");
            queue.failed();
        }
        take(&queue, "db1");
    }

    fn lost() -> HostFault {
        HostFault::Lost {
            reason: "the server is gone".to_owned(),
        }
    }

    #[test]
    fn a_host_that_is_given_up_takes_no_work_back() {
        let queue = queue(0..2);
        let task = take(&queue, "db1");
        assert_eq!(queue.lose(&host("db1"), lost()).len(), 1);
        let (task, fault) = queue.retry(&host("db1"), task).unwrap_err();
        assert_eq!((task.work, fault), (0, lost()));
        assert!(matches!(queue.next(&host("db1")), Next::Nothing));
    }
}
