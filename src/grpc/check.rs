//! `ShouldRateLimit`: may this call pass?

use std::sync::Arc;

use axum::http::HeaderMap;
use smallvec::SmallVec;
use tonic::Code;
use tonic::Request;
use tonic::Response;
use tonic::Status;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::grpc::answer;
use crate::grpc::answer::Told;
use crate::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::grpc::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use crate::grpc::select;
use crate::grpc::select::Items;
use crate::grpc::select::Selection;
use crate::http::access;
use crate::http::access::Caller;
use crate::http::answer::Frame;
use crate::http::check;
use crate::http::problem::Problem;
use crate::http::refund;
use crate::http::resolve::Resolved;
use crate::http::strict as moves;
use crate::ledger::check::Item;
use crate::ledger::check::Outcome;
use crate::region::clock::Stopwatch;
use crate::region::decide::Together;
use crate::region::deciding::Ended;
use crate::region::deciding::Terms;
use crate::region::entropy;
use crate::region::observe::Seen;
use crate::region::state::Region;

/// The entry in which gateways name the caller's address.
const REMOTE_ADDRESS: &str = "remote_address";

/// The rate limit service of a region.
pub struct RateLimits {
    region: Arc<Region>,
}

impl RateLimits {
    /// The service of `region`.
    pub const fn new(region: Arc<Region>) -> Self {
        Self { region }
    }
}

#[tonic::async_trait]
impl RateLimitService for RateLimits {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let region = &self.region;
        let headers: &HeaderMap = request.metadata().as_ref();
        let max_wait = deadline(headers);
        let caller = access::caller(region, headers)
            .await
            .map_err(|problem| status_of(&problem))?;
        let request = request.into_inner();
        select::form(&request)?;
        let answered = match at_once(region, &caller, &request) {
            Some(answered) => answered,
            None => awaited(region, &caller, &request, max_wait).await,
        };
        answered.map(Response::new)
    }
}

/// Decides a request that waits for nothing: all of it happens here and now. `None`: a `sync` limit must be on
/// disk first, a strict one must ask the leader, or units go back, and nothing has happened yet.
fn at_once(
    region: &Arc<Region>,
    caller: &Caller,
    request: &RateLimitRequest,
) -> Option<Result<RateLimitResponse, Status>> {
    let started = region.clock.stopwatch();
    let now = region.clock.now();
    let view = region.view();
    let decided = || -> Result<Option<RateLimitResponse>, Status> {
        let Some(selection) = selected(&view, request, caller, now)? else {
            return Ok(Some(answer::without_limits(request.descriptors.len())));
        };
        if selection.gives_back() {
            return Ok(None);
        }
        let items = selection.items()?;
        let resolved = resolved(&selection, items.charged.clone());
        let Some(outcome) = check::decided_at_once(region, &resolved, now) else {
            return Ok(None);
        };
        observe(region, request, &resolved, &outcome, now, started);
        told(region, request, &selection, &items, &outcome, None, now).map(Some)
    };
    decided().transpose()
}

/// Decides a request that waits: for the disk, for the leader of strict limits, or for units to go back.
async fn awaited(
    region: &Arc<Region>,
    caller: &Caller,
    request: &RateLimitRequest,
    max_wait: Option<Span>,
) -> Result<RateLimitResponse, Status> {
    let started = region.clock.stopwatch();
    let terms = Terms {
        max_wait,
        keyed: None,
    };
    for _ in 0..check::LOOKUPS_MAX {
        let now = region.clock.now();
        let view = region.view_full();
        let Some(selection) = selected(&view, request, caller, now)? else {
            return Ok(answer::without_limits(request.descriptors.len()));
        };
        let items = selection.items()?;
        let resolved = resolved(&selection, items.charged.clone());
        let asked = check::request(region, &resolved, now, true);
        let ended = region
            .decide_strict(&asked, &terms, |_| Together::default())
            .await;
        let Ended::Decided(outcome) = ended else {
            continue;
        };
        observe(region, request, &resolved, &outcome, now, started);
        // A refused request moves nothing, neither way.
        if outcome.allowed {
            for item in &items.given_back {
                give_back(region, selection.tenant, item, now).await?;
            }
        }
        let seen = look(region, &selection, &items, now);
        return told(
            region,
            request,
            &selection,
            &items,
            &outcome,
            seen.as_ref(),
            now,
        );
    }
    Err(status_of(&check::changing()))
}

/// The limits of a request; `None`: no limit applies to it.
fn selected<'a>(
    view: &'a crate::catalogue::view::View,
    request: &'a RateLimitRequest,
    caller: &Caller,
    now: Timestamp,
) -> Result<Option<Selection<'a>>, Status> {
    let Some(selection) = select::select(view, request, now)? else {
        return Ok(None);
    };
    caller
        .may_check(selection.tenant)
        .map_err(|problem| status_of(&problem))?;
    Ok((!selection.chosen.is_empty()).then_some(selection))
}

fn resolved<'s>(selection: &'s Selection<'_>, items: SmallVec<[Item<'s>; 2]>) -> Resolved<'s> {
    Resolved {
        tenant: selection.tenant,
        tenant_view: selection.tenant_view,
        items,
    }
}

/// Gives units back; a limit that the log decides is told so under a name of its own.
async fn give_back(
    region: &Arc<Region>,
    tenant: &str,
    item: &Item<'_>,
    now: Timestamp,
) -> Result<(), Status> {
    let name = format!("grpc.{:032x}", entropy::bits128());
    let by_log = moves::refund(region, tenant, item, Some(&name), &name.clone().into()).await;
    let moved = match by_log {
        Ok(Some(_)) => Ok(()),
        Ok(None) => refund::give_back(region, tenant, item, None, now)
            .await
            .map(drop),
        Err(problem) => Err(problem),
    };
    moved.map_err(|problem| status_of(&problem))
}

/// How the limits stand that were given units back.
fn look(
    region: &Arc<Region>,
    selection: &Selection<'_>,
    items: &Items<'_>,
    now: Timestamp,
) -> Option<Outcome> {
    if items.given_back.is_empty() {
        return None;
    }
    let looked_at = items
        .given_back
        .iter()
        .map(|item| Item { cost: 0, ..*item })
        .collect();
    let resolved = Resolved {
        tenant: selection.tenant,
        tenant_view: selection.tenant_view,
        items: looked_at,
    };
    check::decided_at_once(region, &resolved, now)
}

fn told(
    region: &Region,
    request: &RateLimitRequest,
    selection: &Selection<'_>,
    items: &Items<'_>,
    outcome: &Outcome,
    given_back: Option<&Outcome>,
    now: Timestamp,
) -> Result<RateLimitResponse, Status> {
    let told = Told {
        charged: check::judged(region, &items.charged, outcome),
        given_back: given_back.map_or_else(SmallVec::new, |outcome| {
            check::judged(region, &items.given_back, outcome)
        }),
    };
    if crate::http::answer::status(&told.charged) == 503 {
        return Err(unavailable(&told));
    }
    let frame = Frame {
        region: region.name.as_str(),
        now,
        styles: region.header_styles,
        hold: None,
        in_batch: false,
    };
    let whose = selection.chosen.iter().map(|chosen| chosen.descriptor);
    let places = whose.zip(items.places.iter().copied());
    Ok(answer::response(
        request.descriptors.len(),
        places,
        &told,
        &frame,
    ))
}

/// `UNAVAILABLE`, with the limits that cannot be decided.
fn unavailable(told: &Told<'_>) -> Status {
    let undecided = told
        .charged
        .iter()
        .filter_map(|judged| Some((judged.limit.name.as_str(), judged.outcome.reason?)));
    let texts: Vec<String> = undecided
        .map(|(limit, reason)| format!("limit {limit}: {}", reason.as_str()))
        .collect();
    Status::unavailable(texts.join("; "))
}

fn observe(
    region: &Region,
    request: &RateLimitRequest,
    resolved: &Resolved<'_>,
    outcome: &Outcome,
    now: Timestamp,
    started: Stopwatch,
) {
    let mut entries = request
        .descriptors
        .iter()
        .flat_map(|descriptor| &descriptor.entries);
    let seen = Seen {
        now,
        tenant: resolved.tenant,
        tenant_view: resolved.tenant_view,
        items: &resolved.items,
        endpoint: None,
        ip: entries
            .find(|entry| entry.key == REMOTE_ADDRESS)
            .map(|entry| entry.value.as_str()),
    };
    region.observe(&seen, outcome, started);
}

/// A problem as gRPC tells it. What is the service's own fault is `UNAVAILABLE`: callers take `UNKNOWN` and its
/// like for a yes.
fn status_of(problem: &Problem) -> Status {
    let code = match problem.status {
        400 | 409 | 422 => Code::InvalidArgument,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        _ => Code::Unavailable,
    };
    Status::new(code, problem.detail.clone())
}

/// How long the caller waits (`grpc-timeout`); `None`: it does not say.
fn deadline(headers: &HeaderMap) -> Option<Span> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanos: u64 = match unit {
        "H" => 3_600_000_000_000,
        "M" => 60_000_000_000,
        "S" => 1_000_000_000,
        "m" => 1_000_000,
        "u" => 1_000,
        "n" => 1,
        _ => return None,
    };
    let count: u64 = digits.parse().ok()?;
    Some(Span::from_nanos(count.saturating_mul(nanos)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_a_number_and_a_unit() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().expect("a value"));
            deadline(&headers)
        };
        assert_eq!(read("20m"), Some(Span::from_ms(20)));
        assert_eq!(read("2S"), Some(Span::from_seconds(2)));
        assert_eq!(read("1H"), Some(Span::from_seconds(3600)));
        assert_eq!(read("99999999u"), Some(Span::from_nanos(99_999_999_000)));
        for bad in ["", "m", "20", "-1m", "123456789m", "1x"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(deadline(&HeaderMap::new()), None);
    }

    #[test]
    fn no_problem_is_told_as_unknown() {
        for status in [400, 401, 403, 404, 408, 409, 413, 422, 500, 503] {
            let problem = Problem {
                status,
                ..Problem::malformed("it")
            };
            assert_ne!(status_of(&problem).code(), Code::Unknown, "{status}");
        }
    }
}
