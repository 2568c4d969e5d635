//! Operating a region: refusals, audit, draining, the manual clock, metrics, backup.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::RawQuery;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::HeaderValue;
use axum::http::Response;
use axum::http::header;
use serde::Deserialize;
use serde::Serialize;
use tokio::io::AsyncReadExt;
use utoipa::IntoParams;
use utoipa::ToSchema;

use crate::admin::auth;
use crate::admin::auth::Need;
use crate::domain::duration;
use crate::domain::limit::AMOUNT_MAX;
use crate::domain::time::Span;
use crate::http::body;
use crate::http::input;
use crate::http::problem::Problem;
use crate::region::rejections::Rejection;
use crate::region::rejections::Wanted;
use crate::region::state::Region;
use crate::telemetry::metrics::Format;

/// Refusals in one answer.
const REJECTIONS_MAX: usize = 1000;

/// Which refusals are asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RejectionsQuery {
    /// Of this tenant alone.
    #[param(nullable = false)]
    tenant: Option<String>,
    /// Of this key alone.
    #[param(nullable = false)]
    key: Option<String>,
    /// Of this limit alone.
    #[param(nullable = false)]
    limit: Option<String>,
}

/// The newest refusals.
#[derive(Debug, Serialize, ToSchema)]
pub struct RejectionsAnswer {
    /// Newest first.
    pub rejections: Vec<Rejection>,
}

/// The newest refusals, newest first.
#[utoipa::path(
    get,
    path = "/admin/v1/rejections",
    tag = "operations",
    security(("bearer" = [])),
    params(RejectionsQuery),
    responses((status = 200, description = "Newest first", body = RejectionsAnswer), crate::admin::schema::AdminProblems)
)]
pub async fn rejections(
    State(region): State<Arc<Region>>,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
) -> Result<Json<RejectionsAnswer>, Problem> {
    let wanted: Result<RejectionsQuery, Problem> = input::query(raw.as_deref());
    // Who may not ask learns nothing of what was wrong with the question.
    let tenant = wanted
        .as_ref()
        .ok()
        .and_then(|wanted| wanted.tenant.as_deref());
    auth::authorize(
        &region,
        &headers,
        tenant.map_or(Need::Read, Need::ReadTenant),
    )
    .await?;
    let wanted = wanted?;
    let wanted = Wanted {
        tenant: wanted.tenant.as_deref(),
        limit: wanted.limit.as_deref(),
        key: wanted.key.as_deref(),
    };
    Ok(Json(RejectionsAnswer {
        rejections: region.rejections.newest(&wanted, REJECTIONS_MAX),
    }))
}

/// Which part of the audit is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    /// Changes after this index.
    #[param(nullable = false, maximum = 9_007_199_254_740_991_u64)]
    after: Option<u64>,
    /// At most so many; 1000 at most.
    #[param(nullable = false, minimum = 1, maximum = 1000)]
    page_size: Option<u32>,
}

/// One change.
#[derive(Debug, Serialize, ToSchema)]
pub struct AuditEntry {
    /// Its place in the log.
    pub index: u64,
    /// When, in Unix milliseconds.
    pub at_ms: i64,
    /// Who made it.
    pub author: String,
    /// What it did.
    pub summary: String,
}

/// Changes, oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct AuditAnswer {
    /// The changes.
    pub audit: Vec<AuditEntry>,
    /// `after` of the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// Who changed what.
#[utoipa::path(
    get,
    path = "/admin/v1/audit",
    tag = "operations",
    security(("bearer" = [])),
    params(AuditQuery),
    responses((status = 200, description = "Oldest first", body = AuditAnswer), crate::admin::schema::AdminProblems)
)]
pub async fn audit(
    State(region): State<Arc<Region>>,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
) -> Result<Json<AuditAnswer>, Problem> {
    auth::authorize(&region, &headers, Need::Read).await?;
    let wanted: AuditQuery = input::query(raw.as_deref())?;
    let page_size = wanted.page_size.unwrap_or(100);
    if !(1..=1000).contains(&page_size) {
        return Err(Problem::malformed("page_size: 1 to 1000"));
    }
    let after = wanted.after.unwrap_or(0);
    if after > AMOUNT_MAX {
        return Err(Problem::malformed(
            "after: an integer up to 9007199254740991",
        ));
    }
    let rows = {
        let core = region.replica.core();
        core.machine
            .audit(after, usize::try_from(page_size).unwrap_or(usize::MAX))
    };
    let full = rows.len() >= usize::try_from(page_size).unwrap_or(usize::MAX);
    let next = rows.last().filter(|_| full).map(|row| row.index);
    let audit = rows
        .into_iter()
        .map(|row| AuditEntry {
            index: row.index,
            at_ms: row.at.as_unix_ms(),
            author: row.author,
            summary: row.summary,
        })
        .collect();
    Ok(Json(AuditAnswer { audit, next }))
}

/// How long a region wants no traffic.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// Then it wants traffic again by itself, as in `10m`; at most 24 hours. Absent: until it is resumed.
    #[serde(default)]
    #[schema(example = "10m")]
    pub ttl: Option<String>,
}

/// The longest drain that ends by itself.
const DRAIN_MAX: Span = Span::from_seconds(24 * 60 * 60);

/// Whether a region wants traffic.
#[derive(Debug, Serialize, ToSchema)]
pub struct DrainAnswer {
    /// The region.
    pub region: String,
    /// Whether it wants no more traffic.
    pub draining: bool,
}

/// Say that this region wants no more traffic; it goes on answering.
#[utoipa::path(
    post,
    path = "/admin/v1/cluster/drain",
    tag = "operations",
    security(("bearer" = [])),
    request_body = Option<DrainRequest>,
    responses((status = 200, description = "/readyz now says no", body = DrainAnswer), crate::admin::schema::AdminProblems)
)]
pub async fn drain(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
    request: Body,
) -> Result<Json<DrainAnswer>, Problem> {
    auth::authorize(&region, &headers, Need::Admin).await?;
    let bytes = input::body(&headers, request, body::BODY_BYTES_MAX).await?;
    let wanted: DrainRequest = if matches!(bytes.trim_ascii(), b"" | b"null") {
        DrainRequest::default()
    } else {
        body::parse(&bytes)?
    };
    let ttl = wanted.ttl.as_deref().map(duration::parse).transpose();
    let ttl = ttl.map_err(|error| Problem::malformed(format!("ttl: {error}")))?;
    if ttl.is_some_and(|ttl| ttl.is_zero() || ttl > DRAIN_MAX) {
        return Err(Problem::malformed("ttl: more than 0s and at most 24h"));
    }
    region.drain_for(ttl);
    region.flush_now().await;
    tracing::info!(
        ttl_ms = ttl.map(Span::as_ms_ceil),
        "draining, asked by the admin API"
    );
    Ok(is_draining(&region))
}

/// Say that this region wants traffic again.
#[utoipa::path(
    post,
    path = "/admin/v1/cluster/resume",
    tag = "operations",
    security(("bearer" = [])),
    responses((status = 200, description = "/readyz says yes again", body = DrainAnswer), crate::admin::schema::AdminProblems)
)]
pub async fn resume(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
) -> Result<Json<DrainAnswer>, Problem> {
    auth::authorize(&region, &headers, Need::Admin).await?;
    region.resume();
    tracing::info!("resumed, asked by the admin API");
    Ok(is_draining(&region))
}

fn is_draining(region: &Region) -> Json<DrainAnswer> {
    Json(DrainAnswer {
        region: region.name.to_string(),
        draining: region.is_draining(),
    })
}

/// Where the manual clock goes: one of the two.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClockRequest {
    /// To this time.
    #[schema(nullable = false, minimum = 0)]
    pub unix_ms: Option<i64>,
    /// Ahead by this much.
    #[schema(nullable = false, minimum = 0)]
    pub advance_ms: Option<u64>,
}

/// What time it is then.
#[derive(Debug, Serialize, ToSchema)]
pub struct ClockAnswer {
    /// Region time, in Unix milliseconds. It does not go back by less than an hour.
    pub unix_ms: i64,
}

/// Move the manual clock.
#[utoipa::path(
    put,
    path = "/admin/v1/clock",
    tag = "operations",
    security(("bearer" = [])),
    request_body = ClockRequest,
    responses((status = 200, description = "It was moved", body = ClockAnswer), crate::admin::schema::AdminProblems)
)]
pub async fn clock(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
    request: Body,
) -> Result<Json<ClockAnswer>, Problem> {
    auth::authorize(&region, &headers, Need::Admin).await?;
    if !region.clock.is_manual() {
        return Err(Problem::not_found(
            "the clock is the real one; start with --manual-clock to move it",
        ));
    }
    let bytes = input::body(&headers, request, body::BODY_BYTES_MAX).await?;
    let wanted: ClockRequest = body::parse(&bytes)?;
    let moved = match (wanted.unix_ms, wanted.advance_ms) {
        (Some(unix_ms), None) => region.clock.set(unix_ms),
        (None, Some(advance_ms)) => region.clock.advance(advance_ms),
        _ => return Err(Problem::malformed("say either unix_ms or advance_ms")),
    };
    let now = moved.map_err(|error| Problem::malformed(error.to_string()))?;
    region.note_clock_set();
    Ok(Json(ClockAnswer {
        unix_ms: now.as_unix_ms(),
    }))
}

/// All metrics, as Prometheus text or, when asked for, OpenMetrics.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "operations",
    responses(
        (status = 200, description = "All metrics", body = String, content_type = "text/plain"),
        (status = 401, description = "The metrics token is wanted", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn metrics(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
) -> Result<Response<Body>, Problem> {
    if let Some(token) = &region.metrics_token
        && !input::bearer(&headers).is_some_and(|presented| token.matches(presented))
    {
        return Err(crate::http::access::unauthorized(
            "send Authorization: Bearer and the metrics token",
        )
        .await);
    }
    region.measure();
    let format = Format::accepted(
        headers
            .get(header::ACCEPT)
            .and_then(|accept| accept.to_str().ok()),
    );
    let mut response = Response::new(Body::from(region.metrics.render(format)));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static(format.content_type()),
    );
    Ok(response)
}

/// A backup of all that this region keeps, in one file; `highwater restore` makes a directory of it.
#[utoipa::path(
    get,
    path = "/admin/v1/backup",
    tag = "operations",
    security(("bearer" = [])),
    responses(
        (status = 200, description = "The backup", body = Vec<u8>, content_type = "application/octet-stream"),
        crate::admin::schema::AdminProblems,
    )
)]
pub async fn backup(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
) -> Result<Response<Body>, Problem> {
    auth::authorize(&region, &headers, Need::Admin).await?;
    let failed =
        |error: String| Problem::unavailable(format!("the backup could not be made: {error}"));
    if !region.flush_now().await {
        return Err(failed(
            "the store cannot be written at the moment".to_owned(),
        ));
    }
    // The log stays out of a backup, since a restored region must not vote by it: what it made of the
    // catalogue goes in instead.
    region
        .keep_catalogue()
        .await
        .map_err(|error| failed(error.to_string()))?;
    let path = region.data_dir.join(format!(
        "backup-{:016x}.tmp",
        crate::region::entropy::bits64()
    ));
    let made = region.store.backup(&path).await;
    let opened = match made {
        Ok(_) => tokio::fs::File::open(&path)
            .await
            .map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    // The open file stays readable after its name is gone, and nothing is left behind if the caller goes.
    if let Err(error) = tokio::fs::remove_file(&path).await
        && opened.is_ok()
    {
        tracing::warn!(%error, path = %path.display(), "a backup's temporary file could not be removed");
    }
    let file = opened.map_err(failed)?;
    let chunks = futures_util::stream::unfold(file, |mut file| async move {
        let mut chunk = vec![0; 256 * 1024];
        match file.read(&mut chunk).await {
            Ok(0) => None,
            Ok(length) => {
                chunk.truncate(length);
                Some((Ok(chunk), file))
            }
            Err(error) => Some((Err(error), file)),
        }
    });
    let mut response = Response::new(Body::from_stream(chunks));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
