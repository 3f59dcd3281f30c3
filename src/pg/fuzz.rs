//! What of this module reads texts and bytes, for [`crate::fuzzing`].

use std::path::Path;
use std::sync::Arc;

use bytes::BytesMut;

use super::guard::{Guard, Statements};
use super::password::{PassfileKey, match_line};
use super::{replication, service};

/// A guard gives the same result for bytes, however they are split.
pub(crate) fn messages(data: &[u8]) {
    let Some((cut, data)) = data.split_first() else {
        return;
    };
    let whole = Guard::of_test(Statements::Ours, Arc::default()).came_all([data]);
    let parts = data.chunks(usize::from(*cut).max(1));
    let cut = Guard::of_test(Statements::Ours, Arc::default()).came_all(parts);
    assert_eq!(whole, cut);
    let mut sending = Guard::of_test(Statements::Ours, Arc::default());
    sending.sent(data);
}

/// The messages of a replication connection: each is read whole, or the bytes are refused.
pub(crate) fn frames(data: &[u8]) {
    let mut buffer = BytesMut::from(data);
    let mut left = data.len();
    while let Ok(Some(message)) = replication::take_message(&mut buffer, "app@somewhere/app") {
        assert_eq!(left - buffer.len(), message.body.len() + 5);
        left = buffer.len();
    }
    // A message that is not whole waits for the rest.
    assert!(buffer.len() <= left);
}

/// Lines of `~/.pgpass`: five fields, whatever is escaped.
pub(crate) fn pgpass(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    for host in ["10.0.0.1", "/run/postgresql", ""] {
        let wanted = PassfileKey {
            host,
            port: 5432,
            database: "app",
            user: "app",
        };
        for line in text.lines() {
            if let Some(password) = match_line(line, &wanted) {
                assert!(password.len() < line.len() && line.matches(':').count() >= 4);
            }
        }
    }
}

/// A section of a service file, or the line that is wrong, without its value.
pub(crate) fn service(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match service::section(text, "shop", Path::new("pg_service.conf")) {
        Ok(pairs) => {
            for pair in pairs.iter().flatten() {
                assert!(pair.line >= 1 && pair.line <= text.lines().count());
            }
        }
        Err(error) => assert!(!error.to_string().contains("hunter2")),
    }
}
