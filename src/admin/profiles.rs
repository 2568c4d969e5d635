//! Gateway profiles, one by one.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::RawQuery;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::Response;

use crate::admin::auth;
use crate::admin::auth::Need;
use crate::admin::items;
use crate::admin::items::ItemPage;
use crate::admin::items::Named;
use crate::admin::items::Names;
use crate::admin::page::Page;
use crate::admin::page::PageQuery;
use crate::admin::schema::AdminProblems;
use crate::admin::write;
use crate::admin::write::WriteAnswer;
use crate::catalogue::change::Change;
use crate::catalogue::document;
use crate::catalogue::profile::Profile;
use crate::domain::name::ProfileName;
use crate::http::problem::Problem;
use crate::region::state::Region;

/// The gateway profiles.
#[utoipa::path(
    get,
    operation_id = "list_profiles",
    path = "/admin/v1/profiles",
    tag = "catalogue",
    security(("bearer" = [])),
    params(PageQuery),
    responses((status = 200, description = "In the order of their names", body = ItemPage<Named<Profile>>), AdminProblems)
)]
pub async fn profiles(
    State(region): State<Arc<Region>>,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
) -> Result<Json<ItemPage<Named<Profile>>>, Problem> {
    auth::authorize(&region, &headers, Need::Read).await?;
    let page = Page::read(raw.as_deref())?;
    let catalogue = region.replica.catalogue();
    let (items, next) = page.of(&catalogue.tree().profiles, |name, profile| {
        items::named(name, profile.clone())
    });
    Ok(Json(ItemPage {
        items,
        next,
        version: catalogue.version(),
    }))
}

/// One gateway profile.
#[utoipa::path(
    get,
    operation_id = "get_profile",
    path = "/admin/v1/profiles/{profile}",
    tag = "catalogue",
    security(("bearer" = [])),
    params(("profile" = String, Path, description = "The profile")),
    responses((status = 200, description = "As it was written", body = Profile), AdminProblems)
)]
pub async fn profile(
    State(region): State<Arc<Region>>,
    names: Names<String>,
    headers: HeaderMap,
) -> Result<Response<Body>, Problem> {
    auth::authorize(&region, &headers, Need::Read).await?;
    let name = write::names(names)?;
    let catalogue = region.replica.catalogue();
    let profile = catalogue
        .tree()
        .profiles
        .get(name.as_str())
        .ok_or_else(|| items::missing("profile", &name))?;
    Ok(write::tagged(catalogue.version(), profile))
}

/// Define a gateway profile, as a whole.
#[utoipa::path(
    put,
    path = "/admin/v1/profiles/{profile}",
    tag = "catalogue",
    security(("bearer" = [])),
    params(
        ("profile" = String, Path, description = "The profile"),
        ("If-Match" = Option<String>, Header, description = "The version that must still be in force, in quotes"),
    ),
    request_body = Profile,
    responses((status = 200, description = "It is in force", body = WriteAnswer), AdminProblems)
)]
pub async fn put_profile(
    State(region): State<Arc<Region>>,
    names: Names<String>,
    headers: HeaderMap,
    request: Body,
) -> Result<WriteAnswer, Problem> {
    let (principal, version, value) = items::write_request(&region, &headers, request).await?;
    let profile: ProfileName = write::name("profile", &write::names(names)?)?;
    let definition = items::read(document::read_profile, "profiles", profile.as_str(), &value)?;
    write::propose(
        &region,
        &principal,
        version,
        Change::PutProfile {
            profile,
            definition,
        },
    )
    .await
}

/// Delete a gateway profile.
#[utoipa::path(
    delete,
    path = "/admin/v1/profiles/{profile}",
    tag = "catalogue",
    security(("bearer" = [])),
    params(
        ("profile" = String, Path, description = "The profile"),
        ("If-Match" = Option<String>, Header, description = "The version that must still be in force, in quotes"),
    ),
    responses((status = 200, description = "It is gone", body = WriteAnswer), AdminProblems)
)]
pub async fn delete_profile(
    State(region): State<Arc<Region>>,
    names: Names<String>,
    headers: HeaderMap,
) -> Result<WriteAnswer, Problem> {
    auth::authorize(&region, &headers, Need::Admin).await?;
    let name = write::names(names)?;
    let profile: ProfileName = name.parse().map_err(|_| items::missing("profile", &name))?;
    items::delete(&region, &headers, Change::DeleteProfile { profile }).await
}
