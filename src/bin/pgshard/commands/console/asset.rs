//! The script, the style and the picture that pages refer to, as they are in the program.

use std::sync::LazyLock;

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

/// A file that pages refer to.
pub(super) struct Asset {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const ASSETS: [Asset; 3] = [
    Asset {
        path: "/console.css",
        kind: "text/css; charset=utf-8",
        text: include_str!("assets/console.css"),
    },
    Asset {
        path: "/console.js",
        kind: "text/javascript; charset=utf-8",
        text: include_str!("assets/console.js"),
    },
    Asset {
        path: "/console.svg",
        kind: "image/svg+xml",
        text: include_str!("assets/console.svg"),
    },
];

/// Distinguishes the files of one release from those of another, in a page's links.
pub(super) static MARK: LazyLock<String> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    for asset in &ASSETS {
        hash.update(asset.text);
    }
    hash.finalize()
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect()
});

/// The file with this path, if there is one.
pub(super) fn answer(path: &str) -> Option<Response> {
    let asset = ASSETS.iter().find(|asset| asset.path == path)?;
    // Another release has another mark, and so another address.
    let headers = [
        (CONTENT_TYPE, asset.kind),
        (CACHE_CONTROL, "private, max-age=86400"),
    ];
    Some((headers, asset.text).into_response())
}
