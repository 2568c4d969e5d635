//! The answers of the check API: bodies and headers.
//!
//! All headers tell of one and the same limit, the tightest of the check: the one with the fewest further
//! checks of this cost, then the longest reset; on a refusal the one that refused with the longest wait
//! (never is the longest). Times that callers wait are rounded up, so coming back exactly then works.

use std::fmt::Write;

use axum::body::Body;
use axum::http::HeaderName;
use axum::http::HeaderValue;
use axum::http::Response;
use axum::http::StatusCode;
use axum::http::header;
use serde::Serialize;
use smallvec::SmallVec;
use utoipa::ToSchema;

use crate::domain::decision::DecidedBy;
use crate::domain::decision::Decision;
use crate::domain::decision::Reason;
use crate::domain::limit::Limit;
use crate::domain::limit::Mode;
use crate::domain::limit::Rule;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::ledger::check::ItemOutcome;
use crate::region::config::HeaderStyles;

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RATELIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// One limit of a check with what it said.
#[derive(Clone, Copy, Debug)]
pub struct Judged<'a> {
    /// The limit.
    pub limit: &'a Limit,
    /// The key; empty when the limit has none.
    pub key: &'a str,
    /// The limit's epoch.
    pub epoch: u64,
    /// Units asked for.
    pub cost: u64,
    /// Age of the oldest report of a peer.
    pub staleness: Span,
    /// What it said.
    pub outcome: &'a ItemOutcome,
}

/// What one limit said.
#[derive(Debug, Serialize, ToSchema)]
pub struct ItemAnswer<'a> {
    /// The limit.
    #[schema(value_type = String)]
    pub limit: &'a str,
    /// The key that it was counted by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<&'a str>,
    /// How global the limit is.
    pub mode: Mode,
    /// Yes or no.
    pub decision: Decision,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// A shadow limit would have said no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_deny: Option<bool>,
    /// The quota or capacity; null when unlimited.
    pub quota: Option<u64>,
    /// Units in use.
    pub used: u64,
    /// Whole units left; null when unlimited.
    pub remaining: Option<u64>,
    /// Until the use is back at zero (windows: until the window ends).
    pub reset_after_ms: u64,
    /// When the same check can pass; null when it passed or waiting cannot help.
    pub retry_after_ms: Option<u64>,
    /// What the answer rests on.
    pub decided_by: DecidedBy,
    /// Age of the oldest peer report that the answer rests on.
    pub staleness_ms: u64,
    /// Decided by the failure policy.
    pub degraded: bool,
    /// Start of the window, of limits that have windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_start_ms: Option<i64>,
    /// The limit's epoch.
    pub epoch: u64,
}

impl<'a> ItemAnswer<'a> {
    /// The answer of one limit.
    pub fn new(judged: &Judged<'a>) -> Self {
        let staleness = if judged.limit.mode == Mode::Approximate {
            judged.staleness
        } else {
            Span::ZERO
        };
        let outcome = judged.outcome;
        let limited = !judged.limit.unlimited;
        Self {
            limit: judged.limit.name.as_str(),
            key: (!judged.key.is_empty()).then_some(judged.key),
            mode: judged.limit.mode,
            decision: outcome.decision,
            reason: outcome.reason,
            would_deny: (!judged.limit.enforce).then_some(outcome.would_deny),
            quota: limited.then_some(judged.limit.rule.quota()),
            used: outcome.standing.used,
            remaining: limited.then_some(outcome.standing.remaining),
            reset_after_ms: outcome.standing.reset_after.as_ms_ceil(),
            retry_after_ms: outcome.retry_after.map(Span::as_ms_ceil),
            decided_by: outcome.decided_by,
            staleness_ms: staleness.as_ms_ceil(),
            degraded: outcome.degraded,
            window_start_ms: outcome.window_start.map(Timestamp::as_unix_ms),
            epoch: judged.epoch,
        }
    }
}

/// The body of an answer: 200 carries `decision`, `region`, `delay_ms` and `results`; 429 and 503 carry
/// the problem's members too.
#[derive(Debug, Serialize, ToSchema)]
pub struct CheckAnswer<'a> {
    /// What kind of refusal (429, 503).
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub kind: Option<&'static str>,
    /// The refusal in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub title: Option<&'static str>,
    /// The HTTP status of a refusal; in a batch, of every item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The limits that refused.
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub violated_policies: Option<SmallVec<[&'a str; 2]>>,
    /// The hold that was opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub hold: Option<&'a str>,
    /// When the hold ends unless it is renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<i64>,
    /// Yes or no.
    pub decision: Decision,
    /// The region that answered.
    #[schema(value_type = String)]
    pub region: &'a str,
    /// How long a leaky bucket makes this call wait.
    pub delay_ms: u64,
    /// What each limit said, in the order asked.
    #[schema(value_type = Vec<ItemAnswer>)]
    pub results: SmallVec<[ItemAnswer<'a>; 2]>,
}

/// An answer ready to be sent or remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The HTTP status.
    pub status: u16,
    /// All headers but `Cache-Control`.
    pub headers: SmallVec<[(HeaderName, HeaderValue); 8]>,
    /// The JSON body.
    pub body: Vec<u8>,
}

/// What surrounds the limits of an answer.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The region that answers.
    pub region: &'a str,
    /// Region time.
    pub now: Timestamp,
    /// Which headers.
    pub styles: HeaderStyles,
    /// The hold that was opened, and its end.
    pub hold: Option<(&'a str, Timestamp)>,
    /// Whether the status stands in the body even when it is 200.
    pub in_batch: bool,
}

/// The status of a check: 429 beats 503 beats 200.
pub fn status(judged: &[Judged<'_>]) -> u16 {
    let mut status = 200;
    for item in judged {
        match item.outcome.reason {
            Some(Reason::QuotaExceeded | Reason::CostExceedsQuota) => return 429,
            Some(Reason::Unavailable | Reason::OutcomeUnknown) => status = 503,
            None => {}
        }
    }
    status
}

/// Writes an answer.
pub fn render(judged: &[Judged<'_>], frame: &Frame<'_>) -> Rendered {
    let status = status(judged);
    let mut rendered = Rendered {
        status,
        headers: SmallVec::new(),
        body: Vec::with_capacity(512),
    };
    let delay = judged
        .iter()
        .map(|item| item.outcome.delay)
        .max()
        .unwrap_or(Span::ZERO);
    let mut answer = CheckAnswer {
        kind: None,
        title: None,
        status: frame.in_batch.then_some(status),
        detail: None,
        violated_policies: None,
        hold: frame.hold.map(|(id, _)| id),
        expires_ms: frame.hold.map(|(_, end)| end.as_unix_ms()),
        decision: if status == 200 {
            Decision::Allow
        } else {
            Decision::Deny
        },
        region: frame.region,
        delay_ms: if status == 200 { delay.as_ms_ceil() } else { 0 },
        results: judged.iter().map(ItemAnswer::new).collect(),
    };
    if status == 200 {
        rendered.headers.push((
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        ));
    } else {
        refuse(judged, status, &mut answer);
        rendered.headers.push((
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        ));
        if let Some(seconds) = retry_after_seconds(judged) {
            rendered
                .headers
                .push((header::RETRY_AFTER, HeaderValue::from(seconds)));
        }
    }
    // Writing integers and texts to memory cannot fail.
    let written = serde_json::to_writer(&mut rendered.body, &answer);
    debug_assert!(written.is_ok(), "an answer is plain data");
    if let Some(tightest) = tightest(judged, status) {
        push_headers(tightest, frame, &mut rendered.headers);
    }
    rendered
}

/// Tells the headers of the tightest limit of an allowed check.
pub fn allowed_headers(
    judged: &[Judged<'_>],
    frame: &Frame<'_>,
    tell: impl FnMut(HeaderName, String),
) {
    if let Some(tightest) = tightest(judged, 200) {
        limit_headers(tightest, frame, tell);
    }
}

/// The headers that tell how one limit stands, for an answer that is no decision.
pub fn standing_headers(
    judged: &Judged<'_>,
    frame: &Frame<'_>,
) -> SmallVec<[(HeaderName, HeaderValue); 8]> {
    let mut headers = SmallVec::new();
    headers.push((
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    ));
    if !judged.limit.unlimited {
        push_headers(judged, frame, &mut headers);
    }
    headers
}

fn refuse<'a>(judged: &[Judged<'a>], status: u16, answer: &mut CheckAnswer<'a>) {
    let refused = judged
        .iter()
        .filter(|item| item.outcome.decision == Decision::Deny);
    answer.status = Some(status);
    if status == 429 {
        answer.kind = Some(QUOTA_EXCEEDED);
        answer.title = Some("Request cannot be satisfied as assigned quota has been exceeded");
    } else {
        answer.kind = Some(REDUCED_CAPACITY);
        answer.title =
            Some("Request cannot be satisfied due to temporary server capacity constraints");
    }
    let mut detail = String::new();
    for item in refused.clone() {
        if !detail.is_empty() {
            detail.push_str("; ");
        }
        // Writing to a text cannot fail.
        let _ = match item.outcome.reason {
            Some(Reason::CostExceedsQuota) => write!(
                detail,
                "limit {}: a cost of {} is more than its quota of {} and can never pass",
                item.limit.name,
                item.cost.max(1),
                item.limit.rule.quota()
            ),
            Some(Reason::Unavailable) => {
                let why = match (item.limit.mode, item.outcome.decided_by) {
                    (Mode::Strict, DecidedBy::Leader) => {
                        "the leader has no room for one more counter or key"
                    }
                    (Mode::Strict, _) => {
                        "this region reaches no leader of strict limits, or cannot keep counts, at the moment"
                    }
                    _ => "this region cannot keep counts at the moment",
                };
                write!(detail, "limit {}: {why}", item.limit.name)
            }
            Some(Reason::OutcomeUnknown) => write!(
                detail,
                "limit {}: it may have been charged; repeat with the same Idempotency-Key",
                item.limit.name
            ),
            Some(Reason::QuotaExceeded) | None => write!(
                detail,
                "limit {}: {} of {} used, {} asked",
                item.limit.name,
                item.outcome.standing.used,
                item.limit.rule.quota(),
                item.cost.max(1)
            ),
        };
    }
    answer.detail = Some(detail);
    answer.violated_policies = Some(refused.map(|item| item.limit.name.as_str()).collect());
}

/// The longest wait of the limits that refused, in whole seconds and at least 1; none when one of them
/// can never pass.
fn retry_after_seconds(judged: &[Judged<'_>]) -> Option<u64> {
    let mut longest = Span::ZERO;
    for item in judged
        .iter()
        .filter(|item| item.outcome.decision == Decision::Deny)
    {
        longest = longest.max(item.outcome.retry_after?);
    }
    Some(longest.as_seconds_ceil().max(1))
}

fn tightest<'a, 'b>(judged: &'b [Judged<'a>], status: u16) -> Option<&'b Judged<'a>> {
    let limited = judged.iter().filter(|item| !item.limit.unlimited);
    if status == 200 {
        // Shadow limits stand back behind those that can refuse.
        return limited.min_by_key(|item| {
            let further = item.outcome.standing.remaining / item.cost.max(1);
            (
                !item.limit.enforce,
                further,
                std::cmp::Reverse(item.outcome.standing.reset_after),
            )
        });
    }
    limited
        .filter(|item| item.outcome.decision == Decision::Deny)
        .max_by_key(|item| (item.outcome.retry_after.is_none(), item.outcome.retry_after))
}

/// The length that `w` tells, in whole seconds.
fn window_seconds(item: &Judged<'_>) -> Option<u64> {
    let length = match &item.limit.rule {
        Rule::FixedWindow { window, .. }
        | Rule::SlidingWindow { window, .. }
        | Rule::SlidingLog { window, .. } => *window,
        Rule::CalendarWindow { .. } => item.outcome.calendar_length?,
        Rule::TokenBucket { .. } | Rule::LeakyBucket { .. } => {
            crate::ledger::counter::flow(&item.limit.rule)?.time_to_refill()
        }
        Rule::Concurrency { .. } => return None,
    };
    Some(length.as_seconds_ceil().max(1))
}

fn limit_headers(item: &Judged<'_>, frame: &Frame<'_>, mut tell: impl FnMut(HeaderName, String)) {
    let standing = &item.outcome.standing;
    let quota = item.limit.rule.quota();
    let reset_seconds = standing.reset_after.as_seconds_ceil();
    if frame.styles.ietf {
        // A limit's name is a slug, so it needs no escapes inside a structured field's string.
        let name = item.limit.name.as_str();
        let policy = match window_seconds(item) {
            Some(seconds) => format!("\"{name}\";q={quota};w={seconds}"),
            None => format!("\"{name}\";q={quota};qu=\"concurrent-requests\""),
        };
        tell(RATELIMIT_POLICY, policy);
        let remaining = standing.remaining;
        tell(
            RATELIMIT,
            format!("\"{name}\";r={remaining};t={reset_seconds}"),
        );
    }
    if frame.styles.github {
        let reset = frame.now.plus(standing.reset_after).as_unix_seconds_ceil();
        tell(X_RATELIMIT_LIMIT, quota.to_string());
        tell(X_RATELIMIT_REMAINING, standing.remaining.to_string());
        tell(X_RATELIMIT_RESET, reset.to_string());
    }
    if frame.styles.legacy {
        tell(RATELIMIT_LIMIT, quota.to_string());
        tell(RATELIMIT_REMAINING, standing.remaining.to_string());
        tell(RATELIMIT_RESET, reset_seconds.to_string());
    }
}

fn push_headers(
    item: &Judged<'_>,
    frame: &Frame<'_>,
    headers: &mut SmallVec<[(HeaderName, HeaderValue); 8]>,
) {
    limit_headers(item, frame, |name, text| {
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.push((name, value));
        }
    });
}

impl From<Rendered> for Response<Body> {
    fn from(rendered: Rendered) -> Self {
        let mut response = Response::new(Body::from(rendered.body));
        *response.status_mut() =
            StatusCode::from_u16(rendered.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.reserve(rendered.headers.len() + 1);
        for (name, value) in rendered.headers {
            headers.append(name, value);
        }
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}
