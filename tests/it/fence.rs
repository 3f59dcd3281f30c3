//! The fence on real servers, made by the functions of the control schema: signpost, swap, barrier,
//! marker, swap back, expiry, decision and opening (`migrations/control/0004_ownership.sql`). They
//! are called over plain connections, with nothing of the library in between. Except for the
//! barrier's VACUUMs and the creation of roles, everything runs as the application's role, which is
//! not a superuser.

mod attempts;
mod barrier;
mod holes;
mod nasty;
mod opening;
mod races;
mod rights;
mod setup;
mod statements;
