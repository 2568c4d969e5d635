//! An answer of the server, with what tests ask of it.

use serde_json::Value;

/// `type` of a refusal.
pub const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// `type` of an answer that this region cannot give.
pub const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// Status, headers and body; `body` is null when the text is not JSON.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// All headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body as JSON.
    pub body: Value,
    /// The body as it came.
    pub text: String,
}

#[allow(dead_code, reason = "each test binary uses its part of the harness")]
impl Answer {
    /// An answer with its body read as JSON where it is JSON.
    pub fn new(status: u16, headers: Vec<(String, String)>, text: String) -> Self {
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Self {
            status,
            headers,
            body,
            text,
        }
    }

    /// The value of a header that must not come twice.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self
            .headers
            .iter()
            .filter(|(found, _)| found == name)
            .map(|(_, value)| value.as_str());
        let first = values.next();
        assert_eq!(values.next(), None, "{name} comes twice: {self:?}");
        first
    }

    /// Fails unless the status is 2xx.
    pub fn succeeded(&self) {
        assert!((200..300).contains(&self.status), "{self:?}");
    }

    /// Whether a check was allowed; fails when the answer is neither a yes nor a refusal, or contradicts itself.
    pub fn allowed(&self) -> bool {
        match self.status {
            200 => {
                assert_eq!(self.body["decision"], "allow", "{self:?}");
                true
            }
            429 => {
                assert_eq!(self.body["decision"], "deny", "{self:?}");
                assert_eq!(
                    self.header("content-type"),
                    Some("application/problem+json"),
                    "{self:?}"
                );
                assert_eq!(self.body["type"], QUOTA_EXCEEDED, "{self:?}");
                assert_eq!(self.body["status"], 429, "{self:?}");
                false
            }
            _ => panic!("neither allowed nor refused: {self:?}"),
        }
    }

    /// Whether units of a strict limit were refused to the check `body` that by the same answer are not used: they
    /// lie in another region.
    pub fn lies_elsewhere(&self, body: &Value) -> bool {
        let results = self.body["results"].as_array();
        results.into_iter().flatten().any(|result| {
            let units = |name: &str| result[name].as_u64().unwrap_or(u64::MAX);
            let cost = body["cost"].as_u64().unwrap_or(1).max(1);
            result["mode"] == "strict"
                && result["reason"] == "quota_exceeded"
                && units("used").saturating_add(cost) <= units("quota")
        })
    }

    /// The result of a limit by its name.
    pub fn result(&self, limit: &str) -> &Value {
        let results = self.body["results"]
            .as_array()
            .unwrap_or_else(|| panic!("no results: {self:?}"));
        let found = results.iter().find(|result| result["limit"] == limit);
        found.unwrap_or_else(|| panic!("no result for {limit}: {self:?}"))
    }

    /// The result of an answer that has exactly one.
    pub fn only(&self) -> &Value {
        let results = self.body["results"]
            .as_array()
            .unwrap_or_else(|| panic!("no results: {self:?}"));
        assert_eq!(results.len(), 1, "{self:?}");
        &results[0]
    }

    /// A whole number of the only result.
    pub fn number(&self, field: &str) -> u64 {
        self.only()[field]
            .as_u64()
            .unwrap_or_else(|| panic!("{field} is no whole number: {self:?}"))
    }

    /// `quota` of the only result.
    pub fn quota(&self) -> u64 {
        self.number("quota")
    }

    /// `used` of the only result.
    pub fn used(&self) -> u64 {
        self.number("used")
    }

    /// `remaining` of the only result.
    pub fn remaining(&self) -> u64 {
        self.number("remaining")
    }

    /// `reset_after_ms` of the only result.
    pub fn reset_after_ms(&self) -> u64 {
        self.number("reset_after_ms")
    }

    /// `retry_after_ms` of the only result; none when it is null.
    pub fn retry_after_ms(&self) -> Option<u64> {
        let value = &self.only()["retry_after_ms"];
        assert!(value.is_null() || value.is_u64(), "{self:?}");
        value.as_u64()
    }

    /// `reason` of the only result.
    pub fn reason(&self) -> &str {
        self.only()["reason"]
            .as_str()
            .unwrap_or_else(|| panic!("no reason: {self:?}"))
    }

    /// `Retry-After` in seconds.
    pub fn retry_after(&self) -> Option<u64> {
        self.header("retry-after").map(|value| {
            value
                .parse()
                .unwrap_or_else(|_| panic!("Retry-After: {value}"))
        })
    }

    /// `RateLimit`: the policy's name, `r` and `t`.
    pub fn rate_limit(&self) -> (String, u64, u64) {
        let value = self
            .header("ratelimit")
            .unwrap_or_else(|| panic!("no RateLimit: {self:?}"));
        let (name, parameters) = item(value);
        let number = |wanted: &str| {
            let found = parameters.iter().find(|(name, _)| *name == wanted);
            found
                .and_then(|(_, value)| value.parse().ok())
                .unwrap_or_else(|| panic!("no {wanted} in {value}"))
        };
        (name.to_owned(), number("r"), number("t"))
    }

    /// A parameter of `RateLimit-Policy`.
    pub fn policy(&self, parameter: &str) -> Option<&str> {
        let value = self
            .header("ratelimit-policy")
            .unwrap_or_else(|| panic!("no RateLimit-Policy: {self:?}"));
        item(value)
            .1
            .into_iter()
            .find(|(name, _)| *name == parameter)
            .map(|(_, value)| value)
    }

    /// `X-RateLimit-Reset`, in Unix seconds.
    pub fn reset_at(&self) -> i64 {
        let value = self
            .header("x-ratelimit-reset")
            .unwrap_or_else(|| panic!("no X-RateLimit-Reset: {self:?}"));
        value
            .parse()
            .unwrap_or_else(|_| panic!("X-RateLimit-Reset: {value}"))
    }

    /// The id of a hold that was granted.
    pub fn hold_id(&self) -> String {
        assert!(self.allowed(), "{self:?}");
        let id = self.body["hold"]["id"]
            .as_str()
            .or_else(|| self.body["hold"].as_str());
        id.unwrap_or_else(|| panic!("no hold: {self:?}")).to_owned()
    }

    /// Fails unless this is a problem of this status and code.
    pub fn problem(&self, status: u16, code: &str) {
        self.problem_with_status(status);
        assert_eq!(self.body["code"], code, "{self:?}");
    }

    /// Fails unless this is a well-formed problem of this status.
    pub fn problem_with_status(&self, status: u16) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        assert_eq!(self.body["status"], status, "{self:?}");
        assert_eq!(self.body["type"], "about:blank", "{self:?}");
        assert!(
            self.body["title"]
                .as_str()
                .is_some_and(|title| !title.is_empty()),
            "{self:?}"
        );
        assert!(
            self.body["detail"]
                .as_str()
                .is_some_and(|detail| !detail.is_empty()),
            "{self:?}"
        );
    }

    /// Fails unless this region said that it cannot decide.
    pub fn unavailable(&self) {
        assert_eq!(self.status, 503, "{self:?}");
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        assert_eq!(self.body["type"], REDUCED_CAPACITY, "{self:?}");
        assert_eq!(self.body["decision"], "deny", "{self:?}");
        assert!(
            self.retry_after().is_some_and(|seconds| seconds >= 1),
            "{self:?}"
        );
        assert_eq!(self.reason(), "unavailable", "{self:?}");
    }
}

/// Splits `"name";a=1;b=2`.
fn item(value: &str) -> (&str, Vec<(&str, &str)>) {
    let mut parts = value.split(';');
    let name = parts.next().unwrap_or_default().trim();
    let name = name
        .strip_prefix('"')
        .and_then(|name| name.strip_suffix('"'));
    let parameters = parts
        .filter_map(|part| part.trim().split_once('='))
        .collect();
    (
        name.unwrap_or_else(|| panic!("not a quoted name: {value}")),
        parameters,
    )
}
