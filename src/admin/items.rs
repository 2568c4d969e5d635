//! The catalogue item by item: limits of all tenants, plans, tenants.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::Path;
use axum::extract::RawQuery;
use axum::extract::State;
use axum::extract::rejection::PathRejection;
use axum::http::HeaderMap;
use axum::http::Response;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::admin::auth;
use crate::admin::auth::Need;
use crate::admin::auth::Principal;
use crate::admin::json;
use crate::admin::page::Page;
use crate::admin::page::PageQuery;
use crate::admin::schema::AdminProblems;
use crate::admin::write;
use crate::admin::write::ITEM_BYTES_MAX;
use crate::admin::write::WriteAnswer;
use crate::catalogue::change::Change;
use crate::catalogue::change::FieldError;
use crate::catalogue::document;
use crate::catalogue::path::FieldPath;
use crate::catalogue::tree::Plan;
use crate::catalogue::tree::Tenant;
use crate::domain::limit::LimitSpec;
use crate::domain::name::LimitName;
use crate::domain::name::PlanName;
use crate::domain::name::TenantName;
use crate::http::input;
use crate::http::problem::Problem;
use crate::region::state::Region;

/// Names in a path.
pub type Names<T> = Result<Path<T>, PathRejection>;

/// A named item of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct Named<T> {
    /// Its name.
    pub name: String,
    /// What it is.
    #[serde(flatten)]
    pub item: T,
}

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct ItemPage<T> {
    /// In the order of their names.
    pub items: Vec<T>,
    /// `after` of the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next: Option<String>,
    /// The catalogue's version.
    pub version: u64,
}

/// An item with its name.
pub fn named<T>(name: &impl ToString, item: T) -> Named<T> {
    Named {
        name: name.to_string(),
        item,
    }
}

/// 404 for an item that is not there.
pub fn missing(kind: &str, name: &str) -> Problem {
    Problem::not_found(format!("there is no {kind} {name:?}"))
}

/// An administrator, the version expected, and the body as JSON.
///
/// # Errors
/// When one of them is missing or wrong.
pub async fn write_request(
    region: &Region,
    headers: &HeaderMap,
    request: Body,
) -> Result<(Principal, Option<u64>, Value), Problem> {
    let principal = auth::authorize(region, headers, Need::Admin).await?;
    let version = write::if_match(headers)?;
    let bytes = input::body(headers, request, ITEM_BYTES_MAX).await?;
    Ok((principal, version, json::document(&bytes)?))
}

/// Makes a change that has no body.
///
/// # Errors
/// When it is refused, or cannot be written.
pub async fn delete(
    region: &Arc<Region>,
    headers: &HeaderMap,
    change: Change,
) -> Result<WriteAnswer, Problem> {
    let principal = auth::authorize(region, headers, Need::Admin).await?;
    write::propose(region, &principal, write::if_match(headers)?, change).await
}

/// Reads the item `name` of `table`.
///
/// # Errors
/// Every fault in it.
pub fn read<T>(
    reader: impl Fn(&FieldPath, &Value) -> Result<T, Vec<FieldError>>,
    table: &str,
    name: &str,
    value: &Value,
) -> Result<T, Problem> {
    reader(&FieldPath::root().with(table).with(name), value).map_err(write::invalid)
}

/// The limits that hold for all tenants.
#[utoipa::path(
    get,
    operation_id = "list_limits",
    path = "/admin/v1/limits",
    tag = "catalogue",
    security(("bearer" = [])),
    params(PageQuery),
    responses((status = 200, description = "In the order of their names", body = ItemPage<Named<LimitSpec>>), AdminProblems)
)]
pub async fn limits(
    State(region): State<Arc<Region>>,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
) -> Result<Json<ItemPage<Named<LimitSpec>>>, Problem> {
    auth::authorize(&region, &headers, Need::Read).await?;
    let page = Page::read(raw.as_deref())?;
    let catalogue = region.replica.catalogue();
    let (items, next) = page.of(&catalogue.tree().limits, |name, spec| {
        named(name, spec.clone())
    });
    Ok(Json(ItemPage {
        items,
        next,
        version: catalogue.version(),
    }))
}

/// One limit that holds for all tenants, as it was written.
#[utoipa::path(
    get,
    operation_id = "get_limit",
    path = "/admin/v1/limits/{limit}",
    tag = "catalogue",
    security(("bearer" = [])),
    params(("limit" = String, Path, description = "The limit")),
    responses((status = 200, description = "As it was written", body = LimitSpec), AdminProblems)
)]
pub async fn limit(
    State(region): State<Arc<Region>>,
    names: Names<String>,
    headers: HeaderMap,
) -> Result<Response<Body>, Problem> {
    auth::authorize(&region, &headers, Need::Read).await?;
    let name = write::names(names)?;
    let catalogue = region.replica.catalogue();
    let spec = catalogue
        .tree()
        .limits
        .get(name.as_str())
        .ok_or_else(|| missing("limit", &name))?;
    Ok(write::tagged(catalogue.version(), spec))
}

/// Define a limit that holds for all tenants.
#[utoipa::path(
    put,
    path = "/admin/v1/limits/{limit}",
    tag = "catalogue",
    security(("bearer" = [])),
    params(
        ("limit" = String, Path, description = "The limit"),
        ("If-Match" = Option<String>, Header, description = "The version that must still be in force, in quotes"),
    ),
    request_body = LimitSpec,
    responses((status = 200, description = "It is in force", body = WriteAnswer), AdminProblems)
)]
pub async fn put_limit(
    State(region): State<Arc<Region>>,
    names: Names<String>,
    headers: HeaderMap,
    request: Body,
) -> Result<WriteAnswer, Problem> {
    let (principal, version, value) = write_request(&region, &headers, request).await?;
    let limit: LimitName = write::name("limit", &write::names(names)?)?;
    let spec = read(document::read_limit, "limits", limit.as_str(), &value)?;
    write::propose(
        &region,
        &principal,
        version,
        Change::PutLimit { limit, spec },
    )
    .await
}

/// Delete a limit that holds for all tenants.
#[utoipa::path(
    delete,
    path = "/admin/v1/limits/{limit}",
    tag = "catalogue",
    security(("bearer" = [])),
    params(
        ("limit" = String, Path, description = "The limit"),
        ("If-Match" = Option<String>, Header, description = "The version that must still be in force, in quotes"),
    ),
    responses((status = 200, description = "It is gone", body = WriteAnswer), AdminProblems)
)]
pub async fn delete_limit(
    State(region): State<Arc<Region>>,
    names: Names<String>,
    headers: HeaderMap,
) -> Result<WriteAnswer, Problem> {
    auth::authorize(&region, &headers, Need::Admin).await?;
    let name = write::names(names)?;
    let limit: LimitName = name.parse().map_err(|_| missing("limit", &name))?;
    delete(&region, &headers, Change::DeleteLimit { limit }).await
}

/// The plans.
#[utoipa::path(
    get,
    operation_id = "list_plans",
    path = "/admin/v1/plans",
    tag = "catalogue",
    security(("bearer" = [])),
    params(PageQuery),
    responses((status = 200, description = "In the order of their names", body = ItemPage<Named<Plan>>), AdminProblems)
)]
pub async fn plans(
    State(region): State<Arc<Region>>,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
) -> Result<Json<ItemPage<Named<Plan>>>, Problem> {
    auth::authorize(&region, &headers, Need::Read).await?;
    let page = Page::read(raw.as_deref())?;
    let catalogue = region.replica.catalogue();
    let (items, next) = page.of(&catalogue.tree().plans, |name, plan| {
        named(name, plan.clone())
    });
    Ok(Json(ItemPage {
        items,
        next,
        version: catalogue.version(),
    }))
}

/// One plan.
#[utoipa::path(
    get,
    operation_id = "get_plan",
    path = "/admin/v1/plans/{plan}",
    tag = "catalogue",
    security(("bearer" = [])),
    params(("plan" = String, Path, description = "The plan")),
    responses((status = 200, description = "As it was written", body = Plan), AdminProblems)
)]
pub async fn plan(
    State(region): State<Arc<Region>>,
    names: Names<String>,
    headers: HeaderMap,
) -> Result<Response<Body>, Problem> {
    auth::authorize(&region, &headers, Need::Read).await?;
    let name = write::names(names)?;
    let catalogue = region.replica.catalogue();
    let plan = catalogue
        .tree()
        .plans
        .get(name.as_str())
        .ok_or_else(|| missing("plan", &name))?;
    Ok(write::tagged(catalogue.version(), plan))
}

/// Define a plan, as a whole.
#[utoipa::path(
    put,
    path = "/admin/v1/plans/{plan}",
    tag = "catalogue",
    security(("bearer" = [])),
    params(
        ("plan" = String, Path, description = "The plan"),
        ("If-Match" = Option<String>, Header, description = "The version that must still be in force, in quotes"),
    ),
    request_body = Plan,
    responses((status = 200, description = "It is in force", body = WriteAnswer), AdminProblems)
)]
pub async fn put_plan(
    State(region): State<Arc<Region>>,
    names: Names<String>,
    headers: HeaderMap,
    request: Body,
) -> Result<WriteAnswer, Problem> {
    let (principal, version, value) = write_request(&region, &headers, request).await?;
    let plan: PlanName = write::name("plan", &write::names(names)?)?;
    let definition = read(document::read_plan, "plans", plan.as_str(), &value)?;
    write::propose(
        &region,
        &principal,
        version,
        Change::PutPlan { plan, definition },
    )
    .await
}

/// Delete a plan that nobody is on.
#[utoipa::path(
    delete,
    path = "/admin/v1/plans/{plan}",
    tag = "catalogue",
    security(("bearer" = [])),
    params(
        ("plan" = String, Path, description = "The plan"),
        ("If-Match" = Option<String>, Header, description = "The version that must still be in force, in quotes"),
    ),
    responses((status = 200, description = "It is gone", body = WriteAnswer), AdminProblems)
)]
pub async fn delete_plan(
    State(region): State<Arc<Region>>,
    names: Names<String>,
    headers: HeaderMap,
) -> Result<WriteAnswer, Problem> {
    auth::authorize(&region, &headers, Need::Admin).await?;
    let name = write::names(names)?;
    let plan: PlanName = name.parse().map_err(|_| missing("plan", &name))?;
    delete(&region, &headers, Change::DeletePlan { plan }).await
}

/// The tenants that the catalogue names.
#[utoipa::path(
    get,
    operation_id = "list_tenants",
    path = "/admin/v1/tenants",
    tag = "catalogue",
    security(("bearer" = [])),
    params(PageQuery),
    responses((status = 200, description = "In the order of their names", body = ItemPage<Named<Tenant>>), AdminProblems)
)]
pub async fn tenants(
    State(region): State<Arc<Region>>,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
) -> Result<Json<ItemPage<Named<Tenant>>>, Problem> {
    auth::authorize(&region, &headers, Need::Read).await?;
    let page = Page::read(raw.as_deref())?;
    let catalogue = region.replica.catalogue();
    let (items, next) = page.of(&catalogue.tree().tenants, |name, tenant| {
        named(name, Tenant::clone(tenant))
    });
    Ok(Json(ItemPage {
        items,
        next,
        version: catalogue.version(),
    }))
}

/// One tenant: its plan, its calendar, and what differs for it.
#[utoipa::path(
    get,
    operation_id = "get_tenant",
    path = "/admin/v1/tenants/{tenant}",
    tag = "catalogue",
    security(("bearer" = [])),
    params(("tenant" = String, Path, description = "The tenant")),
    responses((status = 200, description = "As it was written", body = Tenant), AdminProblems)
)]
pub async fn tenant(
    State(region): State<Arc<Region>>,
    names: Names<String>,
    headers: HeaderMap,
) -> Result<Response<Body>, Problem> {
    let name = write::names(names);
    let need = name.as_deref().map_or(Need::Read, Need::ReadTenant);
    auth::authorize(&region, &headers, need).await?;
    let name = name?;
    let catalogue = region.replica.catalogue();
    let tenant = catalogue
        .tree()
        .tenants
        .get(name.as_str())
        .ok_or_else(|| missing("tenant", &name))?;
    Ok(write::tagged(catalogue.version(), tenant))
}

/// Define a tenant, as a whole: limits, overrides and own choices that are not named are gone.
#[utoipa::path(
    put,
    path = "/admin/v1/tenants/{tenant}",
    tag = "catalogue",
    security(("bearer" = [])),
    params(
        ("tenant" = String, Path, description = "The tenant"),
        ("If-Match" = Option<String>, Header, description = "The version that must still be in force, in quotes"),
    ),
    request_body = Tenant,
    responses((status = 200, description = "It is in force", body = WriteAnswer), AdminProblems)
)]
pub async fn put_tenant(
    State(region): State<Arc<Region>>,
    names: Names<String>,
    headers: HeaderMap,
    request: Body,
) -> Result<WriteAnswer, Problem> {
    let (principal, version, value) = write_request(&region, &headers, request).await?;
    let tenant: TenantName = write::name("tenant", &write::names(names)?)?;
    let definition = read(document::read_tenant, "tenants", tenant.as_str(), &value)?;
    write::propose(
        &region,
        &principal,
        version,
        Change::PutTenant { tenant, definition },
    )
    .await
}

/// Delete a tenant with all its limits and overrides.
#[utoipa::path(
    delete,
    path = "/admin/v1/tenants/{tenant}",
    tag = "catalogue",
    security(("bearer" = [])),
    params(
        ("tenant" = String, Path, description = "The tenant"),
        ("If-Match" = Option<String>, Header, description = "The version that must still be in force, in quotes"),
    ),
    responses((status = 200, description = "It is gone", body = WriteAnswer), AdminProblems)
)]
pub async fn delete_tenant(
    State(region): State<Arc<Region>>,
    names: Names<String>,
    headers: HeaderMap,
) -> Result<WriteAnswer, Problem> {
    auth::authorize(&region, &headers, Need::Admin).await?;
    let name = write::names(names)?;
    let tenant: TenantName = name.parse().map_err(|_| missing("tenant", &name))?;
    delete(&region, &headers, Change::DeleteTenant { tenant }).await
}
