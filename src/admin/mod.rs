//! The admin API's first thread: the catalogue as a whole, the clock and store faults. Every other route
//! answers 404 until it is built.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::Response;
use axum::routing::post;
use axum::routing::put;

use crate::catalogue::change::Author;
use crate::catalogue::change::Change;
use crate::catalogue::change::Entry;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::http::routes;
use crate::region::state::Region;
use crate::store::StoreFault;

/// The router of the admin listener.
pub fn router(region: Arc<Region>) -> Router {
    let (checks, _) = routes::described().split_for_parts();
    let router = checks
        .route("/admin/v1/catalogue", put(replace).patch(patch))
        .route("/admin/v1/clock", put(clock))
        .route("/admin/v1/faults", post(fault));
    routes::finish(router).with_state(region)
}

async fn replace(State(region): State<Arc<Region>>, body: Bytes) -> Response {
    match serde_json::from_slice(&body) {
        Ok(tree) => propose(&region, Change::Replace { tree }).await,
        Err(error) => Problem::malformed(error.to_string()).into_response(),
    }
}

async fn patch(State(region): State<Arc<Region>>, body: Bytes) -> Response {
    match serde_json::from_slice(&body) {
        Ok(tree) => propose(&region, Change::Patch { tree }).await,
        Err(error) => Problem::malformed(error.to_string()).into_response(),
    }
}

async fn propose(region: &Region, change: Change) -> Response {
    let entry = Entry { author: Author::Operator { token: "config".into() }, expected_version: None, change };
    match region.changes.propose(region.clock.now(), entry).await {
        Ok(applied) => format!("{{\"version\":{}}}", applied.version).into_response(),
        Err(error) => Problem::new(422, Code::Invalid, error.to_string()).into_response(),
    }
}

async fn clock(State(region): State<Arc<Region>>, body: Bytes) -> Response {
    let wanted: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let set = match (wanted["unix_ms"].as_i64(), wanted["advance_ms"].as_u64()) {
        (Some(unix_ms), None) => region.clock.set(unix_ms),
        (None, Some(advance_ms)) => region.clock.advance(advance_ms),
        _ => return Problem::malformed("say unix_ms or advance_ms").into_response(),
    };
    region.note_clock_set();
    match set {
        Ok(now) => format!("{{\"unix_ms\":{}}}", now.as_unix_ms()).into_response(),
        Err(error) => Problem::malformed(error.to_string()).into_response(),
    }
}

async fn fault(State(region): State<Arc<Region>>, body: Bytes) -> Response {
    let wanted: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let fault = if wanted["kind"] == "store_full" { StoreFault::Full } else { StoreFault::Errors };
    match region.store.inject(fault).await {
        Ok(()) => "{\"id\":\"1\"}".into_response(),
        Err(error) => Problem::unavailable(error.to_string()).into_response(),
    }
}
