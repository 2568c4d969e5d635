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
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::http::body;
use crate::http::input;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::peer::Peers;
use crate::peer::faults::DELAY_MAX;
use crate::peer::faults::LOSS_PERCENT_MAX;
use crate::region::faults::Direction;
use crate::region::faults::Fault;
use crate::region::faults::FaultKind;
use crate::region::faults::FaultPlan;
use crate::region::faults::TTL_MAX;
use crate::region::state::Region;

/// The largest offset of an injected clock fault.
const OFFSET_MS_MAX: i64 = 86_400_000;

/// A fault to inject.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultRequest {
    /// What goes wrong.
    pub kind: FaultKind,
    /// `partition`, `latency`, `loss`: the peer that it concerns; absent: all.
    #[schema(nullable = false, example = "eu-west-1")]
    pub peer: Option<String>,
    /// `partition`: which way it cuts; absent: both.
    #[schema(nullable = false)]
    pub direction: Option<Direction>,
    /// `latency`: added to the way of every frame that this region sends, at most 2s.
    #[schema(nullable = false, example = "40ms")]
    pub delay: Option<String>,
    /// `latency`: each frame is delayed by up to this much more, at most 2s; order is kept.
    #[schema(nullable = false)]
    pub jitter: Option<String>,
    /// `loss`: of a hundred frames that this region sends, so many vanish.
    #[schema(nullable = false, minimum = 1, maximum = 100)]
    pub loss_percent: Option<u8>,
    /// `clock_offset`: how far the wall clock is off, at most a day.
    #[schema(nullable = false, minimum = -86_400_000, maximum = 86_400_000)]
    pub offset_ms: Option<i64>,
    /// How long, at most 15m.
    #[schema(example = "30s")]
    pub ttl: String,
}

impl FaultRequest {
    /// The first field that is given and does not belong to the kind.
    fn stray(&self) -> Option<&'static str> {
        let on_links = [FaultKind::Partition, FaultKind::Latency, FaultKind::Loss];
        let fields: [(&str, bool, &[FaultKind]); 6] = [
            ("peer", self.peer.is_some(), &on_links),
            ("direction", self.direction.is_some(), &on_links[..1]),
            ("delay", self.delay.is_some(), &on_links[1..2]),
            ("jitter", self.jitter.is_some(), &on_links[1..2]),
            ("loss_percent", self.loss_percent.is_some(), &on_links[2..]),
            (
                "offset_ms",
                self.offset_ms.is_some(),
                &[FaultKind::ClockOffset],
            ),
        ];
        fields
            .into_iter()
            .find(|(_, is_given, kinds)| *is_given && !kinds.contains(&self.kind))
            .map(|(field, ..)| field)
    }

    /// The fault, when every field is within its bounds.
    fn plan(&self) -> Result<FaultPlan, Problem> {
        if let Some(field) = self.stray() {
            return Err(Problem::malformed(format!(
                "{field}: does not belong to this kind of fault"
            )));
        }
        let ttl = duration::parse(&self.ttl)
            .map_err(|error| Problem::malformed(format!("ttl: {error}")))?;
        if ttl.is_zero() || ttl > TTL_MAX {
            return Err(Problem::malformed("ttl: more than 0s and at most 15m"));
        }
        let peer = self.peer.as_deref().map(RegionName::new).transpose();
        let plan = FaultPlan {
            kind: self.kind,
            peer: peer.map_err(|error| Problem::malformed(format!("peer: {error}")))?,
            direction: self.direction,
            delay: delay("delay", self.delay.as_deref())?,
            jitter: delay("jitter", self.jitter.as_deref())?,
            loss_percent: self.loss_percent,
            offset_ms: self.offset_ms,
            ttl,
        };
        match plan.kind {
            FaultKind::Latency if plan.delay.is_none() => {
                Err(Problem::malformed("delay: say how long, as in \"40ms\""))
            }
            FaultKind::Loss
                if !plan
                    .loss_percent
                    .is_some_and(|percent| (1..=LOSS_PERCENT_MAX).contains(&percent)) =>
            {
                Err(Problem::malformed(
                    "loss_percent: say how many of a hundred frames vanish, 1 to 100",
                ))
            }
            FaultKind::ClockOffset
                if !plan
                    .offset_ms
                    .is_some_and(|ms| (-OFFSET_MS_MAX..=OFFSET_MS_MAX).contains(&ms)) =>
            {
                Err(Problem::malformed(
                    "offset_ms: say how far the clock is off, at most a day",
                ))
            }
            FaultKind::Partition => Ok(FaultPlan {
                direction: Some(plan.direction.unwrap_or_default()),
                ..plan
            }),
            FaultKind::Latency
            | FaultKind::Loss
            | FaultKind::ClockOffset
            | FaultKind::StoreErrors
            | FaultKind::StoreFull => Ok(plan),
        }
    }
}

fn delay(field: &str, text: Option<&str>) -> Result<Option<Span>, Problem> {
    let Some(text) = text else { return Ok(None) };
    match duration::parse(text) {
        Ok(span) if span <= DELAY_MAX => Ok(Some(span)),
        Ok(_) => Err(Problem::malformed(format!("{field}: at most {DELAY_MAX}"))),
        Err(error) => Err(Problem::malformed(format!("{field}: {error}"))),
    }
}

/// Whether the regions are there that a fault between regions concerns.
fn check_peer(region: &Region, plan: &FaultPlan) -> Result<(), Problem> {
    if !matches!(
        plan.kind,
        FaultKind::Partition | FaultKind::Latency | FaultKind::Loss
    ) {
        return Ok(());
    }
    let known = region.peers.get().map(Peers::regions).unwrap_or_default();
    let is_known = match &plan.peer {
        Some(peer) => known.contains(peer),
        None => !known.is_empty(),
    };
    if is_known {
        return Ok(());
    }
    let detail = match &plan.peer {
        Some(peer) => format!("peer: {peer} is none of the regions that this one has links to"),
        None => "kind: this region has no links to others".to_owned(),
    };
    Err(Problem::new(422, Code::Invalid, detail))
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
    let plan = wanted.plan()?;
    check_peer(&region, &plan)?;
    let begun = region.begin_fault(plan, region.clock.now()).await;
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
