//! What one tenant is subject to: its limits with where each field comes from, overrides of single keys,
//! and setting use back to zero.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Path;
use axum::extract::RawQuery;
use axum::extract::State;
use axum::extract::rejection::PathRejection;
use axum::http::HeaderMap;
use axum::http::Response;
use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use utoipa::IntoParams;
use utoipa::ToSchema;

use crate::admin::auth;
use crate::admin::auth::Need;
use crate::admin::auth::Principal;
use crate::admin::items::ItemPage;
use crate::admin::json;
use crate::admin::page::Page;
use crate::admin::page::PageQuery;
use crate::admin::schema::AdminProblems;
use crate::admin::write;
use crate::admin::write::ITEM_BYTES_MAX;
use crate::admin::write::WriteAnswer;
use crate::catalogue::change::Change;
use crate::catalogue::document;
use crate::catalogue::explain::EffectiveLimit;
use crate::catalogue::explain::EffectiveOverride;
use crate::catalogue::path::FieldPath;
use crate::catalogue::tree::KeySpec;
use crate::domain::limit::LimitSpec;
use crate::domain::name::Key;
use crate::domain::name::LimitName;
use crate::domain::name::TenantName;
use crate::http::body;
use crate::http::input;
use crate::http::problem::Problem;
use crate::region::state::Region;

type Names<T> = Result<Path<T>, PathRejection>;

/// A limit in the list of a tenant's limits.
#[derive(Debug, Serialize, ToSchema)]
pub struct TenantLimitItem {
    /// Its name.
    pub name: String,
    /// From which entry of the log on use is counted.
    pub epoch: u64,
    /// All fields in force, defaults included.
    #[serde(flatten)]
    pub effective: LimitSpec,
}

/// Who asks about which limit of which tenant, with a token that reaches that far.
struct Asked {
    principal: Principal,
    tenant: TenantName,
    limit: LimitName,
}

impl Asked {
    /// The token is judged by the tenant's name as it was sent: to a token that does not reach it, a tenant
    /// that cannot be, one that is not there and one that is are the same.
    async fn read(
        region: &Region,
        headers: &HeaderMap,
        names: Names<(String, String)>,
        need: for<'n> fn(&'n str) -> Need<'n>,
    ) -> Result<Self, Problem> {
        let names = write::names(names);
        let needed = names
            .as_ref()
            .map_or(Need::Admin, |(tenant, _)| need(tenant));
        let principal = auth::authorize(region, headers, needed).await?;
        let (tenant, limit) = names?;
        Ok(Self {
            principal,
            tenant: write::name("tenant", &tenant)?,
            limit: write::name("limit", &limit)?,
        })
    }

    fn missing(&self) -> Problem {
        Problem::not_found(format!(
            "there is no tenant {:?}, or it has no limit {}",
            self.tenant.as_str(),
            self.limit
        ))
    }

    fn path(&self) -> FieldPath {
        let tenant = FieldPath::root().with("tenants").with(self.tenant.as_str());
        tenant.with("limits").with(self.limit.as_str())
    }
}

fn reads(tenant: &str) -> Need<'_> {
    Need::ReadTenant(tenant)
}

fn changes(tenant: &str) -> Need<'_> {
    Need::Tenant(tenant)
}

fn administers(_: &str) -> Need<'_> {
    Need::Admin
}

/// A tenant's limits as they are in force. Also of tenants that are counted under the default plan.
#[utoipa::path(
    get,
    operation_id = "list_tenant_limits",
    path = "/admin/v1/tenants/{tenant}/limits",
    tag = "tenants",
    security(("bearer" = [])),
    params(("tenant" = String, Path, description = "The tenant"), PageQuery),
    responses((status = 200, description = "In the order of their names", body = ItemPage<TenantLimitItem>), AdminProblems)
)]
pub async fn list(
    State(region): State<Arc<Region>>,
    names: Names<String>,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
) -> Result<Response<Body>, Problem> {
    let name = write::names(names);
    let need = name.as_deref().map_or(Need::Read, Need::ReadTenant);
    auth::authorize(&region, &headers, need).await?;
    let tenant: TenantName = write::name("tenant", &name?)?;
    let page = Page::read(raw.as_deref())?;
    let catalogue = region.replica.catalogue();
    let missing = || Problem::not_found(format!("there is no tenant {:?}", tenant.as_str()));
    let view = catalogue
        .view()
        .tenant(tenant.as_str())
        .ok_or_else(missing)?;
    let limits = view
        .limits()
        .map(|limit| (limit.limit.name.clone(), limit))
        .collect();
    let (items, next) = page.of(&limits, |name, limit| TenantLimitItem {
        name: name.to_string(),
        epoch: limit.epoch,
        effective: catalogue
            .effective(&tenant, name)
            .map(|limit| limit.effective)
            .unwrap_or_default(),
    });
    let version = catalogue.version();
    Ok(write::tagged(
        version,
        &ItemPage {
            items,
            next,
            version,
        },
    ))
}

/// One limit as a tenant has it, and where each of its fields comes from.
#[utoipa::path(
    get,
    operation_id = "get_tenant_limit",
    path = "/admin/v1/tenants/{tenant}/limits/{limit}",
    tag = "tenants",
    security(("bearer" = [])),
    params(
        ("tenant" = String, Path, description = "The tenant"),
        ("limit" = String, Path, description = "The limit"),
    ),
    responses((status = 200, description = "As it is in force", body = EffectiveLimit), AdminProblems)
)]
pub async fn read(
    State(region): State<Arc<Region>>,
    names: Names<(String, String)>,
    headers: HeaderMap,
) -> Result<Response<Body>, Problem> {
    let asked = Asked::read(&region, &headers, names, reads).await?;
    let catalogue = region.replica.catalogue();
    let limit = catalogue
        .effective(&asked.tenant, &asked.limit)
        .ok_or_else(|| asked.missing())?;
    Ok(write::tagged(catalogue.version(), &limit))
}

/// Set what differs for a tenant in one limit. A tenant's own token sets amounts, up to what plan and
/// administrator have set.
#[utoipa::path(
    put,
    operation_id = "put_tenant_limit",
    path = "/admin/v1/tenants/{tenant}/limits/{limit}",
    tag = "tenants",
    security(("bearer" = [])),
    params(
        ("tenant" = String, Path, description = "The tenant"),
        ("limit" = String, Path, description = "The limit"),
        ("If-Match" = Option<String>, Header, description = "The version that must still be in force, in quotes"),
    ),
    request_body = LimitSpec,
    responses((status = 200, description = "It is in force", body = WriteAnswer), AdminProblems)
)]
pub async fn put(
    State(region): State<Arc<Region>>,
    names: Names<(String, String)>,
    headers: HeaderMap,
    request: Body,
) -> Result<WriteAnswer, Problem> {
    let asked = Asked::read(&region, &headers, names, changes).await?;
    let version = write::if_match(&headers)?;
    let bytes = input::body(&headers, request, ITEM_BYTES_MAX).await?;
    let spec =
        document::read_limit(&asked.path(), &json::document(&bytes)?).map_err(write::invalid)?;
    let Asked {
        principal,
        tenant,
        limit,
    } = asked;
    write::propose(
        &region,
        &principal,
        version,
        Change::PutTenantLimit {
            tenant,
            limit,
            spec,
        },
    )
    .await
}

/// Forget what differs for a tenant in one limit, overrides included. A tenant's own token takes back what
/// it has chosen.
#[utoipa::path(
    delete,
    operation_id = "delete_tenant_limit",
    path = "/admin/v1/tenants/{tenant}/limits/{limit}",
    tag = "tenants",
    security(("bearer" = [])),
    params(
        ("tenant" = String, Path, description = "The tenant"),
        ("limit" = String, Path, description = "The limit"),
        ("If-Match" = Option<String>, Header, description = "The version that must still be in force, in quotes"),
    ),
    responses((status = 200, description = "It is gone", body = WriteAnswer), AdminProblems)
)]
pub async fn delete(
    State(region): State<Arc<Region>>,
    names: Names<(String, String)>,
    headers: HeaderMap,
) -> Result<WriteAnswer, Problem> {
    let Asked {
        principal,
        tenant,
        limit,
    } = Asked::read(&region, &headers, names, changes).await?;
    let version = write::if_match(&headers)?;
    write::propose(
        &region,
        &principal,
        version,
        Change::DeleteTenantLimit { tenant, limit },
    )
    .await
}

/// Which key is meant.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct KeyQuery {
    /// The key.
    #[param(min_length = 1, max_length = 512)]
    key: String,
}

fn key_of(raw: Option<&str>) -> Result<Key, Problem> {
    let KeyQuery { key } = input::query(raw)?;
    write::name("key", &key)
}

/// The override of one key, and what the key gets with it.
#[utoipa::path(
    get,
    operation_id = "get_override",
    path = "/admin/v1/tenants/{tenant}/limits/{limit}/override",
    tag = "tenants",
    security(("bearer" = [])),
    params(
        ("tenant" = String, Path, description = "The tenant"),
        ("limit" = String, Path, description = "The limit"),
        KeyQuery,
    ),
    responses((status = 200, description = "As written, and in force", body = EffectiveOverride), AdminProblems)
)]
pub async fn read_override(
    State(region): State<Arc<Region>>,
    names: Names<(String, String)>,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
) -> Result<Response<Body>, Problem> {
    let asked = Asked::read(&region, &headers, names, reads).await?;
    let key = key_of(raw.as_deref())?;
    let catalogue = region.replica.catalogue();
    let now = region.clock.now();
    let found = catalogue.effective_override(&asked.tenant, &asked.limit, &key, now);
    let found = found.ok_or_else(|| Problem::not_found("this key has no override"))?;
    Ok(write::tagged(catalogue.version(), &found))
}

/// Set what differs for one key. A tenant's own token sets amounts and an end, up to what plan and
/// administrator have set.
#[utoipa::path(
    put,
    path = "/admin/v1/tenants/{tenant}/limits/{limit}/override",
    tag = "tenants",
    security(("bearer" = [])),
    params(
        ("tenant" = String, Path, description = "The tenant"),
        ("limit" = String, Path, description = "The limit"),
        KeyQuery,
        ("If-Match" = Option<String>, Header, description = "The version that must still be in force, in quotes"),
    ),
    request_body = KeySpec,
    responses((status = 200, description = "It is in force", body = WriteAnswer), AdminProblems)
)]
pub async fn put_override(
    State(region): State<Arc<Region>>,
    names: Names<(String, String)>,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
    request: Body,
) -> Result<WriteAnswer, Problem> {
    let asked = Asked::read(&region, &headers, names, changes).await?;
    let key = key_of(raw.as_deref())?;
    let version = write::if_match(&headers)?;
    let bytes = input::body(&headers, request, ITEM_BYTES_MAX).await?;
    let path = asked.path().with("keys").with(key.as_str());
    let spec = document::read_override(&path, &json::document(&bytes)?).map_err(write::invalid)?;
    let Asked {
        principal,
        tenant,
        limit,
    } = asked;
    write::propose(
        &region,
        &principal,
        version,
        Change::PutOverride {
            tenant,
            limit,
            key,
            spec,
        },
    )
    .await
}

/// Forget the override of one key. A tenant's own token takes back its own.
#[utoipa::path(
    delete,
    path = "/admin/v1/tenants/{tenant}/limits/{limit}/override",
    tag = "tenants",
    security(("bearer" = [])),
    params(
        ("tenant" = String, Path, description = "The tenant"),
        ("limit" = String, Path, description = "The limit"),
        KeyQuery,
        ("If-Match" = Option<String>, Header, description = "The version that must still be in force, in quotes"),
    ),
    responses((status = 200, description = "It is gone", body = WriteAnswer), AdminProblems)
)]
pub async fn delete_override(
    State(region): State<Arc<Region>>,
    names: Names<(String, String)>,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
) -> Result<WriteAnswer, Problem> {
    let Asked {
        principal,
        tenant,
        limit,
    } = Asked::read(&region, &headers, names, changes).await?;
    let key = key_of(raw.as_deref())?;
    let version = write::if_match(&headers)?;
    write::propose(
        &region,
        &principal,
        version,
        Change::DeleteOverride { tenant, limit, key },
    )
    .await
}

/// What goes back to zero.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResetRequest {
    /// Use of this key alone; all of the limit when absent.
    #[serde(default, deserialize_with = "present")]
    #[schema(nullable = false, min_length = 1, max_length = 512)]
    pub key: Option<String>,
}

/// A field that is absent or right: a null that was meant to be a key must not reset everything.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    String::deserialize(deserializer).map(Some)
}

/// Set use back to zero: a new epoch begins, whatever arrives late.
#[utoipa::path(
    post,
    operation_id = "reset_use",
    path = "/admin/v1/tenants/{tenant}/limits/{limit}/reset",
    tag = "tenants",
    security(("bearer" = [])),
    params(
        ("tenant" = String, Path, description = "The tenant"),
        ("limit" = String, Path, description = "The limit"),
        ("If-Match" = Option<String>, Header, description = "The version that must still be in force, in quotes"),
    ),
    request_body = ResetRequest,
    responses((status = 200, description = "Use is zero", body = WriteAnswer), AdminProblems)
)]
pub async fn reset(
    State(region): State<Arc<Region>>,
    names: Names<(String, String)>,
    headers: HeaderMap,
    request: Body,
) -> Result<WriteAnswer, Problem> {
    let Asked {
        principal,
        tenant,
        limit,
    } = Asked::read(&region, &headers, names, administers).await?;
    let version = write::if_match(&headers)?;
    let bytes = input::body(&headers, request, body::BODY_BYTES_MAX).await?;
    let request: ResetRequest = match bytes.trim_ascii_start().first() {
        None => ResetRequest::default(),
        Some(b'{') => body::parse(&bytes)?,
        // Serde would take a list for the fields of a struct, and an empty one for a reset of everything.
        Some(_) => {
            return Err(Problem::malformed(
                "the body is an object with a key, or empty",
            ));
        }
    };
    let key = request
        .key
        .map(|key| write::name("key", &key))
        .transpose()?;
    write::propose(
        &region,
        &principal,
        version,
        Change::Reset { tenant, limit, key },
    )
    .await
}
