//! A page and its parts.

use axum::http::StatusCode;
use maud::Markup;

/// A page.
pub(in super::super) struct Page {
    pub(in super::super) status: StatusCode,
    pub(super) title: String,
    /// The address of the entry in the list of pages that it belongs to.
    pub(super) tab: &'static str,
    /// What stays while the page is open: forms, which may have input.
    pub(super) fixed: Markup,
    pub(super) parts: Vec<Part>,
}

/// A part of a page, which is sent again when it has changed.
pub(super) struct Part {
    pub(super) id: String,
    pub(super) html: Markup,
}

impl Part {
    pub(super) fn new(id: impl Into<String>, html: Markup) -> Part {
        Part {
            id: id.into(),
            html,
        }
    }
}

impl Page {
    pub(super) fn new(
        title: impl Into<String>,
        tab: &'static str,
        fixed: Markup,
        parts: Vec<Part>,
    ) -> Page {
        Page {
            status: StatusCode::OK,
            title: title.into(),
            tab,
            fixed,
            parts,
        }
    }
}
