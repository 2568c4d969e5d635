//! `POST /v1/check` and `POST /v1/check/batch`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::Response;
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::Either;
use futures_util::future::join_all;
use futures_util::future::ready;
use smallvec::SmallVec;

use crate::catalogue::view::View;
use crate::domain::limit::Durability;
use crate::domain::limit::Mode;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::http::access;
use crate::http::access::Caller;
use crate::http::answer;
use crate::http::answer::CheckAnswer;
use crate::http::answer::Frame;
use crate::http::answer::Judged;
use crate::http::answer::Rendered;
use crate::http::body;
use crate::http::body::BatchBody;
use crate::http::body::CheckBody;
use crate::http::input;
use crate::http::keyed;
use crate::http::keyed::Begun;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::http::resolve;
use crate::http::resolve::Purpose;
use crate::http::resolve::Resolved;
use crate::ledger::check::Item;
use crate::ledger::check::Outcome;
use crate::ledger::check::Request;
use crate::ledger::idempotency::Operation;
use crate::region::config::HeaderStyles;
use crate::region::decide::Together;
use crate::region::deciding::Ended;
use crate::region::deciding::Terms;
use crate::region::state::Region;
use crate::region::strict;

/// How often a check looks its limits up again when they change under it.
pub const LOOKUPS_MAX: usize = 3;

/// Ask whether units may be spent, and spend them.
#[utoipa::path(
    post,
    path = "/v1/check",
    tag = "check",
    request_body(content_type = "application/json", content = crate::http::schema::CheckRequest),
    params(("Idempotency-Key" = Option<String>, Header, description = "Repeats of this request are charged once")),
    responses(
        (status = 200, description = "Allowed and charged", body = CheckAnswer<'static>),
        (status = 429, description = "Refused; nothing was charged", content_type = "application/problem+json", body = CheckAnswer<'static>),
        (status = 503, description = "This region cannot decide; nothing was charged", content_type = "application/problem+json", body = CheckAnswer<'static>),
        crate::http::schema::RequestProblems,
    )
)]
pub async fn check(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
    request: Body,
) -> Response<Body> {
    match checked(&region, &headers, request).await {
        Ok(rendered) => rendered.into(),
        Err(problem) => problem.into_response(),
    }
}

async fn checked(
    region: &Arc<Region>,
    headers: &HeaderMap,
    request: Body,
) -> Result<Rendered, Problem> {
    let caller = access::caller(region, headers).await?;
    let bytes = input::body(headers, request, body::BODY_BYTES_MAX).await?;
    match input::idempotency_key(headers)? {
        None => plain(region, &caller, &bytes, false).await,
        Some(key) => keyed(region, caller, bytes, key, false).await,
    }
}

/// A check without an `Idempotency-Key`.
async fn plain(
    region: &Arc<Region>,
    caller: &Caller,
    bytes: &[u8],
    in_batch: bool,
) -> Result<Rendered, Problem> {
    match at_once(region, caller, bytes, in_batch) {
        Some(answered) => answered,
        None => awaited(region, caller, bytes, in_batch).await,
    }
}

/// Decides a check that waits for nothing: all of it happens here and now. `None`: a `sync` limit must be
/// on disk first, or a strict one must ask the leader, and nothing has happened yet.
fn at_once(
    region: &Region,
    caller: &Caller,
    bytes: &[u8],
    in_batch: bool,
) -> Option<Result<Rendered, Problem>> {
    let started = region.clock.stopwatch();
    let now = region.clock.now();
    let view = region.view();
    let body: CheckBody<'_> = match body::parse(bytes) {
        Ok(body) => body,
        Err(problem) => return Some(Err(problem)),
    };
    let resolved = match parsed(&view, &body, caller, now, in_batch) {
        Ok(resolved) => resolved,
        Err(problem) => return Some(Err(problem)),
    };
    let outcome = decided_at_once(region, &resolved, now)?;
    let rendered = render(region, &resolved.items, &outcome, now, in_batch);
    region.observe(&seen(&resolved, &body, now), &outcome, started);
    Some(Ok(rendered))
}

/// Decides a check that waits for nothing. `None`: a `sync` limit must be on disk first, or a strict one must ask the
/// leader, and nothing has happened yet.
pub fn decided_at_once(
    region: &Region,
    resolved: &Resolved<'_>,
    now: Timestamp,
) -> Option<Outcome> {
    let is_sync = |item: &Item<'_>| item.cost > 0 && item.limit.durability == Durability::Sync;
    if resolved.items.iter().any(is_sync) {
        return None;
    }
    let asked = Request {
        store_failed: region.store.is_failed(),
        ..request(region, resolved, now, false)
    };
    match strict::parts(&asked, false) {
        None => Some(region.ledger.check(&asked)),
        Some(parts) => region.strict_at_once(&asked, &parts),
    }
}

/// Decides a check that waits: for the disk, or for the leader of strict limits.
async fn awaited(
    region: &Arc<Region>,
    caller: &Caller,
    bytes: &[u8],
    in_batch: bool,
) -> Result<Rendered, Problem> {
    let started = region.clock.stopwatch();
    let body: CheckBody<'_> = body::parse(bytes)?;
    let terms = Terms {
        max_wait: max_wait(&body),
        keyed: None,
    };
    for _ in 0..LOOKUPS_MAX {
        let now = region.clock.now();
        let view = region.view_full();
        let resolved = parsed(&view, &body, caller, now, in_batch)?;
        let asked = request(region, &resolved, now, true);
        let ended = region
            .decide_strict(&asked, &terms, |_| Together::default())
            .await;
        if let Ended::Decided(outcome) = ended {
            let rendered = render(region, &resolved.items, &outcome, now, in_batch);
            region.observe(&seen(&resolved, &body, now), &outcome, started);
            return Ok(rendered);
        }
    }
    Err(changing())
}

/// How long the caller lets a check wait for the leader.
pub fn max_wait(body: &CheckBody<'_>) -> Option<Span> {
    body.max_wait_ms.map(|wait| Span::from_ms(wait.0))
}

/// The answer when a limit changed faster than it could be looked up.
pub fn changing() -> Problem {
    Problem::unavailable("the limit is being changed and this region has not caught up; try again")
}

/// A check with an `Idempotency-Key`.
async fn keyed(
    region: &Arc<Region>,
    caller: Caller,
    bytes: Bytes,
    key: String,
    in_batch: bool,
) -> Result<Rendered, Problem> {
    let region = Arc::clone(region);
    keyed::to_the_end(
        async move { keyed_to_the_end(&region, &caller, &bytes, key, in_batch).await },
    )
    .await
}

async fn keyed_to_the_end(
    region: &Arc<Region>,
    caller: &Caller,
    bytes: &[u8],
    key: String,
    in_batch: bool,
) -> Result<Rendered, Problem> {
    let started = region.clock.stopwatch();
    let now = region.clock.now();
    let view = region.view_full();
    let body: CheckBody<'_> = body::parse(bytes)?;
    let resolved = parsed(&view, &body, caller, now, in_batch)?;
    let begun = keyed::begin(
        region,
        resolved.tenant,
        Operation::Check,
        key,
        body.fingerprint(),
        now,
    )?;
    let keyed = match begun {
        Begun::New(keyed) => Some(keyed),
        Begun::Full => None,
        Begun::Repeat(mut rendered) => {
            tell_status(&mut rendered, in_batch);
            return Ok(*rendered);
        }
    };
    if let Some(keyed) = &keyed
        && strict::parts(&request(region, &resolved, now, true), true).is_some()
    {
        let decided = keyed_strict(region, caller, &body, keyed, in_batch).await;
        if decided.is_err() {
            keyed::abandon(region, Some(keyed));
        }
        return decided;
    }
    let rendered = |outcome: &Outcome| render(region, &resolved.items, outcome, now, in_batch);
    let mut asked = request(region, &resolved, now, true);
    let outcome = match &keyed {
        Some(keyed) => {
            let answer = |outcome: &Outcome| keyed.answer(region, &rendered(outcome), now);
            region
                .decide(&asked, |outcome| Together {
                    hold: None,
                    answer: Some(answer(outcome)),
                })
                .await
        }
        None => {
            // Without a place for its key the region cannot keep the answer: each limit's policy decides.
            asked.store_failed = true;
            region.ledger.check(&asked)
        }
    };
    let told = rendered(&outcome);
    keyed::finish(region, keyed.as_ref(), outcome.allowed, &told, now);
    region.observe(&seen(&resolved, &body, now), &outcome, started);
    Ok(told)
}

/// A keyed check with strict limits: the log decides them and remembers the key, for all regions.
async fn keyed_strict(
    region: &Arc<Region>,
    caller: &Caller,
    body: &CheckBody<'_>,
    keyed: &keyed::Keyed,
    in_batch: bool,
) -> Result<Rendered, Problem> {
    let started = region.clock.stopwatch();
    let terms = Terms {
        max_wait: max_wait(body),
        keyed: Some(keyed.for_log(Operation::Check, region.retention)),
    };
    for _ in 0..LOOKUPS_MAX {
        let now = region.clock.now();
        let view = region.view_full();
        let resolved = parsed(&view, body, caller, now, in_batch)?;
        let asked = request(region, &resolved, now, true);
        let ended = region
            .decide_strict(&asked, &terms, |_| Together::default())
            .await;
        let outcome = match ended {
            Ended::Decided(outcome) => outcome,
            Ended::Repeated(answered) => {
                let (_, outcome) = answered.outcome().ok_or_else(keyed::unreadable)?;
                let told = render(region, &resolved.items, &outcome, now, in_batch);
                keyed::finish(region, Some(keyed), true, &told, now);
                return Ok(told);
            }
            Ended::Mismatch => return Err(keyed::mismatch()),
            Ended::Changed => continue,
        };
        let told = render(region, &resolved.items, &outcome, now, in_batch);
        // A degraded answer is the failure policy's, not the log's: a repeat is judged afresh.
        let kept = outcome.allowed && !outcome.items.iter().any(|told| told.degraded);
        keyed::finish(region, Some(keyed), kept, &told, now);
        region.observe(&seen(&resolved, body, now), &outcome, started);
        return Ok(told);
    }
    Err(changing())
}

/// Makes a remembered answer fit where it is given again: in a batch its body tells the status too.
fn tell_status(rendered: &mut Rendered, in_batch: bool) {
    const TOLD: &[u8] = b"{\"status\":200,";
    let told = rendered.body.starts_with(TOLD);
    if in_batch && !told {
        rendered.body.splice(..1, TOLD.iter().copied());
    } else if told && !in_batch {
        rendered.body.splice(..TOLD.len(), [b'{']);
    }
}

fn parsed<'a>(
    view: &'a View,
    body: &'a CheckBody<'_>,
    caller: &Caller,
    now: Timestamp,
    in_batch: bool,
) -> Result<Resolved<'a>, Problem> {
    if body.ttl.is_some() {
        return Err(Problem::new(
            400,
            Code::UnknownField,
            "unknown field `ttl`: it belongs to POST /v1/holds",
        ));
    }
    if body.idempotency_key.is_some() && !in_batch {
        return Err(Problem::new(
            400,
            Code::UnknownField,
            "unknown field `idempotency_key`: send the Idempotency-Key header (in a batch it is a field of the item)",
        ));
    }
    caller.may_check(body.tenant.as_str())?;
    resolve::check(view, body, now, Purpose::Check)
}

/// Boot time, where it is needed: shared limits measure demand by it.
fn boot(region: &Region, items: &[Item<'_>]) -> Span {
    let is_shared = |item: &Item<'_>| item.limit.mode == Mode::Approximate;
    if items.iter().any(is_shared) {
        region.clock.boot()
    } else {
        Span::ZERO
    }
}

/// The ledger's request for what was resolved.
pub fn request<'a>(
    region: &Region,
    resolved: &'a Resolved<'_>,
    now: Timestamp,
    keep: bool,
) -> Request<'a> {
    Request {
        now,
        tenant: resolved.tenant,
        items: &resolved.items,
        hold: None,
        keep,
        store_failed: false,
        judge_only: false,
        boot: boot(region, &resolved.items),
        words: &[],
    }
}

/// What metrics and logs are told of a check.
pub fn seen<'a>(
    resolved: &'a Resolved<'_>,
    body: &'a CheckBody<'_>,
    now: Timestamp,
) -> crate::region::observe::Seen<'a> {
    crate::region::observe::Seen {
        now,
        tenant: resolved.tenant,
        tenant_view: resolved.tenant_view,
        items: &resolved.items,
        endpoint: body.endpoint.as_ref().map(body::Text::as_str),
        ip: body.ip.as_ref().map(body::Text::as_str),
    }
}

/// Writes down what the limits of a check said.
pub fn judged<'a>(
    region: &Region,
    items: &[Item<'a>],
    outcome: &'a Outcome,
) -> SmallVec<[Judged<'a>; 2]> {
    let is_shared = |item: &Item<'_>| item.limit.mode == Mode::Approximate;
    let staleness = if items.iter().any(is_shared) {
        region.staleness()
    } else {
        Span::ZERO
    };
    items
        .iter()
        .zip(&outcome.items)
        .map(|(item, outcome)| Judged {
            limit: item.limit,
            key: item.key,
            epoch: item.epoch,
            cost: item.cost,
            staleness,
            outcome,
        })
        .collect()
}

fn render(
    region: &Region,
    items: &[Item<'_>],
    outcome: &Outcome,
    now: Timestamp,
    in_batch: bool,
) -> Rendered {
    let frame = Frame {
        region: region.name.as_str(),
        now,
        // An item of a batch has no headers of its own.
        styles: if in_batch {
            HeaderStyles::default()
        } else {
            region.header_styles
        },
        hold: None,
        in_batch,
    };
    answer::render(&judged(region, items, outcome), &frame)
}

/// Many checks in one request; each is decided alone.
#[utoipa::path(
    post,
    path = "/v1/check/batch",
    tag = "check",
    request_body(content_type = "application/json", content = crate::http::schema::BatchRequest),
    responses(
        (status = 200, description = "Every item's answer with its status, in order", body = crate::http::schema::BatchAnswer),
        crate::http::schema::RequestProblems,
    )
)]
pub async fn batch(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
    request: Body,
) -> Response<Body> {
    match batched(&region, &headers, request).await {
        Ok(body) => crate::http::json(200, body),
        Err(problem) => problem.into_response(),
    }
}

async fn batched(
    region: &Arc<Region>,
    headers: &HeaderMap,
    request: Body,
) -> Result<Vec<u8>, Problem> {
    let caller = access::caller(region, headers).await?;
    if headers.contains_key("idempotency-key") {
        return Err(Problem::malformed(
            "Idempotency-Key: in a batch each item has its own idempotency_key",
        ));
    }
    let bytes = input::body(headers, request, body::BATCH_BYTES_MAX).await?;
    let batch: BatchBody<'_> = body::parse(&bytes)?;
    let mut answers = Vec::with_capacity(64 + 384 * batch.items.0.len());
    answers.extend_from_slice(b"{\"results\":[");
    let mut waiting = Vec::new();
    for item in &batch.items.0 {
        let text = item.get().as_bytes();
        let answered = match item_key(text) {
            // Most items are decided here and now, in order.
            Ok(None) => at_once(region, &caller, text, true),
            // A keyed one may repeat one before it: all of those must have ended.
            Ok(Some(key)) => {
                drain(&mut answers, &mut waiting).await;
                Some(keyed(region, caller.clone(), bytes.slice_ref(text), key, true).await)
            }
            Err(problem) => Some(Err(problem)),
        };
        match answered {
            Some(answered) if waiting.is_empty() => push_answer(&mut answers, answered),
            Some(answered) => waiting.push(Either::Left(ready(answered))),
            // What waits for the disk waits together, so that a batch of `sync` checks shares its commits.
            None => {
                let mut decided = Box::pin(awaited(region, &caller, text, true));
                // One poll takes the decision; only the disk is left to wait for.
                match decided.as_mut().now_or_never() {
                    Some(answered) if waiting.is_empty() => push_answer(&mut answers, answered),
                    Some(answered) => waiting.push(Either::Left(ready(answered))),
                    None => waiting.push(Either::Right(decided)),
                }
            }
        }
    }
    drain(&mut answers, &mut waiting).await;
    answers.extend_from_slice(b"]}");
    Ok(answers)
}

/// Waits for everything that waits, and writes the answers down in order.
async fn drain<F: Future<Output = Result<Rendered, Problem>>>(
    answers: &mut Vec<u8>,
    waiting: &mut Vec<F>,
) {
    for answered in join_all(std::mem::take(waiting)).await {
        push_answer(answers, answered);
    }
}

fn push_answer(answers: &mut Vec<u8>, answered: Result<Rendered, Problem>) {
    if answers.last() != Some(&b'[') {
        answers.push(b',');
    }
    match answered {
        Ok(rendered) => answers.extend_from_slice(&rendered.body),
        Err(problem) => answers.extend_from_slice(&problem.body()),
    }
}

/// The item's own idempotency key, if it names one.
fn item_key(text: &[u8]) -> Result<Option<String>, Problem> {
    // Most items have none, and a search is cheaper than a parse.
    const FIELD: &[u8] = b"idempotency_key";
    if memchr::memmem::find(text, FIELD).is_none() {
        return Ok(None);
    }
    let body: CheckBody<'_> = body::parse(text)?;
    body.idempotency_key
        .map(|key| input::plain_key(key.as_str()))
        .transpose()
}
