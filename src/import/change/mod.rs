//! What the commands that change a database have in common: one session, statements that wait for
//! locks in many short tries, and errors that name what is in the way.
//!
//! Invariant: a statement that conflicts with the application's waits for a tenth of a second at
//! most, then lets it pass and tries again. One such command runs in a database at a time.

mod blocker;
mod error;
mod event;
pub(super) mod record;
mod request;
mod session;

pub use blocker::Blocker;
pub use error::{ChangeError, Refusal};
pub use event::{ChangeEvent, Observer, StepKind};
pub use request::ChangeRequest;
pub(super) use session::{Mode, Session, is_in_the_way};
