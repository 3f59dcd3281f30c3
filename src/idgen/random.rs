//! Random numbers that differ between machines, threads and forked processes. The system's own
//! randomness costs a system call each time, so it only seeds the generators that most numbers come
//! from.

use std::cell::RefCell;

use uuid::Uuid;

use super::process::Process;

/// 62 bits from the system.
pub(super) fn of_the_system() -> u64 {
    // A UUID's lower half: two bits of variant, and the rest is random.
    Uuid::new_v4().as_u64_pair().1 & (u64::MAX >> 2)
}

thread_local! {
    static DRAWN: RefCell<(Process, fastrand::Rng)> =
        RefCell::new((Process::current(), fastrand::Rng::with_seed(of_the_system())));
}

/// A random number of `count` bits, at most 32. It is not secret.
pub(super) fn bits(count: u32) -> u32 {
    DRAWN.with_borrow_mut(|(process, rng)| {
        if !process.is_current() {
            (*process, *rng) = (
                Process::current(),
                fastrand::Rng::with_seed(of_the_system()),
            );
        }
        rng.u32(..) >> (32 - count)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After fork() both would draw the same.
    #[test]
    fn a_forked_process_draws_others() {
        bits(32);
        let parents = DRAWN.with_borrow(|(_, rng)| rng.clone());
        DRAWN.with_borrow_mut(|(process, _)| *process = Process::parent());
        let drawn: Vec<u32> = (0..8).map(|_| bits(32)).collect();
        let mut parents = parents;
        assert_ne!(drawn, (0..8).map(|_| parents.u32(..)).collect::<Vec<_>>());
        assert!((0..1000).all(|_| bits(22) < 1 << 22));
    }
}
