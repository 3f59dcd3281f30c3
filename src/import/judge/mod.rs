//! Finds the obstacles to an import. Pure: it gets the facts and the decisions, and each file looks
//! for obstacles of one sort.

mod border;
mod case;
mod ids;
mod keys;
mod server;
mod skew;
mod storage;
mod uniques;

use self::case::Case;
use super::decide::Decisions;
use super::facts::Database;
use super::obstacle::BlockingObject;

pub(crate) use keys::must_agree;
pub(crate) use skew::shares;

/// What is bound to imported tables and is not imported with them.
pub(crate) fn border(database: &Database, decisions: &Decisions) -> Vec<BlockingObject> {
    let mut found = Vec::new();
    let case = Case {
        database,
        decisions,
        first_id: 0,
    };
    border::look(&case, &mut found);
    found
}

/// All obstacles, other than statements and what a move does not carry.
pub(crate) fn judge(
    database: &Database,
    decisions: &Decisions,
    first_id: i64,
) -> Vec<BlockingObject> {
    let case = Case {
        database,
        decisions,
        first_id,
    };
    let mut found = Vec::new();
    for look in [
        server::look,
        keys::look,
        ids::look,
        uniques::look,
        border::look,
        storage::look,
        skew::look,
    ] {
        look(&case, &mut found);
    }
    found
}
