//! What is asked: a tenant, and one limit, several, or all limits of an action.

use std::collections::BTreeMap;
use std::time::Duration;

use http::HeaderValue;
use serde::Serialize;

use super::error::CheckError;

const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// One question: may this tenant spend this much now? All limits of a question are charged, or none.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    tenant: String,
    #[serde(flatten)]
    asked: Asked,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_wait_ms: Option<u64>,
    #[serde(skip)]
    idempotency_key: Option<String>,
}

/// What a [`Check`] asks for: made of a [`Charge`], of several, or of an [`Action`].
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct Asked(Form);

#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Form {
    One(Charge),
    Several { checks: Vec<Charge> },
    Action(Action),
}

/// One limit, its key when it has one, and the cost.
#[derive(Clone, Debug, Serialize)]
pub struct Charge {
    limit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
}

/// Every limit of the tenant that applies to an action and whose key is absent or given.
#[derive(Clone, Debug, Serialize)]
pub struct Action {
    action: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    keys: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
}

impl Charge {
    /// One unit of `limit`.
    pub fn on(limit: impl Into<String>) -> Self {
        Self {
            limit: limit.into(),
            key: None,
            cost: None,
        }
    }

    /// The key that the limit counts by, 1 to 512 bytes.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// So many units, 0 to 2^53 - 1; 0 looks and takes nothing.
    #[must_use]
    pub const fn cost(mut self, units: u64) -> Self {
        self.cost = Some(units);
        self
    }
}

impl Action {
    /// One unit of every limit of `action`.
    pub fn named(action: impl Into<String>) -> Self {
        Self {
            action: action.into(),
            keys: BTreeMap::new(),
            cost: None,
        }
    }

    /// The key for limits that count by `kind` (`user`, `ip`, …).
    #[must_use]
    pub fn key(mut self, kind: impl Into<String>, key: impl Into<String>) -> Self {
        self.keys.insert(kind.into(), key.into());
        self
    }

    /// So many units of each limit, 0 to 2^53 - 1; 0 looks and takes nothing.
    #[must_use]
    pub const fn cost(mut self, units: u64) -> Self {
        self.cost = Some(units);
        self
    }
}

impl From<Charge> for Asked {
    fn from(charge: Charge) -> Self {
        Self(Form::One(charge))
    }
}

impl From<Vec<Charge>> for Asked {
    fn from(checks: Vec<Charge>) -> Self {
        Self(Form::Several { checks })
    }
}

impl<const N: usize> From<[Charge; N]> for Asked {
    fn from(charges: [Charge; N]) -> Self {
        Self::from(Vec::from(charges))
    }
}

impl From<Action> for Asked {
    fn from(action: Action) -> Self {
        Self(Form::Action(action))
    }
}

impl Check {
    /// What `tenant` asks for: a [`Charge`], 1 to 16 of them, or an [`Action`].
    pub fn new(tenant: impl Into<String>, asked: impl Into<Asked>) -> Self {
        Self {
            tenant: tenant.into(),
            asked: asked.into(),
            endpoint: None,
            ip: None,
            max_wait_ms: None,
            idempotency_key: None,
        }
    }

    /// The endpoint that is called: a label for the server's metrics and logs, it chooses nothing.
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into());
        self
    }

    /// The address of who calls: a label for the server's logs, it chooses nothing.
    #[must_use]
    pub fn ip(mut self, ip: impl Into<String>) -> Self {
        self.ip = Some(ip.into());
        self
    }

    /// The longest that the server may wait for the leader of strict limits, in whole milliseconds; zero never
    /// waits. Without it the server waits for one round of its own. To be of use it is below the deadline.
    #[must_use]
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait_ms = Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Makes this question safe to ask again: with the same key it is charged once. 1 to 255 printable ASCII
    /// characters.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// The `Idempotency-Key` header, a structured field's string.
    pub(super) fn idempotency_header(&self) -> Result<Option<HeaderValue>, CheckError> {
        let Some(key) = &self.idempotency_key else {
            return Ok(None);
        };
        let is_key = (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&key.len())
            && key.bytes().all(|byte| (0x20..0x7f).contains(&byte));
        if !is_key {
            return Err(CheckError::IdempotencyKey);
        }
        let escaped = key.replace('\\', "\\\\").replace('"', "\\\"");
        HeaderValue::try_from(format!("\"{escaped}\""))
            .map(Some)
            .map_err(|_| CheckError::IdempotencyKey)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(check: &Check) -> serde_json::Value {
        serde_json::to_value(check).expect("JSON")
    }

    #[test]
    fn every_form_is_written_as_the_server_reads_it() {
        let one = Check::new("acme", Charge::on("tokens").key("gpt-5").cost(120));
        assert_eq!(
            written(&one),
            json!({ "tenant": "acme", "limit": "tokens", "key": "gpt-5", "cost": 120 })
        );
        let several = Check::new("acme", [Charge::on("account"), Charge::on("b").cost(0)])
            .endpoint("POST /v1/sms")
            .max_wait(Duration::from_millis(20));
        assert_eq!(
            written(&several),
            json!({
                "tenant": "acme", "checks": [{ "limit": "account" }, { "limit": "b", "cost": 0 }],
                "endpoint": "POST /v1/sms", "max_wait_ms": 20,
            })
        );
        let action = Check::new("acme", Action::named("api").key("user", "alice")).ip("::1");
        assert_eq!(
            written(&action),
            json!({ "tenant": "acme", "action": "api", "keys": { "user": "alice" }, "ip": "::1" })
        );
    }

    #[test]
    fn an_idempotency_key_is_quoted_and_stays_out_of_the_body() {
        let check = Check::new("acme", Charge::on("a"));
        let header = |key: &str| check.clone().idempotency_key(key).idempotency_header();
        assert_eq!(check.idempotency_header(), Ok(None));
        assert_eq!(
            header("a\"b\\c"),
            Ok(Some(HeaderValue::from_static("\"a\\\"b\\\\c\"")))
        );
        for wrong in ["", "ü", "a\nb", &"x".repeat(256)] {
            assert_eq!(header(wrong), Err(CheckError::IdempotencyKey), "{wrong}");
        }
        assert_eq!(
            written(&check.clone().idempotency_key("k")),
            written(&check)
        );
    }
}
