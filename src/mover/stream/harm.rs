//! Changes that are deliberately not applied as they came: with them a test checks that the audit
//! finds the difference.

use bytes::Bytes;

use crate::mover::protocol::failpoint::{Failpoint, HARM_MADE, HARMED, Harm};

use crate::mover::stream::run::Change;
use crate::mover::stream::wire::{Row, Value};

/// What is applied instead of a change. Without a failpoint that is the change itself.
pub(super) fn harmed(
    failpoint: Option<&Failpoint>,
    change: Change,
) -> impl Iterator<Item = Change> {
    let harm = failpoint.and_then(|failpoint| {
        let (old, new) = match &change {
            Change::Insert(new) => (None, Some(new)),
            Change::Update(old, new) => (old.as_ref(), Some(new)),
            Change::Delete(old) => (Some(old), None),
            Change::Truncate => (None, None),
        };
        failpoint.harm(old.into_iter().chain(new).flatten().filter_map(Value::text))
    });
    let changes = match harm {
        None => [Some(change), None],
        Some(Harm::Drop) => [None, None],
        Some(Harm::Double) => [Some(change.clone()), Some(change)],
        Some(Harm::Alter) => [Some(altered(change)), None],
    };
    changes.into_iter().flatten()
}

fn altered(change: Change) -> Change {
    let value = |value: Value| match value {
        Value::Text(text) if text == HARMED => {
            Value::Text(Bytes::from_static(HARM_MADE.as_bytes()))
        }
        other => other,
    };
    let row = |row: Row| row.into_iter().map(value).collect();
    match change {
        Change::Insert(new) => Change::Insert(row(new)),
        Change::Update(old, new) => Change::Update(old, row(new)),
        other => other,
    }
}
