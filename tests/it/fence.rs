//! The fence on real servers, as the functions of the control schema make it: signpost, swap, barrier, marker, swap
//! back, expiry, decision and opening (`migrations/control/0001_control.sql`), called with plain connections and
//! nothing of the library in between. Everybody here but the barrier's VACUUMs and the makers of roles is the
//! application's role, which is no superuser.

mod attempts;
mod barrier;
mod holes;
mod nasty;
mod opening;
mod races;
mod rights;
mod setup;
mod statements;
