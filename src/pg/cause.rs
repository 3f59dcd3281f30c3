//! An error as text, with its causes.

use std::error::Error;

use tokio_postgres::error::DbError;

/// The server's message with its SQLSTATE.
pub fn message(error: &DbError) -> String {
    format!("{} ({})", error.message(), error.code().code())
}

/// The server's own words of an error with its DETAIL and HINT, on one line.
pub fn server_message(error: &DbError) -> String {
    message(error) + &more(error)
}

/// The former name of [`server_message`].
#[doc(hidden)]
#[deprecated(note = "renamed to server_message")]
pub fn words(error: &DbError) -> String {
    server_message(error)
}

fn more(error: &DbError) -> String {
    let mut words = String::new();
    for (what, text) in [("detail", error.detail()), ("hint", error.hint())] {
        if let Some(text) = text {
            words.push_str(&format!("; {what}: {}", text.replace('\n', " ")));
        }
    }
    words
}

/// The messages of an error and of its causes, each once. Where a server has answered, its own
/// message is the last.
pub fn causes(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    for error in std::iter::successors(Some(error), |error| cause(*error)) {
        let words = own_message(error);
        match (told.last_mut(), answer(error)) {
            // Some errors include their cause in their own message.
            (Some(last), _) if last.contains(&words) => {}
            (Some(last), Some(answer)) if last.ends_with(&message(answer)) => {
                last.push_str(&more(answer));
            }
            _ => told.push(words),
        }
    }
    told
}

/// The same on one line.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    causes(error).join(": ")
}

fn own_message(error: &(dyn Error + 'static)) -> String {
    answer(error).map_or_else(|| error.to_string(), server_message)
}

/// The server's own message, where the driver has only "db error".
fn answer<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a DbError> {
    error
        .downcast_ref::<tokio_postgres::Error>()
        .and_then(tokio_postgres::Error::as_db_error)
}

/// The cause that [`own_message`] has not included yet.
fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    if answer(error).is_some() {
        None
    } else {
        error.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{what}")]
    struct Layer {
        what: &'static str,
        source: Option<Box<Layer>>,
    }

    #[test]
    fn a_cause_is_told_once() {
        let layer = |what, source: Option<Layer>| Layer {
            what,
            source: source.map(Box::new),
        };
        let error = layer(
            "no answer: closed",
            Some(layer("closed", Some(layer("os error 104", None)))),
        );
        assert_eq!(causes(&error), ["no answer: closed", "os error 104"]);
        assert_eq!(chain(&error), "no answer: closed: os error 104");
        let error = layer(
            "lost: closed: os error 104",
            error.source.map(|source| *source),
        );
        assert_eq!(causes(&error), ["lost: closed: os error 104"]);
    }
}
