//! What an error of the driver means for the statement and for its connection.
//!
//! The driver keeps the kind of its errors for itself. Its public words are enough: they have been
//! the same in all of its versions, and tests raise each of these errors.

use std::error::Error as _;

use tokio_postgres::Error;

use crate::pg::state;

/// Who raised an error, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The driver, before it sent anything: a value that cannot be encoded, another number of
    /// parameters than the statement has, a NUL in the text, more than the protocol can carry. The
    /// connection is as it was.
    BeforeSending,
    /// The server refuses, and the connection can still be used.
    Server,
    /// The socket failed, or the server closed the connection with this error.
    Lost,
    /// The driver, since the answer does not fit the request (it is COPY's answer to a query) or
    /// cannot be read. What was sent may have run, and the connection is of no more use.
    Answer,
}

impl Origin {
    pub(super) fn of(error: &Error) -> Origin {
        if let Some(error) = error.as_db_error() {
            return if state::ends_the_connection(error) {
                Origin::Lost
            } else {
                Origin::Server
            };
        }
        let words = error.to_string();
        if error.is_closed() || words == "error communicating with the server" {
            return Origin::Lost;
        }
        // Without a name, a text is refused in the words for an answer.
        let cannot_be_sent = || {
            let cause = error.source().map(ToString::to_string);
            [
                "string contains embedded null",
                "value too large to transmit",
            ]
            .iter()
            .any(|why| cause.as_deref() == Some(why))
        };
        let is_refused = words.starts_with("error serializing parameter ")
            || words == "error encoding message to server"
            || (words.starts_with("expected ") && words.contains(" parameters but got "))
            || (words == "error parsing response from server" && cannot_be_sent());
        if is_refused {
            Origin::BeforeSending
        } else {
            Origin::Answer
        }
    }
}

/// Whether the error ended the connection.
pub(super) fn is_lost(error: &Error) -> bool {
    Origin::of(error) == Origin::Lost
}
