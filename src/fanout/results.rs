//! What the tasks of a call over many shards keep for its caller: answers that the caller has not
//! taken yet, and what only the caller's future can do.
//!
//! Invariant: each job has one answer, the first that is given. What is kept here has a bound, in
//! bytes and in rows. Past the bound, a task only reads the last answer that its connection still
//! waits for, and the servers wait.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Context;

use futures_util::task::AtomicWaker;
use tokio::sync::{Notify, oneshot};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::job::Answer;
use crate::router::{Bound, Error};

/// Bytes of rows that wait for the caller, of one call.
const BYTES_MAX: usize = 4 << 20;

/// Rows of one call that wait for the caller. A row costs memory in addition to its bytes.
const ROWS_MAX: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Results {
    state: Mutex<State>,
    caller: AtomicWaker,
    room: Notify,
}

#[derive(Debug)]
struct State {
    answers: VecDeque<Answer>,
    bytes: usize,
    rows: usize,
    questions: VecDeque<Question>,
    alone: VecDeque<usize>,
    jobs: Vec<Job>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Job {
    /// Whether it may have run.
    sent: bool,
    answered: bool,
}

/// The types that a host wants for the caller's parameters.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) types: Vec<Type>,
    pub(super) answer: oneshot::Sender<Option<Bound>>,
}

impl Results {
    pub(super) fn new(jobs: usize) -> Results {
        let state = State {
            answers: VecDeque::new(),
            bytes: 0,
            rows: 0,
            questions: VecDeque::new(),
            alone: VecDeque::new(),
            jobs: vec![Job::default(); jobs],
        };
        Results {
            state: Mutex::new(state),
            caller: AtomicWaker::new(),
            room: Notify::new(),
        }
    }

    /// Keeps a job's answer. A second answer is dropped.
    pub(super) fn give(&self, at: usize, result: Result<Vec<Row>, Error>) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.jobs[at].answered, true) {
            let (bytes, rows) = size(&result);
            state.bytes += bytes;
            state.rows += rows;
            state.answers.push_back((at, result));
        }
        drop(state);
        self.caller.wake();
    }

    pub(super) fn take(&self) -> Option<Answer> {
        let mut state = self.lock();
        let answer = state.answers.pop_front()?;
        let (bytes, rows) = size(&answer.1);
        state.bytes -= bytes;
        state.rows -= rows;
        let has_room = state.has_room();
        drop(state);
        if has_room {
            self.room.notify_waiters();
        }
        Some(answer)
    }

    pub(super) fn has_room(&self) -> bool {
        self.lock().has_room()
    }

    /// Returns once the caller has taken enough answers.
    pub(super) async fn room(&self) {
        loop {
            let room = self.room.notified();
            if self.has_room() {
                return;
            }
            room.await;
        }
    }

    /// Takes note that a job may have run from now on.
    pub(super) fn sent(&self, at: usize) {
        self.lock().jobs[at].sent = true;
    }

    pub(super) fn is_answered(&self, at: usize) -> bool {
        self.lock().jobs[at].answered
    }

    /// Finds the first job from `from` on that has no answer, and marks it as answered. Returns it,
    /// and whether it may have run.
    pub(super) fn give_up(&self, from: &mut usize) -> Option<(usize, bool)> {
        let mut state = self.lock();
        while let Some(job) = state.jobs.get_mut(*from) {
            *from += 1;
            if !std::mem::replace(&mut job.answered, true) {
                let sent = job.sent;
                return Some((*from - 1, sent));
            }
        }
        None
    }

    /// Requests the parameters from the caller. `None` if they cannot be bound, or the caller is
    /// gone.
    pub(super) async fn request_binding(&self, types: Vec<Type>) -> Option<Bound> {
        let (answer, answered) = oneshot::channel();
        self.lock().questions.push_back(Question { types, answer });
        self.caller.wake();
        answered.await.ok().flatten()
    }

    pub(super) fn question(&self) -> Option<Question> {
        self.lock().questions.pop_front()
    }

    /// Leaves jobs to the caller's own future.
    pub(super) fn leave_to_caller(&self, jobs: impl IntoIterator<Item = usize>) {
        self.lock().alone.extend(jobs);
        self.caller.wake();
    }

    pub(super) fn alone(&self) -> Option<usize> {
        self.lock().alone.pop_front()
    }

    /// The caller's future is being polled. From now on it is woken by whatever comes.
    pub(super) fn register(&self, context: &Context<'_>) {
        self.caller.register(context.waker());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_room(&self) -> bool {
        self.bytes < BYTES_MAX && self.rows < ROWS_MAX
    }
}

fn size(result: &Result<Vec<Row>, Error>) -> (usize, usize) {
    let rows = result.as_deref().unwrap_or_default();
    (rows.iter().map(Row::raw_size_bytes).sum(), rows.len())
}
