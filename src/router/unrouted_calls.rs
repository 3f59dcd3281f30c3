//! Statements that name no key, on a cluster that still has its one database: where in the program
//! they are.
//!
//! Invariant: the table of places is bounded; what does not fit counts as one place.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::{Mutex, PoisonError};

/// The most places that are counted separately.
const PLACES_MAX: usize = 256;

/// The place of all others.
const OTHERS: &str = "others";

/// A place in the program that runs statements without a key, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnroutedCall {
    /// File, line and column of the call of [`Router::unrouted`](super::Router::unrouted); `others`
    /// for all places that are not counted separately.
    pub place: String,
    /// How many handles were made there.
    pub calls: u64,
}

/// The places seen so far, by file, line and column.
#[derive(Default)]
pub(super) struct UnroutedCalls(Mutex<BTreeMap<Place, u64>>);

/// A place in the program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    At(&'static str, u32, u32),
    Others,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::At(file, line, column) => write!(f, "{file}:{line}:{column}"),
            Place::Others => f.write_str(OTHERS),
        }
    }
}

impl From<&'static Location<'static>> for Place {
    fn from(at: &'static Location<'static>) -> Place {
        Place::At(at.file(), at.line(), at.column())
    }
}

impl UnroutedCalls {
    /// Counts a call. Returns its place if it is the first one there.
    pub(super) fn count(&self, at: &'static Location<'static>) -> (Place, bool) {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut place = Place::from(at);
        if !calls.contains_key(&place) && calls.len() >= PLACES_MAX {
            place = Place::Others;
        }
        let count = calls.entry(place).or_default();
        *count += 1;
        (place, *count == 1)
    }

    pub(super) fn all(&self) -> Vec<UnroutedCall> {
        let calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<UnroutedCall> = calls
            .iter()
            .map(|(place, calls)| UnroutedCall {
                place: place.to_string(),
                calls: *calls,
            })
            .collect();
        all.sort_by(|a, b| b.calls.cmp(&a.calls).then_with(|| a.place.cmp(&b.place)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart_up_to_a_bound() {
        let calls = UnroutedCalls::default();
        let here = Location::caller();
        assert!(calls.count(here).1 && !calls.count(here).1);
        for line in 0..u32::try_from(2 * PLACES_MAX).unwrap() {
            let mut all = calls.0.lock().unwrap();
            if all.len() < PLACES_MAX {
                all.insert(Place::At("x.rs", line, 1), 1);
            }
        }
        let other = Location::caller();
        assert!(calls.count(other).1 && !calls.count(other).1);
        assert_eq!(calls.count(here).0.to_string(), here.to_string());
        let all = calls.all();
        assert_eq!(all.len(), PLACES_MAX + 1);
        assert_eq!((all[0].calls, all[1].calls), (3, 2));
        assert_eq!(all[1].place, OTHERS);
    }
}
