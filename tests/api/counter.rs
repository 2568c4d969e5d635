//! One counter of a server under test: what calls of the check API do to one (tenant, limit, key).

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::answer::Answer;
use crate::server::Server;

/// Names a counter and calls for it.
#[derive(Clone, Copy)]
pub struct Counter<'a> {
    server: &'a Server,
    tenant: &'a str,
    limit: &'a str,
    key: Option<&'a str>,
}

#[allow(dead_code, reason = "each test binary uses its part of the harness")]
impl<'a> Counter<'a> {
    /// The counter of a limit without keys.
    pub const fn new(server: &'a Server, tenant: &'a str, limit: &'a str) -> Self {
        Self {
            server,
            tenant,
            limit,
            key: None,
        }
    }

    /// The counter of one key.
    pub const fn keyed(server: &'a Server, tenant: &'a str, limit: &'a str, key: &'a str) -> Self {
        Self {
            server,
            tenant,
            limit,
            key: Some(key),
        }
    }

    /// The body of a check without a cost.
    pub fn body(&self) -> Value {
        match self.key {
            Some(key) => json!({ "tenant": self.tenant, "limit": self.limit, "key": key }),
            None => json!({ "tenant": self.tenant, "limit": self.limit }),
        }
    }

    /// The body of a check of this cost.
    pub fn costing(&self, cost: impl Into<Value>) -> Value {
        let mut body = self.body();
        body["cost"] = cost.into();
        body
    }

    /// A check of this cost.
    pub fn take(&self, cost: u64) -> Answer {
        self.server.check(&self.costing(cost))
    }

    /// A check of this cost with an `Idempotency-Key`.
    pub fn take_once(&self, idempotency_key: &str, cost: u64) -> Answer {
        self.server.post_with(
            "/v1/check",
            &[("idempotency-key", idempotency_key)],
            &self.costing(cost),
        )
    }

    /// How many of `calls` checks of cost 1, one after the other, are allowed.
    pub fn passes(&self, calls: usize) -> usize {
        (0..calls).filter(|_| self.take(1).allowed()).count()
    }

    /// How many of `calls` decided checks of cost 1 are allowed. Where the log decides, a disk that stands still for
    /// a moment is a 503 that has charged nothing; such a check is asked again.
    pub fn passes_once_decided(&self, calls: usize) -> usize {
        let decided = || {
            let mut answer = self.take(1);
            for _ in 0..100 {
                if answer.status != 503 {
                    break;
                }
                answer = self.take(1);
            }
            answer
        };
        (0..calls).filter(|_| decided().allowed()).count()
    }

    /// A check of cost 0.
    pub fn look(&self) -> Answer {
        self.take(0)
    }

    /// What is left, by a look.
    pub fn left(&self) -> u64 {
        self.look().remaining()
    }

    /// `GET /v1/usage`.
    pub fn usage(&self) -> Answer {
        let mut path = format!(
            "/v1/usage?tenant={}&limit={}",
            percent_encoded(self.tenant),
            self.limit
        );
        if let Some(key) = self.key {
            path.push_str("&key=");
            path.push_str(&percent_encoded(key));
        }
        let answer = self.server.get(&path);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer
    }

    /// `used`, by `GET /v1/usage`.
    pub fn used(&self) -> u64 {
        self.usage().used()
    }

    /// A refund of this cost.
    pub fn refund(&self, cost: u64) -> Answer {
        self.server.post("/v1/refund", &self.costing(cost))
    }

    /// Units given back by a refund of this cost.
    pub fn refunded(&self, cost: u64) -> u64 {
        let answer = self.refund(cost);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body["refunded"]
            .as_u64()
            .unwrap_or_else(|| panic!("no refunded: {answer:?}"))
    }

    /// A hold of this cost; a `ttl` of `""` leaves the default.
    pub fn hold(&self, cost: u64, ttl: &str) -> Answer {
        let mut body = self.costing(cost);
        if !ttl.is_empty() {
            body["ttl"] = ttl.into();
        }
        self.server.post("/v1/holds", &body)
    }
}

/// Operations on one hold.
#[derive(Clone, Debug)]
pub struct Hold(pub String);

#[allow(dead_code, reason = "each test binary uses its part of the harness")]
impl Hold {
    /// The hold that an answer granted.
    pub fn granted(answer: &Answer) -> Self {
        Self(answer.hold_id())
    }

    /// Settles a hold of one limit at this cost.
    pub fn settle(&self, server: &Server, cost: u64) -> Answer {
        server.post(
            &format!("/v1/holds/{}/settle", self.0),
            &json!({ "cost": cost }),
        )
    }

    /// Renews it for this long from now.
    pub fn renew(&self, server: &Server, ttl: &str) -> Answer {
        server.post(
            &format!("/v1/holds/{}/renew", self.0),
            &json!({ "ttl": ttl }),
        )
    }

    /// Gives all back.
    pub fn release(&self, server: &Server) -> Answer {
        self.release_as(server, None)
    }

    /// Gives all back, as the owner of a token.
    pub fn release_as(&self, server: &Server, token: Option<&str>) -> Answer {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> = bearer
            .iter()
            .map(|bearer| ("authorization", bearer.as_str()))
            .collect();
        let url = format!("{}/v1/holds/{}", server.check_url(), self.0);
        server.send(Method::DELETE, &url, &headers, &Value::Null)
    }
}

/// A text as it stands in a query.
pub fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
