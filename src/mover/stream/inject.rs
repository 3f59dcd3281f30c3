//! Changes that are deliberately not applied as they came: with them a test checks that the audit
//! finds the difference.

use bytes::Bytes;

use crate::mover::protocol::failpoint::{CORRUPTED_VALUE, Corruption, Failpoint, TRIGGER_VALUE};

use crate::mover::stream::wire::{Change, Row, Value};

/// What is applied instead of a change. Without a failpoint that is the change itself.
pub(super) fn with_injected_fault(
    failpoint: Option<&Failpoint>,
    change: Change,
) -> impl Iterator<Item = Change> {
    let corruption = failpoint.and_then(|failpoint| {
        let (old, new) = match &change {
            Change::Insert(new) => (None, Some(new)),
            Change::Update(old, new) => (old.as_ref(), Some(new)),
            Change::Delete(old) => (Some(old), None),
            Change::Truncate => (None, None),
        };
        failpoint.corruption(old.into_iter().chain(new).flatten().filter_map(Value::text))
    });
    let changes = match corruption {
        None => [Some(change), None],
        Some(Corruption::Drop) => [None, None],
        Some(Corruption::Double) => [Some(change.clone()), Some(change)],
        Some(Corruption::Alter) => [Some(altered(change)), None],
    };
    changes.into_iter().flatten()
}

fn altered(change: Change) -> Change {
    let value = |value: Value| match value {
        Value::Text(text) if text == TRIGGER_VALUE => {
            Value::Text(Bytes::from_static(CORRUPTED_VALUE.as_bytes()))
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
