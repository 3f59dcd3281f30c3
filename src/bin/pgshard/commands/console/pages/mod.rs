//! The pages. Each is made of parts, which are rendered again at each look, and of what stays as
//! long as it is open.
//!
//! Invariant: everything that comes from a server, a file or an address is escaped by maud, and no
//! page has a script, a style or a handler of its own.

mod balance;
mod draw;
mod findings;
mod hosts;
mod ids;
mod migrations;
mod moves;
mod one_move;
mod page;
pub(super) mod plan;
mod shard;
mod shards;
mod words;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Uri;
use maud::{DOCTYPE, Markup, html};
use pgshard::schema::Severity;

use super::asset::MARK;
use super::route::Route;
use super::snapshot::Snapshot;
use page::Part;

pub(super) use page::Page;

/// What a page is rendered from.
pub(super) struct View {
    /// What was seen last; `None` before the first look.
    pub(super) seen: Option<Arc<Snapshot>>,
    /// The shortest time between two looks.
    pub(super) floor: Duration,
}

/// The pages in the order of the list, with their addresses.
const TABS: [(&str, &str); 7] = [
    ("/shards", "Shards"),
    ("/hosts", "Hosts"),
    ("/moves", "Moves"),
    ("/balance", "Balance"),
    ("/findings", "Findings"),
    ("/migrations", "Migrations"),
    ("/ids", "IDs"),
];

/// The page, with its current contents.
pub(super) fn render(route: &Route, view: &View) -> Page {
    let seen = view.seen.as_deref();
    let config = seen.and_then(|seen| seen.gathered.config.as_ref());
    let (Some(seen), Some(config)) = (seen, config) else {
        let (tab, title) = tab_of(route);
        return Page::new(
            title,
            tab,
            html! { h1 { (title) } },
            vec![Part::new("nothing", nothing_yet(seen))],
        );
    };
    match route {
        Route::Shards {
            shade,
            version,
            sought,
        } => shards::page(seen, config, *shade, *version, sought.as_ref()),
        Route::Shard(shard) => shard::page(seen, config, *shard),
        Route::Hosts => hosts::page(seen, config),
        Route::Moves => moves::page(seen),
        Route::Move(id) => one_move::page(seen, id),
        Route::Balance(spread) => balance::page(seen, *spread),
        Route::Findings => findings::page(seen),
        Route::Migrations => migrations::page(seen),
        Route::Ids { scheme, id } => ids::page(config, scheme, id),
    }
}

fn tab_of(route: &Route) -> (&'static str, &'static str) {
    TABS[match route {
        Route::Shards { .. } | Route::Shard(_) => 0,
        Route::Hosts => 1,
        Route::Moves | Route::Move(_) => 2,
        Route::Balance(_) => 3,
        Route::Findings => 4,
        Route::Migrations => 5,
        Route::Ids { .. } => 6,
    }]
}

fn nothing_yet(seen: Option<&Snapshot>) -> Markup {
    html! {
        @match seen.and_then(|seen| seen.gathered.failure.as_deref()) {
            Some(failure) => div.card.bad {
                h2 { "The config cannot be used" }
                p { (words::text(failure)) }
                p { "Correct it; the page follows. " (words::command("pgshard check")) }
            },
            None => div.card { p { "The hosts are being asked. This page follows as soon as they \
                have answered." } },
        }
    }
}

/// The line about the last look, and how many findings there are: a part of every page.
fn status(view: &View) -> Markup {
    let Some(seen) = view.seen.as_deref() else {
        return html! { "asking the hosts" };
    };
    let silent: Vec<&str> = seen
        .gathered
        .hosts
        .iter()
        .filter(|(_, host)| !host.is_read())
        .map(|(name, _)| name.as_str())
        .collect();
    let findings = seen.findings();
    let count = |one: Severity| {
        findings
            .iter()
            .filter(|finding| finding.severity == one)
            .count()
    };
    let bad = [Severity::Alarm, Severity::Error, Severity::Warning].map(|one| (one, count(one)));
    let took = seen.gathered.took.as_millis();
    html! {
        @if !silent.is_empty() { span.badge.silent { "no answer from " (silent.join(", ")) } " " }
        @for (severity, count) in bad { @if count > 0 {
            a class=(format!("badge {}", severity.as_str())) href="/findings" {
                (crate::output::counted(count, severity.as_str())) } " "
        } }
        span { "seen at " time datetime=(seen.at.to_string()) { (words::clock(seen.at)) } " UTC"
            @if seen.moves_at > seen.at {
                ", open moves at "
                time datetime=(seen.moves_at.to_string()) { (words::clock(seen.moves_at)) }
                " UTC"
            }
        }
        span.faint { ", in " (took) " ms, every " (view.floor.as_secs()) " s" }
    }
}

/// The page as a whole document.
pub(super) fn whole(page: &Page, uri: &Uri, view: &View) -> Markup {
    let address = uri.path_and_query().map_or("/", |text| text.as_str());
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (page.title) " · pgshard" }
                link rel="icon" href=(format!("/console.svg?{}", *MARK));
                link rel="stylesheet" href=(format!("/console.css?{}", *MARK));
                script src=(format!("/console.js?{}", *MARK)) defer {}
                noscript { meta http-equiv="refresh" content="30"; }
            }
            body data-page=(address) {
                a.skip href="#main" { "to the content" }
                header {
                    nav aria-label="Pages" {
                        a.brand href="/shards" { "pgshard" }
                        @for (href, words) in TABS {
                            a href=(href) aria-current=[(href == page.tab).then_some("page")] {
                                (words)
                            }
                        }
                    }
                    p #status.live { (status(view)) }
                }
                main #main tabindex="-1" {
                    (page.fixed)
                    div #parts {
                        @for part in &page.parts { section.live id=(part.id) { (part.html) } }
                    }
                }
                footer {
                    span #connection role="status" {}
                    " It reads only: what changes something is a command to type. The same as \
                        JSON: "
                    a href="/api/map" { "/api" } ", for Prometheus: "
                    a href="/metrics" { "/metrics" } "."
                }
            }
        }
    }
}

/// The parts of the page that may be sent to its viewer again, by their IDs; the order of the page
/// is under the key `""`.
pub(super) fn live_parts(page: Page, view: &View) -> BTreeMap<String, String> {
    let order: Vec<&str> = page.parts.iter().map(|part| part.id.as_str()).collect();
    let mut parts = BTreeMap::from([
        (String::new(), order.join(" ")),
        ("status".to_owned(), status(view).into_string()),
    ]);
    parts.extend(
        page.parts
            .into_iter()
            .map(|part| (part.id, part.html.into_string())),
    );
    parts
}

/// The page for an unknown address.
pub(super) fn nothing_here() -> Markup {
    let missing = html! {
        h1 { "Nothing has this address" }
        p { "The pages are " @for (href, words) in TABS { a href=(href) { (words) } " " } }
    };
    let page = Page::new("Nothing here", "", missing, Vec::new());
    whole(
        &page,
        &Uri::from_static("/"),
        &View {
            seen: None,
            floor: Duration::ZERO,
        },
    )
}
