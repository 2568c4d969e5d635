//! The admin API: the catalogue, tokens, and operating a region.

pub mod auth;
pub mod operations;
pub mod schema;

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::Response;
use axum::routing::any;
use axum::routing::post;
use axum::routing::put;

use utoipa_axum::routes;

use crate::catalogue::change::Author;
use crate::catalogue::change::Change;
use crate::catalogue::change::Entry;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::http::routes;
use crate::region::state::Region;

/// The router of the admin listener.
pub fn router(region: Arc<Region>) -> Router {
    let (router, _) = routes::described()
        .routes(routes!(operations::cluster))
        .routes(routes!(operations::rejections))
        .routes(routes!(operations::audit))
        .routes(routes!(operations::drain))
        .routes(routes!(operations::resume))
        .routes(routes!(operations::faults, operations::begin_fault))
        .routes(routes!(operations::end_fault))
        .routes(routes!(operations::clock))
        .routes(routes!(operations::metrics))
        .routes(routes!(operations::backup))
        .split_for_parts();
    let router = router
        .route("/admin/v1/catalogue", put(replace).patch(patch))
        .route("/admin/v1/cluster/leader", post(operations::not_in_this_build))
        .route("/admin/v1/cluster/leader-preference", any(operations::not_in_this_build))
        .route("/admin/v1/cluster/regions/{region}", any(operations::not_in_this_build));
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
