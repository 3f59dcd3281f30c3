//! The pages by their addresses.

use axum::extract::Query;
use axum::http::Uri;
use pgshard::ShardId;
use serde::Deserialize;

/// What the cells of the grid show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Shade {
    #[default]
    Host,
    Bytes,
    Writes,
    Epoch,
    Moved,
    Findings,
}

impl Shade {
    /// All, with the name in addresses and the words in links.
    pub(super) const ALL: [(Shade, &'static str, &'static str); 6] = [
        (Shade::Host, "host", "host"),
        (Shade::Bytes, "bytes", "size"),
        (Shade::Writes, "writes", "rows written a second"),
        (Shade::Epoch, "epoch", "epoch"),
        (Shade::Moved, "moved", "last move"),
        (Shade::Findings, "findings", "findings"),
    ];

    /// The name in addresses.
    pub(super) fn name(self) -> &'static str {
        Shade::ALL
            .iter()
            .find(|(shade, ..)| *shade == self)
            .map_or("host", |(_, name, _)| name)
    }
}

/// What a plan spreads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Spread {
    Count,
    #[default]
    Bytes,
    Writes,
}

impl Spread {
    /// All, with the name in addresses and on the command line, and the words in links.
    pub(super) const ALL: [(Spread, &'static str, &'static str); 3] = [
        (Spread::Count, "count", "number of shards"),
        (Spread::Bytes, "bytes", "size"),
        (Spread::Writes, "writes", "rows written"),
    ];

    /// The name in addresses.
    pub(super) fn name(self) -> &'static str {
        Spread::ALL
            .iter()
            .find(|(spread, ..)| *spread == self)
            .map_or("bytes", |(_, name, _)| name)
    }
}

/// A page, with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Shards {
        shade: Shade,
        version: Option<u64>,
        sought: Option<Sought>,
    },
    Shard(ShardId),
    Hosts,
    Moves,
    Move(String),
    Balance(Spread),
    Findings,
    Migrations,
    Ids {
        scheme: String,
        id: String,
    },
}

/// What is searched for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sought {
    /// `key`, `id` or `shard`.
    pub(super) kind: String,
    pub(super) text: String,
}

/// The query of an address; parameters that a page does not know are ignored.
#[derive(Debug, Default, Deserialize)]
struct Words {
    by: Option<String>,
    version: Option<String>,
    kind: Option<String>,
    q: Option<String>,
    scheme: Option<String>,
}

/// No address that a page refers to is longer.
const ADDRESS_MAX: usize = 2048;

impl Route {
    /// The page with this address, if there is one.
    pub(super) fn parse(uri: &Uri) -> Option<Route> {
        if uri
            .path_and_query()
            .is_some_and(|text| text.as_str().len() > ADDRESS_MAX)
        {
            return None;
        }
        let words: Words = Query::try_from_uri(uri)
            .map(|Query(words)| words)
            .unwrap_or_default();
        let by = words.by.as_deref().unwrap_or_default();
        let text = words
            .q
            .map(|text| text.trim().to_owned())
            .unwrap_or_default();
        let mut parts = uri.path().trim_matches('/').split('/');
        let route = match (parts.next().unwrap_or_default(), parts.next(), parts.next()) {
            ("" | "shards", None, None) => Route::Shards {
                shade: Shade::ALL
                    .iter()
                    .find(|(_, name, _)| *name == by)
                    .map(|(shade, ..)| *shade)
                    .unwrap_or_default(),
                version: words.version.and_then(|version| version.parse().ok()),
                sought: (!text.is_empty()).then(|| Sought {
                    kind: words.kind.unwrap_or_default(),
                    text,
                }),
            },
            ("shards", Some(shard), None) => Route::Shard(ShardId::new(shard.parse().ok()?)?),
            ("hosts", None, None) => Route::Hosts,
            ("moves", None, None) => Route::Moves,
            ("moves", Some(id), None) => Route::Move(id.to_owned()),
            ("balance", None, None) => {
                let spread = Spread::ALL
                    .iter()
                    .find(|(_, name, _)| *name == by)
                    .map(|(spread, ..)| *spread);
                Route::Balance(spread.unwrap_or_default())
            }
            ("findings", None, None) => Route::Findings,
            ("migrations", None, None) => Route::Migrations,
            ("ids", None, None) => Route::Ids {
                scheme: words.scheme.unwrap_or_default(),
                id: text,
            },
            _ => return None,
        };
        Some(route)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_pages() {
        let parse = |text: &str| Route::parse(&text.parse().expect("an address"));
        let shards = |shade, version, sought| {
            Some(Route::Shards {
                shade,
                version,
                sought,
            })
        };
        assert_eq!(parse("/"), shards(Shade::Host, None, None));
        assert_eq!(
            parse("/shards?by=bytes&version=7&more=1"),
            shards(Shade::Bytes, Some(7), None)
        );
        assert_eq!(
            parse("/shards?by=%00&version=x"),
            shards(Shade::Host, None, None)
        );
        let sought = Sought {
            kind: "key".to_owned(),
            text: "a b<".to_owned(),
        };
        assert_eq!(
            parse("/shards?kind=key&q=+a+b%3C"),
            shards(Shade::Host, None, Some(sought))
        );
        assert_eq!(parse("/shards/17"), ShardId::new(17).map(Route::Shard));
        assert_eq!(
            parse("/balance?by=writes"),
            Some(Route::Balance(Spread::Writes))
        );
        for none in [
            "/shards/8192",
            "/shards/x",
            "/other",
            "/hosts/a",
            "/shards/1/2",
        ] {
            assert_eq!(parse(none), None, "{none}");
        }
        assert_eq!(parse(&format!("/shards?q={}", "x".repeat(3000))), None);
    }
}
