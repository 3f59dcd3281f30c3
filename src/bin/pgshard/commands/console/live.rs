//! A page that follows: its viewer is sent the parts that have changed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use serde::Deserialize;

use super::collect::Viewer;
use super::pages::{self, View};
use super::route::Route;
use super::state::ConsoleState;

/// How many viewers follow at a time. More see the page, and load it again to see it change.
const VIEWERS_MAX: usize = 64;

/// How often a viewer that is sent nothing new is sent a sign that the console is there.
const STILL_HERE: Duration = Duration::from_secs(15);

/// What a viewer wants to follow.
#[derive(Debug, Deserialize)]
pub(super) struct LiveQuery {
    /// The page's address, with its query.
    page: String,
}

/// What a viewer follows, and was sent.
struct Following {
    viewer: Viewer,
    route: Route,
    floor: Duration,
    sent: BTreeMap<String, u64>,
}

/// Follows a page: an event for each look that has changed something, with the parts that it
/// changed, by their IDs.
pub(super) async fn events(State(served): State<Arc<ConsoleState>>, uri: Uri) -> Response {
    let asked = Query::<LiveQuery>::try_from_uri(&uri).ok();
    let uri = asked.and_then(|Query(asked)| asked.page.parse::<Uri>().ok());
    let Some(route) = uri.as_ref().and_then(Route::parse) else {
        return (StatusCode::NOT_FOUND, "there is no such page\n").into_response();
    };
    let Some(viewer) = served.collector.view(VIEWERS_MAX) else {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            "too many look at the same time\n",
        )
            .into_response();
    };
    let following = Following {
        viewer,
        route,
        floor: served.collector.floor(),
        sent: BTreeMap::new(),
    };
    Sse::new(following.stream())
        .keep_alive(KeepAlive::new().interval(STILL_HERE))
        .into_response()
}

impl Following {
    fn stream(mut self) -> impl Stream<Item = Result<Event, Infallible>> {
        // The first event is the current state: the page may be older.
        self.viewer.seen.mark_changed();
        stream::unfold(self, |mut following| async move {
            loop {
                following.viewer.seen.changed().await.ok()?;
                let parts = following.changed_parts().await;
                if !parts.is_empty()
                    && let Ok(text) = serde_json::to_string(&parts)
                {
                    return Some((Ok(Event::default().event("parts").data(text)), following));
                }
            }
        })
    }

    /// The parts that differ from those last sent, rendered.
    async fn changed_parts(&mut self) -> BTreeMap<String, String> {
        let view = View {
            seen: self.viewer.seen.borrow_and_update().clone(),
            floor: self.floor,
        };
        let route = self.route.clone();
        let rendered = tokio::task::spawn_blocking(move || {
            let page = pages::render(&route, &view);
            pages::live_parts(page, &view)
        });
        let mut parts = rendered.await.unwrap_or_default();
        parts.retain(|id, html| {
            let mut hasher = DefaultHasher::new();
            html.hash(&mut hasher);
            let hash = hasher.finish();
            self.sent.insert(id.clone(), hash) != Some(hash)
        });
        parts
    }
}
