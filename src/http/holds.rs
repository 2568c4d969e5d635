//! `POST /v1/holds`, `…/settle`, `…/renew`, `DELETE …`.
//!
//! A settle or release that must be on disk is refused before it changes anything when the store is known
//! to have failed. Should the store fail in the middle, the change stands in memory, is written when the
//! store is back, and the answer says that the outcome is unknown: the same request again gets the answer.

use std::sync::Arc;

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

use crate::algorithm::concurrency::Lease;
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
use crate::http::body::SettleBody;
use crate::http::check;
use crate::http::input;
use crate::http::keyed;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::http::resolve;
use crate::http::resolve::Purpose;
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
use crate::region::state::Region;
use crate::usage::record::CounterRecord;

/// How long a hold lives when neither the request nor a limit says otherwise.
const TTL_DEFAULT: Span = Span::from_seconds(60);
/// Stands for the body of a release, which has none.
const RELEASE: &[u8] = b"release";

/// What became of one limit of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SettledItem {
    /// The limit.
    pub limit: String,
    /// The key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Units that the hold took.
    pub taken: u64,
    /// Units that stay charged.
    pub cost: u64,
    /// Units that were given back. Less than taken − cost when their window is over.
    pub given_back: u64,
    /// Units beyond those taken that could not be charged.
    pub uncharged: u64,
}

/// The answer to a settle or a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SettledAnswer {
    /// The hold.
    pub hold: String,
    /// The region that answered.
    pub region: String,
    /// What became of each limit.
    pub results: Vec<SettledItem>,
}

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
    region: &Region,
    caller: &Caller,
    bytes: &[u8],
    key: Option<String>,
) -> Result<Rendered, Problem> {
    let started = region.clock.stopwatch();
    let now = region.clock.now();
    let view = region.view_full();
    let body: CheckBody<'_> = body::parse(bytes)?;
    if body.idempotency_key.is_some() {
        return Err(Problem::new(
            400,
            Code::UnknownField,
            "unknown field `idempotency_key`: send the Idempotency-Key header",
        ));
    }
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
        ..check::request(&resolved, now, true)
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
        answer::render(&check::judged(&resolved.items, outcome), &frame)
    };
    let mut opened = false;
    let outcome = if on_disk {
        // The hold stands in memory before it is written: a flush that covers the write must see it.
        let together = |outcome: &Outcome| {
            region.holds.open(record(outcome));
            opened = true;
            let answer = keyed
                .as_ref()
                .map(|keyed| keyed.answer(region, &rendered(outcome), now));
            Together {
                hold: Some(record(outcome)),
                answer,
            }
        };
        region.decide(&keep, together).await
    } else {
        region.ledger.check(&Request {
            store_failed: region.store.is_failed(),
            ..keep
        })
    };
    match (opened, outcome.allowed) {
        (false, true) => region.holds.open(record(&outcome)),
        (false, false) => region.holds.unreserve(),
        // Let through by policy after all, maybe with other charges than those that were undone.
        (true, true) => region.holds.replace(record(&outcome)),
        // Undone. The disk may have seen it open, so it is closed rather than forgotten.
        (true, false) => {
            let state = HoldState::Closed {
                fingerprint: 0,
                answer: Box::default(),
            };
            region.holds.replace(HoldRecord {
                state,
                ..record(&outcome)
            });
        }
    }
    let told = rendered(&outcome);
    keyed::finish(region, keyed.as_ref(), outcome.allowed, &told, now);
    region.observe(&check::seen(&resolved, &body, now), &outcome, started);
    Ok(told)
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

/// Say how many of the held units were used.
#[utoipa::path(
    post,
    path = "/v1/holds/{id}/settle",
    tag = "holds",
    params(
        ("id" = String, Path, description = "The hold"),
        ("Idempotency-Key" = Option<String>, Header, description = "Repeats of this request settle once"),
    ),
    request_body(content_type = "application/json", content = crate::http::schema::SettleRequest),
    responses(
        (status = 200, description = "Settled", body = SettledAnswer),
        crate::http::schema::HoldProblems,
    )
)]
pub async fn settle(
    State(region): State<Arc<Region>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    request: Body,
) -> Response<Body> {
    let parts = async {
        let caller = access::caller(&region, &headers).await?;
        let bytes = input::body(&headers, request, body::BODY_BYTES_MAX).await?;
        let key = input::idempotency_key(&headers)?;
        let region = Arc::clone(&region);
        keyed::to_the_end(async move { settled(&region, &caller, &id, &bytes, key).await }).await
    };
    respond(parts.await)
}

async fn settled(
    region: &Region,
    caller: &Caller,
    id: &str,
    bytes: &[u8],
    key: Option<String>,
) -> Result<Rendered, Problem> {
    let body: SettleBody<'_> = body::parse(bytes)?;
    if body.cost.is_some() == body.checks.is_some() {
        return Err(Problem::malformed(
            "say either cost (a hold of one limit) or checks (costs by limit)",
        ));
    }
    close(region, caller, id, bytes, key, |receipts| {
        wanted(&body, receipts)
    })
    .await
}

/// Give all held units back.
#[utoipa::path(
    delete,
    path = "/v1/holds/{id}",
    tag = "holds",
    params(("id" = String, Path, description = "The hold")),
    responses(
        (status = 200, description = "Given back", body = SettledAnswer),
        crate::http::schema::HoldProblems,
    )
)]
pub async fn release(
    State(region): State<Arc<Region>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response<Body> {
    let parts = async {
        let caller = access::caller(&region, &headers).await?;
        let region = Arc::clone(&region);
        keyed::to_the_end(async move {
            close(&region, &caller, &id, RELEASE, None, |receipts| {
                Ok(vec![0; receipts.len()])
            })
            .await
        })
        .await
    };
    respond(parts.await)
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
    region: &Region,
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

/// Settles or releases a hold; `costs` says what of each receipt stays charged.
async fn close(
    region: &Region,
    caller: &Caller,
    id: &str,
    bytes: &[u8],
    key: Option<String>,
    costs: impl FnOnce(&[Receipt]) -> Result<Vec<u64>, Problem>,
) -> Result<Rendered, Problem> {
    let hold_key = hold_key(region, id)?;
    let now = region.clock.now();
    let view = region.view_full();
    let fingerprint = keyed::fingerprint(bytes);
    let tenant = region
        .holds
        .with(hold_key, |hold| hold.tenant.clone())
        .filter(|tenant| caller.owns(tenant));
    let tenant = tenant.ok_or_else(no_hold)?;
    let begun = keyed::begin_or_refuse(region, &tenant, Operation::Settle, key, fingerprint, now)?;
    let keyed = match begun {
        Ok(keyed) => keyed,
        Err(repeat) => return Ok(repeat),
    };
    let store_failed = region.store.is_failed();
    let done = region.holds.with(hold_key, |hold| {
        if let HoldState::Closed {
            fingerprint: known,
            answer,
        } = &hold.state
            && *known == fingerprint
        {
            return Ok((answer.to_vec(), Vec::new(), None));
        }
        open_hold(hold, caller, now)?;
        let costs = costs(&hold.receipts)?;
        let limits: Vec<_> = hold
            .receipts
            .iter()
            .map(|receipt| limit_of(&view, receipt, now))
            .collect();
        let on_disk =
            keyed.is_some() || any_sync(limits.iter().flatten().map(|(_, limit)| &**limit));
        if on_disk && store_failed {
            return Err(Problem::unavailable(
                "the store cannot be written at the moment; nothing was changed",
            ));
        }
        let (results, records) = move_units(region, &view, hold, &costs, now);
        let answer = SettledAnswer {
            hold: id.to_owned(),
            region: region.name.to_string(),
            results,
        };
        let body = serde_json::to_vec(&answer).unwrap_or_default();
        hold.state = HoldState::Closed {
            fingerprint,
            answer: body.clone().into_boxed_slice(),
        };
        hold.forget_at = now
            .max(hold.expires_at.min(now.plus(TTL_MAX)))
            .plus(REMEMBERED);
        hold.version += 1;
        Ok((body, records, on_disk.then(|| hold.clone())))
    });
    let (body, records, record) = match done.unwrap_or_else(|| Err(no_hold())) {
        Ok(done) => done,
        Err(problem) => {
            keyed::abandon(region, keyed.as_ref());
            return Err(problem);
        }
    };
    let rendered = Rendered {
        status: 200,
        headers: json_header(),
        body,
    };
    if record.is_some() {
        let answer = keyed
            .as_ref()
            .map(|keyed| keyed.answer(region, &rendered, now));
        if region.keep(now, records, record, answer).await.is_err() {
            keyed::abandon(region, keyed.as_ref());
            return Err(unknown_outcome());
        }
    }
    keyed::finish(region, keyed.as_ref(), true, &rendered, now);
    Ok(rendered)
}

/// Gives back or charges what a hold's costs differ from what it took.
fn move_units(
    region: &Region,
    view: &crate::catalogue::view::View,
    hold: &HoldRecord,
    costs: &[u64],
    now: Timestamp,
) -> (Vec<SettledItem>, Vec<CounterRecord>) {
    let mut results = Vec::with_capacity(costs.len());
    let mut records = Vec::new();
    for (receipt, cost) in hold.receipts.iter().zip(costs) {
        let counter = &receipt.counter;
        let mut result = SettledItem {
            limit: counter.limit.to_string(),
            key: (!counter.key.is_empty()).then(|| counter.key.clone()),
            taken: receipt.units,
            cost: *cost,
            given_back: 0,
            uncharged: 0,
        };
        if let Some((limit_id, limit)) = limit_of(view, receipt, now) {
            // The lease of a concurrency limit is the hold itself: it ends with it.
            let held = matches!(limit.rule, Rule::Concurrency { .. });
            let less = if held {
                receipt.units
            } else {
                receipt.units.saturating_sub(*cost)
            };
            let more = if held {
                0
            } else {
                cost.saturating_sub(receipt.units)
            };
            if less > 0 {
                let moved = region
                    .ledger
                    .give_back(limit_id, &limit, receipt, less, hold.key.0, now);
                result.given_back = moved.units;
                records.extend(moved.record);
            }
            if more > 0 {
                let tenant_view = view.tenant(&counter.tenant);
                let found = tenant_view.and_then(|tenant| tenant.limit(counter.limit.as_str()));
                let epoch = found.map_or(receipt.epoch, |found| found.at(&counter.key, now).1);
                let item = Item {
                    limit: &limit,
                    id: limit_id,
                    epoch,
                    key: &counter.key,
                    cost: more,
                };
                let lease = Lease {
                    hold: hold.key.0,
                    expires_at: hold.expires_at,
                    units: 0,
                };
                records.extend(
                    region
                        .ledger
                        .charge_late(&item, &counter.tenant, lease, now)
                        .record,
                );
            }
        }
        results.push(result);
    }
    (results, records)
}

/// What stays charged of each receipt by a settle's body.
fn wanted(body: &SettleBody<'_>, receipts: &[Receipt]) -> Result<Vec<u64>, Problem> {
    if let Some(cost) = body.cost {
        if receipts.len() != 1 {
            return Err(Problem::malformed(
                "this hold has several limits: say checks, with a cost for each",
            ));
        }
        return Ok(vec![cost.0]);
    }
    let mut costs: Vec<u64> = receipts.iter().map(|receipt| receipt.units).collect();
    let mut named = vec![false; receipts.len()];
    for item in body.checks.iter().flat_map(|checks| &checks.0) {
        let key = item.key.as_ref().map_or("", body::Text::as_str);
        let index = receipts
            .iter()
            .position(|receipt| {
                receipt.counter.limit.as_str() == item.limit.as_str() && receipt.counter.key == key
            })
            .ok_or_else(|| {
                Problem::malformed(format!(
                    "the hold took nothing of limit \"{}\" for this key",
                    item.limit.as_str()
                ))
            })?;
        if named[index] {
            return Err(Problem::new(
                400,
                Code::DuplicateCheck,
                format!("limit \"{}\" stands twice", item.limit.as_str()),
            ));
        }
        named[index] = true;
        costs[index] = item.cost.0;
    }
    Ok(costs)
}

/// Sends an answer or a problem.
pub fn respond(answered: Result<Rendered, Problem>) -> Response<Body> {
    answered.map_or_else(IntoResponse::into_response, Into::into)
}

fn json_header() -> smallvec::SmallVec<[(axum::http::HeaderName, HeaderValue); 8]> {
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

fn no_hold() -> Problem {
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

fn any_sync<'a>(mut limits: impl Iterator<Item = &'a Limit>) -> bool {
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

fn limit_of(
    view: &crate::catalogue::view::View,
    receipt: &Receipt,
    now: Timestamp,
) -> Option<(crate::catalogue::intern::LimitId, Arc<Limit>)> {
    let found = view
        .tenant(&receipt.counter.tenant)?
        .limit(receipt.counter.limit.as_str())?;
    Some((found.id, Arc::clone(found.at(&receipt.counter.key, now).0)))
}

fn open_hold(hold: &HoldRecord, caller: &Caller, now: Timestamp) -> Result<(), Problem> {
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
fn hold_key(region: &Region, id: &str) -> Result<HoldKey, Problem> {
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
