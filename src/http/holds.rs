//! `POST /v1/holds` and `…/renew`: opening a hold and keeping it; [`crate::http::settle`] ends it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::Path;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::HeaderValue;
use axum::http::Response;
use axum::http::header;
use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::limit::Durability;
use crate::domain::limit::Limit;
use crate::domain::limit::Rule;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::http::access;
use crate::http::access::Caller;
use crate::http::answer;
use crate::http::answer::CheckAnswer;
use crate::http::answer::Frame;
use crate::http::answer::Rendered;
use crate::http::body;
use crate::http::body::CheckBody;
use crate::http::body::RenewBody;
use crate::http::check;
use crate::http::input;
use crate::http::keyed;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::http::resolve;
use crate::http::resolve::Purpose;
use crate::http::strict;
use crate::ledger::check::Item;
use crate::ledger::check::Outcome;
use crate::ledger::check::Request;
use crate::ledger::hold::HoldKey;
use crate::ledger::hold::HoldRecord;
use crate::ledger::hold::HoldState;
use crate::ledger::hold::Receipt;
use crate::ledger::holds::REMEMBERED;
use crate::ledger::holds::Standing;
use crate::ledger::holds::TTL_MAX;
use crate::ledger::idempotency::Operation;
use crate::region::decide::Together;
use crate::region::deciding::Ended;
use crate::region::deciding::Terms;
use crate::region::state::Region;
use crate::region::strict::parts;

/// How long a hold lives when neither the request nor a limit says otherwise.
const TTL_DEFAULT: Span = Span::from_seconds(60);

/// The answer to a renewal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RenewedAnswer {
    /// The hold.
    pub hold: String,
    /// The region that answered.
    pub region: String,
    /// When the hold ends unless it is renewed again, in Unix milliseconds.
    pub expires_ms: i64,
}

/// Take units now and say later how many were used.
#[utoipa::path(
    post,
    path = "/v1/holds",
    tag = "holds",
    request_body(content_type = "application/json", content = crate::http::schema::HoldRequest),
    params(("Idempotency-Key" = Option<String>, Header, description = "Repeats of this request open one hold")),
    responses(
        (status = 200, description = "Taken", body = CheckAnswer<'static>),
        (status = 429, description = "Refused; nothing was taken", content_type = "application/problem+json", body = CheckAnswer<'static>),
        (status = 503, description = "This region cannot decide; nothing was taken", content_type = "application/problem+json", body = CheckAnswer<'static>),
        crate::http::schema::RequestProblems,
    )
)]
pub async fn open(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
    request: Body,
) -> Response<Body> {
    let parts = async {
        let caller = access::caller(&region, &headers).await?;
        let bytes = input::body(&headers, request, body::BODY_BYTES_MAX).await?;
        let key = input::idempotency_key(&headers)?;
        let region = Arc::clone(&region);
        keyed::to_the_end(async move { opened(&region, &caller, &bytes, key).await }).await
    };
    respond(parts.await)
}

async fn opened(
    region: &Arc<Region>,
    caller: &Caller,
    bytes: &[u8],
    key: Option<String>,
) -> Result<Rendered, Problem> {
    let started = region.clock.stopwatch();
    let now = region.clock.now();
    let view = region.view_full();
    let body = hold_body(bytes)?;
    caller.may_check(body.tenant.as_str())?;
    let resolved = resolve::check(&view, &body, now, Purpose::Hold)?;
    let ttl = ttl(body.ttl, resolved.items.iter().map(|item| item.limit))?;
    let fingerprint = body.fingerprint();
    let begun = keyed::begin_or_refuse(
        region,
        resolved.tenant,
        Operation::Hold,
        key,
        fingerprint,
        now,
    )?;
    let keyed = match begun {
        Ok(keyed) => keyed,
        Err(repeat) => return Ok(repeat),
    };
    if !region.holds.reserve(now) {
        keyed::abandon(region, keyed.as_ref());
        return Err(Problem::unavailable(
            "this region keeps as many open holds as it may; settle or release some",
        ));
    }
    let hold = HoldKey(crate::region::entropy::bits128());
    let hold_id = hold_id(region, hold);
    let ends = now.plus(ttl);
    let keep = Request {
        hold: Some((hold.0, ends)),
        ..check::request(region, &resolved, now, true)
    };
    let on_disk = keyed.is_some() || any_sync(resolved.items.iter().map(|item| item.limit));
    let record = |outcome: &Outcome| opened_record(hold, resolved.tenant, ends, outcome);
    let rendered = |outcome: &Outcome| {
        let frame = Frame {
            region: region.name.as_str(),
            now,
            styles: region.header_styles,
            hold: outcome.allowed.then_some((hold_id.as_str(), ends)),
            in_batch: false,
        };
        answer::render(&check::judged(region, &resolved.items, outcome), &frame)
    };
    let opened = AtomicBool::new(false);
    let is_strict = parts(&keep, keyed.is_some()).is_some();
    let outcome = if on_disk || is_strict {
        // The hold stands in memory before it is written: a flush that covers the write must see it.
        let together = |outcome: &Outcome| {
            region.holds.open(record(outcome));
            opened.store(true, Ordering::Relaxed);
            let answer = keyed
                .as_ref()
                .map(|keyed| keyed.answer(region, &rendered(outcome), now));
            Together {
                hold: Some(record(outcome)),
                answer,
            }
        };
        if is_strict {
            let keyed = keyed.as_ref();
            let terms = Terms {
                max_wait: check::max_wait(&body),
                keyed: keyed.map(|keyed| keyed.for_log(Operation::Hold, region.retention)),
            };
            match region.decide_strict(&keep, &terms, together).await {
                Ended::Decided(outcome) => outcome,
                ended => {
                    region.holds.unreserve();
                    keyed::abandon(region, keyed);
                    return ended_early(region, ended, &resolved.items, now);
                }
            }
        } else {
            region.decide(&keep, together).await
        }
    } else {
        region.ledger.check(&Request {
            store_failed: region.store.is_failed(),
            ..keep
        })
    };
    let opened = opened.into_inner();
    note_hold(region, opened, outcome.allowed, record(&outcome));
    let told = rendered(&outcome);
    if is_strict && on_disk && outcome.allowed && !opened {
        // The log has charged it; the hold itself is this region's to remember.
        let answer = keyed.as_ref().map(|keyed| keyed.answer(region, &told, now));
        let kept = region.keep(now, Vec::new(), Some(record(&outcome)), answer);
        if kept.await.is_err() {
            keyed::abandon(region, keyed.as_ref());
            return Err(unknown_outcome());
        }
    }
    keyed::finish(region, keyed.as_ref(), outcome.allowed, &told, now);
    region.observe(&check::seen(&resolved, &body, now), &outcome, started);
    Ok(told)
}

fn hold_body(bytes: &[u8]) -> Result<CheckBody<'_>, Problem> {
    let body: CheckBody<'_> = body::parse(bytes)?;
    if body.idempotency_key.is_some() {
        return Err(Problem::new(
            400,
            Code::UnknownField,
            "unknown field `idempotency_key`: send the Idempotency-Key header",
        ));
    }
    Ok(body)
}

/// Notes in memory what became of a hold that may have been opened for the disk to see.
fn note_hold(region: &Region, opened: bool, allowed: bool, record: HoldRecord) {
    match (opened, allowed) {
        (false, true) => region.holds.open(record),
        (false, false) => region.holds.unreserve(),
        // Let through by policy after all, maybe with other charges than those that were undone.
        (true, true) => region.holds.replace(record),
        // Undone. The disk may have seen it open, so it is closed rather than forgotten.
        (true, false) => {
            let state = HoldState::Closed {
                fingerprint: 0,
                answer: Box::default(),
            };
            region.holds.replace(HoldRecord { state, ..record });
        }
    }
}

/// A hold whose key was answered before, in whichever region, or whose limits changed meanwhile.
fn ended_early(
    region: &Region,
    ended: Ended,
    items: &[Item<'_>],
    now: Timestamp,
) -> Result<Rendered, Problem> {
    match ended {
        Ended::Repeated(answered) => {
            let (local, outcome) = answered.outcome().ok_or_else(keyed::unreadable)?;
            let (number, ends) = local.hold.ok_or_else(keyed::unreadable)?;
            let hold_id = format!("{}.{number:032x}", local.region);
            let frame = Frame {
                region: region.name.as_str(),
                now,
                styles: region.header_styles,
                hold: Some((hold_id.as_str(), ends)),
                in_batch: false,
            };
            Ok(answer::render(
                &check::judged(region, items, &outcome),
                &frame,
            ))
        }
        Ended::Mismatch => Err(keyed::mismatch()),
        Ended::Changed | Ended::Decided(_) => Err(check::changing()),
    }
}

fn opened_record(key: HoldKey, tenant: &str, ends: Timestamp, outcome: &Outcome) -> HoldRecord {
    HoldRecord {
        key,
        tenant: tenant.to_owned(),
        receipts: outcome.receipts.clone(),
        expires_at: ends,
        forget_at: ends.plus(REMEMBERED),
        state: HoldState::Open,
        version: 1,
    }
}

/// Keep a hold for longer.
#[utoipa::path(
    post,
    path = "/v1/holds/{id}/renew",
    tag = "holds",
    params(("id" = String, Path, description = "The hold")),
    request_body(content_type = "application/json", content = crate::http::schema::RenewRequest),
    responses(
        (status = 200, description = "Renewed", body = RenewedAnswer),
        crate::http::schema::HoldProblems,
    )
)]
pub async fn renew(
    State(region): State<Arc<Region>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    request: Body,
) -> Response<Body> {
    let parts = async {
        let caller = access::caller(&region, &headers).await?;
        let bytes = input::body(&headers, request, body::BODY_BYTES_MAX).await?;
        renewed(&region, &caller, &id, &bytes).await
    };
    respond(parts.await)
}

async fn renewed(
    region: &Arc<Region>,
    caller: &Caller,
    id: &str,
    bytes: &[u8],
) -> Result<Rendered, Problem> {
    let body: RenewBody = if bytes.is_empty() {
        RenewBody { ttl: None }
    } else {
        body::parse(bytes)?
    };
    let key = hold_key(region, id)?;
    let now = region.clock.now();
    let view = region.view_full();
    let open: Option<Result<_, Problem>> = region.holds.with(key, |hold| {
        open_hold(hold, caller, now)?;
        let limits = hold
            .receipts
            .iter()
            .filter_map(|receipt| limit_of(&view, receipt, now));
        let limits: Vec<_> = limits.collect();
        let ttl = ttl(body.ttl, limits.iter().map(|(_, limit)| &**limit))?;
        Ok((hold.clone(), now.plus(ttl)))
    });
    if let Some(Ok((hold, ends))) = open {
        // The leases that the log holds come first: a hold never says more than they do.
        strict::renew(region, &view, &hold, ends, now).await?;
    }
    let done = region.holds.with(key, |hold| {
        open_hold(hold, caller, now)?;
        let limits: Vec<_> = hold
            .receipts
            .iter()
            .map(|receipt| limit_of(&view, receipt, now))
            .collect();
        let ttl = ttl(body.ttl, limits.iter().flatten().map(|(_, limit)| &**limit))?;
        let ends = now.plus(ttl);
        hold.expires_at = ends;
        hold.forget_at = ends.plus(REMEMBERED);
        hold.version += 1;
        for (receipt, limit) in hold.receipts.iter().zip(&limits) {
            if let Some((limit_id, limit)) = limit {
                region
                    .ledger
                    .renew(*limit_id, limit, receipt, key.0, ends, now);
            }
        }
        let sync = any_sync(limits.iter().flatten().map(|(_, limit)| &**limit));
        Ok((ends, sync.then(|| hold.clone())))
    });
    let (ends, record) = done.unwrap_or_else(|| Err(no_hold()))?;
    if record.is_some() && region.keep(now, Vec::new(), record, None).await.is_err() {
        return Err(unknown_outcome());
    }
    let answer = RenewedAnswer {
        hold: id.to_owned(),
        region: region.name.to_string(),
        expires_ms: ends.as_unix_ms(),
    };
    Ok(plain(&answer))
}

/// Sends an answer or a problem.
pub fn respond(answered: Result<Rendered, Problem>) -> Response<Body> {
    answered.map_or_else(IntoResponse::into_response, Into::into)
}

/// The header of a JSON answer.
pub fn json_header() -> smallvec::SmallVec<[(axum::http::HeaderName, HeaderValue); 8]> {
    smallvec::smallvec![(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json")
    )]
}

/// A plain JSON answer.
pub fn plain(answer: &impl Serialize) -> Rendered {
    Rendered {
        status: 200,
        headers: json_header(),
        body: serde_json::to_vec(answer).unwrap_or_default(),
    }
}

/// 404 for a hold.
pub fn no_hold() -> Problem {
    Problem::not_found("there is no such hold, or it ended more than an hour ago")
}

/// 503: the store failed in the middle.
pub fn unknown_outcome() -> Problem {
    Problem {
        retry_after_seconds: Some(1),
        ..Problem::new(
            503,
            Code::OutcomeUnknown,
            "the store failed while this was written; repeat the same request",
        )
    }
}

/// Whether any of the limits wants its charges on disk.
pub fn any_sync<'a>(mut limits: impl Iterator<Item = &'a Limit>) -> bool {
    limits.any(|limit| limit.durability == Durability::Sync)
}

/// The time that a hold lives: what was asked, else the shortest of its concurrency limits, else 60 s.
fn ttl<'a>(asked: Option<Span>, limits: impl Iterator<Item = &'a Limit>) -> Result<Span, Problem> {
    if let Some(ttl) = asked {
        if ttl.is_zero() || ttl > TTL_MAX {
            return Err(Problem::malformed("ttl: more than 0s and at most 24h"));
        }
        return Ok(ttl);
    }
    let shortest = limits.filter_map(|limit| match limit.rule {
        Rule::Concurrency { ttl, .. } => Some(ttl.min(TTL_MAX)),
        _ => None,
    });
    Ok(shortest.min().unwrap_or(TTL_DEFAULT))
}

/// The limit that a receipt charged, as it is now.
pub fn limit_of(
    view: &crate::catalogue::view::View,
    receipt: &Receipt,
    now: Timestamp,
) -> Option<(crate::catalogue::intern::LimitId, Arc<Limit>)> {
    let found = view
        .tenant(&receipt.counter.tenant)?
        .limit(receipt.counter.limit.as_str())?;
    Some((found.id, Arc::clone(found.at(&receipt.counter.key, now).0)))
}

/// Units that settling `taken` held ones at `cost` gives back, and charges on top.
pub fn difference(rule: &Rule, taken: u64, cost: u64) -> (u64, u64) {
    // The lease of a concurrency limit is the hold itself: it ends with it.
    if matches!(rule, Rule::Concurrency { .. }) {
        return (taken, 0);
    }
    (taken.saturating_sub(cost), cost.saturating_sub(taken))
}

/// Whether the hold can be changed by `caller`.
///
/// # Errors
/// 404 when it is another tenant's, 410 when its time is over, 409 when it is closed.
pub fn open_hold(hold: &HoldRecord, caller: &Caller, now: Timestamp) -> Result<(), Problem> {
    if !caller.owns(&hold.tenant) {
        return Err(no_hold());
    }
    match hold.standing(now) {
        Standing::Open => Ok(()),
        Standing::Expired => Err(Problem::new(
            410,
            Code::HoldExpired,
            "this hold's time is over; what it charged stays charged",
        )),
        Standing::Closed => Err(Problem::new(
            409,
            Code::HoldSettled,
            "this hold was settled or released already, with another request",
        )),
    }
}

fn hold_id(region: &Region, key: HoldKey) -> String {
    format!("{}.{:032x}", region.name, key.0)
}

/// The hold behind an id.
///
/// # Errors
/// 404 when it is no hold's id, 421 when the hold is another region's.
pub fn hold_key(region: &Region, id: &str) -> Result<HoldKey, Problem> {
    let (name, number) = id.rsplit_once('.').ok_or_else(no_hold)?;
    let well_formed = number.len() == 32
        && number
            .bytes()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let key = u128::from_str_radix(number, 16)
        .ok()
        .filter(|_| well_formed)
        .ok_or_else(no_hold)?;
    let other = crate::domain::name::RegionName::new(name).map_err(|_| no_hold())?;
    if other != region.name {
        return Err(Problem {
            region: Some(other.to_string()),
            ..Problem::new(
                421,
                Code::Misdirected,
                format!("this hold is kept by region {other}: ask there"),
            )
        });
    }
    Ok(HoldKey(key))
}
