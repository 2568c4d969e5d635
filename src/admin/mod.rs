//! The admin API: the catalogue, tokens, and operating a region.
//!
//! - [`catalogue`], [`items`], [`tenant_limits`], [`profiles`]: which limits there are; all changes go through [`mod@write`].
//! - [`tokens`], [`auth`]: who may do what.
//! - [`cluster`], [`moves`]: how the regions are; planned moves. [`ledger`]: how strict windows were used.
//! - [`operations`]: refusals, audit, draining, clock, metrics, backup. [`faults`]: failures on purpose.
//!
//! A handler finds out who asks, reads its input, and only then looks at anything.

pub mod auth;
pub mod catalogue;
pub mod cluster;
pub mod faults;
pub mod items;
pub mod json;
pub mod ledger;
pub mod moves;
pub mod operations;
pub mod page;
pub mod profiles;
pub mod schema;
pub mod tenant_limits;
#[cfg(test)]
mod tests;
pub mod tokens;
pub mod write;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::HttpAuthScheme;
use utoipa::openapi::security::HttpBuilder;
use utoipa::openapi::security::SecurityScheme;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http;
use crate::http::routes;
use crate::region::state::Region;

/// The routes of the admin listener, which has those of the check API too, with their description.
pub fn described() -> (Router<Arc<Region>>, OpenApi) {
    let (router, mut document) = tenant_routes(catalogue_routes(routes::described()))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::revoke))
        .routes(routes!(cluster::cluster))
        .routes(routes!(moves::transfer))
        .routes(routes!(moves::prefer))
        .routes(routes!(moves::take_in, moves::let_go))
        .routes(routes!(operations::rejections))
        .routes(routes!(operations::audit))
        .routes(routes!(operations::drain))
        .routes(routes!(operations::resume))
        .routes(routes!(faults::faults, faults::begin_fault))
        .routes(routes!(faults::end_fault))
        .routes(routes!(operations::clock))
        .routes(routes!(operations::metrics))
        .routes(routes!(operations::backup))
        .split_for_parts();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    let components = document.components.get_or_insert_default();
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    (router, document)
}

fn catalogue_routes(router: OpenApiRouter<Arc<Region>>) -> OpenApiRouter<Arc<Region>> {
    router
        .routes(routes!(
            catalogue::read,
            catalogue::replace,
            catalogue::patch
        ))
        .routes(routes!(items::limits))
        .routes(routes!(items::limit, items::put_limit, items::delete_limit))
        .routes(routes!(items::plans))
        .routes(routes!(items::plan, items::put_plan, items::delete_plan))
        .routes(routes!(profiles::profiles))
        .routes(routes!(
            profiles::profile,
            profiles::put_profile,
            profiles::delete_profile
        ))
        .routes(routes!(items::tenants))
        .routes(routes!(
            items::tenant,
            items::put_tenant,
            items::delete_tenant
        ))
}

fn tenant_routes(router: OpenApiRouter<Arc<Region>>) -> OpenApiRouter<Arc<Region>> {
    router
        .routes(routes!(tenant_limits::list))
        .routes(routes!(
            tenant_limits::read,
            tenant_limits::put,
            tenant_limits::delete
        ))
        .routes(routes!(
            tenant_limits::read_override,
            tenant_limits::put_override,
            tenant_limits::delete_override
        ))
        .routes(routes!(tenant_limits::reset))
        .routes(routes!(ledger::read))
}

/// The router of the admin listener.
pub fn router(region: Arc<Region>) -> Router {
    let (router, document) = described();
    let document = schema::served(&document);
    let router = router.route(
        "/openapi.json",
        get(move || async move { http::json(200, document) }),
    );
    routes::finish(router).with_state(region)
}
