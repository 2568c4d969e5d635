//! Failures injected on purpose, for drills and tests; each ends by itself.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::Path;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::StatusCode;
use serde::Deserialize;
use serde::Serialize;
use utoipa::ToSchema;

use crate::admin::auth;
use crate::admin::auth::Need;
use crate::domain::duration;
use crate::http::body;
use crate::http::input;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::region::faults::Fault;
use crate::region::faults::FaultKind;
use crate::region::faults::TTL_MAX;
use crate::region::state::Region;

/// The largest offset of an injected clock fault.
const OFFSET_MS_MAX: i64 = 86_400_000;

/// A fault to inject.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultRequest {
    /// What goes wrong. `partition`, `latency` and `loss` need peers, which this build does not have.
    pub kind: FaultKind,
    /// The peer that it concerns.
    #[schema(nullable = false)]
    pub peer: Option<String>,
    /// `both`, `in` or `out`.
    #[schema(nullable = false)]
    pub direction: Option<String>,
    /// `clock_offset`: how far the wall clock is off, at most a day.
    #[schema(nullable = false, minimum = -86_400_000, maximum = 86_400_000)]
    pub offset_ms: Option<i64>,
    /// How long, at most 15m.
    #[schema(example = "30s")]
    pub ttl: String,
}

/// The faults that run.
#[derive(Debug, Serialize, ToSchema)]
pub struct FaultsAnswer {
    /// In the order in which they began.
    pub faults: Vec<Fault>,
}

async fn faults_allowed(
    region: &Region,
    headers: &HeaderMap,
    need: Need<'_>,
) -> Result<(), Problem> {
    auth::authorize(region, headers, need).await?;
    if region.faults_enabled {
        return Ok(());
    }
    Err(Problem::not_found(
        "faults are off here: set faults.enabled = true to inject some",
    ))
}

/// The faults that run.
#[utoipa::path(
    get,
    path = "/admin/v1/faults",
    tag = "operations",
    security(("bearer" = [])),
    responses((status = 200, description = "Those that run", body = FaultsAnswer), crate::admin::schema::AdminProblems)
)]
pub async fn faults(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
) -> Result<Json<FaultsAnswer>, Problem> {
    faults_allowed(&region, &headers, Need::Read).await?;
    Ok(Json(FaultsAnswer {
        faults: region.faults.list(),
    }))
}

/// Inject a fault; it ends by itself.
#[utoipa::path(
    post,
    path = "/admin/v1/faults",
    tag = "operations",
    security(("bearer" = [])),
    request_body = FaultRequest,
    responses((status = 200, description = "It runs", body = Fault), crate::admin::schema::AdminProblems)
)]
pub async fn begin_fault(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
    request: Body,
) -> Result<Json<Fault>, Problem> {
    faults_allowed(&region, &headers, Need::Admin).await?;
    let bytes = input::body(&headers, request, body::BODY_BYTES_MAX).await?;
    let wanted: FaultRequest = body::parse(&bytes)?;
    let ttl = duration::parse(&wanted.ttl)
        .map_err(|error| Problem::malformed(format!("ttl: {error}")))?;
    if ttl.is_zero() || ttl > TTL_MAX {
        return Err(Problem::malformed("ttl: more than 0s and at most 15m"));
    }
    match wanted.kind {
        FaultKind::Partition | FaultKind::Latency | FaultKind::Loss => {
            return Err(Problem::new(
                422,
                Code::Invalid,
                "kind: faults between regions are not available in this build",
            ));
        }
        FaultKind::ClockOffset => {
            if !wanted
                .offset_ms
                .is_some_and(|ms| (-OFFSET_MS_MAX..=OFFSET_MS_MAX).contains(&ms))
            {
                return Err(Problem::malformed(
                    "offset_ms: say how far the clock is off, at most a day",
                ));
            }
        }
        FaultKind::StoreErrors | FaultKind::StoreFull => {
            if wanted.offset_ms.is_some() {
                return Err(Problem::malformed("offset_ms: belongs to clock_offset"));
            }
        }
    }
    if wanted.peer.is_some() || wanted.direction.is_some() {
        return Err(Problem::malformed(
            "peer, direction: belong to faults between regions",
        ));
    }
    let begun = region
        .begin_fault(wanted.kind, wanted.offset_ms, ttl, region.clock.now())
        .await;
    match begun {
        Ok(Some(fault)) => Ok(Json(fault)),
        Ok(None) => Err(Problem::new(
            422,
            Code::Invalid,
            "as many faults run as may; end some first",
        )),
        Err(error) => Err(Problem::unavailable(error.to_string())),
    }
}

/// End a fault before its time.
#[utoipa::path(
    delete,
    path = "/admin/v1/faults/{id}",
    tag = "operations",
    security(("bearer" = [])),
    params(("id" = String, Path, description = "The fault")),
    responses((status = 204, description = "It is over"), crate::admin::schema::AdminProblems)
)]
pub async fn end_fault(
    State(region): State<Arc<Region>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    faults_allowed(&region, &headers, Need::Admin).await?;
    let no_fault = || Problem::not_found("no such fault runs");
    let number = id.parse().map_err(|_| no_fault())?;
    match region.end_fault(number).await {
        Ok(true) => Ok(StatusCode::NO_CONTENT),
        Ok(false) => Err(no_fault()),
        Err(error) => Err(Problem::unavailable(error.to_string())),
    }
}
