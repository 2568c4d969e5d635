//! What a gateway is told: a status for each descriptor, and the headers and the body of the HTTP answer.

use prost_types::Duration;
use prost_types::ListValue;
use prost_types::Struct;
use prost_types::Value;
use prost_types::value::Kind;
use smallvec::SmallVec;

use axum::http::HeaderName;
use axum::http::HeaderValue as HttpValue;
use axum::http::header;

use crate::domain::calendar::Period;
use crate::domain::decision::Decision;
use crate::domain::limit::Limit;
use crate::domain::limit::Rule;
use crate::domain::time::Span;
use crate::grpc::proto::envoy::config::core::v3::HeaderValue;
use crate::grpc::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::http::answer;
use crate::http::answer::Frame;
use crate::http::answer::Judged;

/// Headers of one limit, in the usual styles.
const HEADERS_USUAL: usize = 5;

/// The answer when no limit applies to any of so many descriptors.
pub fn without_limits(descriptors: usize) -> RateLimitResponse {
    RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: vec![without_limit(); descriptors],
        ..RateLimitResponse::default()
    }
}

fn without_limit() -> DescriptorStatus {
    DescriptorStatus {
        code: Code::Ok.into(),
        ..DescriptorStatus::default()
    }
}

/// What was said of the limits of a request.
#[derive(Debug, Default)]
pub struct Told<'a> {
    /// Of what was charged or looked at.
    pub charged: SmallVec<[Judged<'a>; 2]>,
    /// Of what was given back.
    pub given_back: SmallVec<[Judged<'a>; 2]>,
}

/// The answer to `descriptors` descriptors. `places` says, for each limit that one selected, whose it is, whether
/// it was given back, and its place there.
pub fn response(
    descriptors: usize,
    places: impl Iterator<Item = (usize, (bool, usize))>,
    told: &Told<'_>,
    frame: &Frame<'_>,
) -> RateLimitResponse {
    let mut tightest: SmallVec<[Option<(bool, &Judged<'_>)>; 4]> = SmallVec::new();
    tightest.resize(descriptors, None);
    for (descriptor, (is_back, place)) in places {
        let list = if is_back {
            &told.given_back
        } else {
            &told.charged
        };
        let (Some(judged), Some(known)) = (list.get(place), tightest.get_mut(descriptor)) else {
            continue;
        };
        if known.is_none_or(|(_, known)| is_tighter(judged, known)) {
            *known = Some((is_back, judged));
        }
    }
    let statuses = tightest
        .into_iter()
        .map(|told| told.map_or_else(without_limit, |(is_back, told)| status(told, is_back)))
        .collect();
    let is_over = answer::status(&told.charged) == 429;
    let mut response = RateLimitResponse {
        overall_code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        statuses,
        dynamic_metadata: metadata(&told.charged),
        ..RateLimitResponse::default()
    };
    if is_over {
        let rendered = answer::render(&told.charged, frame);
        response.response_headers_to_add = headers(&rendered.headers);
        response.response_headers_to_add.push(HeaderValue {
            key: header::CACHE_CONTROL.as_str().to_owned(),
            value: "no-store".to_owned(),
            ..HeaderValue::default()
        });
        response.raw_body = rendered.body;
    } else {
        let shown = if told.charged.is_empty() {
            &told.given_back
        } else {
            &told.charged
        };
        let told = &mut response.response_headers_to_add;
        told.reserve(HEADERS_USUAL);
        answer::allowed_headers(shown, frame, |name, value| {
            told.push(HeaderValue {
                key: name.as_str().to_owned(),
                value,
                ..HeaderValue::default()
            });
        });
    }
    response
}

/// Whether `a` says more than `b` of how a descriptor stands.
fn is_tighter(a: &Judged<'_>, b: &Judged<'_>) -> bool {
    let rank = |judged: &Judged<'_>| {
        let outcome = judged.outcome;
        let is_over = outcome.decision == Decision::Deny;
        let wait = outcome.retry_after.map_or(u64::MAX, Span::as_nanos);
        (
            !is_over,
            if is_over { u64::MAX - wait } else { 0 },
            judged.limit.unlimited,
            outcome.standing.remaining,
        )
    };
    rank(a) < rank(b)
}

fn status(judged: &Judged<'_>, is_back: bool) -> DescriptorStatus {
    let outcome = judged.outcome;
    // What is given back is never refused.
    let is_over = outcome.decision == Decision::Deny && !is_back;
    let code = if is_over { Code::OverLimit } else { Code::Ok };
    if judged.limit.unlimited {
        return DescriptorStatus {
            code: code.into(),
            limit_remaining: u32::MAX,
            ..DescriptorStatus::default()
        };
    }
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(RateLimit {
            name: judged.limit.name.to_string(),
            requests_per_unit: clamped(judged.limit.rule.quota()),
            unit: unit(judged.limit).into(),
        }),
        limit_remaining: clamped(outcome.standing.remaining),
        duration_until_reset: Some(duration(outcome.standing.reset_after)),
    }
}

fn clamped(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

fn duration(span: Span) -> Duration {
    let std = span.to_std();
    Duration {
        seconds: i64::try_from(std.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(std.subsec_nanos()).unwrap_or(0),
    }
}

/// The unit of time that a limit's quota is for, where there is one.
fn unit(limit: &Limit) -> Unit {
    let length = match &limit.rule {
        Rule::FixedWindow { window, .. }
        | Rule::SlidingWindow { window, .. }
        | Rule::SlidingLog { window, .. } => *window,
        Rule::TokenBucket {
            capacity: units,
            refill: rate,
            per,
        }
        | Rule::LeakyBucket {
            capacity: units,
            drain: rate,
            per,
        } => {
            if units != rate {
                return Unit::Unknown;
            }
            *per
        }
        Rule::CalendarWindow { calendar, .. } if calendar.every() == 1 => {
            return match calendar.period() {
                Period::Hour => Unit::Hour,
                Period::Day => Unit::Day,
                Period::Week => Unit::Week,
                Period::Month => Unit::Month,
                Period::Quarter => Unit::Unknown,
                Period::Year => Unit::Year,
            };
        }
        Rule::CalendarWindow { .. } | Rule::Concurrency { .. } => return Unit::Unknown,
    };
    const DAY: u64 = 86_400;
    let seconds = |seconds| length == Span::from_seconds(seconds);
    match () {
        () if seconds(1) => Unit::Second,
        () if seconds(60) => Unit::Minute,
        () if seconds(3_600) => Unit::Hour,
        () if seconds(DAY) => Unit::Day,
        () if seconds(7 * DAY) => Unit::Week,
        () if seconds(30 * DAY) => Unit::Month,
        () if seconds(365 * DAY) => Unit::Year,
        () => Unit::Unknown,
    }
}

fn headers(headers: &[(HeaderName, HttpValue)]) -> Vec<HeaderValue> {
    let written = headers.iter().filter_map(|(name, value)| {
        Some(HeaderValue {
            key: name.as_str().to_owned(),
            value: value.to_str().ok()?.to_owned(),
            ..HeaderValue::default()
        })
    });
    written.collect()
}

/// For the gateway's log: shadow limits that would have refused, and limits whose failure policy decided.
fn metadata(told: &[Judged<'_>]) -> Option<Struct> {
    let is_told = |told: &Judged<'_>| told.outcome.would_deny || told.outcome.degraded;
    if !told.iter().any(is_told) {
        return None;
    }
    let names = |of: fn(&Judged<'_>) -> bool| {
        let text = |judged: &Judged<'_>| Value {
            kind: Some(Kind::StringValue(judged.limit.name.to_string())),
        };
        let values: Vec<Value> = told.iter().filter(|told| of(told)).map(text).collect();
        (!values.is_empty()).then_some(Value {
            kind: Some(Kind::ListValue(ListValue { values })),
        })
    };
    let fields = [
        (
            "would_deny",
            names(|told| !told.limit.enforce && told.outcome.would_deny),
        ),
        ("degraded", names(|told| told.outcome.degraded)),
    ];
    let fields: std::collections::BTreeMap<String, Value> = fields
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect();
    (!fields.is_empty()).then_some(Struct { fields })
}
