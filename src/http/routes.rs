//! The routes of the check listener, and their OpenAPI document.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::RawQuery;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::Response;
use axum::http::StatusCode;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::any;
use axum::routing::get;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::check;
use crate::http::gateway;
use crate::http::holds;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::http::refund;
use crate::http::settle;
use crate::http::usage;
use crate::region::state::Region;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Highwater",
        description = "Quotas for services in several regions: checks, holds, refunds and usage."
    ),
    components(schemas(Problem)),
    tags(
        (name = "check", description = "May units be spent?"),
        (name = "holds", description = "Take units now, settle later"),
        (name = "health", description = "Is this region up?"),
    )
)]
struct Document;

/// The routes of the check API with their description.
pub fn described() -> OpenApiRouter<Arc<Region>> {
    // Described as a GET, since a description has no word for any method.
    let (schemas, paths, _) = routes!(gateway::gateway);
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(check::check))
        .routes(routes!(check::batch))
        .routes(routes!(holds::open))
        .routes(routes!(settle::settle))
        .routes(routes!(holds::renew))
        .routes(routes!(settle::release))
        .routes(routes!(refund::refund))
        .routes(routes!(usage::usage))
        .routes((schemas, paths, any(gateway::gateway)))
        .route("/v1/gateway/{profile}/", any(gateway::gateway))
        .route("/v1/gateway/{profile}/{*rest}", any(gateway::gateway))
        .routes(routes!(livez))
        .routes(routes!(readyz))
}

/// The router of the check listener.
pub fn router(region: Arc<Region>) -> Router {
    let (router, document) = described().split_for_parts();
    let document = document.to_json().unwrap_or_default();
    finish(router.route(
        "/openapi.json",
        get(move || async move { crate::http::json(200, document.into_bytes()) }),
    ))
    .with_state(region)
}

/// Gives a router problems for what does not exist.
pub fn finish<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    router
        .fallback(|| async {
            Problem::not_found("there is no such path; GET /openapi.json lists them")
        })
        .method_not_allowed_fallback(|| async {
            Problem::new(
                405,
                Code::MethodNotAllowed,
                "this path has other methods; GET /openapi.json lists them",
            )
        })
}

/// Is the process alive?
#[utoipa::path(get, path = "/livez", tag = "health", responses((status = 200, description = "It is", body = String, content_type = "text/plain")))]
pub async fn livez() -> &'static str {
    "ok\n"
}

/// Can this region serve? Add `?verbose` for each condition.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "health",
    responses(
        (status = 200, description = "It can", body = String, content_type = "text/plain"),
        (status = 503, description = "It cannot, or is draining", body = String, content_type = "text/plain"),
    )
)]
pub async fn readyz(
    State(region): State<Arc<Region>>,
    RawQuery(query): RawQuery,
) -> Response<Body> {
    let conditions = region.readiness();
    let ready = conditions.iter().all(|(_, met)| *met);
    let verbose = query.is_some_and(|query| {
        query
            .split('&')
            .any(|part| part == "verbose" || part.starts_with("verbose="))
    });
    let mut text = String::new();
    if verbose || !ready {
        for (name, met) in &conditions {
            text.push_str(if *met { "[+]" } else { "[-]" });
            text.push_str(name);
            text.push_str(if *met { " ok\n" } else { " failed\n" });
        }
    }
    text.push_str(if ready { "ok\n" } else { "not ready\n" });
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let mut response = (status, text).into_response();
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
