//! What of the stream reads bytes, for [`crate::fuzzing`].

use bytes::Bytes;

use crate::map::HostName;
use crate::mover::stream::transport;
use crate::mover::stream::wire::{self, Message, Row};

/// A message of pgoutput is read or refused, and holds no more than came.
pub(crate) fn pgoutput(data: &[u8]) {
    let length = |row: &Row| {
        row.iter()
            .filter_map(|value| value.text())
            .map(<[u8]>::len)
            .sum::<usize>()
    };
    let Ok(message) = wire::decode(Bytes::copy_from_slice(data)) else {
        return;
    };
    let held = match &message {
        Message::Insert { new, .. } => new.len().max(length(new)),
        Message::Update { old, new, .. } => {
            new.len().max(length(new)) + old.as_ref().map_or(0, |old| old.len().max(length(old)))
        }
        Message::Delete { old, .. } => old.len().max(length(old)),
        Message::Relation(relation) => {
            assert_eq!(relation.columns.len(), relation.in_identity.len());
            relation.columns.len()
        }
        Message::Truncate { relations } => relations.len(),
        _ => 0,
    };
    assert!(held <= data.len(), "{held} of {}", data.len());
}

/// A frame of a stream: a message, a sign of life, or neither.
pub(crate) fn frames(data: &[u8]) {
    let host = HostName::new("db1").expect("it is a name");
    let _ = transport::frame_of_test(Bytes::copy_from_slice(data), &host);
}
