//! The text of a connection string, read as libpq reads it, in both of its notations.
//!
//! Invariant: a text is read as libpq reads it, or it is refused. A key that was missed could be
//! one that requires TLS, and a host that was read in another way would be another server.

use std::collections::BTreeMap;

use super::options_error::OptionsError;

/// The keys of a connection string with their values. If a key comes twice, the last one counts.
pub(super) type Keys = BTreeMap<String, String>;

/// Reads a connection string. Whether a key is known is not checked here.
pub(super) fn read(text: &str) -> Result<Keys, OptionsError> {
    if text.contains('\0') {
        return Err(syntax("it has a zero byte"));
    }
    match ["postgres://", "postgresql://"]
        .into_iter()
        .find_map(|scheme| text.strip_prefix(scheme))
    {
        Some(rest) => read_url(rest),
        None => read_pairs(text),
    }
}

/// A connection string with one more key.
#[cfg(any(feature = "dev", test))]
pub(crate) fn put_key(text: &str, key: &str, value: &str) -> String {
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        // A `?` before the `@` is the password's.
        let credentials = text.find('@').map_or(0, |at| at + 1);
        let joint = if text[credentials..].contains('?') {
            '&'
        } else {
            '?'
        };
        return format!(
            "{text}{joint}{}={}",
            percent_encoded(key),
            percent_encoded(value)
        );
    }
    let value = value.replace('\\', "\\\\").replace('\'', "\\'");
    format!("{text} {key}='{value}'")
}

fn syntax(reason: &str) -> OptionsError {
    OptionsError::Parse {
        reason: reason.to_owned(),
    }
}

/// What `isspace` is in C.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}

/// `key = value` pairs. White space is allowed around `=`; a value with white space is in single
/// quotes.
fn read_pairs(text: &str) -> Result<Keys, OptionsError> {
    let mut keys = Keys::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        let end = rest.find(|c| c == '=' || is_space(c)).unwrap_or(rest.len());
        let (key, after) = rest.split_at(end);
        let after = after.trim_start_matches(is_space).strip_prefix('=');
        let after =
            after.ok_or_else(|| syntax("a word in it is neither a key with = nor a value"))?;
        let (value, after) = read_value(after.trim_start_matches(is_space))?;
        keys.insert(key.to_owned(), value);
        rest = after.trim_start_matches(is_space);
    }
    Ok(keys)
}

/// A value, and what comes after it.
fn read_value(text: &str) -> Result<(String, &str), OptionsError> {
    let quoted = text.starts_with('\'');
    let mut chars = text.char_indices().skip(usize::from(quoted));
    let mut value = String::new();
    while let Some((at, c)) = chars.next() {
        match c {
            // The character that follows, whatever it is.
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            '\'' if quoted => return Ok((value, &text[at + 1..])),
            c if !quoted && is_space(c) => return Ok((value, &text[at..])),
            c => value.push(c),
        }
    }
    if quoted {
        Err(syntax("a quote in it is not closed"))
    } else {
        Ok((value, ""))
    }
}

/// What follows the scheme: `user:password@host:port,host:port/dbname?key=value&key=value`, in
/// percent escapes.
fn read_url(text: &str) -> Result<Keys, OptionsError> {
    let mut keys = Keys::new();
    let mut put = |key: &str, value: &str| -> Result<(), OptionsError> {
        keys.insert(key.to_owned(), percent_decoded(value)?);
        Ok(())
    };
    // User and password end at the first `@`, unless a `/` comes before it. A `?` is theirs until
    // then.
    let mut rest = text;
    if let Some((credentials, after)) = text
        .split_once('@')
        .filter(|(before, _)| !before.contains('/'))
    {
        let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
        for (key, value) in [("user", user), ("password", password)] {
            if !value.is_empty() {
                put(key, value)?;
            }
        }
        rest = after;
    }
    let (hosts, ports, after) = read_addresses(rest)?;
    for (key, value) in [("host", hosts), ("port", ports)] {
        if !value.is_empty() {
            put(key, &value)?;
        }
    }
    let (path, query) = after
        .split_once('?')
        .map_or((after, None), |(path, query)| (path, Some(query)));
    match path.strip_prefix('/').unwrap_or_default() {
        "" => {}
        database => put("dbname", database)?,
    }
    read_query(query.unwrap_or_default(), &mut keys)?;
    Ok(keys)
}

/// The hosts, the ports that belong to them, each joined by commas, and what comes after both.
fn read_addresses(text: &str) -> Result<(String, String, &str), OptionsError> {
    let (mut hosts, mut ports, mut rest) = (String::new(), String::new(), text);
    loop {
        let end = if let Some(inner) = rest.strip_prefix('[') {
            let (address, after) = inner
                .split_once(']')
                .ok_or_else(|| syntax("a [ of an address is not closed"))?;
            if address.is_empty() || !(after.is_empty() || after.starts_with([':', '/', '?', ',']))
            {
                return Err(syntax(
                    "an address in [] is empty, or something other than a port comes after it",
                ));
            }
            hosts.push_str(address);
            rest = after;
            0
        } else {
            let end = rest.find([':', '/', '?', ',']).unwrap_or(rest.len());
            hosts.push_str(&rest[..end]);
            end
        };
        rest = &rest[end..];
        if let Some(after) = rest.strip_prefix(':') {
            let end = after.find(['/', '?', ',']).unwrap_or(after.len());
            ports.push_str(&after[..end]);
            rest = &after[end..];
        }
        let Some(next) = rest.strip_prefix(',') else {
            return Ok((hosts, ports, rest));
        };
        rest = next;
        hosts.push(',');
        ports.push(',');
    }
}

fn read_query(query: &str, keys: &mut Keys) -> Result<(), OptionsError> {
    let mut pairs: Vec<&str> = query.split('&').collect();
    // The last may be empty: no key follows a `?` or `&` at the end.
    if pairs.last() == Some(&"") {
        pairs.pop();
    }
    for pair in pairs {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| syntax("a key after its ? has no ="))?;
        if value.contains('=') {
            return Err(syntax(
                "a key after its ? has two =: write one that belongs to the value as %3D",
            ));
        }
        let (key, value) = (percent_decoded(key)?, percent_decoded(value)?);
        // JDBC's spelling.
        let (key, value) = match (key.as_str(), value.as_str()) {
            ("ssl", "true") => ("sslmode".to_owned(), "require".to_owned()),
            _ => (key, value),
        };
        keys.insert(key, value);
    }
    Ok(())
}

#[cfg(any(feature = "dev", test))]
fn percent_encoded(text: &str) -> String {
    let byte = |byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'/' => {
            char::from(*byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.as_bytes().iter().map(byte).collect()
}

/// The text without its escapes. White space that is not escaped is refused: older versions of
/// libpq take it as it is, newer ones drop some of it.
fn percent_decoded(text: &str) -> Result<String, OptionsError> {
    if text.contains(is_space) {
        return Err(syntax("a URL has white space in it: write a space as %20"));
    }
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        match (digit(), digit()) {
            (Some(0), Some(0)) => return Err(syntax("%00 is not possible in a URL")),
            (Some(high), Some(low)) => out.extend(u8::try_from(high * 16 + low)),
            _ => {
                return Err(syntax(
                    "a % in a URL begins no escape: write a % of a password as %25",
                ));
            }
        }
    }
    String::from_utf8(out).map_err(|_| syntax("an escape in the URL is no UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let keys = read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        keys.iter()
            .map(|(key, value)| format!("{key}<{value}>"))
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn pairs_as_libpq_reads_them() {
        for (text, expected) in [
            ("", ""),
            ("host=a user=b", "host<a> user<b>"),
            ("  host = a\n\tport\t=1 ", "host<a> port<1>"),
            ("user= dbname=x", "user<dbname=x>"),
            (
                r"password='a\'b\\c' host=h\ i",
                r"host<h i> password<a'b\c>",
            ),
            ("host=a host=b", "host<b>"),
            ("password=", "password<>"),
            // No space is needed between a quote and the next key.
            ("password='a b''c'host=h", "'c'host<h> password<a b>"),
            // A space of another alphabet ends nothing.
            ("user=a\u{a0}b", "user<a\u{a0}b>"),
            (r"password=a\", "password<a>"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
        for text in ["host", "host a", "host=a user", "password='a", "a=b\0c"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn urls_as_libpq_reads_them() {
        for (text, expected) in [
            ("postgres://", ""),
            (
                "postgresql://u:p@h:1/d",
                "dbname<d> host<h> password<p> port<1> user<u>",
            ),
            (
                "postgres://u@a,b:2,c/d",
                "dbname<d> host<a,b,c> port<,2,> user<u>",
            ),
            ("postgres://a%2Cb/", "host<a,b>"),
            (
                "postgres://[::1]:5,[::2]/d",
                "dbname<d> host<::1,::2> port<5,>",
            ),
            (
                "postgres://u:p@ss@h/d",
                "dbname<d> host<ss@h> password<p> user<u>",
            ),
            (
                "postgres://u:a?b&c=d@h/d?port=3",
                "dbname<d> host<h> password<a?b&c=d> port<3> user<u>",
            ),
            ("postgres://h/d@b", "dbname<d@b> host<h>"),
            ("postgres://h?host=i&", "host<i>"),
            ("postgres:///d?ssl=true", "dbname<d> sslmode<require>"),
            (
                "postgres://h/?ss%6Cmode=%72equire",
                "host<h> sslmode<require>",
            ),
            ("postgres://%2Frun%2Fpg/d", "dbname<d> host</run/pg>"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
        for text in [
            "postgres://h/?a",
            "postgres://h/?a=b=c",
            "postgres://h/?&a=b",
            "postgres://[::1/d",
            "postgres://[]/d",
            "postgres://[::1]x/d",
            "postgres://u:%@h/d",
            "postgres://u:%4@h/d",
            "postgres://u:%+1@h/d",
            "postgres://u:%00@h/d",
            "postgres://u:%ff@h/d",
            "postgres://u:a b@h/d",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_key_is_put_into_either_notation() {
        for text in [
            "postgres://u:a?b@h/d",
            "postgres://u@h/d?port=1",
            "host=h user=u",
        ] {
            let keys = read(&put_key(text, "passfile", "/a b/'c\\%")).unwrap();
            assert_eq!(keys["passfile"], "/a b/'c\\%", "{text}");
            assert_eq!(
                (keys["host"].as_str(), keys["user"].as_str()),
                ("h", "u"),
                "{text}"
            );
        }
    }
}
