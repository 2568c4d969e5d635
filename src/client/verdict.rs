//! What is answered: yes or no, who says so, and how the limits stand.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::HeaderName;
use http::header::RETRY_AFTER;
use serde::Deserialize;
use serde::Deserializer;
use serde::de::DeserializeOwned;

use crate::domain::decision::DecidedBy;
use crate::domain::decision::Decision;
use crate::domain::decision::Reason;

use super::OnFailure;
use super::error::CheckError;
use super::error::Failure;

/// Who was denied because no server answered may come back after this.
const RETRY_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The headers that tell how the tightest limit stands.
const LIMIT_HEADERS: [HeaderName; 8] = [
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("ratelimit-policy"),
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// The answer to a [`Check`](super::Check). Cheap to clone.
#[derive(Clone, Debug)]
pub struct Verdict(Arc<Told>);

#[derive(Debug)]
enum Told {
    ByServer(Answer),
    ByPolicy { allowed: bool, failure: Failure },
}

/// What a server said.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    /// The problem's body, of a refusal.
    problem: Option<String>,
    body: Body,
}

#[derive(Debug, Deserialize)]
struct Body {
    decision: Decision,
    region: String,
    #[serde(default)]
    delay_ms: u64,
    results: Vec<LimitVerdict>,
}

/// What one limit said.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct LimitVerdict {
    /// The limit.
    pub limit: String,
    /// The key that it was counted by.
    #[serde(default)]
    pub key: Option<String>,
    /// Yes or no of this limit alone.
    pub decision: Decision,
    /// Why not; also none for a reason that this version does not know.
    #[serde(default, deserialize_with = "known")]
    pub reason: Option<Reason>,
    /// A shadow limit that would have said no.
    #[serde(default)]
    pub would_deny: bool,
    /// The quota or capacity; none when unlimited.
    pub quota: Option<u64>,
    /// Units in use.
    pub used: u64,
    /// Whole units left; none when unlimited.
    pub remaining: Option<u64>,
    /// Until the use is back at zero (windows: until the window ends).
    #[serde(rename = "reset_after_ms", deserialize_with = "milliseconds")]
    pub reset_after: Duration,
    /// When the same check can pass; none when it passed, or waiting cannot help.
    #[serde(
        rename = "retry_after_ms",
        default,
        deserialize_with = "some_milliseconds"
    )]
    pub retry_after: Option<Duration>,
    /// What the answer rests on; none when this version does not know it.
    #[serde(default, deserialize_with = "known")]
    pub decided_by: Option<DecidedBy>,
    /// Age of the oldest report of another region that the answer rests on.
    #[serde(rename = "staleness_ms", default, deserialize_with = "milliseconds")]
    pub staleness: Duration,
    /// The limit's own failure policy decided.
    #[serde(default)]
    pub degraded: bool,
}

/// How the tightest limit of a check stands, as the `RateLimit` and `RateLimit-Policy` headers tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimit {
    /// The limit.
    pub limit: String,
    /// The quota or capacity.
    pub quota: u64,
    /// Whole units left.
    pub remaining: u64,
    /// Until the use is back at zero, in whole seconds, rounded up.
    pub reset_after: Duration,
    /// The length of the window; none of limits without.
    pub window: Option<Duration>,
}

impl Verdict {
    /// Whether the caller may go on.
    pub fn is_allowed(&self) -> bool {
        match &*self.0 {
            Told::ByServer(answer) => answer.body.decision == Decision::Allow,
            Told::ByPolicy { allowed, .. } => *allowed,
        }
    }

    /// Whether no server decided, but the client's own policy.
    pub fn is_local(&self) -> bool {
        self.failure().is_some()
    }

    /// Whether a failure policy decided: the client's own ([`Self::is_local`]), or that of one of the limits.
    pub fn is_degraded(&self) -> bool {
        let by_policy = |result: &LimitVerdict| {
            result.degraded || result.decided_by == Some(DecidedBy::Fallback)
        };
        self.is_local() || self.results().iter().any(by_policy)
    }

    /// Why no server decided; none when one did.
    pub fn failure(&self) -> Option<&Failure> {
        match &*self.0 {
            Told::ByServer(_) => None,
            Told::ByPolicy { failure, .. } => Some(failure),
        }
    }

    /// The HTTP status that says this: 200 allowed, 429 refused, 503 denied because it could not be decided.
    pub fn status(&self) -> u16 {
        match &*self.0 {
            Told::ByServer(answer) => answer.status,
            Told::ByPolicy { allowed: true, .. } => 200,
            Told::ByPolicy { allowed: false, .. } => 503,
        }
    }

    /// When the same check can pass; none when it passed, or waiting cannot help. 1 s after a failure.
    pub fn retry_after(&self) -> Option<Duration> {
        if self.is_allowed() {
            return None;
        }
        if self.is_local() {
            return Some(RETRY_AFTER_FAILURE);
        }
        // The longest wait; one limit that can never pass makes it never.
        let denied = self.results().iter();
        let denied = denied.filter(|result| result.decision == Decision::Deny);
        let waits: Option<Vec<Duration>> = denied.map(|result| result.retry_after).collect();
        waits?.into_iter().max()
    }

    /// How long a leaky bucket makes this call wait before it goes on; zero without one.
    pub fn delay(&self) -> Duration {
        match &*self.0 {
            Told::ByServer(answer) => Duration::from_millis(answer.body.delay_ms),
            Told::ByPolicy { .. } => Duration::ZERO,
        }
    }

    /// The region that answered; none when none did.
    pub fn region(&self) -> Option<&str> {
        match &*self.0 {
            Told::ByServer(answer) => Some(&answer.body.region),
            Told::ByPolicy { .. } => None,
        }
    }

    /// What each limit said, in the order asked; empty when no server answered, or no limit applies.
    pub fn results(&self) -> &[LimitVerdict] {
        match &*self.0 {
            Told::ByServer(answer) => &answer.body.results,
            Told::ByPolicy { .. } => &[],
        }
    }

    /// How the tightest limit stands; none when no server answered, no limit applies, or the server does not
    /// write these headers (`headers.style`).
    pub fn rate_limit(&self) -> Option<RateLimit> {
        let text = |name| self.server_headers()?.get(name)?.to_str().ok();
        read_rate_limit(text("ratelimit-policy")?, text("ratelimit")?)
    }

    /// The server's `RateLimit…`, `X-RateLimit-…` and `Retry-After` headers.
    pub(super) fn server_headers(&self) -> Option<&HeaderMap> {
        match &*self.0 {
            Told::ByServer(answer) => Some(&answer.headers),
            Told::ByPolicy { .. } => None,
        }
    }

    /// The problem's body of a refusal by a server.
    pub(super) fn problem(&self) -> Option<&str> {
        match &*self.0 {
            Told::ByServer(answer) => answer.problem.as_deref(),
            Told::ByPolicy { .. } => None,
        }
    }

    pub(super) fn by_policy(policy: OnFailure, failure: Failure) -> Self {
        Self(Arc::new(Told::ByPolicy {
            allowed: policy == OnFailure::Allow,
            failure,
        }))
    }
}

/// An answer that decides nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoVerdict {
    /// The policy is to decide.
    Failed(Failure),
    /// The question is at fault.
    Refused(CheckError),
}

/// Reads a server's answer. 200, 429 and 503 are verdicts when they carry a decision that fits; other answers
/// below 400 or from 500 on, 408 and a bare 429 are failures, the rest is the caller's mistake.
pub(super) fn read(status: u16, headers: &HeaderMap, body: Vec<u8>) -> Result<Verdict, NoVerdict> {
    let wanted = match status {
        200 => Decision::Allow,
        429 | 503 => Decision::Deny,
        408 => return Err(NoVerdict::Failed(Failure::Status(status))),
        400..=499 => return Err(NoVerdict::Refused(refused(status, &body))),
        _ => return Err(NoVerdict::Failed(Failure::Status(status))),
    };
    let unreadable = |why: String| NoVerdict::Failed(Failure::Unreadable(why));
    let told: Body = match serde_json::from_slice(&body) {
        Ok(told) => told,
        Err(error) if status == 200 => return Err(unreadable(error.to_string())),
        // Anyone on the way may say these for reasons of his own.
        Err(_) => return Err(NoVerdict::Failed(Failure::Status(status))),
    };
    if told.decision != wanted {
        return Err(unreadable(format!(
            "the decision contradicts the status {status}"
        )));
    }
    let problem = (status != 200).then(|| String::from_utf8(body)).transpose();
    let mut kept = HeaderMap::with_capacity(8);
    for name in LIMIT_HEADERS.into_iter().chain([RETRY_AFTER]) {
        if let Some(value) = headers.get(&name) {
            kept.insert(name, value.clone());
        }
    }
    Ok(Verdict(Arc::new(Told::ByServer(Answer {
        status,
        headers: kept,
        problem: problem.map_err(|error| unreadable(error.to_string()))?,
        body: told,
    }))))
}

/// The server's words about a question that it cannot answer, cut to a bound.
fn refused(status: u16, body: &[u8]) -> CheckError {
    const CHARACTERS_MAX: usize = 1000;
    #[derive(Default, Deserialize)]
    struct Problem {
        code: Option<String>,
        detail: Option<String>,
        title: Option<String>,
    }
    let problem: Problem = serde_json::from_slice(body).unwrap_or_default();
    let said = problem.detail.or(problem.title);
    let detail = said.unwrap_or_else(|| "no reason was given".to_owned());
    CheckError::Refused {
        status,
        code: problem.code,
        detail: detail.chars().take(CHARACTERS_MAX).collect(),
    }
}

/// Reads `"api";q=100;w=60` and `"api";r=57;t=23`.
fn read_rate_limit(policy: &str, standing: &str) -> Option<RateLimit> {
    let mut parts = policy.split(';');
    let limit = parts.next()?.trim().strip_prefix('"')?.strip_suffix('"')?;
    let number = |text: &str, name: &str| {
        let mut parameters = text.split(';').skip(1);
        parameters.find_map(|part| part.trim().strip_prefix(name)?.parse::<u64>().ok())
    };
    Some(RateLimit {
        limit: limit.to_owned(),
        quota: number(policy, "q=")?,
        remaining: number(standing, "r=")?,
        reset_after: Duration::from_secs(number(standing, "t=")?),
        window: number(policy, "w=").map(Duration::from_secs),
    })
}

fn milliseconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    u64::deserialize(from).map(Duration::from_millis)
}

fn some_milliseconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
}

/// A word of a newer server is no reason not to understand the rest of its answer.
fn known<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Option<T>, D::Error> {
    let value = Option::<serde_json::Value>::deserialize(from)?;
    Ok(value.and_then(|value| serde_json::from_value(value).ok()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::Value;
    use serde_json::json;

    use super::*;

    fn result(limit: &str, decision: &str, retry_after_ms: Option<u64>) -> Value {
        json!({
            "limit": limit, "mode": "regional", "decision": decision, "quota": 3, "used": 3, "remaining": 0,
            "reset_after_ms": 1500, "retry_after_ms": retry_after_ms, "decided_by": "local", "staleness_ms": 0,
            "degraded": false, "epoch": 1, "reason": "quota_exceeded",
        })
    }

    fn told(status: u16, body: &Value) -> Result<Verdict, NoVerdict> {
        read(status, &HeaderMap::new(), body.to_string().into_bytes())
    }

    fn failed(status: u16, body: &Value) -> Failure {
        match told(status, body) {
            Err(NoVerdict::Failed(failure)) => failure,
            other => panic!("{status}: {other:?}"),
        }
    }

    #[test]
    fn the_longest_wait_counts_and_never_is_the_longest() {
        let refusal = |results: &[Value]| {
            let body = json!({ "decision": "deny", "region": "r", "results": results });
            let verdict = told(429, &body).expect("a verdict");
            assert!(!verdict.is_allowed() && !verdict.is_local());
            verdict.retry_after()
        };
        let (short, long) = (
            result("a", "deny", Some(10)),
            result("b", "deny", Some(1500)),
        );
        let passing = result("c", "allow", None);
        let some = Some(Duration::from_millis(1500));
        assert_eq!(refusal(&[short.clone(), long, passing]), some);
        assert_eq!(refusal(&[short, result("d", "deny", None)]), None);
    }

    #[test]
    fn words_of_a_newer_server_are_passed_over() {
        let mut newer = result("a", "deny", None);
        newer["reason"] = json!("moon_phase");
        newer["decided_by"] = json!({ "oracle": 1 });
        newer["more"] = json!([1]);
        let body = json!({ "decision": "deny", "region": "r", "results": [newer], "more": {} });
        let verdict = told(429, &body).expect("a verdict");
        assert_eq!(verdict.results()[0].reason, None);
        assert_eq!(verdict.results()[0].decided_by, None);
        assert!(verdict.problem().expect("a body").contains("moon_phase"));
    }

    #[test]
    fn what_is_no_decision_is_a_failure_and_a_mistake_is_neither() {
        let yes = json!({ "decision": "allow", "region": "r", "results": [] });
        assert!(told(200, &yes).expect("a verdict").is_allowed());
        assert!(matches!(failed(200, &json!([])), Failure::Unreadable(_)));
        assert!(matches!(failed(429, &yes), Failure::Unreadable(_)));
        for status in [204, 302, 408, 429, 500, 502, 503, 504] {
            assert_eq!(failed(status, &json!({})), Failure::Status(status));
        }
        let problem = json!({ "code": "unknown_limit", "detail": "there is no limit \"x\"" });
        for status in [400, 401, 403, 404, 409, 413, 422] {
            let Err(NoVerdict::Refused(error)) = told(status, &problem) else {
                panic!("{status} is a mistake");
            };
            assert_eq!(
                error.to_string(),
                format!(
                    "the check cannot be answered: there is no limit \"x\" (HTTP {status}, unknown_limit)"
                )
            );
        }
    }

    #[test]
    fn the_tightest_limit_is_read_from_the_headers() {
        let mut headers = HeaderMap::new();
        let yes = json!({ "decision": "allow", "region": "r", "results": [] }).to_string();
        let stands = |headers: &HeaderMap| {
            let verdict = read(200, headers, yes.clone().into_bytes());
            verdict.expect("a verdict").rate_limit()
        };
        assert_eq!(stands(&headers), None);
        let mut set = |name: &'static str, value: &'static str| {
            headers.insert(name, HeaderValue::from_static(value));
        };
        set("ratelimit-policy", "\"api\";q=100;w=60");
        set("ratelimit", "\"api\";r=57;t=23");
        let wanted = RateLimit {
            limit: "api".to_owned(),
            quota: 100,
            remaining: 57,
            reset_after: Duration::from_secs(23),
            window: Some(Duration::from_secs(60)),
        };
        assert_eq!(stands(&headers), Some(wanted.clone()));
        headers.insert(
            "ratelimit-policy",
            HeaderValue::from_static("\"api\";q=100;qu=\"concurrent-requests\""),
        );
        let unwindowed = RateLimit {
            window: None,
            ..wanted
        };
        assert_eq!(stands(&headers), Some(unwindowed));
        headers.insert("ratelimit", HeaderValue::from_static("api=57"));
        assert_eq!(stands(&headers), None);
    }
}
