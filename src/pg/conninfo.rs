//! The text of a connection string: keys are taken out of it and put into it, in both of libpq's notations.
//!
//! Invariant: what libpq reads there is what is found here. A key that was missed would be one that asks for TLS.

use super::options::OptionsError;

/// Takes keys out of a connection string, those that `take` says are taken, and gives the rest.
pub(super) fn take_keys(
    text: &str,
    mut take: impl FnMut(&str, &str) -> Result<bool, OptionsError>,
) -> Result<String, OptionsError> {
    if let Some((address, query)) = url_parts(text) {
        let mut kept = Vec::new();
        for pair in query.iter().flat_map(|query| query.split('&')) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !take(&percent_decoded(key), &percent_decoded(value))? {
                kept.push(pair);
            }
        }
        return Ok(if kept.is_empty() { address } else { format!("{address}?{}", kept.join("&")) });
    }
    let mut kept = Vec::new();
    for (key, value, whole) in pairs(text) {
        if !take(&key, &value)? {
            kept.push(whole);
        }
    }
    Ok(kept.join(" "))
}

/// What a URL has before its query, and the query, as libpq divides them: user and password end at the first `@`,
/// unless a `/` comes before it, and a `?` is theirs until then. The driver looks for an `@` in the whole text, so one
/// that comes later is written in a way in which both find the same host. `None`: it is no URL.
fn url_parts(text: &str) -> Option<(String, Option<String>)> {
    let scheme = ["postgres://", "postgresql://"].into_iter().find(|scheme| text.starts_with(scheme))?;
    let rest = &text[scheme.len()..];
    let credentials = rest.find(['@', '/']).filter(|at| rest[*at..].starts_with('@')).map_or(0, |at| at + 1);
    let (credentials, rest) = rest.split_at(credentials);
    let rest = rest.replace('@', "%40");
    let (address, query) =
        rest.split_once('?').map_or((rest.as_str(), None), |(address, query)| (address, Some(query)));
    Some((format!("{scheme}{credentials}{address}"), query.map(str::to_owned)))
}

/// A connection string with one more key.
pub(crate) fn put_key(text: &str, key: &str, value: &str) -> String {
    if let Some((_, query)) = url_parts(text) {
        let joint = if query.is_some() { '&' } else { '?' };
        return format!("{text}{joint}{}={}", percent_encoded(key), percent_encoded(value));
    }
    let value = value.replace('\\', "\\\\").replace('\'', "\\'");
    format!("{text} {key}='{value}'")
}

/// The pairs of a key=value string: key, value without its quotes, and the pair as it stands. Text that is no pair
/// comes as a pair without key, for the parser behind to refuse.
fn pairs(text: &str) -> impl Iterator<Item = (String, String, String)> {
    let mut rest = text.trim_start();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let whole = rest;
        let Some((key, after)) = rest.split_once('=') else {
            rest = "";
            return Some((String::new(), String::new(), whole.to_owned()));
        };
        let after = after.trim_start();
        let mut value = String::new();
        let mut chars = after.char_indices();
        let quoted = after.starts_with('\'');
        if quoted {
            chars.next();
        }
        let mut end = after.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => value.extend(chars.next().map(|(_, c)| c)),
                '\'' if quoted => {
                    end = at + 1;
                    break;
                }
                c if !quoted && c.is_whitespace() => {
                    end = at;
                    break;
                }
                c => value.push(c),
            }
        }
        let taken = whole.len() - after.len() + end;
        rest = whole[taken..].trim_start();
        Some((key.trim().to_owned(), value, whole[..taken].to_owned()))
    })
}

fn percent_encoded(text: &str) -> String {
    let byte = |byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'/' => char::from(*byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.as_bytes().iter().map(byte).collect()
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.filter(|_| bytes[at] == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
