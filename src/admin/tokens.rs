//! Access tokens: made with a secret that is shown once, listed without it, revoked.
//!
//! A token reads `hw_{scope}_{id}_{secret}`: whoever finds one knows what it is and which to revoke. The
//! store keeps its SHA-256 alone.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::Path;
use axum::extract::RawQuery;
use axum::extract::State;
use axum::extract::rejection::PathRejection;
use axum::http::HeaderMap;
use axum::http::Response;
use serde::Deserialize;
use serde::Serialize;
use utoipa::ToSchema;

use crate::admin::auth;
use crate::admin::auth::Need;
use crate::admin::page::Page;
use crate::admin::page::PageQuery;
use crate::admin::schema::AdminProblems;
use crate::admin::write;
use crate::admin::write::WriteAnswer;
use crate::catalogue::change::Change;
use crate::catalogue::token::NewToken;
use crate::catalogue::token::Scope;
use crate::catalogue::token::TokenRecord;
use crate::catalogue::tree::instant;
use crate::domain::name::TenantName;
use crate::domain::time::Timestamp;
use crate::http;
use crate::http::access;
use crate::http::body;
use crate::http::input;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::region::entropy;
use crate::region::state::Region;

/// Bytes of a token that must not be guessed.
const SECRET_BYTES: usize = 32;
/// Bytes of a token's id.
const ID_BYTES: usize = 8;

/// What a new token is for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// What it may do.
    pub scope: Scope,
    /// Whose it is: needed for `tenant`, narrows `check`.
    #[schema(min_length = 1, max_length = 128)]
    pub tenant: Option<String>,
    /// When it ends by itself.
    #[serde(default, with = "instant")]
    #[schema(value_type = Option<String>, format = DateTime, example = "2027-01-01T00:00:00Z")]
    pub expires_at: Option<Timestamp>,
}

/// A new token.
#[derive(Debug, Serialize, ToSchema)]
pub struct CreatedToken {
    /// The token itself. It is shown here and never again.
    pub token: String,
    /// Names it in lists.
    pub id: String,
    /// What it may do.
    pub scope: Scope,
    /// Whose it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub tenant: Option<TenantName>,
    /// When it ends by itself.
    #[serde(with = "instant", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub expires_at: Option<Timestamp>,
    /// The catalogue's version, which a token does not change.
    pub version: u64,
}

/// A token without itself.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenItem {
    /// Names it.
    pub id: String,
    /// What it may do.
    pub scope: Scope,
    /// Whose it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub tenant: Option<TenantName>,
    /// When it was made.
    #[serde(with = "instant")]
    #[schema(value_type = String)]
    pub created_at: Option<Timestamp>,
    /// When it ends by itself.
    #[serde(with = "instant", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub expires_at: Option<Timestamp>,
    /// Whether it has ended.
    pub expired: bool,
}

/// A page of tokens.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenPage {
    /// In the order of their ids.
    pub tokens: Vec<TokenItem>,
    /// `after` of the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next: Option<String>,
}

fn item(token: &TokenRecord, now: Timestamp) -> TokenItem {
    TokenItem {
        id: token.id.clone(),
        scope: token.scope,
        tenant: token.tenant.clone(),
        created_at: Some(token.created_at),
        expires_at: token.expires_at,
        expired: !token.is_live(now),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// All tokens, without the tokens themselves.
#[utoipa::path(
    get,
    operation_id = "list_tokens",
    path = "/admin/v1/tokens",
    tag = "tokens",
    security(("bearer" = [])),
    params(PageQuery),
    responses((status = 200, description = "In the order of their ids", body = TokenPage), AdminProblems)
)]
pub async fn list(
    State(region): State<Arc<Region>>,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
) -> Result<Json<TokenPage>, Problem> {
    auth::authorize(&region, &headers, Need::Read).await?;
    let page = Page::read(raw.as_deref())?;
    let now = region.clock.now();
    let catalogue = region.replica.catalogue();
    let (tokens, next) = page.of(catalogue.tokens(), |_, token| item(token, now));
    Ok(Json(TokenPage { tokens, next }))
}

/// Make a token. It is shown once.
#[utoipa::path(
    post,
    operation_id = "create_token",
    path = "/admin/v1/tokens",
    tag = "tokens",
    security(("bearer" = [])),
    request_body = TokenRequest,
    responses((status = 200, description = "The token, this once", body = CreatedToken), AdminProblems)
)]
pub async fn create(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
    request: Body,
) -> Result<Response<Body>, Problem> {
    let principal = auth::authorize(&region, &headers, Need::Admin).await?;
    let bytes = input::body(&headers, request, body::BODY_BYTES_MAX).await?;
    let request: TokenRequest = body::parse(&bytes)?;
    let tenant: Option<TenantName> = request
        .tenant
        .map(|name| write::name("tenant", &name))
        .transpose()?;
    let id = hex(&entropy::bytes::<ID_BYTES>());
    let token = format!(
        "hw_{}_{id}_{}",
        request.scope.as_str(),
        hex(&entropy::bytes::<SECRET_BYTES>())
    );
    let new = NewToken {
        id: id.clone(),
        scope: request.scope,
        tenant: tenant.clone(),
        hash: access::hash(&token),
        expires_at: request.expires_at,
    };
    let made = write::propose(
        &region,
        &principal,
        None,
        Change::CreateToken { token: new },
    )
    .await?;
    let answer = CreatedToken {
        token,
        id,
        scope: request.scope,
        tenant,
        expires_at: request.expires_at,
        version: made.version,
    };
    let body = serde_json::to_vec(&answer)
        .map_err(|_| Problem::new(500, Code::Internal, "the answer cannot be written"))?;
    Ok(http::json(200, body))
}

/// End a token at once.
#[utoipa::path(
    delete,
    operation_id = "revoke_token",
    path = "/admin/v1/tokens/{id}",
    tag = "tokens",
    security(("bearer" = [])),
    params(("id" = String, Path, description = "The token's id")),
    responses((status = 200, description = "It has ended", body = WriteAnswer), AdminProblems)
)]
pub async fn revoke(
    State(region): State<Arc<Region>>,
    names: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<WriteAnswer, Problem> {
    let principal = auth::authorize(&region, &headers, Need::Admin).await?;
    let id = write::names(names)?;
    write::propose(&region, &principal, None, Change::RevokeToken { id }).await
}
